/* serve_child.h - the programs that `weir serve` starts: begin one, hear that it is ready, end it.
 *
 * A child is in a process group of its own, so that ^C reaches only `weir serve`, which then stops its children in order.  It gets SIGTERM when
 * `weir serve` dies, however that dies.  Readiness: the child writes a line "ready ..." to the descriptor --ready-fd names. */
#ifndef SERVE_CHILD_H
#define SERVE_CHILD_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum { SERVE_ARGS_MAX = 96, SERVE_READY_BYTES = 2048, SERVE_READY_FD = 3 };

struct serve_child {
    const char *name;                /* "weir-broker" */
    const char *args[SERVE_ARGS_MAX];
    size_t n_args;
    char numbers[16][24];            /* memory of arguments that were numbers */
    size_t n_numbers;
    pid_t pid;                       /* 0: not running */
    int ready_fd;                    /* -1: nothing more to hear */
    bool ready, ended;
    int status;                      /* of waitpid, once ended */
    char line[SERVE_READY_BYTES];    /* what it said, behind "ready " */
    size_t n_line;
};

/* name is borrowed, as is every text. */
void serve_child_init(struct serve_child *c, const char *name);
void serve_child_add(struct serve_child *c, const char *flag, const char *value); /* value NULL: flag alone */
void serve_child_add_number(struct serve_child *c, const char *flag, unsigned long long value);

/* Start it.  False: it has been said why. */
bool serve_child_start(struct serve_child *c);
/* Read what there is on ready_fd; true when it has just become ready. */
bool serve_child_hear(struct serve_child *c);
/* A process has been reaped: was it this one? */
bool serve_child_reaped(struct serve_child *c, pid_t pid, int status);
void serve_child_signal(const struct serve_child *c, int signal_number); /* nothing if it does not run */
/* "ended with exit code 2", "was killed by SIGSEGV" */
const char *serve_child_fate(const struct serve_child *c, char text[64]);

#endif
