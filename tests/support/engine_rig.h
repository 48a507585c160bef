/* engine_rig.h - a model file opened on the CPU backend, for tests: feed tokens, get logits. */
#ifndef TESTS_ENGINE_RIG_H
#define TESTS_ENGINE_RIG_H

#include "backend.h"
#include "worker/gguf.h"
#include "worker/model_file.h"

struct rig {
    struct gguf *gguf;
    struct model *model;
    const struct backend_api *api;
    struct backend *backend;
    struct backend_options options;
};

/* Zero options mean: 2 threads, 512 rows, 64 sequences, the model's context up to 4096, 512 blocks, f16.  Fails the program. */
void rig_open(struct rig *r, const char *path, const struct backend_options *o);
/* The same, but gives the backend's answer instead of ending the program when it refuses to open. */
MUST_CHECK enum status rig_try_open(struct rig *r, const char *path, const struct backend_options *o, struct error *err);
void rig_close(struct rig *r);

/* Feed tokens first .. last-1 of ids as the positions of the same numbers, at most `chunk` a step, blocks as given.
 * logits: [last - first, V], or NULL. */
void rig_feed(struct rig *r, const int32_t *ids, uint32_t first, uint32_t last, uint32_t chunk, const uint32_t *blocks,
              float *logits);

/* One step over entries; results may be NULL. */
void rig_step(struct rig *r, const struct plan_entry *entries, uint32_t n, struct step_result *results);

/* How far the CUDA backend's logits may be from the CPU's, mean square of the difference over mean square: 0 (the same bits) unless
 * some matrix is F16 or BF16; 1e-5 then; more where later values are rounded to int8, since one between two codes may take the other. */
double model_half_bound(const struct model *m, enum kv_type kv_type);

/* blocks[i] = first + i */
void rig_blocks(uint32_t *blocks, uint32_t n, uint32_t first);

#endif
