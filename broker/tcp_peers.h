/* tcp_peers.h - whose the open tcp connections are, and how many of them one user holds.
 *
 * libzmq tells this in pieces.  Its monitor: a descriptor was accepted, a descriptor was closed.  Its question in a handshake: a key, with no
 * word of the descriptor.  A message: the descriptor it came by, and what the answer to that question said.  So the answer gives a number,
 * and the first message brings number and descriptor together:
 *
 *     accepted(fd) ──► NAMELESS ──said(fd, number)──► NAMED ──closed(fd)──► gone
 *     admitted(user) ──► a number that is AWAITED ──said──^
 *
 * What a user holds is its NAMED connections and its AWAITED numbers.  A connection that says nothing for TCP_PEERS_SILENT_MS is overdue, and
 * the caller ends it; so a number that is awaited for longer than that belongs to a connection that has gone, and is dropped.  Nobody can hold a
 * connection that does not count.
 *
 * Numbers only grow, and so of two that are said of one descriptor the larger is of the connection that has it now: the smaller came in a
 * message that was read after its connection had gone.
 *
 * user is a number that the caller has for each.  No clock and no I/O: time is passed in.  All memory is taken at the start. */
#ifndef TCP_PEERS_H
#define TCP_PEERS_H

#include <stdbool.h>
#include <stdint.h>

#include "status.h"

enum { TCP_PEERS_SILENT_MS = 10000 /* the handshake of at most five seconds included */ };

struct tcp_peer {
    int fd;
    uint32_t next; /* of its bucket, or of the free places */
    bool used;
    uint64_t cookie; /* the kernel's name of the socket, for the caller */
    uint64_t number; /* 0: nameless */
    uint64_t user;
    uint64_t since_ns; /* it was accepted, or found overdue */
};

struct tcp_awaited {
    uint64_t number, user, since_ns;
};

struct tcp_peers {
    struct tcp_peer *list;       /* [n_max] */
    uint32_t *buckets;           /* [n_max]: first place of those whose fd is this, modulo n_max */
    struct tcp_awaited *awaited; /* [n_max], the first n_awaited in use, the oldest first */
    uint32_t n_max, n, n_awaited, free;
    uint64_t last_number;
};

/* ST_OK, ST_NOMEM. */
MUST_CHECK enum status tcp_peers_init(struct tcp_peers *p, uint32_t n_max);
void tcp_peers_deinit(struct tcp_peers *p); /* a zeroed one is fine */

/* ST_OK; ST_FULL: there are n_max, and this one is not known. */
MUST_CHECK enum status tcp_peers_accepted(struct tcp_peers *p, int fd, uint64_t cookie, uint64_t now_ns);
void tcp_peers_closed(struct tcp_peers *p, int fd);
/* May this user have one more, of n_user_max?  ST_OK with the number of its connection; ST_LIMIT: it holds as many; ST_FULL: n_max are awaited. */
MUST_CHECK enum status tcp_peers_admitted(struct tcp_peers *p, uint64_t user, uint32_t n_user_max,
                                          uint64_t now_ns, uint64_t *ret_number);
/* A message came by this descriptor, from the connection with this number. */
void tcp_peers_said(struct tcp_peers *p, int fd, uint64_t number);

/* How many this user holds: O(n_max), for handshakes. */
uint32_t tcp_peers_of(const struct tcp_peers *p, uint64_t user);
/* Drop the numbers that nobody will say any more. */
void tcp_peers_expire(struct tcp_peers *p, uint64_t now_ns);
/* The next overdue connection from place *at on, which begins at 0; NULL: none is left.  Its time begins again. */
const struct tcp_peer *tcp_peers_overdue(struct tcp_peers *p, uint64_t now_ns, uint32_t *at);

#endif
