/* terminal.h - what people see.  Text of a model is not to be trusted with a terminal: an escape sequence in it could retitle the window,
 * hide text or answer back.  So on a terminal control characters are shown ("^["), in a pipe or file bytes stay as they are. */
#ifndef TERMINAL_H
#define TERMINAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum { TERMINAL_NAME_BYTES = 16 };

/* Write whole characters of UTF-8 text to out: as it is, or with control characters shown if out is a terminal. */
void terminal_text(FILE *out, const char *text, size_t bytes);

/* The same, always shown; for the tests and for text inside our own messages. */
void terminal_show(FILE *out, const char *text, size_t bytes);

/* Bytes of the control character with which this text begins, 0: with none.  What is shown in its place goes to ret_name: ASCII, one column
 * a character. */
size_t terminal_control(const char *text, size_t bytes, char ret_name[static TERMINAL_NAME_BYTES]);

bool terminal_is(FILE *out);      /* asked once, then remembered, per standard stream */
unsigned terminal_columns(FILE *out); /* 80 when it is not known */

#endif
