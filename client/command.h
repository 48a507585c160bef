/* command.h - what the verbs of `weir` share: exit codes, errors, connecting, waiting, the flags of a request.
 *
 * A verb is a function (argc, argv) of the words behind its name; it gives the exit code. */
#ifndef COMMAND_H
#define COMMAND_H

#include <jansson.h>

#include "flags.h"
#include "weir.h"

enum exit_code {
    EXIT_DONE = 0,          /* all was answered */
    EXIT_FAILED = 1,        /* the request, or some lines of a file, failed */
    EXIT_USAGE = 2,         /* the command line is wrong */
    EXIT_UNREACHABLE = 3,   /* no broker */
    EXIT_REFUSED = 4,       /* not now or not you: busy, no worker, shutting down, permission denied */
    EXIT_INTERRUPTED = 130, /* ^C */
};

struct verb {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *usage;      /* behind "weir NAME" */
    const char *summary;    /* for the list */
    const char *about;      /* for `weir help NAME`; NULL: the summary */
    size_t (*flags)(struct flag *ret_flags); /* for the help; NULL: none */
};
extern const struct verb verbs[];
extern const size_t n_verbs;

/* --- errors ------------------------------------------------------------------------------------ */

enum exit_code command_exit_code(const struct weir_error *e);
/* "weir VERB: code: message (param)" on standard error; gives the exit code. */
enum exit_code command_error(const char *verb, const struct weir_error *e);
json_t *command_error_json(const struct weir_error *e); /* {"code", "message", "param"} */
/* "weir VERB: ..." and how to get help; gives EXIT_USAGE. */
__attribute__((format(printf, 2, 3))) enum exit_code command_usage(const char *verb, const char *format, ...);

/* --- input and output -------------------------------------------------------------------------- */

/* Print v as one line (takes it); EXIT_DONE, or EXIT_FAILED if standard output takes nothing more. */
enum exit_code command_print_json(json_t *v);
/* The text of an argument: itself, or all of standard input for "-".  Gives *ret_text (free()), NUL-terminated.
 * EXIT_DONE, or an exit code after having said why. */
enum exit_code command_text(const char *verb, const char *arg, char **ret_text, size_t *ret_bytes);
/* Write everything, or say why not. */
bool command_flush(const char *verb);

/* --- the broker -------------------------------------------------------------------------------- */

/* EXIT_DONE and *ret_client, or an exit code after having said why. */
enum exit_code command_open(const char *verb, const char *connect, struct weir_client **ret_client);

/* Ask for the status once, with a client of its own: the broker may be another one each time.  Gives the caller the object, or
 * NULL with *err. */
json_t *command_status(const char *connect, struct weir_error *err);

/* Signals as a descriptor: SIGINT and SIGTERM no longer kill.  Call once, before the client is opened. */
int command_signals(void);
/* The next signal that has come, 0 when there is none. */
int command_signal(int signals_fd);

/* Run the client until *until or a signal.  Gives the signal, or 0. */
int command_run(struct weir_client *c, int signals_fd, const bool *until);
/* If the broker went away while nobody looked, wait some seconds for its return.  Gives a signal that ended that, or 0. */
int command_reconnect(struct weir_client *c, int signals_fd);
/* Likewise, until this time of the monotonic clock. */
int command_reconnect_until(struct weir_client *c, int signals_fd, uint64_t until_ns);

/* --- the flags of a request -------------------------------------------------------------------- */

struct request_flags {
    const char *connect, *model, *class_name, *priority, *cache, *scope, *chat_template, *salt;
    uint32_t max_tokens, n, top_k, top_logprobs, deadline_ms;
    struct flag_u64 seed;
    struct flag_number temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
    struct flag_list stop;
    bool raw, ignore_eos, logprobs, json;
};

/* --connect, --key and --server-key: which broker, and as whom.  Gives 3. */
size_t command_connect_flags(struct flag *ret_flags, const char **connect);
size_t request_flags_sampling(struct request_flags *f, struct flag *ret_flags);
/* Fill *r (which borrows f).  EXIT_DONE or EXIT_USAGE after having said why. */
enum exit_code request_flags_apply(const struct request_flags *f, const char *verb, struct weir_request *r);

#endif
