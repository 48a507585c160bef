/* utf8_hold.h - bytes of pieces in, whole UTF-8 characters out.
 *
 * A token may end in the middle of a character.  The hold keeps the at most three bytes of an unfinished one until the
 * next piece completes it.  Bytes that can no longer become a character are replaced by U+FFFD, one for each maximal subpart
 * of an ill-formed sequence (the Unicode standard's recommendation, chapter 3, and what Python and browsers do), so the
 * output is valid UTF-8 whatever a model generates.  How the bytes are cut into pieces changes nothing in the output.
 *
 * To rebuild a hold elsewhere, push the same pieces through a new one. */
#ifndef UTF8_HOLD_H
#define UTF8_HOLD_H

#include <stdbool.h>

#include "span.h"

struct utf8_hold {
    uint8_t bytes[4]; /* the beginning of a character */
    uint8_t n;        /* 0 .. 3 */
    bool is_before;   /* all of them belong to the text before: see utf8_hold_after() */
};

/* The most bytes that a push of n bytes can release: each may become one U+FFFD, and so may what was held. */
#define UTF8_HOLD_OUT_MAX(n) (3 * (size_t)(n) + 3)

/* Start empty: struct utf8_hold h = { 0 }.  out has room for UTF8_HOLD_OUT_MAX(in.n).  Returns the bytes written. */
size_t utf8_hold_push(struct utf8_hold *h, struct span in, uint8_t *out);

/* Begin behind a text that may end within a character, of which these are the last bytes (three are enough).  What it began
 * comes out with the character if the first bytes pushed complete it, and not at all otherwise: it is no part of the output. */
void utf8_hold_after(struct utf8_hold *h, struct span before);

/* The text ends: an unfinished character becomes one U+FFFD.  Returns 0 or 3; the hold is empty again. */
size_t utf8_hold_finish(struct utf8_hold *h, uint8_t *out);

#endif
