/* runner_turn.c - whose line is fed next.  See turns.h.
 *
 * It is asked once for each line, so it costs a few walks along the jobs, whatever number of users they belong to; one more for each user
 * whose group has a max-queued. */
#include "runner.h"

#include <string.h>

#include "turns.h"

static uint32_t priority_of(const struct job *j)
{
    return j->row.priority == 0 ? 2 : j->row.priority;
}

/* Lines of the members of a group that the broker has. */
static uint64_t group_flying(const struct runner *r, const struct user *group)
{
    uint64_t n = 0;

    for (const struct job *j = r->jobs; j != NULL; j = j->next) {
        const struct user *u = j->n_flying > 0 ? users_by_name(r->users, j->row.user) : NULL;
        n += u != NULL && strcmp(u->group, group->name) == 0 ? j->n_flying : 0;
    }
    return n;
}

/* The window, beyond which only a user's own share is; and max-queued: what is over it the broker would refuse, so it waits here. */
static bool has_room(const struct runner *r, const char *user, uint32_t user_flying)
{
    const struct user *u = r->users != NULL ? users_by_name(r->users, user) : NULL;
    const struct user *group = u != NULL ? users_group_of(r->users, u) : NULL;

    if (r->n_flying >= r->window && user_flying >= RUNNER_OWN_SHARE)
        return false;
    if (u != NULL && u->max_queued != 0 && user_flying >= u->max_queued)
        return false;
    return group == NULL || group->max_queued == 0 || group_flying(r, group) < group->max_queued;
}

/* Started, not ending, and as far as is known without the disk something to send? */
static bool can_feed(const struct job *j, uint64_t now_ns)
{
    if (j->row.state != JOB_IN_PROGRESS || now_ns < j->feed_not_before_ns || now_ns < j->disk_not_before_ns)
        return false;
    for (size_t i = 0; i < j->n_retries; i++) {
        if (j->retries[i].due_ns <= now_ns)
            return true;
    }
    return j->page_at < j->page_n || !j->exhausted;
}

/* Of two jobs of one user, the list being in the order of their age. */
static bool comes_first(const struct job *later, const struct job *earlier)
{
    return priority_of(later) > priority_of(earlier);
}

static void cap_user(const struct runner *r, uint32_t user)
{
    for (struct job *j = r->jobs; j != NULL; j = j->next)
        j->capped = j->capped || j->user == user;
}

struct job *runner_whose_turn(const struct runner *r, uint64_t now_ns)
{
    static struct turn of_user[RUNNER_JOBS_MAX], turns[RUNNER_JOBS_MAX]; /* this process has one runner and one thread */
    static struct job *first[RUNNER_JOBS_MAX], *candidates[RUNNER_JOBS_MAX];
    size_t n = 0;

    for (const struct job *j = r->jobs; j != NULL; j = j->next) {
        of_user[j->user] = (struct turn){ .user_flying = 0 };
        first[j->user] = NULL;
    }
    for (struct job *j = r->jobs; j != NULL; j = j->next) {
        struct turn *t = &of_user[j->user];
        t->user_flying += j->n_flying;
        t->user_last = j->last_turn > t->user_last ? j->last_turn : t->user_last;
        if (can_feed(j, now_ns) && (first[j->user] == NULL || comes_first(j, first[j->user])))
            first[j->user] = j;
    }
    for (struct job *j = r->jobs; j != NULL; j = j->next) {
        if (first[j->user] != j)
            continue;
        if (!has_room(r, j->row.user, of_user[j->user].user_flying)) {
            if (!j->capped)
                cap_user(r, j->user);
            continue;
        }
        turns[n] = of_user[j->user];
        turns[n].priority = priority_of(j);
        turns[n].seq = j->row.seq;
        candidates[n++] = j;
    }
    return n > 0 ? candidates[turns_pick(turns, n)] : NULL;
}
