/* cmd_chat.c - `weir chat`: a conversation.
 *
 * The pool keeps what it computed of a conversation as a session until the conversation ends, so a turn computes only what is new.  A pool
 * that takes no more sessions still answers.  ^C while an answer streams stops the answer: what
 * was said of it stays in the conversation.  A turn that failed is taken back, so that the next begins where the last good one ended. */
#include "commands.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "conversation.h"
#include "line_editor.h"
#include "terminal.h"

static struct request_flags options;
static const char *system_text;

struct chat {
    struct weir_client *client;
    int signals;
    struct conversation said;
    bool on_terminal;
    enum exit_code code;
    char session[32]; /* of the conversation; empty: none */
    bool told;        /* the pool knows it */
};

struct turn {
    bool ended, newline_last;
    int result;
    struct weir_answer *answer;
    struct weir_error err;
};

size_t chat_flags(struct flag *ret_flags)
{
    size_t n = request_flags_sampling(&options, ret_flags);

    ret_flags[n++] = (struct flag){
        "system", 0, FLAG_TEXT, &system_text, "TEXT", "the system prompt (default: the model's own)", 0, 0};
    ret_flags[n++] = (struct flag){"chat-template",
                                   0,
                                   FLAG_TEXT,
                                   &options.chat_template,
                                   "NAME",
                                   "chatml, llama3, gemma, ... (default: the model's)",
                                   0,
                                   0};
    return n + command_connect_flags(ret_flags + n, &options.connect);
}

/* --- its session ------------------------------------------------------------------------------- */

/* A name that no other conversation has; without one the pool's cache does what it can. */
static void begin_session(struct chat *c)
{
    uint64_t number;

    if (getrandom(&number, sizeof(number), 0) == (ssize_t)sizeof(number))
        snprintf(c->session, sizeof(c->session), "chat-%016llx", (unsigned long long)number);
}

static void end_session(struct chat *c)
{
    struct weir_error err;

    if (c->told)
        (void)weir_session_end(c->client, c->session, &err); /* if it does not arrive, time ends it */
    c->told = false;
    c->session[0] = '\0';
}

/* --- one turn ---------------------------------------------------------------------------------- */

static void on_event(const struct weir_event *e, void *arg)
{
    struct turn *t = arg;

    if (t->result == WEIR_AGAIN)
        t->result = weir_collect(&t->answer, e, &t->err);
    if (e->type == WEIR_TEXT && e->text_bytes > 0) {
        terminal_text(stdout, e->text, e->text_bytes);
        fflush(stdout);
        t->newline_last = e->text[e->text_bytes - 1] == '\n';
    }
    t->ended = t->ended || e->type == WEIR_DONE || e->type == WEIR_ERROR;
}

static void print_figures(const struct weir_answer *a)
{
    double s = (a->timings.total_ms - a->timings.first_token_ms) / 1000;

    fprintf(stderr, "\x1b[2m[%u tokens", a->usage.completion_tokens);
    if (s > 0 && a->usage.completion_tokens > 1)
        fprintf(stderr, ", %.1f a second", (a->usage.completion_tokens - 1) / s);
    fprintf(stderr, ", first after %.0f ms, %u of %u prompt tokens from the cache%s]\x1b[0m\n",
            a->timings.first_token_ms, a->usage.cached_tokens, a->usage.prompt_tokens,
            a->choices[0].finish == WEIR_FINISH_LENGTH ? "; cut at the limit" : "");
}

/* Wait for the answer; ^C cancels it, a second one (or SIGTERM) ends the program.  Gives true if ^C stopped it. */
static bool wait_for_answer(struct chat *c, struct turn *t, uint64_t request)
{
    int signal_number = command_run(c->client, c->signals, &t->ended);

    if (signal_number == 0)
        return false;
    weir_cancel(c->client, request);
    if (signal_number == SIGTERM || command_run(c->client, c->signals, &t->ended) != 0)
        c->code = EXIT_INTERRUPTED;
    return true;
}

static void finish_turn(struct chat *c, struct turn *t, bool stopped, size_t before)
{
    const struct weir_choice *choice =
        t->answer != NULL && t->answer->n_choices > 0 ? &t->answer->choices[0] : NULL;

    if (!t->newline_last)
        putchar('\n');
    fflush(stdout);
    if (stopped || t->result == WEIR_OK) {
        const char *text = choice != NULL && choice->text != NULL ? choice->text : "";
        if (!conversation_say(&c->said, "assistant", text, choice != NULL ? choice->text_bytes : 0))
            fprintf(stderr, "weir chat: out of memory\n");
        if (c->on_terminal && stopped)
            fprintf(stderr, "[stopped]\n");
        else if (c->on_terminal && choice != NULL)
            print_figures(t->answer);
        return;
    }
    enum exit_code code = command_error("chat", &t->err);
    if (!c->on_terminal)
        c->code = code;
    else if (strcmp(t->err.code, "context_overflow") == 0)
        fprintf(stderr, "The conversation has become too long for the model; /reset starts a new one.\n");
    conversation_forget(&c->said, before);
}

/* Ask and wait.  Gives true if ^C stopped the answer. */
static bool ask(struct chat *c, struct weir_request *r, struct turn *t)
{
    uint64_t request = 0;

    r->session = c->session[0] != '\0' ? c->session : NULL;
    t->result = weir_submit(c->client, r, on_event, t, &request, &t->err);
    if (t->result != WEIR_OK)
        return false;
    c->told = r->session != NULL;
    t->result = WEIR_AGAIN;
    return wait_for_answer(c, t, request);
}

static void turn(struct chat *c, const char *text, size_t bytes)
{
    struct turn t = {.result = WEIR_AGAIN, .newline_last = true};
    struct weir_request r = {0};
    size_t before = c->said.n;

    if (request_flags_apply(&options, "chat", &r) != EXIT_DONE || !conversation_say(&c->said, "user", text, bytes))
        return;
    r.messages = c->said.messages;
    r.n_messages = c->said.n;
    if (command_reconnect(c->client, c->signals) != 0) {
        conversation_forget(&c->said, before);
        return;
    }
    bool stopped = ask(c, &r, &t);
    if (t.result == WEIR_FAILED && strcmp(t.err.param, "session") == 0) { /* too many of them: it goes without */
        c->session[0] = '\0';
        c->told = false;
        weir_answer_free(t.answer);
        t = (struct turn){.result = WEIR_AGAIN, .newline_last = true};
        stopped = ask(c, &r, &t);
    }
    if (c->code != EXIT_INTERRUPTED)
        finish_turn(c, &t, stopped, before);
    weir_answer_free(t.answer);
}

/* --- the conversation -------------------------------------------------------------------------- */

/* Take a line.  false: end. */
static bool take_line(struct chat *c, const char *line, size_t bytes)
{
    char why[128];

    switch (conversation_line(&c->said, line, bytes, why)) {
    case INPUT_QUIT:
        return false;
    case INPUT_QUESTION:
        turn(c, c->said.input, c->said.input_bytes);
        break;
    case INPUT_UNKNOWN:
        fprintf(stderr, "weir chat: %s\n", why);
        fputs(conversation_help, stderr);
        break;
    case INPUT_HELP:
        fputs(conversation_help, stderr);
        break;
    case INPUT_REFUSED:
        fprintf(stderr, "weir chat: %s\n", why);
        break;
    case INPUT_DONE: /* a conversation has begun */
        end_session(c);
        begin_session(c);
        break;
    case INPUT_NOTHING:
    case INPUT_GOES_ON:
        break;
    }
    return true;
}

static void converse(struct chat *c)
{
    struct line_editor *editor = line_editor_new(STDIN_FILENO, c->signals);
    bool on = editor != NULL;

    begin_session(c);
    c->on_terminal = on && line_editor_on_terminal(editor);
    if (c->on_terminal)
        printf("weir chat: /help lists commands, ^D ends.\n");
    while (on && c->code != EXIT_INTERRUPTED) {
        const char *line = NULL;
        size_t bytes = 0;
        enum editor_end end = line_editor_read(editor, c->said.goes_on ? ". " : "> ", &line, &bytes);
        if (end == EDITOR_SIGNAL) {
            (void)command_signal(c->signals);
            c->code = EXIT_INTERRUPTED;
        }
        if (end == EDITOR_INTERRUPTED)
            c->said.goes_on = false;
        if (end == EDITOR_LINE)
            on = take_line(c, line, bytes);
        on = on && (end == EDITOR_LINE || (end == EDITOR_INTERRUPTED && c->on_terminal));
    }
    line_editor_free(editor);
}

int cmd_chat(int argc, char **argv)
{
    struct flag flags[FLAGS_MAX];
    struct weir_request checked = {0};
    struct chat c = {0};
    int n_args = flags_parse(flags, chat_flags(flags), "chat", argc, argv);

    if (n_args == FLAGS_HELP)
        return command_help("chat");
    if (n_args < 0 || request_flags_apply(&options, "chat", &checked) != EXIT_DONE)
        return EXIT_USAGE;
    if (n_args > 1)
        return command_usage("chat", "one question, please: put it in quotes (there are %d words)", n_args);
    c.signals = command_signals();
    c.code = command_open("chat", options.connect, &c.client);
    if (c.code != EXIT_DONE)
        return c.code;
    if (!conversation_begin(&c.said, system_text))
        fprintf(stderr, "weir chat: out of memory\n");
    else if (n_args == 1)
        turn(&c, argv[0], strlen(argv[0]));
    else
        converse(&c);
    end_session(&c);
    conversation_deinit(&c.said);
    weir_close(c.client);
    return command_flush("chat") ? c.code : EXIT_FAILED;
}
