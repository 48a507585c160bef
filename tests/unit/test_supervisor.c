/* test_supervisor.c - when a worker is started, killed, blamed; and that a real process really lives and dies by these rules. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "broker/supervisor.h"
#include "clock.h"

static const uint64_t second = UINT64_C(1000000000);

static void back_off_doubles_up_to_its_limit(void **state)
{
    (void)state;
    assert_int_equal(supervisor_backoff_ms(0), 0);
    assert_int_equal(supervisor_backoff_ms(1), 250);
    assert_int_equal(supervisor_backoff_ms(2), 500);
    assert_int_equal(supervisor_backoff_ms(5), 4000);
    assert_int_equal(supervisor_backoff_ms(8), 30000);
    assert_int_equal(supervisor_backoff_ms(1000000), 30000);
}

static void a_kill_from_outside_blames_nobody(void **state)
{
    (void)state;
    assert_false(takeover_own_fault(CLD_KILLED, SIGKILL, KILL_NONE));
    assert_false(takeover_own_fault(CLD_KILLED, SIGTERM, KILL_NONE));
    assert_false(takeover_own_fault(CLD_EXITED, 0, KILL_NONE));
    assert_false(takeover_own_fault(CLD_KILLED, SIGKILL, KILL_SHUTDOWN));
    assert_true(takeover_own_fault(CLD_DUMPED, SIGSEGV, KILL_NONE));
    assert_true(takeover_own_fault(CLD_KILLED, SIGABRT, KILL_NONE));
    assert_true(takeover_own_fault(CLD_EXITED, 1, KILL_NONE));
    assert_true(takeover_own_fault(CLD_KILLED, SIGKILL, KILL_HANG));
    assert_true(takeover_own_fault(CLD_KILLED, SIGKILL, KILL_BROKEN_RULE));
}

static void only_a_suspect_that_killed_alone_is_blamed(void **state)
{
    (void)state;
    for (unsigned bits = 0; bits < 32; bits++) {
        struct takeover_case c = { bits & 1, bits & 2, bits & 4, bits & 8, bits & 16 };
        enum takeover_action a = takeover_decide(&c);

        assert_int_equal(a == TAKEOVER_FORGET, !c.wanted);
        assert_int_equal(a == TAKEOVER_COMPLETE, c.wanted && c.finished);
        assert_int_equal(a == TAKEOVER_BLAME, c.wanted && !c.finished && c.own_fault && c.suspect && c.alone);
        assert_int_equal(a == TAKEOVER_REQUEUE, c.wanted && !c.finished && !c.own_fault && !c.suspect);
    }
}

static void a_suspect_is_cleared_once_by_progress(void **state)
{
    (void)state;
    assert_false(takeover_cleared(1, TAKEOVER_PROBATION_TOKENS - 1));
    assert_true(takeover_cleared(1, TAKEOVER_PROBATION_TOKENS));
    assert_false(takeover_cleared(2, 1000000));
}

static void time_demands_a_start_a_kill_or_nothing(void **state)
{
    static struct worker w;
    struct supervisor_options o = { .start_ns_max = 10 * second, .hang_ns_max = 5 * second };
    struct supervisor_pulse p = { 0 };

    (void)state;
    supervisor_init_worker(&w, 0, 0, "cpu");
    w.start_due_ns = 100 * second;
    assert_int_equal(supervisor_advise(&w, &p, &o, 99 * second), ADVICE_NONE);
    assert_int_equal(supervisor_advise(&w, &p, &o, 100 * second), ADVICE_START);

    w.state = WORKER_STARTING;
    w.state_since_ns = 100 * second;
    assert_int_equal(supervisor_advise(&w, &p, &o, 110 * second), ADVICE_NONE);
    assert_int_equal(supervisor_advise(&w, &p, &o, 111 * second), ADVICE_START_TIMEOUT);

    w.state = WORKER_READY;
    w.patience_from_ns = 100 * second;
    assert_int_equal(supervisor_advise(&w, &p, &o, 105 * second), ADVICE_NONE);
    assert_int_equal(supervisor_advise(&w, &p, &o, 106 * second), ADVICE_HANG); /* it has no work, and no pulse */
    o.hang_ns_max = second;
    assert_int_equal(supervisor_advise(&w, &p, &o, 103 * second), ADVICE_NONE); /* an idle one has three seconds */
    assert_int_equal(supervisor_advise(&w, &p, &o, 104 * second), ADVICE_HANG);
    supervisor_excuse(&w, 104 * second);
    assert_int_equal(supervisor_advise(&w, &p, &o, 105 * second), ADVICE_NONE);
    assert_int_equal(supervisor_silence_ns(&w, &p, 105 * second), second);
    o.hang_ns_max = 5 * second;
    w.patience_from_ns = 100 * second;
    p = (struct supervisor_pulse){ .n_active = 1, .heartbeat_ns = 199 * second };
    assert_int_equal(supervisor_advise(&w, &p, &o, 200 * second), ADVICE_NONE);
    p.heartbeat_ns = 190 * second;
    assert_int_equal(supervisor_advise(&w, &p, &o, 200 * second), ADVICE_HANG);
    w.patience_from_ns = 196 * second; /* it woke for new work a moment ago */
    assert_int_equal(supervisor_advise(&w, &p, &o, 200 * second), ADVICE_NONE);
    p.heartbeat_ns = UINT64_MAX;       /* a lie is not life */
    assert_int_equal(supervisor_advise(&w, &p, &o, 202 * second), ADVICE_HANG);
    w.patience_from_ns = 100 * second;
    p = (struct supervisor_pulse){ .n_active = 1, .heartbeat_ns = 200 * second, .step_began_ns = 190 * second };
    assert_int_equal(supervisor_advise(&w, &p, &o, 200 * second), ADVICE_HANG); /* one step without end */
}

/* Start a program and wait for its end. */
static struct supervisor_end run(struct worker *w, const char *program, enum kill_reason kill_it)
{
    const char *const models[] = { "/dev/null" };
    struct supervisor_options o = { .program = program, .model_paths = models, .threads = 1, .log_level = "info" };
    struct supervisor_end end;

    w->state = WORKER_WAITING;
    assert_int_equal(supervisor_start(w, &o, clock_now_ns()), ST_OK);
    assert_int_equal(w->state, WORKER_STARTING);
    if (kill_it != KILL_NONE)
        supervisor_kill(w, kill_it);
    struct pollfd p = { .fd = w->pidfd, .events = POLLIN };
    assert_int_equal(poll(&p, 1, 10000), 1);
    assert_true(supervisor_reap(w, &end));
    assert_false(supervisor_reap(w, &end));
    return end;
}

static void a_process_that_cannot_start_waits_and_says_why(void **state)
{
    static struct worker w;

    (void)state;
    supervisor_init_worker(&w, 3, 0, "cpu");
    for (uint32_t life = 1; life <= 4; life++) {
        struct supervisor_end end = run(&w, "/bin/false", KILL_NONE);

        assert_string_equal(end.cause, "exit-1");
        supervisor_bury(&w, &end, true, 1000 * second);
        assert_int_equal(w.life, life);
        assert_int_equal(w.state, WORKER_WAITING);
        assert_int_equal(w.start_due_ns - 1000 * second, supervisor_backoff_ms(life) * 1000000);
        assert_non_null(strstr(w.error, "exit-1"));
        assert_int_equal(supervisor_hopeless(&w), life >= SUPERVISOR_HOPELESS);
    }
    struct supervisor_end end = run(&w, "/nonexistent/program", KILL_NONE);
    w.error[0] = '\0';
    supervisor_bury(&w, &end, true, 0);
    assert_non_null(strstr(w.error, "could not be run"));
}

static void a_kill_hits_the_process_and_names_its_reason(void **state)
{
    static struct worker w;

    (void)state;
    supervisor_init_worker(&w, 0, 0, "cpu");
    struct supervisor_end end = run(&w, "/bin/sh", KILL_HANG); /* killed before or after its own end */
    assert_string_equal(end.cause, "hang");
    assert_true(end.own_fault);
    supervisor_bury(&w, &end, false, 0);
    assert_int_equal(w.state, WORKER_STOPPED);
    assert_int_equal(w.pidfd, -1);
}

/* A worker whose process does nothing and is ended by a signal only. */
static pid_t start_pausing(struct worker *w)
{
    supervisor_init_worker(w, 0, 0, "cpu");
    pid_t pid = fork();
    if (pid == 0) {
        pause();
        _exit(0);
    }
    assert_true(pid > 0);
    w->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    assert_true(w->pidfd >= 0);
    return pid;
}

/* It hangs on its way out, and a request has come meanwhile: it is ended all the same, or nobody would ever serve that. */
static void who_leaves_has_its_time_even_if_wanted_again(void **state)
{
    static struct worker w;

    (void)state;
    pid_t pid = start_pausing(&w);
    w.state = WORKER_LEAVING;
    w.released = true;
    w.state_since_ns = 100 * second;
    supervisor_wake(&w, 101 * second);
    assert_int_equal(w.state, WORKER_LEAVING);
    supervisor_obey(&w, 101 * second);
    assert_int_equal(w.killed, KILL_NONE);
    supervisor_obey(&w, 102 * second + SUPERVISOR_LEAVE_MS * UINT64_C(1000000));
    assert_int_equal(w.killed, KILL_SHUTDOWN);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    close(w.pidfd);
}

/* It has been READY for an hour: its time to leave begins when it is asked to. */
static void a_drained_worker_has_its_time_to_leave(void **state)
{
    static struct worker w;

    (void)state;
    pid_t pid = start_pausing(&w);
    assert_int_equal(worker_link_open(&w.link, 0, 1, 1), ST_OK);
    w.state = WORKER_READY;
    w.state_since_ns = second;
    supervisor_drain(&w, 3600 * second);
    assert_int_equal(w.state, WORKER_LEAVING);
    supervisor_obey(&w, 3600 * second + SUPERVISOR_LEAVE_MS * UINT64_C(1000000));
    assert_int_equal(w.killed, KILL_NONE);
    supervisor_obey(&w, 3601 * second + SUPERVISOR_LEAVE_MS * UINT64_C(1000000));
    assert_int_equal(w.killed, KILL_SHUTDOWN);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    worker_link_close(&w.link);
    close(w.pidfd);
}

/* Orders bring a slot without a process to where they want it, whatever came before: checked against the rules of the header. */
static void orders_move_a_slot_that_has_no_process(void **state)
{
    static struct worker w;

    (void)state;
    supervisor_init_worker(&w, 0, 0, "cpu");
    w.failures = w.failed_starts = SUPERVISOR_HOPELESS;
    w.start_due_ns = 100 * second;
    assert_true(supervisor_hopeless(&w));
    supervisor_order(&w, ORDER_RUN, second); /* try again now */
    assert_false(supervisor_hopeless(&w));
    assert_true(w.state == WORKER_WAITING && w.start_due_ns == second);
    supervisor_order(&w, ORDER_PAUSE, second); /* its process starts all the same */
    assert_int_equal(supervisor_advise(&w, &(struct supervisor_pulse){ 0 }, &(struct supervisor_options){ 0 }, second), ADVICE_START);
    supervisor_order(&w, ORDER_DRAIN, second);
    assert_int_equal(w.state, WORKER_STOPPED);
    assert_false(supervisor_hopeless(&w)); /* it can be resumed: requests may wait for it */
    supervisor_order(&w, ORDER_PAUSE, second);
    assert_int_equal(w.state, WORKER_STOPPED);
    assert_false(supervisor_hopeless(&w)); /* so it can after any other order */
    assert_int_equal(supervisor_advise(&w, &(struct supervisor_pulse){ 0 }, &(struct supervisor_options){ 0 }, 99 * second), ADVICE_NONE);
    supervisor_order(&w, ORDER_RUN, 2 * second);
    assert_int_equal(w.state, WORKER_WAITING);
    supervisor_order(&w, ORDER_REMOVE, 2 * second);
    assert_true(supervisor_hopeless(&w));
    supervisor_obey(&w, 2 * second);
    assert_true(w.state == WORKER_STOPPED && w.order == ORDER_GONE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(back_off_doubles_up_to_its_limit),
        cmocka_unit_test(a_kill_from_outside_blames_nobody),
        cmocka_unit_test(only_a_suspect_that_killed_alone_is_blamed),
        cmocka_unit_test(a_suspect_is_cleared_once_by_progress),
        cmocka_unit_test(time_demands_a_start_a_kill_or_nothing),
        cmocka_unit_test(a_process_that_cannot_start_waits_and_says_why),
        cmocka_unit_test(a_kill_hits_the_process_and_names_its_reason),
        cmocka_unit_test(who_leaves_has_its_time_even_if_wanted_again),
        cmocka_unit_test(a_drained_worker_has_its_time_to_leave),
        cmocka_unit_test(orders_move_a_slot_that_has_no_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
