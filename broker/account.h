/* account.h - the users the broker has seen, as small numbers, with what they have under way.
 *
 * A user is a name: of the users file, of the machine's accounts, or given by a front end.  Numbers are given out as names turn up; when
 * all are taken, that of the user idle for longest is given to the next.  A user with a live request keeps its number. */
#ifndef ACCOUNT_H
#define ACCOUNT_H

#include <stdint.h>

#include "fair_queue.h"
#include "span.h"
#include "status.h"
#include "users.h"

enum { ACCOUNTS_MAX = 1024 };

struct account {
    char name[USER_NAME_BYTES];
    char group[USER_NAME_BYTES]; /* of the users file, as of its last request; "": none */
    uint32_t n_live;        /* requests of it in the table */
    uint32_t n_running;     /* of them, in a worker */
    uint64_t running_max;   /* 0: none */
    uint64_t last_seen_ns;
    uint64_t n_requests;    /* accepted since it got its number */
    uint64_t prompt_tokens, cached_tokens, completion_tokens;
    uint64_t n_dispatched, queue_ns; /* requests that reached a worker; their waits, summed: from arrival to that moment */
    uint64_t n_preemptions; /* how often its requests made room in a worker */
    int64_t day;            /* since 1970, UTC, of tokens_today */
    uint64_t tokens_today;  /* computed for it: prompts without what the cache had, and answers.  Since the broker's start */
};

struct accounts {
    struct account list[ACCOUNTS_MAX];
    uint32_t n;
};

/* The number of this name (1 to USER_NAME_BYTES - 1 bytes), new if need be.  ST_OK, or ST_FULL: all numbers have live requests. */
MUST_CHECK enum status accounts_number(struct accounts *a, const char *name, struct fair_queue *q, uint64_t now_ns,
                                       uint32_t *ret_number);

/* Tokens computed for it, by the day.  real_ms: milliseconds since 1970. */
void account_count(struct account *a, uint64_t tokens, int64_t real_ms);
uint64_t account_tokens_today(const struct account *a, int64_t real_ms);

/* Those of one group together: n_live, n_running and tokens_today of *ret_sum. */
void accounts_of_group(const struct accounts *a, const char *group, int64_t real_ms, struct account *ret_sum);

#endif
