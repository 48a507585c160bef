/* attention_twin.h - one sequence's keys and values in the pools of both backends, and attention by the CPU's kernels. */
#ifndef ATTENTION_TWIN_H
#define ATTENTION_TWIN_H

#include "twin.h"

#include <memory>

enum { N_KV = 2, LAYERS = 2 };

struct shape {
    uint32_t dim, group, window, past, n_tokens;
    bool q8, by_parts;
};

/* One sequence: the same keys and values in both forms of a pool, blocks anywhere. */
struct sequence {
    const shape s;
    uint32_t n, n_blocks, stride;
    std::vector<uint32_t> table;
    struct kv_pool pool;
    struct kv_view view;
    size_t cpu_head;
    std::unique_ptr<exact<uint8_t>> device_memory, cpu_memory;

    explicit sequence(const shape &of, dice &d) : s(of), n(of.past + of.n_tokens)
    {
        const uint32_t groups = s.dim / 32;
        n_blocks = (n + 15) / 16;
        stride = n_blocks + 3;
        for (uint32_t i = 0; i < stride; i++)
            table.push_back(i);
        for (uint32_t i = stride; i > 1; i--)
            std::swap(table[i - 1], table[d.below(i)]);
        pool = {};
        pool.type = s.q8 ? KV_Q8 : KV_F16;
        pool.head_dim = s.dim;
        pool.v = (size_t)s.dim * 16 * (s.q8 ? 1 : 2);
        pool.k_scales = 2 * pool.v;
        pool.v_scales = pool.k_scales + groups * 32;
        pool.head_bytes = s.q8 ? pool.v_scales + groups * 32 : 2 * pool.v;
        pool.layer_bytes = pool.head_bytes * N_KV;
        pool.block_bytes = pool.layer_bytes * LAYERS;
        device_memory.reset(new exact<uint8_t>(stride * pool.block_bytes));
        pool.at = device_memory->at;
        view = {};
        view.head_dim = s.dim;
        view.kv_group = s.q8 ? 32 : 0;
        view.v = pool.v;
        view.k_scales = pool.k_scales;
        view.v_scales = pool.v_scales;
        cpu_head = (pool.head_bytes + 63) / 64 * 64;
        view.block_bytes = cpu_head * N_KV;
        cpu_memory.reset(new exact<uint8_t>(stride * view.block_bytes));
    }
    struct kv_view cpu_view(uint32_t head) const
    {
        struct kv_view v = view;
        v.pool = cpu_memory->at + head * cpu_head;
        v.blocks = table.data();
        return v;
    }
};

/* Rows first .. first+count-1 of the sequence by write_kv, and by the CPU; q as both leave it. */
inline void write_rows(sequence &t, uint32_t first, uint32_t count, bool norms, exact<float> &q, std::vector<float> &cpu_q, dice &d)
{
    const uint32_t dim = t.s.dim, heads = N_KV * t.s.group;
    exact<float> k((size_t)count * N_KV * dim), v((size_t)count * N_KV * dim), q_norm(dim), k_norm(dim);
    exact<float> cosines((size_t)count * dim / 2), sines((size_t)count * dim / 2);
    device_step step = {};

    for (size_t i = 0, exponent = 0; i < k.n; i++) {
        if (i % (N_KV * dim) == 0) /* each position's of a size of its own */
            exponent = d.below(16);
        k[i] = d.unit() * 2, v[i] = ldexpf(d.unit(), (int)exponent - 5);
    }
    for (size_t i = 0; i < q.n; i++)
        q[i] = d.unit() * 3;
    for (size_t i = 0; i < dim; i++)
        q_norm[i] = 1 + d.unit(), k_norm[i] = 1 + d.unit();
    for (size_t i = 0; i < cosines.n; i++)
        cosines[i] = d.unit(), sines[i] = d.unit();
    cpu_q.assign(q.at, q.at + q.n);
    step.tables = t.table;
    for (uint32_t r = 0; r < count; r++) {
        struct step_row row = { 0, -1, first + r, 0 };
        step.rows.push_back(row);
    }
    struct kv_args a = {};
    a.step = step.view();
    a.pool = t.pool;
    a.layer = 1;
    a.n_heads = heads;
    a.n_kv_heads = N_KV;
    a.q = q.at, a.k = k.at, a.v = v.at;
    a.q_norm = norms ? q_norm.at : nullptr;
    a.k_norm = norms ? k_norm.at : nullptr;
    a.cosines = cosines.at, a.sines = sines.at;
    a.eps = 1e-5f;
    a.q_scale = 0.25f;
    assert_int_equal(launch_kv(&a, count + d.below(3), nullptr), ST_OK);
    for (uint32_t r = 0; r < count; r++) {
        const float *c = &cosines[(size_t)r * dim / 2], *s = &sines[(size_t)r * dim / 2];
        for (uint32_t h = 0; h < heads; h++) {
            float *x = cpu_q.data() + ((size_t)r * heads + h) * dim;
            if (norms)
                cpu()->rms_norm(x, x, q_norm.at, dim, 1e-5f);
            cpu()->rope(x, c, s, dim, 0.25f);
        }
        for (uint32_t h = 0; h < N_KV; h++) {
            const struct kv_view view = t.cpu_view(h);
            float *x = &k[((size_t)r * N_KV + h) * dim];
            if (norms)
                cpu()->rms_norm(x, x, k_norm.at, dim, 1e-5f);
            cpu()->rope(x, c, s, dim, 1.0f);
            cpu()->store_k(&view, first + r, x);
            cpu()->store_v(&view, first + r, &v[((size_t)r * N_KV + h) * dim]);
        }
    }
    assert_bits("q", cpu_q.data(), q.at, q.n);
}

/* One query of the CPU: [D] */
inline void cpu_attention(const sequence &t, uint32_t head, uint32_t position, const float *q, float *out)
{
    const uint32_t dim = t.s.dim, groups = dim / 32, window = t.s.window;
    exact<float> qt((size_t)dim * ATTENTION_QUERIES), q8d(ATTENTION_QUERIES * groups), scores((size_t)ATTENTION_QUERIES * SPLIT);
    exact<float> o((size_t)ATTENTION_QUERIES * dim), sum((size_t)ATTENTION_QUERIES * dim);
    exact<int8_t> q8((size_t)ATTENTION_QUERIES * dim);
    exact<int32_t> q8n(ATTENTION_QUERIES * groups);
    struct attention_scratch s = { qt.at, q8.at, q8d.at, q8n.at, scores.at, o.at };
    struct attention_state state = {};
    struct attention_tile tile = {};

    state.o = sum.at;
    tile.kv = t.cpu_view(head / t.s.group);
    tile.n = 1;
    tile.q[0] = q;
    tile.hi[0] = position + 1;
    tile.lo[0] = window > 0 && tile.hi[0] > window ? tile.hi[0] - window : 0;
    cpu()->attention_begin(&tile, &s);
    cpu()->attention_splits(&tile, &s, tile.lo[0] / SPLIT, (tile.hi[0] + SPLIT - 1) / SPLIT, &state);
    cpu()->attention_end(&state, 0, dim, out);
}

#endif
