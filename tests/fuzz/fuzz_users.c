/* fuzz_users.c - any bytes as a users file.  Target: users_load; what loads is saved and has to load again as much. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "users.h"

int LLVMFuzzerTestOneInput(const uint8_t *at, size_t n);

static void save_again(const struct users *u)
{
    char path[64];
    struct users again = { 0 };
    struct error err;

    snprintf(path, sizeof(path), "/dev/shm/weir-fuzz-users-%d", (int)getpid());
    if (users_save(path, u, &err) != ST_OK || users_load(path, &again, &err) != ST_OK || again.n != u->n ||
        again.n_groups != u->n_groups)
        abort();
    for (uint32_t i = 0; i < u->n; i++)
        if (again.list[i].n_keys != u->list[i].n_keys || again.list[i].uid != u->list[i].uid ||
            again.list[i].n_curve != u->list[i].n_curve || strcmp(again.list[i].group, u->list[i].group) != 0)
            abort();
    users_deinit(&again);
    unlink(path);
}

int LLVMFuzzerTestOneInput(const uint8_t *at, size_t n)
{
    char path[64];
    struct users u = { 0 };
    struct error err;
    int fd = memfd_create("users", MFD_CLOEXEC);

    if (fd < 0 || write(fd, at, n) != (ssize_t)n || fchmod(fd, 0600) < 0)
        abort();
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (users_load(path, &u, &err) == ST_OK)
        save_again(&u);
    users_deinit(&u);
    close(fd);
    return 0;
}
