/* sampler.cu - one token from one row of logits by one block: kernels/cpu/sampler.c on the device, same results.
 *
 * A histogram of (max - logit) / temperature tells how many candidates lie in each bin of half a unit.  Layers of some bins
 * are collected by all threads, sorted (by logit, then id) and given their weights; thread 0 walks down the order, as the
 * CPU does, and asks for the next layer when it has used this one up.
 *
 * What is one chain of additions on the CPU is one here: the sum of exponentials over 16 lanes, the walk in double. */
#include "rows.cuh"
#include "status.cuh"

enum { SAMPLE_THREADS = 256, BINS = 128, LAYER = 48 };

enum walk_phase { WALK_TOTAL, WALK_PREFIX, WALK_DRAW, WALK_DONE };

/* A candidate as one number that sorts by logit (descending), then id.  -0 counts as 0. */
__device__ __forceinline__ uint64_t key_of(float logit, uint32_t token)
{
    const uint32_t u = __float_as_uint(logit + 0.0f), ascending = u & 0x80000000u ? ~u : u | 0x80000000u;

    return (uint64_t)~ascending << 32 | token;
}
__device__ __forceinline__ float logit_of(uint64_t key)
{
    const uint32_t ascending = ~(uint32_t)(key >> 32);

    return __uint_as_float(ascending & 0x80000000u ? ascending & 0x7fffffffu : ~ascending);
}

struct walk {
    enum walk_phase phase;
    uint32_t i, n, keep;      /* candidate at hand; length of the prefix; top_k */
    double total, kept, sum, target;
    int32_t token;
};

/* What the threads of a block share. */
struct sample_shared {
    uint32_t bins[BINS];
    float warp_max[SAMPLE_THREADS / WARP];
    uint64_t warp_best[SAMPLE_THREADS / WARP];
    float max, log_sum;
    uint64_t best;
    uint32_t n_ready, next_bin, first_bin, layer_start;
    int32_t token;
    bool done;
    struct walk w;
};

struct sample_row {
    float *logits;
    float *exps;
    uint64_t *ranked;
    double *weights;
    uint32_t n_vocab;
};

/* ------------------------------------------------------------------ over the vocabulary */

__device__ float block_max(struct sample_shared &s, const float *x, uint32_t n)
{
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    float m = -INFINITY;

    for (uint32_t i = threadIdx.x; i < n; i += SAMPLE_THREADS)
        m = larger(m, x[i]);
    for (int k = 16; k > 0; k /= 2)
        m = larger(m, __shfl_xor_sync(ALL_LANES, m, k));
    __syncthreads();
    if (lane == 0)
        s.warp_max[warp] = m;
    __syncthreads();
    m = s.warp_max[0];
    for (uint32_t i = 1; i < SAMPLE_THREADS / WARP; i++)
        m = larger(m, s.warp_max[i]);
    return m;
}

/* The smallest key above `above` (all keys where it is 0 and `first`), ~0 when there is none. */
__device__ uint64_t block_best(struct sample_shared &s, const float *x, uint32_t n, bool first, uint64_t above)
{
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    uint64_t best = ~0ull;

    for (uint32_t i = threadIdx.x; i < n; i += SAMPLE_THREADS) {
        const uint64_t key = key_of(x[i], i);
        if ((first || key > above) && key < best)
            best = key;
    }
    for (int k = 16; k > 0; k /= 2) {
        const uint64_t other = __shfl_xor_sync(ALL_LANES, best, k);
        best = other < best ? other : best;
    }
    __syncthreads();
    if (lane == 0)
        s.warp_best[warp] = best;
    __syncthreads();
    best = s.warp_best[0];
    for (uint32_t i = 1; i < SAMPLE_THREADS / WARP; i++)
        best = s.warp_best[i] < best ? s.warp_best[i] : best;
    return best;
}

/* Sum of exp((x - max) * factor) over 16 lanes in ascending order; the same in all lanes of the first warp. */
__device__ float block_sum_exp(const struct sample_row &r, const float *x, float max, float factor)
{
    float sum = 0.0f;

    for (uint32_t i = threadIdx.x; i < r.n_vocab; i += SAMPLE_THREADS)
        r.exps[i] = exp_f32((x[i] - max) * factor);
    __syncthreads();
    if (threadIdx.x < WARP) {
#pragma unroll 8
        for (uint32_t i = 0; i < r.n_vocab; i += WARP) {
            const float v = i + threadIdx.x < r.n_vocab ? r.exps[i + threadIdx.x] : 0.0f;
            const float next = __shfl_down_sync(ALL_LANES, v, 16);
            sum = sum + v;
            sum = sum + next;
        }
        sum = sum_16(sum);
    }
    __syncthreads();
    return sum;
}

/* ------------------------------------------------------------------ changes */

/* A token may stand in the list more than once: whoever has its first place adds them all, in order. */
__device__ void add_bias(const struct logit_bias *bias, uint32_t n, float *logits)
{
    for (uint32_t i = threadIdx.x; i < n; i += SAMPLE_THREADS) {
        const int32_t token = bias[i].token;
        bool first = true;
        for (uint32_t j = 0; j < i && first; j++)
            first = bias[j].token != token;
        if (!first)
            continue;
        float l = logits[token];
        for (uint32_t j = i; j < n; j++)
            if (bias[j].token == token)
                l = l + bias[j].bias;
        logits[token] = l;
    }
}

__device__ void add_penalties(const struct sampling &s, const struct token_count *seen, uint32_t n, float *logits)
{
    for (uint32_t i = threadIdx.x; i < n; i += SAMPLE_THREADS) {
        const struct token_count c = seen[i];
        float l = logits[c.token];
        if (c.in_prompt + c.in_answer > 0)
            l = l > 0.0f ? l / s.repetition_penalty : l * s.repetition_penalty;
        if (c.in_answer > 0)
            l = l - (s.presence_penalty + s.frequency_penalty * (float)c.in_answer);
        logits[c.token] = l;
    }
}

/* ------------------------------------------------------------------ the order */

__device__ __forceinline__ uint32_t bin_of(float max, float per_unit, float logit)
{
    const float at = (max - logit) * per_unit;

    return at < (float)(BINS - 1) ? (uint32_t)at : BINS - 1;
}

/* Bitonic sort, ascending, of any n: the mirrored form compares upwards only, so what would be padding never moves. */
__device__ void block_sort(uint64_t *a, uint32_t n)
{
    for (uint32_t k = 2; k / 2 < n; k *= 2) {
        for (uint32_t j = k / 2; j > 0; j /= 2) {
            __syncthreads();
            for (uint32_t i = threadIdx.x; i < n; i += SAMPLE_THREADS) {
                const uint32_t other = j == k / 2 ? i ^ (k - 1) : i ^ j;
                if (other <= i || other >= n)
                    continue;
                const uint64_t x = a[i], y = a[other];
                if (x > y) {
                    a[i] = y;
                    a[other] = x;
                }
            }
        }
    }
    __syncthreads();
}

/* Collect, sort and weigh the next bins that hold LAYER candidates. */
__device__ void next_layer(struct sample_shared &s, const struct sample_row &r, float max, float factor)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t n = 0;
        s.first_bin = s.next_bin;
        s.layer_start = s.n_ready;
        while (s.next_bin < BINS && n < LAYER)
            n += s.bins[s.next_bin++];
    }
    __syncthreads();
    for (uint32_t t = threadIdx.x; t < r.n_vocab; t += SAMPLE_THREADS) {
        const uint32_t bin = bin_of(max, 2.0f * factor, r.logits[t]);
        if (bin >= s.first_bin && bin < s.next_bin)
            r.ranked[atomicAdd(&s.n_ready, 1u)] = key_of(r.logits[t], t);
    }
    __syncthreads();
    const uint32_t start = s.layer_start, n = s.n_ready - start;
    block_sort(r.ranked + start, n);
    for (uint32_t i = threadIdx.x; i < n; i += SAMPLE_THREADS) {
        const double x = (double)(logit_of(r.ranked[start + i]) - max) * (double)factor;
        r.weights[start + i] = exp_f64_device(x > -700 ? x : -700);
    }
    __syncthreads();
}

/* Thread 0 goes on until it has a token, or needs candidate w.i and it is not ready. */
__device__ void walk_on(struct sample_shared &s, const struct sample_row &r, const struct sampling &p, double uniform)
{
    struct walk &w = s.w;

    for (;;) {
        const bool end = w.i >= s.n_ready; /* of what is ready */
        if (end && s.next_bin < BINS && w.phase != WALK_DONE && w.i < (w.phase == WALK_DRAW ? w.n : w.keep))
            return;
        if (w.phase == WALK_TOTAL) {
            if (!end && w.i < w.keep) {
                w.total += r.weights[w.i++];
                continue;
            }
            w.phase = WALK_PREFIX;
            w.i = 0;
            w.kept = 0;
        } else if (w.phase == WALK_PREFIX) {
            const bool cut = p.top_p < 1.0f || p.min_p > 0.0f;
            if (cut && !end && w.i < w.keep && w.kept < (double)p.top_p * w.total && !(r.weights[w.i] < (double)p.min_p)) {
                w.kept += r.weights[w.i++];
                continue;
            }
            w.n = cut ? w.i : w.keep;
            w.kept = cut ? w.kept : w.total;
            w.target = uniform * w.kept;
            w.phase = WALK_DRAW;
            w.i = 0;
            w.sum = 0;
        } else {
            if (!end && w.i < w.n) {
                w.sum += r.weights[w.i++];
                if (!(w.sum > w.target))
                    continue;
            }
            w.token = w.i > 0 ? (int32_t)(uint32_t)r.ranked[w.i - 1] : -1; /* rounding may leave the target past the end */
            s.done = true;
            return;
        }
    }
}

/* Philox4x32-10: the first word's upper 24 bits over 2^24. */
__device__ double uniform_of(uint64_t seed, uint32_t index, uint32_t choice)
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32), c0 = index, c1 = choice, c2 = 0, c3 = 0;

    for (int round = 0; round < 10; round++) {
        const uint32_t high0 = __umulhi(c0, 0xD2511F53u), low0 = c0 * 0xD2511F53u;
        const uint32_t high1 = __umulhi(c2, 0xCD9E8D57u), low1 = c2 * 0xCD9E8D57u;
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (double)(c0 >> 8) * 0x1p-24;
}

__device__ int32_t draw_token(struct sample_shared &s, const struct sample_row &r, const struct sample_request &q, float max)
{
    const float factor = 1.0f / q.sampling.temperature;
    const uint32_t keep = q.sampling.top_k > 0 && q.sampling.top_k < r.n_vocab ? q.sampling.top_k : r.n_vocab;
    const bool all = keep == r.n_vocab;
    float total = 0.0f;

    if (all)
        total = block_sum_exp(r, r.logits, max, factor);
    for (uint32_t i = threadIdx.x; i < BINS; i += SAMPLE_THREADS)
        s.bins[i] = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < r.n_vocab; i += SAMPLE_THREADS)
        atomicAdd(&s.bins[bin_of(max, 2.0f * factor, r.logits[i])], 1u);
    if (threadIdx.x == 0) {
        struct walk w = {};
        w.phase = all ? WALK_PREFIX : WALK_TOTAL;
        w.keep = keep;
        w.total = (double)total;
        s.w = w;
        s.n_ready = s.next_bin = 0;
        s.done = false;
    }
    const double uniform = uniform_of(q.sampling.seed, q.index, q.choice);
    do {
        next_layer(s, r, max, factor);
        if (threadIdx.x == 0)
            walk_on(s, r, q.sampling, uniform);
        __syncthreads();
    } while (!s.done);
    return s.w.token;
}

/* ------------------------------------------------------------------ the kernel */

__device__ void sample_one(const struct sample_args &a, struct sample_shared &s, const struct sample_request &q, struct sample_row &r,
                           float *raw)
{
    struct step_result *result = a.results + q.entry;
    const bool logprobs = q.sampling.logprobs != 0, changes = q.n_bias > 0 || q.n_seen > 0;
    float log_sum = 0.0f;
    int32_t token;

    if (logprobs) {
        const float max = block_max(s, r.logits, r.n_vocab), sum = block_sum_exp(r, r.logits, max, 1.0f);
        if (threadIdx.x == 0)
            s.log_sum = max + (float)log_f64_device((double)sum);
        __syncthreads();
        log_sum = s.log_sum;
        const uint32_t n_top = q.sampling.n_logprobs < r.n_vocab ? q.sampling.n_logprobs : r.n_vocab;
        uint64_t best = 0;
        for (uint32_t i = 0; i < n_top; i++) {
            best = block_best(s, r.logits, r.n_vocab, i == 0, best);
            if (threadIdx.x == 0) {
                result->top[i].token = (int32_t)(uint32_t)best;
                result->top[i].logprob = logit_of(best) - log_sum;
            }
        }
        if (threadIdx.x == 0)
            result->n_top = n_top;
        for (uint32_t i = threadIdx.x; changes && i < r.n_vocab; i += SAMPLE_THREADS)
            raw[i] = r.logits[i];
        __syncthreads();
    } else if (threadIdx.x == 0) {
        result->n_top = 0;
    }
    if (changes) {
        add_bias(a.step.bias + q.bias, q.n_bias, r.logits);
        __syncthreads();
        add_penalties(q.sampling, a.step.seen + q.seen, q.n_seen, r.logits);
        __syncthreads();
    }
    const float max = block_max(s, r.logits, r.n_vocab);
    token = -1;
    if (q.sampling.temperature > SAMPLING_GREEDY_BELOW)
        token = draw_token(s, r, q, max);
    if (token < 0)
        token = (int32_t)(uint32_t)block_best(s, r.logits, r.n_vocab, true, 0);
    if (threadIdx.x == 0) {
        result->token = token;
        result->logprob = logprobs ? (changes ? raw : r.logits)[token] - log_sum : 0.0f;
        a.last_tokens[q.entry] = token;
    }
    __syncthreads();
}

__global__ void __launch_bounds__(SAMPLE_THREADS, 2) sample(const __grid_constant__ struct sample_args a)
{
    SHARED_OBJECT(struct sample_shared, s);

    grid_wait();
    grid_launch();
    for (uint32_t i = blockIdx.x; i < a.step.header->n_requests; i += gridDim.x) {
        const struct sample_request q = a.step.requests[i];
        struct sample_row r;
        r.logits = a.logits + (size_t)q.out * a.stride;
        r.exps = a.exps + (size_t)blockIdx.x * a.stride;
        r.ranked = a.ranked + (size_t)blockIdx.x * a.stride;
        r.weights = a.weights + (size_t)blockIdx.x * a.stride;
        r.n_vocab = a.n_vocab;
        sample_one(a, s, q, r, a.raw + (size_t)blockIdx.x * a.stride);
    }
}

enum status launch_sample(const struct sample_args *a, uint32_t requests_max, device_stream s)
{
    const uint32_t blocks = requests_max < a->n_slots ? requests_max : a->n_slots;

    return status_of(LAUNCH(sample, dim3(blocks), dim3(SAMPLE_THREADS), 0, reinterpret_cast<cudaStream_t>(s), *a));
}
