/* confine.c - see confine.h.
 *
 * The broker has to start workers for as long as it lives, and a worker's beginning is rich: exec, the dynamic loader, reading a model,
 * a GPU's driver with its devices and ioctls.  A filter is inherited by all of it.  So it cannot be a list of what is allowed, as the worker's
 * own is once its model is loaded (worker/confine.c); it is a list of what nobody here needs, and it refuses (EPERM) instead of killing:
 *
 *   sockets of any family but unix    all listening sockets exist by now; accepting needs none.  Whoever takes the broker over cannot call home
 *   io_uring                          it opens and connects sockets by itself, where no filter sees it
 *   other processes' memory           ptrace, process_vm_*, kcmp, pidfd_getfd: a broker has the rights of all its users
 *   identity                          set*id, capset: a broker started by root stays what it is, but can become nobody else
 *   the machine                       mounts (the calls of both generations), namespaces, modules, kexec, bpf, perf, keys, clocks, reboot, swap
 *
 * A namespace can also be asked of clone.  That has its flags in a register, where they are looked at; clone3 has them in memory, which a filter
 * cannot read, so it does not exist here (ENOSYS), and a C library that tries it takes clone instead.
 *
 * The program is written out for the kernel's classic BPF machine; see seccomp(2). */
#include "confine.h"

#include <errno.h>
#include <sched.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "log.h"
#include "seccomp_filter.h"

static void want(int rc, const char *what)
{
    if (rc != 0)
        log_warn("confine_failed", "what=%s errno=%d", what, errno);
}

#ifdef FILTER_ARCH

/* A kernel may be newer than the headers.  From 424 on, a call has one number on all architectures. */
#ifndef SYS_mount_setattr
#define SYS_mount_setattr 442
#endif
#ifndef SYS_open_tree_attr
#define SYS_open_tree_attr 467
#endif

static const int refused[] = {
    SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_kcmp, SYS_pidfd_getfd,
    SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register,
    SYS_setuid, SYS_setgid, SYS_setreuid, SYS_setregid, SYS_setresuid, SYS_setresgid, SYS_setgroups, SYS_setfsuid, SYS_setfsgid,
    SYS_capset, SYS_chroot, SYS_pivot_root, SYS_mount, SYS_umount2, SYS_unshare, SYS_setns, SYS_open_by_handle_at,
    SYS_open_tree, SYS_open_tree_attr, SYS_move_mount, SYS_fsopen, SYS_fsconfig, SYS_fsmount, SYS_fspick, SYS_mount_setattr,
    SYS_init_module, SYS_finit_module, SYS_delete_module, SYS_kexec_load, SYS_kexec_file_load, SYS_bpf, SYS_perf_event_open, SYS_userfaultfd,
    SYS_add_key, SYS_request_key, SYS_keyctl, SYS_settimeofday, SYS_clock_settime, SYS_clock_adjtime, SYS_adjtimex,
    SYS_reboot, SYS_swapon, SYS_swapoff, SYS_acct, SYS_quotactl, SYS_sethostname, SYS_setdomainname, SYS_personality, SYS_syslog,
    SYS_fanotify_init, SYS_vhangup,
#if defined(__x86_64__)
    SYS_ioperm, SYS_iopl, SYS_modify_ldt,
#endif
};
enum { N_REFUSED = sizeof(refused) / sizeof(refused[0]) };

/* CLONE_NEWTIME is not among them: its bit is part of the signal's number in clone, and only unshare and clone3 know it. */
static const unsigned new_namespace =
    CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET;

static void install_filter(void)
{
    struct sock_filter f[2 * N_REFUSED + 24];
    unsigned short n = 0;
    const unsigned refuse = SECCOMP_RET_ERRNO | EPERM;

    f[n++] = filter_load(offsetof(struct seccomp_data, arch));
    f[n++] = filter_if_equal(FILTER_ARCH, 1, 0);
    f[n++] = filter_answer(refuse); /* the calls of another architecture have other numbers */
    f[n++] = filter_load(offsetof(struct seccomp_data, nr));
#if defined(__x86_64__)
    f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000u, 0, 1); /* likewise those of x32 */
    f[n++] = filter_answer(refuse);
#endif
    for (unsigned i = 0; i < N_REFUSED; i++) {
        f[n++] = filter_if_equal((unsigned)refused[i], 0, 1);
        f[n++] = filter_answer(refuse);
    }
    f[n++] = filter_if_equal(SYS_clone3, 0, 1);
    f[n++] = filter_answer(SECCOMP_RET_ERRNO | ENOSYS);
    f[n++] = filter_if_equal(SYS_clone, 0, 4);
    f[n++] = filter_load(offsetof(struct seccomp_data, args[0])); /* the low half: both architectures are little-endian */
    f[n++] = filter_if_any_bit(new_namespace, 0, 1);
    f[n++] = filter_answer(refuse);
    f[n++] = filter_answer(SECCOMP_RET_ALLOW);
    f[n++] = filter_if_equal(SYS_socket, 1, 0);
    f[n++] = filter_answer(SECCOMP_RET_ALLOW);
    f[n++] = filter_load(offsetof(struct seccomp_data, args[0]));
    f[n++] = filter_if_equal(AF_UNIX, 0, 1);
    f[n++] = filter_answer(SECCOMP_RET_ALLOW);
    f[n++] = filter_answer(refuse);

    struct sock_fprog program = { .len = n, .filter = f };
    want((int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program), "seccomp");
}

#else

static void install_filter(void)
{
    log_warn("confine_failed", "what=seccomp reason=not_for_this_build");
}

#endif

void confine_broker(bool core_dumps)
{
    struct rlimit core = { 0, 0 };

    if (core_dumps && getrlimit(RLIMIT_CORE, &core) == 0)
        core.rlim_cur = 0; /* its own no; a worker raises it again */
    want(setrlimit(RLIMIT_CORE, &core), "rlimit_core");
    want(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs");
    install_filter();
}
