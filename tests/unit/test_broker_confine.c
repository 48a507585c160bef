/* test_broker_confine.c - what a process that confine_broker() was called in may still do, each thing tried in a child of its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <errno.h>
#include <sched.h>
#include <stdbool.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "broker/confine.h"
#include "log.h"

enum { HAS_NO_FILTER = 77 };

/* The exit code of a confined child that runs f; 0: f is true. */
static int confined(bool (*f)(void))
{
    int status = 0;
    pid_t pid = fork();

    if (pid == 0) {
        log_init("test", LOG_LEVEL_ERROR);
        confine_broker();
        char line[128];
        int mode = 0;
        FILE *in = fopen("/proc/self/status", "re");
        while (in != NULL && fgets(line, sizeof(line), in) != NULL)
            (void)sscanf(line, "Seccomp: %d", &mode);
        if (in != NULL)
            fclose(in);
        _exit(mode != 2 ? HAS_NO_FILTER : f() ? 0 : 1);
    }
    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static bool no_socket_but_unix(void)
{
    return socket(AF_INET, SOCK_STREAM, 0) < 0 && errno == EPERM && socket(AF_INET6, SOCK_DGRAM, 0) < 0 && errno == EPERM &&
           socket(AF_NETLINK, SOCK_RAW, 0) < 0 && errno == EPERM && socket(AF_UNIX, SOCK_STREAM, 0) >= 0;
}

static bool no_other_process(void)
{
    return ptrace(PTRACE_TRACEME, 0, NULL, NULL) < 0 && errno == EPERM;
}

static bool no_other_identity(void)
{
    return setuid(getuid()) < 0 && errno == EPERM && unshare(CLONE_NEWNS) < 0 && errno == EPERM;
}

static bool no_core(void)
{
    struct rlimit r;

    return getrlimit(RLIMIT_CORE, &r) == 0 && r.rlim_cur == 0 && r.rlim_max == 0;
}

static bool programs_still_start_and_inherit_it(void)
{
    int status = 1;
    pid_t pid = fork();

    if (pid == 0)
        execl("/bin/sh", "sh", "-c", "grep -q '^NoNewPrivs:.*1' /proc/self/status && grep -q '^Seccomp:.*2' /proc/self/status", (char *)NULL);
    return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

static void a_confined_broker_can_start_workers_and_little_else(void **state)
{
    bool (*const all[])(void) = { no_socket_but_unix, no_other_process, no_other_identity, no_core, programs_still_start_and_inherit_it };

    (void)state;
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        int code = confined(all[i]);
        if (code == HAS_NO_FILTER)
            skip(); /* a build with a sanitizer, or a kernel without seccomp */
        if (code != 0)
            fail_msg("what failed is number %zu", i);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(a_confined_broker_can_start_workers_and_little_else) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
