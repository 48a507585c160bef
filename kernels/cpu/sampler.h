/* sampler.h - one token from one row of logits, as include/sampling.h says; the twin of the kernels on other devices.
 *
 * The random number: Philox4x32-10 with key (seed low, seed high) and counter (index, choice, 0, 0); the first word's upper
 * 24 bits over 2^24.  The chosen token is the first in candidate order whose cumulative weight exceeds it times the sum. */
#ifndef SAMPLER_H
#define SAMPLER_H

#include "backend.h"
#include "kernels.h"

struct ranked {
    float logit;
    int32_t token;
};

/* One thread's memory. */
struct sampler_scratch {
    float *raw;            /* [V padded]: logits before they were changed */
    struct ranked *ranked; /* [V] */
};

/* Philox4x32-10 (Salmon and others, "Parallel random numbers: as easy as 1, 2, 3", 2011). */
void philox4x32(const uint32_t key[2], const uint32_t counter[4], uint32_t ret_words[4]);

/* Sample for e (want == WANT_TOKEN) from logits [n_vocab, padded], which it changes. */
void sample_token(const struct kernels *k, const struct plan_entry *e, float *logits, uint32_t n_vocab,
                  struct sampler_scratch *s, struct step_result *ret_result);

#endif
