/* line_scanner.h - the lines of a file, one after another, with their number and place; memory does not grow with the file.
 *
 * A line ends at a newline or at the end of the file; the newline is not part of it, a carriage return before it is (the
 * line parser takes it).  The number counts every line, also blank ones.  Bytes are bytes: nothing is decoded here. */
#ifndef LINE_SCANNER_H
#define LINE_SCANNER_H

#include <stdbool.h>
#include <stdint.h>

#include "limits.h"
#include "span.h"
#include "status.h"

struct line_scanner {
    int fd;                /* borrowed */
    uint64_t at;           /* in the file: of the first byte in the buffer */
    uint8_t *buffer;
    size_t start, n;       /* the buffer holds bytes start .. n */
    uint32_t number;       /* of the last line given */
    bool end;              /* the file has been read to its end */
};

struct scanned_line {
    struct span text;      /* valid until the next call; empty when too_long */
    uint64_t offset, bytes;/* where in the file, without the newline */
    uint32_t number;
    bool too_long;         /* over LINE_BYTES_MAX; the rest was skipped */
};

MUST_CHECK enum status line_scanner_init(struct line_scanner *s, int fd);
void line_scanner_deinit(struct line_scanner *s);

/* ST_OK; ST_NOT_FOUND: no more lines; ST_SYSTEM: reading failed. */
MUST_CHECK enum status line_scanner_next(struct line_scanner *s, struct scanned_line *ret_line);

#endif
