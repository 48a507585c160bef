/* standalone.h - one request through a worker without a broker: for a try, and for tests.
 *
 * Plays the broker in the same process: makes a region, writes the record, and takes the events.  The worker behind it is the
 * whole one, so what this prints is what a client of a pool would get. */
#ifndef STANDALONE_H
#define STANDALONE_H

#include "worker.h"

struct standalone_options {
    const char *prompt;      /* NULL: none was given */
    bool chat;               /* the prompt is one user message, through the model's template */
    bool raw;                /* special tokens in the prompt are read as such */
    bool json;               /* one object at the end instead of the text as it comes */
    bool ignore_eos;
    uint32_t max_tokens, n_choices;
    const char *const *stops; /* [n_stops] */
    uint32_t n_stops;
    struct sampling sampling;
    struct worker_options worker;
};

/* Print the answer to standard output, errors to standard error.  Returns the program's exit code. */
int standalone_generate(struct engine *engine, const struct standalone_options *opt);

/* Print sizes of an engine that was planned, one a line. */
void standalone_print_plan(const struct engine *engine);

#endif
