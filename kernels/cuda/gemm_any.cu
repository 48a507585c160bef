/* gemm_any.cu - parts of several quantised types in one product, as q, k and v often are: a block takes the code of its part's type.
 * (Kernels of one type need fewer registers.) */
#include "gemm.h"
#include "gemm_many.cuh"
#include "gemv_int.cuh"
#include "status.cuh"

/* Blocks that share a multiprocessor: what the type with most registers allows. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
enum { GEMV_RESIDENT = 2, GEMM_RESIDENT = 2 };
#else
enum { GEMV_RESIDENT = 3, GEMM_RESIDENT = 3 };
#endif

__global__ void __launch_bounds__(GEMV_THREADS, GEMV_RESIDENT)
    gemv_any(const __grid_constant__ struct product_args a, uint32_t cols, uint32_t columns_max)
{
    uint32_t group = blockIdx.x;

    switch (part_of(a, find_part(a, 1, group)).type) {
#define X(type)                                               \
    case TENSOR_##type:                                       \
        gemv_int<TENSOR_##type, false>(a, cols, columns_max); \
        break;
        QUANTISED_TYPES(X)
#undef X
    default:
        break;
    }
}

__global__ void __launch_bounds__(GEMM_THREADS, GEMM_RESIDENT)
    gemm_any(const __grid_constant__ struct product_args a)
{
    uint32_t column, group = group_of(column);

    switch (part_of(a, find_part(a, 8, group)).type) {
#define X(type)                           \
    case TENSOR_##type:                   \
        gemm_int_mixed<TENSOR_##type>(a); \
        break;
        QUANTISED_TYPES(X)
#undef X
    default:
        break;
    }
}

/* Of the part that needs most. */
static size_t gemv_bytes(const struct product_args *a, uint32_t columns)
{
    size_t most = 0;

    for (uint32_t i = 0; i < a->n_parts; i++) {
        size_t bytes = 0;
        switch (a->part[i].type) {
#define X(type)                                                    \
    case TENSOR_##type:                                            \
        bytes = gemv_layout<TENSOR_##type, false>::bytes(columns); \
        break;
            QUANTISED_TYPES(X)
#undef X
        default:
            break;
        }
        most = bytes > most ? bytes : most;
    }
    return most;
}

enum status product_any(const struct product_args *a, uint32_t rows_max, device_stream s)
{
    const cudaStream_t stream = reinterpret_cast<cudaStream_t>(s);
    const struct int_tiles t = int_tiles(a, rows_max);

    if (t.few)
        return status_of(LAUNCH(gemv_any, dim3(groups(a, 1), t.n), dim3(GEMV_THREADS),
                                gemv_bytes(a, t.columns), stream, *a, t.cols, t.columns));
    return status_of(LAUNCH(gemm_any, dim3(groups(a, 8), t.n), dim3(GEMM_THREADS), GEMM_BYTES, stream, *a));
}
