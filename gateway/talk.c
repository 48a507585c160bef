/* talk.c - moving the bytes of one ssh channel, in both directions, without ever waiting.
 *
 * Out: ssh_channel_write() would wait for ever on a closed window and queue without limit on an open one, so it is called only with
 * bytes the window takes, and only while libssh's own socket buffer is empty.  The bytes are copied first: inside the call libssh may
 * handle packets, and their callbacks may grow the buffer.
 * In: the data callback takes everything at once (a file, or a bounded buffer), because bytes left with libssh are offered again only
 * when more arrive.  A peer that ignores the window meets TALK_EARLY_BYTES_MAX or the verb's own limit.
 * Callbacks of libssh only note what has happened; talk_pump() does the rest between two polls. */
#include "talk.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "connection.h"
#include "log.h"
#include "sftp_talk.h"
#include "terminal.h"

enum { TICK_MS = 200, PUMP_ROUNDS_MAX = 8, CTRL_C = 3, CTRL_D = 4 };

/* --- output ------------------------------------------------------------------------------------ */

static bool output_put(struct output *o, const void *bytes, size_t n)
{
    if (n > TALK_OUTPUT_BYTES_MAX - o->n)
        return false;
    if (o->n + n > o->capacity) {
        size_t capacity = o->capacity * 2 > o->n + n ? o->capacity * 2 : o->n + n + 1024;
        char *at = realloc(o->at, capacity);
        if (at == NULL)
            return false;
        o->at = at;
        o->capacity = capacity;
    }
    if (n > 0)
        memcpy(o->at + o->n, bytes, n);
    o->n += n;
    return true;
}

static size_t output_left(const struct output *o)
{
    return o->n - o->sent;
}

static void output_deinit(struct output *o)
{
    free(o->at);
    *o = (struct output){ 0 };
}

/* No memory for what a verb has to say: nobody may take a part for the whole. */
static void output_failed(struct talk *t)
{
    struct span why = span_str("weir: internal_error: there is no memory for the answer now\n");

    (void)output_put(&t->err, why.at, why.n);
    t->finished = true;
    t->code = EXIT_INTERNAL;
    log_error("output", "user=%s reason=memory", t->connection->user);
}

/* Also after talk_finish: the rest of a file that is being sent. */
static void put_bytes(struct talk *t, struct output *o, const char *text, size_t n)
{
    bool ok = true;

    if (!t->pty) {
        ok = output_put(o, text, n);
    } else {
        while (n > 0 && ok) { /* a terminal in raw mode wants CR LF */
            const char *newline = memchr(text, '\n', n);
            size_t part = newline != NULL ? (size_t)(newline - text) : n;
            ok = output_put(o, text, part) && (newline == NULL || output_put(o, "\r\n", 2));
            text += part + (newline != NULL);
            n -= part + (newline != NULL);
        }
    }
    if (!ok)
        output_failed(t);
    t->drained_due = true;
}

static void put_text(struct talk *t, struct output *o, const char *text, size_t n)
{
    if (!t->finished)
        put_bytes(t, o, text, n);
}

void talk_write(struct talk *t, struct span bytes)
{
    put_text(t, &t->out, (const char *)bytes.at, bytes.n);
}

void talk_write_text(struct talk *t, struct span bytes)
{
    char *shown = NULL;
    size_t n = 0;

    if (!t->pty) {
        talk_write(t, bytes);
        return;
    }
    FILE *to = open_memstream(&shown, &n);
    if (to != NULL)
        terminal_show(to, (const char *)bytes.at, bytes.n);
    if (to == NULL || fclose(to) != 0)
        output_failed(t);
    else
        talk_write(t, span_of(shown, n));
    free(shown);
}

static void print_to(struct talk *t, struct output *o, const char *format, va_list args)
{
    char *text = NULL;
    int n = vasprintf(&text, format, args);

    if (n < 0)
        output_failed(t);
    else
        put_text(t, o, text, (size_t)n);
    free(text);
}

void talk_print(struct talk *t, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    print_to(t, &t->out, format, args);
    va_end(args);
}

/* A terminal has one stream, in which things stand in the order in which they were said. */
void talk_print_error(struct talk *t, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    print_to(t, t->pty ? &t->out : &t->err, format, args);
    va_end(args);
}

void talk_print_json(struct talk *t, const json_t *value)
{
    char *text = value != NULL ? json_dumps(value, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;

    talk_print(t, "%s\n", text != NULL ? text : "null");
    free(text);
}

void talk_print_safe(struct talk *t, const char *text, int width)
{
    int columns = 0;

    for (const unsigned char *c = (const unsigned char *)text; *c != '\0'; c++) {
        if (*c < 0x20 || *c == 0x7f) {
            talk_print(t, "\\x%02x", *c);
            columns += 4;
        } else {
            talk_write(t, span_of(c, 1));
            columns += (*c & 0xc0) != 0x80; /* continuation bytes of UTF-8 take no column */
        }
    }
    if (columns < width)
        talk_print(t, "%*s", width - columns, "");
}

bool talk_keep_early(struct talk *t, struct span data)
{
    return data.n <= TALK_EARLY_BYTES_MAX - t->early.n && output_put(&t->early, data.at, data.n);
}

static void leave(struct talk *t)
{
    if (!t->left && t->handler != NULL && t->handler->leave != NULL) {
        t->left = true;
        t->handler->leave(t);
    }
}

void talk_end(struct talk *t, enum exit_code code)
{
    if (t->finished)
        return;
    leave(t);
    t->finished = true;
    t->code = code;
}

void talk_finish(struct talk *t, enum exit_code code)
{
    struct error err;

    if (t->finished)
        return;
    if (code == EXIT_INTERNAL) {
        error_set(&err, ERR_INTERNAL, NULL, "there is no memory, or no descriptor, for this now");
        talk_fail_as(t, &err, code);
        return;
    }
    talk_end(t, code);
}

static void stop_stream(struct talk *t)
{
    if (t->stream_fd >= 0)
        close(t->stream_fd);
    t->stream_fd = -1;
}

void talk_fail_as(struct talk *t, const struct error *err, enum exit_code code)
{
    if (t->finished)
        return;
    stop_stream(t);
    leave(t);
    if (t->call.has[OPT_JSON]) {
        json_t *object = json_pack("{s{ssssss}}", "error", "code", error_code_name(err->code), "message",
                                   err->message, "param", err->param);
        char *text = object != NULL ? json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
        talk_print(t, "%s\n", text != NULL ? text : "{\"error\":{\"code\":\"internal_error\"}}");
        free(text);
        json_decref(object);
    }
    talk_print_error(t, "weir: %s: %s%s%s%s\n", error_code_name(err->code), err->message,
                     err->param[0] ? " (" : "", err->param, err->param[0] ? ")" : "");
    talk_end(t, code);
}

void talk_fail(struct talk *t, const struct error *err)
{
    talk_fail_as(t, err, verb_exit_of(err->code));
}

void talk_stream(struct talk *t, int fd, uint64_t from, uint64_t end)
{
    stop_stream(t);
    t->stream_fd = fd;
    t->stream_at = from;
    t->stream_end = end;
    t->drained_due = true;
}

static void stop_op(struct talk *t, bool gone)
{
    struct connection *c = t->connection;
    uint8_t buffer[4];
    struct byte_writer w = { .at = buffer, .capacity = sizeof buffer };

    door_put_u32(&w, gone);
    struct door_message m = { .type = DOOR_STOP, .op = t->op, .serial = ++t->serial, .body = byte_writer_written(&w), .fd = -1 };
    t->asking = false;
    if (c->door_gone || door_send(c->door, &m) != ST_OK)
        c->door_gone = true;
}

void talk_stop(struct talk *t)
{
    stop_op(t, false);
}

void talk_ask(struct talk *t, enum door_type type, const struct byte_writer *body, int fd)
{
    struct connection *c = t->connection;
    struct door_message m = { .type = type, .op = t->op, .serial = ++t->serial, .fd = fd };
    struct error err;

    if (body != NULL)
        m.body = byte_writer_written(body);
    if (body != NULL && body->failed) {
        error_set(&err, ERR_LIMIT_EXCEEDED, NULL, "the options of the command are over the limit of %d bytes",
                  DOOR_PACKET_BYTES);
        talk_fail(t, &err);
        return;
    }
    t->asking = true;
    if (c->door_gone || door_send(c->door, &m) != ST_OK)
        c->door_gone = true; /* the loop tells all talks */
}

void talk_on_reply(struct talk *t, const struct door_message *m)
{
    struct door_reader r = { .left = m->body };
    struct error err;

    t->asking = false;
    if (t->finished)
        return;
    if (m->type == DOOR_REPLY) {
        t->handler->reply(t, &r, m->fd);
        return;
    }
    door_get_error(&r, &err);
    if (t->handler->failed != NULL)
        t->handler->failed(t, &err);
    else
        talk_fail(t, &err);
}

/* --- callbacks of libssh: take note ------------------------------------------------------------ */

static void interrupt(struct talk *t)
{
    if (t->finished)
        return;
    stop_stream(t);
    t->out.sent = t->out.n; /* who presses ^C wants silence */
    if (t->handler != NULL && t->handler->interrupt != NULL)
        t->handler->interrupt(t);
    talk_finish(t, EXIT_INTERRUPTED);
}

/* Bytes a person types in raw mode: ^C, ^D and Return mean what they mean on any terminal. */
static void terminal_input(struct talk *t, const char *bytes, size_t n)
{
    if (t->handler->keys != NULL) {
        t->handler->keys(t, span_of(bytes, n));
        return;
    }
    for (size_t i = 0; i < n && !t->finished; i++) {
        char c = bytes[i] == '\r' ? '\n' : bytes[i];
        if (c == CTRL_C) {
            interrupt(t);
        } else if (c == CTRL_D) {
            t->input_ended = true;
            return;
        } else if (t->handler->input != NULL) {
            t->handler->input(t, span_of(&c, 1));
        }
    }
}

static void take_input(struct talk *t, struct span data)
{
    if (t->pty)
        terminal_input(t, (const char *)data.at, data.n);
    else if (t->handler->input != NULL)
        t->handler->input(t, data);
}

static int on_data(ssh_session session, ssh_channel ssh, void *data, uint32_t n, int is_stderr, void *arg)
{
    struct talk *t = arg;

    (void)session;
    (void)ssh;
    if (is_stderr || t->finished || t->gone || t->input_ended)
        return (int)n;
    if (t->sftp != NULL)
        return (int)sftp_talk_data(t, span_of(data, n)); /* may leave some: see sftp_talk.h */
    t->input_bytes += n;
    if (t->early_passed) {
        take_input(t, span_of(data, n));
    } else if (!talk_keep_early(t, span_of(data, n))) {
        log_warn("channel", "user=%s reason=window_ignored", t->connection->user);
        t->gone = true;
    }
    return (int)n;
}

static void on_eof(ssh_session session, ssh_channel ssh, void *arg)
{
    struct talk *t = arg;

    (void)session;
    (void)ssh;
    t->input_ended = true;
}

static void on_close(ssh_session session, ssh_channel ssh, void *arg)
{
    struct talk *t = arg;

    (void)session;
    (void)ssh;
    t->gone = true;
}

static void on_signal(ssh_session session, ssh_channel ssh, const char *name, void *arg)
{
    struct talk *t = arg;

    (void)session;
    (void)ssh;
    if (!t->started || (strcmp(name, "INT") != 0 && strcmp(name, "TERM") != 0))
        return;
    if (t->pty && t->handler->keys != NULL && strcmp(name, "INT") == 0)
        t->handler->keys(t, span_of("\x03", 1));
    else
        interrupt(t);
}

static void set_size(struct talk *t, int width, int height)
{
    t->columns = width > 0 && width < 1000 ? width : 80;
    t->rows = height > 0 && height < 1000 ? height : 24;
    t->resized = true;
}

static int on_pty(ssh_session session, ssh_channel ssh, const char *term, int width, int height, int px,
                  int py, void *arg)
{
    struct talk *t = arg;

    (void)session, (void)ssh, (void)term, (void)px, (void)py;
    if (t->has_command)
        return -1;
    t->pty = true;
    set_size(t, width, height);
    return 0;
}

static int on_window_change(ssh_session session, ssh_channel ssh, int width, int height, int px, int py,
                            void *arg)
{
    struct talk *t = arg;

    (void)session, (void)ssh, (void)px, (void)py;
    set_size(t, width, height);
    return 0;
}

static int on_shell(ssh_session session, ssh_channel ssh, void *arg)
{
    struct talk *t = arg;

    (void)session;
    (void)ssh;
    if (t->has_command)
        return -1;
    t->has_command = true;
    return 0;
}

static int on_exec(ssh_session session, ssh_channel ssh, const char *command, void *arg)
{
    struct talk *t = arg;

    (void)session;
    (void)ssh;
    if (t->has_command || command == NULL)
        return -1;
    t->command = strdup(command);
    t->has_command = t->command != NULL;
    return t->has_command ? 0 : -1;
}

static int on_refused_env(ssh_session session, ssh_channel ssh, const char *name, const char *value,
                          void *arg)
{
    (void)session, (void)ssh, (void)name, (void)value, (void)arg;
    return -1;
}

static int on_subsystem(ssh_session session, ssh_channel ssh, const char *name, void *arg)
{
    struct talk *t = arg;

    (void)session, (void)ssh;
    if (strcmp(name, "sftp") == 0 && !t->has_command && !t->pty) {
        t->has_command = t->subsystem = true;
        return 0;
    }
    log_info("subsystem", "refused=%.32s",
             strspn(name, "abcdefghijklmnopqrstuvwxyz") == strlen(name) ? name : "?");
    return -1;
}

void talk_init(struct talk *t, struct connection *c, uint16_t op, ssh_channel ssh)
{
    uint32_t serial = t->serial; /* goes on, so that replies to the talk before are known as late */

    *t = (struct talk){
        .connection = c, .op = op, .serial = serial, .ssh = ssh, .stream_fd = -1, .file_fd = -1
    };
    ssh_callbacks_init(&t->callbacks);
    t->callbacks.userdata = t;
    t->callbacks.channel_data_function = on_data;
    t->callbacks.channel_eof_function = on_eof;
    t->callbacks.channel_close_function = on_close;
    t->callbacks.channel_signal_function = on_signal;
    t->callbacks.channel_pty_request_function = on_pty;
    t->callbacks.channel_pty_window_change_function = on_window_change;
    t->callbacks.channel_shell_request_function = on_shell;
    t->callbacks.channel_exec_request_function = on_exec;
    t->callbacks.channel_env_request_function = on_refused_env;
    t->callbacks.channel_subsystem_request_function = on_subsystem;
    ssh_set_channel_callbacks(ssh, &t->callbacks);
}

/* Who did what, from where, to which job, how much of it, and how it ended.  Never what was asked or answered. */
static void tell_end(struct talk *t, bool gone)
{
    const struct connection *c = t->connection;
    char named[300], code[16];

    if (t->told_end || !t->started || t->sftp != NULL || t->call.verb == NULL)
        return;
    t->told_end = true;
    snprintf(code, sizeof code, "%d", (int)t->code);
    log_info("verb_end", "user=%s peer=%s verb=%s job=%s bytes_in=%llu bytes_out=%llu exit=%s", c->user, c->peer,
             t->call.verb->name[0] != '\0' ? t->call.verb->name : "home",
             t->seen_job[0] != '\0' ? t->seen_job : log_quote(named, sizeof named, t->job), (unsigned long long)t->input_bytes,
             (unsigned long long)t->sent_bytes, gone ? "gone" : code);
}

void talk_deinit(struct talk *t)
{
    struct connection *c = t->connection;

    if (c == NULL)
        return;
    tell_end(t, true);
    if (t->started)
        stop_op(t, true);
    if (t->handler != NULL && t->handler->stop != NULL)
        t->handler->stop(t);
    ssh_remove_channel_callbacks(t->ssh, &t->callbacks);
    ssh_channel_free(t->ssh);
    stop_stream(t);
    if (t->file_fd >= 0)
        close(t->file_fd);
    verb_call_deinit(&t->call);
    command_line_deinit(&t->line);
    free(t->command);
    free(t->text);
    flat_deinit(&t->flat);
    sftp_talk_free(t->sftp);
    if (t->input.buffer != NULL)
        close(t->input.fd);
    line_scanner_deinit(&t->input);
    intake_free(t->intake);
    output_deinit(&t->out);
    output_deinit(&t->err);
    output_deinit(&t->early);
    t->connection = NULL;
}

/* --- the pump ---------------------------------------------------------------------------------- */

static void start(struct talk *t)
{
    struct error err;
    const char *command = t->command != NULL ? t->command : "", *instead = sftp_talk_instead_of(command);

    t->started = true;
    t->handler = t->subsystem ? &sftp_talk_handler : verb_handler_of(VERB_HOME);
    if (instead != NULL) {
        talk_print_error(t, "weir: %s\n", instead);
        talk_finish(t, EXIT_USAGE);
        return;
    }
    if (t->subsystem) {
        log_info("sftp", "user=%s action=session", t->connection->user);
        t->handler->start(t);
        return;
    }
    if (command_line_split(span_str(command), &t->line, &err) != ST_OK ||
        verb_parse(&t->line, &t->call, &err) != ST_OK) {
        for (size_t i = 0; i < t->line.n; i++) /* what is wrong is told as it was asked for */
            t->call.has[OPT_JSON] = t->call.has[OPT_JSON] || strcmp(t->line.words[i], "--json") == 0;
        talk_fail_as(t, &err, EXIT_USAGE);
        return;
    }
    t->handler = verb_handler_of(t->call.verb->id);
    log_info("verb", "user=%s verb=%s", t->connection->user,
             t->call.verb->name[0] ? t->call.verb->name : "home");
    t->handler->start(t);
}

static void pass_input(struct talk *t)
{
    struct output early = t->early;

    if (!t->early_passed) { /* once: later the verb itself may keep what it cannot take yet */
        t->early_passed = true;
        t->early = (struct output){ 0 };
        if (early.n > 0 && !t->finished)
            take_input(t, span_of(early.at, early.n));
        output_deinit(&early);
    }
    if (t->input_ended && !t->input_end_told && !t->finished) {
        t->input_end_told = true;
        if (t->handler->input_end != NULL)
            t->handler->input_end(t);
    }
}

/* Write what the window and the socket take of one buffer.  true: something moved. */
static bool flush(struct talk *t, struct output *o, bool is_error)
{
    char chunk[STREAM_CHUNK_BYTES];
    uint32_t window = ssh_channel_window_size(t->ssh);
    size_t n = output_left(o);

    if (n == 0 || window == 0 || (ssh_get_poll_flags(t->connection->session) & SSH_WRITE_PENDING))
        return false;
    n = n < window ? n : window;
    n = n < sizeof chunk ? n : sizeof chunk;
    memcpy(chunk, o->at + o->sent, n);
    int written = is_error ? ssh_channel_write_stderr(t->ssh, chunk, (uint32_t)n)
                           : ssh_channel_write(t->ssh, chunk, (uint32_t)n);
    if (written < 0) {
        t->gone = true;
        return false;
    }
    t->sent_bytes += (size_t)written;
    o->sent += (size_t)written < output_left(o) ? (size_t)written : output_left(o);
    if (o->sent == o->n)
        o->n = o->sent = 0;
    return written > 0;
}

/* Put the next part of the streamed file into the buffer. */
static void refill(struct talk *t)
{
    char chunk[STREAM_CHUNK_BYTES];
    uint64_t left = t->stream_end - t->stream_at;
    struct error err;

    if (left == 0) {
        stop_stream(t);
        t->drained_due = true;
        return;
    }
    ssize_t n =
        pread(t->stream_fd, chunk, left < sizeof chunk ? (size_t)left : sizeof chunk, (off_t)t->stream_at);
    if (n <= 0) {
        error_set(&err, ERR_INTERNAL, NULL, "a file of the job cannot be read at byte %llu: %s",
                  (unsigned long long)t->stream_at, n == 0 ? "it is shorter than it was" : strerror(errno));
        talk_fail(t, &err);
        return;
    }
    t->stream_at += (uint64_t)n;
    put_bytes(t, &t->out, chunk, (size_t)n);
}

static void close_channel(struct talk *t)
{
    tell_end(t, false);
    ssh_channel_request_send_exit_status(t->ssh, (int)t->code);
    ssh_channel_send_eof(t->ssh);
    ssh_channel_close(t->ssh);
    t->closing = true;
}

/* One round.  true: it moved something, so another may too. */
static bool pump_once(struct talk *t)
{
    bool moved = flush(t, &t->err, true);

    moved |= flush(t, &t->out, false);
    if (t->gone || output_left(&t->out) > 0)
        return moved;
    if (t->stream_fd >= 0) {
        refill(t);
        return true;
    }
    if (output_left(&t->err) > 0)
        return moved;
    if (t->finished) {
        close_channel(t);
        return false;
    }
    if (t->drained_due) {
        t->drained_due = false;
        if (t->handler->drained != NULL) {
            t->handler->drained(t);
            return true;
        }
    }
    return moved;
}

static bool can_write(const struct talk *t)
{
    return ssh_channel_window_size(t->ssh) > 0 &&
           !(ssh_get_poll_flags(t->connection->session) & SSH_WRITE_PENDING);
}

void talk_pump(struct talk *t, uint64_t now_ns, int *ret_wait_ms)
{
    if (!t->gone && t->has_command && !t->started)
        start(t);
    if (t->started && !t->gone && !t->closing) {
        pass_input(t);
        if (t->handler->tick != NULL && !t->finished) {
            t->handler->tick(t, now_ns);
            if (*ret_wait_ms > TICK_MS)
                *ret_wait_ms = TICK_MS;
        }
        bool more = sftp_talk_step(t, now_ns);
        for (int i = 0; i < PUMP_ROUNDS_MAX && !t->closing && !t->gone && pump_once(t); i++)
            ;
        if (more || sftp_talk_wants(t))
            *ret_wait_ms = 0;
        bool waiting = output_left(&t->out) > 0 || output_left(&t->err) > 0 || t->stream_fd >= 0 ||
                       t->drained_due || t->finished;
        if (!t->closing && waiting && can_write(t))
            *ret_wait_ms = 0;
    }
    if (t->gone)
        talk_deinit(t);
}
