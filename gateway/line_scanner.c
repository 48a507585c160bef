/* line_scanner.c - one buffer that holds a whole line of the longest kind; what is left of it moves to the front when more is read. */
#include "line_scanner.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { READ_BYTES = 256 << 10, BUFFER_BYTES = LINE_BYTES_MAX + 1 + READ_BYTES };

enum status line_scanner_init(struct line_scanner *s, int fd)
{
    *s = (struct line_scanner){ .fd = fd, .buffer = malloc(BUFFER_BYTES) };
    return s->buffer != NULL ? ST_OK : ST_NOMEM;
}

void line_scanner_deinit(struct line_scanner *s)
{
    free(s->buffer);
    s->buffer = NULL;
}

/* Read more behind what is there.  There is room for READ_BYTES, or becomes so by moving. */
static enum status fill(struct line_scanner *s)
{
    if (BUFFER_BYTES - s->n < READ_BYTES) {
        memmove(s->buffer, s->buffer + s->start, s->n - s->start);
        s->at += s->start;
        s->n -= s->start;
        s->start = 0;
    }
    for (;;) {
        ssize_t n =
            pread(s->fd, s->buffer + s->n,
                  BUFFER_BYTES - s->n < READ_BYTES ? BUFFER_BYTES - s->n : READ_BYTES, (off_t)(s->at + s->n));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return ST_SYSTEM;
        s->end = n == 0;
        s->n += (size_t)n;
        return ST_OK;
    }
}

/* A line longer than the limit: count its bytes up to the newline, keep none. */
static enum status skip_long(struct line_scanner *s, struct scanned_line *line)
{
    uint64_t offset = s->at + s->start, bytes = 0;

    for (;;) {
        uint8_t *newline = memchr(s->buffer + s->start, '\n', s->n - s->start);
        size_t part = newline != NULL ? (size_t)(newline - (s->buffer + s->start)) : s->n - s->start;
        bytes += part;
        s->start += part + (newline != NULL);
        if (newline != NULL)
            break;
        enum status st = fill(s);
        if (st != ST_OK)
            return st;
        if (s->end)
            break;
    }
    *line = (struct scanned_line){
        .text = span_of("", 0), .offset = offset, .bytes = bytes, .number = ++s->number, .too_long = true
    };
    return ST_OK;
}

enum status line_scanner_next(struct line_scanner *s, struct scanned_line *ret_line)
{
    size_t searched = 0;

    for (;;) {
        size_t have = s->n - s->start;
        uint8_t *newline =
            have > searched ? memchr(s->buffer + s->start + searched, '\n', have - searched) : NULL;
        if (newline != NULL || (s->end && have > 0)) {
            size_t bytes = newline != NULL ? (size_t)(newline - (s->buffer + s->start)) : have;
            if (bytes > LINE_BYTES_MAX)
                return skip_long(s, ret_line);
            *ret_line = (struct scanned_line){ .text = span_of(s->buffer + s->start, bytes),
                                               .offset = s->at + s->start,
                                               .bytes = bytes,
                                               .number = ++s->number };
            s->start += bytes + (newline != NULL);
            return ST_OK;
        }
        if (s->end)
            return ST_NOT_FOUND;
        if (have > LINE_BYTES_MAX)
            return skip_long(s, ret_line);
        searched = have;
        enum status st = fill(s);
        if (st != ST_OK)
            return st;
    }
}
