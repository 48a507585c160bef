/* sandbox.c - rlimits, no_new_privs, undumpable, uid "nobody" in an empty root, and a seccomp filter.
 *
 * The filter lists what libssh, OpenSSL and libc need once keys are loaded: reading, writing, polling, memory, time, random
 * numbers, memfd.  No open, no socket, no connect, no exec, no fork, no kill, no ptrace: whoever takes the process over can talk to
 * the two sockets it has and to nothing else.  A forbidden call kills the process and the kernel logs which it was.
 * Where the kernel has no seccomp (or the process already runs under one that forbids more) the rest still holds; it is logged.
 * Under a sanitizer there is no filter and no memory limit: the runtime needs /proc and terabytes of address space. */
#include "sandbox.h"

#include <errno.h>
#include <grp.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "log.h"
#include "seccomp_filter.h"

enum { NOBODY = 65534, DATA_BYTES_MAX = 256 << 20, DESCRIPTORS_MAX = 768 /* 10 channels with 64 files of an sftp session each */ };

void sandbox_undumpable(void)
{
    struct rlimit none = { 0, 0 };

    setrlimit(RLIMIT_CORE, &none);
    if (!FILTER_SANITIZED) /* the leak checker attaches to its own process */
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
}

static enum status limit(int what, rlim_t value, const char *name)
{
    struct rlimit r = { value, value };

    if (setrlimit(what, &r) == 0)
        return ST_OK;
    log_error("sandbox", "limit=%s error=%d", name, errno);
    return ST_SYSTEM;
}

/* Root only: become nobody, in a root folder that holds nothing.  /proc/self/fdinfo is one that always exists, and in which nobody
 * can make anything (OpenSSH uses the same kind of trick with its own empty folder). */
static enum status drop_privileges(void)
{
    if (geteuid() != 0)
        return ST_OK;
    if (chroot("/proc/self/fdinfo") != 0 || chdir("/") != 0)
        log_warn("sandbox", "chroot=failed error=%d",
                 errno); /* containers without the capability: the filter still holds */
    if (setgroups(0, NULL) != 0 || setresgid(NOBODY, NOBODY, NOBODY) != 0 ||
        setresuid(NOBODY, NOBODY, NOBODY) != 0) {
        log_error("sandbox", "setuid=failed error=%d", errno);
        return ST_SYSTEM;
    }
    return ST_OK;
}

#ifdef FILTER_ARCH

static const int allowed[] = {
    SYS_read,
    SYS_write,
    SYS_readv,
    SYS_writev,
    SYS_pread64,
    SYS_pwrite64,
    SYS_close,
    SYS_dup,
    SYS_fstat,
    SYS_lseek,
    SYS_fsync,
    SYS_fdatasync,
    SYS_sync_file_range,
    SYS_ftruncate,
    SYS_recvmsg,
    SYS_sendmsg,
    SYS_recvfrom,
    SYS_sendto,
    SYS_ppoll,
    SYS_shutdown,
    SYS_fcntl,
    SYS_ioctl,
    SYS_getsockopt,
    SYS_setsockopt,
    SYS_getsockname,
    SYS_getpeername,
    SYS_memfd_create,
    SYS_brk,
    SYS_mmap,
    SYS_munmap,
    SYS_mremap,
    SYS_mprotect,
    SYS_madvise,
    SYS_futex,
    SYS_clock_gettime,
    SYS_gettimeofday,
    SYS_clock_nanosleep,
    SYS_nanosleep,
    SYS_getrandom,
    SYS_getpid,
    SYS_gettid,
    SYS_getuid,
    SYS_geteuid,
    SYS_getgid,
    SYS_getegid,
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_setitimer,
    SYS_restart_syscall,
    SYS_sched_yield,
    SYS_uname,
    SYS_sysinfo,
    SYS_exit,
    SYS_exit_group,
#ifdef SYS_poll
    SYS_poll,
    SYS_alarm,
    SYS_time,
#endif
#ifdef SYS_newfstatat
    SYS_newfstatat, /* glibc's fstat() */
#endif
#ifdef SYS_rseq
    SYS_rseq,
#endif
};

/* mmap and mprotect never with PROT_EXEC; everything in `allowed`; open and openat fail with ENOENT, as libssh and libc look for
 * files they can do without; all else kills. */
static enum status filter(void)
{
    enum { N = sizeof allowed / sizeof allowed[0] };
    struct sock_filter code[2 * N + 32];
    unsigned short n = 0;

    code[n++] = filter_load(offsetof(struct seccomp_data, arch));
    code[n++] = filter_if_equal(FILTER_ARCH, 1, 0);
    code[n++] = filter_answer(SECCOMP_RET_KILL_PROCESS);
    code[n++] = filter_load(offsetof(struct seccomp_data, nr));
    for (int i = 0; i < 2; i++) {
        code[n++] = filter_if_equal(i == 0 ? SYS_mmap : SYS_mprotect, 0, 4);
        code[n++] = filter_load(offsetof(struct seccomp_data, args[2]));
        code[n++] = filter_if_any_bit(PROT_EXEC, 0, 1);
        code[n++] = filter_answer(SECCOMP_RET_KILL_PROCESS);
        code[n++] = filter_answer(SECCOMP_RET_ALLOW);
    }
    for (size_t i = 0; i < N; i++) {
        code[n++] = filter_if_equal((unsigned)allowed[i], 0, 1);
        code[n++] = filter_answer(SECCOMP_RET_ALLOW);
    }
    code[n++] = filter_if_equal(SYS_openat, 0, 1);
    code[n++] = filter_answer(SECCOMP_RET_ERRNO | ENOENT);
#ifdef SYS_open
    code[n++] = filter_if_equal(SYS_open, 0, 1);
    code[n++] = filter_answer(SECCOMP_RET_ERRNO | ENOENT);
#endif
    code[n++] = filter_answer(SECCOMP_RET_KILL_PROCESS);
    struct sock_fprog program = { n, code };
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) != 0)
        log_warn("sandbox", "seccomp=unavailable error=%d", errno);
    return ST_OK;
}

#else

static enum status filter(void)
{
    log_warn("sandbox", "seccomp=unavailable reason=architecture");
    return ST_OK;
}

#endif

static enum status enter(unsigned long long file_bytes_max, bool filtered)
{
    enum status st = drop_privileges();

    sandbox_undumpable();
    if (st == ST_OK && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        st = ST_SYSTEM;
    if (st == ST_OK)
        st = limit(RLIMIT_FSIZE, file_bytes_max, "file_bytes");
    if (st == ST_OK)
        st = limit(RLIMIT_NOFILE, DESCRIPTORS_MAX, "descriptors");
    if (st == ST_OK && !FILTER_SANITIZED)
        st = limit(RLIMIT_NPROC, 0, "processes");
    if (st == ST_OK && !FILTER_SANITIZED)
        st = limit(RLIMIT_DATA, DATA_BYTES_MAX, "memory");
    if (st == ST_OK && !FILTER_SANITIZED && filtered)
        st = filter();
    return st;
}

enum status sandbox_enter(unsigned long long file_bytes_max)
{
    return enter(file_bytes_max, true);
}

enum status sandbox_enter_server(void)
{
    return enter(1ull << 30, false); /* it writes nothing but its log, which may be a file that is long already */
}
