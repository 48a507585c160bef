/* twin.h - what the tests of single kernels share: random numbers, exact heap buffers, the CPU's kernels. */
#ifndef TWIN_H
#define TWIN_H

#include "cuda_emu.h" /* before cmocka, which makes a macro of the word fail */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

extern "C" {
#include <cmocka.h>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/rope.h"
#include "kernels/cpu/sampler.h"
#include "tests/support/synthetic_model.h"
}
#include "kernels/cuda/launch.h"

struct dice {
    uint64_t state;

    uint64_t next()
    {
        state ^= state << 13;
        state ^= state >> 7;
        return state ^= state << 17;
    }
    uint32_t below(uint32_t n)
    {
        return (uint32_t)(next() >> 33) % n;
    }
    float unit()
    {
        return (float)(int32_t)(next() >> 32) * 0x1p-31f;
    }
    template <typename T, size_t N> T pick(const T (&of)[N])
    {
        return of[below(N)];
    }
};

/* Memory that ends where it should: AddressSanitizer sees the first byte past it. */
template <typename T> struct exact {
    T *at;
    size_t n;

    explicit exact(size_t count, int fill = 0xff) : at(nullptr), n(count)
    {
        void *p = nullptr;
        if (posix_memalign(&p, 128, count * sizeof(T) > 0 ? count * sizeof(T) : 1) != 0)
            abort();
        at = static_cast<T *>(memset(p, fill, count * sizeof(T)));
    }
    ~exact()
    {
        free(at);
    }
    exact(const exact &) = delete;
    exact &operator=(const exact &) = delete;
    T &operator[](size_t i)
    {
        return at[i];
    }
};

inline uint32_t pad_to_16(uint32_t n)
{
    return (n + 15) / 16 * 16;
}

inline const struct kernels *cpu()
{
    return &kernels_scalar;
}

template <typename T> void assert_bits(const char *what, const T *want, const T *got, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(want + i, got + i, sizeof(T)) != 0)
            fail_msg("%s (seed %llu): element %zu of %zu differs: %a, the CPU has %a", what, (unsigned long long)emu::seed(), i, n,
                     (double)*reinterpret_cast<const float *>(got + i), (double)*reinterpret_cast<const float *>(want + i));
}

/* A step's rows on the "device". */
struct device_step {
    struct step_header header;
    std::vector<struct step_row> rows;
    std::vector<struct step_item> items;
    std::vector<uint32_t> tables, out_rows, out_counts;
    std::vector<struct sample_request> requests;
    std::vector<struct logit_bias> bias;
    std::vector<struct token_count> seen;

    struct step_view view()
    {
        header.n_rows = (uint32_t)rows.size();
        header.n_items = (uint32_t)items.size();
        header.n_requests = (uint32_t)requests.size();
        struct step_view v = {};
        v.header = &header;
        v.rows = rows.data();
        v.items = items.data();
        v.out_rows = out_rows.data();
        v.out_counts = out_counts.data();
        v.requests = requests.data();
        v.tables = tables.data();
        v.bias = bias.data();
        v.seen = seen.data();
        return v;
    }
};

#endif
