/* test_machine.c - the broker's threads ask for short turns, what it starts does not; its share of time and its niceness stay. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "broker/machine.h"

struct attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t turn_ns, more[2];
};

static struct attributes mine(void)
{
    struct attributes a = {0};
    assert_int_equal(syscall(SYS_sched_getattr, 0, &a, sizeof(a), 0), 0);
    return a;
}

static void *look(void *arg)
{
    *(struct attributes *)arg = mine();
    return NULL;
}

static struct attributes of_a_new_thread(void)
{
    struct attributes a = {0};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, look, &a), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    return a;
}

static void turns_are_short_for_threads_made_before_the_last_call(void **state)
{
    (void)state;
    struct attributes before = {0};
    if (syscall(SYS_sched_getattr, 0, &before, sizeof(before), 0) != 0 || before.policy != 0)
        skip(); /* a sandbox that refuses the call, or a policy without turns */
    machine_short_turns(false);
    struct attributes first = mine(), inherited = of_a_new_thread();
    machine_short_turns(true);
    struct attributes after = mine(), usual = of_a_new_thread();
    assert_int_equal(after.nice, before.nice);
    assert_int_equal(usual.nice < 0 ? 0 : usual.nice, before.nice < 0 ? 0 : before.nice);
    assert_int_equal(after.policy, before.policy);
    assert_int_equal(inherited.turn_ns, first.turn_ns);
    assert_int_equal(usual.turn_ns, before.turn_ns);
    if (first.turn_ns == before.turn_ns)
        skip(); /* Linux before 6.12 */
    assert_int_equal(first.turn_ns, 100000);
    assert_int_equal(after.turn_ns, 100000);
}

static void there_is_a_cpu_and_some_memory(void **state)
{
    (void)state;
    assert_true(machine_cpus() >= 1);
    assert_true(machine_memory_available() > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(there_is_a_cpu_and_some_memory),
        cmocka_unit_test(turns_are_short_for_threads_made_before_the_last_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
