/* spawn.c - see spawn.h.  Only async-signal-safe calls between fork and exec: there are no threads here, but it costs nothing. */
#include "spawn.h"

#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

_Noreturn void spawn_become(const int *fds, int n_fds, char *const *argv)
{
    sigset_t none;
    int high[SPAWN_FDS_MAX];

    sigemptyset(&none);
    if (sigprocmask(SIG_SETMASK, &none, NULL) != 0)
        _exit(126);
    for (int i = 0; i < n_fds;
         i++) { /* first out of the way, so that no place is overwritten that is still needed */
        high[i] = fcntl(fds[i], F_DUPFD, 64);
        if (high[i] < 0)
            _exit(126);
    }
    for (int i = 0; i < n_fds; i++) {
        if (dup2(high[i], 3 + i) < 0)
            _exit(126);
        close(high[i]);
    }
    execv("/proc/self/exe", argv);
    _exit(127);
}

pid_t spawn_connection(int sock, int door, int kit, const char *peer)
{
    char title[96];

    snprintf(title, sizeof title, "weir-gateway: %s", peer);
    pid_t pid = fork();
    if (pid == 0) {
        char *argv[] = { title, (char *)(uintptr_t) "connection-process", title + strlen("weir-gateway: "),
                         NULL };
        spawn_become((int[]){ sock, door, kit }, 3, argv);
    }
    return pid;
}
