/* verb_job.c - verbs about jobs that exist: status, list, watch, wait, results, errors, cancel, delete.
 *
 * (b) answers with a job as JSON; --json passes it on, otherwise it is made into words here, in the process that has the
 * least to lose.  Files of answers come as descriptors with the length that is committed: never a byte beyond it is read. */
#include "verb_job.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "json_field.h"
#include "limits.h"

enum {
    WATCH_LINE_MS = 5000,
    WATCH_BAR_MS = 500,
    WATCH_END_MS = 60000,
    FOLLOW_MS = 10000,
    BAR_COLUMNS_MIN = 40
};

/* --- reading and printing jobs ------------------------------------------------------------------- */

void job_internal_failure(struct talk *t, const char *what)
{
    struct error err;

    error_set(&err, ERR_INTERNAL, NULL, "%s", what);
    talk_fail(t, &err);
}

json_t *job_reply_json(struct talk *t, struct door_reader *r, int fd)
{
    char *text = NULL;
    size_t bytes = 0;
    json_t *value = NULL;

    if (door_get_text(r, fd, &text, &bytes) == ST_OK && door_read_all(r))
        value = json_loadb(text, bytes, 0, NULL);
    free(text);
    if (value == NULL)
        job_internal_failure(t, "the job store gave an answer that cannot be read");
    if (json_object_get(value, "request_counts") != NULL)
        snprintf(t->seen_job, sizeof t->seen_job, "%s", json_text(value, "id"));
    return value;
}

static uint64_t count_of(const json_t *job, const char *key)
{
    json_int_t n = json_integer_value(json_object_get(json_object_get(job, "request_counts"), key));

    return n > 0 ? (uint64_t)n : 0;
}

static bool job_has_ended(const json_t *job)
{
    const char *status = json_text(job, "status");

    return strcmp(status, "completed") == 0 || strcmp(status, "failed") == 0 ||
           strcmp(status, "cancelled") == 0 || strcmp(status, "expired") == 0;
}

/* The exit code that tells how a job ended; EXIT_OK while it runs. */
static enum exit_code exit_of(const json_t *job)
{
    if (!job_has_ended(job))
        return EXIT_OK;
    if (strcmp(json_text(job, "status"), "completed") != 0)
        return EXIT_JOB_STOPPED;
    return count_of(job, "failed") > 0 ? EXIT_LINES_FAILED : EXIT_OK;
}

/* JOB as given on the command line, else "last". */
static const char *job_argument(const struct talk *t)
{
    return t->call.n_args > 0 ? t->call.args[0] : "last";
}

static void format_age(char *text, size_t bytes, json_int_t since)
{
    int64_t s = clock_real_ms() / 1000 - since;

    if (s < 0)
        s = 0;
    if (s < 120)
        snprintf(text, bytes, "%" PRId64 "s", s);
    else if (s < 7200)
        snprintf(text, bytes, "%" PRId64 "m", s / 60);
    else if (s < 172800)
        snprintf(text, bytes, "%" PRId64 "h", s / 3600);
    else
        snprintf(text, bytes, "%" PRId64 "d", s / 86400);
}

void job_format_seconds(char *text, size_t bytes, uint64_t s)
{
    if (s < 120)
        snprintf(text, bytes, "%" PRIu64 " s", s);
    else if (s < 7200)
        snprintf(text, bytes, "%" PRIu64 " min", (s + 30) / 60);
    else
        snprintf(text, bytes, "%" PRIu64 " h %" PRIu64 " min", s / 3600, s % 3600 / 60);
}

void job_print_list(struct talk *t, const json_t *jobs, size_t n_max)
{
    size_t i, n = json_array_size(jobs);
    json_t *job;

    if (n == 0) {
        talk_print(t, "You have no jobs.\n");
        return;
    }
    talk_print(t, "%-12s %-20s %-12s %9s %9s %8s %5s\n", "ID", "NAME", "STATUS", "LINES", "ANSWERS", "FAILED",
               "AGE");
    for (i = 0; i < n && i < n_max; i++) {
        char age[32];
        job = json_array_get(jobs, i);
        format_age(age, sizeof age, json_integer_value(json_object_get(job, "created_at")));
        talk_print(t, "%-12s ", json_text(job, "id"));
        talk_print_safe(t, json_text(job, "name"), 20);
        talk_print(t, " %-12s %9" PRIu64 " %9" PRIu64 " %8" PRIu64 " %5s\n", json_text(job, "status"),
                   count_of(job, "total"), count_of(job, "completed"), count_of(job, "failed"), age);
    }
    if (n > n_max)
        talk_print(t, "and %zu more: `list`\n", n - n_max);
}

/* "ID  1234 of 5000 lines, 3 failed, in_progress" */
static void print_progress(struct talk *t, const json_t *job)
{
    uint64_t total = count_of(job, "total"), failed = count_of(job, "failed");
    json_int_t eta = json_integer_value(json_object_get(job, "eta_s"));

    talk_print(t, "%s  %" PRIu64 " of %" PRIu64 " lines", json_text(job, "id"),
               count_of(job, "completed") + failed, total);
    if (failed > 0)
        talk_print(t, ", %" PRIu64 " failed", failed);
    talk_print(t, ", %s", json_text(job, "status"));
    json_int_t ahead = json_integer_value(json_object_get(job, "lines_ahead"));
    if (ahead > 0)
        talk_print(t, ", %" JSON_INTEGER_FORMAT " lines of your other jobs first", ahead);
    if (eta > 0 && !job_has_ended(job)) {
        char left[32];
        job_format_seconds(left, sizeof left, (uint64_t)eta);
        talk_print(t, ", about %s left", left);
    }
    json_int_t held = json_integer_value(json_object_get(job, "held"));
    if (held > 0 && !job_has_ended(job))
        talk_print(t, ", %" JSON_INTEGER_FORMAT " held: `release %s` runs them", held, json_text(job, "id"));
    if (json_text(job, "note")[0] != '\0') {
        talk_print(t, " (");
        talk_print_safe(t, json_text(job, "note"), 0);
        talk_print(t, ")");
    }
}

static void print_job(struct talk *t, const json_t *job)
{
    json_t *usage = json_object_get(job, "usage");
    json_int_t cut = json_integer_value(json_object_get(json_object_get(job, "finish_reasons"), "length"));
    char age[32];

    format_age(age, sizeof age, json_integer_value(json_object_get(job, "created_at")));
    print_progress(t, job);
    talk_print(t, "\n  name      ");
    talk_print_safe(t, json_text(job, "name"), 0);
    talk_print(t, "\n  answers   %" PRIu64, count_of(job, "completed"));
    if (cut > 0)
        talk_print(t, ", %" JSON_INTEGER_FORMAT " of them ended by their limit of tokens", cut);
    talk_print(t, "\n  errors    %" PRIu64 "\n", count_of(job, "failed"));
    if (json_text(job, "error")[0] != '\0')
        talk_print(t, "  failed    %s\n", json_text(job, "error"));
    talk_print(t,
               "  tokens    %" JSON_INTEGER_FORMAT " read (%" JSON_INTEGER_FORMAT
               " from the cache), %" JSON_INTEGER_FORMAT " written\n",
               json_integer_value(json_object_get(usage, "prompt_tokens")),
               json_integer_value(json_object_get(usage, "cached_tokens")),
               json_integer_value(json_object_get(usage, "completion_tokens")));
    talk_print(t, "  retries   %" JSON_INTEGER_FORMAT "\n  created   %s ago\n",
               json_integer_value(json_object_get(job, "retries")), age);
}

void job_ask(struct talk *t, enum door_type type)
{
    uint8_t buffer[1024];
    struct byte_writer w = { .at = buffer, .capacity = sizeof buffer };

    door_put_str(&w, span_str(job_argument(t)));
    talk_ask(t, type, &w, -1);
}

/* --- status, list, cancel, delete: one question --------------------------------------------------- */

static void start_status(struct talk *t)
{
    job_ask(t, DOOR_JOB);
}

static void start_change(struct talk *t)
{
    enum verb_id id = t->call.verb->id;

    job_ask(t, id == VERB_CANCEL    ? DOOR_CANCEL
               : id == VERB_RETRY   ? DOOR_RETRY
               : id == VERB_RELEASE ? DOOR_RELEASE
                                    : DOOR_DELETE);
}

static void job_reply(struct talk *t, struct door_reader *r, int fd)
{
    json_t *job = job_reply_json(t, r, fd);

    if (job == NULL)
        return;
    if (t->call.has[OPT_JSON]) {
        talk_print_json(t, job);
    } else if (t->call.verb->id == VERB_DELETE) {
        talk_print(t, "%s deleted\n", json_text(job, "id"));
    } else if (t->call.verb->id != VERB_STATUS) {
        print_progress(t, job);
        talk_print(t, "\n");
    } else {
        print_job(t, job);
    }
    json_decref(job);
    talk_finish(t, EXIT_OK);
}

static void start_list(struct talk *t)
{
    uint8_t buffer[8];
    struct byte_writer w = { .at = buffer, .capacity = sizeof buffer };

    door_put_u32(&w, t->call.has[OPT_ALL]);
    talk_ask(t, DOOR_LIST, &w, -1);
}

/* --state: a state as in the OpenAI API; one that is none is a mistake, not an empty list. */
static bool keep_state(struct talk *t, json_t *list)
{
    static const char *const states[] = { "validating", "in_progress", "finalizing", "cancelling",
                                          "completed",  "cancelled",   "expired",    "failed" };
    json_t *jobs = json_object_get(list, "jobs");
    const char *wanted = t->call.text[OPT_STATE];
    struct error err;
    bool known = false;

    for (size_t i = 0; i < sizeof states / sizeof states[0]; i++)
        known = known || strcmp(states[i], wanted) == 0;
    if (!known) {
        const char *near = verb_nearest(wanted, states, sizeof states / sizeof states[0]);
        error_set(&err, ERR_INVALID_PARAMETER, "state", "there is no state \"%.30s\"%s%s", wanted,
                  near != NULL ? "; did you mean " : "", near != NULL ? near : "");
        talk_fail_as(t, &err, EXIT_USAGE);
        return false;
    }
    for (size_t i = json_array_size(jobs); i > 0; i--) {
        if (strcmp(json_text(json_array_get(jobs, i - 1), "status"), wanted) != 0)
            json_array_remove(jobs, i - 1);
    }
    return true;
}

static void list_reply(struct talk *t, struct door_reader *r, int fd)
{
    json_t *list = job_reply_json(t, r, fd);

    if (list == NULL)
        return;
    if (t->call.has[OPT_STATE] && !keep_state(t, list)) {
        json_decref(list);
        return;
    }
    if (t->call.has[OPT_JSON])
        talk_print_json(t, list);
    else
        job_print_list(t, json_object_get(list, "jobs"), SIZE_MAX);
    json_decref(list);
    talk_finish(t, EXIT_OK);
}

/* --- watch and wait -------------------------------------------------------------------------------- */

/* The first part of a WATCH reply; the text with the job follows. */
static void get_watch(struct talk *t, struct door_reader *r, uint64_t *ret_output, uint64_t *ret_errors)
{
    t->version = door_get_u64(r);
    t->ended = door_get_u32(r) != 0;
    *ret_output = door_get_u64(r);
    *ret_errors = door_get_u64(r);
}

static void ask_watch(struct talk *t, const char *job, uint64_t seen, uint32_t wait_ms)
{
    uint8_t buffer[1024];
    struct byte_writer w = { .at = buffer, .capacity = sizeof buffer };

    door_put_str(&w, span_str(job));
    door_put_u64(&w, seen);
    door_put_u32(&w, wait_ms);
    talk_ask(t, DOOR_WATCH, &w, -1);
}

void job_keep_id(struct talk *t, const json_t *job)
{
    snprintf(t->job, sizeof t->job, "%s", json_text(job, "id"));
}

static void start_watch(struct talk *t)
{
    ask_watch(t, job_argument(t), 0, 0);
}

static void print_bar(struct talk *t, const json_t *job)
{
    uint64_t total = count_of(job, "total"), done = count_of(job, "completed") + count_of(job, "failed");
    int width = t->columns > 100 ? 40 : t->columns / 3;

    talk_print(t, "\r\x1b[K");
    if (t->columns >= BAR_COLUMNS_MIN && total > 0) {
        int full = (int)((double)done / (double)total * width);
        talk_print(t, "[");
        for (int i = 0; i < width; i++)
            talk_print(t, i < full ? "#" : ".");
        talk_print(t, "] ");
    }
    print_progress(t, job);
}

static void watch_reply(struct talk *t, struct door_reader *r, int fd)
{
    uint64_t output, errors;

    get_watch(t, r, &output, &errors);
    json_t *job = job_reply_json(t, r, fd);
    if (job == NULL)
        return;
    job_keep_id(t, job);
    bool quiet = t->call.verb->id == VERB_WAIT;
    if (t->call.has[OPT_JSON]) {
        if (!quiet || t->ended)
            talk_print_json(t, job);
    } else if (!quiet && t->pty) {
        print_bar(t, job);
        if (t->ended)
            talk_print(t, "\n");
    } else if (!quiet) {
        print_progress(t, job);
        talk_print(t, "\n");
    }
    if (t->ended)
        talk_finish(t, exit_of(job));
    else
        ask_watch(t, t->job, DOOR_WATCH_END, quiet ? WATCH_END_MS : t->pty ? WATCH_BAR_MS : WATCH_LINE_MS);
    json_decref(job);
}

static void watch_interrupt(struct talk *t)
{
    const char *job = t->job[0] != '\0' ? t->job : job_argument(t);

    talk_print_error(t, "\nThe job goes on.  `watch %s` returns to it, `cancel %s` ends it.\n", job, job);
}

/* --- results, errors, and the second half of run ---------------------------------------------------- */

enum stage { STAGE_OPENING = 10, STAGE_STREAMING, STAGE_WATCHING, STAGE_ORDERING, STAGE_INPUT, STAGE_ORDERED };

static enum door_file file_of(const struct talk *t)
{
    return t->call.verb->id == VERB_ERRORS ? DOOR_FILE_ERRORS : DOOR_FILE_OUTPUT;
}

void job_ask_file(struct talk *t, const char *job, enum door_file file)
{
    uint8_t buffer[1024];
    struct byte_writer w = { .at = buffer, .capacity = sizeof buffer };

    door_put_str(&w, span_str(job));
    door_put_u32(&w, file);
    talk_ask(t, DOOR_OPEN, &w, -1);
}

static void ask_open(struct talk *t, const char *job)
{
    t->stage = STAGE_OPENING;
    job_ask_file(t, job, file_of(t));
}

/* Answers by line, not as they came: --flat and --csv too, so that a table is in the order of its input. */
static bool is_ordered(const struct talk *t)
{
    return t->call.has[OPT_ORDERED] || t->call.has[OPT_FLAT] || t->call.has[OPT_CSV];
}

static bool check_results_options(struct talk *t)
{
    const char *wrong = NULL;
    struct error err;

    if (is_ordered(t) && t->call.has[OPT_FOLLOW])
        wrong = "--ordered, --flat and --csv need all answers, so they cannot --follow; `wait` for the job first";
    else if (t->call.has[OPT_JOIN] && !t->call.has[OPT_FLAT] && !t->call.has[OPT_CSV])
        wrong = "--join wants --flat or --csv";
    else if (t->call.has[OPT_FLAT] && t->call.has[OPT_CSV])
        wrong = "--flat and --csv cannot be had together";
    if (wrong == NULL)
        return true;
    error_set(&err, ERR_INVALID_REQUEST, NULL, "%s", wrong);
    talk_fail_as(t, &err, EXIT_USAGE);
    return false;
}

static void start_results(struct talk *t)
{
    if (!check_results_options(t))
        return;
    t->flat.form = t->call.has[OPT_CSV] ? FLAT_CSV : FLAT_JSON;
    snprintf(t->job, sizeof t->job, "%s", job_argument(t));
    if (strlen(job_argument(t)) >= sizeof t->job) {
        struct error err;
        error_set(&err, ERR_NOT_FOUND, NULL, "there is no job of that name");
        talk_fail(t, &err);
    } else if (t->call.has[OPT_FOLLOW] || is_ordered(t)) { /* several questions about one job: not about "last" */
        ask_watch(t, t->job, 0, 0); /* learn the id first */
        t->stage = STAGE_WATCHING;
    } else {
        ask_open(t, t->job);
    }
}

static bool follows(const struct talk *t)
{
    return t->call.has[OPT_FOLLOW] || t->call.verb->id == VERB_RUN;
}

void job_follow_output(struct talk *t, const char *id)
{
    snprintf(t->job, sizeof t->job, "%s", id);
    ask_open(t, t->job);
}

void job_ask_places(struct talk *t)
{
    uint8_t buffer[1024];
    struct byte_writer w = { .at = buffer, .capacity = sizeof buffer };

    door_put_str(&w, span_str(t->job));
    talk_ask(t, DOOR_ORDER, &w, -1);
}

static void ask_order(struct talk *t)
{
    t->stage = STAGE_ORDERING;
    job_ask_places(t);
}

static void on_opened(struct talk *t, struct door_reader *r, int fd)
{
    uint64_t bytes = door_get_u64(r);
    bool ended = door_get_u32(r) != 0;

    t->ended = ended;
    t->file_fd = fd >= 0 ? dup(fd) : -1;
    int stream = fd >= 0 ? dup(fd) : -1;
    if (!door_read_all(r) || t->file_fd < 0 || stream < 0) {
        if (stream >= 0)
            close(stream);
        job_internal_failure(t, "the job store gave a file that cannot be read");
        return;
    }
    t->output_bytes = bytes;
    if (is_ordered(t)) {
        close(stream);
        ask_order(t);
        return;
    }
    t->stage = STAGE_STREAMING;
    talk_stream(t, stream, 0, bytes);
}

/* --ordered: where each answer is, by line.  Only answers inside the bytes that OPEN allowed are there. */
static void on_ordered(struct talk *t, int fd)
{
    if (door_memfd_read(fd, (size_t)JOB_LINES_MAX * sizeof(struct door_place), &t->text, &t->text_bytes) !=
            ST_OK ||
        t->text_bytes % sizeof(struct door_place) != 0) {
        job_internal_failure(t, "the job store gave an answer that cannot be read");
        return;
    }
    if (t->call.has[OPT_JOIN]) {
        t->stage = STAGE_INPUT;
        job_ask_file(t, t->job, DOOR_FILE_INPUT);
        return;
    }
    t->stage = STAGE_ORDERED;
    t->drained_due = true;
}

bool job_take_input(struct talk *t, int fd)
{
    int own = fd >= 0 ? dup(fd) : -1;

    if (own >= 0 && line_scanner_init(&t->input, own) == ST_OK)
        return true;
    if (own >= 0)
        close(own);
    job_internal_failure(t, "the job store gave a file that cannot be read");
    return false;
}

/* --join: the job's input, read along with the answers, which are in the same order. */
static void on_input(struct talk *t, int fd)
{
    if (!job_take_input(t, fd))
        return;
    t->stage = STAGE_ORDERED;
    t->drained_due = true;
}

/* The input line of that number; the numbers only grow. */
static enum status input_line(struct talk *t, uint32_t number, struct span *ret_text)
{
    struct scanned_line line;

    do {
        enum status st = line_scanner_next(&t->input, &line);
        if (st != ST_OK)
            return st;
    } while (line.number < number);
    *ret_text = line.text;
    return ST_OK;
}

static void print_answer(struct talk *t, const char *line, const struct door_place *place)
{
    struct span input = span_of("", 0);
    struct error err;
    char *text = NULL;
    size_t bytes = 0;

    if (!t->call.has[OPT_FLAT] && !t->call.has[OPT_CSV]) {
        talk_write(t, span_of(line, place->bytes));
        return;
    }
    FILE *to = open_memstream(&text, &bytes);
    error_set(&err, ERR_INTERNAL, NULL, "the input or an answer of the job cannot be read");
    enum status st = to != NULL ? ST_OK : ST_NOMEM;
    if (st == ST_OK && t->call.has[OPT_JOIN])
        st = input_line(t, place->line, &input);
    if (st == ST_OK)
        st = flat_write(&t->flat, span_of(line, place->bytes), input, place->line, to, &err);
    if (to != NULL && fclose(to) != 0)
        st = ST_NOMEM;
    if (st == ST_OK)
        talk_write(t, span_of(text, bytes));
    else
        talk_fail(t, &err);
    free(text);
}

/* Copy some more answers, in order, into the output. */
static void send_ordered(struct talk *t)
{
    char *line = NULL;
    size_t sent = 0;

    while (t->text_at < t->text_bytes && sent < STREAM_CHUNK_BYTES && !t->finished) {
        struct door_place place;
        memcpy(&place, t->text + t->text_at, sizeof place);
        t->text_at += sizeof place;
        char *bigger = realloc(line, place.bytes);
        if (bigger == NULL ||
            pread(t->file_fd, bigger, place.bytes, (off_t)place.offset) != (ssize_t)place.bytes) {
            free(bigger != NULL ? bigger : line);
            job_internal_failure(t, "a file of the job cannot be read");
            return;
        }
        line = bigger;
        print_answer(t, line, &place);
        sent += place.bytes;
    }
    free(line);
    if (t->text_at == t->text_bytes)
        talk_finish(t, EXIT_OK);
}

static void run_summary(struct talk *t, const json_t *job)
{
    uint64_t failed = count_of(job, "failed");

    if (t->call.verb->id != VERB_RUN)
        return;
    talk_print_error(t, "%s: %s, %" PRIu64 " answers, %" PRIu64 " errors", t->job, json_text(job, "status"),
                     count_of(job, "completed"), failed);
    if (failed > 0)
        talk_print_error(t, " (`errors %s` shows them)", t->job);
    talk_print_error(t, "\n");
}

static void on_watched(struct talk *t, struct door_reader *r, int fd)
{
    uint64_t output, errors;

    get_watch(t, r, &output, &errors);
    json_t *job = job_reply_json(t, r, fd);
    if (job == NULL)
        return;
    job_keep_id(t, job);
    if (t->file_fd < 0) {
        ask_open(t, t->job);
    } else {
        uint64_t bytes = file_of(t) == DOOR_FILE_ERRORS ? errors : output;
        uint64_t from = t->output_bytes;
        if (bytes > from) {
            int stream = dup(t->file_fd);
            t->output_bytes = bytes;
            if (stream >= 0)
                talk_stream(t, stream, from, bytes);
            else
                job_internal_failure(t, "out of descriptors");
        } else {
            t->drained_due = true;
        }
        t->stage = STAGE_STREAMING;
        if (t->ended) { /* what is in the stream is sent before the channel closes */
            run_summary(t, job);
            talk_finish(t, exit_of(job));
        }
    }
    json_decref(job);
}

void job_stream_drained(struct talk *t)
{
    if (t->stage == STAGE_ORDERED) {
        send_ordered(t);
        return;
    }
    if (t->stage != STAGE_STREAMING || t->asking)
        return;
    if (!follows(t)) {
        talk_finish(t, EXIT_OK);
        return;
    }
    t->stage = STAGE_WATCHING;
    ask_watch(t, t->job, t->version, FOLLOW_MS);
}

void job_stream_reply(struct talk *t, struct door_reader *r, int fd)
{
    if (t->stage == STAGE_OPENING)
        on_opened(t, r, fd);
    else if (t->stage == STAGE_ORDERING)
        on_ordered(t, fd);
    else if (t->stage == STAGE_INPUT)
        on_input(t, fd);
    else
        on_watched(t, r, fd);
}

static void results_interrupt(struct talk *t)
{
    if (follows(t))
        talk_print_error(
            t, "\nThe job goes on.  `results %s --follow` takes up the answers again, `cancel %s` ends it.\n",
            t->job, t->job);
}

const struct verb_handler verb_status_handler = { .start = start_status, .reply = job_reply };
const struct verb_handler verb_change_handler = { .start = start_change, .reply = job_reply };
const struct verb_handler verb_list_handler = { .start = start_list, .reply = list_reply };
const struct verb_handler verb_watch_handler = { .start = start_watch,
                                                 .reply = watch_reply,
                                                 .interrupt = watch_interrupt };
const struct verb_handler verb_wait_handler = { .start = start_watch,
                                                .reply = watch_reply,
                                                .interrupt = watch_interrupt };
const struct verb_handler verb_results_handler = { .start = start_results,
                                                   .reply = job_stream_reply,
                                                   .drained = job_stream_drained,
                                                   .interrupt = results_interrupt };
