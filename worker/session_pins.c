/* session_pins.c - see session_pins.h.  A few hundred entries at most, looked through only when a request of a session comes or ends. */
#include "session_pins.h"

#include <assert.h>
#include <stddef.h>

static struct session_pin *find(struct session_pins *p, uint64_t session)
{
    for (uint32_t i = 0; i < p->n; i++)
        if (p->list[i].session == session)
            return &p->list[i];
    return NULL;
}

static void remove_pin(struct session_pins *p, struct prefix_cache *pc, struct session_pin *s)
{
    prefix_cache_release_path(pc, s->leaf);
    p->n_blocks -= s->n_blocks;
    *s = p->list[--p->n];
}

void session_pins_hold(struct session_pins *p, struct prefix_cache *pc, uint64_t session, uint32_t leaf, uint32_t n_blocks)
{
    uint32_t share = prefix_cache_n_blocks(pc) / SESSION_PINS_SHARE;

    assert(session != 0 && n_blocks > 0);
    for (; n_blocks > share && n_blocks > 0; n_blocks--)
        leaf = prefix_cache_parent(pc, leaf);
    if (n_blocks == 0)
        return; /* a pool of one block */
    prefix_cache_pin_path(pc, leaf); /* first: the paths may be one */
    session_pins_drop(p, pc, session);
    while (p->n == SESSION_PINS_MAX || p->n_blocks + n_blocks > share)
        (void)session_pins_drop_oldest(p, pc);
    p->list[p->n++] = (struct session_pin){ .session = session, .leaf = leaf, .n_blocks = n_blocks, .used = ++p->clock };
    p->n_blocks += n_blocks;
}

void session_pins_touch(struct session_pins *p, uint64_t session)
{
    struct session_pin *s = find(p, session);

    if (s != NULL)
        s->used = ++p->clock;
}

void session_pins_drop(struct session_pins *p, struct prefix_cache *pc, uint64_t session)
{
    struct session_pin *s = find(p, session);

    if (s != NULL)
        remove_pin(p, pc, s);
}

bool session_pins_drop_oldest(struct session_pins *p, struct prefix_cache *pc)
{
    struct session_pin *oldest = NULL;

    for (uint32_t i = 0; i < p->n; i++)
        if (oldest == NULL || p->list[i].used < oldest->used)
            oldest = &p->list[i];
    if (oldest == NULL)
        return false;
    remove_pin(p, pc, oldest);
    p->n_yielded++;
    return true;
}

void session_pins_check(const struct session_pins *p, const struct prefix_cache *pc)
{
    uint64_t n_blocks = 0;

    assert(p->n <= SESSION_PINS_MAX);
    for (uint32_t i = 0; i < p->n; i++) {
        uint32_t n = 0;

        for (uint32_t at = p->list[i].leaf; at != KV_BLOCK_NONE; at = prefix_cache_parent(pc, at))
            n++;
        assert(n == p->list[i].n_blocks && p->list[i].session != 0);
        n_blocks += n;
        for (uint32_t k = 0; k < i; k++)
            assert(p->list[k].session != p->list[i].session);
    }
    assert(n_blocks == p->n_blocks && n_blocks <= prefix_cache_n_blocks(pc) / SESSION_PINS_SHARE);
}
