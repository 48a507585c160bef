/* gemm.cu - which product; and the kernels of F32. */
#include "gemm.h"
#include "gemm_float.cuh"
#include "status.cuh"

/* Kernels by rows a thread and kind. */
#define FLOAT_KERNEL(name, rows, gate)                                                                   \
    __global__ void __launch_bounds__(FLOAT_THREADS, 6) name(const __grid_constant__ struct product_args a) \
    {                                                                                                    \
        gemm_float<rows, gate>(a);                                                                       \
    }
FLOAT_KERNEL(gemm_F32_few, 1, false)
FLOAT_KERNEL(gemm_F32_many, 8, false)
FLOAT_KERNEL(gemm_gate_F32_few, 1, true)
FLOAT_KERNEL(gemm_gate_F32_many, 8, true)

static enum status product_F32(const struct product_args *a, uint32_t rows_max, cudaStream_t s)
{
    const bool gate = a->kind == PRODUCT_GATE, few = rows_max <= 4;
    const uint32_t tile = few ? 4 : 32;
    const dim3 grid(groups(a, 2), (rows_max + tile - 1) / tile), block(FLOAT_THREADS);
    const size_t bytes = (size_t)FLOAT_STAGES * tile * FLOAT_K * sizeof(float);

    if (few && gate)
        return status_of(LAUNCH(gemm_gate_F32_few, grid, block, bytes, s, *a));
    if (few)
        return status_of(LAUNCH(gemm_F32_few, grid, block, bytes, s, *a));
    if (gate)
        return status_of(LAUNCH(gemm_gate_F32_many, grid, block, bytes, s, *a));
    return status_of(LAUNCH(gemm_F32_many, grid, block, bytes, s, *a));
}

enum status launch_product(const struct product_args *a, uint32_t rows_max, device_stream s)
{
    for (uint32_t i = 1; i < a->n_parts; i++)
        if (a->part[i].type != a->part[0].type)
            return product_any(a, rows_max, s);
    switch (a->part[0].type) {
#define X(type)         \
    case TENSOR_##type: \
        return product_##type(a, rows_max, s);
        PRODUCT_TYPES(X)
#undef X
    default:
        return product_F32(a, rows_max, reinterpret_cast<cudaStream_t>(s));
    }
}
