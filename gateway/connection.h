/* connection.h - a connection process (c): one ssh session, its login, its channels, and the door to (b). */
#ifndef CONNECTION_H
#define CONNECTION_H

#include "talk.h"

enum {
    LOGIN_TRIES_MAX = 6,     /* signatures that did not let anybody in */
    LOGIN_PROBES_MAX = 64,   /* keys offered: an agent may hold many, and each costs a question to (b) only */
    WATCHDOG_S = 60,         /* one turn of the loop takes less time, */
    WATCHDOG_CPU_S = 5,      /* and less computing, or the kernel ends the process */
};

struct connection {
    ssh_session session;
    ssh_event event;
    ssh_bind bind;
    struct ssh_server_callbacks_struct callbacks;
    int door;
    bool door_gone;
    bool logged_in;          /* our own flag: nothing but it opens a channel */
    bool give_up;            /* too many tries */
    unsigned tries, probes;
    char user[64], peer[80];
    uint64_t door_gone_ns;
    struct talk talks[DOOR_CHANNELS];
    uint8_t packet[DOOR_PACKET_BYTES];
};

/* Wind the watchdog's clocks up: for another turn, or for another bounded part of a turn's work. */
void connection_wind_watchdog(void);

/* login.c: set the callbacks that let keys in. */
void login_setup(struct connection *c);

#endif
