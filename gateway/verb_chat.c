/* verb_chat.c - `ssh -t box chat`: a conversation, kept in this process and sent whole each time.
 *
 *   reading ──a question──► answering ──its end──► reading
 *              ▲                │ ^C: what was said so far stays, the rest is not made
 *              └────────────────┘
 *
 * What comes while an answer is made waits, up to AHEAD_BYTES_MAX, and is looked at afterwards; only ^C acts at once.  The keys are those of
 * `weir chat` (line_edit.h).  Without a terminal every line is a question, and a question that fails does not end the others. */
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "conversation.h"
#include "limits.h"
#include "line_edit.h"
#include "verb_job.h"

enum { AHEAD_BYTES_MAX = PROMPT_BYTES_MAX + (64 << 10), ESCAPE_NS = 50000000, CTRL_C = 3 };

struct chat {
    struct conversation said;
    struct line_edit *edit;         /* on a terminal */
    char *ahead;                    /* what came and was not looked at: [at, n) */
    size_t at, n, capacity;
    bool single;                    /* the question stood on the command line: answer it and end */
    bool without_session;           /* the pool takes no more of them */
    bool answering, sent;           /* sent: (b) has not yet said that the broker has it */
    bool working;                   /* inside work() */
    size_t before;                  /* messages before the question */
    char *answer;
    size_t answer_bytes;
    enum exit_code code;            /* of the last question that failed */
    uint64_t typed_ns;
};

static void work(struct talk *t);

static bool out_of_memory(struct talk *t)
{
    struct error err;

    error_set(&err, ERR_INTERNAL, NULL, "out of memory");
    talk_fail(t, &err);
    return false;
}

static void prompt(struct talk *t)
{
    struct chat *c = t->own;

    if (t->pty && !c->single)
        line_edit_begin(c->edit, c->said.goes_on ? ". " : "> ");
}

/* --- an answer ----------------------------------------------------------------------------------- */

/* Send what has been said.  The pool keeps what it computed of a conversation as a session, so a turn computes only what is new. */
static void send_said(struct talk *t)
{
    struct chat *c = t->own;
    bool first = c->before == (t->call.has[OPT_SYSTEM] ? 1 : 0);

    c->answering = c->sent = true;
    (void)request_send(t, c->single || c->without_session ? DOOR_SESSION_NONE : first ? DOOR_SESSION_NEW : DOOR_SESSION_GO_ON, c->said.messages,
                       c->said.n);
}

static void ask(struct talk *t, const char *text, size_t bytes)
{
    struct chat *c = t->own;

    c->before = c->said.n;
    if (!conversation_say(&c->said, "user", text, bytes)) {
        out_of_memory(t);
        return;
    }
    free(c->answer);
    c->answer = NULL;
    c->answer_bytes = 0;
    send_said(t);
}

static void print_figures(struct talk *t, const json_t *end)
{
    const json_t *usage = json_object_get(end, "usage"), *timings = json_object_get(end, "timings");
    double tokens = json_number_value(json_object_get(usage, "completion_tokens"));
    double first_ms = json_number_value(json_object_get(timings, "first_token_ms"));
    double s = (json_number_value(json_object_get(timings, "total_ms")) - first_ms) / 1000;
    const char *reason = json_string_value(json_object_get(end, "finish_reason"));

    talk_print(t, "\x1b[2m[%.0f tokens", tokens);
    if (s > 0 && tokens > 1)
        talk_print(t, ", %.1f a second", (tokens - 1) / s);
    talk_print(t, ", first after %.0f ms, %.0f of %.0f prompt tokens from the cache%s]\x1b[0m\n", first_ms,
               json_number_value(json_object_get(usage, "cached_tokens")),
               json_number_value(json_object_get(usage, "prompt_tokens")),
               reason != NULL && strcmp(reason, "length") == 0 ? "; cut at the limit" : "");
}

/* The answer is over, well or by ^C: it becomes part of the conversation. */
static void finish_answer(struct talk *t, json_t *end)
{
    struct chat *c = t->own;

    c->answering = false;
    if (!conversation_say(&c->said, "assistant", c->answer != NULL ? c->answer : "", c->answer_bytes)) {
        out_of_memory(t);
        return;
    }
    if (t->call.has[OPT_JSON]) {
        json_t *line = end != NULL ? json_incref(end) : json_pack("{ss}", "finish_reason", "cancelled");
        json_object_set_new(line, "text", json_stringn(c->answer != NULL ? c->answer : "", c->answer_bytes));
        talk_print_json(t, line);
        json_decref(line);
    } else {
        if (c->answer_bytes == 0 || c->answer[c->answer_bytes - 1] != '\n')
            talk_print(t, "\n");
        if (t->pty && end == NULL)
            talk_print(t, "[stopped]\n");
        else if (t->pty && !c->single)
            print_figures(t, end);
    }
    if (c->single)
        talk_finish(t, end != NULL ? EXIT_OK : EXIT_INTERRUPTED);
    else
        prompt(t);
}

static void stop_answer(struct talk *t)
{
    struct chat *c = t->own;

    talk_stop(t);
    c->n = c->at = 0; /* what was typed meanwhile was meant for another moment */
    finish_answer(t, NULL);
}

static void keep_text(struct talk *t, struct span piece)
{
    struct chat *c = t->own;
    char *text = realloc(c->answer, c->answer_bytes + piece.n + 1);

    if (text == NULL) {
        out_of_memory(t);
        return;
    }
    if (piece.n > 0)
        memcpy(text + c->answer_bytes, piece.at, piece.n);
    c->answer = text;
    c->answer_bytes += piece.n;
    if (!t->call.has[OPT_JSON])
        talk_write_text(t, piece);
}

static void chat_reply(struct talk *t, struct door_reader *r, int fd)
{
    struct chat *c = t->own;

    if (c->sent) {
        c->sent = false;
        talk_ask(t, DOOR_MORE, NULL, -1);
        return;
    }
    bool ended = door_get_u32(r) != 0;
    keep_text(t, door_get_str(r));
    if (!ended) {
        t->drained_due = true; /* the next piece when this one has left */
        return;
    }
    json_t *end = job_reply_json(t, r, fd);
    if (end != NULL) {
        finish_answer(t, end);
        work(t);
    }
    json_decref(end);
}

static void chat_drained(struct talk *t)
{
    const struct chat *c = t->own;

    if (c->answering && !t->asking)
        talk_ask(t, DOOR_MORE, NULL, -1);
}

/* The question is taken back, so that the next begins where the last good one ended. */
static void chat_failed(struct talk *t, const struct error *err)
{
    struct chat *c = t->own;

    if (c->single) {
        talk_fail(t, err);
        return;
    }
    if (strcmp(err->param, "session") == 0 && !c->without_session) { /* too many of them: it goes without */
        c->without_session = true;
        send_said(t);
        return;
    }
    if (c->answer_bytes > 0 && !t->call.has[OPT_JSON])
        talk_print(t, "\n");
    if (t->call.has[OPT_JSON]) {
        json_t *line = json_pack("{s{ssssss}}", "error", "code", error_code_name(err->code), "message", err->message,
                                 "param", err->param);
        char *text = json_dumps(line, JSON_COMPACT);
        talk_print(t, "%s\n", text != NULL ? text : "null");
        free(text);
        json_decref(line);
    }
    talk_print_error(t, "weir: %s: %s%s%s%s\n", error_code_name(err->code), err->message, err->param[0] ? " (" : "",
                     err->param, err->param[0] ? ")" : "");
    if (err->code == ERR_CONTEXT_OVERFLOW)
        talk_print_error(t, "The conversation has become too long for the model; /reset starts a new one.\n");
    c->code = verb_exit_of(err->code);
    c->answering = false;
    conversation_forget(&c->said, c->before);
    prompt(t);
    work(t);
}

/* --- lines --------------------------------------------------------------------------------------- */

static void take_line(struct talk *t, const char *line, size_t bytes)
{
    struct chat *c = t->own;
    char why[128];

    switch (conversation_line(&c->said, line, bytes, why)) {
    case INPUT_QUIT:
        talk_end(t, t->pty ? EXIT_OK : c->code); /* each failure has been told */
        return;
    case INPUT_QUESTION:
        ask(t, c->said.input, c->said.input_bytes);
        return;
    case INPUT_UNKNOWN:
    case INPUT_REFUSED:
        talk_print_error(t, "weir: %s\n", why);
        c->code = EXIT_REFUSED;
        break;
    case INPUT_HELP:
        talk_print_error(t, "%s", conversation_help);
        break;
    case INPUT_NOTHING:
    case INPUT_GOES_ON:
    case INPUT_DONE:
        break;
    }
    prompt(t);
}

/* Type what is ahead, up to the end of a line.  false: there was none. */
static bool type(struct talk *t)
{
    struct chat *c = t->own;
    enum line_edit_end end = LINE_EDIT_MORE;
    char *drawn = NULL;
    size_t n = 0, bytes;
    FILE *screen = open_memstream(&drawn, &n);

    if (screen == NULL)
        return out_of_memory(t);
    while (c->at < c->n && end == LINE_EDIT_MORE)
        end = line_edit_byte(c->edit, (unsigned char)c->ahead[c->at++], screen);
    line_edit_draw(c->edit, (unsigned)t->columns, screen);
    if (end != LINE_EDIT_MORE)
        fputs(end == LINE_EDIT_INTERRUPTED ? "^C\n" : "\n", screen);
    bool drew = fclose(screen) == 0;
    if (drew)
        talk_write(t, span_of(drawn, n));
    free(drawn);
    if (!drew)
        return out_of_memory(t);
    const char *line = line_edit_text(c->edit, &bytes);
    if (end == LINE_EDIT_LINE) {
        take_line(t, line, bytes);
    } else if (end == LINE_EDIT_END) {
        talk_finish(t, EXIT_OK);
    } else if (end == LINE_EDIT_INTERRUPTED) {
        c->said.goes_on = false;
        prompt(t);
    }
    return end != LINE_EDIT_MORE;
}

/* Without a terminal: the next line that is complete. */
static bool next_line(struct talk *t)
{
    struct chat *c = t->own;
    char *from = c->ahead + c->at;
    size_t left = c->n - c->at;
    char *newline = left > 0 ? memchr(from, '\n', left) : NULL;

    if (left == 0 || (newline == NULL && !t->input_ended))
        return false;
    size_t n = newline != NULL ? (size_t)(newline - from) : left;
    c->at += n + (newline != NULL);
    n -= n > 0 && from[n - 1] == '\r';
    take_line(t, from, n);
    return true;
}

/* A question can fail while it is asked, and what follows a failure is to go on with the next line: the loop that is already running
 * does that, or the stack would grow with every line that fails. */
static void work(struct talk *t)
{
    struct chat *c = t->own;

    if (c->working)
        return;
    c->working = true;
    while (!c->answering && !t->finished && !c->single && (t->pty ? type(t) : next_line(t)))
        ;
    c->working = false;
    if (c->at == c->n)
        c->at = c->n = 0;
    if (t->input_end_told && c->n == 0 && !c->answering && !c->single)
        talk_end(t, t->pty ? EXIT_OK : c->code); /* each failure has been told */
}

/* --- input --------------------------------------------------------------------------------------- */

static bool keep(struct talk *t, const void *bytes, size_t n)
{
    struct chat *c = t->own;
    struct error err;

    if (c->at > 0) {
        memmove(c->ahead, c->ahead + c->at, c->n - c->at);
        c->n -= c->at;
        c->at = 0;
    }
    if (n > AHEAD_BYTES_MAX - c->n) {
        error_set(&err, ERR_LIMIT_EXCEEDED, NULL, "more than %d bytes wait for the answer that is being made",
                  AHEAD_BYTES_MAX);
        talk_fail(t, &err);
        return false;
    }
    if (c->n + n > c->capacity) {
        size_t capacity = c->n + n + 4096;
        char *bigger = realloc(c->ahead, capacity);
        if (bigger == NULL)
            return out_of_memory(t);
        c->ahead = bigger;
        c->capacity = capacity;
    }
    memcpy(c->ahead + c->n, bytes, n);
    c->n += n;
    return true;
}

static void chat_input(struct talk *t, struct span data)
{
    const struct chat *c = t->own;

    if (!c->single && data.n > 0 && keep(t, data.at, data.n))
        work(t);
}

static void chat_keys(struct talk *t, struct span data)
{
    struct chat *c = t->own;
    size_t from = 0;

    c->typed_ns = clock_now_ns();
    for (size_t i = 0; i < data.n && c->answering; i++) {
        if (data.at[i] != CTRL_C)
            continue;
        stop_answer(t);
        from = i + 1;
    }
    if (!c->single && !t->finished && (data.n == from || keep(t, data.at + from, data.n - from)))
        work(t);
}

static void chat_input_end(struct talk *t)
{
    work(t);
}

static void chat_tick(struct talk *t, uint64_t now_ns)
{
    struct chat *c = t->own;

    if (!t->pty || c->answering || c->single)
        return;
    if (now_ns >= c->typed_ns + ESCAPE_NS)
        line_edit_pause(c->edit);
    if (t->resized)
        work(t);
    t->resized = false;
}

/* --- beginning and end --------------------------------------------------------------------------- */

static void start_chat(struct talk *t)
{
    struct chat *c = calloc(1, sizeof *c);

    t->own = c;
    if (c == NULL || (t->pty && (c->edit = line_edit_new()) == NULL) ||
        !conversation_begin(&c->said, t->call.has[OPT_SYSTEM] ? t->call.text[OPT_SYSTEM] : NULL)) {
        talk_finish(t, EXIT_INTERNAL);
        return;
    }
    c->single = t->call.n_args > 0;
    for (size_t i = 0; i < t->call.n_args; i++) {
        if ((i > 0 && !keep(t, " ", 1)) || !keep(t, t->call.args[i], strlen(t->call.args[i])))
            return;
    }
    if (c->single) {
        ask(t, c->ahead, c->n);
        c->at = c->n = 0;
    } else if (t->pty) {
        talk_print(t, LINE_EDIT_ON "weir chat: /help lists commands, ^D ends.\n");
        prompt(t);
        work(t);
    }
}

static void leave_chat(struct talk *t)
{
    const struct chat *c = t->own;

    if (t->pty && c != NULL && !c->single)
        talk_print(t, LINE_EDIT_OFF);
}

static void stop_chat(struct talk *t)
{
    struct chat *c = t->own;

    if (c == NULL)
        return;
    conversation_deinit(&c->said);
    line_edit_free(c->edit);
    free(c->ahead);
    free(c->answer);
    free(c);
    t->own = NULL;
}

const struct verb_handler verb_chat_handler = { .start = start_chat,
                                                .reply = chat_reply,
                                                .failed = chat_failed,
                                                .input = chat_input,
                                                .input_end = chat_input_end,
                                                .drained = chat_drained,
                                                .tick = chat_tick,
                                                .keys = chat_keys,
                                                .leave = leave_chat,
                                                .stop = stop_chat };
