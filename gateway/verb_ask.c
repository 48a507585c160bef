/* verb_ask.c - one question: the words of the command, then standard input, as one user message; the answer streams back.
 *
 * ssh gives no sign whether standard input is a pipe or a quiet terminal.  So with words on the command line the question goes out
 * when standard input has ended, or when nothing at all has come for a second; what comes after that is an error, not a question
 * cut in half without a word.  `-`, or no words, waits for standard input.  With a terminal (ssh -t) it is never read. */
#include "verb_job.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "connection.h"
#include "limits.h"

enum { QUIET_NS = 1000000000 };
enum stage { STAGE_INPUT, STAGE_SENT, STAGE_ANSWER };

static void put_question(struct talk *t, struct span bytes)
{
    struct error err;

    t->text_at += bytes.n;
    if (t->text_at > DOOR_ASK_BYTES_MAX) {
        error_set(&err, ERR_LIMIT_EXCEEDED, NULL, "the question is over the limit of %d bytes",
                  DOOR_ASK_BYTES_MAX);
        talk_fail(t, &err);
    } else if (bytes.n > 0 && write(t->file_fd, bytes.at, bytes.n) != (ssize_t)bytes.n) {
        talk_finish(t, EXIT_INTERNAL);
    }
}

static bool waits_for_input(const struct talk *t)
{
    return t->call.n_args == 0 || strcmp(t->call.args[0], "-") == 0;
}

static void send_question(struct talk *t)
{
    struct weir_message messages[2];
    struct error err;
    char *question = NULL;
    size_t n = 0, bytes = 0;

    if (t->text_at == 0) {
        error_set(&err, ERR_INVALID_REQUEST, NULL,
                  "there is no question: `ask QUESTION`, or give it on standard input");
        talk_fail(t, &err);
        return;
    }
    t->stage = STAGE_SENT;
    if (door_memfd_read(t->file_fd, DOOR_ASK_BYTES_MAX, &question, &bytes) != ST_OK) {
        talk_finish(t, EXIT_INTERNAL);
        return;
    }
    if (t->call.has[OPT_SYSTEM])
        messages[n++] = (struct weir_message){ "system", t->call.text[OPT_SYSTEM], strlen(t->call.text[OPT_SYSTEM]) };
    messages[n++] = (struct weir_message){ "user", question, bytes };
    (void)request_send(t, DOOR_SESSION_NONE, messages, n);
    free(question);
}

static void start_ask(struct talk *t)
{
    if (door_memfd(span_of("", 0), &t->file_fd) != ST_OK) {
        talk_finish(t, EXIT_INTERNAL);
        return;
    }
    bool first = true;
    for (size_t i = 0; i < t->call.n_args && !t->finished; i++) {
        if (i == 0 && strcmp(t->call.args[0], "-") == 0)
            continue;
        if (!first)
            put_question(t, span_str(" "));
        put_question(t, span_str(t->call.args[i]));
        first = false;
    }
    t->since_ns = clock_now_ns();
    if (t->pty && !waits_for_input(t) && !t->finished)
        send_question(t);
}

static void ask_input(struct talk *t, struct span data)
{
    struct error err;

    if (t->stage != STAGE_INPUT) {
        if (t->pty)
            return;
        error_set(&err, ERR_INVALID_REQUEST, NULL,
                  "standard input came after the question was sent, and is not part of it; `ask - QUESTION` "
                  "waits for it");
        talk_fail(t, &err);
        return;
    }
    if (!t->ended) { /* the first bytes: a blank line between the words and the text */
        t->ended = true;
        if (t->text_at > 0)
            put_question(t, span_str("\n\n"));
    }
    put_question(t, data);
}

static void ask_input_end(struct talk *t)
{
    if (t->stage == STAGE_INPUT)
        send_question(t);
}

static void ask_tick(struct talk *t, uint64_t now_ns)
{
    if (t->stage == STAGE_INPUT && !waits_for_input(t) && t->input_bytes == 0 &&
        now_ns >= t->since_ns + QUIET_NS)
        send_question(t);
}

/* The end of the answer: text is {"finish_reason", "usage", ...} or {"error": {...}}. */
static void on_end(struct talk *t, struct door_reader *r, int fd)
{
    json_t *end = job_reply_json(t, r, fd);

    if (end == NULL)
        return;
    if (t->call.has[OPT_JSON]) {
        json_object_set_new(end, "text", json_stringn(t->text != NULL ? t->text : "", t->text_bytes));
        talk_print_json(t, end);
    } else {
        talk_print(t, "\n");
        const char *reason = json_string_value(json_object_get(end, "finish_reason"));
        if (reason != NULL && strcmp(reason, "length") == 0)
            talk_print_error(t, "weir: the answer was ended by its limit of tokens\n");
    }
    json_decref(end);
    talk_finish(t, EXIT_OK);
}

static void keep_text(struct talk *t, struct span piece)
{
    char *text = realloc(t->text, t->text_bytes + piece.n + 1);

    if (text == NULL) {
        talk_finish(t, EXIT_INTERNAL);
        return;
    }
    memcpy(text + t->text_bytes, piece.at, piece.n);
    t->text = text;
    t->text_bytes += piece.n;
}

static void put_text(struct talk *t, struct span piece)
{
    t->text_bytes += piece.n;
    talk_write_text(t, piece);
}

static void ask_reply(struct talk *t, struct door_reader *r, int fd)
{
    if (t->stage == STAGE_SENT) {
        t->stage = STAGE_ANSWER;
        talk_ask(t, DOOR_MORE, NULL, -1);
        return;
    }
    bool ended = door_get_u32(r) != 0;
    struct span piece = door_get_str(r);
    if (t->call.has[OPT_JSON])
        keep_text(t, piece);
    else
        put_text(t, piece);
    if (ended)
        on_end(t, r, fd);
    else
        t->drained_due = true; /* the next piece when this one has left */
}

static void ask_drained(struct talk *t)
{
    if (t->stage == STAGE_ANSWER && !t->asking)
        talk_ask(t, DOOR_MORE, NULL, -1);
}

static void ask_failed(struct talk *t, const struct error *err)
{
    if (t->text_bytes > 0 && !t->call.has[OPT_JSON])
        talk_print(t, "\n"); /* behind the part that came */
    talk_fail(t, err);
}

const struct verb_handler verb_ask_handler = { .start = start_ask,
                                               .reply = ask_reply,
                                               .failed = ask_failed,
                                               .input = ask_input,
                                               .input_end = ask_input_end,
                                               .drained = ask_drained,
                                               .tick = ask_tick };
