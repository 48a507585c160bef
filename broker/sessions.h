/* sessions.h - named conversations whose computed blocks are kept until a time-out.
 *
 *                 first request                       time-out, or session_end
 *   (unknown) -----------------> OPEN, used by n >= 0 -------------------------> ENDED, until its workers know -> (unknown)
 *                                  ^  |
 *                                  +--+  every request: time starts again when it comes and when it ends
 *
 * The broker owns the name, the time, and the place: requests of a session go to the worker that has its blocks, if that has
 * room.  The worker keeps the blocks (WORK_START with a session's number) until it is told to forget (WORK_SESSION_END), or until it
 * needs them for something else.  A session is a promise about time only: the client sends the whole conversation each time, and what was
 * lost is computed again.
 *
 * Time does not pass for a session that is in use.  An ended one is told to every worker that may keep something for its number; the name is free
 * at once, and a session of that name that is begun again has another number.
 *
 * No clock and no I/O: time is passed in. */
#ifndef SESSIONS_H
#define SESSIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "limits.h"
#include "status.h"

enum { SESSION_NONE = -1 };

struct session {
    uint64_t number;      /* never 0, never used twice; 0: the place is free */
    uint64_t name[2];     /* hash of user and name */
    uint64_t user;        /* hash of the user */
    uint64_t ttl_ns, expires_ns;
    uint32_t n_users;     /* requests in the broker's table */
    int worker;           /* that has its blocks; -1: none yet */
    uint32_t told;        /* bit w: worker w may keep something for the number */
    bool ended;
};

struct sessions {
    struct session list[SESSIONS_MAX];
    uint32_t n;           /* places in use */
    uint64_t last_number;
};

/* A request of this session comes: open it, or start its time again.  *ret_at is its place, good while the request lives.
 * n_user_max: sessions that the user may have.
 * ST_OK; ST_LIMIT: the user has as many; ST_FULL: there are SESSIONS_MAX. */
MUST_CHECK enum status sessions_use(struct sessions *s, const uint64_t name[2], uint64_t user, uint64_t n_user_max, uint64_t ttl_ns,
                                    uint64_t now_ns, int *ret_at);
/* The request is gone. */
void sessions_unuse(struct sessions *s, int at, uint64_t now_ns);
/* session_end: false when there is none of this name. */
bool sessions_end(struct sessions *s, const uint64_t name[2]);
/* The request was given to this worker.  Gives the number it is to keep blocks for; 0: for none, the session has ended. */
uint64_t sessions_place(struct sessions *s, int at, uint32_t worker);
/* End those whose time is over. */
void sessions_expire(struct sessions *s, uint64_t now_ns);
/* Is there a worker to be told that it keeps blocks in vain: of an ended session, or of one that has moved on?  Its number and place, or
 * SESSION_NONE.  Not while a request of the session may still leave blocks there. */
int sessions_to_tell(const struct sessions *s, uint32_t worker);
void sessions_told(struct sessions *s, int at, uint32_t worker);
/* The worker's process is a new one: it keeps nothing. */
void sessions_forget_worker(struct sessions *s, uint32_t worker);

void sessions_check(const struct sessions *s); /* aborts at the first broken invariant */

#endif
