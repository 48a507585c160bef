/* A confined process tries what it must not be able to do, from the thread that confined itself and from another. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "worker/confine.h"

static sem_t go;
static int n_wrong, old_socket;
static void *page;

static void expect_refused(int rc, const char *what)
{
    if (rc >= 0 || errno != EPERM) {
        fprintf(stderr, "%s: rc=%d errno=%d\n", what, rc, errno);
        __atomic_fetch_add(&n_wrong, 1, __ATOMIC_SEQ_CST);
    }
}

static void try_everything(void)
{
    expect_refused(open("/etc/passwd", O_RDONLY), "open to read");
    expect_refused(open("/tmp/weir-test-confine", O_WRONLY | O_CREAT, 0600), "open to write");
    expect_refused(socket(AF_INET, SOCK_STREAM, 0), "socket");
    expect_refused(socket(AF_UNIX, SOCK_STREAM, 0), "unix socket");
    expect_refused(execl("/bin/true", "true", (char *)NULL), "exec");
    expect_refused(fork(), "fork");
    expect_refused(unlink("/tmp/weir-test-confine"), "unlink");
    expect_refused(
        mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED ? -1 : 0,
        "executable memory");
    expect_refused(kill(getppid(), 0), "signal to another process");
    expect_refused(
        connect(old_socket,
                (const struct sockaddr *)&(struct sockaddr_un){.sun_family = AF_UNIX, .sun_path = "/x"},
                sizeof(struct sockaddr_un)),
        "connect with a socket from before");
    expect_refused((int)sendto(old_socket, "x", 1, 0, NULL, 0), "send");
    expect_refused(socketpair(AF_UNIX, SOCK_STREAM, 0, (int[2]){0}), "socketpair");
    expect_refused(mkdir("/tmp/weir-test-confine", 0700), "mkdir");
    expect_refused(rename("/tmp/weir-test-confine", "/tmp/weir-test-confine-2"), "rename");
    expect_refused(truncate("/tmp/weir-test-confine", 0), "truncate");
    expect_refused(memfd_create("x", 0), "memfd");
    expect_refused(mprotect(page, 4096, PROT_READ | PROT_EXEC), "memory made executable");
    expect_refused((int)ptrace(PTRACE_TRACEME, 0, NULL, NULL), "ptrace");
    expect_refused((int)syscall(SYS_io_uring_setup, 1, NULL), "io_uring");
    expect_refused(setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0}), "limits");
    expect_refused(prctl(PR_SET_DUMPABLE, 1), "dumpable");
}

static void *other_thread(void *arg)
{
    (void)arg;
    while (sem_wait(&go) != 0)
        continue;
    try_everything();
    return NULL;
}

static void *touch_memory(size_t bytes)
{
    volatile char *at = malloc(bytes); /* large: by mmap */
    if (at != NULL)
        at[0] = at[bytes - 1] = 1;
    return (void *)at;
}

static int confined_child(void)
{
    pthread_t thread;
    sem_init(&go, 0, 0);
    old_socket = socket(AF_UNIX, SOCK_STREAM, 0);
    page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (old_socket < 0 || page == MAP_FAILED)
        return 99;
    if (pthread_create(&thread, NULL, other_thread, NULL) != 0)
        return 99;
    confine_self(true, false);
    if (prctl(PR_GET_SECCOMP) != 2 && errno != EPERM)
        return 77; /* no filter in this build or kernel */
    try_everything();
    sem_post(&go);
    pthread_join(thread, NULL);
    void *small = touch_memory(100), *large = touch_memory(8 << 20);
    if (small == NULL || large == NULL)
        n_wrong++;
    free(small);
    free(large);
    return n_wrong;
}

static void a_confined_worker_opens_nothing_starts_nothing_and_still_works(void **state)
{
    (void)state;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(confined_child());
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* 0: a crash now would leave no core dump; 1: as large as the inherited limit lets it be; 2: neither. */
static int core_after(bool asked_for)
{
    struct rlimit core;
    confine_self(false, asked_for);
    if (getrlimit(RLIMIT_CORE, &core) != 0)
        return 2;
    if (prctl(PR_GET_DUMPABLE) == 1)
        return core.rlim_cur == core.rlim_max ? 1 : 2;
    return core.rlim_max == 0 ? 0 : 2;
}

static void a_crash_leaves_a_core_dump_only_where_it_was_asked_for(void **state)
{
    (void)state;
    for (int asked_for = 0; asked_for <= 1; asked_for++) {
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0)
            _exit(core_after(asked_for));
        int status = 0;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), asked_for);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_confined_worker_opens_nothing_starts_nothing_and_still_works),
        cmocka_unit_test(a_crash_leaves_a_core_dump_only_where_it_was_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
