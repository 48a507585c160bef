/* byte_writer.h - bytes put one behind another into a buffer of the caller's.
 *
 * A writer that runs out of room is `failed` and takes nothing more: look once, at the end.  What numbers and strings look like is said by
 * those who put them: door.h (messages between processes), sftp_packet.h. */
#ifndef BYTE_WRITER_H
#define BYTE_WRITER_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "span.h"

struct byte_writer {
    uint8_t *at;
    size_t n, capacity;
    bool failed;
};

static inline void byte_writer_put(struct byte_writer *w, const void *bytes, size_t n)
{
    if (w->failed || n > w->capacity - w->n) {
        w->failed = true;
        return;
    }
    if (n > 0)
        memcpy(w->at + w->n, bytes, n);
    w->n += n;
}

static inline struct span byte_writer_written(const struct byte_writer *w)
{
    return span_of(w->at, w->n);
}

#endif
