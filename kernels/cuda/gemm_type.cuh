/* gemm_type.cuh - the kernels of one quantised type, PRODUCT_TYPE, and the choice among them.  (Kernels are plain functions
 * around templates: nvcc overlooks the launch bounds of a template when it is told to insist on them.) */
#include "gemm.h"
#include "gemm_many.cuh"
#include "gemv_int.cuh"
#include "status.cuh"

#define PASTE(a, b)  PASTE_(a, b)
#define PASTE_(a, b) a##b
#define TYPE_ID      PASTE(TENSOR_, PRODUCT_TYPE)
#define GEMV         PASTE(gemv_, PRODUCT_TYPE)
#define GEMV_GATE    PASTE(gemv_gate_, PRODUCT_TYPE)
#define GEMM_        PASTE(gemm_, PRODUCT_TYPE)
#define GEMM_GATE    PASTE(gemm_gate_, PRODUCT_TYPE)

__global__ void __launch_bounds__(GEMV_THREADS, 3) GEMV(const __grid_constant__ struct product_args a, uint32_t cols)
{
    gemv_int<TYPE_ID, false>(a, cols);
}
__global__ void __launch_bounds__(GEMV_THREADS, 3) GEMV_GATE(const __grid_constant__ struct product_args a, uint32_t cols)
{
    gemv_int<TYPE_ID, true>(a, cols);
}
__global__ void __launch_bounds__(GEMM_THREADS) GEMM_(const __grid_constant__ struct product_args a)
{
    gemm_int<TYPE_ID, false>(a);
}
__global__ void __launch_bounds__(GEMM_THREADS) GEMM_GATE(const __grid_constant__ struct product_args a)
{
    gemm_int<TYPE_ID, true>(a);
}

enum status PASTE(product_, PRODUCT_TYPE)(const struct product_args *a, uint32_t rows_max, device_stream s)
{
    const bool gate = a->kind == PRODUCT_GATE;
    const cudaStream_t stream = reinterpret_cast<cudaStream_t>(s);

    if (rows_max <= GEMV_ROWS) {
        const uint32_t cols = rows_max <= 1 ? 1 : rows_max <= 2 ? 2 : rows_max <= 4 ? 4 : 8;
        if (gate)
            return status_of(LAUNCH(GEMV_GATE, dim3(groups(a, 2)), dim3(GEMV_THREADS), (gemv_layout<TYPE_ID, true>::bytes(cols)),
                                    stream, *a, cols));
        return status_of(LAUNCH(GEMV, dim3(groups(a, 1)), dim3(GEMV_THREADS), (gemv_layout<TYPE_ID, false>::bytes(cols)), stream,
                                *a, cols));
    }
    const size_t bytes = GEMM_STAGES * GEMM_BLOCKS * GEMM_ROWS * sizeof(struct xblock);
    const uint32_t tiles = (rows_max + GEMM_ROWS - 1) / GEMM_ROWS;
    if (gate)
        return status_of(LAUNCH(GEMM_GATE, dim3(groups(a, 4), tiles), dim3(GEMM_THREADS), bytes, stream, *a));
    return status_of(LAUNCH(GEMM_, dim3(groups(a, 8), tiles), dim3(GEMM_THREADS), bytes, stream, *a));
}
