/* listening.h - the TCP sockets of the ssh server: opening them, and what is said of and set on a connection that came in. */
#ifndef LISTENING_H
#define LISTENING_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "config.h"
#include "error.h"

enum { LISTEN_SOCKETS_MAX = 16, BACKLOG = 1024, PEER_BYTES = 80 };

struct listening {
    int sockets[LISTEN_SOCKETS_MAX];
    size_t n;
    unsigned port;      /* the one that was asked for, or found free */
};

/* On every --listen address, or on all.  ST_OK; ST_INVALID, ST_LIMIT, ST_SYSTEM with *err set. */
MUST_CHECK enum status listening_open(struct listening *l, const struct config *c, struct error *err);

/* "ADDRESS:PORT" for the log, and the source that limits count by: IPv4 as ::ffff:a.b.c.d, of IPv6 the upper half. */
void listening_peer(const struct sockaddr_storage *from, char *peer, size_t peer_bytes, uint8_t source[16]);
/* No delay, and keepalives that notice a peer that has gone without a word. */
void listening_tune(int sock);

/* Does ADDRESS:PORT come from one of these: an address, ADDRESS/BITS, or a pattern with * and ?.  */
bool listening_is_from(const char *peer, const char *const *patterns, size_t n);
/* Is this such a pattern? */
bool listening_pattern_ok(const char *pattern);

#endif
