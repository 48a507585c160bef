/* outlook.c - see outlook.h. */
#include "outlook.h"

#include <math.h>
#include <string.h>

#include "users.h"

enum { PACE_LINES_MIN = 3, COUNT_NS = 500000000 };
#define PACE_NS_MAX 120e9 /* what was measured before counts half when so much is newer */

static uint32_t priority_of(uint32_t priority)
{
    return priority == 0 ? 2 : priority;
}

/* Lines that are to be answered yet. */
static uint64_t left_of(const struct job_row *row)
{
    return row->n_lines - row->n_held - row->n_done - row->n_failed;
}

static bool shares(const struct job *j)
{
    return j->row.state == JOB_IN_PROGRESS && left_of(&j->row) > 0;
}

/* Users with lines to be answered. */
static uint32_t count_users(const struct runner *r)
{
    static const char *users[USERS_MAX];
    uint32_t n = 0;

    for (const struct job *j = r->jobs; j != NULL && n < USERS_MAX; j = j->next) {
        uint32_t at = 0;
        while (at < n && strcmp(users[at], j->row.user) != 0)
            at++;
        if (at == n && shares(j))
            users[n++] = j->row.user;
    }
    return n;
}

void outlook_step(struct runner *r, uint64_t now_ns)
{
    uint64_t done = r->n_answered + r->n_failed;

    if (r->pace_seen_ns != 0 && (r->pace_busy || done > r->pace_seen)) {
        r->pace_ns += (double)(now_ns - r->pace_seen_ns);
        r->pace_lines += (double)(done - r->pace_seen);
    }
    r->pace_seen_ns = now_ns;
    r->pace_seen = done;
    r->pace_busy = r->n_flying > 0;
    if (r->pace_ns > PACE_NS_MAX && r->pace_lines > 2 * PACE_LINES_MIN) {
        r->pace_ns /= 2;
        r->pace_lines /= 2;
    }
    if (now_ns - r->users_counted_ns >= COUNT_NS) {
        r->users_counted_ns = now_ns;
        r->n_users = count_users(r);
    }
}

static struct outlook look(const struct runner *r, const char *user, uint32_t priority, int64_t seq, uint64_t n_lines)
{
    struct outlook o = { .users = r->n_users };
    bool counted = false;

    for (const struct job *j = r->jobs; j != NULL; j = j->next) {
        if (!shares(j) || strcmp(j->row.user, user) != 0)
            continue;
        counted = true;
        uint32_t other = priority_of(j->row.priority);
        if (j->row.seq != seq && (other > priority || (other == priority && j->row.seq < seq)))
            o.lines_ahead += left_of(&j->row);
    }
    o.users += !counted || o.users == 0;
    if (r->pace_lines >= PACE_LINES_MIN && n_lines > 0)
        o.seconds = (uint64_t)ceil((double)(o.lines_ahead + n_lines) * (double)o.users * r->pace_ns / 1e9 / r->pace_lines);
    return o;
}

struct outlook outlook_of(const struct runner *r, const struct job *job)
{
    return look(r, job->row.user, priority_of(job->row.priority), job->row.seq, left_of(&job->row));
}

struct outlook outlook_of_new(const struct runner *r, const char *user, uint32_t priority, uint64_t n_lines)
{
    return look(r, user, priority_of(priority), INT64_MAX, n_lines);
}
