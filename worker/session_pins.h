/* session_pins.h - keeps the computed conversation of a session from being evicted while nobody is using it.
 *
 * What a session keeps is the path of the request of it that ended last: its full blocks, from the first to the deepest.  (The tail of less
 * than a block is not kept: the next turn makes a longer one of it, and drops it.)  A path is named by its deepest block; the prefix index
 * knows the way up, and as long as the path is pinned the index keeps it.
 *
 * Two limits: a share of the pool, and a number of sessions.  Who comes over them, or needs a block when there is none, makes the
 * session that was used longest ago give up its pins; its blocks are then what any published block is: found as long as they are there, and
 * copied to the shelf.  So a session never changes an answer, and never stops anybody.
 *
 * Sessions are named by the broker's numbers; when one ends, the broker says so.  Blocks that sessions share count for each of them.
 *
 * Threads: none.  Memory: fixed. */
#ifndef SESSION_PINS_H
#define SESSION_PINS_H

#include "prefix_cache.h"

enum { SESSION_PINS_MAX = 512, SESSION_PINS_SHARE = 2 /* 1/2 of the pool */ };

struct session_pin {
    uint64_t session; /* never 0 */
    uint32_t leaf;    /* deepest block of the path */
    uint32_t n_blocks;
    uint64_t used;    /* larger is later */
};

struct session_pins {
    struct session_pin list[SESSION_PINS_MAX];
    uint32_t n;
    uint64_t n_blocks; /* pins of all paths together */
    uint64_t clock;
    uint64_t n_yielded; /* sessions that gave up under pressure, so far */
};

/* The session keeps the path that ends in leaf, n_blocks (> 0) full published blocks that the caller pins, instead of what it kept.  If that is
 * more than the share, it keeps the beginning. */
void session_pins_hold(struct session_pins *p, struct prefix_cache *pc, uint64_t session, uint32_t leaf, uint32_t n_blocks);
/* It is in use: it is not the one that gives up first. */
void session_pins_touch(struct session_pins *p, uint64_t session);
/* It keeps nothing any more.  Unknown sessions are ignored. */
void session_pins_drop(struct session_pins *p, struct prefix_cache *pc, uint64_t session);
/* The one used longest ago gives up.  False when there is none. */
bool session_pins_drop_oldest(struct session_pins *p, struct prefix_cache *pc);
void session_pins_check(const struct session_pins *p, const struct prefix_cache *pc);

#endif
