/* line_editor.h - one line of text from a person, or from a file.
 *
 * On a terminal with the keys of line_edit.h, elsewhere plain lines.  Either way a signal that comes through signals_fd ends the waiting. */
#ifndef LINE_EDITOR_H
#define LINE_EDITOR_H

#include <stdbool.h>
#include <stddef.h>

enum { EDITOR_BYTES_MAX = 256 << 10 };

enum editor_end {
    EDITOR_LINE,        /* *ret_line */
    EDITOR_END,         /* end of input, ^D */
    EDITOR_INTERRUPTED, /* ^C: the line is dropped */
    EDITOR_SIGNAL,      /* a signal waits in signals_fd */
};

struct line_editor; /* opaque */

struct line_editor *line_editor_new(int input_fd, int signals_fd); /* NULL: out of memory */
void line_editor_free(struct line_editor *e);                      /* NULL is fine; the terminal is as it was */
bool line_editor_on_terminal(const struct line_editor *e);

/* Borrow *ret_line (NUL-terminated, *ret_bytes may count NULs in it) until the next call. */
enum editor_end line_editor_read(struct line_editor *e, const char *prompt, const char **ret_line, size_t *ret_bytes);

#endif
