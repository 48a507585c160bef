/* user_key.h - one line of an authorized_keys file, taken apart.  Private to users.c. */
#ifndef USER_KEY_H
#define USER_KEY_H

#include "users.h"

/* `[options] type base64 [comment]`.  The blob has to be base64 of a key of that type.  Gives the caller the strings of
 * *ret_key.  where: for err->param.  ST_OK, ST_INVALID, ST_UNSUPPORTED (type or option),
 * ST_LIMIT (longer than USER_KEY_LINE_BYTES_MAX) with *err, ST_NOMEM. */
MUST_CHECK enum status user_key_parse(const char *line, const char *where, struct user_key *ret_key, struct error *err);
void user_key_deinit(struct user_key *k);

#endif
