/* gemm.cu - which product; and the kernels of float types. */
#include "gemm.h"
#include "gemm_float.cuh"
#include "status.cuh"

/* Kernels by rows a thread and kind: gemm_F16_few, gemm_gate_F16_many, ... */
#define FLOAT_KERNEL(name, type, rows, gate)                                                               \
    __global__ void __launch_bounds__(FLOAT_THREADS, 6) name(const __grid_constant__ struct product_args a)   \
    {                                                                                                      \
        gemm_float<type, rows, gate>(a);                                                                   \
    }
#define FLOAT_PRODUCT(type)                                                                                \
    FLOAT_KERNEL(gemm_##type##_few, TENSOR_##type, 1, false)                                               \
    FLOAT_KERNEL(gemm_##type##_many, TENSOR_##type, 8, false)                                              \
    FLOAT_KERNEL(gemm_gate_##type##_few, TENSOR_##type, 1, true)                                           \
    FLOAT_KERNEL(gemm_gate_##type##_many, TENSOR_##type, 8, true)                                          \
    static enum status product_##type(const struct product_args *a, uint32_t rows_max, cudaStream_t s)     \
    {                                                                                                      \
        const bool gate = a->kind == PRODUCT_GATE, few = rows_max <= 4;                                    \
        const uint32_t tile = few ? 4 : 32;                                                                \
        const dim3 grid(groups(a, 2), (rows_max + tile - 1) / tile), block(FLOAT_THREADS);                 \
        const size_t bytes = (size_t)FLOAT_STAGES * tile * FLOAT_K * sizeof(float);                        \
                                                                                                           \
        if (few && gate)                                                                                   \
            return status_of(LAUNCH(gemm_gate_##type##_few, grid, block, bytes, s, *a));                   \
        if (few)                                                                                           \
            return status_of(LAUNCH(gemm_##type##_few, grid, block, bytes, s, *a));                        \
        if (gate)                                                                                          \
            return status_of(LAUNCH(gemm_gate_##type##_many, grid, block, bytes, s, *a));                  \
        return status_of(LAUNCH(gemm_##type##_many, grid, block, bytes, s, *a));                           \
    }
FLOAT_PRODUCT(F32)
FLOAT_PRODUCT(F16)
FLOAT_PRODUCT(BF16)

enum status launch_product(const struct product_args *a, uint32_t rows_max, device_stream s)
{
    switch (a->type) {
#define X(type)         \
    case TENSOR_##type: \
        return product_##type(a, rows_max, s);
        PRODUCT_TYPES(X)
#undef X
    case TENSOR_F32:
        return product_F32(a, rows_max, reinterpret_cast<cudaStream_t>(s));
    case TENSOR_F16:
        return product_F16(a, rows_max, reinterpret_cast<cudaStream_t>(s));
    default:
        return product_BF16(a, rows_max, reinterpret_cast<cudaStream_t>(s));
    }
}
