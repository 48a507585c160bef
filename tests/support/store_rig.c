/* store_rig.c - see store_rig.h. */
#include "store_rig.h"

#include <assert.h>
#include <string.h>

const uint64_t store_rig_secret[2] = { 0x0706050403020100u, 0x0f0e0d0c0b0a0908u };

static struct store_block blocks[STORE_BLOCKS];

static uint32_t add(uint32_t n, struct prefix_scope scope, struct block_key parent, uint32_t depth)
{
    const struct block_secret secret = { { store_rig_secret[0], store_rig_secret[1] } };
    for (int32_t child = 0; child < 3; child++) {
        struct store_block *b = &blocks[n++];
        for (uint32_t i = 0; i < BLOCK_TOKENS; i++)
            b->tokens[i] = child * 100 + (int32_t)i;
        b->name = (struct block_name){ .scope = scope,
                                       .key = block_key_next(&secret, parent, b->tokens),
                                       .parent = parent,
                                       .position = depth,
                                       .tokens = b->tokens };
        if (depth < 3)
            n = add(n, scope, b->name.key, depth + 1);
    }
    return n;
}

void store_rig_init(void)
{
    const struct block_secret secret = { { store_rig_secret[0], store_rig_secret[1] } };
    uint32_t n = 0;
    for (uint64_t s = 0; s < 3; s++) {
        struct prefix_scope scope = { { 7, s } };
        n = add(n, scope, block_key_root(&secret, scope), 0);
    }
    assert(n == STORE_BLOCKS);
}

const struct store_block *store_rig_block(uint32_t i)
{
    assert(i < STORE_BLOCKS);
    return &blocks[i];
}

/* Words that no other block has at any place. */
static uint64_t word_of(uint32_t i, uint32_t at)
{
    return ((uint64_t)(i + 1) << 32 | at) * 0x9e3779b97f4a7c15u;
}

void store_rig_fill(uint32_t i, void *payload, int part)
{
    const uint32_t n = STORE_BLOCK_BYTES / 8;
    uint64_t *p = payload;
    for (uint32_t at = part == 1 ? n / 2 : 0; at < (part == 0 ? n / 2 : n); at++)
        p[at] = word_of(i, at);
}

bool store_rig_is(uint32_t i, const void *payload)
{
    const uint64_t *p = payload;
    for (uint32_t at = 0; at < STORE_BLOCK_BYTES / 8; at++)
        if (p[at] != word_of(i, at))
            return false;
    return true;
}

struct partition store_rig_partition(uint32_t worker_slot)
{
    struct partition p;
    enum status st = partition_create(STORE_PARTITION_BYTES, worker_slot, 42, store_rig_secret, &p);
    assert(st == ST_OK);
    return p;
}

struct host_store *store_rig_open(int own_fd, int other_fd, const char *numerics_id)
{
    struct host_store *hs = NULL;
    struct host_store_options o = { .own_fd = own_fd,
                                    .other_fds = &other_fd,
                                    .n_others = other_fd >= 0 ? 1 : 0,
                                    .block_bytes = STORE_BLOCK_BYTES,
                                    .numerics_id = numerics_id };
    enum status st = host_store_new(&o, &hs);
    assert(st == ST_OK);
    return hs;
}
