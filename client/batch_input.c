/* batch_input.c - see batch_input.h.  The buffer holds one line of the largest allowed size, no more. */
#include "batch_input.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client.h"
#include "limits.h"

enum { ROOM = LINE_BYTES_MAX + 2 /* CR and newline */ };

struct batch_input {
    int fd;
    bool own_fd, regular, ended, skipping; /* skipping: in the rest of a line that is too long */
    size_t from, to;                       /* of what was read and not given */
    uint64_t number;                       /* of the last line given */
    char buffer[ROOM];
};

int batch_input_open(const char *path, struct batch_input **ret_input, struct weir_error *err)
{
    bool is_file = strcmp(path, "-") != 0;
    struct batch_input *in = calloc(1, sizeof(*in));
    struct stat s;

    if (in == NULL) {
        weir_error_format(err, ERR_INTERNAL, "", "out of memory");
        return WEIR_FAILED;
    }
    in->fd = is_file ? open(path, O_RDONLY | O_CLOEXEC) : STDIN_FILENO;
    in->own_fd = is_file;
    if (in->fd < 0 || fstat(in->fd, &s) != 0) {
        weir_error_format(err, ERR_NOT_FOUND, "", "cannot read %s: %s", path, strerror(errno));
        goto out;
    }
    if (S_ISDIR(s.st_mode)) {
        weir_error_format(err, ERR_INVALID_REQUEST, "", "%s is a folder", path);
        goto out;
    }
    in->regular = S_ISREG(s.st_mode);
    *ret_input = in;
    return WEIR_OK;
out:
    batch_input_free(in);
    return WEIR_FAILED;
}

void batch_input_free(struct batch_input *in)
{
    if (in == NULL)
        return;
    if (in->own_fd && in->fd >= 0)
        close(in->fd);
    free(in);
}

int batch_input_fd(const struct batch_input *in)
{
    return in->fd;
}

/* Read more behind `to`.  INPUT_LINE: something came. */
static enum batch_input_result fill(struct batch_input *in, struct weir_error *err)
{
    struct pollfd p = {.fd = in->fd, .events = POLLIN};

    if (!in->regular && poll(&p, 1, 0) <= 0)
        return INPUT_WAIT;
    if (in->from > 0) {
        memmove(in->buffer, in->buffer + in->from, in->to - in->from);
        in->to -= in->from;
        in->from = 0;
    }
    ssize_t got = read(in->fd, in->buffer + in->to, ROOM - in->to);
    if (got < 0 && (errno == EINTR || errno == EAGAIN))
        return INPUT_WAIT;
    if (got < 0) {
        weir_error_format(err, ERR_INTERNAL, "", "cannot read the input: %s", strerror(errno));
        return INPUT_BROKEN;
    }
    in->ended = got == 0;
    in->to += (size_t)got;
    return INPUT_LINE;
}

/* A line of n bytes has been found at `from`; take it and the newline behind it. */
static enum batch_input_result take(struct batch_input *in, size_t n, const char **ret_text,
                                    size_t *ret_bytes, uint64_t *ret_number)
{
    bool tail = in->skipping;

    *ret_text = in->buffer + in->from;
    *ret_bytes = n;
    in->from += n + (in->from + n < in->to);
    in->skipping = false;
    if (tail) { /* the end of the long line: it is told now, and only once */
        *ret_number = in->number;
        return INPUT_TOO_LONG;
    }
    *ret_number = ++in->number;
    return n > LINE_BYTES_MAX + 1 ? INPUT_TOO_LONG : INPUT_LINE;
}

enum batch_input_result batch_input_next(struct batch_input *in, const char **ret_text, size_t *ret_bytes,
                                         uint64_t *ret_number, struct weir_error *err)
{
    for (;;) {
        const char *at = in->buffer + in->from, *newline = memchr(at, '\n', in->to - in->from);
        if (newline != NULL)
            return take(in, (size_t)(newline - at), ret_text, ret_bytes, ret_number);
        if (in->ended)
            return in->to > in->from || in->skipping
                       ? take(in, in->to - in->from, ret_text, ret_bytes, ret_number)
                       : INPUT_END;
        if (in->to - in->from == ROOM) { /* full and no end in sight */
            in->number += !in->skipping;
            in->skipping = true;
            in->from = in->to = 0;
        }
        enum batch_input_result filled = fill(in, err);
        if (filled != INPUT_LINE)
            return filled;
    }
}

uint64_t batch_input_count(const struct batch_input *in)
{
    static char block[1 << 16];
    uint64_t n = 0;
    bool something = false;
    ssize_t got;

    if (!in->regular)
        return 0;
    for (off_t at = lseek(in->fd, 0, SEEK_CUR); (got = pread(in->fd, block, sizeof(block), at)) > 0;
         at += got)
        for (ssize_t i = 0; i < got; i++) {
            if (block[i] == '\n') {
                n += something;
                something = false;
            } else if (block[i] != ' ' && block[i] != '\t' && block[i] != '\r') {
                something = true;
            }
        }
    return n + something;
}
