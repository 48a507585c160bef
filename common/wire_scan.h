/* wire_scan.h - walks the raw bytes of a msgpack message before anything is allocated for it. */
#ifndef WIRE_SCAN_H
#define WIRE_SCAN_H

#include "error.h"
#include "span.h"
#include "status.h"

struct wire_scan {
    struct span ext;          /* the packed value of the top-level key "ext"; empty when there is none */
    bool bad_utf8;            /* a string is not UTF-8: the structure is sound, so the request's id can still be read */
    struct span bad_field;    /* the top-level key it stands in; empty when it is the key itself */
    size_t bad_byte;          /* where in that string */
};

/* One whole map, nothing after it, within FRAME_BYTES_MAX, FRAME_NESTING_MAX and FRAME_ITEMS_MAX, and every announced length is
 * there.  Allocates nothing, looks at every byte of a header once.
 * ST_OK; ST_INVALID, ST_LIMIT with *err set. */
MUST_CHECK enum status wire_scan(struct span frame, struct wire_scan *ret_scan, struct error *err);

#endif
