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
#define GEMM_MIXED   PASTE(gemm_mixed_, PRODUCT_TYPE)
#define GEMM_GATE    PASTE(gemm_gate_, PRODUCT_TYPE)

/* Blocks of a product of many rows that share a multiprocessor.  (Q6_K keeps two sums a block of K; compiled for sm_100, a third
 * of these blocks would not leave it registers enough.) */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
enum { GEMM_RESIDENT = format<TYPE_ID>::is_six ? 2 : 3 };
#else
enum { GEMM_RESIDENT = 3 };
#endif

__global__ void __launch_bounds__(GEMV_THREADS, 3) GEMV(const __grid_constant__ struct product_args a, uint32_t cols,
                                                           uint32_t columns_max)
{
    gemv_int<TYPE_ID, false>(a, cols, columns_max);
}
__global__ void __launch_bounds__(GEMV_THREADS, 3) GEMV_GATE(const __grid_constant__ struct product_args a, uint32_t cols,
                                                                uint32_t columns_max)
{
    gemv_int<TYPE_ID, true>(a, cols, columns_max);
}
__global__ void __launch_bounds__(GEMM_THREADS, GEMM_RESIDENT) GEMM_(const __grid_constant__ struct product_args a)
{
    gemm_int<TYPE_ID, false, 1>(a);
}
__global__ void __launch_bounds__(GEMM_THREADS, GEMM_RESIDENT) GEMM_MIXED(const __grid_constant__ struct product_args a)
{
    uint32_t column, group = group_of(column);

    if (part_of(a, find_part(a, 8, group)).n_inputs == 2)
        gemm_int<TYPE_ID, false, 2>(a);
    else
        gemm_int<TYPE_ID, false, 1>(a);
}
__global__ void __launch_bounds__(GEMM_THREADS, GEMM_RESIDENT) GEMM_GATE(const __grid_constant__ struct product_args a)
{
    gemm_int<TYPE_ID, true, 1>(a);
}

/* Few rows: columns are rows times inputs, at most GEMV_ROWS of them. */
static enum status product_few(const struct product_args *a, uint32_t rows_max, uint32_t inputs, cudaStream_t stream)
{
    const uint32_t most = GEMV_ROWS / inputs, fit = rows_max < most ? rows_max : most;
    const uint32_t cols = fit <= 1 ? 1 : fit <= 2 ? 2 : fit <= 4 ? 4 : 8, tiles = (rows_max + cols - 1) / cols;

    if (a->kind == PRODUCT_GATE)
        return status_of(LAUNCH(GEMV_GATE, dim3(groups(a, 2), tiles), dim3(GEMV_THREADS), (gemv_layout<TYPE_ID, true>::bytes(cols)),
                                stream, *a, cols, cols));
    return status_of(LAUNCH(GEMV, dim3(groups(a, 1), tiles), dim3(GEMV_THREADS),
                            (gemv_layout<TYPE_ID, false>::bytes(cols * inputs)), stream, *a, cols, cols * inputs));
}

enum status PASTE(product_, PRODUCT_TYPE)(const struct product_args *a, uint32_t rows_max, device_stream s)
{
    const cudaStream_t stream = reinterpret_cast<cudaStream_t>(s);
    const size_t bytes = GEMM_STAGES * GEMM_BLOCKS * GEMM_ROWS * sizeof(struct xblock);
    uint32_t inputs = 1, least = 2;

    for (uint32_t i = 0; i < a->n_parts; i++) {
        inputs = a->part[i].n_inputs > inputs ? a->part[i].n_inputs : inputs;
        least = a->part[i].n_inputs < least ? a->part[i].n_inputs : least;
    }
    /* Parts that read one and two inputs: those of one would go over their weights twice, once for every 4 rows. */
    if (rows_max <= (least < inputs ? GEMV_ROWS / 2 : GEMV_ROWS))
        return product_few(a, rows_max, inputs, stream);
    const uint32_t cols = GEMM_ROWS / inputs, tiles = (rows_max + cols - 1) / cols;
    if (a->kind == PRODUCT_GATE)
        return status_of(LAUNCH(GEMM_GATE, dim3(groups(a, 4), tiles), dim3(GEMM_THREADS), bytes, stream, *a));
    if (inputs == 2)
        return status_of(LAUNCH(GEMM_MIXED, dim3(groups(a, 8), tiles), dim3(GEMM_THREADS), bytes, stream, *a));
    return status_of(LAUNCH(GEMM_, dim3(groups(a, 8), tiles), dim3(GEMM_THREADS), bytes, stream, *a));
}
