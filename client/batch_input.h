/* batch_input.h - lines of a file or a pipe, one after the other, never waiting. */
#ifndef BATCH_INPUT_H
#define BATCH_INPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "weir.h"

enum batch_input_result {
    INPUT_LINE,     /* *ret_text, without its newline; valid until the next call */
    INPUT_TOO_LONG, /* a line over LINE_BYTES_MAX was skipped */
    INPUT_WAIT,     /* nothing there yet: poll batch_input_fd() */
    INPUT_END,
    INPUT_BROKEN,   /* *err */
};

struct batch_input; /* opaque */

/* path "-": standard input.  WEIR_OK or WEIR_FAILED with *err. */
int batch_input_open(const char *path, struct batch_input **ret_input, struct weir_error *err);
void batch_input_free(struct batch_input *in); /* NULL is fine */
int batch_input_fd(const struct batch_input *in);

/* The next line and its number, from 1. */
enum batch_input_result batch_input_next(struct batch_input *in, const char **ret_text, size_t *ret_bytes, uint64_t *ret_number,
                                         struct weir_error *err);

/* How many lines the file has that are not empty; 0 for a pipe, where nobody knows. */
uint64_t batch_input_count(const struct batch_input *in);

#endif
