/* test_client.c - libweir against a broker that does what the test says: answers, loss, silence, return. */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "clock.h"
#include "limits.h"
#include "tests/support/fake_broker.h"
#include "weir.h"

/* So long a busy machine may take for what takes no time. */
enum { PATIENCE_MS = 60000 };

static struct weir_client *open_patient(struct fake_broker *b, uint32_t silence_ms)
{
    struct weir_client *c = NULL;
    struct weir_error err;

    fake_broker_start(b);
    if (weir_open(&c, &(struct weir_options){ .endpoint = b->endpoint, .silence_timeout_ms = silence_ms }, &err) != WEIR_OK)
        fail_msg("%s: %s", err.code, err.message);
    return c;
}

static struct weir_client *open_client(struct fake_broker *b)
{
    return open_patient(b, 2 * PATIENCE_MS);
}

static void close_both(struct weir_client *c, struct fake_broker *b)
{
    weir_close(c);
    fake_broker_stop(b);
}

/* What a test remembers of a request's events. */
struct seen {
    uint32_t n_text, n_progress, n_end;
    size_t text_bytes;
    char code[32];
    struct weir_client *submit_again; /* at the end, once */
    struct seen *again;
};

static void remember(const struct weir_event *e, void *arg)
{
    struct seen *s = arg;

    s->n_text += e->type == WEIR_TEXT;
    s->text_bytes += e->type == WEIR_TEXT ? e->text_bytes : 0;
    s->n_progress += e->type == WEIR_PROGRESS;
    if (e->type != WEIR_DONE && e->type != WEIR_ERROR)
        return;
    s->n_end++;
    snprintf(s->code, sizeof(s->code), "%s", e->type == WEIR_ERROR ? e->error->code : "");
    if (s->submit_again != NULL) {
        struct weir_error err;
        assert_int_equal(weir_submit(s->submit_again, &(struct weir_request){ .prompt = "once more" }, remember, s->again, NULL, &err),
                         WEIR_OK);
    }
}

/* As a user would: sleep on the descriptor only, then process. */
static void run(struct weir_client *c, uint32_t *until, uint32_t n)
{
    uint64_t end = clock_now_ns() + PATIENCE_MS * 1000000ull;
    struct weir_error err;

    while (*until < n && clock_now_ns() < end) {
        int ms = weir_timeout_ms(c);
        poll(&(struct pollfd){ .fd = weir_fd(c), .events = POLLIN }, 1, ms < 0 || ms > 1000 ? 1000 : ms);
        (void)weir_process(c, &err);
    }
    assert_int_equal(*until, n);
}

static void an_answer_has_text_ids_and_ends(void **state)
{
    struct fake_broker b = { 0 };
    struct weir_client *c = open_client(&b);
    struct weir_answer *a = NULL;
    struct weir_error err;
    (void)state;

    assert_int_equal(weir_ask(c, &(struct weir_request){ .prompt = "the sea is", .n = 2 }, &a, &err), WEIR_OK);
    assert_int_equal(a->n_choices, 2);
    assert_string_equal(a->choices[1].text, "the sea is");
    assert_int_equal(a->choices[1].n_ids, 3);
    assert_int_equal(a->choices[1].ids[2], 102);
    assert_int_equal(a->choices[0].finish, WEIR_FINISH_STOP);
    assert_int_equal(a->choices[0].stop_index, -1);
    assert_int_equal(a->usage.cached_tokens, 3);
    assert_string_equal(a->model, "fake");
    assert_string_equal(a->system_fingerprint, "fp-fake");
    assert_int_equal(a->seed, atomic_load(&b.last_seed));
    assert_true(a->seed < 1ull << 53);
    assert_null(a->choices[0].logprobs);
    weir_answer_free(a);
    close_both(c, &b);
}

static void logprobs_keep_bytes_that_are_no_text(void **state)
{
    struct fake_broker b = { 0 };
    struct weir_client *c = open_client(&b);
    struct weir_answer *a = NULL;
    struct weir_error err;
    (void)state;

    assert_int_equal(
        weir_ask(c, &(struct weir_request){ .prompt = "a b", .logprobs = true, .n_top_logprobs = 2 }, &a, &err), WEIR_OK);
    assert_non_null(a->choices[0].logprobs);
    assert_int_equal(a->choices[0].logprobs[1].id, 101);
    assert_memory_equal(a->choices[0].logprobs[1].bytes, " b", 2);
    assert_int_equal(a->choices[0].logprobs[1].n_top, 2);
    assert_memory_equal(a->choices[0].logprobs[1].top[1].bytes, "\xE2\x98", 2);
    weir_answer_free(a);
    close_both(c, &b);
}

static void a_missing_broker_is_known_at_once(void **state)
{
    struct weir_client *c = NULL;
    struct weir_error err;
    uint64_t before = clock_now_ns();
    (void)state;

    assert_int_equal(weir_open(&c, &(struct weir_options){ .endpoint = "ipc:///tmp/weir-test-nobody.sock", .connect_timeout_ms = 2 * PATIENCE_MS }, &err),
                     WEIR_FAILED);
    assert_string_equal(err.code, "broker_unreachable");
    assert_null(c);
    assert_true(clock_now_ns() - before < PATIENCE_MS * UINT64_C(1000000)); /* not after the time there is for a connection */
}

static void a_broker_that_does_not_greet_is_given_up_in_time(void **state)
{
    struct fake_broker b = { .no_hello = true };
    struct weir_client *c = NULL;
    struct weir_error err;
    uint64_t before = clock_now_ns();
    (void)state;

    fake_broker_start(&b);
    assert_int_equal(weir_open(&c, &(struct weir_options){ .endpoint = b.endpoint, .connect_timeout_ms = 200 }, &err), WEIR_FAILED);
    assert_string_equal(err.code, "broker_unreachable");
    assert_true(clock_now_ns() - before < PATIENCE_MS * UINT64_C(1000000));
    fake_broker_stop(&b);
}

static void a_refusal_of_the_hello_is_told(void **state)
{
    struct fake_broker b = { .refuse_hello = true };
    struct weir_client *c = NULL;
    struct weir_error err;
    (void)state;

    fake_broker_start(&b);
    assert_int_equal(weir_open(&c, &(struct weir_options){ .endpoint = b.endpoint }, &err), WEIR_FAILED);
    assert_string_equal(err.code, "permission_denied");
    fake_broker_stop(&b);
}

static void an_error_of_the_broker_keeps_its_code_and_field(void **state)
{
    struct fake_broker b = { 0 };
    struct weir_client *c = open_client(&b);
    struct weir_answer *a = NULL;
    struct weir_error err;
    (void)state;

    assert_int_equal(weir_ask(c, &(struct weir_request){ .prompt = "!error context_overflow" }, &a, &err), WEIR_FAILED);
    assert_string_equal(err.code, "context_overflow");
    assert_string_equal(err.param, "prompt");
    assert_int_equal(err.http, 400);
    assert_null(a);
    close_both(c, &b);
}

static void what_is_wrong_at_once_is_refused_and_costs_no_slot(void **state)
{
    static const char *const stops[STOPS_MAX + 1] = { 0 };
    const struct weir_request bad[] = {
        { 0 },
        { .prompt = "a", .prompt_ids = (int32_t[]){ 1 }, .n_prompt_ids = 1 },
        { .prompt = "\xFF" },
        { .prompt = "a", .n = CHOICES_MAX + 1 },
        { .prompt = "a", .stop = stops, .n_stop = STOPS_MAX + 1 },
        { .prompt = "a", .n_top_logprobs = 1 },
        { .messages = (struct weir_message[]){ { NULL, "x", 0 } }, .n_messages = 1 },
        { .prompt_ids = (int32_t[]){ 1 }, .n_prompt_ids = PROMPT_IDS_MAX + 1 },
    };
    struct fake_broker b = { 0 };
    struct weir_client *c = open_client(&b);
    struct weir_error err;
    (void)state;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct seen s = { 0 };
        assert_int_equal(weir_submit(c, &bad[i], remember, &s, NULL, &err), WEIR_FAILED);
        assert_string_not_equal(err.code, "internal_error");
        assert_int_equal(weir_in_flight(c), 0);
        assert_int_equal(s.n_end, 0);
    }
    close_both(c, &b);
}

static void the_window_is_kept_and_a_callback_may_submit(void **state)
{
    struct fake_broker b = { 0 };
    struct weir_client *c = NULL;
    struct seen second = { 0 }, first = { 0 };
    struct weir_error err;
    (void)state;

    fake_broker_start(&b);
    assert_int_equal(weir_open(&c, &(struct weir_options){ .endpoint = b.endpoint, .max_in_flight = 1 }, &err), WEIR_OK);
    first.submit_again = c;
    first.again = &second;
    assert_int_equal(weir_submit(c, &(struct weir_request){ .prompt = "one" }, remember, &first, NULL, &err), WEIR_OK);
    assert_int_equal(weir_submit(c, &(struct weir_request){ .prompt = "two" }, remember, &first, NULL, &err), WEIR_AGAIN);
    run(c, &second.n_end, 1);
    assert_int_equal(first.n_end, 1);
    assert_string_equal(second.code, "");
    close_both(c, &b);
}

static void a_cancelled_request_ends_with_cancelled(void **state)
{
    struct fake_broker b = { 0 };
    struct weir_client *c = open_client(&b);
    struct seen s = { 0 };
    struct weir_error err;
    uint64_t request = 0;
    (void)state;

    assert_int_equal(weir_submit(c, &(struct weir_request){ .prompt = "!hold" }, remember, &s, &request, &err), WEIR_OK);
    run(c, &s.n_progress, 1);
    weir_cancel(c, request);
    weir_cancel(c, request + 12345); /* nobody's */
    run(c, &s.n_end, 1);
    assert_string_equal(s.code, "cancelled");
    assert_int_equal(atomic_load(&b.n_cancel), 1);
    close_both(c, &b);
}

static void progress_keeps_a_long_request_alive_beyond_the_silence_limit(void **state)
{
    struct fake_broker b = { 0 };
    struct weir_client *c = open_patient(&b, 2000);
    struct seen s = { 0 };
    struct weir_error err;
    uint64_t end = clock_now_ns() + 3000000000;
    (void)state;

    assert_int_equal(weir_submit(c, &(struct weir_request){ .prompt = "!hold" }, remember, &s, NULL, &err), WEIR_OK);
    while (clock_now_ns() < end) {
        poll(&(struct pollfd){ .fd = weir_fd(c), .events = POLLIN }, 1, 50);
        assert_int_equal(weir_process(c, &err), WEIR_OK);
    }
    assert_int_equal(s.n_end, 0);
    close_both(c, &b);
}

static void a_silent_broker_fails_every_request(void **state)
{
    struct fake_broker b = { 0 };
    struct weir_client *c = open_patient(&b, 300);
    struct seen s = { 0 }, t = { 0 };
    struct weir_error err;
    (void)state;

    assert_int_equal(weir_submit(c, &(struct weir_request){ .prompt = "!silent" }, remember, &s, NULL, &err), WEIR_OK);
    assert_int_equal(weir_submit(c, &(struct weir_request){ .prompt = "!silent" }, remember, &t, NULL, &err), WEIR_OK);
    run(c, &t.n_end, 1);
    assert_int_equal(s.n_end, 1);
    assert_string_equal(s.code, "broker_unreachable");
    assert_int_equal(weir_in_flight(c), 0);
    close_both(c, &b);
}

static void a_broker_that_dies_fails_requests_and_its_return_is_noticed(void **state)
{
    struct fake_broker b = { 0 };
    struct weir_client *c = open_client(&b);
    struct seen s = { 0 };
    struct weir_answer *a = NULL;
    struct weir_error err;
    uint64_t before = clock_now_ns();
    (void)state;

    assert_int_equal(weir_submit(c, &(struct weir_request){ .prompt = "!hold" }, remember, &s, NULL, &err), WEIR_OK);
    run(c, &s.n_progress, 1);
    fake_broker_stop(&b);
    run(c, &s.n_end, 1);
    assert_string_equal(s.code, "broker_unreachable");
    assert_true(clock_now_ns() - before < 2 * PATIENCE_MS * UINT64_C(1000000)); /* by the closed connection, not by silence */
    assert_false(weir_connected(c));
    assert_int_equal(weir_submit(c, &(struct weir_request){ .prompt = "x" }, remember, &s, NULL, &err), WEIR_FAILED);
    assert_string_equal(err.code, "broker_unreachable");

    atomic_store(&b.n_generate, 0);
    fake_broker_start(&b);
    assert_int_equal(weir_ask(c, &(struct weir_request){ .prompt = "back again" }, &a, &err), WEIR_OK);
    assert_string_equal(a->choices[0].text, "back again");
    assert_int_equal(atomic_load(&b.n_generate), 1); /* nothing of before is sent again */
    weir_answer_free(a);
    close_both(c, &b);
}

static void nonsense_ends_the_connection_not_the_program(void **state)
{
    static const char *const prompts[] = { "!nonsense", "!choice" };
    struct fake_broker b = { 0 };
    struct weir_client *c = open_client(&b);
    struct weir_answer *a = NULL;
    struct weir_error err;
    (void)state;

    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(weir_ask(c, &(struct weir_request){ .prompt = prompts[i] }, &a, &err), WEIR_FAILED);
        assert_string_equal(err.code, "broker_unreachable");
        assert_int_equal(weir_ask(c, &(struct weir_request){ .prompt = "fine" }, &a, &err), WEIR_OK);
        weir_answer_free(a);
        a = NULL;
    }
    close_both(c, &b);
}

/* ZMQ_FD alone would leave this test asleep: sends between polls take in the commands that would have woken it. */
static void the_descriptor_is_readable_as_long_as_messages_wait(void **state)
{
    struct fake_broker b = { 0 };
    struct weir_client *c = open_client(&b);
    struct seen s = { 0 };
    struct weir_error err;
    (void)state;

    assert_int_equal(weir_submit(c, &(struct weir_request){ .prompt = "!burst 5000" }, remember, &s, NULL, &err), WEIR_OK);
    for (int i = 0; i < 20; i++) { /* let answers arrive, and disarm the descriptor by sending */
        usleep(5000);
        weir_cancel(c, 0);
        assert_int_equal(weir_submit(c, &(struct weir_request){ .prompt = "word" }, remember, &s, NULL, &err), WEIR_OK);
    }
    for (uint32_t calls = 0; s.n_end < 21; calls++) {
        assert_true(calls < 10000);
        assert_int_equal(poll(&(struct pollfd){ .fd = weir_fd(c), .events = POLLIN }, 1, PATIENCE_MS), 1);
        assert_int_equal(weir_process(c, &err), WEIR_OK);
    }
    assert_int_equal(s.n_text, 5000 + 20);
    assert_int_equal(poll(&(struct pollfd){ .fd = weir_fd(c), .events = POLLIN }, 1, 50), 0); /* and quiet when nothing waits */
    close_both(c, &b);
}

static void blocking_calls_in_a_callback_are_refused(void **state);

struct inside {
    struct weir_client *c;
    uint32_t n_end;
    char code[32];
};

static void ask_inside(const struct weir_event *e, void *arg)
{
    struct inside *i = arg;
    struct weir_answer *a = NULL;
    struct weir_error err;

    if (e->type == WEIR_DONE && weir_ask(i->c, &(struct weir_request){ .prompt = "x" }, &a, &err) == WEIR_FAILED)
        snprintf(i->code, sizeof(i->code), "%s", err.code);
    i->n_end += e->type == WEIR_DONE;
}

static void blocking_calls_in_a_callback_are_refused(void **state)
{
    struct fake_broker b = { 0 };
    struct inside i = { .c = open_client(&b) };
    struct weir_error err;
    (void)state;

    assert_int_equal(weir_submit(i.c, &(struct weir_request){ .prompt = "x" }, ask_inside, &i, NULL, &err), WEIR_OK);
    run(i.c, &i.n_end, 1);
    assert_string_equal(i.code, "invalid_request");
    close_both(i.c, &b);
}

static void tokenize_and_queries_answer(void **state)
{
    struct fake_broker b = { 0 };
    struct weir_client *c = open_client(&b);
    struct weir_error err;
    int32_t *ids = NULL;
    size_t n = 0;
    char *json = NULL;
    (void)state;

    assert_int_equal(weir_tokenize(c, NULL, "hello", 5, true, &ids, &n, &err), WEIR_OK);
    assert_int_equal(n, 3);
    assert_int_equal(ids[0], 5);
    assert_int_equal(ids[1], 1);
    free(ids);
    assert_int_equal(weir_query_wait(c, WEIR_QUERY_MODELS, &json, &err), WEIR_OK);
    assert_non_null(strstr(json, "\"fake\""));
    free(json);
    close_both(c, &b);
}

static int free_descriptor(void)
{
    int fd = dup(0);
    close(fd);
    return fd;
}

static void opening_and_closing_leaks_no_descriptor(void **state)
{
    struct fake_broker b = { 0 };
    int before = 0, after = 0;
    (void)state;

    fake_broker_start(&b);
    for (int i = 0; i < 30; i++) {
        struct weir_client *c = NULL;
        struct weir_error err;
        assert_int_equal(weir_open(&c, &(struct weir_options){ .endpoint = b.endpoint }, &err), WEIR_OK);
        weir_close(c);
        usleep(20000); /* the broker's own ends close in its I/O thread */
        before = i == 9 ? free_descriptor() : before;
    }
    for (int i = 0; (after = free_descriptor()) > before + 2 && i < PATIENCE_MS / 20; i++)
        usleep(20000);
    assert_in_range(after, 0, before + 2);
    fake_broker_stop(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_has_text_ids_and_ends),
        cmocka_unit_test(logprobs_keep_bytes_that_are_no_text),
        cmocka_unit_test(a_missing_broker_is_known_at_once),
        cmocka_unit_test(a_broker_that_does_not_greet_is_given_up_in_time),
        cmocka_unit_test(a_refusal_of_the_hello_is_told),
        cmocka_unit_test(an_error_of_the_broker_keeps_its_code_and_field),
        cmocka_unit_test(what_is_wrong_at_once_is_refused_and_costs_no_slot),
        cmocka_unit_test(the_window_is_kept_and_a_callback_may_submit),
        cmocka_unit_test(a_cancelled_request_ends_with_cancelled),
        cmocka_unit_test(progress_keeps_a_long_request_alive_beyond_the_silence_limit),
        cmocka_unit_test(a_silent_broker_fails_every_request),
        cmocka_unit_test(a_broker_that_dies_fails_requests_and_its_return_is_noticed),
        cmocka_unit_test(nonsense_ends_the_connection_not_the_program),
        cmocka_unit_test(the_descriptor_is_readable_as_long_as_messages_wait),
        cmocka_unit_test(blocking_calls_in_a_callback_are_refused),
        cmocka_unit_test(tokenize_and_queries_answer),
        cmocka_unit_test(opening_and_closing_leaks_no_descriptor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
