/* edit_distance.h - how far a mistyped word is from a known one, for "did you mean". */
#ifndef EDIT_DISTANCE_H
#define EDIT_DISTANCE_H

#include "span.h"

enum { EDIT_WORD_BYTES = 48 }; /* longer words are EDIT_WORD_BYTES apart from everything */

/* Levenshtein (1966): the least number of inserted, deleted and changed bytes that turn a into b. */
unsigned edit_distance(struct span a, struct span b);

#endif
