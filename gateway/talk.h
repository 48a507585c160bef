/* talk.h - inside a connection process: one ssh channel and the verb that runs on it, together called a talk.
 *
 * (Not called channel: libssh still exports functions named channel_*.)
 *
 * A verb is a handful of callbacks (struct verb_handler); nothing in them blocks.  Output is put into the talk's buffers and leaves
 * as the peer's window and the socket allow; a verb that produces much gives a file to stream instead, or waits for `drained` before it
 * asks for more.  What a verb asks of (b) goes through talk_ask(); the answer comes to `reply`.
 *
 *   start ──► talk_ask ──► reply ──► talk_print / talk_stream ──► drained ──► ... ──► talk_finish(code)
 *
 * After talk_finish the rest of the output is sent, then exit-status, EOF and CLOSE, in this order: always, whatever happened. */
#ifndef TALK_H
#define TALK_H

#include <jansson.h>
#include <libssh/callbacks.h>
#include <libssh/libssh.h>
#include <libssh/server.h>
#include <stdbool.h>
#include <stdint.h>

#include "door.h"
#include "flat.h"
#include "intake.h"
#include "line_scanner.h"
#include "verb.h"

enum {
    TALK_OUTPUT_BYTES_MAX = 72 << 20, /* the largest text a reply can be, and its wrapping */
    TALK_EARLY_BYTES_MAX = 2 << 20,   /* input that came before its verb could take it: a window and a half */
    STREAM_CHUNK_BYTES = 32 << 10,
};

struct connection;
struct talk;
struct sftp_talk;

struct verb_handler {
    void (*start)(struct talk *t);
    void (*reply)(struct talk *t, struct door_reader *r, int fd); /* fd: of the reply, closed after the call unless dup'ed */
    void (*failed)(struct talk *t, const struct error *err);      /* NULL: print the error and finish with its exit code */
    void (*input)(struct talk *t, struct span data);              /* NULL: standard input is thrown away */
    void (*input_end)(struct talk *t);
    void (*drained)(struct talk *t);                              /* all output has left; called once each time */
    void (*tick)(struct talk *t, uint64_t now_ns);                /* a few times a second */
    void (*interrupt)(struct talk *t);                            /* ^C; NULL: finish with 130 */
    /* On a terminal, instead of input, every byte that is typed, also ^C and ^D.  NULL: these two mean what they mean everywhere. */
    void (*keys)(struct talk *t, struct span data);
    void (*leave)(struct talk *t);                                /* it is about to finish, for whatever reason: give the terminal back */
    void (*stop)(struct talk *t);                                 /* the last call: free what t->own holds */
};

struct output {
    char *at;
    size_t n, sent, capacity;
};

struct talk {
    struct connection *connection;   /* NULL: free slot */
    ssh_channel ssh;
    struct ssh_channel_callbacks_struct callbacks;
    uint16_t op;                     /* its index: which op of the door it uses */
    uint32_t serial;                 /* of the request that is open */
    bool asking;                     /* a request is open */
    bool has_command, started, finished, closing, gone; /* closing: CLOSE sent; gone: the peer has closed */
    bool left;                       /* the handler's `leave` was called */
    bool pty, subsystem;             /* subsystem: sftp was asked for */
    int columns, rows;               /* of the terminal */
    bool resized;                    /* since the verb looked */
    char *command;                   /* NULL: a shell was asked for */
    struct command_line line;
    struct verb_call call;
    const struct verb_handler *handler;
    enum exit_code code;
    struct output out, err;
    bool drained_due;                /* call drained when the buffers are empty */
    int stream_fd;                   /* file that is being sent; -1 */
    uint64_t stream_at, stream_end;
    bool input_ended, input_end_told, early_passed;
    struct output early;             /* input that came before start */
    uint64_t input_bytes, sent_bytes; /* of standard input; of standard output and error */
    bool told_end;                   /* the end of the verb is in the log */

    /* what verbs keep */
    void *own;                       /* a struct of their own */
    char seen_job[32];               /* the id of the last job that (b) told of, for the log */
    char job[128];                   /* the job as given, then its id */
    int file_fd;                     /* ask, tokenize: a memfd of the text; results, verify: a file of the job */
    struct intake *intake;           /* submit: the input on its way to disk */
    int stage;                       /* a verb's own state */
    uint64_t version;                /* of the job, as last seen */
    uint64_t since_ns;               /* a verb's own clock */
    bool ended;                      /* the job has ended */
    uint64_t output_bytes;           /* of the job: what may be streamed */
    struct flat flat;                /* results --flat, --csv */
    struct line_scanner input;       /* results --join: of the job's input */
    char *text;                      /* ask --json: the answer so far; results --ordered: places */
    size_t text_bytes, text_at;
    struct sftp_talk *sftp;          /* of the subsystem, once it has started */
};

/* Output.  Newlines become CR LF on a terminal.  After talk_finish nothing is added. */
void talk_write(struct talk *t, struct span bytes);
__attribute__((format(printf, 2, 3))) void talk_print(struct talk *t, const char *format, ...);
void talk_print_json(struct talk *t, const json_t *value); /* on a line of its own; "null" if it is NULL or there is no memory for its text */
__attribute__((format(printf, 2, 3))) void talk_print_error(struct talk *t, const char *format, ...);
/* Text of a model: on a terminal control characters are shown, never sent. */
void talk_write_text(struct talk *t, struct span bytes);
/* Text of somebody else on a terminal: control characters become \xNN. */
void talk_print_safe(struct talk *t, const char *text, int width);

/* Send the bytes [from, end) of a file; `drained` follows.  Takes fd. */
void talk_stream(struct talk *t, int fd, uint64_t from, uint64_t end);

/* Keep input for later, in t->early.  false: no room (TALK_EARLY_BYTES_MAX). */
bool talk_keep_early(struct talk *t, struct span data);

/* EXIT_INTERNAL says why by itself: out of memory or descriptors. */
void talk_finish(struct talk *t, enum exit_code code);
/* As talk_finish(), and nothing is said: it has been. */
void talk_end(struct talk *t, enum exit_code code);
/* Print an error as `weir: code: message (param)`, or as JSON with --json, and finish with its exit code. */
void talk_fail(struct talk *t, const struct error *err);
void talk_fail_as(struct talk *t, const struct error *err, enum exit_code code);

/* Whatever is open with (b) ends; a reply that is on its way is dropped. */
void talk_stop(struct talk *t);
/* Put a request to (b); the body is borrowed.  fd: sent along, stays the caller's; -1 none. */
void talk_ask(struct talk *t, enum door_type type, const struct byte_writer *body, int fd);

/* --- for connection.c -------------------------------------------------------------------------- */

void talk_init(struct talk *t, struct connection *c, uint16_t op, ssh_channel ssh);
void talk_deinit(struct talk *t);
/* Do what can be done now.  *ret_wait_ms is lowered to when it wants to be called again at the latest. */
void talk_pump(struct talk *t, uint64_t now_ns, int *ret_wait_ms);
/* A reply for its op has come. */
void talk_on_reply(struct talk *t, const struct door_message *m);

/* The handler of a verb.  Never NULL. */
const struct verb_handler *verb_handler_of(enum verb_id id);

#endif
