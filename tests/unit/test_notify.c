/* test_notify.c - messages to systemd arrive at paths and abstract names, and nothing happens without it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "notify.h"

static int receiver(const char *name, size_t n)
{
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    memcpy(at.sun_path, name, n);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n)), 0);
    return fd;
}

static void expect(int fd, const char *wanted)
{
    char got[64];
    ssize_t n = recv(fd, got, sizeof got, 0);

    assert_int_equal(n, strlen(wanted));
    assert_memory_equal(got, wanted, strlen(wanted));
}

static void a_message_arrives_at_a_path_and_at_an_abstract_name(void **state)
{
    char path[64], abstract[64];

    (void)state;
    snprintf(path, sizeof path, "/tmp/weir-notify-%d", (int)getpid());
    int fd = receiver(path, strlen(path));
    setenv("NOTIFY_SOCKET", path, 1);
    assert_int_equal(notify_send("READY=1"), ST_OK);
    expect(fd, "READY=1");
    close(fd);
    unlink(path);
    assert_int_equal(notify_send("READY=1"), ST_SYSTEM);

    int n = snprintf(abstract, sizeof abstract, "@weir-notify-%d", (int)getpid());
    abstract[0] = '\0';
    fd = receiver(abstract, (size_t)n);
    abstract[0] = '@';
    setenv("NOTIFY_SOCKET", abstract, 1);
    assert_int_equal(notify_send("STOPPING=1"), ST_OK);
    expect(fd, "STOPPING=1");
    close(fd);
}

static void without_systemd_nothing_is_sent(void **state)
{
    static const char *const odd[] = { "", "/", "relative", "vsock:1:2" };
    char too_long[256];

    (void)state;
    unsetenv("NOTIFY_SOCKET");
    assert_int_equal(notify_send("READY=1"), ST_NOT_FOUND);
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        setenv("NOTIFY_SOCKET", odd[i], 1);
        assert_int_equal(notify_send("READY=1"), ST_NOT_FOUND);
    }
    memset(too_long, '/', sizeof too_long - 1);
    too_long[sizeof too_long - 1] = '\0';
    setenv("NOTIFY_SOCKET", too_long, 1);
    assert_int_equal(notify_send("READY=1"), ST_NOT_FOUND);
}

static void the_watchdog_is_ours_only_if_the_pid_is(void **state)
{
    char pid[16];

    (void)state;
    unsetenv("WATCHDOG_USEC");
    assert_int_equal(notify_watchdog_ms(), 0);
    setenv("WATCHDOG_USEC", "30000000", 1);
    assert_int_equal(notify_watchdog_ms(), 15000);
    setenv("WATCHDOG_PID", "1", 1);
    assert_int_equal(notify_watchdog_ms(), 0);
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    setenv("WATCHDOG_PID", pid, 1);
    assert_int_equal(notify_watchdog_ms(), 15000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_message_arrives_at_a_path_and_at_an_abstract_name),
        cmocka_unit_test(without_systemd_nothing_is_sent),
        cmocka_unit_test(the_watchdog_is_ours_only_if_the_pid_is),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
