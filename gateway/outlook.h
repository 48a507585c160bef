/* outlook.h - how many lines come before those of a job, and about when it will have ended.  A guess from what was measured lately.
 *
 * The pace is that of all lines together while any was under way: time without work does not count.  Users share it evenly, so one of n
 * gets 1/n of it; a user's own jobs go one after another, those of higher priority first. */
#ifndef OUTLOOK_H
#define OUTLOOK_H

#include "runner.h"

struct outlook {
    uint64_t lines_ahead; /* of the user's own jobs that come first, not answered yet */
    uint64_t users;       /* that share the pool now, this one included */
    uint64_t seconds;     /* until the end; 0: nothing is known */
};

/* Note what was done since the last call.  Once a turn. */
void outlook_step(struct runner *r, uint64_t now_ns);

/* Of a job that runs. */
struct outlook outlook_of(const struct runner *r, const struct job *job);
/* Of n_lines that this user would submit now with this priority (0: normal). */
struct outlook outlook_of_new(const struct runner *r, const char *user, uint32_t priority, uint64_t n_lines);

#endif
