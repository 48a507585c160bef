/* gemm_half.cu - the kernels of F16 and BF16 weights, and the choice among them. */
#include "gemm.h"
#include "gemm_half.cuh"
#include "status.cuh"

enum {
    FEW_ROWS = 32, FEW_STAGES = 6,  /* decodes of many sequences: weights decide */
    MANY_ROWS = 64, MANY_STAGES = 4, /* prompts: tensor cores do */
};

#define GEMV(name, type, gate)                                                                                     \
    __global__ void __launch_bounds__(GEMV_THREADS, 3) name(const __grid_constant__ struct product_args a, uint32_t cols) \
    {                                                                                                              \
        gemv_half<type, gate>(a, cols);                                                                            \
    }
#define GEMM(name, type, panels, rows, stages, gate)                                                  \
    __global__ void __launch_bounds__(GEMM_THREADS, 3) name(const __grid_constant__ struct product_args a) \
    {                                                                                                 \
        gemm_half<type, panels, rows / 8, stages, gate>(a);                                           \
    }
#define HALF_PRODUCT(type)                                                                                                    \
    GEMV(gemv_##type, TENSOR_##type, false)                                                                                   \
    GEMV(gemv_gate_##type, TENSOR_##type, true)                                                                               \
    GEMM(gemm_##type##_few, TENSOR_##type, 1, FEW_ROWS, FEW_STAGES, false)                                                    \
    GEMM(gemm_gate_##type##_few, TENSOR_##type, 2, FEW_ROWS, FEW_STAGES, true)                                                \
    GEMM(gemm_##type##_many, TENSOR_##type, 2, MANY_ROWS, MANY_STAGES, false)                                                 \
    GEMM(gemm_gate_##type##_many, TENSOR_##type, 2, MANY_ROWS, MANY_STAGES, true)                                             \
    enum status product_##type(const struct product_args *a, uint32_t rows_max, device_stream s)                              \
    {                                                                                                                         \
        const cudaStream_t stream = reinterpret_cast<cudaStream_t>(s);                                                        \
        const bool gate = a->kind == PRODUCT_GATE;                                                                            \
        const uint32_t cols = rows_max <= 1 ? 1 : rows_max <= 2 ? 2 : rows_max <= 4 ? 4 : 8;                                  \
        const uint32_t tiles = (rows_max + MANY_ROWS - 1) / MANY_ROWS;                                                        \
                                                                                                                              \
        if (rows_max <= GEMV_ROWS && gate)                                                                                    \
            return status_of(LAUNCH(gemv_gate_##type, dim3(groups(a, 2)), dim3(GEMV_THREADS), half_layout<true>::bytes(cols), \
                                    stream, *a, cols));                                                                       \
        if (rows_max <= GEMV_ROWS)                                                                                            \
            return status_of(LAUNCH(gemv_##type, dim3(groups(a, 1)), dim3(GEMV_THREADS), half_layout<false>::bytes(cols),     \
                                    stream, *a, cols));                                                                       \
        if (rows_max <= FEW_ROWS && gate)                                                                                     \
            return status_of(LAUNCH(gemm_gate_##type##_few, dim3(groups(a, 4)), dim3(GEMM_THREADS),                           \
                                    (half_tile<2, FEW_ROWS / 8, FEW_STAGES>::bytes), stream, *a));                            \
        if (rows_max <= FEW_ROWS)                                                                                             \
            return status_of(LAUNCH(gemm_##type##_few, dim3(groups(a, 4)), dim3(GEMM_THREADS),                                \
                                    (half_tile<1, FEW_ROWS / 8, FEW_STAGES>::bytes), stream, *a));                            \
        if (gate)                                                                                                             \
            return status_of(LAUNCH(gemm_gate_##type##_many, dim3(groups(a, 4), tiles), dim3(GEMM_THREADS),                   \
                                    (half_tile<2, MANY_ROWS / 8, MANY_STAGES>::bytes), stream, *a));                          \
        return status_of(LAUNCH(gemm_##type##_many, dim3(groups(a, 8), tiles), dim3(GEMM_THREADS),                            \
                                (half_tile<2, MANY_ROWS / 8, MANY_STAGES>::bytes), stream, *a));                              \
    }
HALF_PRODUCT(F16)
HALF_PRODUCT(BF16)
