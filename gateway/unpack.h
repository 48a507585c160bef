/* unpack.h - an upload as it comes over the line, plain, gzip or zstd, made into plain bytes.  Memory does not grow with it.
 *
 * The first bytes decide: 1f 8b is gzip, 28 b5 2f fd (or a skippable frame) is zstd, anything else is passed on as it is.
 * Several gzip members or zstd frames one after another are one text, as with the gzip and zstd programs.
 * A stream that is damaged, ends early or has something else behind it is refused: nothing is guessed.
 * zstd windows over 8 MiB (--long, --ultra) are refused by name: they would need as much memory here.
 *
 * Pure: no I/O; bytes go to the sink. */
#ifndef UNPACK_H
#define UNPACK_H

#include <stdbool.h>
#include <stdint.h>

#include "error.h"
#include "span.h"
#include "status.h"

enum { UNPACK_WINDOW_LOG_MAX = 23 };

/* Takes some plain bytes, borrowed for the call; anything but ST_OK ends the unpacking with that status, *err set by the sink. */
typedef enum status unpack_sink(void *arg, struct span plain, struct error *err);

struct unpack;

MUST_CHECK enum status unpack_new(unpack_sink *sink, void *arg, struct unpack **ret_unpack); /* ST_OK, ST_NOMEM */
void unpack_free(struct unpack *u);                                                         /* NULL is fine */

/* ST_OK; ST_INVALID (what came is not what it began as), ST_NOMEM, or what the sink said; *err set.  After a failure only
 * unpack_free() is allowed. */
MUST_CHECK enum status unpack_put(struct unpack *u, struct span bytes, struct error *err);
/* The end of the upload.  ST_OK; ST_INVALID: the stream ends early. */
MUST_CHECK enum status unpack_end(struct unpack *u, struct error *err);

/* Would these bytes, the first of an upload (four are enough), be unpacked? */
bool unpack_is_packed(const uint8_t *first, size_t n);

#endif
