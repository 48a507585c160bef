/* test_trace.c - phases of a request follow one another and add up, whatever a worker says; the last that ended are kept, of each class apart;
 * a user is told of the own requests only. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "broker/trace.h"
#include "tests/support/broker_rig.h"
#include "tests/support/random.h"

static struct random rng;

static uint64_t some_time(void)
{
    return random_below(&rng, 3) == 0 ? 0 : 1 + random_below(&rng, 1000);
}

static void phases_add_up_whatever_the_worker_says(void **state)
{
    (void)state;
    for (uint64_t n = 0; n < random_ops(); n++) {
        struct trace t = {.state = (enum trace_state)random_below(&rng, 4),
                          .arrived_ns = 1 + random_below(&rng, 200)};
        struct trace_phase p[TRACE_PHASES];
        bool over = t.state == TRACE_DONE || t.state == TRACE_ERROR;
        uint64_t now_ns = 1000, at = t.arrived_ns;

        if (random_below(&rng, 2) == 0)
            t.takeovers = 1;
        t.times.first_picked_ns = some_time();
        t.times.picked_ns = some_time();
        t.times.sent_ns = some_time();
        t.times.ended_ns = over ? 1 + random_below(&rng, 1000) : 0;
        t.times.told_ns = over ? t.arrived_ns + random_below(&rng, 800) : 0;
        t.run.taken_ns = some_time();
        t.run.tokenized_ns = some_time();
        t.run.admitted_ns = some_time();
        t.run.prefix_wait_ns = random_below(&rng, 4) == 0 ? UINT64_MAX - random_below(&rng, 9) : some_time();
        t.run.first_ns = some_time();
        t.run.last_ns = random_below(&rng, 9) == 0 ? UINT64_MAX : some_time();
        trace_phases(&t, now_ns, p);
        for (int i = 0; i < TRACE_PHASES; i++) {
            assert_int_equal(p[i].began_ns, at);
            at += p[i].took_ns;
        }
        assert_int_equal(at, t.times.told_ns != 0 ? t.times.told_ns : now_ns);
    }
}

/* Its worker died after the first token, and the next one has told nothing yet: it is being handed over, no step is computed. */
static void a_token_of_a_dead_worker_is_no_point_of_the_next_ones_run(void **state)
{
    (void)state;
    struct trace t = {.state = TRACE_RUNNING, .arrived_ns = 100, .first_token_ns = 300, .takeovers = 1};
    struct trace_phase p[TRACE_PHASES];

    t.times.first_picked_ns = 110;
    t.times.picked_ns = 500;
    t.times.sent_ns = 510;
    trace_phases(&t, 1000, p);
    assert_int_equal(p[TRACE_HANDOVER].took_ns, 490);
    assert_int_equal(p[TRACE_STEPS].took_ns, 0);
}

/* It waits for another worker: all since the first one is `earlier`, whether it goes on or ends there. */
static void one_whose_worker_died_is_in_none_while_it_waits(void **state)
{
    (void)state;
    struct trace t = {.state = TRACE_QUEUED, .arrived_ns = 100, .first_token_ns = 300, .last_token_ns = 350, .takeovers = 1};
    struct trace_phase p[TRACE_PHASES];

    t.times.first_picked_ns = 110;
    for (int over = 0; over < 2; over++) {
        if (over) {
            t.state = TRACE_ERROR;
            t.times.ended_ns = t.times.told_ns = 1000;
        }
        trace_phases(&t, 1000, p);
        assert_int_equal(p[TRACE_QUEUE].took_ns, 10);
        assert_int_equal(p[TRACE_EARLIER].took_ns, 890);
        assert_true(p[TRACE_EARLIER].reached);
        for (int i = TRACE_ROUTING; i < TRACE_STREAM; i++)
            assert_true(p[i].took_ns == 0 && !p[i].reached);
    }
}

static void phases_of_a_whole_request_are_the_times_between_its_points(void **state)
{
    (void)state;
    struct trace t = {.state = TRACE_DONE, .arrived_ns = 100, .first_token_ns = 810, .last_token_ns = 990};
    struct trace_phase p[TRACE_PHASES];
    static const uint64_t want[TRACE_PHASES] = {
        [TRACE_QUEUE] = 10,    [TRACE_EARLIER] = 0, [TRACE_ROUTING] = 5, [TRACE_HANDOVER] = 15,
        [TRACE_TOKENIZE] = 70, [TRACE_WAIT] = 60,   [TRACE_PREFIX] = 40, [TRACE_PREFILL] = 500,
        [TRACE_STEPS] = 180,   [TRACE_STREAM] = 20,
    };

    t.times = (struct trace_times){
        .first_picked_ns = 110, .picked_ns = 110, .sent_ns = 115, .ended_ns = 995, .told_ns = 1000};
    t.run = (struct link_trace){.taken_ns = 130,
                                .tokenized_ns = 200,
                                .admitted_ns = 300,
                                .prefix_wait_ns = 40,
                                .first_ns = 800,
                                .last_ns = 980};
    trace_phases(&t, 5000, p);
    for (int i = 0; i < TRACE_PHASES; i++)
        assert_int_equal(p[i].took_ns, want[i]);
}

static void a_request_under_way_is_in_its_last_phase_until_now(void **state)
{
    (void)state;
    struct trace t = {.state = TRACE_RUNNING, .arrived_ns = 100};
    struct trace_phase p[TRACE_PHASES];

    t.times = (struct trace_times){.first_picked_ns = 110, .picked_ns = 110, .sent_ns = 120};
    t.run = (struct link_trace){.taken_ns = 130, .tokenized_ns = 140, .admitted_ns = 150};
    trace_phases(&t, 400, p);
    assert_int_equal(p[TRACE_PREFILL].took_ns, 250);
    assert_true(p[TRACE_PREFILL].reached);
    assert_false(p[TRACE_STEPS].reached);
    t.run.first_ns = 300;
    t.run.last_ns = 350;
    trace_phases(&t, 400, p);
    assert_int_equal(p[TRACE_STEPS].took_ns, 100); /* not up to the last token: it goes on */
    assert_int_equal(p[TRACE_STREAM].took_ns, 0);
    assert_false(p[TRACE_STREAM].reached);
}

static void the_last_of_each_class_are_kept(void **state)
{
    struct traces *kept = calloc(1, sizeof(*kept));
    uint64_t numbers[2][3000];
    uint32_t n[2] = {0};

    (void)state;
    assert_non_null(kept);
    for (uint64_t i = 1; i <= 3000; i++) {
        struct trace t = {.number = i, .batch = random_below(&rng, 5) != 0};

        traces_keep(kept, &t);
        numbers[t.batch][n[t.batch]++] = i;
        for (int batch = 0; batch < 2; batch++) {
            uint32_t k = random_below(&rng, TRACES_KEPT + 2);
            const struct trace *found = traces_youngest(kept, batch, k);

            if (k >= n[batch] || k >= TRACES_KEPT)
                assert_null(found);
            else
                assert_int_equal(found->number, numbers[batch][n[batch] - 1 - k]);
        }
    }
    free(kept);
}

/* Is there a request in the reply that report_trace() wrote? */
static bool tells(struct broker *b, const char *name, const char *user)
{
    char *json = NULL;

    if (!report_trace(b, span_str("t"), span_str(name), user))
        return false;
    assert_false(b->out.failed);
    assert_int_equal(wire_to_json(span_of(b->out.at, b->out.n), &json), ST_OK);
    bool there = strstr(json, "\"request\":") != NULL;
    free(json);
    return there;
}

static void a_user_is_told_of_the_own_requests_only(void **state)
{
    struct broker_rig rig;
    struct error stop;
    char name[64], other_boot[64];

    (void)state;
    broker_rig_open(&rig);
    memcpy(rig.b->boot, "0123456789abcdef", 17);
    uint32_t request = broker_rig_request(&rig, 1, 4, false); /* of "user" */
    rig.b->requests.list[request].number = 77;
    snprintf(name, sizeof(name), "%s-77", rig.b->boot);
    snprintf(other_boot, sizeof(other_boot), "0123456789abcdee-77");
    for (int ended = 0; ended < 2; ended++) {
        assert_true(tells(rig.b, name, "user"));
        assert_true(tells(rig.b, "77", "user"));
        assert_true(tells(rig.b, name, NULL)); /* an administrator */
        assert_false(tells(rig.b, name, "other"));
        assert_false(tells(rig.b, other_boot, "user"));
        assert_false(tells(rig.b, "78", NULL));
        assert_false(tells(rig.b, "7x", NULL));
        assert_false(tells(rig.b, "99999999999999999999", NULL));
        assert_true(tells(rig.b, "", "user")); /* the list */
        assert_false(tells(rig.b, "", "other"));
        error_set(&stop, ERR_CANCELLED, "", "over");
        ending_error(rig.b, request, &stop, 0);
        if (!ended)
            ending_told(rig.b, request); /* it leaves the table */
        assert_int_equal(rig.b->requests.n_live, 0);
    }
    broker_rig_close(&rig);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(phases_add_up_whatever_the_worker_says),
        cmocka_unit_test(a_token_of_a_dead_worker_is_no_point_of_the_next_ones_run),
        cmocka_unit_test(one_whose_worker_died_is_in_none_while_it_waits),
        cmocka_unit_test(phases_of_a_whole_request_are_the_times_between_its_points),
        cmocka_unit_test(a_request_under_way_is_in_its_last_phase_until_now),
        cmocka_unit_test(the_last_of_each_class_are_kept),
        cmocka_unit_test(a_user_is_told_of_the_own_requests_only),
    };

    rng = random_start(argc, argv, 200000);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
