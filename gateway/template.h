/* template.h - 'Translate: {text}': a prompt with places for columns, compiled once and filled for each line.  Pure.
 *
 *   {name}   the column of that name        {{ and }}   a brace */
#ifndef TEMPLATE_H
#define TEMPLATE_H

#include <jansson.h>

#include "error.h"
#include "status.h"

enum { TEMPLATE_PARTS_MAX = 256 };

struct template_part {
    char *text;      /* literal, or the name of a column */
    size_t bytes;
    bool column;
};

struct template {
    struct template_part *parts;
    size_t n;
};

/* ST_OK; ST_INVALID (a brace that is alone, an empty name, no column at all), ST_LIMIT, ST_NOMEM with *err set. */
MUST_CHECK enum status template_compile(const char *text, struct template *ret_template, struct error *err);
void template_deinit(struct template *t); /* a zeroed one is fine */

/* Fill in the values of an object: strings as they are, anything else as JSON.  Gives *ret_text (free()).
 * ST_OK; ST_INVALID: a column is missing or null; ST_LIMIT: over bytes_max; ST_NOMEM; *err set. */
MUST_CHECK enum status template_fill(const struct template *t, const json_t *columns, size_t bytes_max, char **ret_text, size_t *ret_bytes,
                                     struct error *err);

#endif
