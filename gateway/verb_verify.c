/* verb_verify.c - `ssh box verify [JOB]`: some answers of a job computed again, and compared bit by bit; as `weir verify` does it (verify_case.h).
 *
 * The work is split where the data is.  This process has the job's files, as descriptors: it draws among the places of the answers, reads
 * record and input line, compares and reports.  What it cannot do is ask the broker; (b) takes one request at a time, as a line of a job with
 * seed, model and limit of tokens beside it, asks on behalf of the user, and gives the answer back as a record.
 *
 *   JOB ──► OUTPUT ──► PLACES ──► INPUT ──► POOL (is a worker of the class there?) ──► SEEKING ◄──► RERUN, once an answer */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "verb_job.h"
#include "verify_case.h"

enum {
    SLICE_BYTES = 4 << 20 /* of the input, before the other channels of the connection have their turn */
};

enum stage { STAGE_JOB, STAGE_OUTPUT, STAGE_PLACES, STAGE_INPUT, STAGE_POOL, STAGE_SEEKING, STAGE_RERUN };

struct verifying {
    struct verify_report report;
    struct verify_case now;   /* picks[at], from SEEKING on */
    struct door_place *picks; /* the answers drawn, by line */
    size_t n, at;
    char class[128]; /* of the first one */
};

static void start_verify(struct talk *t)
{
    t->own = calloc(1, sizeof(struct verifying));
    if (t->own != NULL)
        job_ask(t, DOOR_JOB);
    else
        talk_finish(t, EXIT_INTERNAL);
}

static int by_line(const void *a, const void *b)
{
    const struct door_place *x = a, *y = b;

    return x->line < y->line ? -1 : x->line > y->line;
}

/* Draw among the places of all answers, which are packed at `places`. */
static bool draw(struct talk *t, const char *places, size_t n)
{
    struct verifying *v = t->own;
    struct verify_draw d = {.wanted = t->call.has[OPT_SAMPLE] ? t->call.number[OPT_SAMPLE] : VERIFY_SAMPLE};

    v->report.draw = t->call.has[OPT_DRAW] ? t->call.number[OPT_DRAW] : verify_draw_seed();
    d.state = v->report.draw;
    v->picks = calloc(d.wanted, sizeof *v->picks);
    if (v->picks == NULL)
        return false;
    for (size_t i = 0; i < n; i++) {
        size_t at = verify_draw_next(&d);
        if (at != SIZE_MAX)
            memcpy(&v->picks[at], places + i * sizeof *v->picks, sizeof *v->picks);
    }
    v->report.n_answers = n;
    v->n = n < d.wanted ? n : d.wanted;
    qsort(v->picks, v->n, sizeof *v->picks, by_line);
    return true;
}

/* Read the record of picks[at]. */
static bool read_record(struct talk *t)
{
    struct verifying *v = t->own;
    const struct door_place *place = &v->picks[v->at];
    char *text = malloc(place->bytes);
    bool is_answer = false;

    verify_case_deinit(&v->now);
    bool ok = text != NULL &&
              pread(t->file_fd, text, place->bytes, (off_t)place->offset) == (ssize_t)place->bytes &&
              verify_case_read(text, place->bytes, &v->now, &is_answer) && is_answer;
    free(text);
    if (!ok)
        job_internal_failure(t, "an answer of the job cannot be read");
    return ok;
}

static void on_places(struct talk *t, int fd)
{
    struct verifying *v = t->own;
    struct error err;
    char *places = NULL;
    size_t bytes = 0;

    if (door_memfd_read(fd, (size_t)JOB_LINES_MAX * sizeof(struct door_place), &places, &bytes) != ST_OK ||
        bytes % sizeof(struct door_place) != 0) {
        job_internal_failure(t, "the job store gave an answer that cannot be read");
    } else if (bytes == 0) {
        error_set(&err, ERR_INVALID_REQUEST, NULL, "job %s has no answers yet", t->job);
        talk_fail(t, &err);
    } else if (!draw(t, places, bytes / sizeof(struct door_place))) {
        talk_finish(t, EXIT_INTERNAL);
    } else if (read_record(t)) {
        snprintf(v->class, sizeof v->class, "%s", verify_case_class(&v->now));
        t->stage = STAGE_INPUT;
        job_ask_file(t, t->job, DOOR_FILE_INPUT);
    }
    free(places);
}

static void fail_with(struct talk *t, const struct weir_error *from)
{
    struct error err;

    error_set(&err, error_code_from_name(from->code, strlen(from->code)), from->param, "%s", from->message);
    talk_fail(t, &err);
}

static void on_pool(struct talk *t, struct door_reader *r, int fd)
{
    struct verifying *v = t->own;
    struct weir_error error;
    json_t *status = job_reply_json(t, r, fd);

    if (status == NULL)
        return;
    if (verify_class_check(status, v->class, &error) == WEIR_OK) {
        t->stage = STAGE_SEEKING;
        t->drained_due = true;
    } else {
        fail_with(t, &error);
    }
    json_decref(status);
}

/* --- one answer after the other ------------------------------------------------------------------- */

static void finish(struct talk *t)
{
    struct verifying *v = t->own;
    const unsigned *n = v->report.n;
    char text[300];

    if (t->call.has[OPT_JSON]) {
        json_t *report = verify_report_json(&v->report, v->class);
        talk_print_json(t, report);
        json_decref(report);
    } else {
        verify_report_text(&v->report, text, sizeof text);
        talk_print(t, "%s", text);
    }
    talk_finish(t, n[VERIFY_DIFFERS] + n[VERIFY_NOT_RERUN] > 0 ? EXIT_LINES_FAILED
                   : n[VERIFY_OTHER_CLASS] > 0                 ? EXIT_REFUSED
                                                               : EXIT_OK);
}

/* This answer is done with: say it, and go on with the next when what was said has left. */
static void tell(struct talk *t, enum verify_result result, const char *why)
{
    struct verifying *v = t->own;

    verify_report_add(&v->report, v->now.custom_id, result, why);
    if (!t->call.has[OPT_JSON] && result != VERIFY_EQUAL) {
        talk_print_safe(t, v->now.custom_id, 0);
        talk_print(t, ": %s: ", verify_result_name(result));
        talk_print_safe(t, why, 0);
        talk_print(t, "\n");
    }
    v->at++;
    if (v->at == v->n) {
        finish(t);
    } else if (read_record(t)) {
        t->stage = STAGE_SEEKING;
        t->drained_due = true;
    }
}

static void tell_not_rerun(struct talk *t, const char *code, const char *message)
{
    char why[300];

    snprintf(why, sizeof why, "%s: %.200s", code, message);
    tell(t, VERIFY_NOT_RERUN, why);
}

/* The input line of this answer; empty: there is none. */
static void ask_again(struct talk *t, struct span input)
{
    uint8_t buffer[256];
    struct byte_writer w = {.at = buffer, .capacity = sizeof buffer};
    struct verifying *v = t->own;
    struct weir_request q;
    struct weir_error error;
    int fd = -1;

    if (input.n > 0 && (weir_line_parse((const char *)input.at, input.n, v->picks[v->at].line, &v->now.line,
                                        &error) != WEIR_OK ||
                        strcmp(v->now.line.custom_id, v->now.custom_id) != 0))
        weir_line_deinit(&v->now.line);
    if (verify_case_request(&v->now, &q, &error) != WEIR_OK) {
        tell_not_rerun(t, error.code, error.message);
        return;
    }
    door_put_str(&w, span_str(q.model));
    door_put_u64(&w, *q.seed);
    door_put_u32(&w, q.max_tokens);
    if (w.failed || door_memfd(input, &fd) != ST_OK) {
        talk_finish(t, EXIT_INTERNAL);
        return;
    }
    t->stage = STAGE_RERUN;
    talk_ask(t, DOOR_RERUN, &w, fd);
    close(fd);
}

/* Read the input as far as the line of this answer, or a slice of it. */
static void seek(struct talk *t)
{
    struct verifying *v = t->own;
    struct scanned_line line = {.number = 0};
    uint64_t bytes = 0;

    while (line.number < v->picks[v->at].line) {
        if (bytes > SLICE_BYTES) {
            t->drained_due = true;
            return;
        }
        enum status st = line_scanner_next(&t->input, &line);
        if (st == ST_NOT_FOUND)
            break;
        if (st != ST_OK) {
            job_internal_failure(t, "the input of the job cannot be read");
            return;
        }
        bytes += line.bytes + 1;
    }
    ask_again(t, line.number == v->picks[v->at].line ? line.text : span_of("", 0));
}

static void on_rerun(struct talk *t, struct door_reader *r, int fd)
{
    struct verifying *v = t->own;
    char *text = NULL, why[300] = "";
    size_t bytes = 0;
    json_t *again = NULL;

    if (door_get_text(r, fd, &text, &bytes) == ST_OK && door_read_all(r))
        again = json_loadb(text, bytes, JSON_ALLOW_NUL, NULL);
    free(text);
    if (again == NULL) {
        job_internal_failure(t, "an answer of the pool cannot be read");
        return;
    }
    enum verify_result result = verify_case_compare(&v->now, again, why, sizeof why);
    json_decref(again);
    tell(t, result, why);
}

static void verify_reply(struct talk *t, struct door_reader *r, int fd)
{
    json_t *job;

    switch ((enum stage)t->stage) {
    case STAGE_JOB:
        job = job_reply_json(t, r, fd);
        if (job == NULL)
            return;
        job_keep_id(t, job);
        json_decref(job);
        t->stage = STAGE_OUTPUT;
        job_ask_file(t, t->job, DOOR_FILE_OUTPUT);
        return;
    case STAGE_OUTPUT:
        t->file_fd = fd >= 0 ? dup(fd) : -1;
        t->stage = STAGE_PLACES;
        job_ask_places(t);
        return;
    case STAGE_PLACES:
        on_places(t, fd);
        return;
    case STAGE_INPUT:
        t->stage = STAGE_POOL;
        if (job_take_input(t, fd))
            pool_ask(t, DOOR_POOL_STATUS);
        return;
    case STAGE_POOL:
        on_pool(t, r, fd);
        return;
    case STAGE_SEEKING: /* nothing is asked */
        return;
    case STAGE_RERUN:
        on_rerun(t, r, fd);
        return;
    }
}

static void verify_failed(struct talk *t, const struct error *err)
{
    if (t->stage == STAGE_RERUN && err->code != ERR_UNREACHABLE)
        tell_not_rerun(t, error_code_name(err->code), err->message);
    else
        talk_fail(t, err);
}

static void verify_drained(struct talk *t)
{
    if (t->stage == STAGE_SEEKING && !t->asking)
        seek(t);
}

static void verify_stop(struct talk *t)
{
    struct verifying *v = t->own;

    if (v == NULL)
        return;
    verify_case_deinit(&v->now);
    verify_report_deinit(&v->report);
    free(v->picks);
    free(v);
}

const struct verb_handler verb_verify_handler = {.start = start_verify,
                                                 .reply = verify_reply,
                                                 .failed = verify_failed,
                                                 .drained = verify_drained,
                                                 .stop = verify_stop};
