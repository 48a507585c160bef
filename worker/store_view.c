/* store_view.c - reading a partition that somebody else may be writing, or may have died in writing.
 *
 * Order of the loads and stores of one slot (host_store.c has the owner's half):
 *
 *   owner                                       reader
 *   W1  store generation, odd                   R1  load  generation, acquire   <-- W3
 *   W2  write payload, record, checksum         R2  copy record, checksum, payload
 *   W3  store generation, even, release         R3  fence, load generation: the same as R1?
 *
 * R1 and W3 make a finished slot whole for who sees it finished, R3 catches most of those that were taken for another block
 * meanwhile.  That it is R3's comparison and not luck would need a fence after W1 that is also a fence for a
 * device's copy engine; nothing here relies on it: the checksum covers all bytes that are used, with the serial of the
 * put among them, so a mixture of two puts is found whatever order they became visible in.
 *
 * Nothing read here is used as an offset unless it is below the geometry's own limits, which follow from sizes that are
 * sealed. */
#include "host_store_internal.h"

#include <string.h>
#include <xxhash.h>

static uint64_t up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

static uint64_t lay_out(uint64_t n_slots, struct store_geometry *g)
{
    uint64_t n_buckets = 16;
    while (n_buckets < 2 * n_slots)
        n_buckets *= 2;
    g->n_slots = (uint32_t)n_slots;
    g->n_buckets = (uint32_t)n_buckets;
    g->entries_at = STORE_INDEX_AT + n_buckets * sizeof(store_bucket);
    g->payload_at = up(g->entries_at + n_slots * sizeof(struct store_entry), 4096);
    return g->payload_at + n_slots * g->slot_bytes;
}

bool store_geometry(uint64_t bytes, uint32_t block_bytes, struct store_geometry *ret_g)
{
    struct store_geometry g = { .block_bytes = block_bytes, .slot_bytes = (uint32_t)up(block_bytes, STORE_LINE) };
    const uint64_t most = UINT32_MAX / 4;

    if (block_bytes == 0 || block_bytes > UINT32_MAX - STORE_LINE || bytes <= STORE_INDEX_AT)
        return false;
    uint64_t n = 0, too_many = (bytes - STORE_INDEX_AT) / (g.slot_bytes + sizeof(struct store_entry)) + 1;
    too_many = too_many < most ? too_many : most;
    while (too_many - n > 1) { /* n slots fit, too_many do not */
        uint64_t middle = n + (too_many - n) / 2;
        if (lay_out(middle, &g) <= bytes)
            n = middle;
        else
            too_many = middle;
    }
    if (n == 0)
        return false;
    lay_out(n, &g);
    *ret_g = g;
    return true;
}

uint64_t store_checksum(uint64_t seed, const void *payload, uint32_t block_bytes, const struct store_record *r)
{
    return XXH3_64bits_withSeed(r, sizeof(*r), XXH3_64bits_withSeed(payload, block_bytes, seed));
}

static bool record_is(const struct store_record *r, const struct block_name *name)
{
    return block_key_equal(r->key, name->key) && block_key_equal(r->parent, name->parent) && r->position == name->position &&
           memcmp(&r->scope, &name->scope, sizeof(r->scope)) == 0 && r->n_tokens == BLOCK_TOKENS &&
           memcmp(r->tokens, name->tokens, sizeof(r->tokens)) == 0;
}

bool store_view_valid(const struct store_view *v, uint64_t *ret_state)
{
    const struct store_header *h = view_header(v);
    uint64_t state = atomic_load_explicit(&h->state, memory_order_acquire);

    if (state % 2 != 0 || h->magic != STORE_MAGIC || h->version != STORE_VERSION || h->n_slots != v->g.n_slots ||
        h->block_bytes != v->g.block_bytes || memcmp(h->numerics_id, v->numerics_id, NUMERICS_ID_BYTES) != 0 ||
        h->epoch != atomic_load_explicit(&view_birth(v)->epoch, memory_order_acquire))
        return false;
    *ret_state = state;
    return true;
}

/* Copy an entry out and see whether it is the one. */
static bool look_at(const struct store_view *v, uint32_t slot, const struct block_name *name, struct store_place *p)
{
    const struct store_entry *e = view_entry(v, slot);

    p->slot = slot;
    p->generation = atomic_load_explicit(&e->generation, memory_order_acquire); /* R1 */
    if (p->generation == 0 || p->generation % 2 != 0)
        return false;
    p->checksum = e->checksum;
    memcpy(&p->record, &e->record, sizeof(p->record));
    return record_is(&p->record, name);
}

bool store_view_find(const struct store_view *v, const struct block_name *name, struct store_place *ret_place)
{
    const store_bucket *index = view_index(v);
    const uint32_t mask = v->g.n_buckets - 1, home = store_home(&v->g, name->key), tag = (uint32_t)(name->key.h[1] >> 32);
    struct store_place p;

    if (!store_view_valid(v, &p.state))
        return false;
    for (uint32_t i = 0; i < STORE_PROBES_MAX && i <= mask; i++) {
        uint64_t bucket = atomic_load_explicit(&index[(home + i) & mask], memory_order_acquire);
        uint32_t slot = (uint32_t)bucket - 1;

        if (bucket == 0)
            return false;
        if ((uint32_t)(bucket >> 32) != tag || slot >= v->g.n_slots || !look_at(v, slot, name, &p))
            continue;
        *ret_place = p;
        return true;
    }
    return false;
}

bool store_view_copy(const struct store_view *v, const struct store_place *p, void *to)
{
    uint64_t state;

    memcpy(to, view_payload(v, p->slot), v->g.block_bytes); /* R2 */
    atomic_thread_fence(memory_order_acquire);
    if (atomic_load_explicit(&view_entry(v, p->slot)->generation, memory_order_relaxed) != p->generation) /* R3 */
        return false;
    if (!store_view_valid(v, &state) || state != p->state)
        return false;
    return store_checksum(v->checksum_seed, to, v->g.block_bytes, &p->record) == p->checksum;
}
