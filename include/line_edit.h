/* line_edit.h - one line of text being typed on a terminal, as a machine that is fed bytes: no terminal, no clock, no waiting in it.
 *
 * `weir chat` feeds it what it reads from its own terminal, the gateway's `chat` what comes over a channel of ssh.
 * Keys: arrows, Home, End, Delete, ^A ^E ^B ^F ^P ^N ^H ^K ^U ^W ^L, history by up and down, pasted text with its newlines.  In a paste
 * no key acts but ^C, which ends it and drops the line: so the editor is never deaf, whatever became of the mark at the paste's end.
 * The text is UTF-8 always: a character may come in any number of parts; bytes that are none become U+FFFD.
 *
 *   line_edit_begin ──► line_edit_byte ... LINE_EDIT_MORE ──► LINE, END or INTERRUPTED ──► line_edit_begin
 *                       line_edit_draw whenever nothing more has come
 *
 * The caller puts the terminal into raw mode and asks it to mark pasted text (LINE_EDIT_ON; LINE_EDIT_OFF afterwards). */
#ifndef LINE_EDIT_H
#define LINE_EDIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum { LINE_EDIT_BYTES_MAX = 256 << 10, LINE_EDIT_HISTORY = 100, LINE_EDIT_HISTORY_BYTES = 1 << 20 };

#define LINE_EDIT_ON "\x1b[?2004h"
#define LINE_EDIT_OFF "\x1b[?2004l"

enum line_edit_end {
    LINE_EDIT_MORE,        /* the line is not complete */
    LINE_EDIT_LINE,        /* Enter: line_edit_text() */
    LINE_EDIT_END,         /* ^D in an empty line */
    LINE_EDIT_INTERRUPTED, /* ^C: the line is dropped */
};

struct line_edit; /* opaque */

/* Widths of characters are the C library's: call setlocale(LC_CTYPE, ...) with an UTF-8 locale first. */
struct line_edit *line_edit_new(void); /* NULL: out of memory */
void line_edit_free(struct line_edit *e);

/* An empty line behind this prompt: ASCII, borrowed until the next call. */
void line_edit_begin(struct line_edit *e, const char *prompt);
/* A byte that was typed.  Goes to out: a bell, when the line is full; a cleared screen. */
enum line_edit_end line_edit_byte(struct line_edit *e, unsigned char c, FILE *out);
/* Nothing has come for some 50 ms: an ESC stood alone, the next byte is not behind it.  In a paste that says nothing: its parts come
 * when the line brings them. */
void line_edit_pause(struct line_edit *e);
/* Draw the row anew, at most so many columns wide: it scrolls sideways when the line is longer.  A tab is drawn as one blank, a newline
 * as |, control characters as terminal_show() does. */
void line_edit_draw(const struct line_edit *e, unsigned columns, FILE *out);
/* NUL-terminated, until the next byte. */
const char *line_edit_text(struct line_edit *e, size_t *ret_bytes);

#endif
