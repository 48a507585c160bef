/* over_ssh.h - verbs of the ssh gateway, said to `weir` on the box: jobs, and whatever else belongs to a person and a key.
 *
 * They become `ssh -p PORT HOST VERB ...` to the gateway of this machine, so there is one implementation of them, one way in, and one user
 * to whom a job belongs, whichever way it is asked for.  PORT is WEIR_SSH_PORT (2222), HOST is WEIR_SSH_HOST (localhost). */
#ifndef OVER_SSH_H
#define OVER_SSH_H

#include <stdbool.h>
#include <stddef.h>

/* Is it a verb of the gateway that `weir` has not of its own? */
bool over_ssh_has(const char *verb);
/* Their names; *ret_n of them. */
const char *const *over_ssh_verbs(size_t *ret_n);

/* The command that ssh passes on: verb and words, each so quoted that the gateway takes it for the word it is.  free() it; NULL: no memory. */
char *over_ssh_command(const char *verb, int n_words, char *const *words);

/* Becomes ssh.  Returns only when that failed: an exit code. */
int over_ssh(const char *verb, int n_words, char *const *words);

#endif
