/* desk_jobs.c - requests about jobs: submit them, look at them, read their files, end them.
 *
 * Every job is found by user *and* name, so another user's job is simply not there.  Files leave as read-only descriptors together with
 * the length that is committed. */
#include "desk.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "job_json.h"
#include "log.h"
#include "quota.h"
#include "utf8.h"

enum { LIST_DAY_MS = 24 * 3600 * 1000, LIST_JOBS_MAX = 10000, WATCH_WAIT_MS_MAX = 60000 };

static uint64_t limit_of(uint64_t own, uint64_t fallback)
{
    return own != 0 ? own : fallback;
}

void desk_job_limits(const struct desk *d, const char *user, uint64_t *ret_jobs, uint64_t *ret_lines, uint64_t *ret_bytes)
{
    const struct user *u = users_by_name(&d->users, user);

    *ret_jobs = limit_of(u != NULL ? u->max_jobs : 0, USER_JOBS_DEFAULT);
    *ret_lines = limit_of(u != NULL ? u->max_job_lines : 0, JOB_LINES_MAX);
    *ret_bytes = limit_of(u != NULL ? u->max_job_bytes : 0, JOB_BYTES_MAX);
    *ret_lines = *ret_lines < JOB_LINES_MAX ? *ret_lines : JOB_LINES_MAX;
    *ret_bytes = *ret_bytes < JOB_BYTES_MAX ? *ret_bytes : JOB_BYTES_MAX;
}

void desk_fail_internal(struct desk *d, struct conn *c, struct op *op, const char *what)
{
    struct error err;

    error_set(&err, ERR_INTERNAL, NULL, "%s", what);
    desk_error(d, c, op, &err);
}

/* --- submit ------------------------------------------------------------------------------------------ */

/* A word the user chose: text without control characters. */
static bool copy_word(struct span s, char *to, size_t bytes, const char *what, struct error *err)
{
    bool ok = utf8_valid(s) && desk_copy(s, to, bytes);

    for (size_t i = 0; i < s.n && ok; i++)
        ok = s.at[i] >= 0x20 && s.at[i] != 0x7f;
    if (!ok)
        error_set(err, ERR_INVALID_PARAMETER, what,
                  "--%s must be text of at most %zu bytes without control characters", what, bytes - 1);
    return ok;
}

bool desk_may_submit(struct desk *d, const char *user, struct error *err)
{
    if (!quota_may_submit(d->store, &d->users, user, USER_JOBS_DEFAULT, err))
        return false;
    if (d->runner->n_jobs >= RUNNER_JOBS_MAX) {
        error_set(err, ERR_BUSY, NULL, "the pool has %d jobs, which is its limit; try again later",
                  RUNNER_JOBS_MAX);
        return false;
    }
    return desk_may_use(d, user, err);
}

/* --reuse: a job of this user, run with the same options, for they change the answers too. */
static bool find_reused(struct desk *d, struct conn *c, struct op *op, struct span what, struct error *err)
{
    struct job_row from;
    char text[256];

    if (!utf8_valid(what) || !desk_copy(what, text, sizeof text)) {
        error_set(err, ERR_NOT_FOUND, "reuse", "there is no job of that name");
        return false;
    }
    if (job_store_find(d->store, c->user, text, &from, err) != ST_OK)
        return false;
    if (strcmp(from.model, op->row.model) != 0 || from.max_tokens != op->row.max_tokens) {
        error_set(err, ERR_INVALID_PARAMETER, "reuse",
                  "job %s was run with another --model or --max-tokens, so none of its answers can be taken over", from.id);
        return false;
    }
    op->reuse_seq = from.seq;
    return true;
}

void desk_on_submit(struct desk *d, struct conn *c, struct op *op, struct door_reader *r, int fd)
{
    struct door_submit s;
    struct error err;
    uint8_t buffer[8];
    struct byte_writer w = { .at = buffer, .capacity = sizeof buffer };
    uint64_t jobs_max, lines_max, bytes_max;
    int spool = -1;

    (void)fd;
    door_get_submit(r, &s);
    op->row = (struct job_row){
        .state = JOB_VALIDATING, .max_tokens = s.max_tokens, .priority = s.priority, .created_ms = d->real_ms
    };
    memcpy(op->row.user, c->user, sizeof op->row.user);
    op->try_lines = s.try_lines;
    op->check_only = s.check;
    if (r->failed || s.priority > 3 || s.max_tokens > OUTPUT_TOKENS_MAX || s.deadline_ms > DEADLINE_MS_MAX) {
        desk_break(d, c, "submit");
        return;
    }
    if (s.deadline_ms != 0)
        op->row.deadline_ms = d->real_ms + (int64_t)s.deadline_ms;
    if (!copy_word(s.name, op->row.name, sizeof op->row.name, "name", &err) ||
        !copy_word(s.key, op->row.key, sizeof op->row.key, "key", &err) ||
        !copy_word(s.model, op->row.model, sizeof op->row.model, "model", &err) ||
        !desk_may_submit(d, c->user, &err)) {
        desk_error(d, c, op, &err);
        return;
    }
    if (strcmp(op->row.name, "last") == 0) {
        error_set(&err, ERR_INVALID_PARAMETER, "name",
                  "--name cannot be \"last\": that is what the newest job is called");
        desk_error(d, c, op, &err);
        return;
    }
    if (s.reuse.n > 0 && !find_reused(d, c, op, s.reuse, &err)) {
        desk_error(d, c, op, &err);
        return;
    }
    if (job_files_spool(d->files, op->spool, &spool) != ST_OK) {
        op->spool[0] = '\0';
        desk_fail_internal(d, c, op, "the input cannot be kept: the disk refuses a new file");
        return;
    }
    op->kind = OP_UPLOAD;
    desk_job_limits(d, c->user, &jobs_max, &lines_max, &bytes_max);
    door_put_u64(&w, bytes_max);
    desk_reply(d, c, op, &w, spool);
    close(spool);
}

/* The upload becomes the input of a job that nobody knows of yet. */
bool desk_begin_check(struct desk *d, struct op *op, uint64_t announced, struct error *err)
{
    uint64_t jobs_max, lines_max, bytes_max, bytes = 0;
    struct job_row row = op->row;
    int input = -1;

    desk_job_limits(d, row.user, &jobs_max, &lines_max, &bytes_max);
    error_set(err, ERR_INTERNAL, NULL,
              "the input cannot be kept: the disk refuses it; nothing was submitted");
    if (job_files_spool_sync(d->files, op->spool, &bytes) != ST_OK)
        return false;
    if (announced != DOOR_BYTES_ANY && bytes != announced) {
        error_set(err, ERR_INTERNAL, NULL, "the input on disk has %" PRIu64 " bytes, %" PRIu64 " were sent",
                  bytes, announced);
        return false;
    }
    if (bytes > bytes_max) {
        error_set(err, ERR_LIMIT_EXCEEDED, "max-job-bytes",
                  "the input has %" PRIu64 " bytes, the limit is %" PRIu64, bytes, bytes_max);
        return false;
    }
    if (!desk_may_submit(d, row.user, err)) /* asked when the upload began, but others that began before may be jobs by now */
        return false;
    error_set(err, ERR_INTERNAL, NULL, "the job store cannot be written; nothing was submitted");
    row.input_bytes = bytes;
    row.key[0] = '\0'; /* it gets its key when it is known to be the first of it */
    if (job_store_add(d->store, &row) != ST_OK)
        return false;
    memcpy(row.key, op->row.key, sizeof row.key);
    op->row = row;
    op->kind = OP_CHECK;
    if (job_files_adopt(d->files, &row, op->spool) != ST_OK)
        return false;
    op->spool[0] = '\0';
    return job_files_job(d->files, &row, JOB_FILE_INPUT, false, &input) == ST_OK &&
           job_check_new(&row, input, lines_max, &op->check) == ST_OK;
}

void desk_on_submit_end(struct desk *d, struct conn *c, struct op *op, struct door_reader *r, int fd)
{
    uint64_t announced = door_get_u64(r);
    struct error err;

    (void)fd;
    if (r->failed)
        return; /* the caller sees it */
    if (desk_begin_check(d, op, announced, &err)) {
        d->work_left = true;
        return;
    }
    desk_error(d, c, op, &err);
    desk_stop_op(d, c, op);
}

/* A job with this key is there.  The same job again, or a conflict. */
static void answer_known_key(struct desk *d, struct conn *c, struct op *op, const struct job_row *row,
                             const struct job_row *known)
{
    struct error err;

    if (strcmp(row->digest, known->digest) == 0) {
        log_info("submit", "user=%s id=%s key=known", c->user, known->id);
        desk_reply_json(d, c, op, NULL, job_json(known, d->runner));
    } else {
        error_set(&err, ERR_KEY_CONFLICT, "key",
                  "job %s has this key and other content; nothing was submitted", known->id);
        desk_error(d, c, op, &err);
    }
    desk_stop_op(d, c, op);
}

/* The row, what it holds back and the count of the user's jobs, in one transaction. */
static enum status save_new(struct desk *d, struct job_row *row, uint32_t try_lines)
{
    const struct usage one = { .jobs = 1 };
    enum status st = job_store_begin(d->store);

    if (st != ST_OK)
        return st;
    if (try_lines > 0)
        st = job_store_hold_lines(d->store, row->seq, try_lines, &row->n_held);
    if (st == ST_OK)
        st = job_store_save(d->store, row);
    if (st == ST_OK)
        st = job_store_add_usage(d->store, row->user, usage_day(d->real_ms), &one);
    if (st == ST_OK)
        return job_store_commit(d->store);
    job_store_rollback(d->store);
    return st;
}

/* The whole input is known to be good: the job begins.  When the row is saved it is on disk, and only then its id is told. */
static void begin_job(struct desk *d, struct conn *c, struct op *op, struct job_row row)
{
    struct job_row known;

    bool done = row.n_done == row.n_lines; /* all of it was answered before */
    row.state = done ? JOB_COMPLETED : JOB_IN_PROGRESS;
    row.started_ms = d->real_ms;
    row.ended_ms = done ? d->real_ms : 0;
    if (row.key[0] != '\0' && job_store_by_key(d->store, row.user, row.key, &known) == ST_OK) {
        answer_known_key(d, c, op, &row, &known);
        return;
    }
    if (save_new(d, &row, op->try_lines) != ST_OK) {
        bool sure = job_store_settle(d->store) == ST_OK;
        desk_fail_internal(d, c, op,
                           sure ? "the job store cannot be written; nothing was submitted"
                                : "the job store cannot be written; look whether the job is there before you submit it again");
        desk_stop_op(d, c, op);
        return;
    }
    op->row.seq = 0; /* no longer this op's to drop */
    desk_inbox_joined(d, c, op, &row);
    if (!done && runner_add(d->runner, &row) != ST_OK)
        log_error("submit", "id=%s what=not_started", row.id); /* it is on disk: the runner takes it up when it can */
    log_info("submit", "user=%s id=%s lines=%" PRIu64 " bytes=%" PRIu64, row.user, row.id, row.n_lines,
             row.input_bytes);
    desk_reply_json(d, c, op, NULL, job_json(&row, d->runner));
    if (done)
        runner_tell_end(d->runner, &row);
    desk_stop_op(d, c, op);
}

/* The lines are known: now those that an earlier job has answered. */
static void begin_reuse(struct desk *d, struct conn *c, struct op *op, struct job_row row)
{
    struct job_row from;

    job_check_free(op->check);
    op->check = NULL;
    if (job_store_by_seq(d->store, op->reuse_seq, &from) != ST_OK ||
        job_reuse_new(d->files, &from, &row, &op->reuse) != ST_OK) {
        desk_fail_internal(d, c, op, "the job to be reused cannot be read any more; nothing was submitted");
        desk_stop_op(d, c, op);
        return;
    }
    d->work_left = true;
}

static void step_reuse(struct desk *d, struct conn *c, struct op *op)
{
    struct job_row row;
    enum status st = job_reuse_step(op->reuse, d->store, &row);

    if (st == ST_AGAIN) {
        d->work_left = true;
    } else if (st == ST_OK) {
        begin_job(d, c, op, row);
    } else {
        desk_fail_internal(d, c, op, "the answers to be reused cannot be copied; nothing was submitted");
        desk_stop_op(d, c, op);
    }
}

void desk_step_check(struct desk *d, struct conn *c, struct op *op)
{
    struct job_row row;
    struct error err;

    if (op->count != NULL) {
        desk_step_count(d, c, op);
        return;
    }
    if (op->reuse != NULL) {
        step_reuse(d, c, op);
        return;
    }
    enum status st = job_check_step(op->check, d->store, &row, &err);
    if (st == ST_AGAIN) {
        d->work_left = true;
    } else if (st == ST_OK && op->check_only) {
        desk_begin_count(d, c, op, &row);
    } else if (st == ST_OK && op->reuse_seq != 0) {
        begin_reuse(d, c, op, row);
    } else if (st == ST_OK) {
        begin_job(d, c, op, row);
    } else {
        log_info("submit", "user=%s refused=%s", c->user, error_code_name(err.code));
        desk_error(d, c, op, &err);
        desk_stop_op(d, c, op);
    }
}

/* --- looking ----------------------------------------------------------------------------------------- */

bool desk_find_job(struct desk *d, struct conn *c, struct op *op, struct door_reader *r, struct job_row *ret_row)
{
    struct span what = door_get_str(r);
    char text[256];
    struct error err;

    if (r->failed)
        return false;
    if (!utf8_valid(what) || !desk_copy(what, text, sizeof text))
        error_set(&err, ERR_NOT_FOUND, NULL, "there is no job of that name");
    else if (job_store_find(d->store, c->user, text, ret_row, &err) == ST_OK)
        return true;
    r->left.n = 0; /* what else the request says does not matter any more */
    desk_error(d, c, op, &err);
    return false;
}

void desk_on_job(struct desk *d, struct conn *c, struct op *op, struct door_reader *r, int fd)
{
    struct job_row row;

    (void)fd;
    if (desk_find_job(d, c, op, r, &row))
        desk_reply_json(d, c, op, NULL, job_json(&row, d->runner));
}

struct listing {
    struct desk *desk;
    json_t *jobs;
};

static bool list_one(const struct job_row *row, void *arg)
{
    struct listing *l = arg;

    if (row->state == JOB_VALIDATING)
        return true; /* its id is not on disk for good yet */
    json_array_append_new(l->jobs, job_json(row, l->desk->runner));
    return json_array_size(l->jobs) < LIST_JOBS_MAX;
}

void desk_on_list(struct desk *d, struct conn *c, struct op *op, struct door_reader *r, int fd)
{
    bool all = door_get_u32(r) != 0;
    struct listing l = { .desk = d, .jobs = json_array() };

    (void)fd;
    if (l.jobs == NULL ||
        job_store_each(d->store, c->user, all ? 0 : d->real_ms - LIST_DAY_MS, list_one, &l) != ST_OK) {
        json_decref(l.jobs);
        desk_fail_internal(d, c, op, "the job store cannot be read");
        return;
    }
    desk_reply_json(d, c, op, NULL, json_pack("{so}", "jobs", l.jobs));
}

/* --- watching ---------------------------------------------------------------------------------------- */

static void reply_watch(struct desk *d, struct conn *c, struct op *op, const struct job_row *row,
                        const struct job *live)
{
    uint8_t buffer[DOOR_PACKET_BYTES - 256];
    struct byte_writer w = { .at = buffer, .capacity = sizeof buffer };

    op->kind = OP_IDLE;
    door_put_u64(&w, live != NULL ? live->version : 0);
    door_put_u32(&w, job_state_ended(row->state) || job_row_rests(row));
    door_put_u64(&w, row->output_bytes);
    door_put_u64(&w, row->errors_bytes);
    desk_reply_json(d, c, op, &w, job_json(row, d->runner));
}

void desk_serve_watch(struct desk *d, struct conn *c, struct op *op)
{
    struct job *live = runner_find(d->runner, op->seq);
    struct job_row row;
    struct error err;

    if (live != NULL && !job_state_ended(live->row.state)) {
        bool news = op->seen != DOOR_WATCH_END && live->version != op->seen;
        if (news || d->now_ns >= op->due_ns || job_row_rests(&live->row))
            reply_watch(d, c, op, &live->row, live);
    } else if (job_store_by_seq(d->store, op->seq, &row) == ST_OK) {
        if (job_state_ended(row.state) || d->now_ns >= op->due_ns) /* else the runner has yet to take it up */
            reply_watch(d, c, op, &row, NULL);
    } else {
        op->kind = OP_IDLE;
        error_set(&err, ERR_NOT_FOUND, NULL, "the job has been deleted");
        desk_error(d, c, op, &err);
    }
}

void desk_on_watch(struct desk *d, struct conn *c, struct op *op, struct door_reader *r, int fd)
{
    struct job_row row;

    (void)fd;
    if (!desk_find_job(d, c, op, r, &row))
        return;
    op->seq = row.seq;
    op->seen = door_get_u64(r);
    uint32_t wait_ms = door_get_u32(r);
    if (r->failed || wait_ms > WATCH_WAIT_MS_MAX) {
        desk_break(d, c, "watch");
        return;
    }
    op->due_ns = d->now_ns + (uint64_t)wait_ms * 1000000;
    op->kind = OP_WATCH;
    desk_serve_watch(d, c, op);
}

/* --- files ------------------------------------------------------------------------------------------- */

void desk_on_open(struct desk *d, struct conn *c, struct op *op, struct door_reader *r, int fd)
{
    static const enum job_file files[] = { [DOOR_FILE_OUTPUT] = JOB_FILE_OUTPUT,
                                           [DOOR_FILE_ERRORS] = JOB_FILE_ERRORS,
                                           [DOOR_FILE_INPUT] = JOB_FILE_INPUT };
    uint8_t buffer[16];
    struct byte_writer w = { .at = buffer, .capacity = sizeof buffer };
    struct job_row row;
    int file = -1;

    (void)fd;
    if (!desk_find_job(d, c, op, r, &row))
        return;
    uint32_t which = door_get_u32(r);
    if (r->failed || which > DOOR_FILE_INPUT) {
        desk_break(d, c, "open");
        return;
    }
    if (job_files_job(d->files, &row, files[which], false, &file) != ST_OK) {
        desk_fail_internal(d, c, op, "a file of the job cannot be opened");
        return;
    }
    door_put_u64(&w, which == DOOR_FILE_OUTPUT   ? row.output_bytes
                     : which == DOOR_FILE_ERRORS ? row.errors_bytes
                                                 : row.input_bytes);
    door_put_u32(&w, job_state_ended(row.state));
    desk_reply(d, c, op, &w, file);
    close(file);
}

_Static_assert(sizeof(struct door_place) == sizeof(struct line_place) &&
                   offsetof(struct door_place, line) == offsetof(struct line_place, number) &&
                   offsetof(struct door_place, bytes) == offsetof(struct line_place, bytes),
               "places travel as they are");

void desk_on_order(struct desk *d, struct conn *c, struct op *op, struct door_reader *r, int fd)
{
    struct line_place *places = NULL;
    struct job_row row;
    size_t n = 0;
    int memfd = -1;

    (void)fd;
    if (!desk_find_job(d, c, op, r, &row))
        return;
    if (job_store_places(d->store, row.seq, &places, &n) == ST_OK &&
        door_memfd(span_of(places, n * sizeof *places), &memfd) == ST_OK) {
        desk_reply(d, c, op, NULL, memfd);
        close(memfd);
    } else {
        desk_fail_internal(d, c, op, "the job store cannot be read");
    }
    free(places);
}

/* --- ending ------------------------------------------------------------------------------------------ */

void desk_on_cancel(struct desk *d, struct conn *c, struct op *op, struct door_reader *r, int fd)
{
    struct job_row row;
    struct error err;

    (void)fd;
    if (!desk_find_job(d, c, op, r, &row))
        return;
    struct job *live = runner_find(d->runner, row.seq);
    if (live == NULL || job_state_ended(live->row.state)) {
        error_set(&err, ERR_INVALID_REQUEST, NULL, "job %s has ended already: %s", row.id,
                  job_state_name(row.state));
        desk_error(d, c, op, &err);
    } else if (runner_end(d->runner, live, JOB_CANCELLING) != ST_OK) {
        desk_fail_internal(d, c, op, "the job store cannot be written; the job goes on");
    } else {
        log_info("cancel", "user=%s id=%s", c->user, row.id);
        desk_reply_json(d, c, op, NULL, job_json(&live->row, d->runner));
    }
}

void desk_on_delete(struct desk *d, struct conn *c, struct op *op, struct door_reader *r, int fd)
{
    struct job_row row;
    struct error err;

    (void)fd;
    if (!desk_find_job(d, c, op, r, &row))
        return;
    if (!job_state_ended(row.state) || runner_find(d->runner, row.seq) != NULL) {
        error_set(&err, ERR_INVALID_REQUEST, NULL, "job %s has not ended; `cancel` it first", row.id);
        desk_error(d, c, op, &err);
        return;
    }
    struct job_row gone = row;
    gone.state = JOB_DELETED;
    if (job_store_save(d->store, &gone) != ST_OK) {
        desk_fail_internal(d, c, op, "the job store cannot be written; the job is still there");
        return;
    }
    d->sweep_left = true;
    log_info("delete", "user=%s id=%s", c->user, row.id);
    desk_reply_json(d, c, op, NULL, job_json(&row, d->runner));
}
