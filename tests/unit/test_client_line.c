/* test_client_line.c - batch lines in, batch lines out. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <jansson.h>

#include "limits.h"
#include "tests/support/random.h"
#include "weir_batch.h"

static struct random dice;

static struct weir_line parse_ok(const char *text)
{
    struct weir_line line;
    struct weir_error err;

    if (weir_line_parse(text, strlen(text), 7, &line, &err) != WEIR_OK)
        fail_msg("%s\n  %s: %s (%s)", text, err.code, err.message, err.param);
    return line;
}

static void an_openai_line_becomes_a_request(void **state)
{
    struct weir_line line = parse_ok(
        "{\"custom_id\": \"a/1\", \"method\": \"POST\", \"url\": \"/v1/chat/completions\", \"x_mine\": [1], \"body\": {"
        "\"model\": \"m\", \"messages\": [{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": "
        "[{\"type\": \"text\", \"text\": \"he\"}, {\"type\": \"text\", \"text\": \"llo\"}]}], \"max_completion_tokens\": 5,"
        "\"temperature\": 0, \"top_p\": 0.5, \"seed\": 3, \"stop\": [\"x\", \"yz\"], \"n\": 2, \"logprobs\": true, \"top_logprobs\": 4,"
        "\"logit_bias\": {\"12\": -100, \"7\": 1.5}, \"stream\": false, \"metadata\": {\"k\": \"v\"}, \"tools\": null, \"x_y\": 1}}");
    const struct weir_request *r = &line.request;
    (void)state;

    assert_string_equal(line.custom_id, "a/1");
    assert_true(line.has_custom_id && line.chat && r->batch);
    assert_string_equal(r->model, "m");
    assert_int_equal(r->n_messages, 2);
    assert_string_equal(r->messages[1].content, "hello");
    assert_int_equal(r->messages[1].content_bytes, 5);
    assert_int_equal(r->max_tokens, 5);
    assert_true(*r->temperature == 0 && *r->top_p == 0.5 && *r->seed == 3);
    assert_null(r->min_p);
    assert_int_equal(r->n_stop, 2);
    assert_string_equal(r->stop[1], "yz");
    assert_true(r->logprobs && r->n_top_logprobs == 4 && r->n == 2 && r->n_bias == 2);
    assert_int_equal(r->bias[0].token == 12 ? (int)r->bias[0].bias : (int)r->bias[1].bias, -100);
    weir_line_deinit(&line);
}

static void a_short_line_needs_no_id(void **state)
{
    struct weir_line line = parse_ok("{\"prompt\": \"a\\u0000b\", \"logprobs\": 2, \"cache\": \"off\"}\r");
    (void)state;

    assert_string_equal(line.custom_id, "line-7");
    assert_false(line.has_custom_id || line.chat);
    assert_int_equal(line.request.prompt_bytes, 3); /* a NUL is a character like others */
    assert_true(line.request.logprobs && line.request.n_top_logprobs == 2 && line.request.cache_off);
    weir_line_deinit(&line);

    line = parse_ok("{\"id\": 12, \"messages\": [{\"role\": \"user\", \"content\": \"q\"}]}");
    assert_string_equal(line.custom_id, "12");
    assert_true(line.chat);
    weir_line_deinit(&line);

    line = parse_ok("{\"prompt\": [[1, 2, 3]]}");
    assert_int_equal(line.request.n_prompt_ids, 3);
    assert_int_equal(line.request.prompt_ids[2], 3);
    weir_line_deinit(&line);
}

#define OPENAI(body) "{\"custom_id\": \"a\", \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": " body "}"

static const struct {
    const char *text, *code, *param;
} bad_lines[] = {
    { "", "invalid_request", "" },
    { "{\"prompt\": \"x\"", "invalid_request", "" },
    { "[1]", "invalid_request", "" },
    { "{\"prompt\": \"x\"} {\"prompt\": \"y\"}", "invalid_request", "" },
    { "{\"prompt\": \"x\", \"prompt\": \"y\"}", "invalid_request", "" },
    { "{\"prompt\": \"\xFF\"}", "invalid_request", "" },
    { "\xFF\xFE{", "invalid_request", "" },
    { "{\"prompt\": \"\\ud800\"}", "invalid_request", "" },
    { "{}", "invalid_request", "prompt" },
    { "{\"prompt\": 1}", "invalid_parameter", "prompt" },
    { "{\"prompt\": [\"a\", \"b\"]}", "unsupported_parameter", "prompt" },
    { "{\"prompt\": []}", "invalid_parameter", "prompt" },
    { "{\"prompt\": [1, -2]}", "invalid_parameter", "prompt" },
    { "{\"prompt\": \"x\", \"messages\": [{\"role\": \"user\", \"content\": \"q\"}]}", "invalid_request", "messages" },
    { "{\"prompt\": \"x\", \"prompt_ids\": [1], \"id\": \"i\"}", "invalid_request", "prompt_ids" },
    { "{\"prompt\": \"x\", \"tools\": []}", "unsupported_parameter", "tools" },
    { "{\"prompt\": \"x\", \"response_format\": {}}", "unsupported_parameter", "response_format" },
    { "{\"prompt\": \"x\", \"session\": \"s\"}", "unsupported_parameter", "session" },
    { "{\"prompt\": \"x\", \"temprature\": 1}", "unknown_field", "temprature" },
    { "{\"prompt\": \"x\", \"temperature\": -0.1}", "invalid_parameter", "temperature" },
    { "{\"prompt\": \"x\", \"temperature\": \"1\"}", "invalid_parameter", "temperature" },
    { "{\"prompt\": \"x\", \"top_p\": 0}", "invalid_parameter", "top_p" },
    { "{\"prompt\": \"x\", \"seed\": -1}", "invalid_parameter", "seed" },
    { "{\"prompt\": \"x\", \"n\": 17}", "invalid_parameter", "n" },
    { "{\"prompt\": \"x\", \"max_tokens\": 0}", "invalid_parameter", "max_tokens" },
    { "{\"prompt\": \"x\", \"max_tokens\": 1, \"max_completion_tokens\": 2}", "invalid_parameter", "max_completion_tokens" },
    { "{\"prompt\": \"x\", \"stop\": \"\"}", "invalid_parameter", "stop" },
    { "{\"prompt\": \"x\", \"stop\": \"a\\u0000b\"}", "invalid_parameter", "stop" },
    { "{\"prompt\": \"x\", \"top_logprobs\": 2}", "invalid_parameter", "top_logprobs" },
    { "{\"prompt\": \"x\", \"logit_bias\": {\"x\": 1}}", "invalid_parameter", "logit_bias" },
    { "{\"prompt\": \"x\", \"logit_bias\": {\"1\": 1, \"01\": 2}}", "invalid_parameter", "logit_bias" },
    { "{\"prompt\": \"x\", \"logit_bias\": {\"99999999999\": 1}}", "invalid_parameter", "logit_bias" },
    { "{\"prompt\": \"x\", \"stream\": true}", "unsupported_parameter", "stream" },
    { "{\"prompt\": \"x\", \"id\": \"\"}", "invalid_parameter", "id" },
    { "{\"messages\": []}", "invalid_parameter", "messages" },
    { "{\"messages\": [{\"role\": \"tool\", \"content\": \"q\"}]}", "unsupported_parameter", "messages[0].role" },
    { "{\"messages\": [{\"role\": \"user\", \"content\": null}]}", "invalid_parameter", "messages[0].content" },
    { "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\"}]}]}", "unsupported_parameter",
      "messages[0].content" },
    { "{\"messages\": [{\"role\": \"user\", \"content\": \"a\", \"name\": \"bob\"}]}", "unsupported_parameter",
      "messages[0].name" },
    { "{\"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": {\"prompt\": \"x\"}}", "invalid_request", "custom_id" },
    { "{\"custom_id\": \"a\", \"method\": \"GET\", \"url\": \"/v1/completions\", \"body\": {\"prompt\": \"x\"}}",
      "invalid_parameter", "method" },
    { "{\"custom_id\": \"a\", \"method\": \"POST\", \"url\": \"/v1/embeddings\", \"body\": {\"input\": \"x\"}}",
      "invalid_parameter", "url" },
    { "{\"custom_id\": \"a\", \"prompt\": \"x\"}", "unknown_field", "prompt" },
    { OPENAI("[]"), "invalid_parameter", "body" },
    { OPENAI("{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}]}"), "invalid_request", "body.prompt" },
    { OPENAI("{\"prompt\": \"x\", \"suffix\": \"y\"}"), "unsupported_parameter", "body.suffix" },
    { OPENAI("{\"prompt\": \"x\", \"id\": \"y\"}"), "unknown_field", "body.id" },
};

static void what_is_wrong_is_named(void **state)
{
    (void)state;

    for (size_t i = 0; i < sizeof(bad_lines) / sizeof(bad_lines[0]); i++) {
        struct weir_line line;
        struct weir_error err;
        if (weir_line_parse(bad_lines[i].text, strlen(bad_lines[i].text), 3, &line, &err) != WEIR_FAILED)
            fail_msg("accepted: %s", bad_lines[i].text);
        if (strcmp(err.code, bad_lines[i].code) != 0 || strcmp(err.param, bad_lines[i].param) != 0)
            fail_msg("%s\n  %s: %s (%s)", bad_lines[i].text, err.code, err.message, err.param);
        assert_non_null(line.custom_id);
        assert_string_equal(line.custom_id, strstr(bad_lines[i].text, "\"a\", ") != NULL && bad_lines[i].text[2] == 'c' ? "a"
                                            : strstr(bad_lines[i].text, "\"id\": \"i\"") != NULL                  ? "i"
                                                                                                            : "line-3");
        weir_line_deinit(&line);
    }
}

static void too_long_a_line_or_prompt_names_the_limit(void **state)
{
    size_t n = LINE_BYTES_MAX + 1;
    char *text = malloc(n + 1);
    struct weir_line line;
    struct weir_error err;
    (void)state;

    memset(text, ' ', n);
    text[n] = '\0';
    assert_int_equal(weir_line_parse(text, n, 1, &line, &err), WEIR_FAILED);
    assert_string_equal(err.code, "limit_exceeded");
    weir_line_deinit(&line);

    memset(text, 'a', n);
    memcpy(text, "{\"prompt\": \"", 12);
    memcpy(text + 12 + PROMPT_BYTES_MAX + 1, "\"}", 3);
    assert_int_equal(weir_line_parse(text, strlen(text), 1, &line, &err), WEIR_FAILED);
    assert_string_equal(err.code, "limit_exceeded");
    assert_string_equal(err.param, "prompt");
    weir_line_deinit(&line);

    memset(text, '[', 100000); /* deep nesting ends in an error, not in the stack */
    assert_int_equal(weir_line_parse(text, 100000, 1, &line, &err), WEIR_FAILED);
    weir_line_deinit(&line);
    free(text);
}

static void byte_order_mark_and_white_space_are_no_content(void **state)
{
    struct weir_line line;
    struct weir_error err;
    const char *text = "\xEF\xBB\xBF{\"prompt\": \"x\"}\r";
    (void)state;

    assert_int_equal(weir_line_parse(text, strlen(text), 1, &line, &err), WEIR_OK);
    weir_line_deinit(&line);
    assert_int_equal(weir_line_parse(text, strlen(text), 2, &line, &err), WEIR_FAILED); /* only a file begins with one */
    weir_line_deinit(&line);
    assert_true(weir_line_blank("\xEF\xBB\xBF \t\r", 6));
    assert_true(weir_line_blank("", 0));
    assert_false(weir_line_blank("\xC2\xA0", 2));
}

/* --- output ------------------------------------------------------------------------------------ */

static json_t *load(char *text, size_t bytes)
{
    json_error_t why;

    assert_non_null(text);
    assert_int_equal(strlen(text), bytes);
    assert_null(strchr(text, '\n'));
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    if (root == NULL)
        fail_msg("%s: %s", why.text, text);
    free(text);
    return root;
}

static const json_t *at(const json_t *v, const char *path)
{
    char part[64];

    for (const char *p = path; *p != '\0' && v != NULL; p += *p == '.') {
        size_t n = strcspn(p, ".");
        snprintf(part, sizeof(part), "%.*s", (int)n, p);
        v = json_is_array(v) ? json_array_get(v, (size_t)atoi(part)) : json_object_get(v, part);
        p += n;
    }
    return v;
}

static struct weir_answer *answer(void)
{
    struct weir_answer *a = NULL;
    struct weir_error err;
    const int32_t ids[] = { 1, 2 };
    const struct weir_token_logprob top[] = { { 1, -0.5, "a\xE2\x98", 3, NULL, 0 }, { 9, -INFINITY, "\xFF", 1, NULL, 0 } };
    const struct weir_token_logprob lp[] = { { 1, -0.5, "a\xE2\x98", 3, top, 2 }, { 2, -1.25, "\x83\n", 2, top, 1 } };

    assert_int_equal(weir_collect(&a, &(struct weir_event){ .type = WEIR_ACCEPTED, .seed = 5 }, &err), WEIR_AGAIN);
    assert_int_equal(weir_collect(&a,
                                  &(struct weir_event){ .type = WEIR_TEXT,
                                                        .text = "a\xE2\x98\x83\n",
                                                        .text_bytes = 5,
                                                        .ids = ids,
                                                        .n_ids = 2,
                                                        .logprobs = lp },
                                  &err),
                     WEIR_AGAIN);
    assert_int_equal(weir_collect(&a,
                                  &(struct weir_event){ .type = WEIR_DONE,
                                                        .n_choices = 1,
                                                        .finish = { WEIR_FINISH_LENGTH },
                                                        .usage = { 10, 4, 2 },
                                                        .model = "m",
                                                        .system_fingerprint = "f" },
                                  &err),
                     WEIR_OK);
    return a;
}

static void a_chat_answer_has_openais_shape(void **state)
{
    struct weir_line line = parse_ok("{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}], \"id\": \"n \\\"1\\\"\"}");
    struct weir_answer *a = answer();
    size_t bytes = 0;
    char *text = weir_line_output(&line, a, "12-7", 1700000000, &bytes);
    json_t *root = load(text, bytes);
    (void)state;

    assert_string_equal(json_string_value(at(root, "id")), "batch_req_12-7");
    assert_string_equal(json_string_value(at(root, "custom_id")), "n \"1\"");
    assert_true(json_is_null(at(root, "error")));
    assert_int_equal(json_integer_value(at(root, "response.status_code")), 200);
    assert_string_equal(json_string_value(at(root, "response.body.object")), "chat.completion");
    assert_string_equal(json_string_value(at(root, "response.body.choices.0.message.content")), "a\xE2\x98\x83\n");
    assert_string_equal(json_string_value(at(root, "response.body.choices.0.finish_reason")), "length");
    assert_int_equal(json_integer_value(at(root, "response.body.usage.total_tokens")), 12);
    assert_int_equal(json_integer_value(at(root, "response.body.usage.prompt_tokens_details.cached_tokens")), 4);
    assert_string_equal(json_string_value(at(root, "response.body.choices.0.logprobs.content.0.token")), "a\xEF\xBF\xBD\xEF\xBF\xBD");
    assert_int_equal(json_integer_value(at(root, "response.body.choices.0.logprobs.content.0.bytes.1")), 0xE2);
    assert_true(json_real_value(at(root, "response.body.choices.0.logprobs.content.0.top_logprobs.1.logprob")) == -9999.0);
    json_decref(root);
    weir_answer_free(a);
    weir_line_deinit(&line);
}

static void a_completion_has_openais_shape(void **state)
{
    struct weir_line line = parse_ok(OPENAI("{\"prompt\": \"x\", \"logprobs\": 2}"));
    struct weir_answer *a = answer();
    size_t bytes = 0;
    char *text = weir_line_output(&line, a, "12-8", 1700000000, &bytes);
    json_t *root = load(text, bytes);
    (void)state;

    assert_string_equal(json_string_value(at(root, "response.body.object")), "text_completion");
    assert_string_equal(json_string_value(at(root, "response.body.choices.0.text")), "a\xE2\x98\x83\n");
    assert_string_equal(json_string_value(at(root, "response.body.choices.0.logprobs.tokens.0")), "bytes:\\x61\\xE2\\x98");
    assert_non_null(json_object_get(at(root, "response.body.choices.0.logprobs.top_logprobs.0"), "bytes:\\xFF"));
    assert_int_equal(json_integer_value(at(root, "response.body.choices.0.logprobs.text_offset.1")), 2);
    json_decref(root);
    weir_answer_free(a);
    weir_line_deinit(&line);
}

static void an_error_line_cannot_be_taken_for_a_success(void **state)
{
    struct weir_line line;
    struct weir_error err;
    size_t bytes = 0;
    (void)state;

    const char *bad = "{\"prompt\": \"x\", \"tools\": []}";
    assert_int_equal(weir_line_parse(bad, strlen(bad), 9, &line, &err), WEIR_FAILED);
    char *text = weir_line_error(&line, &err, "j-9", &bytes);
    json_t *root = load(text, bytes);
    assert_string_equal(json_string_value(at(root, "custom_id")), "line-9");
    assert_int_equal(json_integer_value(at(root, "response.status_code")), 400);
    assert_string_equal(json_string_value(at(root, "response.body.error.code")), "unsupported_parameter");
    assert_string_equal(json_string_value(at(root, "error.code")), "unsupported_parameter");
    assert_string_equal(json_string_value(at(root, "error.param")), "tools");
    assert_int_equal(json_integer_value(at(root, "error.line")), 9);
    json_decref(root);
    weir_line_deinit(&line);
}

/* --- random damage ----------------------------------------------------------------------------- */

static void damaged_lines_are_accepted_or_refused_with_a_code(void **state)
{
    static const char seedling[] =
        "{\"custom_id\": \"a\", \"method\": \"POST\", \"url\": \"/v1/chat/completions\", \"body\": {\"messages\": [{\"role\": "
        "\"user\", \"content\": [{\"type\": \"text\", \"text\": \"h\\u00e9\"}]}], \"stop\": [\"x\"], \"logit_bias\": {\"1\": 2}, "
        "\"seed\": 12, \"temperature\": 1e-3, \"n\": 2, \"logprobs\": true, \"top_logprobs\": 3}}";
    (void)state;

    for (uint64_t round = 0; round < random_ops(); round++) {
        char text[sizeof(seedling) * 2];
        size_t n = sizeof(seedling) - 1;
        memcpy(text, seedling, n);
        for (uint64_t k = random_next(&dice) % 4 + 1; k > 0; k--) {
            size_t where = random_next(&dice) % n;
            switch (random_next(&dice) % 3) {
            case 0:
                text[where] = (char)random_next(&dice);
                break;
            case 1:
                memmove(text + where, text + where + 1, n - where - 1);
                n--;
                break;
            default:
                memmove(text + where + 1, text + where, n - where);
                text[where] = "{}[]\",:0n"[random_next(&dice) % 9];
                n++;
            }
        }
        struct weir_line line;
        struct weir_error err = { 0 };
        int result = weir_line_parse(text, n, 1, &line, &err);
        if (result == WEIR_FAILED && (err.code[0] == '\0' || strcmp(err.code, "internal_error") == 0))
            fail_msg("round %llu: %.*s", (unsigned long long)round, (int)n, text);
        assert_non_null(line.custom_id);
        char id[CUSTOM_ID_BYTES_MAX + 1];
        assert_int_equal(weir_line_custom_id(text, n, 1, id), WEIR_OK);
        if (strcmp(id, line.custom_id) != 0)
            fail_msg("round %llu: %.*s\n  the id alone is \"%s\", with the request \"%s\"", (unsigned long long)round, (int)n, text, id,
                     line.custom_id);
        weir_line_deinit(&line);
    }
}

static void same_id(const char *text, size_t n, uint64_t number)
{
    struct weir_line line;
    struct weir_error err;
    char id[CUSTOM_ID_BYTES_MAX + 1];

    (void)weir_line_parse(text, n, number, &line, &err);
    assert_int_equal(weir_line_custom_id(text, n, number, id), WEIR_OK);
    if (strcmp(id, line.custom_id) != 0)
        fail_msg("%.*s\n  the id alone is \"%s\", with the request \"%s\"", (int)n, text, id, line.custom_id);
    weir_line_deinit(&line);
}

/* What the walk over the text must not take for plain, each at an id that would be wrong then. */
static void the_id_alone_is_the_id_of_the_request(void **state)
{
    static const char *const values[] = {
        "1", "-0", "-", "01", "0", "1.5", "1.", ".5", "1e3", "1e999", "1E2", "123456789012345", "9223372036854775808", "true", "truex", "nul", "null",
        "[]", "[1,]", "[1 2]", "{}", "{\"a\":1,\"a\":2}", "{\"a\":{\"b\":1},\"b\":[{\"a\":1}]}", "{\"a\\u0062\":1,\"ab\":2}", "{\"a\\u0000\":1}",
        "{1:2}", "{\"a\" 1}", "{\"a\":1,}", "\"\"", "\"x\"", "\"\\n\"", "\"\\x\"", "\"\\u12\"", "\"\\u00e9\"", "\"\\ud83d\\ude00\"", "\"\\ud83d\"",
        "\"\\u0000\"", "\"a\tb\"", "\"\xc3\xa9\"", "\"\xed\xa0\x80\"", "\"\xff\"", "\"open", "'x'", "[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]",
    };
    static const char *const forms[] = {
        "{\"id\": %s, \"prompt\": \"p\"}",
        "{\"id\": \"mine\", \"prompt\": %s}",
        "{\"prompt\": %s, \"id\": \"mine\", \"prompt\": 1}",
        " {\"id\":\"mine\",\"x_a\":%s,\"x_b\":[%s]}\r",
        "{\"custom_id\": %s, \"id\": \"no\"}",
        "{\"custom_id\": \"c\", \"body\": {\"prompt\": %s}}",
        "{\"method\": %s, \"id\": \"no\"}",
        "{\"body\": {\"custom_id\": %s}, \"id\": \"no\"}",
        "{\"id\": \"mine\"} %s",
        "[{\"id\": %s}]",
        "\xef\xbb\xbf{\"id\": \"mine\", \"prompt\": %s}",
        "%s",
    };
    (void)state;

    for (size_t f = 0; f < sizeof(forms) / sizeof(forms[0]); f++) {
        for (size_t v = 0; v < sizeof(values) / sizeof(values[0]); v++) {
            char text[512];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
            int n = snprintf(text, sizeof(text), forms[f], values[v], values[v]);
#pragma GCC diagnostic pop
            same_id(text, (size_t)n, 1);
            same_id(text, (size_t)n, 2);
            for (size_t cut = 0; cut < (size_t)n; cut++)
                same_id(text, cut, 3);
        }
    }
}

static void an_id_may_have_its_limit_of_bytes_and_a_line_many_keys(void **state)
{
    char text[8192], id[CUSTOM_ID_BYTES_MAX + 2];
    (void)state;

    for (size_t n = CUSTOM_ID_BYTES_MAX - 1; n <= CUSTOM_ID_BYTES_MAX + 1; n++) {
        memset(id, 'x', n);
        id[n] = '\0';
        same_id(text, (size_t)snprintf(text, sizeof(text), "{\"id\": \"%s\", \"prompt\": \"p\"}", id), 1);
    }
    for (int keys = 60; keys < 70; keys++) {
        int n = snprintf(text, sizeof(text), "{\"id\": \"mine\"");
        for (int i = 0; i < keys; i++)
            n += snprintf(text + n, sizeof(text) - (size_t)n, ", \"x_%d\": {\"a\": 1, \"b\": 2}", i);
        same_id(text, (size_t)(n + snprintf(text + n, sizeof(text) - (size_t)n, "}")), 1);
        same_id(text, (size_t)(n + snprintf(text + n, sizeof(text) - (size_t)n, ", \"x_3\": 1}")), 1);
    }
}

int main(int argc, char **argv)
{
    dice = random_start(argc, argv, 20000);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_openai_line_becomes_a_request),
        cmocka_unit_test(a_short_line_needs_no_id),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(too_long_a_line_or_prompt_names_the_limit),
        cmocka_unit_test(byte_order_mark_and_white_space_are_no_content),
        cmocka_unit_test(a_chat_answer_has_openais_shape),
        cmocka_unit_test(a_completion_has_openais_shape),
        cmocka_unit_test(an_error_line_cannot_be_taken_for_a_success),
        cmocka_unit_test(the_id_alone_is_the_id_of_the_request),
        cmocka_unit_test(an_id_may_have_its_limit_of_bytes_and_a_line_many_keys),
        cmocka_unit_test(damaged_lines_are_accepted_or_refused_with_a_code),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
