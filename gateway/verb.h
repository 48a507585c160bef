/* verb.h - what may be said after `ssh box`: the verbs, their options, and how a command line becomes a call of one.
 *
 * Pure tables and parsing; what a verb does is in verb_*.c.  The help texts are made from the same tables. */
#ifndef VERB_H
#define VERB_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "command_line.h"
#include "error.h"
#include "limits.h"
#include "status.h"

/* Exit codes of every verb.  255 is the ssh client's own: never used here. */
enum exit_code {
    EXIT_OK = 0,
    EXIT_LINES_FAILED = 1,   /* the job has ended and some, or all, of its lines are errors */
    EXIT_USAGE = 2,          /* the command was not understood */
    EXIT_NOT_FOUND = 3,      /* no such job */
    EXIT_REFUSED = 4,        /* a limit, a conflict, or input that is not valid */
    EXIT_UNREACHABLE = 5,    /* the pool, or the job store, does not answer */
    EXIT_JOB_STOPPED = 6,    /* the job was cancelled, has expired, or failed as a whole */
    EXIT_REQUEST_FAILED = 7, /* ask: the model's answer ended in an error */
    EXIT_INTERNAL = 8,
    EXIT_INTERRUPTED = 130,  /* ^C */
};

enum verb_option {
    OPT_JSON,
    OPT_NAME,
    OPT_KEY,
    OPT_MODEL,
    OPT_MAX_TOKENS,
    OPT_PRIORITY,
    OPT_DEADLINE,
    OPT_ALL,
    OPT_FOLLOW,
    OPT_ORDERED,
    OPT_SYSTEM,
    OPT_SEED,
    OPT_TEMPERATURE,
    OPT_SPECIAL,
    OPT_TEXT,
    OPT_TEMPLATE,
    OPT_CHAT,
    OPT_TRY,
    OPT_CHECK,
    OPT_REUSE,
    OPT_STATE,
    OPT_FLAT,
    OPT_CSV,
    OPT_JOIN,
    OPT_TOP_P,
    OPT_TOP_K,
    OPT_MIN_P,
    OPT_REPETITION_PENALTY,
    OPT_PRESENCE_PENALTY,
    OPT_FREQUENCY_PENALTY,
    OPT_STOP,
    OPT_IGNORE_EOS,
    OPT_CHAT_TEMPLATE,
    OPT_CACHE,
    OPT_SCOPE,
    OPT_SALT,
    OPT_SAMPLE,
    OPT_DRAW,
    OPT_COUNT
};

enum verb_id {
    VERB_HOME, /* no command at all */
    VERB_HELP,
    VERB_ASK,
    VERB_CHAT,
    VERB_SUBMIT,
    VERB_RUN,
    VERB_STATUS,
    VERB_LIST,
    VERB_WATCH,
    VERB_WAIT,
    VERB_RESULTS,
    VERB_ERRORS,
    VERB_VERIFY,
    VERB_CANCEL,
    VERB_DELETE,
    VERB_RETRY,
    VERB_RELEASE,
    VERB_USAGE,
    VERB_KEYS,
    VERB_MODELS,
    VERB_POOL,
    VERB_TOP,
    VERB_TRACE,
    VERB_TOKENIZE,
    VERB_WHOAMI,
    VERB_VERSION,
    VERB_COUNT
};

enum verb_stdin {
    STDIN_NONE,    /* not read */
    STDIN_FILE,    /* read to its end: the lines of a job, a text */
    STDIN_MAYBE,   /* appended where there is some */
};

struct verb {
    enum verb_id id;
    const char *name;
    const char *args;          /* as help shows them: "JOB" */
    unsigned args_min, args_max;
    uint64_t options;          /* bits 1 << enum verb_option */
    enum verb_stdin input;
    const char *summary;       /* one line */
    const char *details;       /* more lines, or NULL */
};

/* A command line that was understood.  Words are borrowed from the command_line. */
struct verb_call {
    const struct verb *verb;
    char *const *args;
    size_t n_args;
    bool has[OPT_COUNT];
    const char *text[OPT_COUNT];   /* the value as written */
    uint64_t number[OPT_COUNT];    /* of integers; DEADLINE in ms, PRIORITY 1 low, 2 normal, 3 high */
    double real[OPT_COUNT];        /* of numbers with a point */
    const char *stops[STOPS_MAX];  /* every --stop */
    size_t n_stops;
    char **memory;                 /* the arguments without the options */
};

/* No words at all is VERB_HOME.  ST_OK; ST_INVALID with *err (a usage error, with the near verb or option where there is one), ST_NOMEM. */
MUST_CHECK enum status verb_parse(const struct command_line *line, struct verb_call *ret_call, struct error *err);
void verb_call_deinit(struct verb_call *call);

const struct verb *verb_by_name(const char *name); /* NULL: none */

/* Text for people, to be freed with free(); NULL: out of memory.  verb NULL: the list of all. */
char *verb_help(const struct verb *verb);

/* The exit code that tells of an error. */
enum exit_code verb_exit_of(enum error_code code);

/* Which of names is near to what was typed: at most 2 edits, and fewer than its length.  NULL: none. */
const char *verb_nearest(const char *typed, const char *const *names, size_t n);

#endif
