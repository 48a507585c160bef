/* cmd_verify.c - `weir verify`: some answers of a finished batch, computed again and compared bit by bit.
 *
 * A record holds what it takes: seed, model, system_fingerprint, and a hash of the token ids of each choice.  The request is that of the
 * input line; a limit of tokens that came from the job is known from answers that ended by it.  What is compared is the `choices` of both
 * records, as JSON with nine digits a number, which tell any two 32-bit floats apart: text, finish reasons, token hashes, log-probabilities.
 *
 * Equal bits are promised within one class (system_fingerprint).  An answer that another class computed is neither equal nor
 * different here: it is not compared, and the command says so. */
#include "commands.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "client.h"
#include "json_field.h"
#include "terminal.h"
#include "verify_sample.h"

static struct {
    const char *connect;
    uint32_t sample;
    struct flag_u64 draw;
    bool json;
} options;

enum { SAMPLE = 16 };

struct counts {
    unsigned equal, differ, other_class, not_rerun;
};

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
    struct counts n;
    json_t *report; /* of --json: what is not equal */
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

/* --- comparing --------------------------------------------------------------------------------- */

static void tell(struct verify *v, const struct verify_case *c, const char *what, const char *why)
{
    if (options.json) {
        json_array_append_new(v->report, json_pack("{s:s, s:s, s:s}", "custom_id", c->custom_id, "result", what, "why", why));
        return;
    }
    terminal_text(stdout, c->custom_id, strlen(c->custom_id));
    printf(": %s: ", what);
    terminal_text(stdout, why, strlen(why));
    putchar('\n');
}

static char *dump(const json_t *v)
{
    return json_dumps(v, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(9));
}

static size_t equal_bytes(const char *a, const char *b)
{
    size_t n = 0;

    while (a[n] != '\0' && a[n] == b[n])
        n++;
    return n;
}

/* Where two choices part, in words. */
static void explain(const json_t *was, const json_t *is, size_t index, char *ret_why, size_t room)
{
    const char *was_text = json_text(was, "text"), *is_text = json_text(is, "text");

    if (json_object_get(was, "message") != NULL) {
        was_text = json_text(json_object_get(was, "message"), "content");
        is_text = json_text(json_object_get(is, "message"), "content");
    }
    if (strcmp(was_text, is_text) != 0)
        snprintf(ret_why, room, "choice %zu: the texts part after %zu bytes", index, equal_bytes(was_text, is_text));
    else if (!json_equal(json_object_get(was, "token_hash"), json_object_get(is, "token_hash")))
        snprintf(ret_why, room, "choice %zu: the same text of other tokens", index);
    else if (!json_equal(json_object_get(was, "finish_reason"), json_object_get(is, "finish_reason")))
        snprintf(ret_why, room, "choice %zu: finish_reason is %s, was %s", index, json_text(is, "finish_reason"),
                 json_text(was, "finish_reason"));
    else
        snprintf(ret_why, room, "choice %zu: log-probabilities differ", index);
}

static bool same(const json_t *a, const json_t *b)
{
    char *x = dump(a), *y = dump(b);
    bool equal = x != NULL && y != NULL && strcmp(x, y) == 0;

    free(x);
    free(y);
    return equal;
}

static void compare_choices(struct verify *v, const struct verify_case *c, const json_t *is)
{
    const json_t *was = json_object_get(c->body, "choices");
    char why[200] = "the number of choices differs";
    size_t n = json_array_size(was), i = 0;

    while (i < n && json_array_size(is) == n && same(json_array_get(was, i), json_array_get(is, i)))
        i++;
    if (i < n && json_array_size(is) == n)
        explain(json_array_get(was, i), json_array_get(is, i), i, why, sizeof(why));
    if (n > 0 && i == n) {
        v->n.equal++;
        return;
    }
    v->n.differ++;
    tell(v, c, "differs", why);
}

static void compare(struct verify *v, const struct rerun *r)
{
    const char *was = json_text(r->c->body, "system_fingerprint");
    char why[300];

    if (r->result != WEIR_OK) {
        v->n.not_rerun++;
        snprintf(why, sizeof(why), "%s: %.200s", r->err.code, r->err.message);
        tell(v, r->c, "not rerun", why);
        return;
    }
    if (strcmp(was, r->answer->system_fingerprint) != 0) {
        v->n.other_class++;
        snprintf(why, sizeof(why), "made by %.64s, now computed by %.64s", was, r->answer->system_fingerprint);
        tell(v, r->c, "another class", why);
        return;
    }
    char *text = weir_line_output(&r->c->line, r->answer, "again", 0, NULL);
    json_t *again = text != NULL ? json_loads(text, JSON_ALLOW_NUL, NULL) : NULL;
    compare_choices(v, r->c, json_object_get(json_object_get(json_object_get(again, "response"), "body"), "choices"));
    json_decref(again);
    free(text);
}

/* --- running again ----------------------------------------------------------------------------- */

/* The classes of the workers that are there, as one text; *ret_has: is this one among them? */
static bool classes(struct weir_client *c, const char *class, char *ret_text, size_t room, bool *ret_has, struct weir_error *err)
{
    char *text = NULL;
    json_t *w;
    size_t i, n = 0;

    if (weir_query_wait(c, WEIR_QUERY_STATUS, &text, err) != WEIR_OK)
        return false;
    json_t *status = json_loads(text, 0, NULL);
    free(text);
    *ret_has = false;
    ret_text[0] = '\0';
    json_array_foreach(json_object_get(status, "workers"), i, w)
    {
        const char *id = json_text(w, "system_fingerprint");

        *ret_has = *ret_has || strcmp(id, class) == 0;
        if (id[0] != '\0' && strstr(ret_text, id) == NULL && n < room)
            n += (size_t)snprintf(ret_text + n, room - n, "%s%s", n > 0 ? ", " : "", id);
    }
    json_decref(status);
    return true;
}

/* A job may have limited the tokens of lines that did not: then an answer that ended by it has as many. */
static uint32_t limit_of(const struct verify_case *c)
{
    const json_t *choices = json_object_get(c->body, "choices");
    json_int_t all = json_integer_value(json_object_get(json_object_get(c->body, "usage"), "completion_tokens")), n = 0;
    bool cut = false;

    for (size_t i = 0; i < json_array_size(choices); i++) {
        const json_t *choice = json_array_get(choices, i);
        json_int_t tokens = json_integer_value(json_object_get(choice, "n_tokens"));

        cut = cut || strcmp(json_text(choice, "finish_reason"), "length") == 0;
        n = tokens > n ? tokens : n;
    }
    return !cut ? 0 : n > 0 ? (uint32_t)n : (uint32_t)all;
}

static void on_event(const struct weir_event *e, void *arg)
{
    struct rerun *r = arg;

    if (r->result == WEIR_AGAIN)
        r->result = weir_collect(&r->answer, e, &r->err);
    r->ended = r->result != WEIR_AGAIN;
}

static void fail(struct rerun *r, const char *code, const char *message)
{
    r->result = WEIR_FAILED;
    r->ended = true;
    snprintf(r->err.code, sizeof(r->err.code), "%s", code);
    snprintf(r->err.message, sizeof(r->err.message), "%s", message);
}

static void begin(struct weir_client *client, struct rerun *r)
{
    struct weir_request q = r->c->line.request;

    r->result = WEIR_AGAIN;
    if (r->c->line.custom_id == NULL) {
        fail(r, "not_found", "the input has no such line");
        return;
    }
    if (!r->c->has_seed) {
        fail(r, "not_found", "the answer has no seed: it was made by an earlier version");
        return;
    }
    q.seed = &r->c->seed;
    q.model = json_text(r->c->body, "model");
    q.deadline_ms = 0;
    if (q.max_tokens == 0)
        q.max_tokens = limit_of(r->c);
    if (weir_submit(client, &q, on_event, r, NULL, &r->err) != WEIR_OK) {
        r->result = WEIR_FAILED;
        r->ended = true;
    }
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
    const struct counts *n = &v->n;

    if (options.json) {
        json_t *all = json_pack("{s:I, s:I, s:I, s:i, s:i, s:i, s:i, s:s, s:O}", "answers", (json_int_t)v->sample.n_answers, "sample",
                                (json_int_t)v->sample.n, "draw", (json_int_t)options.draw.value, "equal", (int)n->equal, "differ",
                                (int)n->differ, "another_class", (int)n->other_class, "not_rerun", (int)n->not_rerun,
                                "system_fingerprint", class, "lines", v->report);
        if (command_print_json(all) != EXIT_DONE)
            return EXIT_FAILED;
    } else {
        printf("%zu of %" PRIu64 " answers computed again (--draw %" PRIu64 "): %u equal, %u differ, %u of another class, %u not rerun\n",
               v->sample.n, v->sample.n_answers, options.draw.value, n->equal, n->differ, n->other_class, n->not_rerun);
        if (!command_flush("verify"))
            return EXIT_FAILED;
    }
    if (n->differ > 0 || n->not_rerun > 0)
        return EXIT_FAILED;
    return n->other_class > 0 ? EXIT_REFUSED : EXIT_DONE;
}

/* No worker of the class that made the answers: say so before anything is computed. */
static enum exit_code check_class(struct weir_client *client, const char *class)
{
    char there[400];
    struct weir_error err;
    bool has;

    if (!classes(client, class, there, sizeof(there), &has, &err))
        return command_error("verify", &err);
    if (has)
        return EXIT_DONE;
    weir_error_format(&err, ERR_NO_WORKER, "system_fingerprint",
                      "the answers were made by class %.64s; no worker of it is left here (there is %s): the same bits cannot be expected",
                      class, there[0] != '\0' ? there : "none that has started");
    return command_error("verify", &err);
}

static enum exit_code verify(struct verify *v, const char *input, const char *output)
{
    struct weir_client *client = NULL;
    struct weir_error err;
    int signals = command_signals();

    if (verify_sample_draw(&v->sample, options.sample, options.draw.value, input, output, &err) != WEIR_OK)
        return command_error("verify", &err);
    if (v->sample.n == 0) {
        fprintf(stderr, "weir verify: %s has no answer\n", output);
        return EXIT_FAILED;
    }
    const char *class = json_text(v->sample.cases[0].body, "system_fingerprint");
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
        options.sample = SAMPLE;
    if (!options.draw.set && getrandom(&options.draw.value, sizeof(options.draw.value), 0) == sizeof(options.draw.value))
        options.draw.value >>= 11; /* 53 bits: JSON keeps it */
    v.report = json_array();
    enum exit_code code = verify(&v, input, output);
    verify_sample_deinit(&v.sample);
    json_decref(v.report);
    return code;
}
