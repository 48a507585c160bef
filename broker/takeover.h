/* takeover.h - what becomes of a dead worker's requests.
 *
 * A worker's death is not an error of its requests.  What it delivered before it died has been taken from the region; the rest of
 * each request is done by another worker, which is given the tokens so far (work_resume).  Only the cause of death matters:
 *
 *   outside     SIGKILL, SIGTERM, ... from somebody (an administrator, the kernel short of memory), a clean exit
 *               -> every request is queued again, ahead of all others
 *               (likewise for a request that a worker which hangs had not even taken yet)
 *   own fault   SIGSEGV, SIGABRT, SIGBUS, SIGILL, SIGFPE, SIGSYS, SIGTRAP, an exit with an error, and what the broker killed it for:
 *               a hang or a broken rule -> one of its requests may have done it.  All are suspects
 *
 * Suspects are run one at a time, and no other request may join them:
 *
 *   after the first death    in an empty worker, or beside those of its fellows that are cleared already.  One that ends, or
 *                            gets TAKEOVER_PROBATION_TOKENS further, is cleared.  So eight long answers whose worker met
 *                            an accident cost a moment each, not their whole length one after the other
 *   after a second           in an empty worker, alone to its end.  If the worker dies under it by its own fault, it is refused by
 *                            name: request_killed_worker
 *
 * Pure functions. */
#ifndef TAKEOVER_H
#define TAKEOVER_H

#include <stdbool.h>
#include <stdint.h>

enum kill_reason {      /* why the broker itself ended a worker */
    KILL_NONE,
    KILL_HANG,          /* no heartbeat, or one step took too long */
    KILL_BROKEN_RULE,   /* it wrote something impossible into its region */
    KILL_START_TIMEOUT, /* not ready in time */
    KILL_SHUTDOWN,      /* the broker stops */
};

enum takeover_action {
    TAKEOVER_FORGET,    /* nobody waits for it any more */
    TAKEOVER_COMPLETE,  /* all of it was delivered: only the word "done" was missing */
    TAKEOVER_REQUEUE,
    TAKEOVER_SUSPECT,   /* queue again, to run alone */
    TAKEOVER_BLAME,     /* it killed a worker alone: request_killed_worker */
};

enum { TAKEOVER_PROBATION_TOKENS = 32 };

/* Is a suspect that has made n_new tokens since its dispatch cleared?  bad_deaths: own-fault deaths it was in. */
bool takeover_cleared(uint32_t bad_deaths, uint32_t n_new);

struct takeover_case {
    bool own_fault;     /* of the worker: takeover_own_fault() */
    bool wanted;        /* a client waits for its end, and it has none yet */
    bool finished;      /* every choice had its FINISH event */
    bool suspect;       /* an earlier worker died under it, and it was not cleared */
    bool alone;         /* it was the only request in the worker */
};

/* wait_code and wait_status are si_code and si_status as waitid() gives them. */
bool takeover_own_fault(int wait_code, int wait_status, enum kill_reason reason);
enum takeover_action takeover_decide(const struct takeover_case *c);

/* "sigkill", "sigsegv", "exit-1", ... for logs and status; a kill of the broker's own by its reason. */
void takeover_cause_text(int wait_code, int wait_status, enum kill_reason reason, char ret_text[32]);

#endif
