/* The tokenizer thread: short prompts pass long ones, nothing is lost, and the counts that penalties need are right. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/random.h"
#include "tests/support/worker_rig.h"
#include "worker/preparer.h"

static struct random rng;
static struct worker_rig rig;

static struct request *make(const char *prompt, enum work_kind kind, uint32_t slot)
{
    static uint8_t record[2 << 20];
    struct request *r = NULL;
    struct test_request q = { .kind = kind, .prompt = prompt, .max_tokens = 3 };
    uint32_t bytes = region_broker_record(&q, slot, 1, record, sizeof(record));
    assert_int_equal(request_new(record, bytes, slot, 1, &rig.engine.limits, &r), ST_OK);
    return r;
}

static struct request *wait_for_one(struct preparer *p)
{
    struct request *r;
    while ((r = preparer_take(p)) == NULL)
        assert_int_equal(poll(&(struct pollfd){ .fd = preparer_fd(p), .events = POLLIN }, 1, 20000), 1);
    return r;
}

static void a_short_prompt_passes_a_long_one(void **state)
{
    (void)state;
    static char lengthy[1000001];
    struct preparer *p = NULL;
    for (size_t i = 0; i < sizeof(lengthy) - 1; i++)
        lengthy[i] = "the inner "[i % 10];
    assert_int_equal(preparer_new(&rig.engine.limits, &p), ST_OK);
    preparer_give(p, make(lengthy, WORK_TOKENIZE, 0));
    for (uint32_t i = 1; i < 20; i++)
        preparer_give(p, make("the", WORK_GENERATE, i));
    for (uint32_t i = 1; i < 20; i++) {
        struct request *r = wait_for_one(p);
        assert_int_equal(r->slot, i); /* in their order, and the long one after them */
        request_free(r);
    }
    struct request *r = wait_for_one(p);
    assert_int_equal(r->slot, 0);
    assert_true(r->n_ids > 300000 && r->error.code == ERR_NONE);
    request_free(r);
    preparer_free(p);
}

static void what_is_inside_when_it_ends_is_freed(void **state)
{
    (void)state;
    struct preparer *p = NULL;
    assert_int_equal(preparer_new(&rig.engine.limits, &p), ST_OK);
    for (uint32_t i = 0; i < 50; i++)
        preparer_give(p, make(i % 10 == 0 ? "the inner" : "er", WORK_GENERATE, i));
    preparer_free(p); /* the sanitizer counts */
}

static void token_counts_are_those_of_a_plain_count(void **state)
{
    (void)state;
    enum { VOCABULARY = 40 };
    for (uint32_t run = 0; run < 300; run++) {
        struct token_counts c;
        uint32_t in_prompt[VOCABULARY] = { 0 }, in_answer[VOCABULARY] = { 0 }, n_max = 1 + random_below(&rng, 60), n_seen = 0;
        assert_int_equal(token_counts_init(&c, n_max, VOCABULARY), ST_OK);
        for (uint32_t i = 0; i < n_max; i++) {
            int32_t token = (int32_t)random_below(&rng, VOCABULARY);
            if (random_below(&rng, 2) == 0) {
                token_counts_add_prompt(&c, &token, 1);
                in_prompt[token]++;
            } else {
                token_counts_add_answer(&c, token);
                in_answer[token]++;
            }
        }
        for (uint32_t i = 0; i < c.n; i++) {
            assert_int_equal(c.list[i].in_prompt, in_prompt[c.list[i].token]);
            assert_int_equal(c.list[i].in_answer, in_answer[c.list[i].token]);
        }
        for (uint32_t i = 0; i < VOCABULARY; i++)
            n_seen += in_prompt[i] + in_answer[i] > 0;
        assert_int_equal(c.n, n_seen);
        token_counts_deinit(&c);
    }
}

int main(int argc, char **argv)
{
    rng = random_start(argc, argv, 1);
    worker_rig_open(&rig, &(struct worker_rig_options){ 0 });
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_short_prompt_passes_a_long_one),
        cmocka_unit_test(what_is_inside_when_it_ends_is_freed),
        cmocka_unit_test(token_counts_are_those_of_a_plain_count),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    worker_rig_close(&rig);
    return rc;
}
