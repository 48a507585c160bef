/* attention_speed.cu - attention of one prompt in the shape of one layer of Llama-3-8B, alone, on float units and on tensor
 * cores, against the rate of mma.m16n8k16 that the device shows with nothing else to do.  One JSON object a line.
 *
 * Operations are those of the formula, 4 D for each head and pair of positions; on tensor cores twice as many are made, since
 * a query and a weight are two f16 each. */
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda/cuda.cuh"
#include "kernels/cuda/launch.h"

enum { HEADS = 32, KV_HEADS = 8, DIM = 128, GROUP = HEADS / KV_HEADS, PEAK_ROUNDS = 4096, PEAK_SUMS = 8, ROUNDS = 10 };

/* What device.cu has. */
int device_has_dependent_launch = 0;
enum status device_failed(const char *what, int error)
{
    fprintf(stderr, "attention_speed: %s: %s\n", what, cudaGetErrorString((cudaError_t)error));
    exit(1);
}

static void must(cudaError_t error, const char *what)
{
    if (error != cudaSuccess)
        device_failed(what, (int)error);
}

template <typename T> static T *take(size_t n, const T *from = nullptr)
{
    T *at = nullptr;

    must(cudaMalloc(&at, n * sizeof(T)), "memory");
    must(from != nullptr ? cudaMemcpy(at, from, n * sizeof(T), cudaMemcpyHostToDevice) : cudaMemset(at, 0, n * sizeof(T)), "memory");
    return at;
}

/* Words that are f16 (or, in steps of four bytes, floats) of a magnitude below 1. */
__global__ void __launch_bounds__(256) fill(uint32_t *at, size_t n, uint32_t mask)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        uint32_t h = (uint32_t)i * 2654435761u;
        h ^= h >> 15;
        at[i] = h * 2246822519u & mask;
    }
}

__global__ void __launch_bounds__(256) peak(float *out)
{
    const uint32_t a[4] = { threadIdx.x, 1, 2, 3 }, b[2] = { threadIdx.x, 5 };
    float c[PEAK_SUMS][4] = {};
    float sum = 0.0f;

    for (int i = 0; i < PEAK_ROUNDS; i++)
#pragma unroll
        for (int n = 0; n < PEAK_SUMS; n++)
            mma_f16(c[n], a, b);
#pragma unroll
    for (int n = 0; n < PEAK_SUMS; n++)
        sum += c[n][0] + c[n][1] + c[n][2] + c[n][3];
    if (sum == 1.0f)
        *out = sum;
}

/* Milliseconds of one of several runs, after one that is not counted. */
template <typename RUN> static double milliseconds(cudaStream_t stream, RUN run)
{
    cudaEvent_t begin, end;
    float ms = 0;

    must(cudaEventCreate(&begin), "event");
    must(cudaEventCreate(&end), "event");
    run();
    must(cudaEventRecord(begin, stream), "event");
    for (int i = 0; i < ROUNDS; i++)
        run();
    must(cudaEventRecord(end, stream), "event");
    must(cudaEventSynchronize(end), "run");
    must(cudaEventElapsedTime(&ms, begin, end), "event");
    return ms / ROUNDS;
}

static double measured_peak(cudaStream_t stream)
{
    cudaDeviceProp properties;
    float *out = take<float>(1);

    must(cudaGetDeviceProperties(&properties, 0), "device");
    const unsigned blocks = 2u * (unsigned)properties.multiProcessorCount;
    const double ms = milliseconds(stream, [=] { must(LAUNCH(peak, dim3(blocks), dim3(256), 0, stream, out), "launch"); });
    return 2.0 * 16 * 8 * 16 * PEAK_SUMS * PEAK_ROUNDS * 8 * blocks / ms * 1e-9;
}

/* `tokens` queries after `past` positions. */
static void measure(cudaStream_t stream, enum kv_type type, uint32_t past, uint32_t tokens, double peak_rate)
{
    const uint32_t n_blocks = (past + tokens + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
    const uint32_t per_tile[2] = { ATTEND_QUERIES_MAX / GROUP, ATTEND_MMA_QUERIES / GROUP };
    const size_t n_out = (size_t)tokens * HEADS * DIM;
    uint32_t *table = (uint32_t *)malloc(n_blocks * sizeof(*table));
    struct attention_args a = {};

    a.pool.type = type;
    a.pool.head_dim = DIM;
    a.pool.v = (size_t)DIM * BLOCK_TOKENS * (type == KV_Q8 ? 1 : 2);
    a.pool.k_scales = 2 * a.pool.v;
    a.pool.v_scales = a.pool.k_scales + DIM / QUANT_BLOCK * BLOCK_TOKENS * 2;
    a.pool.head_bytes = type == KV_Q8 ? a.pool.v_scales + DIM / QUANT_BLOCK * BLOCK_TOKENS * 2 : 2 * a.pool.v;
    a.pool.layer_bytes = a.pool.block_bytes = a.pool.head_bytes * KV_HEADS;
    a.pool.at = take<uint8_t>(n_blocks * a.pool.block_bytes);
    for (uint32_t i = 0; i < n_blocks; i++)
        table[i] = (uint32_t)((uint64_t)i * 7919 % n_blocks); /* scattered; twice the same does no harm */
    float *q = take<float>(n_out);
    must(LAUNCH(fill, dim3(1024), dim3(256), 0, stream, (uint32_t *)a.pool.at, n_blocks * a.pool.block_bytes / 4, 0xbbffbbffu), "launch");
    must(LAUNCH(fill, dim3(1024), dim3(256), 0, stream, (uint32_t *)q, n_out, 0xbf7fffffu), "launch");
    a.q = q;
    a.n_heads = HEADS;
    a.n_kv_heads = KV_HEADS;
    a.heads_per_tile = GROUP;
    a.head_sets = 1;
    a.out.bf16 = take<uint16_t>(n_out);
    a.out.f32_stride = HEADS * DIM;
    a.step.tables = take(n_blocks, table);

    for (int mma = 0; mma < 2; mma++) {
        const uint32_t n_items = (tokens + per_tile[mma] - 1) / per_tile[mma];
        struct step_item *items = (struct step_item *)calloc(n_items, sizeof(*items));
        struct step_header header = {};
        for (uint32_t i = 0; i < n_items; i++) { /* the last first, as plan.c has them */
            const uint32_t first = (n_items - 1 - i) * per_tile[mma];
            items[i].row = first;
            items[i].n_tokens = tokens - first < per_tile[mma] ? tokens - first : per_tile[mma];
            items[i].position = past + first;
        }
        header.n_items = mma ? 0 : n_items;
        header.n_items_mma = mma ? n_items : 0;
        a.step.items = take(n_items, items);
        a.step.header = take(1, &header);
        const double ms = milliseconds(stream, [=] {
            if (mma ? launch_attention_mma(&a, n_items, (device_stream)stream)
                    : launch_attention(&a, n_items, 0, ATTEND_QUERIES_MAX, (device_stream)stream))
                exit(1);
        });
        const double pairs = (double)tokens * past + (double)tokens * (tokens + 1) / 2, rate = 4.0 * DIM * HEADS * pairs / ms * 1e-9;
        printf("{\"part\": \"attention\", \"what\": \"%s\", \"kv\": \"%s\", \"past\": %u, \"tokens\": %u, \"ms\": %.4f, "
               "\"tera_operations_a_second\": %.2f, \"of_peak\": %.3f}\n",
               mma ? "tensor" : "float", type == KV_Q8 ? "q8" : "f16", past, tokens, ms, rate, rate / peak_rate);
        fflush(stdout);
        must(cudaFree((void *)a.step.items), "memory");
        must(cudaFree((void *)a.step.header), "memory");
        free(items);
    }
    must(cudaFree(a.pool.at), "memory");
    must(cudaFree(q), "memory");
    must(cudaFree(a.out.bf16), "memory");
    must(cudaFree((void *)a.step.tables), "memory");
    free(table);
}

int main()
{
    cudaStream_t stream;

    must(cudaStreamCreate(&stream), "device");
    const double rate = measured_peak(stream);
    printf("{\"part\": \"attention\", \"what\": \"peak\", \"tera_operations_a_second\": %.1f}\n", rate);
    fflush(stdout);
    for (int type = 0; type < 2; type++) {
        measure(stream, type ? KV_Q8 : KV_F16, 0, 2048, rate);
        measure(stream, type ? KV_Q8 : KV_F16, 6144, 2048, rate);
    }
    return 0;
}
