/* region.h - the shared memory between the broker and one life of one worker.
 *
 *   [header][card][stats][slot flags x REGION_SLOTS][traces x REGION_SLOTS][bells][request ring][event ring][arena ...............]
 *
 * Made by the broker as a memfd, allocated in full (no SIGBUS later) and sealed against resizing, inherited by the worker
 * as a descriptor: no name in /dev/shm, nothing left after kill -9.  A region serves one life; a restarted worker gets a
 * new one.  Offsets, never pointers.  The geometry is checked once against the descriptor's size and kept privately.
 *
 *   part          written by            read by
 *   header        broker, before exec   worker
 *   card          worker, until ready   broker, after event READY or FAILED
 *   stats         worker, each step     broker (relaxed; single values, no consistency between them)
 *   slot flags    broker                worker, each step
 *   traces        worker, as it happens broker, when a request ends or somebody asks (relaxed; single values)
 *   bells         [0] requests: worker  broker, after a push      (each side writes the flag that says it sleeps)
 *                 [1] events: broker    worker, after a push
 *   request ring  broker pushes         worker pops
 *   event ring    worker pushes         broker pops
 *   arena         broker                worker; a ring of bytes: a record's bytes are free again when the request ring's
 *                                       head has passed the message that named it, so the worker copies before it pops
 *
 * Descriptors of a worker at exec (REGION_FD_*; all but those of the store are always there): nothing else is open but standard input (/dev/null), output, error. */
#ifndef REGION_H
#define REGION_H

#include <stdatomic.h>
#include <stdint.h>

#include "backend.h"
#include "doorbell.h"
#include "limits.h"
#include "ring.h"
#include "status.h"

#define REGION_MAGIC 0x52494557u /* "WEIR" */
enum { REGION_VERSION = 3 };

enum {
    REGION_FD_MEMORY = 3,       /* the memfd */
    REGION_FD_REQUEST_BELL = 4, /* eventfd: broker wakes worker */
    REGION_FD_EVENT_BELL = 5,   /* eventfd: worker wakes broker */
    REGION_FD_CONTROL = 6,      /* socketpair: end of file on it means that the broker is gone */
    REGION_FD_STORE = 7,        /* partition.h: the own partition, then those of others without a gap; or nothing */
};

struct region_header {
    uint32_t magic, version;
    uint64_t bytes;             /* of the whole region */
    uint32_t worker_slot;       /* which slot of the pool */
    uint32_t life;              /* counts the runs of this slot */
    uint64_t boot_id;           /* of the broker */
    uint64_t card_at, stats_at, flags_at, traces_at, bells_at, requests_at, events_at, arena_at; /* offsets, multiples of 64 */
    uint32_t n_request_slots, n_event_slots;
    uint64_t arena_bytes;
};

/* What the worker is; filled before its first event. */
struct region_card {
    uint32_t abi;               /* BACKEND_ABI of the worker */
    uint32_t ready;             /* 1: serves; 0: failed, see error */
    uint32_t context_tokens;    /* longest sequence */
    uint32_t n_vocab;
    uint32_t n_blocks, block_bytes;
    uint32_t max_seqs, max_rows;
    uint32_t n_threads;
    int32_t bos_token, eos_token;
    uint64_t weight_bytes, kv_bytes;
    char numerics_id[NUMERICS_ID_BYTES];
    char device[64];
    char architecture[32];
    char model_name[64];        /* general.name of the file */
    char chat_template[32];     /* name of the template in use; empty: none */
    char build_id[64];
    char error[ERROR_MESSAGE_BYTES]; /* why it failed */
};

/* Counters only grow; the rest are levels.  Each is stored and loaded by itself, relaxed. */
#define REGION_STATS_LIST(X)                                                              \
    X(steps)                /* forward passes done */                                     \
    X(step_ns)              /* time in them */                                            \
    X(prefill_tokens)       /* prompt tokens computed */                                  \
    X(cached_tokens)        /* prompt tokens taken from the cache */                      \
    X(decode_tokens)        /* tokens generated */                                        \
    X(requests_started) X(requests_ended)                                                 \
    X(preemptions)                                                                        \
    X(evictions)            /* blocks evicted to make room */                             \
    X(evictions_stored)     /* ... of them, those whose contents the host store kept */   \
    X(tails_superseded)     /* blocks dropped because a longer one contains them */       \
    X(eviction_age_ns)      /* from last use to eviction, summed */                       \
    X(sessions_yielded)     /* sessions that gave their blocks up under pressure */       \
    X(store_hits)           /* blocks that came back from the own part of the host store */ \
    X(store_hits_other)     /* ... that came from another worker's */                     \
    X(store_refused)        /* found there, and not believed: overwritten meanwhile, or broken */ \
    X(store_puts)           /* blocks copied to the own part */                           \
    X(store_evictions)      /* ... and evicted from it */                                 \
    X(heartbeat_ns)         /* CLOCK_MONOTONIC of the last pass of the worker's loop */   \
    X(step_began_ns)        /* 0 while no step is running */                              \
    X(running_seqs) X(waiting_requests)     /* levels from here on */                     \
    X(waiting_tokens)       /* prompt tokens not yet computed, running and waiting */     \
    X(blocks_free) X(blocks_pinned) X(blocks_cached)                                      \
    X(store_blocks) X(store_blocks_max)     /* in the own part of the host store, and how many it holds; 0: none */

/* Steps by how many sequences they computed, and by how long they took: counts by upper bound, the last above all bounds. */
enum { STEP_BATCH_BOUNDS = 8, STEP_TIME_BOUNDS = 11 };
static const uint32_t step_batch_bounds[STEP_BATCH_BOUNDS] = { 1, 2, 4, 8, 16, 32, 64, 128 };
static const uint32_t step_time_bounds_us[STEP_TIME_BOUNDS] = { 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000 };

struct region_stats {
#define X(name) _Atomic uint64_t name;
    REGION_STATS_LIST(X)
#undef X
    _Atomic uint64_t batches[STEP_BATCH_BOUNDS + 1], batch_sum; /* sum of sequences over all steps */
    _Atomic uint64_t times[STEP_TIME_BOUNDS + 1];               /* their sum is step_ns */
};

/* One a request slot.  Written by the broker; the worker acts on a flag only when the generation is the one it runs. */
enum { SLOT_CANCEL = 1, SLOT_PAUSE = 2 };
struct region_slot {
    _Alignas(64) _Atomic uint64_t word; /* generation << 32 | flags */
};

/* Where the time of the request in a slot went, in this life of this worker: times of CLOCK_MONOTONIC, 0 while they are to come, and
 * sums of nanoseconds.  `generation` says whose it is: 0 while the worker changes it from one request to the next. */
enum { TRACE_CHUNKS = 16 };
#define REGION_TRACE_LIST(X)                                                              \
    X(taken_ns)             /* out of the request ring */                                 \
    X(tokenized_ns)         /* its prompt is tokens */                                    \
    X(tokenize_ns)          /* sum: computing in the tokenizer */                         \
    X(admitted_ns)          /* its first sequence runs */                                 \
    X(prefix_wait_ns)       /* sum: it waited, before that, for a prefix that another computed */ \
    X(first_ns)             /* its first token was sampled */                             \
    X(last_ns)              /* its last so far */                                         \
    X(chunks)               /* steps that computed a part of its prompt */                \
    X(chunk_ns)             /* sum: time in them */                                       \
    X(steps)                /* steps after the first token with a row of it */            \
    X(step_ns)              /* sum: time in them */

struct region_trace {
    _Alignas(64) _Atomic uint64_t generation;
#define X(name) _Atomic uint64_t name;
    REGION_TRACE_LIST(X)
#undef X
    struct region_chunk { _Atomic uint64_t began_ns, took_ns, rows; } chunk[TRACE_CHUNKS]; /* the last one sums up all from there on */
};

/* One process's view of a region. */
struct region {
    uint8_t *at;                 /* the mapping */
    uint64_t bytes;
    uint32_t worker_slot, life;
    uint64_t boot_id;
    struct region_card *card;
    struct region_stats *stats;
    struct region_slot *slots;   /* [REGION_SLOTS] */
    struct region_trace *traces; /* [REGION_SLOTS] */
    struct ring_end requests, events;
    struct doorbell request_bell, event_bell;
    uint8_t *arena;
    uint64_t arena_bytes;
};

/* Broker: make, allocate, seal and map a region and its two eventfds.  Gives the caller *ret_fd, ret_bells[0] (request) and
 * ret_bells[1] (event), all close-on-exec, and the mapping.  ST_OK, ST_NOMEM, ST_SYSTEM. */
MUST_CHECK enum status region_create(uint32_t worker_slot, uint32_t life, uint64_t boot_id, struct region *ret_region,
                                     int *ret_fd, int ret_bells[2]);

/* Worker: check seals, size, header and geometry, then map.  Borrows the eventfds.  ST_OK, ST_CORRUPT, ST_SYSTEM. */
MUST_CHECK enum status region_attach(int fd, int request_bell, int event_bell, struct region *ret_region);

void region_unmap(struct region *r); /* the descriptors stay with their owner */

#endif
