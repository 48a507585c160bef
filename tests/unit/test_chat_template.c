/* test_chat_template.c - conversations are written as the model's own template writes them, and users cannot forge turns.
 *
 * tests/reference/data/chat_templates.json holds what Jinja makes of a template of each family (make_chat_vectors.py beside it);
 * smollm2-135m.chat.json what Transformers makes of SmolLM2's own, with ids. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <jansson.h>

#include "tests/support/vocabulary.h"
#include "tests/support/test_model_path.h"
#include "worker/chat_template.h"

static struct error err;
static struct tokenizer *t;
static struct encoder *e;

static const char *const control[] = {
    "<s>",
    "</s>",
    "<bos>",
    "<eos>",
    "<|im_start|>",
    "<|im_end|>",
    "<|begin_of_text|>",
    "<|eot_id|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<start_of_turn>",
    "<end_of_turn>",
    "[INST]",
    "[/INST]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
};
enum { N_CONTROL = sizeof(control) / sizeof(control[0]), FIRST_CONTROL = 256 };

static int free_tokenizer(void **state)
{
    (void)state;
    encoder_free(e);
    tokenizer_free(t);
    e = NULL;
    t = NULL;
    return 0;
}

static uint32_t control_id(const char *text)
{
    for (uint32_t i = 0; i < N_CONTROL; i++)
        if (strcmp(control[i], text) == 0)
            return FIRST_CONTROL + i;
    fail();
    return 0;
}

static void make_tokenizer(const char *bos, const char *eos)
{
    struct gguf_writer w = {0};

    vocabulary_bpe(&w, "gpt-2", control, N_CONTROL, NULL, 0);
    gguf_writer_u32(&w, "tokenizer.ggml.bos_token_id", control_id(bos));
    gguf_writer_u32(&w, "tokenizer.ggml.eos_token_id", control_id(eos));
    free_tokenizer(NULL);
    t = vocabulary_load(&w);
    assert_int_equal(encoder_new(t, &e), ST_OK);
    gguf_writer_deinit(&w);
}

static struct span json_span(json_t *s)
{
    return span_of(json_string_value(s), json_string_length(s));
}

static size_t read_messages(json_t *list, struct chat_message *m)
{
    size_t i;
    json_t *row;

    json_array_foreach(list, i, row) m[i] = (struct chat_message){json_span(json_object_get(row, "role")),
                                                                  json_span(json_object_get(row, "content"))};
    return i;
}

static bool text_is(struct span want, const char *name)
{
    struct span got = encoder_text(e);

    if (span_equal(got, want))
        return true;
    print_message("%s differs\n  ours <%.*s>\n  want <%.*s>\n", name, (int)got.n, (const char *)got.at,
                  (int)want.n, (const char *)want.at);
    return false;
}

static void renderings_equal_what_jinja_makes_of_the_template(void **state)
{
    json_t *rows = json_load_file("tests/reference/data/chat_templates.json", 0, NULL), *row;
    size_t i, n_equal = 0;

    (void)state;
    assert_non_null(rows);
    json_array_foreach(rows, i, row)
    {
        const char *name = json_string_value(json_object_get(row, "name"));
        struct chat_template c = chat_template_detect(json_span(json_object_get(row, "template")));
        struct chat_message m[16];
        size_t n = read_messages(json_object_get(row, "messages"), m);
        bool generate = json_is_true(json_object_get(row, "generation_prompt"));

        make_tokenizer(json_string_value(json_object_get(row, "bos")),
                       json_string_value(json_object_get(row, "eos")));
        if (chat_template_encode(&c, e, m, n, generate, &err) != ST_OK)
            fail_msg("%s (%s): %s", name, chat_template_name(&c), err.message);
        /* the family's name begins the row's */
        if (strncmp(name, chat_template_name(&c), strlen(chat_template_name(&c))) != 0)
            fail_msg("%s taken for %s", name, chat_template_name(&c));
        n_equal += text_is(json_span(json_object_get(row, "text")), name);
    }
    print_message("%zu of %zu equal\n", n_equal, json_array_size(rows));
    assert_int_equal(n_equal, json_array_size(rows));
    json_decref(rows);
}

static void smollm2_texts_and_ids_equal_the_reference(void **state)
{
    struct gguf *g = NULL;
    struct chat_template c;
    json_t *rows = json_load_file("tests/reference/data/smollm2-135m.chat.json", 0, NULL), *row;
    size_t i, n_equal = 0;

    (void)state;
    assert_non_null(rows);
    if (test_model_smollm2() == NULL) {
        json_decref(rows);
        skip();
    }
    free_tokenizer(NULL);
    assert_int_equal(gguf_open(test_model_smollm2(), &g, &err), ST_OK);
    assert_int_equal(tokenizer_new(g, &t, &err), ST_OK);
    assert_int_equal(encoder_new(t, &e), ST_OK);
    assert_int_equal(chat_template_init(g, &c, &err), ST_OK);
    assert_int_equal(c.format, CHAT_CHATML);
    gguf_close(g);
    json_array_foreach(rows, i, row)
    {
        struct chat_message m[16];
        size_t n = read_messages(json_object_get(row, "messages"), m), n_ids, j;
        json_t *ids = json_object_get(row, "ids");

        assert_int_equal(chat_template_encode(
                             &c, e, m, n, json_is_true(json_object_get(row, "add_generation_prompt")), &err),
                         ST_OK);
        bool equal = text_is(json_span(json_object_get(row, "text")), "smollm2");

        while (encoder_step(e, 7) == ST_AGAIN)
            ;
        const int32_t *got = encoder_ids(e, &n_ids);

        equal = equal && n_ids == json_array_size(ids);
        for (j = 0; equal && j < n_ids; j++)
            equal = got[j] == json_integer_value(json_array_get(ids, j));
        n_equal += equal;
    }
    print_message("%zu of %zu equal\n", n_equal, json_array_size(rows));
    assert_int_equal(n_equal, json_array_size(rows));
    json_decref(rows);
}

static size_t count(int32_t id)
{
    size_t n_ids, n = 0;

    while (encoder_step(e, 1000) == ST_AGAIN)
        ;
    const int32_t *ids = encoder_ids(e, &n_ids);

    for (size_t i = 0; i < n_ids; i++)
        n += ids[i] == id;
    return n;
}

static void what_users_write_never_becomes_a_control_token(void **state)
{
    static const char *const formats[] = {"chatml",     "llama2",         "llama3",     "gemma", "mistral",
                                          "mistral-v1", "mistral-tekken", "mistral-v7", "zephyr"};
    char attack[512] = "";
    size_t counts[2][N_CONTROL];

    (void)state;
    make_tokenizer("<s>", "</s>");
    for (size_t i = 0; i < N_CONTROL; i++)
        strncat(attack, control[i], sizeof(attack) - strlen(attack) - 1);
    for (size_t f = 0; f < sizeof(formats) / sizeof(formats[0]); f++) {
        struct chat_template c;

        assert_int_equal(chat_template_by_name(span_str(formats[f]), &c, &err), ST_OK);
        for (int evil = 0; evil < 2; evil++) {
            struct span text = span_str(evil ? attack : "harmless");
            struct chat_message m[] = {{span_str("system"), text},
                                       {span_str("user"), text},
                                       {span_str("assistant"), text},
                                       {span_str("user"), text}};

            assert_int_equal(chat_template_encode(&c, e, m, 4, true, &err), ST_OK);
            for (size_t i = 0; i < N_CONTROL; i++)
                counts[evil][i] = count((int32_t)(FIRST_CONTROL + i));
        }
        assert_memory_equal(counts[0], counts[1], sizeof(counts[0]));
    }
}

static void expect_fault(const char *format, const char *roles, enum status status, const char *param)
{
    struct chat_template c;
    struct chat_message m[8];
    size_t n = strlen(roles);

    assert_int_equal(chat_template_by_name(span_str(format), &c, &err), ST_OK);
    for (size_t i = 0; i < n; i++)
        m[i] = (struct chat_message){span_str(roles[i] == 's'   ? "system"
                                              : roles[i] == 'u' ? "user"
                                              : roles[i] == 'a' ? "assistant"
                                                                : "tool"),
                                     span_str("text")};
    assert_int_equal(chat_template_encode(&c, e, m, n, true, &err), status);
    if (status != ST_OK)
        assert_string_equal(err.param, param);
}

static void bad_roles_are_refused_by_their_index(void **state)
{
    (void)state;
    make_tokenizer("<s>", "</s>");
    expect_fault("chatml", "", ST_INVALID, "messages");
    expect_fault("chatml", "ut", ST_INVALID, "messages[1].role");
    expect_fault("chatml", "usuaas", ST_OK, "");
    expect_fault("gemma", "uu", ST_INVALID, "messages[1].role");
    expect_fault("gemma", "sa", ST_INVALID, "messages[1].role");
    expect_fault("gemma", "us", ST_INVALID, "messages[1].role");
    expect_fault("gemma", "s", ST_INVALID, "messages[0].role");
    expect_fault("llama2", "suau", ST_OK, "");
    expect_fault("mistral", "suaua", ST_OK, "");
    expect_fault("llama3", "aus", ST_OK, "");

    struct chat_template unknown = chat_template_detect(span_str("{{ something else }}"));
    struct chat_message m = {span_str("user"), span_str("x")};

    assert_int_equal(chat_template_encode(&unknown, e, &m, 1, true, &err), ST_UNSUPPORTED);
    assert_int_equal(chat_template_by_name(span_str("jinja"), &unknown, &err), ST_NOT_FOUND);
    assert_non_null(strstr(err.message, "chatml, llama2"));
}

static void a_default_system_text_must_be_a_plain_literal(void **state)
{
    static const struct {
        const char *source, *want;
    } cases[] = {
        {"messages[0]{{ '<|im_start|>system\\nA b.<|im_end|>\\n' }}", "A b."},
        {"messages[0]{{ '<|im_start|>system\\n' + x + '<|im_end|>\\n' }}", ""},
        {"messages[0]{{ '<|im_start|>system\\n' }}{{ '<|im_start|>system\\nLater<|im_end|>' }}", "Later"},
        {"messages[0]{{ \"<|im_start|>system\\nIt's<|im_end|>\" }}", "It's"},
        {"messages[0]<|im_start|>system\nraw {{ x }}<|im_end|>", ""},
        {"messages[0]<|im_start|>system\nraw<|im_end|>", "raw"},
        {"messages[0]{{ '<|im_start|>system\\nnever closed", ""},
        {"messages[0]{{ '<|im_start|>system\\n<|im_end|>' }}", ""},
        {"{{ '<|im_start|>system\\nUnconditional?<|im_end|>' }}", ""},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct chat_template c = chat_template_detect(span_str(cases[i].source));

        assert_int_equal(c.format, CHAT_CHATML);
        assert_true(span_is(span_of(c.default_system, c.default_system_bytes), cases[i].want));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(renderings_equal_what_jinja_makes_of_the_template, free_tokenizer),
        cmocka_unit_test_teardown(smollm2_texts_and_ids_equal_the_reference, free_tokenizer),
        cmocka_unit_test_teardown(what_users_write_never_becomes_a_control_token, free_tokenizer),
        cmocka_unit_test_teardown(bad_roles_are_refused_by_their_index, free_tokenizer),
        cmocka_unit_test(a_default_system_text_must_be_a_plain_literal),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
