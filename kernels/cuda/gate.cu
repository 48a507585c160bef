/* gate.cu - act(g) * u as a kernel of its own, for the rare file whose gate and up weights differ in type; all others have
 * it inside the product.  A warp makes one block of 32. */
#include "rows.cuh"
#include "status.cuh"

enum { GATE_THREADS = 128 };

__global__ void __launch_bounds__(GATE_THREADS) gate_rows(const __grid_constant__ struct gate_args a)
{
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const uint32_t block = blockIdx.x * (GATE_THREADS / WARP) + warp, i = block * WARP + lane;

    grid_wait();
    grid_launch();
    if (blockIdx.y >= *a.n_rows || block * WARP >= a.n)
        return;
    const uint32_t row = a.map == nullptr ? blockIdx.y : __ldg(a.map + blockIdx.y);
    const size_t at = (size_t)row * a.stride + i;
    put_input(a.out, row, block, i < a.n ? gated(a.gelu, a.g[at], a.u[at]) : 0.0f, i < a.n, lane);
}

enum status launch_gate(const struct gate_args *a, uint32_t rows_max, device_stream s)
{
    const uint32_t columns = GATE_THREADS;

    return status_of(LAUNCH(gate_rows, dim3((a->n + columns - 1) / columns, rows_max), dim3(GATE_THREADS), 0,
                            reinterpret_cast<cudaStream_t>(s), *a));
}
