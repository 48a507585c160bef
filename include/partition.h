/* partition.h - one worker slot's part of the host store, as broker and workers both know it.
 *
 *   page 0   birth     written by the broker: what the partition is, and its epoch
 *   rest     contents  written by the worker that owns the slot (worker/host_store.h), life after life
 *
 * The broker makes the partition when it starts: a memfd, sealed against resizing, without a name, gone with the broker.  It
 * outlives the workers.  The owner of the slot gets a descriptor to write through, every other worker of the same model one
 * that the kernel lets nobody write through.  The memory itself is taken by the owner when it starts (fallocate), so that the
 * broker's loop does not wait for it; later lives find it there.
 *
 * The epoch is how the broker takes everything back: contents say which epoch they belong to, and those of another are
 * believed by nobody, neither by the next life of the slot nor by a worker that reads at this moment.  It is raised when a
 * worker ends by its own fault: what such a process wrote before it fell is worth nothing.
 *
 * Descriptors of a worker at exec: REGION_FD_STORE is its own partition, the numbers that follow without a gap are the other
 * ones it may read; none at all when there is no store. */
#ifndef PARTITION_H
#define PARTITION_H

#include <stdatomic.h>
#include <stdint.h>

#include "limits.h"
#include "status.h"

#define PARTITION_MAGIC 0x53494557u /* "WEIS" */
enum {
    PARTITION_VERSION = 1,
    PARTITION_BIRTH_BYTES = 4096,       /* the broker's page */
    PARTITION_BYTES_MIN = 1 << 20,
};

struct partition_birth {
    uint32_t magic, version;
    uint64_t bytes;              /* of the whole partition */
    uint32_t worker_slot, pad;
    uint64_t boot_id;            /* of the broker */
    uint64_t secret[2];          /* keys the names of blocks (worker/block_name.h); the same in all partitions of a broker */
    _Atomic uint64_t epoch;      /* >= 1; contents of another one are void */
};

struct partition {               /* the broker's handle */
    int owner_fd;                /* read and write; -1: there is no partition */
    int reader_fd;               /* read only */
    struct partition_birth *birth;
};

/* Make one of `bytes` (a multiple of 4096, at least PARTITION_BYTES_MIN), epoch 1.  Both descriptors are close-on-exec.
 * ST_OK, ST_NOMEM, ST_SYSTEM; on failure *ret_partition is a partition that is not there. */
MUST_CHECK enum status partition_create(uint64_t bytes, uint32_t worker_slot, uint64_t boot_id, const uint64_t secret[2],
                                        struct partition *ret_partition);
void partition_close(struct partition *p); /* also one that is not there */

/* Nobody believes what is in it from now on.  Nothing happens to one that is not there. */
void partition_discard(struct partition *p);

/* Worker: check the descriptor's seals, size and birth page, and copy that.  ST_OK, ST_CORRUPT, ST_SYSTEM. */
MUST_CHECK enum status partition_read_birth(int fd, struct partition_birth *ret_birth);

#endif
