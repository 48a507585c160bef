/* host_store.h - full KV blocks in shared host memory: those this worker keeps, and those it may read of the others.
 *
 *   partition of a worker slot (include/partition.h), written by its owner alone:
 *
 *   [birth, broker's][header][index: buckets {tag, slot}][entries: generation, checksum, name, tokens][payloads ........]
 *
 *   put    the owner takes a free slot or that of the block used longest ago, makes its generation odd, has the payload copied in,
 *          then writes name, tokens and a checksum over all of it, makes the generation even, and enters the slot in the index.
 *   get    anybody finds a slot by the key, compares the whole name, copies the payload out, and believes the copy only if the
 *          generation is even and unchanged, the contents are still of the partition's epoch, and the checksum is right.
 *
 * A reader takes no pin and no lock and writes nothing: the partitions of others are mapped so that it cannot.  So nothing a
 * dying worker holds can block another, and a payload that was half written, or overwritten while it was read, or that a wild
 * store has hit, is a miss: the checksum decides, generation and index only save time.  What a key proves: block_name.h.
 *
 * A partition belongs to one numerics id and one block size, those in its header; a reader with others sees it empty, an owner
 * with others begins anew.  The next life of an owner adopts its partition: slots that were being written are cleared, every
 * payload is verified, the index is built again.  Contents of an earlier epoch (partition.h) are dropped.
 *
 * The limit is exact: a partition never holds more than its slots, and its memory is taken when it is opened.
 *
 * Threads: none.  Memory of its own: taken by host_store_new().  No clock; no system call after host_store_new(). */
#ifndef HOST_STORE_H
#define HOST_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "block_name.h"
#include "status.h"

struct host_store_options {
    int own_fd;                  /* the slot's own partition; -1: none, only reads.  Borrowed, not needed after host_store_new() */
    const int *other_fds;        /* [n_others], likewise */
    uint32_t n_others;           /* at most WORKERS_MAX - 1 */
    uint32_t block_bytes;
    const char *numerics_id;     /* shorter than NUMERICS_ID_BYTES */
};

struct host_store_counts {
    uint32_t n_slots, n_used;    /* of the own partition */
    uint32_t n_adopted;          /* blocks found in it at the start */
    uint64_t puts, evictions;    /* so far */
    uint64_t hits_own, hits_other; /* blocks copied out, believed */
    uint64_t refused;            /* found and copied, then not believed */
};

struct host_store; /* opaque */

/* ST_OK; ST_CORRUPT: the descriptors are no partitions of one broker; ST_LIMIT: the partition does not hold one block;
 * ST_NOMEM (also: the machine cannot give the partition its memory), ST_SYSTEM. */
MUST_CHECK enum status host_store_new(const struct host_store_options *opt, struct host_store **ret_store);
void host_store_free(struct host_store *hs); /* NULL is fine; the blocks stay for the next life */

/* The memory payloads of the own partition lie in; *ret_bytes is 0 when there is none. */
void *host_store_memory(struct host_store *hs, size_t *ret_bytes);

/* What keys the names of blocks. */
struct block_secret host_store_secret(const struct host_store *hs);

/* Is there a block of this name, in the own partition or another's?  Its payload is not looked at. */
bool host_store_has(const struct host_store *hs, const struct block_name *name);

/* Copy it to `to` [block_bytes].  ST_OK: these are its bytes.  ST_NOT_FOUND: `to` holds garbage.  A hit in the own partition
 * makes it the youngest there. */
MUST_CHECK enum status host_store_get(struct host_store *hs, const struct block_name *name, void *to);

/* --- the owner's ----------------------------------------------------------------------------- */

/* If the own partition has it, make it the youngest there.  Has it? */
bool host_store_touch(struct host_store *hs, const struct block_name *name);

/* Begin to put in a block that the own partition does not have, in place of the one used longest ago if need be.  The caller fills
 * *ret_payload [block_bytes, aligned to 64], at its leisure, then calls host_store_put_end() with the slot.
 * ST_OK, or ST_FULL: every slot is being written, or there is no own partition. */
MUST_CHECK enum status host_store_put_begin(struct host_store *hs, const struct block_name *name, uint32_t *ret_slot,
                                            void **ret_payload);
/* keep: the payload is complete; else the slot is free again. */
void host_store_put_end(struct host_store *hs, uint32_t slot, bool keep);

/* Drop it from the own partition, if it is there. */
void host_store_drop(struct host_store *hs, const struct block_name *name);

struct host_store_counts host_store_counts(const struct host_store *hs);

/* Walk everything of the own partition, payloads included; abort at the first broken invariant. */
void host_store_check(const struct host_store *hs);

#endif
