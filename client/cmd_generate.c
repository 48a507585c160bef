/* cmd_generate.c - `weir generate`: one prompt, completed as it is given.
 *
 * One answer streams as it grows.  Several (--n) would be a muddle if they did, so they are printed one after the other at the end. */
#include "commands.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "answer_json.h"
#include "clock.h"
#include "limits.h"
#include "terminal.h"

struct generation {
    bool streaming;
    bool ended;
    bool accepted;     /* by the broker that has the request now */
    bool newline_last; /* the text ended in a newline */
    int result;        /* of weir_collect() */
    struct weir_answer *answer;
    struct weir_error err;
};

enum { AWAY_MS = 100 };

static struct request_flags options;
static const char *idempotency_key, *session;
static uint32_t retry_ms;

size_t generate_flags(struct flag *ret_flags)
{
    size_t n = request_flags_sampling(&options, ret_flags);
    const struct flag own[] = {
        {"n", 'n', FLAG_U32, &options.n, "N", "this many completions", 1, CHOICES_MAX},
        {"raw", 0, FLAG_SWITCH, &options.raw, NULL, "read special tokens in the prompt as such", 0, 0},
        {"json", 0, FLAG_SWITCH, &options.json, NULL, "print one JSON object at the end", 0, 0},
        {"logprobs", 0, FLAG_SWITCH, &options.logprobs, NULL,
         "with --json: the log-probability of each token", 0, 0},
        {"idempotency-key", 0, FLAG_TEXT, &idempotency_key, "KEY",
         "the same command with the same key gets the same answer, not another one", 0, 0},
        {"session", 0, FLAG_TEXT, &session, "NAME",
         "keep what is computed for the next request with this NAME, for ten minutes", 0, 0},
        {"retry", 0, FLAG_MS, &retry_ms, "TIME",
         "if the broker goes away: wait so long for its return, and go on where the answer was", 0, 0},
        {"top-logprobs", 0, FLAG_U32, &options.top_logprobs, "K",
         "with --json: also of the K likeliest at its place", 0, LOGPROBS_MAX},
    };

    memcpy(ret_flags + n, own, sizeof(own));
    n += sizeof(own) / sizeof(own[0]);
    return n + command_connect_flags(ret_flags + n, &options.connect);
}

static void on_event(const struct weir_event *e, void *arg)
{
    struct generation *g = arg;

    if (g->result == WEIR_AGAIN)
        g->result = weir_collect(&g->answer, e, &g->err);
    if (e->type == WEIR_TEXT && g->streaming && e->text_bytes > 0) {
        terminal_text(stdout, e->text, e->text_bytes);
        fflush(stdout);
        g->newline_last = e->text[e->text_bytes - 1] == '\n';
    }
    g->accepted = g->accepted || e->type == WEIR_ACCEPTED;
    g->ended = g->ended || e->type == WEIR_DONE || e->type == WEIR_ERROR;
}

static void end_line(const struct generation *g)
{
    if (g->streaming && terminal_is(stdout) && !g->newline_last)
        putchar('\n');
}

static void print_choices(const struct weir_answer *a)
{
    for (size_t i = 0; i < a->n_choices; i++) {
        const struct weir_choice *c = &a->choices[i];
        printf("--- %zu of %zu (%s)\n", i + 1, a->n_choices, weir_finish_name(c->finish));
        terminal_text(stdout, c->text, c->text_bytes);
        if (c->text_bytes == 0 || c->text[c->text_bytes - 1] != '\n')
            putchar('\n');
    }
}

static enum exit_code report(struct generation *g)
{
    if (g->result != WEIR_OK) {
        end_line(g);
        if (options.json)
            command_print_json(json_pack("{s:o}", "error", command_error_json(&g->err)));
        return command_error("generate", &g->err);
    }
    if (options.json)
        return command_print_json(answer_json(g->answer));
    if (!g->streaming)
        print_choices(g->answer);
    end_line(g);
    if (g->streaming && terminal_is(stdout) && terminal_is(stderr) &&
        g->answer->choices[0].finish == WEIR_FINISH_LENGTH)
        fprintf(stderr, "[%u tokens: the limit]\n", g->answer->usage.completion_tokens);
    return command_flush("generate") ? EXIT_DONE : EXIT_FAILED;
}

/* Is this an end of the broker's, not of the request? */
static bool broker_left(const struct generation *g)
{
    return g->result == WEIR_FAILED &&
           (strcmp(g->err.code, "broker_unreachable") == 0 || strcmp(g->err.code, "shutting_down") == 0);
}

/* Submit and run to the end; over the death of a broker if there is time left for that.  What has come stays: the next request asks for the
 * rest only, with the seed of the first.  Gives a signal that ended it, or 0. */
static int run(struct weir_client *c, int signals, const struct weir_request *first, struct generation *g)
{
    struct weir_resume resume[CHOICES_MAX];
    struct weir_request r = *first;
    uint64_t until_ns = 0;

    for (;;) {
        g->ended = g->accepted = false;
        g->result = WEIR_AGAIN;
        if (weir_submit(c, &r, on_event, g, NULL, &g->err) != WEIR_OK)
            g->result = WEIR_FAILED;
        int signal_number = g->result == WEIR_AGAIN ? command_run(c, signals, &g->ended) : 0;
        uint64_t now_ns = clock_now_ns();

        if (signal_number != 0 || !broker_left(g))
            return signal_number;
        if (until_ns == 0 || g->accepted)
            until_ns = now_ns + retry_ms * 1000000ull;
        if (now_ns >= until_ns)
            return 0;
        nanosleep(&(struct timespec){.tv_nsec = AWAY_MS * 1000000L}, NULL); /* one that is stopping may still be there */
        signal_number = command_reconnect_until(c, signals, until_ns);
        if (signal_number != 0)
            return signal_number;
        r.n_resume = weir_resume_of(g->answer, resume);
        r.resume = resume;
        if (r.n_resume > 0) {
            r.seed = &g->answer->seed;
            r.idempotency_key = NULL; /* its table died with the broker */
        }
    }
}

static enum exit_code generate(const struct weir_request *r)
{
    struct generation g = {
        .streaming = !options.json && r->n <= 1, .result = WEIR_AGAIN, .newline_last = true};
    struct weir_client *c = NULL;
    int signals = command_signals();
    enum exit_code code = command_open("generate", options.connect, &c);

    if (code != EXIT_DONE)
        return code;
    if (run(c, signals, r, &g) != 0) {
        end_line(&g);
        code = EXIT_INTERRUPTED;
    } else {
        code = report(&g);
    }
    weir_close(c);
    weir_answer_free(g.answer);
    return code;
}

int cmd_generate(int argc, char **argv)
{
    struct flag flags[FLAGS_MAX];
    struct weir_request r = {0};
    char *prompt = NULL;
    int n_args = flags_parse(flags, generate_flags(flags), "generate", argc, argv);

    if (n_args == FLAGS_HELP)
        return command_help("generate");
    if (n_args < 0 || request_flags_apply(&options, "generate", &r) != EXIT_DONE)
        return EXIT_USAGE;
    if (n_args > 1)
        return command_usage("generate", "one prompt, please: put it in quotes (there are %d words)", n_args);
    if (n_args == 0 && isatty(STDIN_FILENO))
        return command_usage("generate", "what shall be completed?  Give a prompt, or - for standard input");
    if (r.logprobs && !options.json)
        return command_usage("generate", "--logprobs needs --json");
    enum exit_code code = command_text("generate", n_args == 1 ? argv[0] : "-", &prompt, &r.prompt_bytes);
    if (code != EXIT_DONE)
        return code;
    r.prompt = prompt;
    r.idempotency_key = idempotency_key;
    r.session = session;
    code = generate(&r);
    free(prompt);
    return code;
}
