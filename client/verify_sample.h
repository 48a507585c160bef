/* verify_sample.h - some answers of a finished batch, each with the request it was made from.
 *
 * Answers come from the output file, drawn with equal chances in one pass (reservoir sampling); requests from the input file, by custom_id. */
#ifndef VERIFY_SAMPLE_H
#define VERIFY_SAMPLE_H

#include "verify_case.h"

struct verify_sample {
    struct verify_case cases[VERIFY_SAMPLE_MAX];
    size_t n;
    struct verify_draw draw; /* n_seen: the answers that the output has */
};

/* Draw n of the answers in output_path and find their requests in input_path.  WEIR_OK, or WEIR_FAILED with *err. */
int verify_sample_draw(struct verify_sample *s, size_t n, uint64_t seed, const char *input_path, const char *output_path,
                       struct weir_error *err);
void verify_sample_deinit(struct verify_sample *s);

#endif
