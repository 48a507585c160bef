/* convert.h - what people have (text, CSV, JSON lines with columns) made into the JSON lines that a job is.
 *
 *   CONVERT_NONE      job lines already: passed on
 *   CONVERT_TEXT      one prompt a line
 *   CONVERT_TEMPLATE  columns; the template makes the prompt of them.  JSON lines where the first line begins with {, else CSV with a header:
 *                     fields separated by what comes first in the header of , ; and tab, quoted with " where they hold one of them
 *
 * A line comes out as
 *   {"id": .., "prompt": ..., "metadata": {columns}}           id: of the column custom_id or id, where there is one
 *   {"id": .., "messages": [{"role": "user", "content": ..}], "metadata": ..}      with chat
 *   {"id": .., "x_refused": "why"}                              a line that is wrong: it becomes an error of the job
 * and takes exactly as many lines as it took in the file (the rest is blank), so that line numbers are the file's own.
 *
 * UTF-16 is refused by name, in every mode.  Memory: one record.  Pure: no I/O; bytes go to the sink. */
#ifndef CONVERT_H
#define CONVERT_H

#include "unpack.h"

enum convert_mode { CONVERT_NONE, CONVERT_TEXT, CONVERT_TEMPLATE };

struct convert;

/* template: of CONVERT_TEMPLATE, else NULL.  ST_OK; ST_INVALID, ST_LIMIT, ST_NOMEM with *err set. */
MUST_CHECK enum status convert_new(enum convert_mode mode, const char *template, bool chat, unpack_sink *sink, void *arg,
                                   struct convert **ret_convert, struct error *err);
void convert_free(struct convert *c); /* NULL is fine */

/* ST_OK; ST_INVALID: the whole input is refused; ST_NOMEM; or what the sink said; *err set. */
MUST_CHECK enum status convert_put(struct convert *c, struct span bytes, struct error *err);
MUST_CHECK enum status convert_end(struct convert *c, struct error *err);

#endif
