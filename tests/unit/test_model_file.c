/* test_model_file.c - a model file gives the sizes, constants and tensors of its architecture, or a refusal by name. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <xxhash.h>

#include "tests/support/gguf_writer.h"
#include "tests/support/test_model_path.h"
#include "worker/model_file.h"

static struct gguf_writer w;
static struct gguf *g;
static struct model *m;
static struct error err;

static int end(void **state)
{
    (void)state;
    model_close(m);
    gguf_close(g);
    m = NULL;
    g = NULL;
    gguf_writer_deinit(&w);
    return 0;
}

static enum status open_written(void)
{
    struct span file = gguf_writer_finish(&w);

    model_close(m);
    gguf_close(g);
    m = NULL;
    g = NULL;
    memset(&err, 0, sizeof(err));
    assert_int_equal(gguf_open_memory(file, "test.gguf", &g, &err), ST_OK);
    return model_open(g, &m, &err);
}

static void expect_refusal(enum status status, const char *word)
{
    enum status st = open_written();

    if (st != status || strstr(err.message, word) == NULL)
        print_error("got %s: %s\n", status_text(st), err.message);
    assert_int_equal(st, status);
    assert_null(m);
    assert_non_null(strstr(err.message, word));
    end(NULL);
}

static void llama_reads_sizes_and_ties_the_head_when_it_has_none(void **state)
{
    (void)state;
    gguf_writer_tiny_model(&w, "llama", 40);
    assert_int_equal(open_written(), ST_OK);
    assert_int_equal(m->arch, ARCH_LLAMA);
    assert_int_equal(m->n_layers, 2);
    assert_int_equal(m->n_vocab, 40);
    assert_int_equal(m->n_heads, 4);
    assert_int_equal(m->n_kv_heads, 2);
    assert_int_equal(m->head_dim, 8);
    assert_int_equal(m->rope_kind, ROPE_NORM);
    assert_int_equal(m->gate, GATE_SILU);
    assert_true(m->tied_output);
    assert_ptr_equal(m->output.data, m->token_embd.data);
    assert_true(m->rope.freq_base == 10000.0f);
    assert_int_equal(m->rope.scaling, ROPE_SCALING_NONE);
    assert_true(m->attention_scale == 1.0f / sqrtf(8.0f));
    assert_true(m->embedding_scale == 1.0f);
    assert_null(m->layers[0].attn_q_bias.data);
    assert_null(m->layers[0].attn_q_norm.data);
    assert_int_equal(m->layers[1].ffn_down.n_rows, 32);
    assert_int_equal(m->layers[1].ffn_down.n_cols, 64);
    assert_int_equal(m->layers[0].window, 0);

    XXH128_hash_t h = XXH3_128bits(m->map, m->map_bytes);

    assert_true(m->fingerprint[0] == h.low64 && m->fingerprint[1] == h.high64);
    m->release_pages(m, m->token_embd.data,
                     m->token_embd.bytes); /* nothing to give back in memory, and no harm */
}

static void an_own_head_is_kept_apart(void **state)
{
    (void)state;
    gguf_writer_tiny_model(&w, "llama", 40);
    gguf_writer_tensor(&w, "output.weight", TENSOR_F32, 2, (uint64_t[]){32, 40}, NULL);
    assert_int_equal(open_written(), ST_OK);
    assert_false(m->tied_output);
    assert_ptr_not_equal(m->output.data, m->token_embd.data);
}

static void qwen2_has_biases_and_qwen3_norms_of_heads(void **state)
{
    (void)state;
    gguf_writer_tiny_model(&w, "qwen2", 40);
    assert_int_equal(open_written(), ST_OK);
    assert_int_equal(m->rope_kind, ROPE_NEOX);
    assert_int_equal(m->layers[1].attn_q_bias.n_cols, 32);
    assert_int_equal(m->layers[1].attn_v_bias.n_cols, 16);
    end(state);
    gguf_writer_tiny_model(&w, "qwen3", 40);
    assert_int_equal(open_written(), ST_OK);
    assert_int_equal(m->layers[0].attn_k_norm.n_cols, 8);
}

static void gemma3_has_local_layers_with_their_own_rope(void **state)
{
    (void)state;
    gguf_writer_tiny_model(&w, "gemma3", 40);
    gguf_writer_f32(&w, "gemma3.rope.freq_base", 1e6f);
    gguf_writer_f32(&w, "gemma3.rope.scaling.factor", 8.0f);
    gguf_writer_u32(&w, "gemma3.attention.sliding_window_pattern", 2);
    assert_int_equal(open_written(), ST_OK);
    assert_int_equal(m->gate, GATE_GELU);
    assert_true(m->embedding_scale == sqrtf(32.0f));
    assert_int_equal(m->layers[0].window, 32);
    assert_int_equal(m->layers[0].rope_table, 1);
    assert_int_equal(m->layers[1].window, 0);
    assert_int_equal(m->layers[1].rope_table, 0);
    assert_true(m->rope.freq_base == 1e6f);
    assert_int_equal(m->rope.scaling, ROPE_SCALING_LINEAR);
    assert_true(m->rope.factor == 8.0f);
    assert_true(m->rope_local.freq_base == 10000.0f);
    assert_int_equal(m->rope_local.scaling, ROPE_SCALING_NONE);
    assert_int_equal(m->layers[1].post_ffw_norm.n_cols, 32);
    end(state);

    gguf_writer_tiny_model(&w, "gemma3", 40);
    gguf_writer_bools(&w, "gemma3.attention.sliding_window_pattern", (bool[]){false, true}, 2);
    assert_int_equal(open_written(), ST_OK);
    assert_int_equal(m->layers[0].window, 0);
    assert_int_equal(m->layers[1].window, 32);
}

static void yarn_and_divisors_are_read(void **state)
{
    float divisors[4] = {1, 1, 2, 8};

    (void)state;
    gguf_writer_tiny_model(&w, "llama", 40);
    gguf_writer_string(&w, "llama.rope.scaling.type", "yarn");
    gguf_writer_f32(&w, "llama.rope.scaling.factor", 4.0f);
    gguf_writer_u32(&w, "llama.rope.scaling.original_context_length", 64);
    gguf_writer_tensor(&w, "rope_freqs.weight", TENSOR_F32, 1, (uint64_t[]){4}, divisors);
    assert_int_equal(open_written(), ST_OK);
    assert_int_equal(m->rope.scaling, ROPE_SCALING_YARN);
    assert_int_equal(m->rope.original_context, 64);
    assert_true(m->rope.yarn_ext_factor == 1.0f);
    assert_true(m->rope.yarn_beta_fast == 32.0f);
    assert_memory_equal(m->rope.freq_divisors.data, divisors, sizeof(divisors));
    end(state);

    divisors[2] = 0;
    gguf_writer_tiny_model(&w, "llama", 40);
    gguf_writer_tensor(&w, "rope_freqs.weight", TENSOR_F32, 1, (uint64_t[]){4}, divisors);
    expect_refusal(ST_INVALID, "rope_freqs.weight");
}

static void what_we_do_not_run_is_refused_by_name(void **state)
{
    static const struct {
        const char *key;
        float value;
    } keys[] = {{"attn_logit_softcapping", 50}, {"final_logit_softcapping", 30}, {"logit_scale", 0.5f}};

    (void)state;
    gguf_writer_string(&w, "general.architecture", "mamba");
    expect_refusal(ST_UNSUPPORTED, "\"mamba\"");
    gguf_writer_u32(&w, "x", 1);
    expect_refusal(ST_INVALID, "general.architecture");
    gguf_writer_tiny_model(&w, "llama", 40);
    gguf_writer_u32(&w, "llama.expert_count", 8);
    expect_refusal(ST_UNSUPPORTED, "8 experts");
    gguf_writer_tiny_model(&w, "llama", 40);
    gguf_writer_u32(&w, "llama.rope.dimension_count", 4);
    expect_refusal(ST_UNSUPPORTED, "rotates 4 of 8");
    gguf_writer_tiny_model(&w, "llama", 40);
    gguf_writer_u32(&w, "llama.attention.value_length", 4);
    expect_refusal(ST_UNSUPPORTED, "values of 4");
    gguf_writer_tiny_model(&w, "llama", 40);
    gguf_writer_string(&w, "llama.rope.scaling.type", "longrope");
    expect_refusal(ST_UNSUPPORTED, "longrope");
    gguf_writer_tiny_model(&w, "llama", 40);
    gguf_writer_bool(&w, "llama.attention.causal", false);
    expect_refusal(ST_UNSUPPORTED, "not causal");
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        char key[64];

        snprintf(key, sizeof(key), "gemma3.%s", keys[i].key);
        gguf_writer_tiny_model(&w, "gemma3", 40);
        gguf_writer_f32(&w, key, keys[i].value);
        expect_refusal(ST_UNSUPPORTED, key);
    }
    gguf_writer_tiny_model(&w, "llama", 40);
    gguf_writer_tensor(&w, "blk.0.attn_output.bias", TENSOR_F32, 1, (uint64_t[]){32}, NULL);
    expect_refusal(ST_UNSUPPORTED, "blk.0.attn_output.bias");
    gguf_writer_tiny_model(&w, "llama", 40);
    gguf_writer_tensor(&w, "blk.2.attn_norm.weight", TENSOR_F32, 1, (uint64_t[]){32}, NULL);
    expect_refusal(ST_UNSUPPORTED, "blk.2.attn_norm.weight");
}

static void sizes_and_shapes_must_agree(void **state)
{
    const uint32_t counts[2] = {64, 128};

    (void)state;
    gguf_writer_tiny_model(&w, "llama", 40);
    gguf_writer_u32(&w, "llama.vocab_size", 41);
    expect_refusal(ST_INVALID, "vocab_size 41");
    gguf_writer_tiny_model(&w, "llama", 40);
    gguf_writer_strings(&w, "tokenizer.ggml.tokens", (const char *[]){"a", "b"}, 2);
    expect_refusal(ST_INVALID, "2 token texts");
    gguf_writer_tiny_model(&w, "llama", 40);
    gguf_writer_tensor(&w, "output.weight", TENSOR_F32, 2, (uint64_t[]){32, 39}, NULL);
    expect_refusal(ST_INVALID, "output.weight");
    gguf_writer_tiny_model(&w, "llama", 40);
    gguf_writer_tensor(&w, "rope_freqs.weight", TENSOR_F32, 1, (uint64_t[]){8}, NULL);
    expect_refusal(ST_INVALID, "rope_freqs.weight");
    gguf_writer_tiny_model(&w, "llama", 40);
    gguf_writer_tensor(&w, "blk.0.attn_q.bias", TENSOR_F16, 1, (uint64_t[]){32}, NULL);
    expect_refusal(ST_UNSUPPORTED, "F32");

    /* keys that repeat a layer's size must say the same */
    gguf_writer_string(&w, "general.architecture", "llama");
    gguf_writer_u32(&w, "llama.block_count", 2);
    gguf_writer_u32(&w, "llama.context_length", 256);
    gguf_writer_u32(&w, "llama.embedding_length", 32);
    gguf_writer_u32s(&w, "llama.feed_forward_length", GGUF_U32, counts, 2);
    expect_refusal(ST_UNSUPPORTED, "differs between layers");
}

static void numbers_outside_their_range_are_refused(void **state)
{
    static const struct {
        const char *key;
        uint32_t value;
    } sizes[] = {
        {"block_count", 0},
        {"block_count", UINT32_MAX},
        {"embedding_length", UINT32_MAX},
        {"context_length", 0},
        {"attention.head_count", 0},
        {"attention.head_count", UINT32_MAX},
        {"attention.head_count_kv", 0},
    };
    static const uint32_t defaults[] = {2, 32, 256, 4, 2};
    static const char *const names[] = {"block_count", "embedding_length", "context_length",
                                        "attention.head_count", "attention.head_count_kv"};

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        char key[96];

        gguf_writer_string(&w, "general.architecture", "llama");
        gguf_writer_u32(&w, "llama.feed_forward_length", 64);
        for (size_t j = 0; j < 5; j++) {
            snprintf(key, sizeof(key), "llama.%s", names[j]);
            gguf_writer_u32(&w, key, strcmp(names[j], sizes[i].key) == 0 ? sizes[i].value : defaults[j]);
        }
        enum status st = open_written();

        assert_true(st == ST_INVALID || st == ST_LIMIT);
        end(state);
    }
    gguf_writer_tiny_model(&w, "llama", 40);
    gguf_writer_f32(&w, "llama.rope.freq_base", -1);
    expect_refusal(ST_INVALID, "RoPE base");
    gguf_writer_tiny_model(&w, "llama", 40);
    gguf_writer_f32(&w, "llama.rope.scaling.factor", NAN);
    expect_refusal(ST_INVALID, "llama.rope.scaling.factor");
}

static void the_real_models_open(void **state)
{
    char text[2048];
    const char *paths[] = {test_model_smollm2(), test_model_gemma3()};

    (void)state;
    for (int i = 0; i < 2; i++) {
        if (paths[i] == NULL)
            continue;
        assert_int_equal(gguf_open(paths[i], &g, &err), ST_OK);
        assert_int_equal(model_open(g, &m, &err), ST_OK);
        print_message("%s", model_describe(m, text, sizeof(text)));
        if (i == 0) {
            assert_int_equal(m->n_layers, 30);
            assert_int_equal(m->token_embd.type, TENSOR_Q8_0);
        } else {
            assert_int_equal(m->layers[4].window, 512);
            assert_int_equal(m->layers[5].window, 0);
            assert_int_equal(m->head_dim, 256);
        }
        m->release_pages(m, m->token_embd.data, m->token_embd.bytes);
        end(state);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(llama_reads_sizes_and_ties_the_head_when_it_has_none, end),
        cmocka_unit_test_teardown(an_own_head_is_kept_apart, end),
        cmocka_unit_test_teardown(qwen2_has_biases_and_qwen3_norms_of_heads, end),
        cmocka_unit_test_teardown(gemma3_has_local_layers_with_their_own_rope, end),
        cmocka_unit_test_teardown(yarn_and_divisors_are_read, end),
        cmocka_unit_test_teardown(what_we_do_not_run_is_refused_by_name, end),
        cmocka_unit_test_teardown(sizes_and_shapes_must_agree, end),
        cmocka_unit_test_teardown(numbers_outside_their_range_are_refused, end),
        cmocka_unit_test_teardown(the_real_models_open, end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
