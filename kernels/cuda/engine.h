/* engine.h - the insides of the CUDA backend: one model's packed weights on the device, its KV blocks, its scratch, and
 * what is under way.
 *
 * Device memory is three allocations, taken by open and laid out by functions that run twice: once without memory, to add
 * up (which is the memory plan), once to hand out pointers.  No step allocates, on the device or here.
 *
 * A step is written into one buffer of pinned memory, copied to the device with one copy, and computed by kernels that read
 * it there (launch.h).  All of it is ordered by one stream; block copies have another.  Steps of decodes only are recorded
 * once for some sizes as graphs, and a step runs the smallest that holds it. */
#ifndef CUDA_ENGINE_H
#define CUDA_ENGINE_H

#include "backend.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/matmul.h"

/* Bump it when any bit of any logit may change: it is part of the numerics id. */
enum { CUDA_ARITHMETIC_VERSION = 4 };

enum {
    COPIES_PENDING_MAX = 256,   /* block copies under way */
    SAMPLE_SLOTS_MAX = 32,      /* requests sampled at a time */
    PARTS_BYTES_MAX = 64 << 20, /* memory for splits of decode attention */
    ROW_SIZES_MAX = 10,         /* decode sizes that have graphs: 1, 2, 4 .. 512 */
    PART_SIZES_MAX = 10,        /* by splits of the longest sequence: 1, 2, 4 .. 512 */
    FAST_TOKENS_MIN = 64,       /* tokens an entry must add to be computed by matmul.h, where that was asked for */
    SLAB_BYTES = 64 << 20,      /* bf16 weights of one matrix product there */
};

struct cuda_layer {
    struct weights q, k, v, o, gate, up, down;
    /* floats; NULL where the model has none */
    float *attn_norm, *ffn_norm, *post_attention_norm, *post_ffw_norm;
    float *q_norm, *k_norm, *q_bias, *k_bias, *v_bias;
};

struct cuda_arena {
    uint8_t *base; /* NULL: only add up */
    size_t used;
};

/* Everything in device memory that steps write. */
struct cuda_scratch {
    float *x, *tmp;              /* [T][E padded]; tmp only where a block's output has a norm of its own */
    float *q, *k, *v;            /* [T][H * D], [T][G * D] */
    float *gate, *up;            /* [T][F padded]: only where a layer's gate and up differ in type */
    struct row_input in_e, in_o, in_f;
    float *cosines[2], *sines[2]; /* [T][D / 2] */
    float *logits;               /* [B][V padded] */
    float *parts;
    uint32_t *counters, *attention_counters;
    uint8_t *step;               /* a step as uploaded */
    float *raw, *exps;           /* [slots][V padded] */
    uint64_t *ranked;
    double *weights;
    struct step_result *results; /* [B] */
    int32_t *last_tokens;        /* [B] */
};

/* For how large a step the buffers of a step, and the grids of a graph, are. */
struct step_sizes {
    uint32_t rows, items, outs, requests;
    uint32_t items_mma;          /* after the items: of rows that matmul.h computes */
    uint32_t exact;              /* rows that matmul.h does not compute */
    uint32_t parts, queries;     /* most of an item */
};

/* A step that was submitted and not waited for. */
struct cuda_step {
    backend_ticket ticket;
    const struct plan *plan;
    device_event done;
    uint8_t *upload;             /* pinned */
    struct step_result *results; /* pinned, [B] */
};

struct cuda_copy {
    backend_ticket ticket;       /* 0: free */
    device_event done;
};

struct backend {
    const struct model *m;
    struct backend_options options;
    struct device_properties device;
    struct memory_plan memory;
    uint8_t *weights_at, *kv_at, *scratch_at, *wide_at;

    /* fast prefill */
    struct matmul *matmul;       /* NULL without it */
    uint64_t weight_bytes;       /* of weights_at */
    uint64_t wide_bytes;         /* of wide_at: a copy of all layers' matrices in bf16, or one slab */
    bool wide_kept;
    uint16_t *slab;

    struct cuda_layer *layers;
    struct weights head, embedding; /* equal when the head is tied */
    float *output_norm;
    double *frequencies[2];
    float magnitudes[2];
    struct kv_pool kv;
    struct cuda_scratch s;
    uint32_t n_vocab_padded, n_parts, n_slots;
    uint32_t heads_per_tile, head_sets;
    size_t step_bytes;

    device_stream compute, copies;
    device_event last_step;      /* after the newest step on the compute stream */
    bool any_step;
    struct cuda_step steps[BACKEND_STEPS_MAX];
    uint32_t n_steps, first_step;
    struct cuda_copy copy[COPIES_PENDING_MAX];
    backend_ticket next_ticket;
    backend_ticket *block_ticket; /* [n_blocks] newest copy that reads or writes it */
    device_graph graphs[ROW_SIZES_MAX][PART_SIZES_MAX];
    bool has_half;                /* some matrix is F16 or BF16 */
    bool broken;                  /* a step or copy failed: only close is left */
};

/* layout.c: sizes and pointers of everything in b; m and options are set.  ST_OK or ST_UNSUPPORTED. */
MUST_CHECK enum status cuda_layout_weights(struct backend *b, struct cuda_arena *a, struct error *err);
void cuda_layout_kv(struct backend *b);
void cuda_layout_scratch(struct backend *b, struct cuda_arena *a);

/* fast.c: fast prefill.  Whether the copy fits and how large it is; then where it lies (with memory behind wide_at).  Once the
 * weights are there, open the library, choose its algorithms and fill the copy.  A product: y [rows][y_stride] = or += of the
 * rows from `row` on. */
void cuda_fast_size(struct backend *b);
void cuda_fast_place(struct backend *b);
MUST_CHECK enum status cuda_fast_open(struct backend *b, struct error *err);
MUST_CHECK enum status cuda_fast_product(const struct backend *b, const struct weights *w, const struct row_input *in, uint32_t row,
                                         uint32_t n_rows, float *y, uint32_t y_stride, bool add);

/* load.c: pack all weights onto the device.  ST_OK, ST_NOMEM, ST_SYSTEM. */
MUST_CHECK enum status cuda_load(struct backend *b);

/* plan.c: a plan as bytes for the device.  Writes to `upload` and says how many bytes it used, and what sizes the step has. */
size_t cuda_plan_bytes_max(const struct backend *b);
size_t cuda_plan_write(const struct backend *b, const struct plan *p, const struct step_sizes *capacity, uint8_t *upload);
void cuda_plan_sizes(const struct backend *b, const struct plan *p, struct step_sizes *ret_sizes);
bool cuda_plan_is_fast(const struct backend *b, const struct plan_entry *e);
/* Where the parts of a step of that capacity lie. */
void cuda_plan_view(const struct backend *b, const struct step_sizes *capacity, uint8_t *at, struct step_view *ret_view);

/* step.c */
MUST_CHECK enum status cuda_step_start(struct backend *b, struct cuda_step *s, const struct plan *p);
MUST_CHECK enum status cuda_record_graphs(struct backend *b);

#endif
