/* rope.h - the angles of rotary positions: theta(p, i) = p * frequency[i], computed in double. */
#ifndef ROPE_H
#define ROPE_H

#include "model.h"

struct rope {
    uint32_t half;       /* D / 2 pairs */
    float magnitude;     /* multiplies cosine and sine (yarn); 1 otherwise */
    double *frequencies; /* [half] */
};

/* Fill r->frequencies and magnitude; half and the array are the caller's.  divisors: F32 [half] or NULL. */
void rope_init(struct rope *r, const struct model_rope *m, const float *divisors);

/* Cosines and sines of one position, [half] each. */
void rope_position(const struct rope *r, uint32_t position, float *ret_cosines, float *ret_sines);

#endif
