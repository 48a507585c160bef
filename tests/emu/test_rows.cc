/* Kernels of rows that stand alone against the CPU: norms, gates of two types, biases; and packed weights widened to bf16. */
#include "split_twin.h"

enum { ROUNDS = 40 };

/* Rows in every form that a product reads. */
struct all_forms {
    uint32_t n, stride, blocks;
    exact<float> f32;
    exact<struct xblock> q8, second;
    exact<struct split_block> f16, bf16;
    exact<uint16_t> wide;

    all_forms(uint32_t rows, uint32_t columns)
        : n(columns), stride(pad_to_16(columns)), blocks((columns + 31) / 32), f32((size_t)rows * stride),
          q8((size_t)rows * (n / 32)), second((size_t)rows * (n / 32)), f16((size_t)rows * blocks),
          bf16((size_t)rows * blocks), wide((size_t)rows * stride)
    {
    }
    struct row_input input()
    {
        struct row_input in = {};
        in.f32 = f32.at, in.f32_stride = stride;
        in.bf16 = wide.at;
        in.split_f16 = f16.at, in.split_bf16 = bf16.at, in.n_split = blocks;
        in.n_blocks = n / 32;
        in.q8 = n % 32 == 0 ? q8.at : nullptr, in.second = second.at;
        return in;
    }
    /* Row `row` holds x [n]. */
    void check(const char *what, uint32_t row, const float *x)
    {
        std::vector<struct split_block> split(blocks);
        std::vector<struct xblock> codes(n / 32 * 2);

        assert_bits(what, x, &f32[(size_t)row * stride], n);
        for (uint32_t i = 0; i < stride; i++)
            assert_int_equal(wide[(size_t)row * stride + i], i < n ? twin_bf16(x[i]) : 0);
        for (enum tensor_type type : { TENSOR_F16, TENSOR_BF16 }) {
            const struct split_block *got = (type == TENSOR_F16 ? f16 : bf16).at + (size_t)row * blocks;
            twin_split_row(type, x, n, split.data());
            for (uint32_t b = 0; b < blocks; b++)
                assert_memory_equal(&split[b], got + b, offsetof(struct split_block, pad));
        }
        if (n % 32 != 0)
            return;
        cpu()->quantise(x, n / 32, codes.data(), 1, n / 32);
        assert_memory_equal(codes.data(), q8.at + (size_t)row * (n / 32), n / 32 * sizeof(struct xblock));
        assert_memory_equal(codes.data() + n / 32, second.at + (size_t)row * (n / 32),
                            n / 32 * sizeof(struct xblock));
    }
    /* Nobody wrote it. */
    void check_untouched(uint32_t row)
    {
        for (uint32_t i = 0; i < n; i++)
            assert_int_equal(__float_as_uint(f32[(size_t)row * stride + i]), 0xffffffffu);
    }
};

static const uint32_t widths[] = { 1, 16, 31, 32, 33, 72, 96, 160, 608 };

static void fill(exact<float> &x, dice &d)
{
    for (size_t i = 0; i < x.n; i++)
        x[i] = d.unit() * 3;
}

static void gates_are_the_cpus(void **)
{
    dice d = { 41 };

    for (uint32_t round = 0; round < ROUNDS; round++) {
        const uint32_t n = d.pick(widths), rows = 1 + d.below(6), some = 1 + d.below(rows),
                       stride = pad_to_16(n);
        exact<float> g((size_t)rows * stride), u((size_t)rows * stride), want(stride);
        exact<uint32_t> count(1), map(rows);
        all_forms out(rows, n);
        struct gate_args a = {};
        fill(g, d);
        fill(u, d);
        count[0] = some;
        for (uint32_t i = 0; i < rows; i++)
            map[i] = rows - 1 - i;
        a.g = g.at, a.u = u.at, a.n = n, a.stride = stride;
        a.gelu = d.below(2);
        a.out = out.input();
        a.n_rows = count.at;
        a.map = d.below(2) ? map.at : nullptr;
        emu::set_seed(d.next());
        assert_int_equal(launch_gate(&a, some + d.below(3), nullptr), ST_OK);
        for (uint32_t i = 0; i < rows; i++) {
            const uint32_t row = a.map != nullptr ? map[i] : i;
            memcpy(want.at, &g[(size_t)row * stride], stride * sizeof(float));
            cpu()->gate(a.gelu ? GATE_GELU : GATE_SILU, want.at, &u[(size_t)row * stride], stride);
            if (i < some)
                out.check("gate", row, want.at);
            else
                out.check_untouched(row);
        }
    }
}

static void norms_are_the_cpus(void **)
{
    dice d = { 42 };

    for (uint32_t round = 0; round < ROUNDS; round++) {
        const uint32_t n = d.pick(widths), rows = 2 + d.below(9), first = d.below(rows),
                       some = 1 + d.below(rows - first);
        const uint32_t stride = pad_to_16(n);
        exact<float> x((size_t)rows * stride, 0), tmp((size_t)rows * stride, 0), weight(stride, 0),
            post(stride, 0), sum(stride), row(stride);
        const bool has_post = d.below(2), has_weight = d.below(5) > 0;
        all_forms out(rows, n);
        struct norm_args a = {};
        for (uint32_t i = 0; i < n; i++) {
            weight[i] = 1 + d.unit();
            post[i] = 1 + d.unit();
            for (uint32_t r = 0; r < rows; r++) {
                x[(size_t)r * stride + i] = d.unit();
                tmp[(size_t)r * stride + i] = d.unit();
            }
        }
        const std::vector<float> before(x.at, x.at + x.n);
        a.x = x.at, a.n = n, a.stride = stride, a.eps = 1e-5f;
        a.tmp = has_post ? tmp.at : nullptr, a.post = has_post ? post.at : nullptr;
        a.weight = has_weight ? weight.at : nullptr;
        a.out = out.input();
        emu::set_seed(d.next());
        assert_int_equal(launch_norm(&a, first, some, nullptr), ST_OK);
        for (uint32_t r = 0; r < rows; r++) {
            const bool is_meant = r >= first && r < first + some;
            memcpy(sum.at, &before[(size_t)r * stride], stride * sizeof(float));
            if (is_meant && has_post) {
                cpu()->rms_norm(row.at, &tmp[(size_t)r * stride], post.at, n, a.eps);
                cpu()->add(sum.at, row.at, stride);
            }
            assert_bits("sum", sum.at, &x[(size_t)r * stride], n);
            cpu()->rms_norm(row.at, sum.at, weight.at, n, a.eps);
            if (is_meant && has_weight)
                out.check("norm", r, row.at);
            else
                out.check_untouched(r);
        }
    }
}

static void biases_are_added(void **)
{
    dice d = { 43 };

    for (uint32_t n : widths) {
        const uint32_t rows = 1 + d.below(5), stride = n + d.below(9);
        exact<float> y((size_t)rows * stride), bias(n);
        fill(y, d);
        fill(bias, d);
        const std::vector<float> before(y.at, y.at + y.n);
        const struct bias_args a = { y.at, bias.at, n, stride };
        emu::set_seed(d.next());
        assert_int_equal(launch_bias(&a, rows, nullptr), ST_OK);
        for (size_t i = 0; i < y.n; i++)
            assert_true(y[i] == before[i] + (i % stride < n ? bias[i % stride] : 0.0f));
    }
}

static void widened_weights_are_the_files_rounded_to_bf16(void **)
{
    static const enum tensor_type types[] = {
#define X(name, id, elements, bytes) TENSOR_##name,
        TENSOR_TYPE_LIST(X)
#undef X
    };
    dice d = { 44 };

    for (enum tensor_type type : types) {
        const bool k_type = type == TENSOR_Q4_K || type == TENSOR_Q5_K || type == TENSOR_Q6_K;
        const uint32_t k = type_is_float(type) ? 277
                           : k_type            ? 512
                                               : 288,
                       n_rows = 37, stride = pad_to_16(k), first = 15, some = 20;
        struct synthetic_shape shape = {};
        const struct model *m;
        shape.n_layers = 1, shape.n_embd = k, shape.n_ff = n_rows, shape.n_heads = shape.n_kv_heads = 1,
        shape.head_dim = 32;
        shape.n_vocab = 16, shape.weights = type, shape.own_down = true, shape.down = TENSOR_F32,
        shape.seed = type + 7;
        struct synthetic *s = synthetic_new(&shape, &m);
        const struct tensor *t = &m->layers[0].ffn_up;
        struct widen_args a = {};
        assert_int_equal(weights_init(&a.from, t), ST_OK);
        exact<uint8_t> packed(weights_bytes(&a.from)), scratch(weights_scratch_bytes(t));
        exact<uint16_t> to((size_t)some * stride);
        exact<float> row(stride);
        for (uint32_t p = 0; p < a.from.n_panels; p++)
            weights_pack_panel(&a.from, t, 0, p, scratch.at, packed.at + p * a.from.panel_bytes);
        a.from.data = packed.at;
        a.first_row = first, a.n_rows = some, a.stride = stride, a.to = to.at;
        emu::set_seed(d.next());
        assert_int_equal(launch_widen(&a, nullptr), ST_OK);
        for (uint32_t r = 0; r < some; r++) {
            tensor_row(t, first + r, row.at);
            for (uint32_t i = 0; i < stride; i++)
                assert_int_equal(to[(size_t)r * stride + i], i < k ? twin_bf16(row[i]) : 0);
        }
        synthetic_free(s);
    }
}

int main()
{
    const CMUnitTest tests[] = {
        cmocka_unit_test(gates_are_the_cpus),
        cmocka_unit_test(norms_are_the_cpus),
        cmocka_unit_test(biases_are_added),
        cmocka_unit_test(widened_weights_are_the_files_rounded_to_bf16),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
