/* Keys, values and attention against the CPU's kernels: head sizes, groups of heads, windows, partial blocks, prefixes over
 * several splits; prompts by one block a tile, decodes by one a split.  Exact buffers, random orders of threads. */
#include "attention_twin.h"

enum { ROUNDS = 40 };

static void check(const shape &s, bool norms, dice &d)
{
    const uint32_t dim = s.dim, heads = N_KV * s.group, per_tile = s.group < 16 ? s.group : 16, sets = (s.group + per_tile - 1) / per_tile;
    const uint32_t tokens_per_tile = 16 / per_tile, splits = (s.past + s.n_tokens + SPLIT - 1) / SPLIT;
    sequence t(s, d);
    exact<float> q((size_t)s.n_tokens * heads * dim), out((size_t)s.n_tokens * heads * dim), want(dim);
    exact<struct xblock> q8((size_t)s.n_tokens * heads * dim / 32), want_q8(dim / 32);
    const uint32_t n_parts = s.by_parts ? s.n_tokens * splits : 0;
    exact<float> parts((size_t)n_parts * N_KV * sets * per_tile * (PART_HEAD + dim));
    std::vector<float> cpu_q;
    device_step step = {};

    if (s.past > 0) {
        exact<float> unused((size_t)s.past * heads * dim);
        write_rows(t, 0, s.past, norms, unused, cpu_q, d);
    }
    write_rows(t, s.past, s.n_tokens, norms, q, cpu_q, d);
    step.tables = t.table;
    for (uint32_t first = 0, part = 0; first < s.n_tokens;) {
        struct step_item item = {};
        item.row = first;
        item.n_tokens = s.by_parts ? 1 : s.n_tokens - first < tokens_per_tile ? s.n_tokens - first : tokens_per_tile;
        item.position = s.past + first;
        item.n_parts = s.by_parts ? splits : 0;
        item.first_part = part;
        part += item.n_parts;
        first += item.n_tokens;
        step.items.push_back(item);
    }
    exact<uint32_t> counters(step.items.size() * N_KV * sets, 0);
    struct attention_args a = {};
    a.step = step.view();
    a.pool = t.pool;
    a.layer = 1;
    a.n_heads = heads;
    a.n_kv_heads = N_KV;
    a.heads_per_tile = per_tile;
    a.head_sets = sets;
    a.window = s.window;
    a.q = q.at;
    a.parts = parts.at;
    a.counters = counters.at;
    a.out.q8 = q8.at;
    a.out.n_blocks = heads * dim / 32;
    a.out.f32 = out.at;
    a.out.f32_stride = heads * dim;
    const uint32_t queries = s.by_parts ? per_tile : tokens_per_tile * per_tile;
    assert_int_equal(launch_attention(&a, (uint32_t)step.items.size() + d.below(2), s.by_parts ? splits : 0, queries, nullptr), ST_OK);
    for (uint32_t r = 0; r < s.n_tokens; r++)
        for (uint32_t h = 0; h < heads; h++) {
            const size_t at = ((size_t)r * heads + h) * dim;
            cpu_attention(t, h, s.past + r, cpu_q.data() + at, want.at);
            assert_bits("attention", want.at, &out[at], dim);
            cpu()->quantise(want.at, dim / 32, want_q8.at, 1, 0);
            assert_memory_equal(want_q8.at, q8.at + at / 32, dim / 32 * sizeof(struct xblock));
        }
    for (size_t i = 0; i < counters.n; i++)
        assert_int_equal(counters[i], 0);
}

static void attention_has_the_bits_of_the_cpu(void **)
{
    static const uint32_t dims[] = { 32, 64, 96, 128, 256 }, groups[] = { 1, 2, 3, 4, 8, 20 }, windows[] = { 0, 0, 5, 16, 100, 300 };
    static const uint32_t pasts[] = { 0, 1, 15, 16, 17, 100, 255, 256, 257, 530 }, tokens[] = { 1, 1, 2, 5, 18 };
    dice d = { 4711 };

    for (uint32_t round = 0; round < ROUNDS; round++) {
        shape s = { d.pick(dims), d.pick(groups), d.pick(windows), d.pick(pasts), d.pick(tokens), round % 2 == 0, d.below(2) == 0 };
        if (s.group == 20 && s.dim > 64)
            s.dim = 32;
        emu::set_seed(d.next());
        check(s, round % 3 == 0, d);
    }
}

int main()
{
    const CMUnitTest tests[] = { cmocka_unit_test(attention_has_the_bits_of_the_cpu) };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
