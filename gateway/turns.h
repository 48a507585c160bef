/* turns.h - whose line is fed to the broker next.  Pure.
 *
 * Users come first: the one with the fewest lines with the broker, and of equals the one whose turn was longest ago.  So users share
 * the window evenly whatever number of jobs each has.  Among one user's jobs the higher priority goes first, then the older job. */
#ifndef TURNS_H
#define TURNS_H

#include <stddef.h>
#include <stdint.h>

struct turn {
    uint32_t user_flying;   /* lines of this user that the broker has */
    uint64_t user_last;     /* when this user had the last turn: any counter that grows */
    uint32_t priority;      /* higher first */
    int64_t seq;            /* of the job; lower first */
};

/* Index of the one to feed; n > 0. */
size_t turns_pick(const struct turn *candidates, size_t n);

#endif
