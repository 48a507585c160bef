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

/* Blocks of a product of many rows that share a multiprocessor: as many as there are registers for without spills.  (Q6_K keeps two
 * sums a block of K, Q5_K has most to unpack, compiled for sm_100 everything takes more; sm_86 and sm_89 have shared memory for
 * two.) */
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890
enum { GATE_RESIDENT = 3, GEMM_RESIDENT = 3, MIXED_RESIDENT = 3 };
#elif __CUDA_ARCH__ >= 1000
enum { GATE_RESIDENT = format<TYPE_ID>::is_six ? 2 : 3, GEMM_RESIDENT = GATE_RESIDENT, MIXED_RESIDENT = GATE_RESIDENT };
#else
enum { GATE_RESIDENT = format<TYPE_ID>::is_six ? 3 : 4,
       GEMM_RESIDENT = TYPE_ID == TENSOR_Q5_K ? 3 : GATE_RESIDENT,
       MIXED_RESIDENT = TYPE_ID == TENSOR_Q4_0 || TYPE_ID == TENSOR_Q4_1 ? 4 : 3 };
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
__global__ void __launch_bounds__(GEMM_THREADS, MIXED_RESIDENT) GEMM_MIXED(const __grid_constant__ struct product_args a)
{
    gemm_int_mixed<TYPE_ID>(a);
}
__global__ void __launch_bounds__(GEMM_THREADS, GATE_RESIDENT) GEMM_GATE(const __grid_constant__ struct product_args a)
{
    gemm_int<TYPE_ID, true, 1>(a);
}

enum status PASTE(product_, PRODUCT_TYPE)(const struct product_args *a, uint32_t rows_max, device_stream s)
{
    const cudaStream_t stream = reinterpret_cast<cudaStream_t>(s);
    const struct int_tiles t = int_tiles(a, rows_max);
    const bool gate = a->kind == PRODUCT_GATE;

    if (t.few && gate)
        return status_of(LAUNCH(GEMV_GATE, dim3(groups(a, 2), t.n), dim3(GEMV_THREADS),
                                (gemv_layout<TYPE_ID, true>::bytes(t.columns)), stream, *a, t.cols, t.columns));
    if (t.few)
        return status_of(LAUNCH(GEMV, dim3(groups(a, 1), t.n), dim3(GEMV_THREADS),
                                (gemv_layout<TYPE_ID, false>::bytes(t.columns)), stream, *a, t.cols, t.columns));
    if (gate)
        return status_of(LAUNCH(GEMM_GATE, dim3(groups(a, 4), t.n), dim3(GEMM_THREADS), GEMM_BYTES, stream, *a));
    if (t.columns > t.cols)
        return status_of(LAUNCH(GEMM_MIXED, dim3(groups(a, 8), t.n), dim3(GEMM_THREADS), GEMM_BYTES, stream, *a));
    return status_of(LAUNCH(GEMM_, dim3(groups(a, 8), t.n), dim3(GEMM_THREADS), GEMM_BYTES, stream, *a));
}
