/* worker_rig.h - a whole worker in this process, on a model that is made on the spot: a byte vocabulary and random weights
 * on the CPU backend, or the fake backend, whose every block is checked.  The test plays the broker. */
#ifndef WORKER_RIG_H
#define WORKER_RIG_H

#include "tests/support/region_broker.h"
#include "worker/worker.h"

enum { RIG_EOS = 261, RIG_VOCAB = 263, RIG_CONTEXT = 256 };

struct worker_rig_options {
    bool real;                 /* the CPU backend; else the fake one */
    uint32_t max_seqs, max_rows, n_blocks; /* 0: 8, 64, 128 */
    uint64_t tokenize_wait_ns; /* worker.h */
};

struct worker_rig {
    struct region_broker broker;
    struct region region;      /* the worker's view */
    struct engine engine;
    struct worker *worker;
    enum worker_state state;   /* of the last pass */
};

/* Write the model to a temporary file; returns its path (static). */
const char *worker_rig_model(void);

void worker_rig_open(struct worker_rig *r, const struct worker_rig_options *opt);
void worker_rig_close(struct worker_rig *r);

/* Passes, taking all events after each, until no request is live, or n passes are done. */
void worker_rig_run(struct worker_rig *r, uint32_t n_passes);

/* One request from start to end; its answer is in r->broker.answers[slot]. */
struct test_answer *worker_rig_ask(struct worker_rig *r, uint32_t slot, const struct test_request *q);

bool worker_rig_is_clean(const struct worker_rig *r); /* no request, no sequence, no pinned block */

#endif
