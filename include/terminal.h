/* terminal.h - what people see.  Text of a model is not to be trusted with a terminal: an escape sequence in it could retitle the window,
 * hide text or answer back.  So on a terminal control characters are shown ("^["), in a pipe or file bytes stay as they are. */
#ifndef TERMINAL_H
#define TERMINAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Write whole characters of UTF-8 text to out: as it is, or with control characters shown if out is a terminal. */
void terminal_text(FILE *out, const char *text, size_t bytes);

/* The same, always shown; for the tests and for text inside our own messages. */
void terminal_show(FILE *out, const char *text, size_t bytes);

bool terminal_is(FILE *out);      /* asked once, then remembered, per standard stream */
unsigned terminal_columns(FILE *out); /* 80 when it is not known */

#endif
