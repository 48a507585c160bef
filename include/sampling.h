/* sampling.h - how the next token is chosen.  Flat: it crosses the region and the backend contract as it is.
 *
 * Order of operations on the raw logits of one row (float32):
 *   1. logit_bias is added
 *   2. repetition penalty r on tokens of prompt and answer: l > 0 ? l / r : l * r
 *   3. presence and frequency penalty on tokens of the answer: l -= presence + frequency * count
 *   4. temperature <= SAMPLING_GREEDY_BELOW: the largest logit, the lowest id among equals.  Otherwise
 *   5. candidates in order of logit (descending), then id (ascending): top_k keeps the first k
 *   6. l / temperature, softmax over what is left
 *   7. top_p keeps the shortest prefix whose probabilities sum to at least top_p
 *   8. min_p drops those below min_p * p(first)
 *   9. one uniform in [0,1) from Philox4x32-10(key = seed, counter = (choice, index)) picks by cumulative sum
 * Log-probabilities that are reported come from the raw logits (before 1). */
#ifndef SAMPLING_H
#define SAMPLING_H

#include <stdint.h>

#define SAMPLING_GREEDY_BELOW 1e-3f /* a temperature at or below this is greedy: dividing by it would overflow */

struct sampling {
    uint64_t seed;
    float temperature;        /* 0 = greedy; at most 100 */
    float top_p;              /* (0, 1]; 1 = off */
    float min_p;              /* [0, 1]; 0 = off */
    float repetition_penalty; /* > 0; 1 = off */
    float presence_penalty;   /* [-2, 2]; 0 = off */
    float frequency_penalty;  /* [-2, 2]; 0 = off */
    uint32_t top_k;           /* 0 = off */
    uint32_t n_logprobs;      /* alternatives wanted a token, 0 .. LOGPROBS_MAX */
    uint8_t logprobs;         /* 1: the chosen token's log-probability is wanted (also with n_logprobs 0) */
    uint8_t pad[7];
};
_Static_assert(sizeof(struct sampling) == 48, "layout is part of the region");

struct logit_bias {
    int32_t token;
    float bias; /* finite; at most 100 in magnitude.  -100 forbids in practice */
};
_Static_assert(sizeof(struct logit_bias) == 8, "layout is part of the region");

/* How often a token stands in a sequence so far; what the penalties are computed from. */
struct token_count {
    int32_t token;
    uint32_t in_prompt;
    uint32_t in_answer;
};

#endif
