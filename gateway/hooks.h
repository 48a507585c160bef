/* hooks.h - the administrator's program that is run when a job has ended (--job-hook).  In the listener (a), the only process that starts others.
 *
 *   PROGRAM JOB USER STATUS        with WEIR_JOB, WEIR_USER, WEIR_STATUS, WEIR_LINES, WEIR_FAILED and PATH as its whole environment
 *
 * No shell; standard input is empty, its output goes to the gateway's log stream, no other descriptor is open, the working folder is /.  It is a
 * process group of its own, killed after --job-hook-timeout.  HOOKS_RUNNING_MAX run at once; HOOKS_QUEUED_MAX wait, more are
 * dropped and logged.  Nobody waits for it and its exit code changes nothing.  At most once: not again after a crash. */
#ifndef HOOKS_H
#define HOOKS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "door.h"
#include "error.h"

enum { HOOKS_RUNNING_MAX = 4, HOOKS_QUEUED_MAX = 256, HOOK_WORD_BYTES = 64 };

struct hook {
    char job[HOOK_WORD_BYTES], user[HOOK_WORD_BYTES], status[HOOK_WORD_BYTES];
    uint64_t lines, failed;
    pid_t pid;              /* of those that run; 0: free slot */
    uint64_t since_ns;
    bool killed;
};

struct hooks {
    const char *program;    /* NULL: none */
    uint64_t timeout_ns;
    struct hook running[HOOKS_RUNNING_MAX];
    struct hook queue[HOOKS_QUEUED_MAX]; /* a ring: [first, first + n) */
    unsigned first, n, n_running;
    uint64_t n_run, n_failed, n_dropped; /* for the metrics; n_failed: exit code other than 0, or killed */
};

/* May this be run for others?  An absolute path to a file that can be executed and that only its owner, who is root or us, can write.
 * ST_OK, or ST_INVALID with *err set. */
MUST_CHECK enum status hook_check(const char *program, struct error *err);

/* A job has ended: the body of a DOOR_JOB_ENDED.  Words that are not of letters, digits, - and _ are refused. */
void hooks_add(struct hooks *h, struct door_reader *r);
/* Start what waits, kill what takes too long. */
void hooks_step(struct hooks *h, uint64_t now_ns);
/* Was this child one of ours? */
bool hooks_reaped(struct hooks *h, pid_t pid, int wait_status);
bool hooks_busy(const struct hooks *h);
void hooks_kill(struct hooks *h);
/* When hooks_step wants to be called at the latest; UINT64_MAX: when something happens. */
uint64_t hooks_next_ns(const struct hooks *h);

#endif
