/* test_wire_round_trip.c - what one side encodes the other decodes to the same; and any map can be printed as JSON. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <math.h>

#include "tests/support/pack.h"
#include "wire.h"

static struct wire_buffer b;
static struct wire_message m;
static struct error err;

static void as_request(enum wire_type type)
{
    enum status st = wire_decode_request(span_of(b.at, b.n), &m, &err);

    if (st != ST_OK)
        fail_msg("%s: %s", error_code_name(err.code), err.message);
    assert_int_equal(m.type, type);
}

static void as_reply(enum wire_type type)
{
    enum status st = wire_decode_reply(span_of(b.at, b.n), &m, &err);

    if (st != ST_OK)
        fail_msg("%s: %s", error_code_name(err.code), err.message);
    assert_int_equal(m.type, type);
}

#define ASSERT_SPAN(span, text) assert_true(span_is((span), (text)))

static void small_requests(void **state)
{
    (void)state;
    assert_int_equal(wire_encode_hello(&b, span_str("c/1")), ST_OK);
    as_request(WIRE_HELLO);
    ASSERT_SPAN(m.hello.client, "c/1");
    wire_message_deinit(&m);
    static const enum wire_type plain[] = { WIRE_CANCEL, WIRE_MODELS, WIRE_STATUS };
    for (int i = 0; i < 3; i++) {
        assert_int_equal(wire_encode_simple(&b, plain[i], span_str("i")), ST_OK);
        as_request(plain[i]);
        ASSERT_SPAN(m.id, "i");
        wire_message_deinit(&m);
    }
    assert_int_equal(wire_encode_tokenize(&b, span_str("i"), span_str("m"), span_str("te\nxt"), true), ST_OK);
    as_request(WIRE_TOKENIZE);
    ASSERT_SPAN(m.tokenize.text, "te\nxt");
    ASSERT_SPAN(m.tokenize.model, "m");
    assert_true(m.tokenize.special);
    wire_message_deinit(&m);
    assert_int_equal(wire_encode_session_end(&b, span_str("i"), span_str("s"), span_str("u")), ST_OK);
    as_request(WIRE_SESSION_END);
    ASSERT_SPAN(m.session_end.session, "s");
    ASSERT_SPAN(m.session_end.on_behalf_of, "u");
    wire_message_deinit(&m);
    for (enum wire_admin_verb verb = 0; verb < WIRE_WORKER_VERBS; verb++) {
        bool add = verb == WIRE_WORKER_ADD;
        struct wire_admin a = { .id = span_str("i"), .verb = verb, .worker = add ? 0 : 3 };

        if (add) {
            a.model = span_str("m");
            a.device = span_str("cuda:1");
        }
        assert_int_equal(wire_encode_admin(&b, &a), ST_OK);
        as_request(WIRE_ADMIN);
        assert_true(m.admin.verb == verb && m.admin.worker == a.worker && span_is(m.id, "i"));
        ASSERT_SPAN(m.admin.device, add ? "cuda:1" : "");
        wire_message_deinit(&m);
    }
    for (int named = 0; named < 2; named++) {
        assert_int_equal(wire_encode_trace(&b, span_str("i"), span_str(named ? "b-1" : ""), span_str(named ? "u" : "")), ST_OK);
        as_request(WIRE_TRACE);
        ASSERT_SPAN(m.trace.request, named ? "b-1" : "");
        ASSERT_SPAN(m.trace.on_behalf_of, named ? "u" : "");
        wire_message_deinit(&m);
    }
}

static void binary_ids_go_and_come_as_they_are(void **state)
{
    (void)state;
    assert_int_equal(wire_encode_simple(&b, WIRE_CANCEL, span_of("\xFF\0\x01", 3)), ST_OK);
    as_request(WIRE_CANCEL);
    assert_true(span_equal(m.id, span_of("\xFF\0\x01", 3)));
    wire_message_deinit(&m);
    assert_int_equal(wire_encode_progress(&b, span_of("\xFF\0\x01", 3), true, 4), ST_OK);
    as_reply(WIRE_PROGRESS);
    assert_true(span_equal(m.id, span_of("\xFF\0\x01", 3)));
    assert_true(m.progress.running);
    assert_int_equal(m.progress.ahead, 4);
    wire_message_deinit(&m);
}

static void same_generate(const struct wire_generate *a, const struct wire_generate *g)
{
    assert_true(span_equal(a->id, g->id) && span_equal(a->model, g->model) && span_equal(a->prompt, g->prompt));
    assert_int_equal(a->prompt_kind, g->prompt_kind);
    assert_int_equal(a->n_prompt_ids, g->n_prompt_ids);
    if (a->n_prompt_ids > 0)
        assert_memory_equal(a->prompt_ids, g->prompt_ids, 4 * a->n_prompt_ids);
    assert_int_equal(a->n_messages, g->n_messages);
    for (uint32_t i = 0; i < a->n_messages; i++)
        assert_true(span_equal(a->messages[i].role, g->messages[i].role) &&
                    span_equal(a->messages[i].content, g->messages[i].content));
    assert_true(span_equal(a->chat_template, g->chat_template) && span_equal(a->scope, g->scope));
    assert_true(span_equal(a->salt, g->salt) && span_equal(a->session, g->session));
    assert_true(span_equal(a->idempotency_key, g->idempotency_key) && span_equal(a->on_behalf_of, g->on_behalf_of));
    assert_true(a->raw == g->raw && a->batch_class == g->batch_class && a->stream == g->stream && a->priority == g->priority);
    assert_true(a->cache_off == g->cache_off && a->ignore_eos == g->ignore_eos && a->takeover_any == g->takeover_any);
    assert_true(a->has_seed == g->has_seed && a->has_temperature == g->has_temperature);
    assert_true(a->deadline_ms == g->deadline_ms && a->max_tokens == g->max_tokens && a->n == g->n);
    assert_memory_equal(&a->sampling, &g->sampling, sizeof(a->sampling));
    assert_int_equal(a->n_stops, g->n_stops);
    for (uint32_t i = 0; i < a->n_stops; i++)
        assert_true(span_equal(a->stops[i], g->stops[i]));
    assert_int_equal(a->bias.n, g->bias.n);
    if (a->bias.n > 0)
        assert_memory_equal(a->bias.at, g->bias.at, sizeof(*a->bias.at) * a->bias.n);
    assert_int_equal(a->n_resume, g->n_resume);
    for (uint32_t i = 0; i < a->n_resume; i++) {
        assert_true(a->resume[i].choice == g->resume[i].choice && a->resume[i].n_ids == g->resume[i].n_ids);
        assert_int_equal(a->resume[i].released_bytes, g->resume[i].released_bytes);
        assert_memory_equal(a->resume[i].ids, g->resume[i].ids, 4 * a->resume[i].n_ids);
    }
}

static void generate_with_everything(void **state)
{
    struct logit_bias bias[] = { { 3, -100 }, { 70000, 0.1f } };
    const int32_t ids[] = { 0, 1, INT32_MAX, 65536 };
    struct wire_resume resume[] = { { 1, ids, 4, 17 }, { 0, ids, 1, 0 } };
    struct wire_message_text texts[] = { { span_str("system"), span_str("") }, { span_str("user"), span_str("\xC3\xA9\n") } };
    struct wire_generate g;

    (void)state;
    wire_generate_init(&g);
    g.id = span_str("id");
    g.model = span_str("m");
    g.prompt_kind = WORK_PROMPT_MESSAGES;
    g.messages = texts;
    g.n_messages = 2;
    g.chat_template = span_str("chatml");
    g.batch_class = g.cache_off = g.ignore_eos = g.takeover_any = g.has_seed = g.has_temperature = true;
    g.priority = PRIORITY_LOW;
    g.stream = false;
    g.deadline_ms = DEADLINE_MS_MAX;
    g.max_tokens = OUTPUT_TOKENS_MAX;
    g.n = CHOICES_MAX;
    g.sampling = (struct sampling){ .seed = UINT64_MAX, .temperature = 0.7f, .top_p = 0.1f, .min_p = 0.3f, .top_k = 50,
                                    .repetition_penalty = 1.1f, .presence_penalty = -0.2f, .frequency_penalty = 0.2f,
                                    .n_logprobs = LOGPROBS_MAX, .logprobs = 1 };
    g.stops[0] = span_str("\n\n");
    g.stops[1] = span_str("\xF0\x9F\x98\x80");
    g.n_stops = 2;
    g.bias = (struct wire_logit_bias){ bias, 2 };
    g.scope = span_str("pool");
    g.salt = span_of("\xFF\xFE", 2);
    g.session = span_str("s");
    g.idempotency_key = span_str("k");
    g.on_behalf_of = span_str("u");
    g.resume = resume;
    g.n_resume = 2;
    assert_int_equal(wire_encode_generate(&b, &g), ST_OK);
    as_request(WIRE_GENERATE);
    same_generate(&m.generate, &g);
    wire_message_deinit(&m);

    g.prompt_kind = WORK_PROMPT_IDS;
    g.prompt_ids = ids;
    g.n_prompt_ids = 4;
    g.n_messages = 0;
    g.chat_template = (struct span){ 0 };
    assert_int_equal(wire_encode_generate(&b, &g), ST_OK);
    as_request(WIRE_GENERATE);
    same_generate(&m.generate, &g);
    wire_message_deinit(&m);
}

static void generate_with_nothing(void **state)
{
    struct wire_generate g;

    (void)state;
    wire_generate_init(&g);
    g.id = span_str("id");
    g.prompt_kind = WORK_PROMPT_TEXT;
    g.prompt = span_str("p");
    assert_int_equal(wire_encode_generate(&b, &g), ST_OK);
    as_request(WIRE_GENERATE);
    same_generate(&m.generate, &g);
    wire_message_deinit(&m);
}

static void token_with_and_without_logprobs(void **state)
{
    const int32_t ids[] = { 5, 49151 };
    const struct wire_piece top[] = { { 5, -0.25f, span_str("a") }, { 6, -INFINITY, span_of("\xF0\x9F", 2) } };
    const struct wire_token_logprobs logprobs[] = { { top[0], top, 2 }, { { 49151, -1e-7f, { 0 } }, NULL, 0 } };
    struct wire_token t = { .id = span_str("q"), .choice = 3, .index = 70000, .ids = ids, .n_ids = 2, .text = span_str("ab") };

    (void)state;
    for (int with = 0; with < 2; with++) {
        t.logprobs = with ? logprobs : NULL;
        assert_int_equal(wire_encode_token(&b, &t), ST_OK);
        as_reply(WIRE_TOKEN);
        ASSERT_SPAN(m.id, "q");
        assert_true(m.token.choice == 3 && m.token.index == 70000 && m.token.n_ids == 2 && m.token.ids[1] == 49151);
        ASSERT_SPAN(m.token.text, "ab");
        assert_int_equal(m.token.logprobs != NULL, with);
        if (with) {
            assert_int_equal(m.token.logprobs[0].n_top, 2);
            assert_true(m.token.logprobs[0].chosen.logprob == -0.25f);
            assert_true(isinf(m.token.logprobs[0].top[1].logprob));
            assert_true(span_equal(m.token.logprobs[0].top[1].bytes, top[1].bytes));
            assert_int_equal(m.token.logprobs[1].n_top, 0);
            assert_true(m.token.logprobs[1].chosen.logprob == -1e-7f);
        }
        wire_message_deinit(&m);
    }
    t.n_ids = 0;
    t.logprobs = NULL;
    assert_int_equal(wire_encode_token(&b, &t), ST_OK);
    as_reply(WIRE_TOKEN);
    assert_int_equal(m.token.n_ids, 0);
    wire_message_deinit(&m);
}

static void done_accepted_error_and_ids(void **state)
{
    struct wire_done d = { .id = span_str("q"), .n_choices = 2, .prompt_tokens = 10, .cached_tokens = 9, .completion_tokens = 5,
                           .queue_ms = 0.5, .prefill_ms = 1.25, .first_token_ms = 2, .total_ms = 1e6, .worker = 3,
                           .takeovers = 1, .preemptions = 2, .model = span_str("m"), .system_fingerprint = span_str("f") };
    struct wire_error e = { .id = span_str("q"), .retry_after_ms = 250 };
    const int32_t ids[] = { 1, 2, 3 };

    (void)state;
    d.choices[0] = (struct wire_choice_end){ FINISH_STOP, 4, 3 };
    d.choices[1] = (struct wire_choice_end){ FINISH_LENGTH, -1, 2 };
    assert_int_equal(wire_encode_done(&b, &d), ST_OK);
    as_reply(WIRE_DONE);
    assert_int_equal(m.done.n_choices, 2);
    assert_int_equal(m.done.choices[0].reason, FINISH_STOP);
    assert_int_equal(m.done.choices[0].stop_index, 4);
    assert_int_equal(m.done.choices[1].stop_index, -1);
    assert_int_equal(m.done.choices[1].n_tokens, 2);
    assert_true(m.done.cached_tokens == 9 && m.done.queue_ms == 0.5 && m.done.total_ms == 1e6);
    assert_true(m.done.worker == 3 && m.done.takeovers == 1 && m.done.preemptions == 2);
    ASSERT_SPAN(m.done.system_fingerprint, "f");
    wire_message_deinit(&m);

    assert_int_equal(wire_encode_accepted(&b, span_str("q"), span_str("b1-7"), UINT64_MAX), ST_OK);
    as_reply(WIRE_ACCEPTED);
    assert_true(m.accepted.seed == UINT64_MAX);
    ASSERT_SPAN(m.accepted.request, "b1-7");
    wire_message_deinit(&m);

    for (enum error_code code = ERR_INVALID_REQUEST; code < ERR_COUNT; code++) {
        error_set(&e.error, code, code % 2 ? "top_p" : "", "sentence %d", code);
        assert_int_equal(wire_encode_error(&b, &e), ST_OK);
        as_reply(WIRE_ERROR);
        assert_int_equal(m.error.error.code, code);
        assert_string_equal(m.error.error.message, e.error.message);
        assert_string_equal(m.error.error.param, e.error.param);
        assert_int_equal(m.error.retry_after_ms, 250);
        ASSERT_SPAN(m.error.id, "q");
        wire_message_deinit(&m);
    }
    e.id = (struct span){ 0 }; /* about the connection */
    assert_int_equal(wire_encode_error(&b, &e), ST_OK);
    as_reply(WIRE_ERROR);
    assert_int_equal(m.id.n, 0);
    wire_message_deinit(&m);

    assert_int_equal(wire_encode_ids(&b, span_str("q"), ids, 3), ST_OK);
    as_reply(WIRE_IDS);
    assert_true(m.ids.n == 3 && m.ids.at[2] == 3);
    wire_message_deinit(&m);
    assert_int_equal(wire_encode_ids(&b, span_str("q"), NULL, 0), ST_OK);
    as_reply(WIRE_IDS);
    assert_int_equal(m.ids.n, 0);
    wire_message_deinit(&m);
}

static void replies_may_hold_keys_of_a_later_version(void **state)
{
    struct span f = pack_json("{'type':'progress','id':'a','state':'queued','ahead':2,'new':{'x':1},'more':[1]}");

    (void)state;
    assert_int_equal(wire_decode_reply(f, &m, &err), ST_OK);
    assert_false(m.progress.running);
    wire_message_deinit(&m);
    f = pack_json("{'type':'error','id':'a','code':'of_the_future','message':'x'}");
    assert_int_equal(wire_decode_reply(f, &m, &err), ST_OK);
    assert_int_equal(m.error.error.code, ERR_INTERNAL);
    wire_message_deinit(&m);
    f = pack_json("{'type':'progress','id':'a','state':'asleep'}");
    assert_int_equal(wire_decode_reply(f, &m, &err), ST_INVALID);
    assert_true(span_is(m.id, "a"));
}

static void free_form_maps_count_themselves(void **state)
{
    char *json = NULL;

    (void)state;
    wire_map_begin(&b, NULL);
    wire_put_str(&b, "type", span_str("status"));
    wire_put_str(&b, "id", span_str("7"));
    wire_array_begin(&b, "workers");
    for (uint64_t i = 0; i < 3; i++) {
        wire_map_begin(&b, NULL);
        wire_put_u64(&b, "slot", i);
        wire_put_bool(&b, "ready", i == 1);
        wire_put_f64(&b, "load", 0.1 * (double)i);
        wire_array_begin(&b, "names");
        wire_put_str(&b, NULL, span_str("x"));
        wire_end(&b);
        wire_end(&b);
    }
    wire_end(&b);
    wire_map_begin(&b, "empty");
    wire_end(&b);
    wire_end(&b);
    assert_false(b.failed);
    as_reply(WIRE_STATUS_REPLY);
    ASSERT_SPAN(m.id, "7");
    assert_int_equal(wire_to_json(m.raw.body, &json), ST_OK);
    assert_string_equal(json, "{\"workers\":[{\"slot\":0,\"ready\":false,\"load\":0,\"names\":[\"x\"]},"
                              "{\"slot\":1,\"ready\":true,\"load\":0.1,\"names\":[\"x\"]},"
                              "{\"slot\":2,\"ready\":false,\"load\":0.2,\"names\":[\"x\"]}],\"empty\":{}}");
    free(json);
    wire_message_deinit(&m);
}

static void json_is_escaped_and_exact(void **state)
{
    static const struct { const char *msgpack; size_t n; const char *json; } cases[] = {
        { "\x81\xA1k\xAA\"\\\b\f\n\r\t\x01\x7F/", 14, "{\"k\":\"\\\"\\\\\\b\\f\\n\\r\\t\\u0001\x7F/\"}" },
        { "\x81\xA1k\xA1\0", 5, "{\"k\":\"\\u0000\"}" },
        { "\x81\xA1k\xC4\x04\xFF\0\xFEx", 9, "{\"k\":\"/wD+eA==\"}" },
        { "\x81\xA1k\xC4\x00", 5, "{\"k\":\"\"}" },
        { "\x81\xA1k\xCF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF", 12, "{\"k\":18446744073709551615}" },
        { "\x81\xA1k\xD3\x80\0\0\0\0\0\0\0", 12, "{\"k\":-9223372036854775808}" },
        { "\x81\xA1k\xCA\x3D\xCC\xCC\xCD", 8, "{\"k\":0.1}" },                       /* a 32-bit 0.1 */
        { "\x81\xA1k\xCB\x3F\xB9\x99\x99\x99\x99\x99\x9A", 12, "{\"k\":0.1}" },      /* a 64-bit 0.1 */
        { "\x81\xA1k\xCB\x3F\xD5\x55\x55\x55\x55\x55\x55", 12, "{\"k\":0.3333333333333333}" },
        { "\x81\xA1k\xCB\x7F\xF8\0\0\0\0\0\0", 12, "{\"k\":null}" },
        { "\x81\xA1k\x82\x05\xC0\xFF\xC3", 8, "{\"k\":{\"5\":null,\"-1\":true}}" },
        { "\x82\xA0\xA0\xA1k\xA0", 6, "{\"\":\"\",\"k\":\"\"}" },
        { "\x81\xA1k\x92\x90\x80", 6, "{\"k\":[[],{}]}" },
        { "\x80", 1, "{}" },
        { "\x82\xA4type\xA1x\xA2id\x07", 12, "{}" },                                   /* the wire's own */
        { "\x82\xA2id\x07\xA1k\x81\xA2id\x07", 12, "{\"k\":{\"id\":7}}" },                /* somebody else's */
    };
    char *json = NULL;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(wire_to_json(span_of(cases[i].msgpack, cases[i].n), &json), ST_OK);
        assert_string_equal(json, cases[i].json);
        free(json);
    }
    json = NULL;
    assert_int_equal(wire_to_json(span_of("\x81\xA1k\xA1\xFF", 5), &json), ST_INVALID);           /* no UTF-8 */
    assert_int_equal(wire_to_json(span_of("\x81\xA1k\xD4\x01\x02", 6), &json), ST_INVALID);       /* an extension */
    assert_int_equal(wire_to_json(span_of("\x81\xA1k\x81\xC2\x02", 6), &json), ST_INVALID);       /* false as a key */
    assert_int_equal(wire_to_json(span_of("\x90", 1), &json), ST_INVALID);
    assert_null(json);
}

static int release_buffer(void **state)
{
    (void)state;
    wire_buffer_deinit(&b);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_requests),
        cmocka_unit_test(binary_ids_go_and_come_as_they_are),
        cmocka_unit_test(generate_with_everything),
        cmocka_unit_test(generate_with_nothing),
        cmocka_unit_test(token_with_and_without_logprobs),
        cmocka_unit_test(done_accepted_error_and_ids),
        cmocka_unit_test(replies_may_hold_keys_of_a_later_version),
        cmocka_unit_test(free_form_maps_count_themselves),
        cmocka_unit_test(json_is_escaped_and_exact),
    };

    return cmocka_run_group_tests(tests, NULL, release_buffer);
}
