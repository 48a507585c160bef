/* desk_user.c - requests about what a user has: failed lines to try again, lines held back, tokens used, keys.
 *
 * Keys are changed in the users file itself, under its lock, as `weir user` does.  A user whose keys carry restrictions (from=, expiry-time=,
 * restrict) was given these by the administrator and cannot get round them with a key of their own: they may only look. */
#include "desk.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "job_json.h"
#include "log.h"
#include "quota.h"
#include "utf8.h"

/* --- usage and quota ----------------------------------------------------------------------------- */

bool desk_may_use(struct desk *d, const char *user, struct error *err)
{
    return quota_may_use(d->store, &d->users, user, usage_day(d->real_ms), err);
}

static json_t *usage_json(const struct usage *u)
{
    return json_pack("{sI sI sI sI sI sI sI}", "jobs", (json_int_t)u->jobs, "questions",
                     (json_int_t)u->questions, "answers", (json_int_t)u->answers, "errors",
                     (json_int_t)u->errors, "prompt_tokens", (json_int_t)u->prompt_tokens, "cached_tokens",
                     (json_int_t)u->cached_tokens, "completion_tokens", (json_int_t)u->completion_tokens);
}

/* Of all members together: null for who is in no group, or where the store cannot be read. */
static json_t *group_usage(struct desk *d, const struct user *group)
{
    struct usage today, month;

    if (group == NULL || quota_group_usage(d->store, &d->users, group, usage_day(d->real_ms), &today) != ST_OK ||
        quota_group_usage(d->store, &d->users, group, usage_month(d->real_ms), &month) != ST_OK)
        return json_null();
    return json_pack("{ss so so so}", "name", group->name, "today", usage_json(&today), "month", usage_json(&month), "max_tokens_a_day",
                     group->max_tokens_a_day != 0 ? json_integer((json_int_t)group->max_tokens_a_day) : json_null());
}

void desk_on_usage(struct desk *d, struct conn *c, struct op *op, struct door_reader *r, int fd)
{
    const struct user *user = users_by_name(&d->users, c->user);
    struct usage today, month;

    (void)r;
    (void)fd;
    if (job_store_usage(d->store, c->user, usage_day(d->real_ms), &today) != ST_OK ||
        job_store_usage(d->store, c->user, usage_month(d->real_ms), &month) != ST_OK) {
        desk_fail_internal(d, c, op, "the job store cannot be read");
        return;
    }
    uint64_t limit = user != NULL ? user->max_tokens_a_day : 0;
    json_t *reply = json_pack("{ss so so so}", "user", c->user, "today", usage_json(&today), "month", usage_json(&month),
                              "max_tokens_a_day", limit != 0 ? json_integer((json_int_t)limit) : json_null());
    json_object_set_new(reply, "group", group_usage(d, users_group_of(&d->users, user)));
    desk_reply_json(d, c, op, NULL, reply);
}

/* --- retry and release ------------------------------------------------------------------------------ */

/* The failed lines are open again, the errors of before are forgotten: one transaction. */
static enum status reopen(struct desk *d, struct job_row *row)
{
    enum status st = job_store_begin(d->store);

    if (st != ST_OK)
        return st;
    row->state = JOB_IN_PROGRESS;
    row->ended_ms = row->deadline_ms = 0;
    row->n_failed = row->errors_bytes = 0;
    row->error[0] = '\0';
    st = job_store_reopen_lines(d->store, row->seq, LINE_FAILED);
    if (st == ST_OK)
        st = job_store_save(d->store, row);
    if (st == ST_OK)
        return job_store_commit(d->store);
    job_store_rollback(d->store);
    return st;
}

void desk_on_retry(struct desk *d, struct conn *c, struct op *op, struct door_reader *r, int fd)
{
    struct job_row row;
    struct error err;

    (void)fd;
    if (!desk_find_job(d, c, op, r, &row))
        return;
    uint64_t again = row.n_lines - row.n_done;
    if (!job_state_ended(row.state) || runner_find(d->runner, row.seq) != NULL) {
        error_set(&err, ERR_INVALID_REQUEST, NULL,
                  "job %s has not ended; its failed lines can be tried again then", row.id);
    } else if (again == 0) {
        error_set(&err, ERR_INVALID_REQUEST, NULL, "job %s has no failed lines", row.id);
    } else if (desk_may_submit(d, c->user, &err)) {
        if (reopen(d, &row) != ST_OK) {
            desk_fail_internal(d, c, op, "the job store cannot be written; the job stays as it is");
            return;
        }
        job_files_drop_errors(d->files, &row);
        if (runner_add(d->runner, &row) != ST_OK)
            log_error("retry", "id=%s what=not_started", row.id); /* the runner takes it up when it can */
        log_info("retry", "user=%s id=%s lines=%" PRIu64, c->user, row.id, again);
        desk_reply_json(d, c, op, NULL, job_json(&row, d->runner));
        return;
    }
    desk_error(d, c, op, &err);
}

void desk_on_release(struct desk *d, struct conn *c, struct op *op, struct door_reader *r, int fd)
{
    struct job_row row;
    struct error err;

    (void)fd;
    if (!desk_find_job(d, c, op, r, &row))
        return;
    struct job *live = runner_find(d->runner, row.seq);
    if (live == NULL || live->row.n_held == 0 || live->row.state != JOB_IN_PROGRESS) {
        error_set(&err, ERR_INVALID_REQUEST, NULL, "job %s holds no lines back", row.id);
        desk_error(d, c, op, &err);
        return;
    }
    enum status st = runner_release(d->runner, live);
    if (st == ST_AGAIN) {
        error_set(&err, ERR_BUSY, NULL,
                  "the lines that job %s tries are not all answered yet; `wait` for them first", row.id);
        desk_error(d, c, op, &err);
    } else if (st != ST_OK) {
        desk_fail_internal(d, c, op, "the job store cannot be written; the lines are still held");
    } else {
        log_info("release", "user=%s id=%s", c->user, row.id);
        desk_reply_json(d, c, op, NULL, job_json(&live->row, d->runner));
    }
}

/* --- keys ------------------------------------------------------------------------------------------- */

static json_t *keys_json(const struct user *u)
{
    json_t *keys = json_array();

    for (uint32_t i = 0; u != NULL && i < u->n_keys; i++)
        json_array_append_new(keys,
                              json_pack("{ss ss ss ss}", "type", u->keys[i].type, "key", u->keys[i].blob,
                                        "comment", u->keys[i].comment, "options", u->keys[i].options));
    return json_pack("{so}", "keys", keys);
}

static enum status remove_key(struct user *u, const char *line, struct error *err)
{
    for (uint32_t i = 0; i < u->n_keys; i++) {
        struct user_key *k = &u->keys[i];
        size_t type = strlen(k->type);
        if (strncmp(line, k->type, type) != 0 || line[type] != ' ' || strcmp(line + type + 1, k->blob) != 0)
            continue;
        if (u->n_keys == 1) {
            error_set(err, ERR_INVALID_REQUEST, NULL,
                      "it is your last key: without it you could not come in again");
            return ST_INVALID;
        }
        free(k->type);
        free(k->blob);
        free(k->comment);
        free(k->options);
        memmove(k, k + 1, (u->n_keys - i - 1) * sizeof *k);
        u->n_keys--;
        return ST_OK;
    }
    error_set(err, ERR_NOT_FOUND, NULL, "you have no such key");
    return ST_NOT_FOUND;
}

/* Change the users file, with its lock held. */
static enum status change_keys(struct desk *d, const char *name, bool add, const char *line,
                               struct error *err)
{
    struct users users = {0};
    struct user *u = NULL;
    enum status st = users_load(d->users_path, &users, err);

    for (uint32_t i = 0; st == ST_OK && i < users.n; i++) {
        if (strcmp(users.list[i].name, name) == 0)
            u = &users.list[i];
    }
    if (st == ST_OK && u == NULL) {
        error_set(err, ERR_NOT_FOUND, NULL, "the administrator has just removed you");
        st = ST_NOT_FOUND;
    }
    for (uint32_t i = 0; st == ST_OK && i < u->n_keys; i++) {
        if (u->keys[i].options[0] != '\0') {
            error_set(err, ERR_PERMISSION_DENIED, NULL,
                      "your keys carry restrictions (%.60s), so the administrator changes them",
                      u->keys[i].options);
            st = ST_INVALID;
        }
    }
    if (st == ST_OK)
        st = add ? users_add_key(&users, name, line, err) : remove_key(u, line, err);
    if (add && st == ST_INVALID &&
        strstr(err->message, "belongs to") != NULL) /* to whom is nobody's business */
        error_set(err, ERR_INVALID_PARAMETER, "key", "this key cannot be added: it is somebody else's");
    if (st == ST_OK)
        st = users_save(d->users_path, &users, err);
    users_deinit(&users);
    return st;
}

void desk_on_keys(struct desk *d, struct conn *c, struct op *op, struct door_reader *r, int fd)
{
    uint32_t what = door_get_u32(r);
    struct span text = door_get_str(r);
    char line[USER_KEY_LINE_BYTES_MAX + 1];
    struct error err;
    int lock = -1;

    (void)fd;
    if (r->failed || what > DOOR_KEYS_REMOVE) {
        desk_break(d, c, "keys");
        return;
    }
    bool text_only =
        utf8_valid(text); /* it becomes a line of the users file: a newline would begin another */
    for (size_t i = 0; i < text.n; i++)
        text_only = text_only && text.at[i] >= 0x20 && text.at[i] != 0x7f;
    if (!text_only || !desk_copy(text, line, sizeof line)) {
        error_set(&err, ERR_INVALID_PARAMETER, "key", "a key is one line of text, of at most %d bytes", USER_KEY_LINE_BYTES_MAX);
        desk_error(d, c, op, &err);
        return;
    }
    if (what != DOOR_KEYS_LIST) {
        enum status st = users_lock(d->users_path, false, &lock, &err); /* who holds it may be waiting for a person */
        if (st == ST_OK)
            st = change_keys(d, c->user, what == DOOR_KEYS_ADD, line, &err);
        if (lock >= 0)
            close(lock);
        if (st != ST_OK) {
            desk_error(d, c, op, &err);
            return;
        }
        log_info("keys", "user=%s change=%s peer=%s", c->user, what == DOOR_KEYS_ADD ? "add" : "remove",
                 c->peer);
        desk_reload_users(d, true);
    }
    desk_reply_json(d, c, op, NULL, keys_json(users_by_name(&d->users, c->user)));
}
