/* admission.c - see admission.h.  Nothing of the message is copied here: a refusal costs no memory. */
#include "admission.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "clock.h"

bool admission_model(const struct broker *b, struct span name, struct admission *a)
{
    char known[ERROR_MESSAGE_BYTES / 2];
    size_t n = 0;

    known[0] = '\0';
    for (uint32_t i = 0; i < b->n_models; i++) {
        if (name.n == 0 || span_is(name, b->models[i].name)) {
            a->model = i;
            return true;
        }
        if (n < sizeof(known))
            n += (size_t)snprintf(known + n, sizeof(known) - n, "%s%s", i > 0 ? ", " : "", b->models[i].name);
    }
    error_set(&a->error, ERR_MODEL_NOT_FOUND, "model", "no model \"%.*s\" here; there is %s",
              (int)(name.n < 64 ? name.n : 64), (const char *)name.at, known);
    return false;
}

bool admission_is_front_end(const struct broker *b, uid_t uid)
{
    for (uint32_t i = 0; i < b->options->n_front_ends; i++)
        if (b->options->front_ends[i] == uid)
            return true;
    return false;
}

bool admission_name(const struct broker *b, const struct sender *from, struct span on_behalf_of,
                    char ret_name[USER_NAME_BYTES], struct error *err)
{
    memcpy(ret_name, from->user, USER_NAME_BYTES);
    if (on_behalf_of.n == 0)
        return true;
    if (!admission_is_front_end(b, from->uid)) {
        error_set(err, ERR_PERMISSION_DENIED, "on_behalf_of", "%s is no front end", from->user);
        return false;
    }
    snprintf(ret_name, USER_NAME_BYTES, "%.*s", (int)(on_behalf_of.n < USER_NAME_BYTES ? on_behalf_of.n : 0),
             (const char *)on_behalf_of.at);
    if (!user_name_ok(ret_name)) {
        error_set(err, ERR_INVALID_PARAMETER, "on_behalf_of", "not the name of a user");
        return false;
    }
    return true;
}

bool admission_is_job_line(const struct wire_generate *g)
{
    return g->on_behalf_of.n > 0 && g->batch_class;
}

bool admission_account(struct broker *b, const struct sender *from, struct span on_behalf_of,
                       struct admission *a)
{
    char name[USER_NAME_BYTES];

    if (!admission_name(b, from, on_behalf_of, name, &a->error))
        return false;
    const struct user *user = users_by_name(&b->identity.users, name);
    if (user != NULL && user->disabled && !a->job_line) {
        error_set(&a->error, ERR_PERMISSION_DENIED, "", "user %s is disabled", name);
        return false;
    }
    if (accounts_number(&b->accounts, name, b->queue, b->now_ns, &a->account) != ST_OK) {
        error_set(&a->error, ERR_BUSY, "", "%d users have requests under way, the most there can be",
                  ACCOUNTS_MAX);
        return false;
    }
    b->accounts.list[a->account].running_max =
        user != NULL && user->max_running > 0 ? user->max_running : b->options->user_running_max;
    memcpy(b->accounts.list[a->account].group, user != NULL ? user->group : "",
           user != NULL ? USER_NAME_BYTES : 1);
    return true;
}

/* Requests that wait, as many as the users file lets, and those that run beside them. */
static uint64_t with_running(uint64_t max_queued, uint64_t n_running)
{
    uint64_t all;

    return __builtin_add_overflow(max_queued, n_running, &all) ? UINT64_MAX : all;
}

/* What the members of a group may have together. */
static bool within_group(const struct broker *b, const struct user *group, bool job_line, struct error *err)
{
    struct account all;

    if (group == NULL || (group->max_queued == 0 && group->max_tokens_a_day == 0))
        return true;
    accounts_of_group(&b->accounts, group->name, clock_real_ms(), &all);
    if (group->max_queued > 0 && all.n_live >= with_running(group->max_queued, all.n_running))
        error_set(err, ERR_BUSY, "", "the group %s has %" PRIu32 " requests here, the limit", group->name,
                  all.n_live);
    else if (group->max_tokens_a_day > 0 && !job_line && all.tokens_today >= group->max_tokens_a_day)
        error_set(err, ERR_LIMIT_EXCEEDED, "", "the group %s has had the %" PRIu64 " tokens of today (UTC)",
                  group->name, group->max_tokens_a_day);
    else
        return true;
    return false;
}

static bool within_limits(const struct broker *b, const struct admission *a, struct error *err)
{
    const struct account *account = &b->accounts.list[a->account];
    const struct user *user = users_by_name(&b->identity.users, account->name);
    uint64_t user_max = USER_REQUESTS_MAX;

    if (user != NULL && user->max_queued > 0 && with_running(user->max_queued, account->n_running) < user_max)
        user_max = with_running(user->max_queued, account->n_running);
    if (b->requests.n_live >= REQUESTS_MAX)
        error_set(err, ERR_BUSY, "", "the pool holds %d requests, its limit", REQUESTS_MAX);
    else if (account->n_live >= user_max)
        error_set(err, ERR_BUSY, "", "user %s has %" PRIu32 " requests here, the limit", account->name,
                  account->n_live);
    else if (b->requests.bytes >= b->options->pool_bytes)
        error_set(err, ERR_BUSY, "", "requests and answers take %" PRIu64 " bytes, the limit is %" PRIu64,
                  b->requests.bytes, b->options->pool_bytes);
    else if (user != NULL && user->max_tokens_a_day > 0 && !a->job_line &&
             account_tokens_today(account, clock_real_ms()) >= user->max_tokens_a_day)
        error_set(err, ERR_LIMIT_EXCEEDED, "", "user %s has had the %" PRIu64 " tokens of today (UTC)",
                  account->name, user->max_tokens_a_day);
    else
        return within_group(b, users_group_of(&b->identity.users, user), a->job_line, err);
    return false;
}

bool admission_client(struct broker *b, const struct sender *from, struct span id, struct admission *a)
{
    a->client = clients_find(&b->clients, &from->peer);
    if (a->client != CLIENT_NONE && requests_find(&b->requests, a->client, id) != NO_REQUEST) {
        error_set(&a->error, ERR_DUPLICATE_ID, "id", "a request of this id is under way on this connection");
        return false;
    }
    if (a->client == CLIENT_NONE &&
        clients_add(&b->clients, &from->peer, from->uid, from->key, b->now_ns, &a->client) != ST_OK) {
        error_set(&a->error, ERR_BUSY, "", "%d connections have requests under way, the limit", CLIENTS_MAX);
        return false;
    }
    return true;
}

bool admission_take(struct broker *b, const struct sender *from, struct span id, struct span model,
                    struct span on_behalf_of, struct admission *a)
{
    const char *why;

    if (b->state != BROKER_RUNNING) {
        error_set(&a->error, ERR_SHUTTING_DOWN, "", "the broker is stopping");
        return false;
    }
    if (!admission_model(b, model, a) || !admission_account(b, from, on_behalf_of, a))
        return false;
    if (!dispatch_has_hope(b, a->model, &why)) {
        error_set(&a->error, ERR_NO_WORKER, "", "no worker of model %s can start: %s",
                  b->models[a->model].name, why);
        return false;
    }
    return within_limits(b, a, &a->error) && admission_client(b, from, id, a);
}

void admission_undo(struct broker *b, const struct admission *a)
{
    if (b->clients.list[a->client].n_live == 0)
        clients_remove(&b->clients, a->client);
}
