/* ini_file.h - reads an INI file entry by entry, with line numbers.  Private to config.c and users.c. */
#ifndef INI_FILE_H
#define INI_FILE_H

#include <stdio.h>

#include "error.h"
#include "status.h"

enum { INI_LINE_BYTES_MAX = 16 << 10 };

struct ini_entry {
    const char *section; /* "" before the first one */
    const char *key;     /* NULL: the section begins here */
    const char *value;   /* without the spaces around it */
    char where[96];      /* "weir.conf:12", for error messages */
};

typedef enum status ini_taker(void *user, const struct ini_entry *e, struct error *err);

/* Call take for every section and entry until it returns something else than ST_OK, which is then returned.
 * name stands in messages.  ST_INVALID with *err: a line that is no entry, is too long, holds a NUL, or is not UTF-8.
 * ST_NOMEM, ST_SYSTEM. */
MUST_CHECK enum status ini_file_read(FILE *file, const char *name, ini_taker *take, void *user, struct error *err);

#endif
