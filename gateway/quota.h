/* quota.h - limits of users and of their groups: one place that says what somebody may have.
 *
 * A group's limit is for all its members together.  Whoever meets a limit is told which, and of whom it is. */
#ifndef QUOTA_H
#define QUOTA_H

#include <stdbool.h>
#include <stdint.h>

#include "error.h"
#include "job_store.h"
#include "users.h"

/* Tokens left for today, by the user's limit and that of the group?  false: *err. */
bool quota_may_use(struct job_store *store, const struct users *users, const char *user, int64_t day, struct error *err);
/* May there be one more job?  jobs_default: for a user without a limit.  false: *err. */
bool quota_may_submit(struct job_store *store, const struct users *users, const char *user, uint64_t jobs_default, struct error *err);
/* What the group has used since that day.  ST_OK; anything else: the store cannot be read. */
MUST_CHECK enum status quota_group_usage(struct job_store *store, const struct users *users, const struct user *group, int64_t since,
                                         struct usage *ret_usage);

#endif
