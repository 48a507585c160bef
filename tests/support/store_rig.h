/* store_rig.h - partitions and made-up blocks for tests of the host store.
 *
 * A made-up block is one of STORE_BLOCKS: its number alone says scope, tokens, key and payload, so whoever finds a block, in
 * whatever process, can tell whether it got the right bytes.  Blocks form a forest: 3 scopes with the same tokens, 3 children a
 * block, 4 deep. */
#ifndef STORE_RIG_H
#define STORE_RIG_H

#include <stdbool.h>
#include <stdint.h>

#include "partition.h"
#include "worker/host_store.h"

enum { STORE_BLOCKS = 3 * (3 + 9 + 27 + 81), STORE_BLOCK_BYTES = 15000 / 8 * 8, STORE_PARTITION_BYTES = 1 << 20 };

struct store_block {
    int32_t tokens[BLOCK_TOKENS];
    struct block_name name;   /* .tokens points to tokens */
};

extern const uint64_t store_rig_secret[2];

/* Make all blocks; call once before the others. */
void store_rig_init(void);
const struct store_block *store_rig_block(uint32_t i);   /* 0 .. STORE_BLOCKS - 1 */

/* The bytes of block i (aligned to 8); part 0 and 1 are its halves, 2 the whole. */
void store_rig_fill(uint32_t i, void *payload, int part);
bool store_rig_is(uint32_t i, const void *payload);

struct partition store_rig_partition(uint32_t worker_slot);

/* Open with an own partition (or -1) and one other one (or -1). */
struct host_store *store_rig_open(int own_fd, int other_fd, const char *numerics_id);

#endif
