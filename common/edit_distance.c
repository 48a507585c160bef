/* edit_distance.c - one row of Levenshtein's table at a time. */
#include "edit_distance.h"

static unsigned least(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

unsigned edit_distance(struct span a, struct span b)
{
    unsigned row[EDIT_WORD_BYTES + 1];

    if (a.n > EDIT_WORD_BYTES || b.n > EDIT_WORD_BYTES)
        return EDIT_WORD_BYTES;
    for (size_t k = 0; k <= b.n; k++)
        row[k] = (unsigned)k;
    for (size_t i = 0; i < a.n; i++) {
        unsigned diagonal = row[0];

        row[0] = (unsigned)i + 1;
        for (size_t k = 0; k < b.n; k++) {
            unsigned change = diagonal + (a.at[i] != b.at[k]);

            diagonal = row[k + 1];
            row[k + 1] = least(change, least(row[k], diagonal) + 1);
        }
    }
    return row[b.n];
}
