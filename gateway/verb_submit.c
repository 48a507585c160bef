/* verb_submit.c - submit and run: standard input goes into a file that (b) has opened (intake.h), and becomes a job when all of it is on
 * disk.  This process writes the file and syncs it; (b) then checks what is really there.  `run` goes on as `results --follow`. */
#include "verb_job.h"

#include <stdlib.h>
#include <string.h>

#include "limits.h"

enum stage { STAGE_BEGIN, STAGE_UPLOAD, STAGE_CHECK }; /* then those of verb_job.c */

static struct span option_text(const struct talk *t, enum verb_option o)
{
    return t->call.has[o] ? span_str(t->call.text[o]) : span_of("", 0);
}

/* false: the talk has failed. */
static bool prepare_input(struct talk *t)
{
    const bool text = t->call.has[OPT_TEXT], template = t->call.has[OPT_TEMPLATE];
    struct error err;
    enum status st = ST_INVALID;

    if ((text && template) || (t->call.has[OPT_CHAT] && !text && !template)) {
        error_set(&err, ERR_INVALID_PARAMETER, text ? "text" : "chat",
                  text ? "--text and --template cannot be had together"
                       : "--chat needs --text or --template");
    } else {
        st = intake_new(text       ? CONVERT_TEXT
                        : template ? CONVERT_TEMPLATE
                                   : CONVERT_NONE,
                        t->call.text[OPT_TEMPLATE], t->call.has[OPT_CHAT], &t->intake, &err);
    }
    if (st == ST_INVALID)
        talk_fail_as(t, &err, EXIT_USAGE); /* of the options: no input has been read */
    else if (st != ST_OK)
        talk_fail(t, &err);
    return st == ST_OK;
}

static void start_submit(struct talk *t)
{
    uint8_t buffer[2048];
    struct byte_writer w = {.at = buffer, .capacity = sizeof buffer};
    struct door_submit s = {.name = option_text(t, OPT_NAME),
                            .key = option_text(t, OPT_KEY),
                            .model = option_text(t, OPT_MODEL),
                            .max_tokens = (uint32_t)t->call.number[OPT_MAX_TOKENS],
                            .priority = (uint32_t)t->call.number[OPT_PRIORITY],
                            .deadline_ms = t->call.number[OPT_DEADLINE],
                            .try_lines = (uint32_t)t->call.number[OPT_TRY],
                            .reuse = option_text(t, OPT_REUSE),
                            .check = t->call.has[OPT_CHECK]};

    if (!prepare_input(t))
        return;
    t->stage = STAGE_BEGIN;
    door_put_submit(&w, &s);
    talk_ask(t, DOOR_SUBMIT, &w, -1);
}

static void write_input(struct talk *t, struct span data)
{
    struct error err;

    if (intake_put(t->intake, data, &err) != ST_OK)
        talk_fail(t, &err);
}

static void upload_end(struct talk *t)
{
    uint8_t buffer[16];
    struct byte_writer w = {.at = buffer, .capacity = sizeof buffer};
    struct error err;
    uint64_t bytes;

    if (intake_end(t->intake, &bytes, &err) != ST_OK) {
        talk_fail(t, &err);
        return;
    }
    intake_free(t->intake);
    t->intake = NULL;
    t->stage = STAGE_CHECK;
    door_put_u64(&w, bytes);
    talk_ask(t, DOOR_SUBMIT_END, &w, -1);
}

static void submit_input(struct talk *t, struct span data)
{
    struct error err;

    if (t->input_bytes > JOB_BYTES_MAX) {
        error_set(&err, ERR_LIMIT_EXCEEDED, NULL,
                  "the input is over the limit of %d bytes; nothing was submitted", JOB_BYTES_MAX);
        talk_fail(t, &err);
    } else if (t->stage == STAGE_UPLOAD) {
        write_input(t, data);
    } else if (t->stage == STAGE_BEGIN && !talk_keep_early(t, data)) {
        t->gone = true; /* more than the window before the file is open: it does not keep to the rules */
    }
}

static void submit_input_end(struct talk *t)
{
    if (t->stage == STAGE_UPLOAD)
        upload_end(t);
}

static void on_spool(struct talk *t, struct door_reader *r, int fd)
{
    struct error err;

    uint64_t bytes_max = door_get_u64(r);
    if (intake_open(t->intake, door_read_all(r) ? fd : -1, bytes_max, &err) != ST_OK) {
        talk_fail(t, &err);
        return;
    }
    t->stage = STAGE_UPLOAD;
    write_input(t, span_of(t->early.at, t->early.n));
    t->early.n = 0;
    if (t->input_end_told && !t->finished)
        upload_end(t);
}

static json_int_t number_of(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

static void print_estimate(struct talk *t, const json_t *report)
{
    const char *from = json_string_value(json_object_get(report, "estimated_from"));
    json_int_t ahead = number_of(report, "lines_ahead");
    char time[32];

    job_format_seconds(time, sizeof time, (uint64_t)number_of(report, "estimated_s"));
    if (ahead > 0)
        talk_print(t, "%" JSON_INTEGER_FORMAT " lines of your other jobs would come first\n", ahead);
    if (from == NULL)
        talk_print(t, "how long it takes cannot be said: no line was answered lately, and not every line names max_tokens\n");
    else
        talk_print(t, "%s %s, %s\n", strcmp(from, "lines") == 0 ? "about" : "at most about", time,
                   strcmp(from, "lines") == 0 ? "as lines went lately" : "if every answer is as long as its max_tokens");
}

/* What --check found; the exit code tells whether every line would run. */
static void print_report(struct talk *t, const json_t *report)
{
    json_int_t wrong = number_of(report, "n_bad") + number_of(report, "n_overflow");
    json_t *bad = json_object_get(report, "bad"), *overflow = json_object_get(report, "overflow"), *line;
    size_t i;

    if (t->call.has[OPT_JSON]) {
        talk_print_json(t, report);
    } else {
        json_array_foreach(bad, i, line)
        {
            const char *message = json_string_value(json_object_get(line, "message"));
            talk_print(t, "line %" JSON_INTEGER_FORMAT ": ", number_of(line, "line"));
            talk_print_safe(t, message != NULL ? message : "wrong", 0);
            talk_print(t, "\n");
        }
        json_array_foreach(overflow, i, line)
            talk_print(t, "line %" JSON_INTEGER_FORMAT ": the prompt has %" JSON_INTEGER_FORMAT
                          " tokens, the model takes %" JSON_INTEGER_FORMAT "\n",
                       number_of(line, "line"), number_of(line, "prompt_tokens"), number_of(line, "context_tokens"));
        if ((json_int_t)(json_array_size(bad) + json_array_size(overflow)) < wrong)
            talk_print(t, "and more: the first 1,000 of each kind are named\n");
        talk_print(t, "%" JSON_INTEGER_FORMAT " lines, %" JSON_INTEGER_FORMAT " wrong, %" JSON_INTEGER_FORMAT
                      " too long; %" JSON_INTEGER_FORMAT " tokens to read, %" JSON_INTEGER_FORMAT
                      " in the longest; nothing was submitted\n",
                   number_of(report, "lines"), number_of(report, "n_bad"), number_of(report, "n_overflow"),
                   number_of(report, "prompt_tokens"), number_of(report, "longest_prompt_tokens"));
        print_estimate(t, report);
    }
    talk_finish(t, wrong > 0 ? EXIT_LINES_FAILED : EXIT_OK);
}

static void on_job(struct talk *t, struct door_reader *r, int fd)
{
    json_t *job = job_reply_json(t, r, fd);
    const char *id = json_string_value(json_object_get(job, "id"));

    if (job == NULL)
        return;
    if (t->call.has[OPT_CHECK]) {
        print_report(t, job);
        json_decref(job);
        return;
    }
    if (t->call.has[OPT_REUSE]) {
        json_t *counts = json_object_get(job, "request_counts");
        talk_print_error(t, "%" JSON_INTEGER_FORMAT " of %" JSON_INTEGER_FORMAT " lines were answered before\n",
                         json_integer_value(json_object_get(counts, "completed")),
                         json_integer_value(json_object_get(counts, "total")));
    }
    if (t->call.verb->id == VERB_RUN) {
        talk_print_error(t, "job %s\n", id);
        job_follow_output(t, id);
        t->input_bytes = 0;
    } else {
        char *text = t->call.has[OPT_JSON] ? json_dumps(job, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
        talk_print(t, "%s\n", text != NULL ? text : id);
        free(text);
        talk_finish(t, EXIT_OK);
    }
    json_decref(job);
}

static void submit_reply(struct talk *t, struct door_reader *r, int fd)
{
    if (t->stage == STAGE_BEGIN)
        on_spool(t, r, fd);
    else if (t->stage == STAGE_CHECK)
        on_job(t, r, fd);
    else
        job_stream_reply(t, r, fd);
}

static void run_drained(struct talk *t)
{
    job_stream_drained(t);
}

static void submit_interrupt(struct talk *t)
{
    if (t->stage <= STAGE_CHECK)
        talk_print_error(t, "\nNothing was submitted.\n");
    else
        talk_print_error(
            t, "\nThe job goes on.  `results %s --follow` takes up the answers, `cancel %s` ends it.\n",
            t->job, t->job);
}

const struct verb_handler verb_submit_handler = {.start = start_submit,
                                                 .reply = submit_reply,
                                                 .input = submit_input,
                                                 .input_end = submit_input_end,
                                                 .interrupt = submit_interrupt};
const struct verb_handler verb_run_handler = {.start = start_submit,
                                              .reply = submit_reply,
                                              .input = submit_input,
                                              .input_end = submit_input_end,
                                              .drained = run_drained,
                                              .interrupt = submit_interrupt};
