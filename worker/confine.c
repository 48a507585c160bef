/* confine.c - see confine.h.
 *
 * Each of these is a second line of defence: where the kernel refuses one, the worker says so in the log and serves all the
 * same.  The filter names what a running worker does: it reads, writes and polls descriptors it has, waits, tells the time,
 * takes and gives back memory, ends.  Everything else fails with EPERM rather than killing the process: a C library
 * that tries something new (reading a file under /sys, say) has a way to go on without it, and a request must not be blamed for that.
 *
 * The program is written out for the kernel's classic BPF machine; see seccomp(2) and linux/filter.h. */
#include "confine.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "log.h"
#include "seccomp_filter.h"

static void want(int rc, const char *what)
{
    if (rc != 0)
        log_warn("confine_failed", "what=%s errno=%d", what, errno);
}

void confine_follow_parent(void)
{
    static const char score[] = "900";
    want(prctl(PR_SET_PDEATHSIG, SIGKILL), "pdeathsig");
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, score, strlen(score)) < 0)
        log_debug("confine_failed", "what=oom_score_adj errno=%d", errno); /* the broker set it already, as a rule */
    if (fd >= 0)
        close(fd);
}

#ifdef FILTER_ARCH

static const int allowed[] = {
    /* descriptors it has */
    SYS_read, SYS_write, SYS_readv, SYS_writev, SYS_recvfrom, SYS_recvmsg, SYS_ppoll, SYS_close, SYS_lseek, SYS_fstat,
#ifdef SYS_poll
    SYS_poll,
#endif
    /* waiting and time */
    SYS_futex, SYS_nanosleep, SYS_clock_nanosleep, SYS_clock_gettime, SYS_gettimeofday, SYS_sched_yield,
    SYS_sched_getaffinity, SYS_getcpu, SYS_restart_syscall,
    /* memory; making it executable is dealt with apart */
    SYS_brk, SYS_munmap, SYS_mremap, SYS_madvise, SYS_membarrier,
    /* signals, identity, the end */
    SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_sigaltstack, SYS_getpid, SYS_gettid, SYS_getppid,
    SYS_tgkill, SYS_getrandom, SYS_rseq, SYS_set_robust_list, SYS_exit, SYS_exit_group,
};
enum { N_ALLOWED = sizeof(allowed) / sizeof(allowed[0]) };

static void install_filter(void)
{
    struct sock_filter f[2 * N_ALLOWED + 16];
    unsigned short n = 0;
    const unsigned refuse = SECCOMP_RET_ERRNO | EPERM;

    f[n++] = filter_load(offsetof(struct seccomp_data, arch));
    f[n++] = filter_if_equal(FILTER_ARCH, 1, 0);
    f[n++] = filter_answer(refuse);
    f[n++] = filter_load(offsetof(struct seccomp_data, nr));
    for (unsigned i = 0; i < N_ALLOWED; i++) {
        f[n++] = filter_if_equal((unsigned)allowed[i], 0, 1);
        f[n++] = filter_answer(SECCOMP_RET_ALLOW);
    }
    f[n++] = filter_if_equal(SYS_mmap, 2, 0);
    f[n++] = filter_if_equal(SYS_mprotect, 1, 0);
    f[n++] = filter_answer(refuse);
    f[n++] = filter_load(offsetof(struct seccomp_data, args[2]) + (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__ ? 4 : 0));
    f[n++] = filter_if_any_bit(PROT_EXEC, 0, 1);
    f[n++] = filter_answer(refuse);
    f[n++] = filter_answer(SECCOMP_RET_ALLOW);

    struct sock_fprog program = { .len = n, .filter = f };
    want((int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program), "seccomp");
}

#else

static void install_filter(void)
{
    log_warn("confine_failed", "what=seccomp reason=not_for_this_build");
}

#endif

void confine_self(bool filter, bool core_dumps)
{
    struct rlimit core = { 0, 0 };
    if (core_dumps && getrlimit(RLIMIT_CORE, &core) == 0)
        core.rlim_cur = core.rlim_max;
    want(setrlimit(RLIMIT_CORE, &core), "rlimit_core");
    if (!core_dumps)
        want(prctl(PR_SET_DUMPABLE, 0), "dumpable");
    want(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs");
    if (filter)
        install_filter();
}
