/* flat.h - answers as short objects or as CSV rows, with the input's columns beside them where these are wanted.
 *
 *   FLAT_JSON   {"id", "choice", "text", "finish_reason", "prompt_tokens", "completion_tokens"}
 *   FLAT_CSV    the same as CSV (RFC 4180 quoting), with a header
 *
 * One object or row for each choice.  With the input: its columns come first - what stands in its metadata, or else in the line itself - and the
 * answer's are called answer_text and so on.  The columns of CSV are those of the first line; a later one that has more is an error.
 *
 * Pure: text in, text out. */
#ifndef FLAT_H
#define FLAT_H

#include <jansson.h>
#include <stdio.h>

#include "error.h"
#include "span.h"
#include "status.h"

enum flat_form { FLAT_JSON, FLAT_CSV };

struct flat {
    enum flat_form form;
    json_t *columns;    /* of CSV: array of names; NULL: the header has not been written */
};

void flat_deinit(struct flat *f);

/* Write what an output line (weir_batch.h) says.  input: its input line, or an empty span for none.
 * ST_OK; ST_INVALID with *err: a line that cannot be read, a column that the header has not, or that answer's and input's columns share. */
MUST_CHECK enum status flat_write(struct flat *f, struct span output, struct span input, uint32_t line, FILE *to, struct error *err);

#endif
