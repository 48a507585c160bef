/* widen.cu - what fast prefill needs beside the library's products: weights from packed to bf16, norms and biases of rows that no
 * kernel of ours has just computed. */
#include "element.cuh"
#include "rows.cuh"
#include "status.cuh"

enum { WIDEN_THREADS = 256, NORM_THREADS = 128 };

/* A block has a row of the weights and a stretch of its columns. */
__global__ void __launch_bounds__(WIDEN_THREADS, 4) widen(const __grid_constant__ struct widen_args a)
{
    const uint32_t row = a.first_row + blockIdx.x, k = blockIdx.y * WIDEN_THREADS + threadIdx.x;

    grid_wait();
    grid_launch();
    if (k < a.stride)
        a.to[(size_t)blockIdx.x * a.stride + k] = float_to_bf16(k < a.from.n_cols ? element(a.from, row, k) : 0.0f);
}

enum status launch_widen(const struct widen_args *a, device_stream s)
{
    return status_of(LAUNCH(widen, dim3(a->n_rows, (a->stride + WIDEN_THREADS - 1) / WIDEN_THREADS), dim3(WIDEN_THREADS), 0,
                            reinterpret_cast<cudaStream_t>(s), *a));
}

__global__ void __launch_bounds__(NORM_THREADS, 8) norm_rows(const __grid_constant__ struct norm_args a, uint32_t first, uint32_t n)
{
    const uint32_t row = blockIdx.x * (NORM_THREADS / WARP) + threadIdx.x / WARP;

    grid_wait();
    grid_launch();
    if (row < n)
        norm_row(a, first + row, threadIdx.x % WARP);
}

enum status launch_norm(const struct norm_args *a, uint32_t first, uint32_t n, device_stream s)
{
    const uint32_t warps = NORM_THREADS / WARP;

    return status_of(LAUNCH(norm_rows, dim3((n + warps - 1) / warps), dim3(NORM_THREADS), 0, reinterpret_cast<cudaStream_t>(s), *a,
                            first, n));
}

__global__ void __launch_bounds__(WIDEN_THREADS) add_bias(const __grid_constant__ struct bias_args a)
{
    float *y = a.y + (size_t)blockIdx.x * a.stride;

    grid_wait();
    grid_launch();
    for (uint32_t i = threadIdx.x; i < a.n; i += WIDEN_THREADS)
        y[i] = y[i] + __ldg(a.bias + i);
}

enum status launch_bias(const struct bias_args *a, uint32_t n_rows, device_stream s)
{
    return status_of(LAUNCH(add_bias, dim3(n_rows), dim3(WIDEN_THREADS), 0, reinterpret_cast<cudaStream_t>(s), *a));
}
