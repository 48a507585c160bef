/* user_command.h - between the files of `weir user`. */
#ifndef USER_COMMAND_H
#define USER_COMMAND_H

#include "gateway.h"
#include "users.h"

/* `weir user usage`: CSV on standard output; the exit code. */
int user_usage_run(const struct gateway_places *places, const struct users *u);

/* `user add NAME --from-authorized-keys`: every key of the account's authorized_keys that can be used here, and its uid.  A line that cannot be
 * used is named on standard error by its number and left out.  The file is read as that account: what it may not read, root does not read for it.
 * Adds to *n_keys.  ST_OK; anything else with *err set: no such account or file, or not one key in it. */
MUST_CHECK enum status user_add_account(struct users *u, const char *name, unsigned *n_keys, struct error *err);

#endif
