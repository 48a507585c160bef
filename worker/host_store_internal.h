/* host_store_internal.h - layout of a partition's contents, and reading them; for host_store.c, store_view.c and their tests. */
#ifndef HOST_STORE_INTERNAL_H
#define HOST_STORE_INTERNAL_H

#include <stdatomic.h>

#include "backend.h"
#include "host_store.h"
#include "partition.h"

#define STORE_MAGIC 0x42494557u /* "WEIB" */
enum {
    STORE_VERSION = 1,
    STORE_HEADER_AT = PARTITION_BIRTH_BYTES,
    STORE_INDEX_AT = STORE_HEADER_AT + 4096,
    STORE_LINE = 64,
    STORE_PROBES_MAX = 512, /* buckets a reader looks at: with at most half of them full, a run is hardly ever longer than 30 */
};

struct store_header {
    uint32_t magic, version;
    _Atomic uint64_t state;      /* odd while the contents are being made anew */
    uint64_t epoch;              /* the partition's when they were */
    uint32_t n_slots, block_bytes;
    char numerics_id[NUMERICS_ID_BYTES];
};

struct store_record {            /* who a slot's block is; no padding: it is part of the checksum */
    struct prefix_scope scope;
    struct block_key key, parent;
    uint64_t serial;             /* of the put; tells a new life which blocks are older */
    uint32_t position, n_tokens; /* n_tokens is BLOCK_TOKENS */
    int32_t tokens[BLOCK_TOKENS];
};
_Static_assert(sizeof(struct store_record) == 16 * 3 + 8 + 8 + 4 * BLOCK_TOKENS, "no padding");

struct store_entry {             /* one a slot */
    _Alignas(64) _Atomic uint64_t generation; /* 0: empty; odd: being written */
    uint64_t checksum;           /* over payload and record */
    struct store_record record;
};

/* A bucket of the index: tag << 32 | slot + 1; 0: empty.  Linear probing from the key's home bucket. */
typedef _Atomic uint64_t store_bucket;

struct store_geometry {          /* follows from the partition's size and the block's: nobody reads it from shared memory */
    uint32_t n_slots, n_buckets; /* n_buckets: a power of two, at least twice n_slots */
    uint32_t block_bytes, slot_bytes;
    uint64_t entries_at, payload_at;
};

struct store_view {              /* a partition as a reader sees it */
    const uint8_t *at;
    uint64_t bytes;
    struct store_geometry g;
    char numerics_id[NUMERICS_ID_BYTES];
    uint64_t checksum_seed;
};

/* false: it holds no block. */
bool store_geometry(uint64_t bytes, uint32_t block_bytes, struct store_geometry *ret_g);

uint64_t store_checksum(uint64_t seed, const void *payload, uint32_t block_bytes, const struct store_record *r);

static inline uint32_t store_home(const struct store_geometry *g, struct block_key key)
{
    return (uint32_t)key.h[0] & (g->n_buckets - 1);
}

static inline uint64_t store_bucket_of(struct block_key key, uint32_t slot)
{
    return (key.h[1] >> 32) << 32 | (slot + 1);
}

static inline const struct partition_birth *view_birth(const struct store_view *v)
{
    return (const struct partition_birth *)v->at;
}

static inline const struct store_header *view_header(const struct store_view *v)
{
    return (const struct store_header *)(v->at + STORE_HEADER_AT);
}

static inline const store_bucket *view_index(const struct store_view *v)
{
    return (const store_bucket *)(v->at + STORE_INDEX_AT);
}

static inline const struct store_entry *view_entry(const struct store_view *v, uint32_t slot)
{
    return (const struct store_entry *)(v->at + v->g.entries_at) + slot;
}

static inline const uint8_t *view_payload(const struct store_view *v, uint32_t slot)
{
    return v->at + v->g.payload_at + (uint64_t)slot * v->g.slot_bytes;
}

/* Are the contents whole, of this epoch, and of our numerics id and geometry?  Then *ret_state is what must not have changed
 * when a copy is to be believed. */
bool store_view_valid(const struct store_view *v, uint64_t *ret_state);

struct store_place {             /* where a block was found */
    uint32_t slot;
    uint64_t generation, state;
    uint64_t checksum;
    struct store_record record;
};

/* Find a block whose record is that of name, in a slot that nobody was writing. */
bool store_view_find(const struct store_view *v, const struct block_name *name, struct store_place *ret_place);

/* Copy the payload that was found; true: it is whole. */
bool store_view_copy(const struct store_view *v, const struct store_place *p, void *to);

#endif
