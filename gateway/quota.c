/* quota.c - see quota.h. */
#include "quota.h"

#include <inttypes.h>
#include <string.h>

static bool unreadable(struct error *err)
{
    error_set(err, ERR_INTERNAL, NULL, "the job store cannot be read");
    return false;
}

static void add(struct usage *sum, const struct usage *more)
{
    sum->jobs += more->jobs;
    sum->questions += more->questions;
    sum->answers += more->answers;
    sum->errors += more->errors;
    sum->prompt_tokens += more->prompt_tokens;
    sum->cached_tokens += more->cached_tokens;
    sum->completion_tokens += more->completion_tokens;
}

enum status quota_group_usage(struct job_store *store, const struct users *users, const struct user *group, int64_t since,
                              struct usage *ret_usage)
{
    struct usage sum = { 0 }, one;

    for (uint32_t i = 0; i < users->n; i++) {
        if (strcmp(users->list[i].group, group->name) != 0)
            continue;
        enum status st = job_store_usage(store, users->list[i].name, since, &one);
        if (st != ST_OK)
            return st;
        add(&sum, &one);
    }
    *ret_usage = sum;
    return ST_OK;
}

bool quota_may_use(struct job_store *store, const struct users *users, const char *user, int64_t day, struct error *err)
{
    const struct user *u = users_by_name(users, user), *group = users_group_of(users, u);
    struct usage today = { 0 }, shared = { 0 };

    if (u != NULL && u->max_tokens_a_day != 0 && job_store_usage(store, user, day, &today) != ST_OK)
        return unreadable(err);
    if (group != NULL && group->max_tokens_a_day != 0 && quota_group_usage(store, users, group, day, &shared) != ST_OK)
        return unreadable(err);
    uint64_t own = today.prompt_tokens + today.completion_tokens, all = shared.prompt_tokens + shared.completion_tokens;
    if (u != NULL && u->max_tokens_a_day != 0 && own >= u->max_tokens_a_day) {
        error_set(err, ERR_LIMIT_EXCEEDED, "max-tokens-a-day",
                  "you have used %" PRIu64 " tokens today, the limit is %" PRIu64 "; the day ends at midnight UTC", own, u->max_tokens_a_day);
        return false;
    }
    if (group != NULL && group->max_tokens_a_day != 0 && all >= group->max_tokens_a_day) {
        error_set(err, ERR_LIMIT_EXCEEDED, "max-tokens-a-day",
                  "your group %s has used %" PRIu64 " tokens today, its limit is %" PRIu64 "; the day ends at midnight UTC", group->name, all,
                  group->max_tokens_a_day);
        return false;
    }
    return true;
}

bool quota_may_submit(struct job_store *store, const struct users *users, const char *user, uint64_t jobs_default, struct error *err)
{
    const struct user *u = users_by_name(users, user), *group = users_group_of(users, u);
    uint64_t most = u != NULL && u->max_jobs != 0 ? u->max_jobs : jobs_default, n = 0, all = 0;

    if (job_store_count_open(store, user, &n) != ST_OK)
        return unreadable(err);
    if (n >= most) {
        error_set(err, ERR_LIMIT_EXCEEDED, "max-jobs", "you have %" PRIu64 " jobs that have not ended, the limit is %" PRIu64, n, most);
        return false;
    }
    if (group == NULL || group->max_jobs == 0)
        return true;
    for (uint32_t i = 0; i < users->n; i++) {
        if (strcmp(users->list[i].group, group->name) != 0)
            continue;
        if (job_store_count_open(store, users->list[i].name, &n) != ST_OK)
            return unreadable(err);
        all += n;
    }
    if (all < group->max_jobs)
        return true;
    error_set(err, ERR_LIMIT_EXCEEDED, "max-jobs", "your group %s has %" PRIu64 " jobs that have not ended, its limit is %" PRIu64, group->name,
              all, group->max_jobs);
    return false;
}
