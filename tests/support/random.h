/* random.h - repeatable random numbers for tests: one seed, printed with every failure, and a bounded number of operations.
 *
 *   test_prefix_index --seed 7391 --ops 1000000       or WEIR_TEST_SEED, WEIR_TEST_OPS */
#ifndef TESTS_RANDOM_H
#define TESTS_RANDOM_H

#include <stdint.h>

struct random {
    uint64_t state;
};

/* From the command line or the environment; seed 1 and fallback_ops where neither says anything. */
struct random random_start(int argc, char **argv, uint64_t fallback_ops);
uint64_t random_ops(void);

uint64_t random_next(struct random *r);
uint32_t random_below(struct random *r, uint32_t n); /* 0 .. n - 1; n > 0 */

#endif
