/* random.c - splitmix64 (Steele, Lea, Flood 2014): any seed will do, and a step is three multiplications. */
#include "random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t n_ops;

static const char *setting(int argc, char **argv, const char *flag, const char *variable)
{
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], flag) == 0)
            return argv[i + 1];
    return getenv(variable);
}

struct random random_start(int argc, char **argv, uint64_t fallback_ops)
{
    const char *seed = setting(argc, argv, "--seed", "WEIR_TEST_SEED");
    const char *ops = setting(argc, argv, "--ops", "WEIR_TEST_OPS");
    struct random r = { seed != NULL ? strtoull(seed, NULL, 0) : 1 };
    n_ops = ops != NULL ? strtoull(ops, NULL, 0) : fallback_ops;
    printf("seed %llu, %llu operations\n", (unsigned long long)r.state, (unsigned long long)n_ops);
    fflush(stdout);
    return r;
}

uint64_t random_ops(void)
{
    return n_ops;
}

uint64_t random_next(struct random *r)
{
    uint64_t x = r->state += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

uint32_t random_below(struct random *r, uint32_t n)
{
    return (uint32_t)((random_next(r) >> 32) * n >> 32);
}
