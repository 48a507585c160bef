/* spawn.h - starting a process of this program, or of another, with nothing open but what it is to have. */
#ifndef SPAWN_H
#define SPAWN_H

#include <sys/types.h>

enum { SPAWN_FDS_MAX = 4 };

/* In a forked child: put descriptors at their places (fds[i] at 3 + i) and become another process of this program. */
_Noreturn void spawn_become(const int *fds, int n_fds, char *const *argv);

/* The process of a connection: FD_CLIENT, FD_DOOR, FD_KIT.  Gives its pid, -1 when there can be none. */
pid_t spawn_connection(int sock, int door, int kit, const char *peer);

#endif
