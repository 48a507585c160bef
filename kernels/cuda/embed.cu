/* embed.cu - the first kernel of a step: a block a row.  The token's row of the vocabulary times the model's scale, the
 * angles of its position, and the first layer's norm. */
#include "element.cuh"
#include "rows.cuh"
#include "status.cuh"

enum { EMBED_THREADS = 256 };

__global__ void __launch_bounds__(EMBED_THREADS, 4) embed(const __grid_constant__ struct embed_args a)
{
    const uint32_t row = blockIdx.x;

    grid_wait();
    grid_launch();
    if (row >= a.step.header->n_rows)
        return;
    const struct step_row r = a.step.rows[row];
    const uint32_t token = (uint32_t)(r.from_entry >= 0 ? a.last_tokens[r.from_entry] : r.token);
    float *x = a.x + (size_t)row * a.stride;
    for (uint32_t k = threadIdx.x; k < a.norm.n; k += EMBED_THREADS) {
        const float v = element(a.embedding, token, k);
        x[k] = a.scale != 1.0f ? v * a.scale : v;
    }
    for (uint32_t i = threadIdx.x; i < 2 * a.half; i += EMBED_THREADS) {
        const uint32_t table = i / a.half, pair = i % a.half;
        double sine, cosine;
        sincos_f64_device((double)r.position * a.frequencies[table][pair], &sine, &cosine);
        a.cosines[table][(size_t)row * a.half + pair] = (float)(cosine * (double)a.magnitudes[table]);
        a.sines[table][(size_t)row * a.half + pair] = (float)(sine * (double)a.magnitudes[table]);
    }
    __syncthreads();
    if (threadIdx.x < WARP)
        norm_row(a.norm, row, threadIdx.x);
}

enum status launch_embed(const struct embed_args *a, uint32_t rows_max, device_stream s)
{
    return status_of(LAUNCH(embed, dim3(rows_max), dim3(EMBED_THREADS), 0, reinterpret_cast<cudaStream_t>(s), *a));
}
