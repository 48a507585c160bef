/* key_options.h - the options before a key in the users file, as in OpenSSH's authorized_keys.  Pure.
 *
 *   from="PATTERNS"            addresses: 192.0.2.7, 192.0.2.*, 2001:db8::/32, !192.0.2.9; a negated match refuses
 *   expiry-time="YYYYMMDD[HHMM[SS]]"  the key is not valid after it (UTC)
 *   restrict, no-pty, no-port-forwarding, no-agent-forwarding, no-X11-forwarding, no-user-rc
 *                              allowed, and change nothing: there is nothing of that here
 *
 * Any other option makes the key refused: an option that restricts must not be overlooked. */
#ifndef KEY_OPTIONS_H
#define KEY_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* May a key with these options log in from this address at this time?  false: *ret_reason is a short constant word for the log. */
bool key_options_allow(const char *options, const char *address, int64_t real_ms, const char **ret_reason);

/* One pattern: 192.0.2.7, 192.0.2.*, 2001:db8::/32. */
bool key_options_address_matches(const char *pattern, const char *address);

#endif
