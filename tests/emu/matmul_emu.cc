/* matmul_emu.cc - matmul.h in plain loops: each number of y is one chain of fma over k.  A shape must have been chosen, and the
 * product happens when the stream gets to it. */
#include "cuda_emu.h"

#include "kernels/cuda/matmul.h"

#include <stdio.h>
#include <stdlib.h>

#include <vector>

struct matmul {
    std::vector<struct matmul_shape> shapes;
};

enum status matmul_open(struct matmul **ret_matmul, struct error *)
{
    *ret_matmul = new matmul;
    return ST_OK;
}

void matmul_close(struct matmul *m)
{
    delete m;
}

uint64_t matmul_version(const struct matmul *)
{
    return 1;
}

static bool is_chosen(const struct matmul *m, const struct matmul_shape *s)
{
    for (const struct matmul_shape &o : m->shapes)
        if (memcmp(&o, s, sizeof(o)) == 0)
            return true;
    return false;
}

enum status matmul_choose(struct matmul *m, const struct matmul_shape *s)
{
    if (is_chosen(m, s))
        return ST_OK;
    if (m->shapes.size() == MATMUL_SHAPES_MAX)
        return ST_LIMIT;
    m->shapes.push_back(*s);
    return ST_OK;
}

static float bf16(uint16_t h)
{
    return __uint_as_float((uint32_t)h << 16);
}

static void product(const struct matmul_shape &s, const uint16_t *w, const uint16_t *x, float *y, uint32_t rows, bool add)
{
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t n = 0; n < s.n; n++) {
            float sum = 0.0f, *out = y + (size_t)r * s.y_stride + n;
            for (uint32_t k = 0; k < s.k; k++)
                sum = fmaf(bf16(w[(size_t)n * s.w_stride + k]), bf16(x[(size_t)r * s.x_stride + k]), sum);
            *out = add ? *out + sum : sum;
        }
}

enum status matmul_run(struct matmul *m, const struct matmul_shape *shape, const uint16_t *w, const uint16_t *x, float *y, uint32_t rows,
                       bool add, device_stream stream)
{
    const struct matmul_shape s = *shape;

    if (!is_chosen(m, shape) || rows == 0 || ((uintptr_t)w | (uintptr_t)x) % 16 != 0 || (s.w_stride | s.x_stride) % 8 != 0) {
        fprintf(stderr, "emulation: a matrix product of a shape that was not chosen, or at an odd address\n");
        abort();
    }
    emu::give(stream, [=] { product(s, w, x, y, rows, add); });
    return ST_OK;
}
