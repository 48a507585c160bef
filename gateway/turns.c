/* turns.c - see turns.h. */
#include "turns.h"

#include <assert.h>
#include <stdbool.h>

static bool before(const struct turn *a, const struct turn *b)
{
    if (a->user_flying != b->user_flying)
        return a->user_flying < b->user_flying;
    if (a->user_last != b->user_last)
        return a->user_last < b->user_last;
    if (a->priority != b->priority)
        return a->priority > b->priority;
    return a->seq < b->seq;
}

size_t turns_pick(const struct turn *candidates, size_t n)
{
    size_t best = 0;

    assert(n > 0);
    for (size_t i = 1; i < n; i++) {
        if (before(&candidates[i], &candidates[best]))
            best = i;
    }
    return best;
}
