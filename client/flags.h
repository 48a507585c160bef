/* flags.h - command-line flags of the verbs of `weir`.
 *
 * Unlike the servers' options (config.h) these come from the command line only: a WEIR_MODEL that names the server's file must not
 * become the model of every request.  --name VALUE or --name=VALUE, -x VALUE; switches --name; "--" ends flags; "-" is an argument. */
#ifndef FLAGS_H
#define FLAGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum flag_kind {
    FLAG_SWITCH, /* bool */
    FLAG_TEXT,   /* const char * */
    FLAG_LIST,   /* struct flag_list: may repeat */
    FLAG_U32,    /* uint32_t */
    FLAG_U64,    /* struct flag_u64 */
    FLAG_NUMBER, /* struct flag_number */
    FLAG_MS,     /* uint32_t, milliseconds: 250ms, 5s, 10m, 1h; a bare number is seconds */
};

enum { FLAG_LIST_MAX = 16, FLAGS_MAX = 48 };

struct flag_list {
    const char *at[FLAG_LIST_MAX];
    size_t n;
};
struct flag_u64 {
    uint64_t value;
    bool set;
};
struct flag_number {
    double value;
    bool set;
};

struct flag {
    const char *name;  /* "max-tokens" */
    char letter;       /* 'o'; 0: none */
    enum flag_kind kind;
    void *to;
    const char *value; /* name of the value in the help; NULL for switches */
    const char *help;
    double min, max;   /* for numbers */
};

enum { FLAGS_WRONG = -1, FLAGS_HELP = -2 };

/* Read argv [argc], the words behind the verb.  What is no flag is moved to the front, in order; gives how many these are.
 * FLAGS_WRONG: it has been said on standard error what is wrong.  FLAGS_HELP: --help or -h was among them. */
int flags_parse(const struct flag *flags, size_t n_flags, const char *verb, int argc, char **argv);

void flags_print(FILE *out, const struct flag *flags, size_t n_flags);

/* The candidate that is most like word, if any is so near that it can be meant; else NULL. */
const char *flags_nearest(const char *word, const char *const *candidates, size_t n);

#endif
