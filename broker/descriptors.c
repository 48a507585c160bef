/* descriptors.c - see descriptors.h.
 *
 * The kernel gives the lowest descriptor that is free, so one with a high number means that there are as many.  ECONNABORTED is what a listener
 * hears of a peer that left before it was accepted: libzmq and libmicrohttpd go on to the next one. */
#include "descriptors.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "log.h"

static _Atomic uint64_t n_closed; /* connections, since the start */
static uint64_t n_told, tell_due_ns;
static const uint64_t tell_interval_ns = UINT64_C(1000000000);

void descriptors_raise_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

/* May a connection have this descriptor? */
static int is_for_clients(int fd)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return 1;
    rlim_t kept = limit.rlim_cur < 2 * DESCRIPTORS_KEPT ? limit.rlim_cur / 2 : DESCRIPTORS_KEPT;
    return (rlim_t)fd < limit.rlim_cur - kept;
}

/* In the place of the C library's. */
int accept4(int listener, struct sockaddr *restrict address, socklen_t *restrict address_bytes, int flags)
{
    int fd = (int)syscall(SYS_accept4, listener, address, address_bytes, flags);

    if (fd < 0 && (errno == EMFILE || errno == ENOMEM || errno == ENOBUFS))
        errno = ENFILE; /* libzmq lets that pass, and tries again */
    if (fd < 0 || is_for_clients(fd))
        return fd;
    close(fd);
    atomic_fetch_add_explicit(&n_closed, 1, memory_order_relaxed);
    errno = ECONNABORTED;
    return -1;
}

void descriptors_tell(uint64_t now_ns)
{
    uint64_t n = atomic_load_explicit(&n_closed, memory_order_relaxed);

    if (n == n_told || now_ns < tell_due_ns)
        return;
    log_warn("connections_closed", "n=%" PRIu64 " reason=limit_of_descriptors", n - n_told);
    n_told = n;
    tell_due_ns = now_ns + tell_interval_ns;
}
