/* curve_key.h - CURVE keys: their text, and the file that holds a pair.
 *
 *   # a key of alice for a Weir pool: whoever has this file is alice
 *   name = alice
 *   public-key = 64 hexadecimal digits
 *   secret-key = 64 hexadecimal digits
 *   server-key = 64 hexadecimal digits        (absent in the broker's own file)
 *
 * The file has mode 0600.  One that others may read is refused, not used with a warning: its secret is no secret.
 * Everywhere a key is read, Z85 (40 characters, what ZeroMQ's tools write) is taken as well; hexadecimal is what Weir writes, because Z85 has
 * characters that shells take for themselves. */
#ifndef CURVE_KEY_H
#define CURVE_KEY_H

#include <stdbool.h>
#include <stdint.h>

#include "error.h"
#include "span.h"
#include "status.h"

enum { CURVE_KEY_BYTES = 32, CURVE_TEXT_BYTES = 2 * CURVE_KEY_BYTES + 1 };

struct curve_pair {
    uint8_t public_key[CURVE_KEY_BYTES], secret_key[CURVE_KEY_BYTES];
    uint8_t server_key[CURVE_KEY_BYTES];
    bool has_server_key;
};

/* Hexadecimal or Z85.  ST_OK or ST_INVALID. */
MUST_CHECK enum status curve_key_parse(struct span text, uint8_t ret_key[CURVE_KEY_BYTES]);
void curve_key_format(const uint8_t key[CURVE_KEY_BYTES], char ret_text[CURVE_TEXT_BYTES]);

/* Read a key file.  ST_OK; ST_NOT_FOUND, ST_INVALID (mode, owner, contents), ST_SYSTEM with *err, which names the file. */
MUST_CHECK enum status curve_pair_load(const char *path, struct curve_pair *ret_pair, struct error *err);
/* Draw a pair and write it to a new file; name and server_key may be NULL.  ST_OK; ST_INVALID (there is such a file), ST_UNSUPPORTED
 * (a libzmq without CURVE), ST_SYSTEM with *err; then there is no file. */
MUST_CHECK enum status curve_pair_make(const char *path, const char *name, const uint8_t *server_key, struct curve_pair *ret_pair,
                                       struct error *err);
/* Overwrite the secret. */
void curve_pair_forget(struct curve_pair *p);

#endif
