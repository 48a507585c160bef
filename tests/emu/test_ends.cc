/* The ends of a step against the CPU: rows of the vocabulary of every type with their angles, and tokens drawn from logits. */
#include "twin.h"

enum { ROUNDS = 60 };

static void embedding_rows_and_angles_are_the_cpus(void **)
{
    static const enum tensor_type types[] = {
#define X(name, id, elements, bytes) TENSOR_##name,
        TENSOR_TYPE_LIST(X)
#undef X
    };
    dice d = { 99 };

    for (enum tensor_type type : types) {
        const uint32_t k = type_is_float(type) ? 88 : 256, stride = pad_to_16(k), n = 9, half = 32;
        struct synthetic_shape shape = {};
        const struct model *m;
        shape.n_layers = 1, shape.n_embd = k, shape.n_ff = 16, shape.n_heads = shape.n_kv_heads = 1, shape.head_dim = 32;
        shape.n_vocab = 45, shape.weights = type, shape.own_down = true, shape.down = TENSOR_F32, shape.seed = type + 1;
        struct synthetic *s = synthetic_new(&shape, &m);
        struct embed_args a = {};
        assert_int_equal(weights_init(&a.embedding, &m->token_embd), ST_OK);
        exact<uint8_t> packed(weights_bytes(&a.embedding)), scratch(weights_scratch_bytes(&m->token_embd));
        for (uint32_t p = 0; p < a.embedding.n_panels; p++)
            weights_pack_panel(&a.embedding, &m->token_embd, 0, p, scratch.at, packed.at + p * a.embedding.panel_bytes);
        a.embedding.data = packed.at;

        exact<float> x((size_t)n * stride), out((size_t)n * stride), weight(k), cosines((size_t)n * half), sines((size_t)n * half);
        exact<float> want(stride), want_cosines(half), want_sines(half);
        exact<double> frequencies(half);
        exact<int32_t> last(3);
        device_step step = {};
        for (uint32_t i = 0; i < k; i++)
            weight[i] = 1;
        struct rope rope = { half, 1.25f, frequencies.at };
        struct model_rope r = {};
        r.freq_base = 10000;
        rope_init(&rope, &r, nullptr);
        rope.magnitude = 1.25f;
        last[2] = 44;
        for (uint32_t i = 0; i < n; i++) {
            struct step_row row = { (int32_t)d.below(45), i == 4 ? 2 : -1, i * i * 1000 + i, 0 };
            step.rows.push_back(row);
        }
        a.step = step.view();
        a.last_tokens = last.at;
        a.scale = type % 2 ? 1.0f : 22.5f;
        a.x = x.at;
        a.stride = stride;
        a.norm.x = x.at;
        a.norm.weight = weight.at;
        a.norm.n = k;
        a.norm.stride = stride;
        a.norm.eps = 1e-6f;
        a.norm.out.f32 = out.at;
        a.norm.out.f32_stride = stride;
        for (int t = 0; t < 2; t++) {
            a.frequencies[t] = frequencies.at;
            a.magnitudes[t] = 1.25f;
            a.cosines[t] = cosines.at;
            a.sines[t] = sines.at;
        }
        a.half = half;
        emu::set_seed(d.next());
        assert_int_equal(launch_embed(&a, n + 2, nullptr), ST_OK);
        for (uint32_t i = 0; i < n; i++) {
            memset(want.at, 0, stride * sizeof(float));
            tensor_row(&m->token_embd, i == 4 ? 44 : (uint32_t)step.rows[i].token, want.at);
            for (uint32_t j = 0; j < k && a.scale != 1.0f; j++)
                want[j] *= a.scale;
            assert_bits("embedding", want.at, &x[(size_t)i * stride], k);
            rope_position(&rope, step.rows[i].position, want_cosines.at, want_sines.at);
            assert_bits("cosines", want_cosines.at, &cosines[(size_t)i * half], half);
            assert_bits("sines", want_sines.at, &sines[(size_t)i * half], half);
        }
        synthetic_free(s);
    }
}

/* A row of logits of one of some kinds: spread, flat, with ties, with one far above. */
static void make_logits(float *x, uint32_t n, dice &d)
{
    const uint32_t kind = d.below(4);

    for (uint32_t i = 0; i < n; i++) {
        x[i] = d.unit() * 12;
        if (kind == 1)
            x[i] = 0.25f;
        if (kind == 2)
            x[i] = (float)(int)(d.unit() * 5) * (d.below(2) ? 1.0f : -1.0f); /* -0 too */
    }
    if (kind == 3)
        x[d.below(n)] = 90;
}

static void tokens_and_probabilities_are_the_cpus(void **)
{
    static const uint32_t vocabularies[] = { 1, 2, 17, 300, 2000 };
    static const float temperatures[] = { 0, 0.3f, 1, 1, 2.5f, 100 }, top_ps[] = { 1, 1, 0.95f, 0.5f, 0.01f }, min_ps[] = { 0, 0, 0.1f, 1 };
    dice d = { 31337 };

    for (uint32_t round = 0; round < ROUNDS; round++) {
        const uint32_t v = d.pick(vocabularies), stride = (v + 31) / 32 * 32, n = 1 + d.below(3), slots = 1 + d.below(2);
        exact<float> logits((size_t)n * stride), raw(slots * stride), exps(slots * stride);
        exact<uint64_t> ranked(slots * stride);
        exact<double> weights(slots * stride);
        exact<struct step_result> results(n);
        exact<int32_t> last(n);
        std::vector<std::vector<float>> rows;
        device_step step = {};
        for (uint32_t i = 0; i < 5; i++) { /* the same token may have several biases */
            struct logit_bias b = { (int32_t)d.below(v < 3 ? v : 3), d.unit() * 10 };
            step.bias.push_back(b);
        }
        for (uint32_t i = 0; i < (v < 4 ? v : 4); i++) {
            struct token_count c = { (int32_t)(i * (v / 4 > 0 ? v / 4 : 1)), d.below(2), d.below(3) };
            step.seen.push_back(c);
        }
        for (uint32_t i = 0; i < n; i++) {
            struct sample_request q = {};
            make_logits(&logits[(size_t)i * stride], v, d);
            rows.emplace_back(&logits[(size_t)i * stride], &logits[(size_t)i * stride] + v);
            rows.back().resize(pad_to_16(v));
            q.sampling.seed = d.next();
            q.sampling.temperature = d.pick(temperatures);
            q.sampling.top_p = d.pick(top_ps);
            q.sampling.min_p = d.pick(min_ps);
            q.sampling.top_k = d.below(3) ? 0 : 1 + d.below(60);
            q.sampling.repetition_penalty = d.below(2) ? 1 : 1.2f;
            q.sampling.presence_penalty = d.unit();
            q.sampling.frequency_penalty = d.unit();
            q.sampling.logprobs = (uint8_t)d.below(2);
            q.sampling.n_logprobs = q.sampling.logprobs ? d.below(LOGPROBS_MAX + 1) : 0;
            q.out = i;
            q.entry = n - 1 - i;
            q.choice = d.below(4);
            q.index = d.below(1000);
            q.n_bias = d.below(2) ? 5 : 0;
            q.n_seen = d.below(2) ? (uint32_t)step.seen.size() : 0;
            step.requests.push_back(q);
        }
        struct sample_args a = {};
        a.step = step.view();
        a.logits = logits.at;
        a.n_vocab = v;
        a.stride = stride;
        a.n_slots = slots;
        a.raw = raw.at, a.exps = exps.at, a.ranked = ranked.at, a.weights = weights.at;
        a.results = results.at;
        a.last_tokens = last.at;
        emu::set_seed(d.next());
        assert_int_equal(launch_sample(&a, n, nullptr), ST_OK);
        for (uint32_t i = 0; i < n; i++) {
            const struct sample_request &q = step.requests[i];
            const struct step_result &got = results[q.entry];
            exact<float> cpu_raw(pad_to_16(v));
            exact<struct ranked> cpu_ranked(v);
            struct sampler_scratch scratch = { cpu_raw.at, cpu_ranked.at };
            struct step_result want = {};
            struct plan_entry e = {};
            e.sampling = &q.sampling;
            e.bias = step.bias.data(), e.n_bias = q.n_bias;
            e.seen = step.seen.data(), e.n_seen = q.n_seen;
            e.choice = q.choice, e.index = q.index;
            sample_token(cpu(), &e, rows[i].data(), v, &scratch, &want);
            if (got.token != want.token || got.n_top != want.n_top)
                fail_msg("round %u, row %u of %u logits: token %d with %u alternatives, the CPU has %d with %u (temperature %g, top_k %u, top_p %g, min_p %g)",
                         round, i, v, got.token, got.n_top, want.token, want.n_top, (double)q.sampling.temperature, q.sampling.top_k,
                         (double)q.sampling.top_p, (double)q.sampling.min_p);
            assert_int_equal(last[q.entry], want.token);
            assert_memory_equal(&got.logprob, &want.logprob, sizeof(float));
            assert_memory_equal(got.top, want.top, want.n_top * sizeof(want.top[0]));
        }
    }
}

int main()
{
    const CMUnitTest tests[] = {
        cmocka_unit_test(embedding_rows_and_angles_are_the_cpus),
        cmocka_unit_test(tokens_and_probabilities_are_the_cpus),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
