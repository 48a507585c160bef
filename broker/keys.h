/* keys.h - idempotency keys: a request that is sent twice is done once.
 *
 *             first request              its answer is complete, and told or given up
 *   (absent) ---------------> LIVE ------------------------------------------------> KEPT
 *      ^                       |  it failed                                           |  ^ |
 *      +-----------------------+                                                      |  +-+  replayed: LIVE while it is told
 *      +------------------------------------------------------------------------------+  too old, or its room is needed
 *
 * A key is a user's: the table holds a keyed hash of user and key, and one of what was asked for, never the key itself.  LIVE names the request that has the
 * key; KEPT holds its answer.  Kept answers are bounded by number, by bytes, by number for one user, and by time; the oldest go first, a
 * user's own before those of others.  So a key promises what it can: within KEYS_KEEP_MS and these limits the second request is the first
 * one, later it is a new one.
 *
 * LIVE keys always fit: each belongs to a request, and there are more places than requests.
 *
 * No clock and no I/O: time is passed in. */
#ifndef KEYS_H
#define KEYS_H

#include <stdbool.h>
#include <stdint.h>

#include "limits.h"
#include "request.h"
#include "status.h"

enum {
    KEYS_PLACES = 2 * REQUESTS_MAX,
    KEYS_KEEP_MS = 10 * 60 * 1000,     /* a complete answer is kept for so long */
    KEYS_USER_KEPT_MAX = 512,          /* kept answers of one user */
    KEYS_BYTES_MAX = 64 << 20,         /* of all kept answers */
    KEYS_ORPHAN_MS = 30 * 1000,        /* a keyed request whose client has gone runs on for so long */
};

struct key {                           /* hashes; the caller makes them */
    uint64_t name[2];                  /* of user and key */
    uint64_t user;                     /* of the user */
    uint64_t content[2];               /* of all that decides the answer */
};

struct kept_answer {                   /* what a replay tells, in the words of struct request */
    struct choice *choices;            /* [n_choices], owned */
    uint32_t n_choices;
    uint64_t bytes;                    /* capacity of all that they hold */
    uint64_t seed, number, prefill_ns;
    uint32_t prompt_tokens, cached_tokens, preemptions, takeovers;
    int worker;
    char numerics_id[NUMERICS_ID_BYTES];
};
void kept_answer_deinit(struct kept_answer *a);

enum key_state { KEY_ABSENT, KEY_LIVE, KEY_KEPT };

struct keys; /* opaque */

struct keys_numbers {
    uint32_t n_live, n_kept;
    uint64_t bytes;                    /* of kept answers */
};

MUST_CHECK enum status keys_new(struct keys **ret_keys); /* ST_OK, ST_NOMEM */
void keys_free(struct keys *k);

/* Where the name stands.  *ret_place is good until the next call that changes the table; *ret_same: its content is key's, too;
 * *ret_request: of KEY_LIVE. */
enum key_state keys_find(const struct keys *k, const struct key *key, uint32_t *ret_place, bool *ret_same, uint32_t *ret_request);

/* An absent key is this request's from now on.  Gives its place. */
uint32_t keys_add(struct keys *k, const struct key *key, uint32_t request);

/* The answer of a LIVE key is complete: KEPT.  Takes what *a owns, or frees it if it is too large to be kept.  Older answers may have to
 * go for it. */
void keys_keep(struct keys *k, uint32_t place, struct kept_answer *a, uint64_t now_ns);

/* The answer of a KEPT key, for a request that tells it once more: the key is LIVE until keys_keep() gives it back.  Time goes on
 * from when it was first complete.  Gives *ret_answer, which the caller owns. */
void keys_take(struct keys *k, uint32_t place, uint32_t request, struct kept_answer *ret_answer);

/* The request of a LIVE key failed: the next one with this key is a new one. */
void keys_drop(struct keys *k, uint32_t place);

/* Forget answers that are too old. */
void keys_expire(struct keys *k, uint64_t now_ns);

struct keys_numbers keys_numbers(const struct keys *k);
/* Whose request is it?  For checks: the request of a LIVE place, NO_REQUEST otherwise. */
uint32_t keys_request(const struct keys *k, uint32_t place);
void keys_check(const struct keys *k); /* aborts at the first broken invariant */

#endif
