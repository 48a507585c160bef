/* endpoint.h - the broker's ZeroMQ sockets: a ROUTER on ipc://, with every limit set, and who is at the other end; and, where
 * asked for, a second ROUTER on tcp:// with CURVE (tcp_door.h).  CURVE is a property of a socket, so there have to be two.
 *
 * libzmq would steal a bound ipc path without a word, so the folder is private, and a lock file beside the socket is held while it
 * is bound: a second broker of the same folder is refused.
 *
 * The peer of a message is the process that connected the unix socket: its uid comes from the kernel, by the "Peer-Address"
 * property of the body frame ("localhost:UID:GID:PID" in libzmq 4.3.4).  A message without it is refused.
 *
 * Routing ids are those that libzmq draws: five bytes, the first 0.  A peer that chose its own could wait for another to
 * leave and take its id, and with it the tokens still under way: it is refused.
 *
 * Nothing here blocks.  A send may fail with ST_AGAIN (this peer's queue is full: it does not read) or ST_GONE (it has left). */
#ifndef ENDPOINT_H
#define ENDPOINT_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

#include <zmq.h>

#include "curve_key.h"
#include "error.h"
#include "span.h"
#include "status.h"

enum { ENDPOINT_IPC, ENDPOINT_TCP };
enum { PEER_ID_BYTES = 5, ENDPOINT_SEND_MESSAGES_MAX = 1000, ENDPOINT_RECEIVE_MESSAGES_MAX = 64, ENDPOINT_LINGER_MS = 500 };

struct tcp_door; /* tcp_door.h */

struct peer {
    uint8_t id[PEER_ID_BYTES];
    uint8_t socket;    /* ENDPOINT_IPC or ENDPOINT_TCP: each has ids of its own */
    bool delimiter;    /* it sends an empty frame first (a REQ socket) and gets one back */
};

static inline bool peer_equal(const struct peer *a, const struct peer *b)
{
    return a->socket == b->socket && memcmp(a->id, b->id, PEER_ID_BYTES) == 0;
}

#define NO_UID ((uid_t)-1) /* nobody's; setuid() and chown() take it for "none", too */

struct endpoint {
    void *context, *socket;
    int lock;          /* descriptor of the lock file */
    struct tcp_door *tcp; /* NULL: nobody may come by tcp.  Owned */
    bool tcp_first;    /* whose turn it is to be received from */
};

struct received {
    struct peer peer;
    uid_t uid;         /* of ipc; NO_UID of tcp */
    bool by_key;       /* it came by tcp: who it is, is this public key */
    uint8_t key[CURVE_KEY_BYTES];
    bool answerable;   /* false: of a peer with an id of its own choice; there is nobody to tell */
    struct error problem; /* code ERR_NONE: the frames are right and body holds the map */
    zmq_msg_t body;    /* to be closed with received_deinit() */
};

/* uri is ipc:///path.  Makes runtime_dir (0750) if it is missing.  ST_OK; ST_INVALID, ST_SYSTEM with *err set. */
MUST_CHECK enum status endpoint_open(const char *uri, const char *runtime_dir, struct endpoint *ret_endpoint, struct error *err);

/* Limits of a client-facing ROUTER: message and queue sizes, handshake time, linger. */
void endpoint_set_limits(void *socket);

/* Replies still queued have ENDPOINT_LINGER_MS to leave; then the lock is given up.  NULL fields are fine. */
void endpoint_close(struct endpoint *e);

/* The next message.  ST_OK, ST_AGAIN (none), ST_SYSTEM. */
MUST_CHECK enum status endpoint_receive(struct endpoint *e, struct received *ret_received);
void received_deinit(struct received *r);
struct span received_body(struct received *r);

/* Send signature and body.  ST_OK, ST_AGAIN, ST_GONE. */
MUST_CHECK enum status endpoint_send(struct endpoint *e, const struct peer *to, struct span body);

#endif
