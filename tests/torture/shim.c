/* shim.c - one failing system call or allocation, in a program that was not built for it (LD_PRELOAD).
 *
 * Every call that the program itself makes to one of the functions below has a site: the name of the function and the place it was called
 * from.  A run with TORTURE_LIST writes each site it comes by; a run with TORTURE_SITE makes the call there fail, once.  So "every call fails
 * once" is a run for each site, not for each of millions of calls; and calls inside libraries (libzmq aborts by its own
 * decision when it has no memory) are left alone, because the return address is not in the program.
 *
 *   TORTURE_PROGRAM  the name of the program that is meant; its children are others
 *   TORTURE_LIST     file to which new sites are appended
 *   TORTURE_SITE     "read+0x1234": where; TORTURE_NTH: at the how-manieth call there (1)
 *   TORTURE_TOKEN    a FIFO with one byte in it, which whoever fails takes: one failure in all processes together.  It is opened at once, so a
 *                    process that may open no file any more can fail too
 *   TORTURE_REPORT   file that gets, at the end, how many allocations of the program were not freed and how many descriptors are open
 *
 * The C library's own allocator is reached by its names with __libc_, so nothing here needs memory. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t m);
extern void *__libc_realloc(void *p, size_t n);
extern void *__libc_memalign(size_t alignment, size_t n);
extern void __libc_free(void *p);

enum { SITES = 8192, SITE_BYTES = 64, LIVE = 1 << 20 };

static uintptr_t text_begin, text_end, base;
static bool active;
static int list_fd = -1;
static char wanted[SITE_BYTES];
static int token_fd = -1;
static long nth = 1;
static _Atomic long hits;
static _Atomic uintptr_t seen[SITES];
static _Atomic uintptr_t live[LIVE]; /* allocations of the program, by hash */

static int find_text(struct dl_phdr_info *info, size_t n, void *arg)
{
    (void)n, (void)arg;
    base = info->dlpi_addr;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_LOAD && (info->dlpi_phdr[i].p_flags & PF_X) != 0) {
            text_begin = base + info->dlpi_phdr[i].p_vaddr;
            text_end = text_begin + info->dlpi_phdr[i].p_memsz;
        }
    return 1; /* the program is the first */
}

/* Opened, far above what the program counts on. */
static int open_high(const char *path, int flags)
{
    int fd = path != NULL ? (int)syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, 0600) : -1;
    int high = fd >= 0 ? (int)syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 900) : -1;

    if (high >= 0)
        syscall(SYS_close, fd);
    return high >= 0 ? high : fd;
}

__attribute__((constructor)) static void begin(void)
{
    char path[4096];
    const char *program = getenv("TORTURE_PROGRAM"), *list = getenv("TORTURE_LIST"), *site = getenv("TORTURE_SITE");
    ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);

    if (n <= 0 || program == NULL)
        return;
    path[n] = '\0';
    if (strcmp(strrchr(path, '/') + 1, program) != 0)
        return;
    dl_iterate_phdr(find_text, NULL);
    token_fd = open_high(getenv("TORTURE_TOKEN"), O_RDWR | O_NONBLOCK);
    if (getenv("TORTURE_NTH") != NULL)
        nth = atol(getenv("TORTURE_NTH"));
    if (site != NULL)
        snprintf(wanted, sizeof(wanted), "%s", site);
    list_fd = open_high(list, O_WRONLY | O_CREAT | O_APPEND);
    active = true;
}

/* --- what is left ------------------------------------------------------------------------------ */

static size_t place_of(uintptr_t p)
{
    return (size_t)((p >> 4) * 0x9E3779B97F4A7C15u >> 44) % LIVE;
}

static void note(void *p)
{
    if (p == NULL)
        return;
    for (size_t i = place_of((uintptr_t)p), k = 0; k < 64; k++, i = (i + 1) % LIVE) {
        uintptr_t none = 0;
        if (atomic_compare_exchange_strong(&live[i], &none, (uintptr_t)p))
            return;
    }
}

static bool forget(void *p)
{
    for (size_t i = place_of((uintptr_t)p), k = 0; p != NULL && k < 64; k++, i = (i + 1) % LIVE) {
        uintptr_t it = (uintptr_t)p;
        if (atomic_compare_exchange_strong(&live[i], &it, 0))
            return true;
    }
    return false;
}

__attribute__((destructor)) static void finish(void)
{
    const char *report = getenv("TORTURE_REPORT");
    unsigned n_live = 0, n_fds = 0;

    if (!active || report == NULL)
        return;
    for (size_t i = 0; i < LIVE; i++)
        n_live += atomic_load(&live[i]) != 0;
    for (int fd = 0; fd < 900; fd++)
        n_fds += syscall(SYS_fcntl, fd, F_GETFD) >= 0;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, report, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    char text[64];
    int n = snprintf(text, sizeof(text), "%u %u\n", n_live, n_fds);
    if (fd >= 0 && syscall(SYS_write, fd, text, n) == n)
        syscall(SYS_close, fd);
}

/* --- which call fails --------------------------------------------------------------------------- */

static size_t write_site(char text[SITE_BYTES], const char *name, uintptr_t at)
{
    static const char digits[] = "0123456789abcdef";
    size_t n = 0;
    int shift = 44;

    while (*name != '\0')
        text[n++] = *name++;
    text[n++] = '+';
    text[n++] = '0';
    text[n++] = 'x';
    while (shift > 0 && (at >> shift & 15) == 0)
        shift -= 4;
    for (; shift >= 0; shift -= 4)
        text[n++] = digits[at >> shift & 15];
    text[n] = '\0';
    return n;
}

/* Is this call to fail? */
static bool fails(const char *name, void *from)
{
    uintptr_t at = (uintptr_t)from;
    char site[SITE_BYTES + 1];
    int problem = errno;

    if (!active || at < text_begin || at >= text_end)
        return false;
    if (list_fd >= 0) {
        size_t i = (at * 31 + (uintptr_t)name) % SITES;
        uintptr_t none = 0, key = at ^ (uintptr_t)name;
        while (atomic_load(&seen[i]) != 0 && atomic_load(&seen[i]) != key)
            i = (i + 1) % SITES;
        if (atomic_compare_exchange_strong(&seen[i], &none, key)) {
            size_t n = write_site(site, name, at - base);
            site[n] = '\n';
            (void)!syscall(SYS_write, list_fd, site, n + 1);
        }
        errno = problem;
        return false;
    }
    if (wanted[0] == '\0')
        return false;
    write_site(site, name, at - base);
    if (strcmp(site, wanted) != 0 || atomic_fetch_add(&hits, 1) + 1 != nth)
        return false;
    char byte;
    bool mine = token_fd >= 0 && syscall(SYS_read, token_fd, &byte, 1) == 1;
    errno = problem;
    return mine;
}

#define HERE __builtin_return_address(0)

/* WRAP(name, result on failure, errno, type, parameters, arguments) */
#define WRAP(name, bad, problem, type, parameters, arguments)             \
    type name parameters;                                                 \
    type name parameters                                                  \
    {                                                                     \
        static type (*real) parameters;                                   \
        if (real == NULL)                                                 \
            *(void **)&real = dlsym(RTLD_NEXT, #name);                    \
        if (fails(#name, HERE)) {                                         \
            errno = problem;                                              \
            return bad;                                                   \
        }                                                                 \
        return real arguments;                                            \
    }

/* --- memory -------------------------------------------------------------------------------------- */

static bool is_ours(void *from)
{
    return active && (uintptr_t)from >= text_begin && (uintptr_t)from < text_end;
}

void *malloc(size_t n)
{
    if (fails("malloc", HERE)) {
        errno = ENOMEM;
        return NULL;
    }
    void *p = __libc_malloc(n);
    if (is_ours(HERE))
        note(p);
    return p;
}

void *calloc(size_t n, size_t m)
{
    if (fails("calloc", HERE)) {
        errno = ENOMEM;
        return NULL;
    }
    void *p = __libc_calloc(n, m);
    if (is_ours(HERE))
        note(p);
    return p;
}

void *realloc(void *old, size_t n)
{
    if (fails("realloc", HERE)) {
        errno = ENOMEM;
        return NULL;
    }
    bool known = forget(old);
    void *p = __libc_realloc(old, n);
    if (p == NULL && n > 0 && known)
        note(old);
    else if (is_ours(HERE))
        note(p);
    return p;
}

void free(void *p)
{
    if (active)
        forget(p);
    __libc_free(p);
}

void *aligned_alloc(size_t alignment, size_t n)
{
    if (fails("aligned_alloc", HERE)) {
        errno = ENOMEM;
        return NULL;
    }
    void *p = __libc_memalign(alignment, n);
    if (is_ours(HERE))
        note(p);
    return p;
}

int posix_memalign(void **ret, size_t alignment, size_t n)
{
    if (fails("posix_memalign", HERE))
        return ENOMEM;
    void *p = __libc_memalign(alignment, n);
    if (p == NULL)
        return ENOMEM;
    if (is_ours(HERE))
        note(p);
    *ret = p;
    return 0;
}

static char *copy(const char *s, size_t n)
{
    char *p = __libc_malloc(n + 1);
    if (p != NULL) {
        memcpy(p, s, n);
        p[n] = '\0';
    }
    return p;
}

#undef strdup
#undef strndup
char *strdup(const char *s)
{
    if (fails("strdup", HERE)) {
        errno = ENOMEM;
        return NULL;
    }
    char *p = copy(s, strlen(s));
    if (is_ours(HERE))
        note(p);
    return p;
}

char *strndup(const char *s, size_t n)
{
    if (fails("strndup", HERE)) {
        errno = ENOMEM;
        return NULL;
    }
    char *p = copy(s, strnlen(s, n));
    if (is_ours(HERE))
        note(p);
    return p;
}

WRAP(mmap, MAP_FAILED, ENOMEM, void *, (void *at, size_t n, int prot, int flags, int fd, off_t offset), (at, n, prot, flags, fd, offset))
WRAP(open_memstream, NULL, ENOMEM, FILE *, (char **at, size_t *n), (at, n))

/* --- files and descriptors ------------------------------------------------------------------------ */

int open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(args, int) : 0;
    va_end(args);
    if (fails("open", HERE)) {
        errno = EMFILE;
        return -1;
    }
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int openat(int folder, const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(args, int) : 0;
    va_end(args);
    if (fails("openat", HERE)) {
        errno = EMFILE;
        return -1;
    }
    return (int)syscall(SYS_openat, folder, path, flags, mode);
}

int fcntl(int fd, int command, ...)
{
    va_list args;
    va_start(args, command);
    void *arg = va_arg(args, void *);
    va_end(args);
    if (fails("fcntl", HERE)) {
        errno = EMFILE;
        return -1;
    }
    return (int)syscall(SYS_fcntl, fd, command, arg);
}

WRAP(fopen, NULL, EMFILE, FILE *, (const char *path, const char *mode), (path, mode))
WRAP(fdopen, NULL, ENOMEM, FILE *, (int fd, const char *mode), (fd, mode))
WRAP(read, -1, EIO, ssize_t, (int fd, void *at, size_t n), (fd, at, n))
WRAP(pread, -1, EIO, ssize_t, (int fd, void *at, size_t n, off_t offset), (fd, at, n, offset))
WRAP(write, -1, ENOSPC, ssize_t, (int fd, const void *at, size_t n), (fd, at, n))
WRAP(fstat, -1, EIO, int, (int fd, struct stat *s), (fd, s))
WRAP(stat, -1, EIO, int, (const char *path, struct stat *s), (path, s))
WRAP(ftruncate, -1, EIO, int, (int fd, off_t n), (fd, n))
WRAP(fallocate, -1, ENOSPC, int, (int fd, int mode, off_t offset, off_t n), (fd, mode, offset, n))
WRAP(fsync, -1, EIO, int, (int fd), (fd))
WRAP(fdatasync, -1, EIO, int, (int fd), (fd))
WRAP(mkdir, -1, ENOSPC, int, (const char *path, mode_t mode), (path, mode))
WRAP(rename, -1, ENOSPC, int, (const char *a, const char *b), (a, b))
WRAP(dup, -1, EMFILE, int, (int fd), (fd))
WRAP(dup2, -1, EMFILE, int, (int fd, int to), (fd, to))
WRAP(pipe2, -1, EMFILE, int, (int fds[2], int flags), (fds, flags))
WRAP(memfd_create, -1, EMFILE, int, (const char *name, unsigned flags), (name, flags))
WRAP(eventfd, -1, EMFILE, int, (unsigned n, int flags), (n, flags))
WRAP(signalfd, -1, EMFILE, int, (int fd, const sigset_t *set, int flags), (fd, set, flags))
WRAP(epoll_create1, -1, EMFILE, int, (int flags), (flags))
WRAP(epoll_ctl, -1, ENOMEM, int, (int e, int op, int fd, struct epoll_event *event), (e, op, fd, event))
WRAP(epoll_wait, -1, EINTR, int, (int e, struct epoll_event *events, int n, int ms), (e, events, n, ms))
WRAP(poll, -1, EINTR, int, (struct pollfd *p, nfds_t n, int ms), (p, n, ms))
WRAP(socket, -1, EMFILE, int, (int domain, int type, int protocol), (domain, type, protocol))
WRAP(socketpair, -1, EMFILE, int, (int domain, int type, int protocol, int fds[2]), (domain, type, protocol, fds))
WRAP(connect, -1, EAGAIN, int, (int fd, const struct sockaddr *to, socklen_t n), (fd, to, n))
WRAP(bind, -1, EADDRINUSE, int, (int fd, const struct sockaddr *to, socklen_t n), (fd, to, n))
WRAP(send, -1, EPIPE, ssize_t, (int fd, const void *at, size_t n, int flags), (fd, at, n, flags))
WRAP(recv, -1, ECONNRESET, ssize_t, (int fd, void *at, size_t n, int flags), (fd, at, n, flags))
WRAP(sendmsg, -1, EPIPE, ssize_t, (int fd, const struct msghdr *m, int flags), (fd, m, flags))
WRAP(recvmsg, -1, ECONNRESET, ssize_t, (int fd, struct msghdr *m, int flags), (fd, m, flags))

/* --- processes ----------------------------------------------------------------------------------- */

WRAP(fork, -1, EAGAIN, pid_t, (void), ())
WRAP(pidfd_open, -1, EMFILE, int, (pid_t pid, unsigned flags), (pid, flags))
WRAP(pthread_create, EAGAIN, EAGAIN, int, (pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *arg), (t, a, f, arg))
WRAP(getrandom, -1, EINTR, ssize_t, (void *at, size_t n, unsigned flags), (at, n, flags))
WRAP(sigprocmask, -1, EINVAL, int, (int how, const sigset_t *set, sigset_t *old), (how, set, old))

/* --- ZeroMQ: what it reports rather than aborts on ------------------------------------------------ */

WRAP(zmq_ctx_new, NULL, EMFILE, void *, (void), ())
WRAP(zmq_socket, NULL, EMFILE, void *, (void *context, int type), (context, type))
WRAP(zmq_bind, -1, EADDRINUSE, int, (void *socket, const char *uri), (socket, uri))
WRAP(zmq_connect, -1, EMFILE, int, (void *socket, const char *uri), (socket, uri))
WRAP(zmq_send, -1, EAGAIN, int, (void *socket, const void *at, size_t n, int flags), (socket, at, n, flags))
WRAP(zmq_recv, -1, EINTR, int, (void *socket, void *at, size_t n, int flags), (socket, at, n, flags))
WRAP(zmq_msg_recv, -1, EINTR, int, (void *m, void *socket, int flags), (m, socket, flags))
WRAP(zmq_msg_init_size, -1, ENOMEM, int, (void *m, size_t n), (m, n))
WRAP(zmq_msg_send, -1, EINTR, int, (void *m, void *socket, int flags), (m, socket, flags))
WRAP(zmq_poll, -1, EINTR, int, (void *items, int n, long ms), (items, n, ms))
WRAP(zmq_socket_monitor, -1, EMFILE, int, (void *socket, const char *uri, int events), (socket, uri, events))
WRAP(zmq_curve_keypair, -1, ENOTSUP, int, (char *public, char *secret), (public, secret))
