/* Every allocation of the constructors of worker, host store, fair queue and router, and of one request, fails once: the result says so, nothing is lost or touched
 * twice, and the next try works.  And a step allocates nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/fair_queue.h"
#include "broker/router.h"
#include "partition.h"
#include "tests/support/failing_memory.h"
#include "tests/support/store_rig.h"
#include "tests/support/worker_rig.h"
#include "worker/host_store.h"
#include "worker/preparer.h"

static bool make_scheduler(void *arg)
{
    const struct scheduler_options o = { .n_blocks = 64, .max_seqs = 4, .max_rows = 32, .context_tokens = 128 };
    struct scheduler *s = NULL;
    (void)arg;
    enum status st = scheduler_new(&o, &s);
    assert_true(st == ST_OK || (st == ST_NOMEM && s == NULL));
    scheduler_free(s);
    return st == ST_OK;
}

static bool make_request(void *arg)
{
    struct worker_rig *rig = arg;
    static uint8_t record[4096];
    struct logit_bias bias = { 3, 1 };
    int32_t ids[] = { 65, 66, 67 };
    struct test_resume resume = { 1, 3, 1, 0, ids };
    struct test_request q = { .ids = ids, .n_ids = 3, .max_tokens = 20, .n_choices = 3, /* the encoder takes its memory when it is made */
                              .stops = { "xy" }, .bias = &bias, .n_bias = 1,
                              .resume = &resume, .n_resume = 1, .sampling = { .presence_penalty = 1 } };
    struct request *r = NULL;
    uint32_t bytes = region_broker_record(&q, 1, 1, record, sizeof(record));
    enum status st = request_new(record, bytes, 1, 1, &rig->engine.limits, &r);
    if (st != ST_OK) {
        assert_true(st == ST_NOMEM && r == NULL);
        return false;
    }
    request_build(r, NULL);
    bool made = r->error.code == ERR_NONE;
    if (!made)
        assert_int_equal(r->error.code, ERR_INTERNAL);
    request_free(r);
    return made;
}

static bool make_worker(void *arg)
{
    struct worker_rig *rig = arg;
    struct worker_options o = { .secret = 1 };
    struct worker *w = NULL;
    enum status st = worker_new(&rig->engine, &rig->region, &o, &w);
    assert_true((st == ST_OK) == (w != NULL));
    worker_free(w);
    return st == ST_OK;
}

static enum status open_store(const struct partition *p, struct host_store **ret_store)
{
    const struct host_store_options o = { .own_fd = p->owner_fd, .block_bytes = STORE_BLOCK_BYTES, .numerics_id = "id" };
    return host_store_new(&o, ret_store);
}

static bool make_store(void *arg)
{
    struct host_store *hs = NULL;
    enum status st = open_store(arg, &hs);
    assert_true(st == ST_OK || (st == ST_NOMEM && hs == NULL));
    host_store_free(hs);
    return st == ST_OK;
}

struct shelved {
    struct worker_rig *rig;
    struct host_store *store;
};

static bool make_worker_with_store(void *arg)
{
    struct shelved *s = arg;
    struct worker_options o = { .secret = 1, .store = s->store };
    struct worker *w = NULL;
    enum status st = worker_new(&s->rig->engine, &s->rig->region, &o, &w);
    assert_true((st == ST_OK) == (w != NULL));
    worker_free(w);
    return st == ST_OK;
}

static bool make_queue(void *arg)
{
    struct fair_queue *q = NULL;
    (void)arg;
    enum status st = fair_queue_new(64, 8, 2, &q);
    assert_true(st == ST_OK || (st == ST_NOMEM && q == NULL));
    fair_queue_free(q);
    return st == ST_OK;
}

static bool make_router(void *arg)
{
    struct router *r = NULL;
    (void)arg;
    enum status st = router_new(4, &r);
    assert_true(st == ST_OK || (st == ST_NOMEM && r == NULL));
    router_free(r);
    return st == ST_OK;
}

static void every_allocation_of_store_and_broker_may_fail_once(void **state)
{
    (void)state;
    struct worker_rig r;
    if (!INTERPOSES)
        skip();
    struct partition p = store_rig_partition(0);
    struct shelved s = { .rig = &r };
    worker_rig_open(&r, &(struct worker_rig_options){ 0 });
    torture(make_store, &p, 2);
    assert_int_equal(open_store(&p, &s.store), ST_OK);
    torture(make_worker_with_store, &s, 13);
    torture(make_queue, NULL, 2);
    torture(make_router, NULL, 2);
    host_store_free(s.store);
    worker_rig_close(&r);
    partition_close(&p);
}

static void every_allocation_may_fail_once(void **state)
{
    (void)state;
    struct worker_rig r;
    if (!INTERPOSES)
        skip();
    worker_rig_open(&r, &(struct worker_rig_options){ 0 });
    torture(make_scheduler, NULL, 7);
    torture(make_request, &r, 10);
    torture(make_worker, &r, 10);
    worker_rig_close(&r);
}

static void a_step_allocates_nothing(void **state)
{
    (void)state;
    struct worker_rig r;
    struct test_request q = { .prompt = "the inner one of them all", .max_tokens = 100, .n_choices = 3, .flags = WORK_IGNORE_EOS,
                              .stops = { "xyz" }, .sampling = { .temperature = 1, .presence_penalty = 1, .logprobs = 1, .n_logprobs = 5 } };
    if (!INTERPOSES)
        skip();
    worker_rig_open(&r, &(struct worker_rig_options){ .real = true });
    region_broker_send(&r.broker, 0, &q);
    while (r.broker.answers[0].choices[2].n_ids < 2)
        worker_rig_run(&r, 1);
    long before = atomic_load(&n_calls);
    for (uint32_t i = 0; i < 50; i++)
        assert_int_equal(worker_pass(r.worker), WORKER_BUSY);
    assert_int_equal(atomic_load(&n_calls), before);
    worker_rig_run(&r, 1000);
    assert_true(r.broker.answers[0].done);
    worker_rig_close(&r);
}

static void a_request_without_memory_waits_in_the_ring(void **state)
{
    (void)state;
    struct worker_rig r;
    struct test_request q = { .prompt = "the inner one", .max_tokens = 3 };
    if (!INTERPOSES)
        skip();
    worker_rig_open(&r, &(struct worker_rig_options){ 0 });
    region_broker_send(&r.broker, 0, &q);
    atomic_store(&until_failure, 0);
    assert_int_equal(worker_pass(r.worker), WORKER_IDLE);
    atomic_store(&until_failure, -1);
    assert_int_equal(worker_n_requests(r.worker), 0);
    worker_rig_run(&r, 1000);
    assert_true(r.broker.answers[0].done);
    worker_rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_allocation_may_fail_once),
        cmocka_unit_test(every_allocation_of_store_and_broker_may_fail_once),
        cmocka_unit_test(a_step_allocates_nothing),
        cmocka_unit_test(a_request_without_memory_waits_in_the_ring),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
