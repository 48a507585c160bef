/* Attention of prompts on tensor cores: near the CPU's, with the same bits in tiles of any chunk and in every order of threads,
 * whatever lies in memory behind what a row sees; and every barrier and wait of the kernel is needed. */
#include "attention_twin.h"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/status.cuh"

#include <set>

enum {
    ROUNDS = 40,
    NOTHING = -1,
    WAIT = 0
}; /* what is left out: a barrier by its line, the wait for copies, or nothing */
static const double bounds[2] = {1e-11,
                                 1e-10}; /* f16, int8: mean square of the difference over mean square */

/* The kernel once more, with a barrier that can be left out. */
static int left_out = NOTHING;
static std::set<int> barriers;

static void planted_barrier(const char *file, int line)
{
    barriers.insert(line);
    if (line != left_out)
        emu::barrier(file, line);
}
template <int GROUPS_LEFT> void planted_wait()
{
    if (left_out != WAIT)
        cp_async_wait<GROUPS_LEFT>();
}
#undef __syncthreads
#define __syncthreads() planted_barrier(__FILE__, __LINE__)
#define cp_async_wait   planted_wait
namespace planted
{
#include "kernels/cuda/attention_mma.cu"
}
#undef cp_async_wait

typedef enum status launch_fn(const struct attention_args *, uint32_t, device_stream);

/* Rows first .. first+n-1 of the sequence as one chunk; q and out as [tokens][heads * dim] of all of it. */
static void attend_chunk(launch_fn *launch, const sequence &t, uint32_t first, uint32_t n, exact<float> &q,
                         exact<float> &out, exact<struct xblock> &q8, dice &d)
{
    const uint32_t dim = t.s.dim, heads = N_KV * t.s.group,
                   per_tile = t.s.group < ATTEND_QUERIES_MAX ? t.s.group : (uint32_t)ATTEND_QUERIES_MAX;
    const uint32_t tokens = ATTEND_MMA_QUERIES / per_tile;
    struct attention_args a = {};
    device_step step = {};

    step.tables = t.table;
    step.items.resize(d.below(3)); /* others', before */
    const uint32_t n_others = (uint32_t)step.items.size();
    for (uint32_t at = 0; at < n; at += tokens) {
        struct step_item item = {};
        item.row = first + at;
        item.n_tokens = n - at < tokens ? n - at : tokens;
        item.position = t.s.past + first + at;
        step.items.push_back(item);
    }
    a.step = step.view();
    step.header.n_items = n_others;
    step.header.n_items_mma = (uint32_t)step.items.size() - n_others;
    a.pool = t.pool;
    a.layer = 1;
    a.n_heads = heads;
    a.n_kv_heads = N_KV;
    a.heads_per_tile = per_tile;
    a.head_sets = (t.s.group + per_tile - 1) / per_tile;
    a.window = t.s.window;
    a.q = q.at;
    a.out.q8 = q8.at;
    a.out.n_blocks = heads * dim / 32;
    a.out.f32 = out.at;
    a.out.f32_stride = heads * dim;
    assert_int_equal(launch(&a, step.header.n_items_mma + d.below(2), nullptr), ST_OK);
}

/* A sequence and its queries. */
struct prompt {
    sequence t;
    exact<float> q;
    std::vector<float> cpu_q;

    prompt(const shape &s, dice &d) : t(s, d), q((size_t)s.n_tokens * N_KV * s.group * s.dim)
    {
        if (s.past > 0) {
            exact<float> unused((size_t)s.past * N_KV * s.group * s.dim);
            write_rows(t, 0, s.past, false, unused, cpu_q, d);
        }
        write_rows(t, s.past, s.n_tokens, false, q, cpu_q, d);
    }
    size_t blocks() const
    {
        return q.n / 32;
    }
};

static void check(const shape &s, dice &d, double *ret_worst)
{
    const uint32_t heads = N_KV * s.group;
    prompt p(s, d);
    exact<float> out(p.q.n), want(s.dim);
    exact<struct xblock> q8(p.blocks()), want_q8(s.dim / 32);
    double wrong = 0, all = 0;

    attend_chunk(launch_attention_mma, p.t, 0, s.n_tokens, p.q, out, q8, d);
    for (uint32_t r = 0; r < s.n_tokens * heads; r++) {
        const size_t at = (size_t)r * s.dim;
        cpu_attention(p.t, r % heads, s.past + r / heads, p.cpu_q.data() + at, want.at);
        for (uint32_t i = 0; i < s.dim; i++) {
            wrong += ((double)out[at + i] - want[i]) * ((double)out[at + i] - want[i]);
            all += (double)want[i] * want[i];
        }
        cpu()->quantise(&out[at], s.dim / 32, want_q8.at, 1, 0);
        assert_memory_equal(want_q8.at, q8.at + at / 32, s.dim / 32 * sizeof(struct xblock));
    }
    if (!(wrong <= bounds[s.q8] * all))
        fail_msg("seed %llu: %u dimensions, group %u, window %u, past %u, %u tokens, %s: an error of %g",
                 (unsigned long long)emu::seed(), s.dim, s.group, s.window, s.past, s.n_tokens,
                 s.q8 ? "int8" : "f16", wrong / all);
    *ret_worst = wrong / all > *ret_worst ? wrong / all : *ret_worst;
}

static void attention_on_tensor_cores_is_near_the_cpus(void **)
{
    static const uint32_t dims[] = {32, 64, 96, 128, 224, 256}, groups[] = {1, 2, 3, 5, 8, 20},
                          windows[] = {0, 0, 5, 16, 100};
    static const uint32_t pasts[] = {0, 1, 15, 16, 17, 100, 257}, tokens[] = {1, 5, 22, 70};
    double worst[2] = {0, 0};
    dice d = {4712};

    for (uint32_t round = 0; round < ROUNDS; round++) {
        shape s = {d.pick(dims),   d.pick(groups), d.pick(windows), d.pick(pasts), d.pick(tokens),
                   round % 2 == 0, false};
        if (s.group * s.dim > 512)
            s.n_tokens = 1 + s.n_tokens % 16;
        emu::set_seed(d.next());
        check(s, d, &worst[s.q8]);
    }
    print_message("largest error: f16 %.2g, int8 %.2g\n", worst[0], worst[1]);
}

/* Nothing at positions `from` on may be used any more. */
static void poison(const sequence &t, uint32_t from)
{
    const uint32_t dim = t.s.dim;

    for (uint32_t p = from; p < t.n; p++)
        for (uint32_t head = 0; head < N_KV; head++) {
            uint8_t *at = t.pool.at + t.table[p / 16] * t.pool.block_bytes + t.pool.layer_bytes +
                          head * t.pool.head_bytes;
            for (uint32_t i = 0; i < dim && !t.s.q8; i++) {
                reinterpret_cast<uint16_t *>(at)[(i / 8 * 16 + p % 16) * 8 + i % 8] = 0x7e00;
                reinterpret_cast<uint16_t *>(at + t.pool.v)[p % 16 * dim + i] = 0x7e00;
            }
            for (uint32_t i = 0; i < dim / 32 && t.s.q8; i++) {
                reinterpret_cast<uint16_t *>(at + t.pool.k_scales)[i * 16 + p % 16] = 0x7e00;
                reinterpret_cast<uint16_t *>(at + t.pool.v_scales)[i * 16 + p % 16] = 0x7e00;
            }
        }
}

/* The last chunk first, and what it adds is not there any more for those before it. */
static void the_cut_of_a_prompt_changes_no_bit(void **)
{
    static const shape shapes[] = {
        {64, 3, 0, 0, 70, false, false},  {64, 9, 0, 37, 22, true, false}, {128, 4, 40, 90, 40, false, false},
        {256, 1, 0, 5, 20, false, false}, {96, 20, 0, 16, 8, true, false}, {64, 1, 0, 0, 512, false, false},
    };
    static const uint32_t chunks[] = {1, 7, 64};
    dice d = {99};

    for (const shape &s : shapes) {
        prompt p(s, d);
        exact<float> whole(p.q.n), out(p.q.n);
        exact<struct xblock> q8(p.blocks());
        const std::vector<uint8_t> memory(p.t.device_memory->at,
                                          p.t.device_memory->at + p.t.device_memory->n);

        attend_chunk(launch_attention_mma, p.t, 0, s.n_tokens, p.q, whole, q8, d);
        for (uint32_t chunk : chunks) {
            const uint32_t step = 1 + s.n_tokens / chunk / 20; /* of the short chunks some */
            emu::set_seed(d.next());
            memcpy(p.t.device_memory->at, memory.data(), memory.size());
            for (uint32_t i = (s.n_tokens + chunk - 1) / chunk; i > 0; i -= step < i ? step : i) {
                const uint32_t first = (i - 1) * chunk,
                               n = s.n_tokens - first < chunk ? s.n_tokens - first : chunk;
                const size_t row = p.q.n / s.n_tokens;
                attend_chunk(launch_attention_mma, p.t, first, n, p.q, out, q8, d);
                assert_bits("a chunk", &whole[first * row], &out[first * row], n * row);
                poison(p.t, s.past + first);
            }
        }
    }
}

/* Whether some order of threads gives other results, or none, when something is left out. */
static bool found(int what, const prompt &p, exact<float> &q, const exact<float> &want, dice &d)
{
    exact<float> out(q.n);
    exact<struct xblock> q8(p.blocks());

    left_out = what;
    for (uint32_t i = 0; i < 20; i++) {
        emu::set_seed(d.next());
        emu::expect_failure(true);
        attend_chunk(planted::launch_attention_mma, p.t, 0, p.t.s.n_tokens, q, out, q8, d);
        const bool broke = !emu::failure().empty();
        emu::expect_failure(false);
        if (broke || memcmp(want.at, out.at, q.n * sizeof(float)) != 0)
            return true;
    }
    return false;
}

static void a_barrier_or_wait_left_out_is_found(void **)
{
    for (bool is_q8 : {false, true}) {
        const shape s = {64, 3, 0, 70, 40, is_q8, false};
        dice d = {5};
        prompt p(s, d);
        exact<float> want(p.q.n);
        exact<struct xblock> q8(p.blocks());

        attend_chunk(launch_attention_mma, p.t, 0, s.n_tokens, p.q, want, q8, d);
        assert_false(found(NOTHING, p, p.q, want, d));
        assert_int_equal(barriers.size(), 2);
        const std::set<int> lines = barriers;
        for (int line : lines)
            if (!found(line, p, p.q, want, d))
                fail_msg("the barrier of line %d can be left out", line);
        assert_true(found(WAIT, p, p.q, want, d));
        left_out = NOTHING;
    }
}

/* An argument names the tests to run, e.g. "*cut*". */
int main(int argc, char **argv)
{
    const CMUnitTest tests[] = {
        cmocka_unit_test(attention_on_tensor_cores_is_near_the_cpus),
        cmocka_unit_test(the_cut_of_a_prompt_changes_no_bit),
        cmocka_unit_test(a_barrier_or_wait_left_out_is_found),
    };

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
