/* Every allocation of the broker's tables of requests and keys and of one request on its way through it fails once: the result says so, nothing is lost, and the next
 * try works.  (The other tables are in test_worker_memory.) */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <string.h>

#include "broker/keys.h"
#include "broker/record.h"
#include "broker/request.h"
#include "tests/support/failing_memory.h"

static bool make_keys(void *arg)
{
    struct keys *k = NULL;
    (void)arg;
    enum status st = keys_new(&k);
    assert_true(st == ST_OK || (st == ST_NOMEM && k == NULL));
    keys_free(k);
    return st == ST_OK;
}

static bool make_requests(void *arg)
{
    struct requests t = { 0 };
    (void)arg;
    enum status st = requests_init(&t);
    assert_true(st == ST_OK || st == ST_NOMEM);
    requests_deinit(&t);
    return st == ST_OK;
}

struct wire_question { /* a message of a client, and the tables it goes into */
    struct wire_buffer message;
    struct requests requests;
    struct clients *clients;
    uint32_t client;
};

/* From its message to the end of its answer. */
static bool make_broker_request(void *arg)
{
    struct wire_question *q = arg;
    struct wire_message m;
    struct error err;
    struct record record = { 0 };
    uint32_t at = NO_REQUEST;
    const uint64_t bytes = q->requests.bytes;
    enum status st = wire_decode_request(span_of(q->message.at, q->message.n), &m, &err);
    if (st != ST_OK) {
        assert_true(st == ST_NOMEM && m.type == WIRE_INVALID);
        return false;
    }
    st = record_of_generate(&m.generate, &(struct record_context){ .seed = 1 }, &record, &err);
    assert_true(st == ST_OK || (st == ST_NOMEM && record.at == NULL));
    if (st == ST_OK)
        st = requests_add(&q->requests, q->clients, q->client, m.id, m.generate.n, &record, &at);
    assert_true(st == ST_OK || (st == ST_NOMEM && at == NO_REQUEST));
    record_deinit(&record); /* of one that was not taken */
    if (st == ST_OK) {
        struct choice *c = &q->requests.list[at].choices[m.generate.n - 1];
        st = requests_append(&q->requests, &c->ids, "1234", 4);
        if (st == ST_OK)
            st = requests_append(&q->requests, &c->text, "one", 3);
        assert_true(st == ST_OK || st == ST_NOMEM);
        requests_detach(&q->requests, q->clients, at);
        requests_remove(&q->requests, at);
    }
    assert_true(q->requests.bytes == bytes && q->requests.n_live == 0);
    wire_message_deinit(&m);
    return st == ST_OK;
}

static void every_allocation_of_a_request_in_the_broker_may_fail_once(void **state)
{
    (void)state;
    static struct clients clients;
    static const uint8_t no_key[CURVE_KEY_BYTES];
    struct wire_question q = { .clients = &clients };
    struct wire_generate g;
    if (!INTERPOSES)
        skip();
    wire_generate_init(&g);
    g.id = span_str("r1");
    g.prompt_kind = WORK_PROMPT_TEXT;
    g.prompt = span_str("the inner one");
    g.n = 3;
    g.n_stops = 1;
    g.stops[0] = span_str("xy");
    assert_int_equal(wire_encode_generate(&q.message, &g), ST_OK);
    assert_int_equal(requests_init(&q.requests), ST_OK);
    clients_init(&clients);
    assert_int_equal(clients_add(&clients, &(struct peer){ 0 }, 0, no_key, 1, &q.client), ST_OK);
    torture(make_broker_request, &q, 4);
    requests_deinit(&q.requests);
    wire_buffer_deinit(&q.message);
}

static void every_allocation_of_keys_and_requests_tables_may_fail_once(void **state)
{
    (void)state;
    if (!INTERPOSES)
        skip();
    torture(make_requests, NULL, 2);
    torture(make_keys, NULL, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_allocation_of_keys_and_requests_tables_may_fail_once),
        cmocka_unit_test(every_allocation_of_a_request_in_the_broker_may_fail_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
