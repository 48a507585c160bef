/* client.h - the connections with live requests.  One that has none is not remembered: its next message says again who it is. */
#ifndef CLIENT_H
#define CLIENT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "endpoint.h"
#include "limits.h"

enum { CLIENT_NONE = 0xFFFFFFFFu, CLIENT_BUCKETS = 2048, NO_REQUEST = 0xFFFFFFFFu };

struct client {
    struct peer peer;
    uid_t uid;
    uint8_t key[CURVE_KEY_BYTES]; /* of a peer of the tcp socket; else zeros */
    bool used;
    uint32_t n_live;
    uint32_t first, last;      /* its requests: a list through struct request */
    uint32_t probe;            /* whose turn it is to carry the next progress message */
    uint64_t probe_due_ns;
    uint64_t blocked_since_ns; /* its queue in libzmq is full, nothing went out since; 0: it takes what we send */
    uint64_t retry_ns;         /* blocked: do not try before */
    uint32_t next;             /* of its bucket, or of the free list */
};

struct clients {
    struct client list[CLIENTS_MAX];
    uint32_t buckets[CLIENT_BUCKETS];
    uint32_t free;
    uint32_t n;
};

void clients_init(struct clients *c);
uint32_t clients_find(const struct clients *c, const struct peer *p); /* CLIENT_NONE when it is not known */
/* ST_OK, or ST_FULL.  The peer is not known yet. */
MUST_CHECK enum status clients_add(struct clients *c, const struct peer *p, uid_t uid, const uint8_t key[CURVE_KEY_BYTES],
                            uint64_t now_ns, uint32_t *ret_client);
void clients_remove(struct clients *c, uint32_t client); /* it has no live request */

#endif
