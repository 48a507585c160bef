/* stop_match.h - find stop strings in text that comes in pieces, and let nothing out that belongs to one.
 *
 * The text is looked at byte by byte.  At the first byte that completes a stop string the answer ends; the text is cut before
 * that string (before the longest, if several end at this byte).  Until then the longest suffix that may yet become a stop
 * string is held back, everything before it is released.  So the released text does not depend on how the bytes were cut into
 * pieces, and streaming equals not streaming.
 *
 * Feed it whole characters (after utf8_hold): stop strings are whole characters too, so both the cut and the hold lie between
 * characters.
 *
 * A set is shared by all choices of a request and read-only once made; a match is one choice's state.  To rebuild a match
 * elsewhere, push the same bytes through a new one. */
#ifndef STOP_MATCH_H
#define STOP_MATCH_H

#include <stdbool.h>

#include "error.h"
#include "limits.h"
#include "span.h"
#include "status.h"

struct stop_set {
    uint32_t n;
    uint16_t bytes[STOPS_MAX];
    uint8_t text[STOPS_MAX][STOP_BYTES_MAX];
    /* next[s][k]: after k matched bytes and a mismatch, how many are still matched (the prefix function of Knuth, Morris and Pratt) */
    uint16_t next[STOPS_MAX][STOP_BYTES_MAX + 1];
};

struct stop_match {
    uint16_t matched[STOPS_MAX]; /* bytes of each stop string that the text ends with */
    uint16_t n_held;             /* the largest of them */
    uint8_t held[STOP_BYTES_MAX];
    bool hit;
    uint8_t which; /* after a hit: index of the stop string */
};

/* ST_OK; ST_INVALID: an empty string or one that is not UTF-8; ST_LIMIT: over STOPS_MAX or STOP_BYTES_MAX.  *err names
 * stop[i]. */
MUST_CHECK enum status stop_set_init(struct stop_set *ret_set, const struct span *stops, size_t n_stops,
                                     struct error *err);

/* Start empty: struct stop_match m = { 0 }.  out has room for in.n + STOP_BYTES_MAX bytes.  Returns the bytes released; after a
 * hit (m->hit) nothing more comes out, and what follows is swallowed. */
size_t stop_match_push(struct stop_match *m, const struct stop_set *set, struct span in, uint8_t *out);

/* The text ends without a stop: release what is held.  out has room for STOP_BYTES_MAX bytes.  After a hit: 0. */
size_t stop_match_finish(struct stop_match *m, uint8_t *out);

#endif
