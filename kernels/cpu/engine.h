/* engine.h - the insides of the CPU backend: one model's packed weights, its KV blocks, its scratch, its threads.
 *
 * Memory is three mappings, taken by open and laid out by functions that run twice: once without memory, to add up the
 * sizes (which is the memory plan), once to hand out the pointers.  No step allocates.
 *
 * A step is one pool_run(): every thread goes through the same list of phases with a barrier after each (step.c).  Rows of
 * the step (T of them) are cut into tiles of 16 in order; only the last may be narrower. */
#ifndef ENGINE_H
#define ENGINE_H

#include "backend.h"
#include "kernels.h"
#include "pack.h"
#include "pool.h"
#include "rope.h"
#include "sampler.h"

/* Bump it when any bit of any logit may change: it is part of the numerics id. */
enum { ARITHMETIC_VERSION = 2 };

enum {
    SPLIT_ITEMS_MAX = 8, /* attention items of a step, up to which their splits are shared out among threads */
    COPIES_MAX = 256,    /* block copies waiting for a step before them */
};

struct layer {
    struct matrix q, k, v, o, gate, up, down;
    /* float copies, padded to 16; NULL where the model has none */
    float *attn_norm, *ffn_norm, *post_attention_norm, *post_ffw_norm;
    float *q_norm, *k_norm, *q_bias, *k_bias, *v_bias;
};

/* Rows as a kernel reads them, in the forms that the weights they meet ask for; tiles are `q8_tile`, `f32_tile` apart. */
struct input {
    uint32_t n_cols;
    uint32_t parts;    /* of q8, in memory */
    struct xblock *q8; /* NULL when no weight that reads this is quantised */
    float *f32;        /* NULL when none is of a float type */
};

/* How far a thread has asked for the K and V that its attention of `layer` will read: entries entry .. end-1, from byte `at` of
 * the layer's part of a block on. */
struct kv_cursor {
    uint32_t layer, entry, end, block;
    size_t at;
};

/* One thread's memory. */
struct thread_scratch {
    _Alignas(64) struct input in;    /* 1 tile of E, for steps so small that every thread makes its own */
    float *row;                      /* [largest row] */
    float *y, *y2;                   /* [16][CHUNK_COLS]: results of gemm before they are finished */
    struct attention_scratch attention;
    struct kv_cursor cursor;
    float *o;                        /* [ATTENTION_QUERIES][D] */
    struct sampler_scratch sampler;
    struct xblock *head_row;         /* [E / 32][2] */
    uint32_t *panels;                /* [panels of the head] */
};

enum { CHUNK_COLS = 512 };

/* One step's memory. */
struct step {
    const struct plan *plan;
    struct step_result *results;
    uint32_t n_rows, n_tiles, last_width;
    bool compact;         /* in the last layer: x and the inputs hold only the wanted rows, in order */
    int32_t *token;       /* [T] */
    uint32_t *position;   /* [T] */
    uint32_t *entry;      /* [T] */
    uint32_t *out_row;    /* [T]: rows whose logits are wanted, n_out of them */
    uint32_t n_out;
    uint32_t *item_start; /* [B+1]: first attention item of each entry */
    uint32_t split_items; /* > 0: items share their splits among threads, split_count each at most */
    uint32_t split_count;
    float *x, *tmp;       /* [T][E padded] residual stream; output of a block before its post norm */
    float *q;             /* [T][H * D] */
    struct input in_e, in_o, in_f, in_head;
    float *cosines[2], *sines[2]; /* [T][D / 2] of the rope tables */
    float *logits;        /* [16][V padded] */
    struct attention_state *split_state; /* [SPLIT_ITEMS_MAX][splits of the longest context] */
    float *split_o;                      /* their o: [..][heads of a tile][D] */
};

struct mapping {
    uint8_t *at;
    size_t bytes;
};

struct arena {
    uint8_t *base; /* NULL: only add up */
    size_t used;
};

struct queued {
    backend_ticket ticket;
    bool is_copy;
    const struct plan *plan;
    struct block_copy copy;
};

struct backend {
    const struct model *m;
    struct backend_options options; /* with all defaults filled in */
    const struct kernels *k;
    struct pool *pool;
    struct mapping weights, kv, scratch;
    struct memory_plan memory;

    struct layer *layers;
    struct matrix head;          /* [V, E] */
    float *head_norms, head_norm; /* of each panel, at least the norm of each row, and the largest; 0 where greedy.c does not take
                                   * its type */
    float *output_norm;
    struct rope rope[2];
    double *frequencies[2];

    /* KV: block = [layer][kv head] K then V then scales */
    size_t kv_head_bytes, kv_layer_bytes;
    struct kv_view kv_view;      /* of layer 0, head 0, without blocks */
    uint32_t heads_per_group, heads_per_tile, tokens_per_tile, head_sets;

    struct step step;
    struct thread_scratch *threads; /* [n_threads] */

    /* what was submitted and not done, in order; results of the last step for from_entry */
    struct queued queue[BACKEND_STEPS_MAX + COPIES_MAX];
    uint32_t n_queued, n_steps;
    backend_ticket next_ticket;
    int32_t *last_tokens;        /* [B] */
    uint32_t n_last;
};

static inline uint32_t pad16(uint32_t n)
{
    return round_up(n, 16);
}

/* memory.c */
MUST_CHECK enum status mapping_take(size_t bytes, struct mapping *ret_mapping);
void mapping_drop(struct mapping *m); /* empty is fine */
void *arena_take(struct arena *a, size_t bytes); /* 64-aligned; NULL while only adding up */
uint64_t memory_available(void);      /* bytes this process may still take: the machine's and its cgroups' */

/* layout.c: sizes and pointers of everything in b; m and options are set.  ST_OK or ST_UNSUPPORTED. */
MUST_CHECK enum status layout_weights(struct backend *b, struct arena *a, struct error *err);
void layout_kv(struct backend *b);
void layout_scratch(struct backend *b, struct arena *a);

/* step.c */
uint32_t width_of_tile(uint32_t n_rows, uint32_t tile);
void step_run(struct backend *b, const struct plan *p, struct step_result *results);
void input_zero(const struct backend *b, const struct input *in, uint32_t row, uint32_t n_rows, uint32_t width);
void input_put(const struct backend *b, const struct input *in, uint32_t parts, uint32_t row, uint32_t width, uint32_t column,
               uint32_t n, const float *x);

/* greedy.c: rows of which only the best token is asked for. */
bool greedy_type(enum tensor_type t);
float greedy_norm(const float *w, uint32_t n); /* at least |w|; w padded to 16 */
bool greedy_entry(const struct plan_entry *e);
/* logits hold the sums over the first part of row `row` of in_head (a tile of `width`): afterwards those that may be the largest
 * are over both, and all others are smaller than the largest. */
void greedy_refine(struct backend *b, uint32_t row, uint32_t width, float *logits, uint32_t thread);

/* attend.c: one layer's attention from step.q and the blocks to step.in_o; contains its own barrier where splits are shared. */
void attend_prepare(struct backend *b);
void attend_layer(struct backend *b, uint32_t l, uint32_t thread);
/* Where a step decodes many sequences, its products leave memory time for the K and V of the next attention.  start: from now on
 * those of layer l; take: what to ask for with the next n_k blocks of K, into x. */
void attend_ahead_start(struct backend *b, uint32_t l, uint32_t thread);
void attend_ahead_take(struct backend *b, uint32_t thread, uint32_t n_k, struct tile *x);
struct kv_view kv_view_of(const struct backend *b, uint32_t l, uint32_t kv_head, const uint32_t *blocks);

#endif
