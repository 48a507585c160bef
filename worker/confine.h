/* confine.h - what a worker process gives up, and how it follows its broker into death. */
#ifndef CONFINE_H
#define CONFINE_H

#include <stdbool.h>

/* Before the model is loaded: die with the parent, be the first that the kernel kills when memory is short. */
void confine_follow_parent(void);

/* After the model is loaded and every thread is there, before the first request: no core dumps and no ptrace by others of the same
 * user (prompts are in this memory) unless core_dumps asks for them, as large as the inherited limit lets them be; no new privileges;
 * and, with filter, a seccomp filter on all threads under which files and sockets cannot be opened, programs cannot be started, and
 * memory cannot be made executable: such calls fail with EPERM.
 * A GPU's driver needs calls of its own, so a worker on a GPU goes without the filter. */
void confine_self(bool filter, bool core_dumps);

#endif
