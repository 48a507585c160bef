/* pending.h - keys that were lately offered at the door and are nobody's: for `weir user pending`, so that they can be let in by their fingerprint.
 *
 * Kept by (b) in memory, 64 at most, the oldest goes first; at most 8 of one address, so that one stranger does not push out the others.
 * Written to STATE/pending (a line each: milliseconds, address, type, base64) for the administrator's command.  Offering a key proves nothing:
 * the fingerprint has to be compared with the person's. */
#ifndef PENDING_H
#define PENDING_H

#include <stdbool.h>
#include <stdint.h>

#include "status.h"

enum { PENDING_MAX = 64, PENDING_OF_ADDRESS_MAX = 8, PENDING_BLOB_BYTES = 2048 };

struct pending_key {
    int64_t real_ms;               /* last time */
    char address[64], type[64], blob[PENDING_BLOB_BYTES];
};

struct pending {
    struct pending_key keys[PENDING_MAX];
    unsigned n;
    bool changed;                  /* since it was written */
    int64_t written_ms;
};

/* Strings with a blank or a control character inside, and longer ones than fit, are not kept. */
void pending_add(struct pending *p, const char *address, const char *type, const char *blob, int64_t real_ms);
/* Write the file anew if there is something new and the last time is a second ago.  A failure is logged, and tried again. */
void pending_write(struct pending *p, const char *path, int64_t real_ms);
/* ST_OK (also when there is no file), ST_SYSTEM.  Lines that cannot be read are left out. */
MUST_CHECK enum status pending_read(const char *path, struct pending *ret_pending);

#endif
