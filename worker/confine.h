/* confine.h - what a worker process gives up, and how it follows its broker into death. */
#ifndef CONFINE_H
#define CONFINE_H

/* Before the model is loaded: die with the parent, be the first that the kernel kills when memory is short. */
void confine_follow_parent(void);

/* After the model is loaded, before the first request: no core dumps and no ptrace by others of the same user (prompts are
 * in this memory), no new privileges. */
void confine_self(void);

#endif
