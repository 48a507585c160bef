/* command_line.h - a command string from the network, taken apart into words.  No shell ever sees it.
 *
 * The rules are those of a POSIX shell's quoting, and nothing else of a shell:
 *
 *   words are separated by blanks, tabs and newlines
 *   'text'    everything literal up to the next '
 *   "text"    literal, but \" and \\ stand for " and \
 *   \c        stands for c (outside quotes)
 *   ''        an empty word
 *
 * $, `, *, ?, ~, ;, |, &, <, >, #, ( and ) are characters like any other: nothing is expanded, joined or redirected. */
#ifndef COMMAND_LINE_H
#define COMMAND_LINE_H

#include <stddef.h>

#include "error.h"
#include "span.h"
#include "status.h"

enum { COMMAND_BYTES_MAX = 64 << 10, COMMAND_WORDS_MAX = 1024 };

struct command_line {
    char **words;      /* [n + 1], the last is NULL */
    size_t n;
    char *memory;
};

/* ST_OK; ST_INVALID (an open quote, a \ at the end, a NUL byte, not UTF-8), ST_LIMIT, ST_NOMEM with *err set. */
MUST_CHECK enum status command_line_split(struct span text, struct command_line *ret_line, struct error *err);
void command_line_deinit(struct command_line *line); /* a zeroed one is fine */

#endif
