/* beneath.c - see beneath.h. */
#include "beneath.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

int beneath_open(int folder, const char *name, int flags, mode_t mode)
{
    struct open_how how = { .flags = (unsigned)(flags | O_CLOEXEC | O_NOFOLLOW),
                            .mode = flags & O_CREAT ? mode : 0,
                            .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV };
    long fd = syscall(SYS_openat2, folder, name, &how, sizeof how);

    if (fd < 0 && (errno == ENOSYS || errno == EPERM)) /* older kernels, strict containers: a word without a slash leads nowhere either */
        fd = openat(folder, name, flags | O_CLOEXEC | O_NOFOLLOW, mode);
    return (int)fd;
}

/* One folder, made if it is missing and make is set. */
static int step_into(int at, const char *name, bool make)
{
    if (make && mkdirat(at, name, 0700) == 0) {
        if (fsync(at) != 0)
            return -1;
    } else if (make && errno != EEXIST) {
        return -1;
    }
    return beneath_open(at, name, O_RDONLY | O_DIRECTORY, 0);
}

int beneath_folder(int at, const char *const *names, size_t n, bool make)
{
    int folder = at;

    for (size_t i = 0; i < n; i++) {
        int next = step_into(folder, names[i], make), saved = errno;
        if (folder != at)
            close(folder);
        errno = saved;
        if (next < 0)
            return -1;
        folder = next;
    }
    return folder;
}
