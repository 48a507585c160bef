/* host_keys.h - the keys this server is known by: ed25519 and 3072-bit RSA, made at the first start, mode 0600. */
#ifndef HOST_KEYS_H
#define HOST_KEYS_H

#include <stdbool.h>

#include "config.h"
#include "error.h"
#include "status.h"

struct host_keys {
    char *ed25519, *rsa; /* private keys as text */
};

/* Read the keys of the state folder, making those that are missing; logs their fingerprints.
 * ST_OK; ST_INVALID: a file is unreadable, not ours or open to others; ST_SYSTEM.  *err says which. */
MUST_CHECK enum status host_keys_load(const char *state_dir, struct host_keys *ret_keys, struct error *err);
bool host_keys_exist(const char *state_dir); /* both files are there */
void host_keys_deinit(struct host_keys *k); /* wipes them */

/* What every connection process reads at FD_KIT: the keys and what is configured for it, in a sealed memfd.  ST_OK, ST_SYSTEM. */
MUST_CHECK enum status host_keys_kit(const struct host_keys *keys, const struct config *c, int *ret_fd);

#endif
