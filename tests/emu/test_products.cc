/* Products on packed weights against the CPU's gemm: all types, odd sizes, every number of rows that takes another kernel, and
 * what follows a product (bias, sum, norm, gate).  Exact buffers, random orders of threads.
 *
 * F16 and BF16 weights meet rows that are sums of two numbers of 16 bits, on tensor cores: their sums are near the CPU's, with a
 * bound for each output, and what follows is computed from them bit for bit. */
#include "split_twin.h"

#include <memory>

enum { ROUNDS = 24 };

/* Weights of one type: gate [N, K] and up [N, K] of a random model, packed for both. */
struct two_weights {
    struct synthetic *model;
    const struct model *m;
    struct matrix cpu_form[2];
    std::vector<std::unique_ptr<exact<uint8_t>>> memory;
    struct weights form[2];

    two_weights(enum tensor_type type, uint32_t n_rows, uint32_t n_cols, uint64_t seed)
    {
        struct synthetic_shape shape = {};
        shape.n_layers = 1, shape.n_embd = n_cols, shape.n_ff = n_rows, shape.n_heads = shape.n_kv_heads = 1, shape.head_dim = 32;
        shape.n_vocab = 16, shape.weights = type, shape.own_down = true, shape.down = TENSOR_F32, shape.seed = seed;
        model = synthetic_new(&shape, &m);
        const struct tensor *t[2] = { &m->layers[0].ffn_gate, &m->layers[0].ffn_up };
        for (int i = 0; i < 2; i++) {
            assert_int_equal(matrix_init(&cpu_form[i], t[i]), ST_OK);
            memory.emplace_back(new exact<uint8_t>(matrix_bytes(&cpu_form[i])));
            cpu_form[i].data = memory.back()->at;
            matrix_pack(&cpu_form[i], t[i], 0, 0, cpu_form[i].n_panels);
            assert_int_equal(weights_init(&form[i], t[i]), ST_OK);
            memory.emplace_back(new exact<uint8_t>(weights_bytes(&form[i])));
            form[i].data = memory.back()->at;
            exact<uint8_t> scratch(weights_scratch_bytes(t[i]));
            for (uint32_t p = 0; p < form[i].n_panels; p++)
                weights_pack_panel(&form[i], t[i], 0, p, scratch.at, memory.back()->at + p * form[i].panel_bytes);
        }
    }
    ~two_weights()
    {
        synthetic_free(model);
    }
};

/* Input rows in both forms. */
struct input_rows {
    uint32_t n, k, stride;
    exact<struct xblock> q8, second;
    exact<float> f32;
    exact<struct split_block> f16, bf16;

    input_rows(uint32_t rows, uint32_t cols, dice &d)
        : n(rows), k(cols), stride(pad_to_16(cols)), q8((size_t)rows * (cols / 32)), second((size_t)rows * (cols / 32)),
          f32((size_t)rows * stride, 0), f16((size_t)rows * blocks()), bf16((size_t)rows * blocks())
    {
        std::vector<struct xblock> both(cols / 32 * 2);

        for (uint32_t r = 0; r < rows; r++) {
            for (uint32_t i = 0; i < cols; i++)
                f32[(size_t)r * stride + i] = d.unit() * 3;
            if (d.below(8) == 0)
                memset(&f32[(size_t)r * stride], 0, cols * sizeof(float)); /* a row of nothing */
            cpu()->quantise(&f32[(size_t)r * stride], cols / 32, both.data(), 2, 1);
            for (uint32_t b = 0; b < cols / 32; b++) {
                q8[(size_t)r * (cols / 32) + b] = both[2 * b];
                second[(size_t)r * (cols / 32) + b] = both[2 * b + 1];
            }
            twin_split_row(TENSOR_F16, &f32[(size_t)r * stride], cols, &f16[(size_t)r * blocks()]);
            twin_split_row(TENSOR_BF16, &f32[(size_t)r * stride], cols, &bf16[(size_t)r * blocks()]);
        }
    }
    uint32_t blocks() const
    {
        return (k + 31) / 32;
    }
    /* How far output `i` of a row may be from the CPU's: 2^-17 (bf16), 2^-21 (f16) of what is left of a value after two roundings, and
     * the rounding of sums (here in float, on a device with fewer bits, either way within 32 K).  Else 0. */
    double bound(const struct matrix &m, uint32_t row, uint32_t i)
    {
        double size = 0;

        if (m.type != TENSOR_F16 && m.type != TENSOR_BF16)
            return 0;
        std::vector<float> w(pad_to_16(k));
        matrix_row(&m, i, w.data());
        for (uint32_t j = 0; j < k; j++)
            size += fabs((double)w[j] * f32[(size_t)row * stride + j]);
        return size * ((m.type == TENSOR_F16 ? 0x1p-21 : 0x1p-17) + (k + 32.0) * 0x1p-24);
    }
    /* y of one row by the CPU, padded */
    void product(const struct matrix &m, uint32_t row, float *y, uint32_t inputs = 1)
    {
        std::vector<struct xblock> both;
        for (uint32_t b = 0; b < k / 32; b++) {
            both.push_back(q8[(size_t)row * (k / 32) + b]);
            both.push_back(second[(size_t)row * (k / 32) + b]);
        }
        const struct tile t = { type_is_float(m.type) ? (const void *)&f32[(size_t)row * stride] : both.data(), 1, 2, inputs, nullptr, 0 };
        cpu()->gemm[m.type](m.data, m.panel_bytes, m.n_panels, m.n_k, &t, y, 0);
    }
};

/* y of a row against the CPU's: equal, or as near as bound() allows. */
static void assert_outputs(const char *what, const struct matrix &m, input_rows &x, uint32_t row, const float *want, const float *got,
                           uint32_t n)
{
    if (m.type != TENSOR_F16 && m.type != TENSOR_BF16) {
        assert_bits(what, want, got, n);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        const double most = x.bound(m, row, i) + fabs((double)want[i]) * 0x1p-23;
        if (!(fabs((double)want[i] - got[i]) <= most))
            fail_msg("%s (seed %llu): element %u of %u is %g, the CPU has %g, they may differ by %g", what,
                     (unsigned long long)emu::seed(), i, n, (double)got[i], (double)want[i], most);
    }
}

/* What a norm or gate wrote for later products of half weights. */
static void assert_split(const struct row_input &out, uint32_t row, const float *x, uint32_t n)
{
    std::vector<struct split_block> want((n + 31) / 32);

    for (enum tensor_type type : { TENSOR_F16, TENSOR_BF16 }) {
        const struct split_block *got = (type == TENSOR_F16 ? out.split_f16 : out.split_bf16) + (size_t)row * out.n_split;
        twin_split_row(type, x, n, want.data());
        for (uint32_t b = 0; b < out.n_split; b++)
            assert_memory_equal(&want[b], got + b, offsetof(struct split_block, pad));
    }
}

static struct product_args arguments(const two_weights &w, input_rows &x, const uint32_t *n_rows, uint32_t *counters)
{
    struct product_args a = {};

    a.n_k = w.form[0].n_k;
    a.q8 = x.q8.at;
    a.second = x.second.at;
    a.f32 = x.f32.at;
    a.split = w.form[0].type == TENSOR_F16 ? x.f16.at : x.bf16.at;
    a.n_split = x.blocks();
    a.n_blocks = x.k / 32;
    a.f32_stride = x.stride;
    a.n_rows = n_rows;
    a.counters = counters;
    return a;
}

static void add(struct product_args &a, const struct weights &w, float *y, uint32_t stride, const float *bias, uint32_t inputs = 1)
{
    struct product_part &p = a.part[a.n_parts++];

    p.type = w.type;
    p.data = w.data;
    p.panel_bytes = w.panel_bytes;
    p.n_panels = w.n_panels;
    p.n_rows = w.n_rows;
    p.y = y;
    p.y_stride = stride;
    p.bias = bias;
    p.n_inputs = inputs;
}

/* Two parts side by side, the first with a bias, rows taken through a map. */
static void check_store(const two_weights &w, input_rows &x, uint32_t n, uint32_t rows_max, dice &d)
{
    const uint32_t n_rows = w.form[0].n_rows, padded = pad_to_16(n_rows);
    const uint32_t second = 1 + d.below(2), first = 1 + d.below(2);
    exact<float> y0((size_t)n * n_rows), y1((size_t)n * n_rows), bias(n_rows), want(padded);
    exact<uint32_t> map(n), count(1);

    for (uint32_t i = 0; i < n_rows; i++)
        bias[i] = d.unit();
    for (uint32_t i = 0; i < n; i++)
        map[i] = d.below(x.n);
    count[0] = n;
    struct product_args a = arguments(w, x, count.at, nullptr);
    a.kind = PRODUCT_STORE;
    a.map = map.at;
    add(a, w.form[0], y0.at, n_rows, bias.at, first);
    add(a, w.form[1], y1.at, n_rows, nullptr, second);
    assert_int_equal(launch_product(&a, rows_max, nullptr), ST_OK);
    for (uint32_t r = 0; r < n; r++) {
        x.product(w.cpu_form[0], map[r], want.at, first);
        for (uint32_t i = 0; i < n_rows; i++)
            want[i] = want[i] + bias[i];
        assert_outputs("store", w.cpu_form[0], x, map[r], want.at, &y0[(size_t)r * n_rows], n_rows);
        x.product(w.cpu_form[1], map[r], want.at, second);
        assert_outputs("store, second part", w.cpu_form[1], x, map[r], want.at, &y1[(size_t)r * n_rows], n_rows);
    }
}

/* Added to x, which is then normed; or stored, normed, added, normed. */
static void check_add_and_norm(const two_weights &w, input_rows &x, uint32_t n, uint32_t rows_max, bool post, dice &d)
{
    const uint32_t e = w.form[0].n_rows, stride = pad_to_16(e);
    exact<float> y((size_t)n * stride, 0), tmp((size_t)n * stride, 0), weight(e), post_weight(e), out((size_t)n * stride, 0);
    exact<float> padded_weight(stride, 0), padded_post(stride, 0), row(stride, 0), acc(stride, 0);
    exact<struct xblock> q8((size_t)n * (e / 32)), second((size_t)n * (e / 32)), want_q8(e / 32 * 2);
    exact<struct split_block> f16((size_t)n * ((e + 31) / 32)), bf16((size_t)n * ((e + 31) / 32));
    exact<uint32_t> count(1), counters((rows_max + 3) / 4, 0);
    std::vector<float> before;

    for (uint32_t i = 0; i < e; i++) {
        padded_weight[i] = weight[i] = 1 + d.unit();
        padded_post[i] = post_weight[i] = 1 + d.unit();
    }
    for (uint32_t r = 0; r < n; r++)
        for (uint32_t i = 0; i < e; i++)
            y[(size_t)r * stride + i] = d.unit();
    before.assign(y.at, y.at + (size_t)n * stride);
    count[0] = n;
    struct product_args a = arguments(w, x, count.at, counters.at);
    a.kind = post ? PRODUCT_STORE : PRODUCT_ADD;
    add(a, w.form[0], post ? tmp.at : y.at, stride, nullptr);
    a.norm.x = y.at;
    a.norm.tmp = post ? tmp.at : nullptr;
    a.norm.post = post ? post_weight.at : nullptr;
    a.norm.weight = weight.at;
    a.norm.n = e;
    a.norm.stride = stride;
    a.norm.eps = 1e-5f;
    a.norm.out.q8 = e % 32 == 0 ? q8.at : nullptr;
    a.norm.out.second = second.at;
    a.norm.out.n_blocks = e / 32;
    a.norm.out.f32 = out.at;
    a.norm.out.f32_stride = stride;
    a.norm.out.split_f16 = f16.at;
    a.norm.out.split_bf16 = bf16.at;
    a.norm.out.n_split = (e + 31) / 32;
    assert_int_equal(launch_product(&a, rows_max, nullptr), ST_OK);
    for (uint32_t r = 0; r < n; r++) {
        float *want = before.data() + (size_t)r * stride;
        memset(acc.at, 0, stride * sizeof(float));
        x.product(w.cpu_form[0], r, acc.at);
        if (post) { /* what was stored, and from there on what it says */
            assert_outputs("store", w.cpu_form[0], x, r, acc.at, &tmp[(size_t)r * stride], e);
            cpu()->rms_norm(acc.at, &tmp[(size_t)r * stride], padded_post.at, e, 1e-5f);
        }
        cpu()->add(want, acc.at, stride);
        if (post)
            assert_bits("sum", want, &y[(size_t)r * stride], e);
        else
            assert_outputs("sum", w.cpu_form[0], x, r, want, &y[(size_t)r * stride], e);
        cpu()->rms_norm(row.at, &y[(size_t)r * stride], padded_weight.at, e, 1e-5f);
        assert_bits("norm", row.at, &out[(size_t)r * stride], e);
        assert_split(a.norm.out, r, row.at, e);
        if (e % 32 != 0)
            continue;
        cpu()->quantise(row.at, e / 32, want_q8.at, 1, e / 32);
        assert_memory_equal(want_q8.at, q8.at + (size_t)r * (e / 32), e / 32 * sizeof(struct xblock));
        assert_memory_equal(want_q8.at + e / 32, second.at + (size_t)r * (e / 32), e / 32 * sizeof(struct xblock));
    }
    for (uint32_t i = 0; i < counters.n; i++)
        assert_int_equal(counters[i], 0);
}

/* act(g) u where g and u are only near: the slope of an activation is below 1.2, its value below |g|. */
static void assert_gate(const two_weights &w, input_rows &x, uint32_t row, bool gelu, const float *g, const float *u, const float *got)
{
    for (uint32_t i = 0; i < w.form[0].n_rows; i++) {
        const double dg = x.bound(w.cpu_form[0], row, i), du = x.bound(w.cpu_form[1], row, i);
        const double v = g[i], z = gelu ? 1.59576912 * v * (1 + 0.044715 * v * v) : v, want = v / (1 + exp(-z)) * u[i];
        const double most = 1.2 * dg * (fabs((double)u[i]) + du) + fabs(v) * du + fabs(want) * 1e-5 + 1e-30;
        if (!(fabs(want - got[i]) <= most))
            fail_msg("gate (seed %llu): element %u is %g, not %g +- %g", (unsigned long long)emu::seed(), i, (double)got[i], want, most);
    }
}

static void check_gate(const two_weights &w, input_rows &x, uint32_t n, uint32_t rows_max, bool gelu)
{
    const uint32_t f = w.form[0].n_rows, stride = pad_to_16(f);
    exact<float> out((size_t)n * stride, 0), g(stride), u(stride);
    exact<struct xblock> q8((size_t)n * (f / 32)), want_q8(f / 32);
    exact<struct split_block> f16((size_t)n * ((f + 31) / 32)), bf16((size_t)n * ((f + 31) / 32));
    exact<uint32_t> count(1);
    const bool half = w.form[0].type == TENSOR_F16 || w.form[0].type == TENSOR_BF16;

    count[0] = n;
    struct product_args a = arguments(w, x, count.at, nullptr);
    a.kind = PRODUCT_GATE;
    a.gelu = gelu;
    add(a, w.form[0], nullptr, 0, nullptr);
    add(a, w.form[1], nullptr, 0, nullptr);
    a.out.q8 = f % 32 == 0 ? q8.at : nullptr;
    a.out.n_blocks = f / 32;
    a.out.f32 = out.at;
    a.out.f32_stride = stride;
    a.out.split_f16 = f16.at;
    a.out.split_bf16 = bf16.at;
    a.out.n_split = (f + 31) / 32;
    assert_int_equal(launch_product(&a, rows_max, nullptr), ST_OK);
    for (uint32_t r = 0; r < n; r++) {
        x.product(w.cpu_form[0], r, g.at);
        x.product(w.cpu_form[1], r, u.at);
        if (half) {
            assert_gate(w, x, r, gelu, g.at, u.at, &out[(size_t)r * stride]);
            memcpy(g.at, &out[(size_t)r * stride], f * sizeof(float));
        } else {
            cpu()->gate(gelu ? GATE_GELU : GATE_SILU, g.at, u.at, stride);
            assert_bits("gate", g.at, &out[(size_t)r * stride], f);
        }
        assert_split(a.out, r, g.at, f);
        if (f % 32 != 0)
            continue;
        cpu()->quantise(g.at, f / 32, want_q8.at, 1, 0);
        assert_memory_equal(want_q8.at, q8.at + (size_t)r * (f / 32), f / 32 * sizeof(struct xblock));
    }
}

static void products_are_the_cpus(void **)
{
    static const enum tensor_type types[] = {
#define X(name, id, elements, bytes) TENSOR_##name,
        TENSOR_TYPE_LIST(X)
#undef X
    };
    static const uint32_t n_rows[] = { 1, 15, 16, 17, 32, 40, 64, 96, 160 }, few[] = { 1, 2, 3, 4, 5, 8 }, many[] = { 9, 31, 32, 33, 65 };
    static const uint32_t k_of_32[] = { 32, 64, 96, 288, 512, 544 }, k_of_256[] = { 256, 512, 768 }, k_float[] = { 8, 40, 64, 72, 200, 288, 600 };
    dice d = { 77 };

    for (enum tensor_type type : types) {
        for (uint32_t round = 0; round < ROUNDS; round++) {
            const bool k_type = type == TENSOR_Q4_K || type == TENSOR_Q5_K || type == TENSOR_Q6_K;
            const uint32_t k = type_is_float(type) ? d.pick(k_float) : k_type ? d.pick(k_of_256) : d.pick(k_of_32);
            const uint32_t n = round / 3 % 2 ? d.pick(few) : d.pick(many), rows = n + d.below(4), rows_max = n <= 8 ? 8 : n + d.below(40);
            const two_weights w(type, d.pick(n_rows), k, d.next() | 1);
            input_rows x(rows, k, d);
            emu::set_seed(d.next());
            if (round % 3 == 0)
                check_store(w, x, n, round / 3 % 2 ? n : rows_max, d);
            else if (round % 3 == 1)
                check_add_and_norm(w, x, n, round / 3 % 2 ? n : rows_max, d.below(2), d);
            else
                check_gate(w, x, n, round / 3 % 2 ? n : rows_max, d.below(2));
        }
    }
}

/* How many rows are computed together, or which kernel that takes, is not part of a result. */
static void a_row_has_the_same_bits_in_any_company(void **)
{
    static const uint32_t company[] = { 1, 2, 4, 7, 8, 9, 31, 33, 65, 140 };
    dice d = { 5 };

    for (enum tensor_type type : { TENSOR_Q4_1, TENSOR_Q8_0, TENSOR_F32, TENSOR_F16, TENSOR_BF16 }) {
        const two_weights w(type, 48, 352, 3);
        input_rows x(140, 352, d);
        std::vector<float> alone;
        for (uint32_t n : company) {
            exact<float> y((size_t)n * 48);
            exact<uint32_t> count(1);
            count[0] = n;
            struct product_args a = arguments(w, x, count.at, nullptr);
            a.kind = PRODUCT_STORE;
            add(a, w.form[0], y.at, 48, nullptr);
            emu::set_seed(d.next());
            assert_int_equal(launch_product(&a, n, nullptr), ST_OK);
            if (alone.empty())
                alone.assign(y.at, y.at + 48);
            assert_bits("company", alone.data(), y.at, 48);
        }
    }
}

/* q, k and v of three quantised types are one launch: the outputs of each are what it has alone, which is the CPU's. */
static void parts_of_several_types_are_the_cpus(void **)
{
    static const enum tensor_type types[][3] = {
        { TENSOR_Q4_K, TENSOR_Q4_K, TENSOR_Q6_K }, { TENSOR_Q5_K, TENSOR_Q4_K, TENSOR_Q8_0 },
        { TENSOR_Q5_0, TENSOR_Q5_1, TENSOR_Q8_0 }, { TENSOR_Q4_1, TENSOR_Q6_K, TENSOR_Q4_0 },
        { TENSOR_Q8_0, TENSOR_Q8_0, TENSOR_Q5_K },
    };
    static const uint32_t n_rows[3] = { 145, 40, 17 }, company[] = { 1, 2, 4, 5, 9, 17, 40 };
    const uint32_t k = 512, rows = 40;
    dice d = { 21 };

    for (const auto &type : types) {
        std::vector<std::unique_ptr<two_weights>> w;
        for (int i = 0; i < 3; i++)
            w.emplace_back(new two_weights(type[i], n_rows[i], k, d.next() | 1));
        input_rows x(rows, k, d);
        for (uint32_t n : company) {
            std::vector<std::unique_ptr<exact<float>>> y;
            exact<uint32_t> count(1);
            count[0] = n;
            struct product_args a = arguments(*w[0], x, count.at, nullptr);
            a.kind = PRODUCT_STORE;
            for (int i = 0; i < 3; i++) {
                y.emplace_back(new exact<float>((size_t)n * n_rows[i]));
                add(a, w[i]->form[0], y[i]->at, n_rows[i], nullptr, i == 2 ? 2 : 1);
            }
            emu::set_seed(d.next());
            const uint64_t before = emu::n_launches;
            assert_int_equal(launch_product(&a, n + d.below(3), nullptr), ST_OK);
            assert_int_equal(emu::n_launches - before, 1);
            for (int i = 0; i < 3; i++)
                for (uint32_t r = 0; r < n; r++) {
                    exact<float> want(pad_to_16(n_rows[i]));
                    x.product(w[i]->cpu_form[0], r, want.at, i == 2 ? 2 : 1);
                    assert_bits("several types", want.at, &(*y[i])[(size_t)r * n_rows[i]], n_rows[i]);
                }
        }
    }
}

/* Row i of n, by a product or by a gate: [n][N]. */
static void few_or_many(const two_weights &w, input_rows &x, enum product_kind kind, const uint32_t *map,
                        uint32_t n, float *y)
{
    const uint32_t n_rows = w.form[0].n_rows;
    exact<uint32_t> count(1);

    count[0] = n;
    struct product_args a = arguments(w, x, count.at, nullptr);
    a.kind = kind;
    a.map = map;
    if (kind == PRODUCT_GATE) {
        a.out.f32 = y;
        a.out.f32_stride = n_rows;
        add(a, w.form[0], nullptr, 0, nullptr);
    }
    add(a, w.form[1], y, n_rows, nullptr);
    assert_int_equal(launch_product(&a, n, nullptr), ST_OK);
}

/* Every kernel that a number of rows takes, over the ends of K (of a unit of 8, of a block of 32), of N (of a panel, of a block's
 * panels) and of tiles of rows: the bits are those that each row has alone. */
static void a_float_rows_bits_are_those_it_has_alone_at_every_edge(void **)
{
    static const struct {
        uint32_t k, n;
    } sizes[] = { { 1, 1 }, { 8, 15 }, { 31, 16 }, { 37, 17 }, { 40, 65 }, { 72, 33 }, { 264, 130 }, { 352, 16 } };
    static const uint32_t more[] = { 31, 33, 64, 65 };
    dice d = { 8 };

    for (enum tensor_type type : { TENSOR_F16, TENSOR_BF16, TENSOR_F32 }) {
        for (const auto &size : sizes) {
            const two_weights w(type, size.n, size.k, d.next() | 1);
            input_rows x(65, size.k, d);
            for (enum product_kind kind : { PRODUCT_STORE, PRODUCT_GATE }) {
                exact<float> alone((size_t)x.n * size.n), y((size_t)x.n * size.n);
                for (uint32_t row = 0; row < x.n; row++) {
                    emu::set_seed(d.next());
                    few_or_many(w, x, kind, &row, 1, &alone[(size_t)row * size.n]);
                }
                for (uint32_t i = 0; i < 17 + sizeof(more) / sizeof(more[0]); i++) {
                    const uint32_t n = i < 17 ? i + 1 : more[i - 17];
                    emu::set_seed(d.next());
                    few_or_many(w, x, kind, nullptr, n, y.at);
                    assert_bits(kind == PRODUCT_STORE ? "edges" : "edges of a gate", alone.at, y.at,
                                (size_t)n * size.n);
                }
            }
        }
    }
}

/* More tiles of rows than go through the panels together: every output is there, and is its row's. */
static void many_tiles_of_rows_are_all_computed(void **)
{
    dice d = { 6 };

    for (enum tensor_type type : { TENSOR_Q8_0, TENSOR_BF16 }) {
        const uint32_t n_rows = 272, n = (type == TENSOR_Q8_0 ? 32 : 64) * 18 + 5;
        const two_weights w(type, n_rows, 32, 9);
        input_rows x(7, 32, d);
        exact<float> y((size_t)n * n_rows), want(n_rows);
        exact<uint32_t> map(n), count(1);
        for (uint32_t i = 0; i < n; i++)
            map[i] = i % 7;
        count[0] = n;
        struct product_args a = arguments(w, x, count.at, nullptr);
        a.kind = PRODUCT_STORE;
        a.map = map.at;
        add(a, w.form[0], y.at, n_rows, nullptr);
        emu::set_seed(d.next());
        assert_int_equal(launch_product(&a, n, nullptr), ST_OK);
        for (uint32_t r = 0; r < n; r++) {
            if (r < 7) {
                x.product(w.cpu_form[0], r, want.at);
                assert_outputs("tiles", w.cpu_form[0], x, r, want.at, &y[(size_t)r * n_rows], n_rows);
            } else {
                assert_bits("tiles", &y[(size_t)(r % 7) * n_rows], &y[(size_t)r * n_rows], n_rows);
            }
        }
    }
}

int main()
{
    const CMUnitTest tests[] = {
        cmocka_unit_test(products_are_the_cpus),
        cmocka_unit_test(a_row_has_the_same_bits_in_any_company),
        cmocka_unit_test(parts_of_several_types_are_the_cpus),
        cmocka_unit_test(a_float_rows_bits_are_those_it_has_alone_at_every_edge),
        cmocka_unit_test(many_tiles_of_rows_are_all_computed),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
