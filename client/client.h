/* client.h - the inside of a libweir client: one connection, and the table of what is open on it.
 *
 *              connect_start                hello came
 *     DOWN ------------------> GREETING ------------------> READY
 *      ^                          |  no hello in time         |  connection closed, broker silent, malformed reply
 *      +--------------------------+---------------------------+      every open request gets its WEIR_ERROR
 *
 * A lost connection is never mended by libzmq: the socket is closed and a new one made, because a DEALER keeps what it could
 * not send and would hand yesterday's requests to a broker that knows nothing of them.
 *
 * Sleeping.  weir_fd() is an epoll descriptor over three others: libzmq's ZMQ_FD of the socket and of its monitor, and an eventfd.
 * ZMQ_FD is readable only while libzmq has commands to take in; any call on the socket takes them in, after which a
 * message may be there with nothing readable.  So every public function that touches the socket ends in client_settle(): it reads
 * ZMQ_EVENTS, and if a message waits it makes the eventfd readable.  A message that comes later makes ZMQ_FD readable.
 * weir_process() clears the eventfd first.  So the epoll descriptor is readable whenever something waits. */
#ifndef CLIENT_H
#define CLIENT_H

#include <zmq.h>

#include "curve_key.h"
#include "error.h"
#include "span.h"
#include "weir.h"
#include "wire.h"

enum { CLIENT_ENDPOINT_BYTES = 4200, CLIENT_BOOT_BYTES = 64, CLIENT_IN_FLIGHT_MAX = 1 << 16, CLIENT_ID_DIGITS = 21 };

enum client_state { CLIENT_DOWN, CLIENT_GREETING, CLIENT_READY };

/* One open request.  Its number is generation * n_slots + slot, so that a late message never meets its successor. */
struct open_request {
    uint64_t number;           /* 0: the slot is free */
    weir_callback *callback;   /* NULL: nobody wants to know */
    void *arg;
    uint32_t n_choices;        /* a token of any other choice is malformed */
    uint32_t next_free;
};

struct weir_client {
    void *context, *socket, *monitor; /* socket and monitor are NULL while DOWN */
    int epoll, wake;
    char endpoint[CLIENT_ENDPOINT_BYTES], name[64], boot[CLIENT_BOOT_BYTES];
    bool curve;                /* a tcp endpoint: pair is who we are, and whom we expect */
    struct curve_pair pair;
    uint32_t connect_timeout_ms, silence_timeout_ms;
    uint32_t sockets_made;     /* names the monitors */

    enum client_state state;
    uint64_t state_since_ns;   /* of GREETING */
    uint64_t heard_ns;         /* last message of the broker, or the moment from which we wait for one */
    uint64_t retry_at_ns;      /* of DOWN */
    uint32_t backoff_ms;
    struct weir_error down;    /* why it is not READY */

    struct open_request *requests; /* [n_slots] */
    uint32_t n_slots, n_open, first_free;
    uint64_t generation;

    struct wire_buffer out;
    char *text;                /* what callbacks see: NUL-terminated copy */
    size_t text_capacity;
    bool in_callback;
};

enum { SLOT_NONE = UINT32_MAX, CLIENT_BACKOFF_MIN_MS = 50, CLIENT_BACKOFF_MAX_MS = 2000 };

/* client.c */
void weir_error_set(struct weir_error *e, const struct error *from, uint32_t retry_after_ms);
__attribute__((format(printf, 4, 5))) void weir_error_format(struct weir_error *e, enum error_code code, const char *param,
                                                             const char *format, ...);
/* Send what is in c->out.  WEIR_OK, or WEIR_FAILED with *err. */
int client_send(struct weir_client *c, struct weir_error *err);
void client_settle(struct weir_client *c);
/* Sleep until there is something to do, then do it.  For the blocking calls. */
void client_wait(struct weir_client *c);
/* Wait until READY, at most connect_timeout_ms. */
int client_wait_ready(struct weir_client *c, struct weir_error *err);

/* A slot of the table; WEIR_OK, WEIR_AGAIN, WEIR_FAILED (not READY).  Its id as the wire has it goes to id. */
int client_take_slot(struct weir_client *c, weir_callback *callback, void *arg, struct open_request **ret_request,
                     char id[CLIENT_ID_DIGITS], struct weir_error *err);
void client_free_slot(struct weir_client *c, struct open_request *r);

/* curve.c: keys for c->endpoint, from the options or the environment.  WEIR_OK, or WEIR_FAILED with *err. */
int client_find_keys(struct weir_client *c, const struct weir_options *o, struct weir_error *err);
/* Give them to a socket that is not connected yet.  False: this libzmq cannot. */
bool client_set_keys(const struct weir_client *c);
/* What the monitor has to say: false as long as the connection is there, else *ret_why. */
bool client_look_closed(struct weir_client *c, struct weir_error *ret_why);
enum { CLIENT_MONITOR_IPC = ZMQ_EVENT_DISCONNECTED,
       CLIENT_MONITOR_TCP = ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CONNECT_RETRIED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                            ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH };

/* dispatch.c: one message of the broker.  WEIR_OK; WEIR_FAILED with *err when the connection is of no use any more. */
int client_dispatch(struct weir_client *c, struct span body, struct weir_error *err);
/* End r with an error: frees its slot, then calls back. */
void client_fail_request(struct weir_client *c, struct open_request *r, const struct weir_error *why);

#endif
