/* cmd_batch.c - `weir batch`: a file of requests, answered as they come.
 *
 * A window of lines is under way at once.  Whatever ends a line writes exactly one line: into the output, or into the errors.  A broker
 * that is away or busy is waited for, and the lines it had are sent again, with what had come of them: nothing of them is written yet.  ^C stops without writing
 * anything for what was under way; the same command with -o goes on from there. */
#include "commands.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "batch_input.h"
#include "batch_output.h"
#include "batch_progress.h"
#include "client.h"
#include "clock.h"
#include "limits.h"
#include "weir_batch.h"

static struct {
    const char *connect, *output, *errors, *model;
    uint32_t window, retry_ms;
    bool quiet;
} options;

enum { WINDOW = 256, RETRY_MS = 60000, BUSY_MS = 250, ATTEMPTS_MAX = 5 };

struct batch;

/* A line on its way. */
struct job {
    struct batch *batch;
    struct weir_line line;
    uint64_t hash;
    struct weir_answer *answer;     /* what has come; stays when a broker goes away, so that the next one goes on from there */
    struct weir_resume resume[CHOICES_MAX];
    struct weir_error err;
    int result; /* of weir_collect() */
    uint32_t attempts;
    uint64_t due_ns; /* in the list of those to send (again): not before */
    struct job *next;
    struct job *older, *younger; /* all there are, so that none is forgotten when a run is stopped */
};

struct batch {
    struct weir_client *client;
    struct batch_input *input;
    struct batch_output output;
    struct batch_ids ids;
    struct batch_progress progress;
    struct job *youngest; /* of all */
    struct job *again;    /* to be sent, oldest first */
    uint32_t n_flying, n_again;
    uint64_t n_lines;
    uint64_t away_since_ns;   /* 0: the broker is there */
    bool input_ended, broken; /* broken: *err, nothing more is begun */
    enum exit_code code;
    struct weir_error err;
};

size_t batch_flags(struct flag *ret_flags)
{
    size_t n = 0;

    ret_flags[n++] = (struct flag){
        "output",  'o',
        FLAG_TEXT, &options.output,
        "FILE",    "answers go there; a run that was stopped goes on (default: standard output)",
        0,         0};
    ret_flags[n++] = (struct flag){
        "errors", 0, FLAG_TEXT, &options.errors, "FILE", "default: FILE.errors, or standard error", 0, 0};
    ret_flags[n++] = (struct flag){
        "window",         'w', FLAG_U32, &options.window, "N", "lines under way at once (default 256)", 1,
        USER_REQUESTS_MAX};
    ret_flags[n++] =
        (struct flag){"model", 0, FLAG_TEXT, &options.model, "NAME", "for lines that name none", 0, 0};
    ret_flags[n++] = (struct flag){"retry", 0,
                                   FLAG_MS, &options.retry_ms,
                                   "TIME",  "wait so long for a broker that is away (default 60s)",
                                   0,       0};
    ret_flags[n++] =
        (struct flag){"quiet", 'q', FLAG_SWITCH, &options.quiet, NULL, "no progress, no sum", 0, 0};
    return n + command_connect_flags(ret_flags + n, &options.connect);
}

static struct job *job_new(struct batch *b)
{
    struct job *j = calloc(1, sizeof(*j));

    if (j == NULL)
        return NULL;
    j->batch = b;
    j->older = b->youngest;
    if (j->older != NULL)
        j->older->younger = j;
    b->youngest = j;
    return j;
}

static void job_free(struct job *j)
{
    if (j->older != NULL)
        j->older->younger = j->younger;
    if (j->younger != NULL)
        j->younger->older = j->older;
    else
        j->batch->youngest = j->older;
    weir_answer_free(j->answer);
    weir_line_deinit(&j->line);
    free(j);
}

/* No way to go on. */
static void give_up(struct batch *b, enum exit_code code, const struct weir_error *err)
{
    if (b->broken)
        return;
    b->broken = true;
    b->code = code;
    if (err != &b->err)
        b->err = *err;
}

static void out_of_memory(struct batch *b)
{
    struct weir_error err;

    weir_error_format(&err, ERR_INTERNAL, "", "out of memory");
    give_up(b, EXIT_FAILED, &err);
}

/* --- the end of a line ------------------------------------------------------------------------- */

static void write_end(struct batch *b, struct job *j, const struct weir_error *error)
{
    char id[48];
    size_t bytes = 0;

    batch_line_id(j->hash, j->line.number, id);
    char *text = error != NULL ? weir_line_error(&j->line, error, id, &bytes)
                               : weir_line_output(&j->line, j->answer, id, (int64_t)time(NULL), &bytes);
    if (text == NULL)
        out_of_memory(b);
    else if (batch_output_put(&b->output, error != NULL, text, bytes, &b->err) != WEIR_OK)
        give_up(b, EXIT_FAILED, &b->err);
    else if (error != NULL)
        b->progress.n_failed++;
    else
        batch_progress_add(&b->progress, j->answer);
    free(text);
    job_free(j);
}

static bool has_code(const struct weir_error *e, const char *code)
{
    return strcmp(e->code, code) == 0;
}

/* Would the same line succeed later?  Busy and away are not the line's fault and are tried for ever (away: options.retry_ms). */
static bool worth_another(const struct job *j)
{
    const struct weir_error *e = &j->err;

    if (has_code(e, "busy") || has_code(e, "broker_unreachable") || has_code(e, "shutting_down"))
        return true;
    return (has_code(e, "no_worker") || has_code(e, "slow_reader")) && j->attempts < ATTEMPTS_MAX;
}

static bool broker_left(const struct weir_error *e)
{
    return has_code(e, "broker_unreachable") || has_code(e, "shutting_down");
}

static void push_again(struct batch *b, struct job *j, uint64_t due_ns)
{
    struct job **end = &b->again;

    if (!broker_left(&j->err) || weir_resume_of(j->answer, j->resume) == 0) {
        weir_answer_free(j->answer);
        j->answer = NULL;
    }
    memset(&j->err, 0, sizeof(j->err));
    j->result = WEIR_AGAIN;
    j->due_ns = due_ns;
    while (*end != NULL &&
           (*end)->line.number < j->line.number) /* oldest first; the list is short: at most a window */
        end = &(*end)->next;
    j->next = *end;
    *end = j;
    b->n_again++;
}

static void on_event(const struct weir_event *e, void *arg)
{
    struct job *j = arg;
    struct batch *b = j->batch;

    if (j->result == WEIR_AGAIN)
        j->result = weir_collect(&j->answer, e, &j->err);
    if (e->type != WEIR_DONE && e->type != WEIR_ERROR)
        return;
    b->n_flying--;
    if (j->result == WEIR_OK)
        write_end(b, j, NULL);
    else if (e->type == WEIR_ERROR && worth_another(j))
        push_again(b, j,
                   clock_now_ns() +
                       (j->err.retry_after_ms > 0 ? j->err.retry_after_ms : BUSY_MS) * 1000000ull);
    else
        write_end(b, j, &j->err);
}

/* --- the beginning of a line ------------------------------------------------------------------- */

/* Has this line an answer already, or another line its id?  True: it is dealt with (and j is gone). */
static bool known(struct batch *b, struct job *j)
{
    struct batch_id *id = batch_ids_get(&b->ids, j->line.custom_id);
    struct weir_error err;

    if (id == NULL) {
        out_of_memory(b);
        job_free(j);
        return true;
    }
    if (id->line != 0) {
        weir_error_format(&err, ERR_DUPLICATE_ID, "custom_id",
                          "custom_id \"%.100s\" is also that of line %llu", id->text,
                          (unsigned long long)id->line);
        write_end(b, j, &err);
        return true;
    }
    id->line = j->line.number;
    if (id->answered == 0)
        return false;
    if (id->answered != j->hash) {
        weir_error_format(&err, ERR_KEY_CONFLICT, "",
                          "%s holds an answer to another line with custom_id \"%.100s\" than line %llu; "
                          "choose another output file",
                          options.output, id->text, (unsigned long long)id->line);
        give_up(b, EXIT_FAILED, &err);
    } else {
        b->progress.n_skipped++;
    }
    job_free(j);
    return true;
}

static void begin_line(struct batch *b, const char *text, size_t bytes, uint64_t number, bool too_long)
{
    struct job *j = job_new(b);
    struct weir_error err;

    if (j == NULL) {
        out_of_memory(b);
        return;
    }
    j->hash = batch_line_hash(text, bytes);
    int parsed = weir_line_parse(text, bytes, number, &j->line, &err);
    if (j->line.custom_id == NULL) {
        job_free(j);
        out_of_memory(b);
        return;
    }
    if (too_long) { /* what is there of it is not the line */
        parsed = WEIR_FAILED;
        weir_error_format(&err, ERR_LIMIT_EXCEEDED, "", "the line has more than %d bytes, the limit",
                          LINE_BYTES_MAX);
    }
    if (known(b, j))
        return;
    if (parsed != WEIR_OK) {
        write_end(b, j, &err);
        return;
    }
    if (j->line.request.model == NULL)
        j->line.request.model = options.model;
    push_again(b, j, 0);
}

/* Read lines while the window has room. */
static void read_lines(struct batch *b)
{
    while (!b->broken && !b->input_ended && b->n_flying + b->n_again < options.window) {
        const char *text = NULL;
        size_t bytes = 0;
        uint64_t number = 0;
        switch (batch_input_next(b->input, &text, &bytes, &number, &b->err)) {
        case INPUT_LINE:
            if (weir_line_blank(text, bytes))
                break;
            if (++b->n_lines > JOB_LINES_MAX) {
                weir_error_format(&b->err, ERR_LIMIT_EXCEEDED, "",
                                  "the file has more than %d lines, the limit; split it", JOB_LINES_MAX);
                give_up(b, EXIT_FAILED, &b->err);
                break;
            }
            begin_line(b, text, bytes, number, false);
            break;
        case INPUT_TOO_LONG:
            begin_line(b, text, 0, number, true);
            break;
        case INPUT_WAIT:
            return;
        case INPUT_END:
            b->input_ended = true;
            break;
        case INPUT_BROKEN:
            give_up(b, EXIT_FAILED, &b->err);
            break;
        }
    }
}

/* --- sending ----------------------------------------------------------------------------------- */

static void send_lines(struct batch *b, uint64_t now)
{
    struct job **at = &b->again;

    while (!b->broken && *at != NULL && weir_connected(b->client)) {
        struct job *j = *at;
        if (j->due_ns > now) {
            at = &j->next;
            continue;
        }
        struct weir_error err;
        struct weir_request r = j->line.request;
        r.n_resume = weir_resume_of(j->answer, j->resume);
        r.resume = j->resume;
        if (r.n_resume > 0)
            r.seed = &j->answer->seed;
        int result = weir_submit(b->client, &r, on_event, j, NULL, &err);
        if (result == WEIR_AGAIN || (result == WEIR_FAILED && has_code(&err, "broker_unreachable")))
            return;
        *at = j->next;
        b->n_again--;
        j->attempts++;
        if (result == WEIR_OK)
            b->n_flying++;
        else
            write_end(b, j, &err);
    }
}

/* A broker that is away is waited for, but not for ever. */
static void watch_broker(struct batch *b, uint64_t now, const struct weir_error *why)
{
    if (weir_connected(b->client)) {
        b->away_since_ns = 0;
        b->progress.waiting = NULL;
        return;
    }
    if (b->away_since_ns == 0)
        b->away_since_ns = now;
    b->progress.waiting = "the broker is away";
    if (now - b->away_since_ns >= options.retry_ms * 1000000ull)
        give_up(b, EXIT_UNREACHABLE, why);
}

static int until_due(const struct batch *b, uint64_t now, int timeout_ms)
{
    for (const struct job *j = b->again; j != NULL && weir_connected(b->client); j = j->next) {
        int ms = j->due_ns <= now ? 0 : (int)((j->due_ns - now) / 1000000) + 1;
        timeout_ms = timeout_ms < 0 || ms < timeout_ms ? ms : timeout_ms;
    }
    return timeout_ms;
}

static int least_timeout(int a, int b)
{
    return a < 0 ? b : b < 0 || a < b ? a : b;
}

static void run(struct batch *b, int signals)
{
    while (!b->broken) {
        uint64_t now = clock_now_ns();
        struct weir_error why = {0};
        (void)weir_process(b->client, &why);
        watch_broker(b, now, &why);
        read_lines(b);
        send_lines(b, now);
        if (batch_output_sync(&b->output, now, false, &b->err) != WEIR_OK)
            give_up(b, EXIT_FAILED, &b->err);
        if (b->broken || (b->input_ended && b->n_flying + b->n_again == 0))
            return;

        bool room = !b->input_ended && b->n_flying + b->n_again < options.window;
        struct pollfd p[3] = {
            {.fd = weir_fd(b->client), .events = POLLIN},
            {.fd = signals, .events = POLLIN},
            {.fd = room ? batch_input_fd(b->input) : -1, .events = POLLIN},
        };
        int timeout = least_timeout(weir_timeout_ms(b->client), batch_progress_tell(&b->progress, now));
        poll(p, 3, until_due(b, now, b->away_since_ns != 0 ? least_timeout(timeout, 1000) : timeout));
        if (command_signal(signals) != 0) {
            b->code = EXIT_INTERRUPTED;
            return;
        }
    }
}

/* --- beginning and end ------------------------------------------------------------------------- */

static enum exit_code finish(struct batch *b)
{
    uint64_t now = clock_now_ns();
    struct weir_error err;

    if (batch_output_sync(&b->output, now, true, &err) != WEIR_OK)
        give_up(b, EXIT_FAILED, &err);
    batch_progress_sum(&b->progress, now, b->output.errors_path);
    if (b->broken) {
        if (b->err.code[0] == '\0')
            weir_error_format(&b->err, ERR_UNREACHABLE, "", "the broker is away");
        command_error("batch", &b->err);
    }
    if (b->code == EXIT_INTERRUPTED || b->code == EXIT_UNREACHABLE)
        fprintf(stderr, "weir batch: stopped before the end%s\n",
                options.output != NULL ? "; the same command goes on from here" : "");
    if (b->broken || b->code == EXIT_INTERRUPTED)
        return b->code;
    return b->progress.n_failed > 0 ? EXIT_FAILED : EXIT_DONE;
}

static void batch_deinit(struct batch *b, bool finished)
{
    weir_close(b->client); /* nobody calls back any more */
    while (b->youngest != NULL)
        job_free(b->youngest);
    batch_input_free(b->input);
    batch_output_close(&b->output, finished);
    batch_ids_deinit(&b->ids);
}

static enum exit_code batch(const char *path)
{
    struct batch *b = calloc(1, sizeof(*b));
    struct weir_error err;

    if (b == NULL)
        return EXIT_FAILED;
    b->output.errors_fd = -1;
    int signals = command_signals();
    enum exit_code code = EXIT_FAILED;
    bool finished = false;
    if (batch_input_open(path, &b->input, &err) != WEIR_OK ||
        batch_output_open(&b->output, options.output, options.errors, &b->ids, &err) != WEIR_OK) {
        command_error("batch", &err);
        goto out;
    }
    code = command_open("batch", options.connect, &b->client);
    if (code != EXIT_DONE)
        goto out;
    b->progress = (struct batch_progress){.quiet = options.quiet,
                                          .total = batch_input_count(b->input),
                                          .started_ns = clock_now_ns(),
                                          .told_ns = clock_now_ns()};
    run(b, signals);
    code = finish(b);
    finished = !b->broken && code != EXIT_INTERRUPTED;
out:
    batch_deinit(b, finished);
    free(b);
    return code;
}

int cmd_batch(int argc, char **argv)
{
    struct flag flags[FLAGS_MAX];
    int n_args = flags_parse(flags, batch_flags(flags), "batch", argc, argv);

    if (n_args == FLAGS_HELP)
        return command_help("batch");
    if (n_args < 0)
        return EXIT_USAGE;
    if (n_args != 1)
        return command_usage("batch", "one file, please, or - for standard input");
    if (options.output != NULL && strcmp(options.output, argv[0]) == 0)
        return command_usage("batch", "input and output are the same file");
    options.window = options.window != 0 ? options.window : WINDOW;
    options.retry_ms = options.retry_ms != 0 ? options.retry_ms : RETRY_MS;
    return batch(argv[0]);
}
