/* greedy.c - the best token without the second part of the head's input.
 *
 * The head is a fifth of the arithmetic of a decode step and reads its input in two parts, which makes it a third.  Who only
 * asks for the best token needs the full sums of the few tokens that may be it.  With y the sum over both parts and c that over
 * the first alone, of a row w of the head,
 *
 *     |y - c| <= |w . e| + rounding <= |w| (|e| + slack |x|)          (Cauchy-Schwarz)
 *
 * e being the second part, x the first; slack bounds the rounding of the two sums, an operation at 2^-24 of at most |w| |x|.  With |w|
 * replaced by the largest of 16 rows, a panel, no token whose c lies |w| (|e| + slack |x|) below any y can have the best y.  First the
 * panel with the best c gets both parts, which gives a good y; then those that may still be better, by the same operations
 * as ever.  So the token is the one that all full sums would give.
 *
 * Only for types whose codes count from their middle: with a separate minimum the products may be far larger than |w| |x|. */
#include "engine.h"

#include <math.h>
#include <string.h>

bool greedy_type(enum tensor_type t)
{
    return t == TENSOR_Q4_0 || t == TENSOR_Q5_0 || t == TENSOR_Q8_0 || t == TENSOR_Q6_K;
}

float greedy_norm(const float *w, uint32_t n)
{
    float lane[16] = {0};
    double sum = 0;

    for (uint32_t i = 0; i < n; i += 16)
        for (uint32_t j = 0; j < 16; j++)
            lane[j] += w[i + j] * w[i + j];
    for (uint32_t j = 0; j < 16; j++)
        sum += (double)lane[j];
    const float norm = (float)(sqrt(sum) * 1.001); /* above what rounding may have taken off */
    return isfinite(norm) ? norm : INFINITY;       /* then no bound holds, and every panel gets both parts */
}

bool greedy_entry(const struct plan_entry *e)
{
    return e->want == WANT_TOKEN && e->sampling->temperature <= SAMPLING_GREEDY_BELOW &&
           e->sampling->logprobs == 0 && e->n_bias == 0 && e->n_seen == 0;
}

/* Row `row` of the head's input as a tile of its own, and how far from c its y can be for a row of norm 1. */
static double take_row(const struct backend *b, uint32_t row, uint32_t width, struct xblock *ret_x)
{
    const uint32_t n_blocks = b->m->n_embd / QUANT_BLOCK;
    const struct xblock *x = b->step.in_head.q8 + row;
    double norm[2] = {0, 0};

    for (uint32_t i = 0; i < 2 * n_blocks; i++) {
        int32_t sum = 0;
        ret_x[i] = x[(size_t)i * width];
        for (uint32_t j = 0; j < QUANT_BLOCK; j++)
            sum += ret_x[i].q[j] * ret_x[i].q[j];
        norm[i % 2] += (double)ret_x[i].d * (double)ret_x[i].d * sum;
    }
    const double slack = (16.0 * n_blocks + 16.0) * 0x1p-24;
    return 1.001 * (sqrt(norm[1]) + slack * sqrt(norm[0]));
}

/* Panel p of the logits over both parts; gives the largest. */
static float refine_panel(const struct backend *b, uint32_t p, const struct xblock *row, float *logits)
{
    const struct matrix *m = &b->head;
    const struct tile x = {.x = row, .width = 1, .stride = 2, .parts = 2};
    const uint32_t at = p * PANEL_ROWS, left = b->m->n_vocab - at;

    b->k->gemm[m->type](m->data + p * m->panel_bytes, m->panel_bytes, 1, m->n_k, &x, logits + at, PANEL_ROWS);
    return b->k->maximum(logits + at, left < PANEL_ROWS ? left : PANEL_ROWS);
}

/* The largest y that is smaller than `best` by more than rounding of this sum itself. */
static float lower(float best, double reach)
{
    return (float)((double)best - reach - fabs((double)best) * 0x1p-22);
}

void greedy_refine(struct backend *b, uint32_t row, uint32_t width, float *logits, uint32_t thread)
{
    struct thread_scratch *own = &b->threads[thread];
    const uint32_t n_panels = b->head.n_panels;
    const double reach = take_row(b, row, width, own->head_row);
    float best = b->k->maximum(logits, b->m->n_vocab);
    uint32_t n = isfinite(best) ? b->k->panels_from(logits, n_panels, best, own->panels) : 0;

    if (n > 0)
        best = refine_panel(b, own->panels[0], own->head_row,
                            logits); /* a y that is not far from the best: half the way */
    const float least = lower(best, reach * (double)b->head_norm);
    if (n == 0 || !isfinite(least)) {
        for (uint32_t p = 0; p < n_panels; p++)
            (void)refine_panel(b, p, own->head_row, logits);
        return;
    }
    n = b->k->panels_from(logits, n_panels, least, own->panels);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t p = own->panels[i];
        if (b->k->maximum(logits + (size_t)p * PANEL_ROWS, PANEL_ROWS) <
            lower(best, reach * (double)b->head_norms[p]))
            continue;
        const float y = refine_panel(b, p, own->head_row, logits);
        best = y > best ? y : best;
    }
}
