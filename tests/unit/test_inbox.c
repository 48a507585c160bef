/* Requests on their way in: copied before the broker gets its bytes back, believed only after every check. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/worker_rig.h"
#include "worker/inbox.h"

static struct worker_rig rig;

static enum status next(struct request **ret_request)
{
    enum inbox_kind kind;
    return inbox_next(&rig.region, &rig.engine.limits, &kind, ret_request, &(uint64_t){ 0 });
}

static void forget(uint32_t slot)
{
    rig.broker.answers[slot].live = false;
}

static void a_record_is_copied_before_its_slot_is_consumed(void **state)
{
    (void)state;
    struct request *r = NULL;
    assert_int_equal(next(&r), ST_AGAIN);
    assert_null(r);
    region_broker_send(&rig.broker, 4, &(struct test_request){ .prompt = "the inner one", .max_tokens = 7, .stops = { "x" } });
    assert_int_equal(next(&r), ST_OK);
    memset(rig.broker.region.arena, 0xee, 4096); /* the broker uses it again */
    assert_true(r->slot == 4 && r->generation == rig.broker.generations[4]);
    assert_int_equal(r->error.code, ERR_NONE);
    assert_int_equal(r->head.max_tokens, 7);
    assert_int_equal(r->rules.stops.n, 1);
    assert_memory_equal(r->record + r->head.prompt.offset, "the inner one", 13);
    request_free(r);
    forget(4);
}

static void messages_come_in_their_order_and_a_drain_is_one_of_them(void **state)
{
    (void)state;
    enum inbox_kind kind = INBOX_START;
    struct request *r = NULL;
    for (uint32_t i = 0; i < 5; i++)
        region_broker_send(&rig.broker, i, &(struct test_request){ .prompt = "er" });
    region_broker_drain(&rig.broker);
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(next(&r), ST_OK);
        assert_int_equal(r->slot, i);
        request_free(r);
        forget(i);
    }
    assert_int_equal(inbox_next(&rig.region, &rig.engine.limits, &kind, &r, &(uint64_t){ 0 }), ST_OK);
    assert_int_equal(kind, INBOX_DRAIN);
}

static void flags_count_for_their_generation_only(void **state)
{
    (void)state;
    atomic_store(&rig.broker.region.slots[9].word, (uint64_t)41 << 32 | SLOT_CANCEL);
    assert_int_equal(inbox_flags(&rig.region, 9, 41), SLOT_CANCEL);
    assert_int_equal(inbox_flags(&rig.region, 9, 40), 0);
    assert_int_equal(inbox_flags(&rig.region, 9, 42), 0);
}

/* The record of a request with everything in it, with one thing wrong. */
static void expect(const char *what, size_t at, uint32_t value, size_t bytes)
{
    static uint8_t record[8192];
    struct logit_bias bias[] = { { 3, 1 } };
    int32_t ids[] = { 1, 2 };
    struct test_resume resume[] = { { 0, 2, 1, 0, ids } };
    struct test_request q = { .prompt = "abc", .stops = { "xy" }, .bias = bias, .n_bias = 1, .resume = resume, .n_resume = 1 };
    struct request *r = NULL;
    uint32_t n = region_broker_record(&q, 6, rig.broker.generations[6] + 1, record, sizeof(record));
    memcpy(record + at, &value, bytes);
    region_broker_send_bytes(&rig.broker, 6, record, n);
    assert_int_equal(next(&r), ST_OK);
    if (r->error.code == ERR_NONE)
        fail_msg("%s was believed", what);
    assert_true(r->error.message[0] != '\0');
    request_free(r);
    forget(6);
}

static void each_field_that_is_out_of_range_is_an_error_of_that_request(void **state)
{
    (void)state;
#define BAD(field, value) expect(#field " = " #value, offsetof(struct work_request, field), value, sizeof(((struct work_request *)0)->field))
    BAD(version, 2);
    BAD(record_bytes, 0);
    BAD(record_bytes, UINT32_MAX);
    BAD(slot, 7);
    BAD(generation, 0);
    BAD(kind, 9);
    BAD(prompt_kind, 0);
    BAD(flags, 0x8000);
    BAD(n_choices, 0);
    BAD(n_choices, CHOICES_MAX + 1);
    BAD(max_tokens, OUTPUT_TOKENS_MAX + 1);
    BAD(n_messages, MESSAGES_MAX + 1);
    BAD(n_stops, 2);
    BAD(n_stops, STOPS_MAX + 1);
    BAD(n_resume, 2);
    BAD(prompt.offset, 8);
    BAD(prompt.offset, UINT32_MAX);
    BAD(prompt.bytes, UINT32_MAX);
    BAD(stops.offset, 13);
    BAD(stops.bytes, 4096);
    BAD(bias.bytes, 7);
    BAD(bias.offset, UINT32_MAX - 3);
    BAD(resume.bytes, 8);
    BAD(sampling.temperature, 0x7fc00000); /* a NaN */
    BAD(sampling.top_p, 0);
    BAD(sampling.min_p, 0xbf800000);       /* -1 */
    BAD(sampling.repetition_penalty, 0);
    BAD(sampling.presence_penalty, 0x7f800000); /* infinity */
    BAD(sampling.frequency_penalty, 0x40400000); /* 3 */
    BAD(sampling.n_logprobs, LOGPROBS_MAX + 1);
    BAD(sampling.logprobs, 2);
}

int main(void)
{
    worker_rig_open(&rig, &(struct worker_rig_options){ 0 });
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_record_is_copied_before_its_slot_is_consumed),
        cmocka_unit_test(messages_come_in_their_order_and_a_drain_is_one_of_them),
        cmocka_unit_test(flags_count_for_their_generation_only),
        cmocka_unit_test(each_field_that_is_out_of_range_is_an_error_of_that_request),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    worker_rig_close(&rig);
    return rc;
}
