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
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
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
        confine_broker(false);
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

/* A call that is refused before the kernel looks at what is asked: with these arguments it gives EINVAL, EFAULT or EBADF else. */
static bool is_refused(long number, int why)
{
    errno = 0;
    if (syscall(number, -1L, 0L, 0L, -1L, 0L, 0L) < 0 && errno == why)
        return true;
    print_error("call %ld: errno %d\n", number, errno);
    return false;
}

static bool no_ring(void)
{
    return is_refused(SYS_io_uring_setup, EPERM) && is_refused(SYS_io_uring_enter, EPERM) && is_refused(SYS_io_uring_register, EPERM);
}

static bool no_mount_of_either_generation(void)
{
    static const long calls[] = { SYS_mount, SYS_umount2, SYS_open_tree, SYS_move_mount, SYS_fsopen, SYS_fsconfig, SYS_fsmount, SYS_fspick,
                                  442 /* mount_setattr */, 467 /* open_tree_attr */ };

    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        if (!is_refused(calls[i], EPERM))
            return false;
    return true;
}

static bool no_other_kernel(void)
{
    return is_refused(SYS_kexec_load, EPERM) && is_refused(SYS_kexec_file_load, EPERM);
}

/* Each kind; that root or nobody asks makes no difference.  What is asked for has CLONE_THREAD without CLONE_VM, which no kernel grants. */
static bool no_namespace_by_clone(void)
{
    static const unsigned kinds[] = { CLONE_NEWNS,  CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC,
                                      CLONE_NEWUSER, CLONE_NEWPID,   CLONE_NEWNET };

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (syscall(SYS_clone, (long)(kinds[i] | CLONE_THREAD), 0L, 0L, 0L, 0L) >= 0 || errno != EPERM)
            return false;
    return syscall(SYS_clone, (long)CLONE_THREAD, 0L, 0L, 0L, 0L) < 0 && errno == EINVAL && is_refused(SYS_clone3, ENOSYS);
}

static void *say_yes(void *arg)
{
    *(bool *)arg = true;
    return NULL;
}

static bool threads_still_start(void)
{
    pthread_t thread;
    bool yes = false;

    return pthread_create(&thread, NULL, say_yes, &yes) == 0 && pthread_join(thread, NULL) == 0 && yes;
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
    bool (*const all[])(void) = { no_socket_but_unix, no_other_process, no_other_identity, no_ring,
                                  no_mount_of_either_generation, no_other_kernel, no_namespace_by_clone,
                                  no_core, threads_still_start, programs_still_start_and_inherit_it };

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
