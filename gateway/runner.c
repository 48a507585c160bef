/* runner.c - which line is next, what becomes of a request's end, and when a job is over.
 *
 * Why a window: the broker shares its queue between all clients, and lines that wait there cannot be cancelled for free or reordered.
 * `job-window` lines are enough to keep all workers' batches full.  Beyond it each user has RUNNER_OWN_SHARE lines of their own: the window may be full of
 * lines that take minutes, and whose they are is decided when they are sent.  Between users the broker is fair (by tokens), once it has them.  Why "whole": job lines need no text before the end, and one message
 * an answer is cheaper for everybody than one a token.
 *
 * Failures of ours (broker gone or stopping, all queues full) never cost a line: it waits and goes again, for ever.  A worker that is
 * not there or an internal error may be the line's own fault, so these are tried a bounded number of times. */
#include "runner.h"

#include <assert.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "log.h"
#include "outlook.h"
#include "prefix_order.h"
#include "standstill.h"

enum {
    FLUSH_RECORDS = 256,      /* commit when so many records wait, */
    FLUSH_BYTES = 1 << 20,    /* or so many bytes, */
    FLUSH_MS = 50,            /* or the oldest so long */
    DRAIN_LINES = 512,        /* lines of an ending job turned into errors in one step */
    NO_WORKER_TRIES_MAX = 60, /* with the pauses below: about half an hour without a worker */
    INTERNAL_TRIES_MAX = 3,
    RETRY_MS_MIN = 250,
    RETRY_MS_MAX = 30000,
    NOT_TAKEN_MS = 10,        /* before a line that libweir did not take is offered again */
};

struct flight {
    struct runner *runner;
    struct job *job; /* NULL: free slot */
    struct line_ref line;
    struct tries tries;
    struct weir_line parsed;
    struct weir_answer *answer;
    uint64_t request;
    bool cancelled;
};

enum status runner_init(struct runner *r, struct job_store *store, struct job_files *files,
                        struct pool_link *link, uint32_t window)
{
    assert(window > 0 && window <= RUNNER_WINDOW_MAX);
    *r = (struct runner){ .store = store, .files = files, .link = link, .window = window, .n_flights = window + RUNNER_RESERVE };
    r->flights = calloc(r->n_flights, sizeof *r->flights);
    r->records = calloc(RUNNER_RECORDS_MAX, sizeof *r->records);
    if (r->flights == NULL || r->records == NULL) {
        free(r->flights);
        free(r->records);
        *r = (struct runner){ 0 }; /* for runner_deinit() */
        return ST_NOMEM;
    }
    for (uint32_t i = 0; i < r->n_flights; i++)
        r->flights[i].runner = r;
    return ST_OK;
}

static void land(struct flight *f)
{
    weir_line_deinit(&f->parsed);
    weir_answer_free(f->answer);
    f->job->n_flying--;
    f->runner->n_flying--;
    *f = (struct flight){ .runner = f->runner };
}

void runner_deinit(struct runner *r, uint64_t now_ns)
{
    if (r->flights == NULL)
        return;
    r->flush_not_before_ns = 0;
    runner_flush(r, now_ns);
    for (uint32_t i = 0; i < r->n_flights; i++) {
        if (r->flights[i].job != NULL)
            land(&r->flights[i]);
    }
    while (r->jobs != NULL) {
        r->jobs->n_pending = 0;
        runner_drop(r, r->jobs);
    }
    for (size_t i = 0; i < r->n_records; i++)
        free(r->records[i].text);
    free(r->records);
    free(r->flights);
    r->flights = NULL;
    json_decref(r->standstill.queues);
    r->standstill.queues = NULL;
}

struct job *runner_find(struct runner *r, int64_t seq)
{
    for (struct job *j = r->jobs; j != NULL; j = j->next) {
        if (j->row.seq == seq)
            return j;
    }
    return NULL;
}

/* That of the user's other jobs, else the smallest that nobody has. */
static uint32_t user_number(const struct runner *r, const char *user)
{
    static bool taken[RUNNER_JOBS_MAX];
    uint32_t number = 0;

    memset(taken, 0, sizeof taken);
    for (const struct job *j = r->jobs; j != NULL; j = j->next) {
        if (strcmp(j->row.user, user) == 0)
            return j->user;
        taken[j->user] = true;
    }
    while (taken[number])
        number++;
    return number;
}

enum status runner_add(struct runner *r, const struct job_row *row)
{
    struct job **at = &r->jobs, *j = r->n_jobs < RUNNER_JOBS_MAX ? calloc(1, sizeof *j) : NULL;

    if (j == NULL) {
        r->jobs_left = true;
        return r->n_jobs == RUNNER_JOBS_MAX ? ST_LIMIT : ST_NOMEM;
    }
    j->row = *row;
    j->user = user_number(r, row->user);
    j->input_fd = j->output_fd = j->errors_fd = -1;
    j->version = 1;
    while (*at != NULL && (*at)->row.seq < row->seq)
        at = &(*at)->next;
    j->next = *at;
    *at = j;
    r->n_jobs++;
    return ST_OK;
}

struct recovery {
    struct runner *runner;
    struct job_row *unacknowledged; /* uploads whose id nobody has seen */
    size_t n;
    enum status st;
};

static bool recover_one(const struct job_row *row, void *arg)
{
    struct recovery *rec = arg;

    if (row->state != JOB_VALIDATING) {
        rec->st = runner_add(rec->runner, row);
        return rec->st == ST_OK;
    }
    struct job_row *bigger = realloc(rec->unacknowledged, (rec->n + 1) * sizeof *bigger);
    if (bigger == NULL) {
        rec->st = ST_NOMEM;
        return false;
    }
    rec->unacknowledged = bigger;
    rec->unacknowledged[rec->n++] = *row;
    return true;
}

enum status runner_recover(struct runner *r)
{
    struct recovery rec = { .runner = r };
    enum status st = job_store_each(r->store, NULL, 0, recover_one, &rec);

    if (st == ST_OK)
        st = rec.st;
    for (size_t i = 0; i < rec.n && st == ST_OK; i++) {
        rec.unacknowledged[i].state = JOB_DELETED;
        st = job_store_save(r->store, &rec.unacknowledged[i]);
    }
    if (r->n_jobs > 0 || rec.n > 0)
        log_info("recover", "jobs=%zu unfinished_uploads=%zu", r->n_jobs, rec.n);
    free(rec.unacknowledged);
    return st;
}

static bool take_up(const struct job_row *row, void *arg)
{
    struct runner *r = arg;
    const struct job *j = runner_find(r, row->seq);

    if (j != NULL)
        r->jobs_left |= job_state_ended(j->row.state); /* its end was not saved, and it is here until its lines are back */
    else if (row->state != JOB_VALIDATING && runner_add(r, row) == ST_OK)
        log_info("recover", "id=%s", row->id);
    return true;
}

/* Jobs for which there was no memory or no room when they began, or whose end the disk refused: the store has them. */
static void take_up_left(struct runner *r, uint64_t now_ns)
{
    if (!r->jobs_left || now_ns < r->jobs_look_ns)
        return;
    r->jobs_left = false;
    r->jobs_look_ns = now_ns + RUNNER_DISK_PAUSE_MS * 1000000ull;
    if (job_store_each(r->store, NULL, 0, take_up, r) != ST_OK)
        r->jobs_left = true;
}

/* --- ending ---------------------------------------------------------------------------------------- */

static bool is_ending(const struct job *j)
{
    return j->row.state == JOB_CANCELLING || j->row.state == JOB_EXPIRING;
}

/* No line of the job is anywhere but in the store. */
static bool is_quiet(const struct job *j)
{
    return j->n_flying == 0 && j->n_pending == 0 && j->n_retries == 0 && j->page_at == j->page_n && j->exhausted;
}

enum status runner_release(struct runner *r, struct job *j)
{
    struct job_row row = j->row;

    if (!is_quiet(j))
        return ST_AGAIN;
    row.n_held = 0;
    enum status st = job_store_begin(r->store);
    if (st != ST_OK)
        return st;
    st = job_store_save(r->store, &row);
    if (st == ST_OK)
        st = job_store_reopen_lines(r->store, row.seq, LINE_HELD);
    if (st != ST_OK)
        job_store_rollback(r->store);
    else
        st = job_store_commit(r->store);
    if (st != ST_OK)
        return st;
    j->row = row;
    j->cursor = 0;
    j->page_n = j->page_at = 0;
    j->exhausted = false;
    j->version++;
    return ST_OK;
}

void runner_take_back(struct runner *r, struct job *j)
{
    for (uint32_t i = 0; i < r->n_flights; i++) {
        struct flight *f = &r->flights[i];
        if (f->job != j || f->cancelled)
            continue;
        f->cancelled = true;
        weir_cancel(r->link->client, f->request);
    }
}

enum status runner_end(struct runner *r, struct job *j, enum job_state how)
{
    struct job_row row = j->row;

    if (is_ending(j))
        return ST_OK;
    row.state = how;
    enum status st = job_store_save(r->store, &row); /* a transaction of its own */
    if (st != ST_OK)
        return st;
    j->row = row;
    j->version++;
    log_info("job", "id=%s user=%s state=%s", row.id, row.user,
             how == JOB_CANCELLING ? "cancelling" : "expiring");
    runner_take_back(r, j);
    return ST_OK;
}

static void ending_error(const struct job *j, struct weir_error *ret_error)
{
    bool expired = j->row.state == JOB_EXPIRING;

    *ret_error = (struct weir_error){ .http = expired ? 408 : 499 };
    snprintf(ret_error->code, sizeof ret_error->code, "%s", expired ? "deadline_exceeded" : "cancelled");
    snprintf(ret_error->message, sizeof ret_error->message, "%s",
             expired ? "the job's deadline passed before this line was answered"
                     : "the job was cancelled before this line was answered");
}

/* --- lines become records ---------------------------------------------------------------------------- */

static bool room_for_records(const struct runner *r)
{
    return r->n_records + r->n_flying < RUNNER_RECORDS_MAX && r->record_bytes < RUNNER_RECORD_BYTES_MAX;
}

static void make_run_id(const struct job *j, uint32_t number, char *id, size_t bytes)
{
    snprintf(id, bytes, "%s-%u", j->row.id, number);
}

static void record_error(struct runner *r, struct job *j, const struct weir_line *parsed, uint32_t number,
                         const struct weir_error *error, uint64_t now_ns)
{
    char id[40];
    size_t bytes = 0;

    make_run_id(j, number, id, sizeof id);
    char *text = weir_line_error(parsed, error, id, &bytes);
    if (text == NULL)
        runner_fail_job(r, j, "out of memory");
    else
        runner_record(r, j, number, text, bytes, NULL, now_ns);
}

/* A line that could not be made into a request when it was uploaded (convert.h) carries the reason. */
void runner_refusal_of(const char *text, size_t bytes, struct weir_error *error)
{
    if (memmem(text, bytes, "\"x_refused\"", 11) == NULL)
        return;
    json_t *line = json_loadb(text, bytes, 0, NULL);
    const char *why = json_string_value(json_object_get(line, "x_refused"));
    if (why != NULL) {
        snprintf(error->code, sizeof error->code, "invalid_request");
        snprintf(error->message, sizeof error->message, "%s", why);
        error->param[0] = '\0';
    }
    json_decref(line);
}

/* Read and parse a line of the input.  ST_OK; ST_INVALID: *ret_error says what is wrong with the line; ST_CORRUPT: the job is over. */
static enum status read_line(struct job *j, const struct line_ref *line, struct weir_line *ret_parsed,
                             struct weir_error *ret_error)
{
    bool too_long = line->bytes > LINE_BYTES_MAX;
    size_t bytes = too_long ? 0 : line->bytes;
    char *text = calloc(1, bytes + 1);
    enum status st = ST_CORRUPT;

    if (text == NULL)
        return ST_NOMEM;
    if (bytes == 0 || pread(j->input_fd, text, bytes, (off_t)line->offset) == (ssize_t)bytes)
        st =
            weir_line_parse(text, bytes, line->number, ret_parsed, ret_error) == WEIR_OK ? ST_OK : ST_INVALID;
    if (st == ST_INVALID && !too_long)
        runner_refusal_of(text, bytes, ret_error);
    if (st == ST_INVALID && too_long) {
        snprintf(ret_error->code, sizeof ret_error->code, "limit_exceeded");
        snprintf(ret_error->message, sizeof ret_error->message, "line %u has %u bytes, the limit is %d",
                 line->number, line->bytes, LINE_BYTES_MAX);
        ret_error->param[0] = '\0';
    }
    free(text);
    if (st != ST_CORRUPT && ret_parsed->custom_id == NULL) {
        weir_line_deinit(ret_parsed);
        return ST_NOMEM;
    }
    return st;
}

/* --- the end of a request ------------------------------------------------------------------------------ */

/* A line that waits in its job's list; it is sent when it is due. */
static void put_back(struct runner *r, struct job *j, const struct retry *retry)
{
    if (j->n_retries == j->retries_capacity) {
        size_t capacity = j->retries_capacity == 0 ? 32 : j->retries_capacity * 2;
        struct retry *bigger = realloc(j->retries, capacity * sizeof *bigger);
        if (bigger == NULL) {
            runner_fail_job(r, j, "out of memory");
            return;
        }
        j->retries = bigger;
        j->retries_capacity = capacity;
    }
    j->retries[j->n_retries++] = *retry;
}

static void retry_later(struct flight *f, uint64_t wait_ms, uint64_t now_ns)
{
    f->job->n_retried++;
    f->runner->n_retried++;
    put_back(f->runner, f->job, &(struct retry){ .line = f->line, .tries = f->tries, .due_ns = now_ns + wait_ms * 1000000 });
}

static uint64_t pause_ms(uint32_t tries, uint32_t advice_ms)
{
    uint64_t ms = (uint64_t)RETRY_MS_MIN << (tries < 8 ? tries : 8);

    ms = ms < RETRY_MS_MAX ? ms : RETRY_MS_MAX;
    return advice_ms > ms && advice_ms < RETRY_MS_MAX ? advice_ms : ms;
}

/* The broker has no room for more of this user: a full share of one says nothing of the others. */
static void pause_user(struct runner *r, uint32_t user, uint64_t until_ns)
{
    for (struct job *j = r->jobs; j != NULL; j = j->next) {
        if (j->user == user)
            j->feed_not_before_ns = until_ns;
    }
}

static void keep_reason(struct job *j, const struct weir_error *error)
{
    snprintf(j->goes_again, sizeof j->goes_again, "%.*s", (int)sizeof j->goes_again - 1, error->message);
}

/* Is this failure ours, so that the line goes again?  Arranges it and says true. */
static bool goes_again(struct flight *f, const struct weir_error *error, uint64_t now_ns)
{
    uint32_t tries;

    switch (error_code_from_name(error->code, strlen(error->code))) {
    case ERR_UNREACHABLE:
    case ERR_SHUTTING_DOWN:
        retry_later(f, RETRY_MS_MIN, now_ns); /* and nothing is fed until the link is up */
        return true;
    case ERR_BUSY:
        keep_reason(f->job, error);
        pause_user(f->runner, f->job->user, now_ns + pause_ms(0, error->retry_after_ms) * 1000000);
        retry_later(f, pause_ms(f->tries.busy++, error->retry_after_ms), now_ns);
        return true;
    case ERR_NO_WORKER:
        tries = ++f->tries.no_worker;
        if (tries > NO_WORKER_TRIES_MAX)
            return false;
        break;
    case ERR_INTERNAL:
    case ERR_CANCELLED: /* not by us */
    case ERR_SLOW_READER:
        tries = ++f->tries.internal;
        if (tries > INTERNAL_TRIES_MAX)
            return false;
        break;
    default:
        return false;
    }
    keep_reason(f->job, error);
    retry_later(f, pause_ms(tries, error->retry_after_ms), now_ns);
    return true;
}

static void on_answer(struct flight *f, uint64_t now_ns)
{
    struct job *j = f->job;
    char id[40];
    size_t bytes = 0;

    make_run_id(j, f->line.number, id, sizeof id);
    char *text = weir_line_output(&f->parsed, f->answer, id, clock_real_ms() / 1000, &bytes);
    if (text == NULL)
        runner_fail_job(f->runner, j, "out of memory");
    else
        runner_record(f->runner, j, f->line.number, text, bytes, f->answer, now_ns);
}

static void on_failure(struct flight *f, const struct weir_error *error, uint64_t now_ns)
{
    struct job *j = f->job;
    struct weir_error why;

    if (is_ending(j)) {
        ending_error(j, &why);
        record_error(f->runner, j, &f->parsed, f->line.number, &why, now_ns);
    } else if (j->row.state != JOB_FAILED && !goes_again(f, error, now_ns)) {
        record_error(f->runner, j, &f->parsed, f->line.number, error, now_ns);
    }
}

static void on_event(const struct weir_event *event, void *arg)
{
    struct flight *f = arg;
    struct weir_error error = { 0 };

    if (f->job == NULL)
        return;
    int rc = weir_collect(&f->answer, event, &error);
    if (rc == WEIR_AGAIN)
        return;
    if (rc == WEIR_OK && f->job->row.state != JOB_FAILED)
        on_answer(f, clock_now_ns());
    else if (rc != WEIR_OK)
        on_failure(f, &error, clock_now_ns());
    f->job->version++;
    land(f);
}

/* --- feeding ------------------------------------------------------------------------------------------- */

/* Send one line.  ST_OK: it flies, or has become a record; ST_AGAIN: the client takes no more now. */
static enum status send_line(struct runner *r, struct job *j, const struct retry *next, uint64_t now_ns)
{
    const struct line_ref *line = &next->line;
    struct flight *f = r->flights;
    struct weir_error error = { 0 };

    while (f->job != NULL)
        f++;
    assert(f < r->flights + r->n_flights);
    enum status st = read_line(j, line, &f->parsed, &error);
    if (st != ST_OK && st != ST_INVALID) {
        runner_fail_job(r, j, st == ST_CORRUPT ? "its input file cannot be read" : "out of memory");
        return ST_OK;
    }
    *f = (struct flight){ .runner = r, .job = j, .line = *line, .tries = next->tries, .parsed = f->parsed };
    j->n_flying++;
    r->n_flying++;
    if (st == ST_INVALID) {
        record_error(r, j, &f->parsed, line->number, &error, now_ns);
        land(f);
        return ST_OK;
    }
    struct weir_request *q = &f->parsed.request;
    q->whole = true;
    q->on_behalf_of = j->row.user;
    if (j->row.model[0] != '\0')
        q->model = j->row.model;
    if (q->max_tokens == 0)
        q->max_tokens = j->row.max_tokens;
    int rc = weir_submit(r->link->client, q, on_event, f, &f->request, &error);
    if (rc == WEIR_AGAIN) {
        land(f);
        return ST_AGAIN;
    }
    if (rc == WEIR_FAILED) {
        on_failure(f, &error, now_ns);
        land(f);
    }
    return ST_OK;
}

/* The page is complete: the lines whose prompts begin alike go one after another.  Its lines are in the order of the file. */
static void order_page(struct job *j)
{
    static struct prefix_key keys[RUNNER_PAGE];
    size_t n = 0, bytes = 0;

    while (n < j->page_n && (n == 0 || bytes + j->page[n].bytes <= RUNNER_PAGE_BYTES)) {
        struct weir_line parsed = { 0 };
        struct weir_error ignored;
        keys[n] = (struct prefix_key){ 0 };
        bytes += j->page[n].bytes;
        if (read_line(j, &j->page[n], &parsed, &ignored) == ST_OK) /* whatever is wrong is met again when it is sent */
            prefix_key_make(&parsed.request, &keys[n]);
        weir_line_deinit(&parsed);
        n++;
    }
    j->page_n = n;
    j->cursor = j->page[n - 1].number;
    prefix_order(j->page, keys, n);
}

/* The next line of a job, not taken yet: a retry that is due (*ret_retry: which), else the next open one (*ret_retry: SIZE_MAX).
 * ST_OK, ST_NOT_FOUND: none now, ST_SYSTEM: at its disk_not_before_ns again. */
static enum status peek_line(struct runner *r, struct job *j, uint64_t now_ns, struct retry *ret_next, size_t *ret_retry)
{
    for (size_t i = 0; i < j->n_retries; i++) {
        if (j->retries[i].due_ns <= now_ns || is_ending(j)) {
            *ret_next = j->retries[i];
            *ret_retry = i;
            return ST_OK;
        }
    }
    if (j->page_at == j->page_n && !j->exhausted) {
        enum status st =
            job_store_open_lines(r->store, j->row.seq, j->cursor, j->page, RUNNER_PAGE, &j->page_n);
        if (st != ST_OK) {
            j->disk_not_before_ns = now_ns + RUNNER_DISK_PAUSE_MS * 1000000ull;
            return st;
        }
        j->page_at = 0;
        j->exhausted = j->page_n == 0;
        if (j->page_n > 0)
            order_page(j);
    }
    if (j->page_at == j->page_n)
        return ST_NOT_FOUND;
    *ret_next = (struct retry){ .line = j->page[j->page_at] };
    *ret_retry = SIZE_MAX;
    return ST_OK;
}

static void take_line(struct job *j, size_t retry)
{
    if (retry == SIZE_MAX)
        j->page_at++;
    else
        j->retries[retry] = j->retries[--j->n_retries];
}

/* Feed one line of whoever's turn it is.  false: nothing to feed, or no room. */
static bool feed_one(struct runner *r, uint64_t now_ns)
{
    struct job *j = runner_whose_turn(r, now_ns);
    char why[JOB_ERROR_BYTES];
    struct retry next;
    size_t retry;

    if (j == NULL)
        return false;
    if (j->input_fd < 0) {
        enum status st = runner_open_files(r, j, now_ns, why, sizeof why);
        if (st == ST_CORRUPT)
            runner_fail_job(r, j, why);
        if (st != ST_OK)
            return true; /* another's turn */
    }
    if (peek_line(r, j, now_ns, &next, &retry) != ST_OK)
        return true; /* there were no more, or they cannot be read now: another's turn */
    take_line(j, retry);
    j->last_turn = ++r->turn;
    if (send_line(r, j, &next, now_ns) == ST_AGAIN) {
        next.due_ns = now_ns + NOT_TAKEN_MS * 1000000ull;
        put_back(r, j, &next);
        return false;
    }
    return true;
}

static void feed(struct runner *r, uint64_t now_ns)
{
    for (struct job *j = r->jobs; j != NULL; j = j->next)
        j->capped = false;
    if (!r->link->up || now_ns < r->flush_not_before_ns)
        return;
    for (uint32_t i = 0; i < r->n_flights && r->n_flying < r->n_flights && room_for_records(r); i++) {
        if (!feed_one(r, now_ns))
            return;
    }
}

/* Turn lines of an ending job that nobody has into errors. */
static void drain(struct runner *r, struct job *j, uint64_t now_ns)
{
    struct weir_error why;
    struct retry next;
    size_t retry;
    char text[JOB_ERROR_BYTES];

    if (j->input_fd < 0) {
        enum status st = runner_open_files(r, j, now_ns, text, sizeof text);
        if (st == ST_CORRUPT)
            runner_fail_job(r, j, text);
        if (st != ST_OK)
            return;
    }
    if (j->row.n_held > 0 && is_quiet(j) && runner_release(r, j) != ST_OK) {
        j->disk_not_before_ns = now_ns + RUNNER_DISK_PAUSE_MS * 1000000ull;
        return;
    }
    ending_error(j, &why);
    for (int i = 0; i < DRAIN_LINES && room_for_records(r) && is_ending(j); i++) {
        struct weir_line parsed = { 0 };
        struct weir_error wrong = { 0 };
        if (peek_line(r, j, now_ns, &next, &retry) != ST_OK)
            return;
        enum status st = read_line(j, &next.line, &parsed, &wrong);
        if (st != ST_OK && st != ST_INVALID) {
            runner_fail_job(r, j, "its input file cannot be read");
            return;
        }
        take_line(j, retry);
        record_error(r, j, &parsed, next.line.number, &why, now_ns);
        weir_line_deinit(&parsed);
    }
}

/* --- the step ------------------------------------------------------------------------------------------ */

static bool flush_due(const struct runner *r, uint64_t now_ns)
{
    if (r->n_records == 0 || now_ns < r->flush_not_before_ns)
        return false;
    return r->n_records >= FLUSH_RECORDS || r->record_bytes >= FLUSH_BYTES || r->n_flying == 0 ||
           now_ns - r->oldest_record_ns >= FLUSH_MS * 1000000ull;
}

static void end_expired(struct runner *r, int64_t real_ms)
{
    for (struct job *j = r->jobs; j != NULL; j = j->next) {
        if (j->row.state == JOB_IN_PROGRESS && j->row.deadline_ms != 0 && real_ms >= j->row.deadline_ms &&
            runner_end(r, j, JOB_EXPIRING) != ST_OK)
            return;
    }
}

void runner_step(struct runner *r, uint64_t now_ns, int64_t real_ms)
{
    struct job *next;

    take_up_left(r, now_ns);
    outlook_step(r, now_ns);
    standstill_step(r, now_ns);
    end_expired(r, real_ms);
    feed(r, now_ns);
    for (struct job *j = r->jobs; j != NULL; j = next) {
        next = j->next;
        if (is_ending(j) && now_ns >= r->flush_not_before_ns && now_ns >= j->disk_not_before_ns)
            drain(r, j, now_ns);
    }
    if (flush_due(r, now_ns))
        runner_flush(r, now_ns);
    for (struct job *j = r->jobs; j != NULL; j = next) {
        next = j->next;
        if (job_state_ended(j->row.state) && j->n_flying == 0 && j->n_pending == 0)
            runner_drop(r, j);
    }
}

static void lower(int *wait_ms, uint64_t due_ns, uint64_t now_ns)
{
    int ms = due_ns <= now_ns                ? 0
             : due_ns - now_ns > 60000000000 ? 60000
                                             : (int)((due_ns - now_ns) / 1000000) + 1;

    if (*wait_ms < 0 || ms < *wait_ms)
        *wait_ms = ms;
}

static uint64_t latest(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t ab = a > b ? a : b;

    return ab > c ? ab : c;
}

int runner_timeout_ms(const struct runner *r, uint64_t now_ns)
{
    int wait = standstill_timeout_ms(r, now_ns);

    if (r->jobs_left)
        lower(&wait, r->jobs_look_ns, now_ns);
    if (r->n_records > 0)
        lower(&wait,
              r->flush_not_before_ns > now_ns ? r->flush_not_before_ns
                                              : r->oldest_record_ns + FLUSH_MS * 1000000ull,
              now_ns);
    for (const struct job *j = r->jobs; j != NULL; j = j->next) {
        bool more = j->page_at < j->page_n || !j->exhausted;
        if (job_state_ended(j->row.state)) /* it has failed, and what the broker still had of it comes back */
            continue;
        if (j->row.deadline_ms != 0 && !is_ending(j))
            lower(&wait, now_ns + 1000000000, now_ns);
        if (is_ending(j) && (more || j->n_retries > 0 || (j->row.n_held > 0 && is_quiet(j))))
            lower(&wait, latest(r->flush_not_before_ns, j->disk_not_before_ns, 0), now_ns);
        if (!r->link->up || is_ending(j) || j->capped || r->n_flying == r->n_flights) /* the next answer wakes the loop */
            continue;
        for (size_t i = 0; i < j->n_retries; i++)
            lower(&wait, latest(j->retries[i].due_ns, j->feed_not_before_ns, j->disk_not_before_ns), now_ns);
        if (more && room_for_records(r))
            lower(&wait, latest(r->flush_not_before_ns, j->feed_not_before_ns, j->disk_not_before_ns), now_ns);
    }
    return wait;
}
