/* cmd_verify.c - `weir verify`: some answers of a finished batch, computed again and compared bit by bit.
 *
 * All reruns are under way together; what is drawn, asked and compared is in verify_case.h. */
#include "commands.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "client.h"
#include "terminal.h"
#include "verify_sample.h"

static struct {
    const char *connect;
    uint32_t sample;
    struct flag_u64 draw;
    bool json;
} options;

struct rerun {
    struct verify_case *c;
    struct weir_answer *answer;
    struct weir_error err;
    int result;
    bool ended;
};

struct verify {
    struct verify_sample sample;
    struct rerun reruns[VERIFY_SAMPLE_MAX];
    struct verify_report report;
};

size_t verify_flags(struct flag *ret_flags)
{
    const struct flag own[] = {
        {"sample", 'n', FLAG_U32, &options.sample, "N", "so many answers, drawn by chance (default 16)", 1, VERIFY_SAMPLE_MAX},
        {"draw", 0, FLAG_U64, &options.draw, "SEED", "the same draw again (default: another each time; it is told)", 0, 0},
        {"json", 0, FLAG_SWITCH, &options.json, NULL, "print JSON", 0, 0},
    };
    size_t n = sizeof(own) / sizeof(own[0]);

    memcpy(ret_flags, own, sizeof(own));
    return n + command_connect_flags(ret_flags + n, &options.connect);
}

static void tell(struct verify *v, const struct verify_case *c, enum verify_result result, const char *why)
{
    verify_report_add(&v->report, c->custom_id, result, why);
    if (options.json || result == VERIFY_EQUAL)
        return;
    terminal_text(stdout, c->custom_id, strlen(c->custom_id));
    printf(": %s: ", verify_result_name(result));
    terminal_text(stdout, why, strlen(why));
    putchar('\n');
}

static void compare(struct verify *v, const struct rerun *r)
{
    char why[300];

    if (r->result != WEIR_OK) {
        snprintf(why, sizeof(why), "%s: %.200s", r->err.code, r->err.message);
        tell(v, r->c, VERIFY_NOT_RERUN, why);
        return;
    }
    char *text = weir_line_output(&r->c->line, r->answer, "again", 0, NULL);
    json_t *again = text != NULL ? json_loads(text, JSON_ALLOW_NUL, NULL) : NULL;
    enum verify_result result = verify_case_compare(r->c, again, why, sizeof(why));
    tell(v, r->c, result, why);
    json_decref(again);
    free(text);
}

/* --- running again ----------------------------------------------------------------------------- */

static void on_event(const struct weir_event *e, void *arg)
{
    struct rerun *r = arg;

    if (r->result == WEIR_AGAIN)
        r->result = weir_collect(&r->answer, e, &r->err);
    r->ended = r->result != WEIR_AGAIN;
}

static void begin(struct weir_client *client, struct rerun *r)
{
    struct weir_request q;

    r->result = verify_case_request(r->c, &q, &r->err);
    if (r->result == WEIR_OK && weir_submit(client, &q, on_event, r, NULL, &r->err) == WEIR_OK)
        r->result = WEIR_AGAIN;
    else
        r->result = WEIR_FAILED;
    r->ended = r->result != WEIR_AGAIN;
}

/* One after the other's submission, all under way together.  Gives the signal that ended it, or 0. */
static int rerun_all(struct verify *v, struct weir_client *client, int signals)
{
    int signal_number = 0;

    for (size_t i = 0; i < v->sample.n; i++) {
        v->reruns[i] = (struct rerun){.c = &v->sample.cases[i]};
        begin(client, &v->reruns[i]);
    }
    for (size_t i = 0; i < v->sample.n && signal_number == 0; i++) {
        signal_number = command_run(client, signals, &v->reruns[i].ended);
        if (signal_number == 0)
            compare(v, &v->reruns[i]);
    }
    return signal_number;
}

/* --- the command ------------------------------------------------------------------------------- */

static enum exit_code sum(struct verify *v, const char *class)
{
    const unsigned *n = v->report.n;
    char text[300];

    if (options.json) {
        if (command_print_json(verify_report_json(&v->report, class)) != EXIT_DONE)
            return EXIT_FAILED;
    } else {
        verify_report_text(&v->report, text, sizeof(text));
        fputs(text, stdout);
        if (!command_flush("verify"))
            return EXIT_FAILED;
    }
    if (n[VERIFY_DIFFERS] > 0 || n[VERIFY_NOT_RERUN] > 0)
        return EXIT_FAILED;
    return n[VERIFY_OTHER_CLASS] > 0 ? EXIT_REFUSED : EXIT_DONE;
}

/* No worker of the class that made the answers: say so before anything is computed. */
static enum exit_code check_class(struct weir_client *client, const char *class)
{
    struct weir_error err;
    char *text = NULL;

    if (weir_query_wait(client, WEIR_QUERY_STATUS, &text, &err) != WEIR_OK)
        return command_error("verify", &err);
    json_t *status = json_loads(text, 0, NULL);
    int result = verify_class_check(status, class, &err);
    json_decref(status);
    free(text);
    return result == WEIR_OK ? EXIT_DONE : command_error("verify", &err);
}

static enum exit_code verify(struct verify *v, const char *input, const char *output)
{
    struct weir_client *client = NULL;
    struct weir_error err;
    int signals = command_signals();

    if (verify_sample_draw(&v->sample, options.sample, v->report.draw, input, output, &err) != WEIR_OK)
        return command_error("verify", &err);
    if (v->sample.n == 0) {
        fprintf(stderr, "weir verify: %s has no answer\n", output);
        return EXIT_FAILED;
    }
    const char *class = verify_case_class(&v->sample.cases[0]);
    v->report.n_answers = v->sample.draw.n_seen;
    enum exit_code code = command_open("verify", options.connect, &client);
    if (code == EXIT_DONE)
        code = check_class(client, class);
    if (code == EXIT_DONE)
        code = rerun_all(v, client, signals) != 0 ? EXIT_INTERRUPTED : sum(v, class);
    weir_close(client);
    for (size_t i = 0; i < v->sample.n; i++)
        weir_answer_free(v->reruns[i].answer);
    return code;
}

int cmd_verify(int argc, char **argv)
{
    static struct verify v;
    static char input[4096], output[4096];
    struct flag flags[FLAGS_MAX];
    struct stat s;
    int n = flags_parse(flags, verify_flags(flags), "verify", argc, argv);

    if (n == FLAGS_HELP)
        return command_help("verify");
    if (n < 0)
        return EXIT_USAGE;
    if (n == 1 && stat(argv[0], &s) == 0 && S_ISDIR(s.st_mode)) {
        snprintf(input, sizeof(input), "%s/input.jsonl", argv[0]);
        snprintf(output, sizeof(output), "%s/output.jsonl", argv[0]);
    } else if (n == 2) {
        snprintf(input, sizeof(input), "%s", argv[0]);
        snprintf(output, sizeof(output), "%s", argv[1]);
    } else {
        return command_usage("verify", "which batch?  INPUT and OUTPUT, or the folder of a job");
    }
    if (options.sample == 0)
        options.sample = VERIFY_SAMPLE;
    v.report.draw = options.draw.set ? options.draw.value : verify_draw_seed();
    enum exit_code code = verify(&v, input, output);
    verify_sample_deinit(&v.sample);
    verify_report_deinit(&v.report);
    return code;
}
