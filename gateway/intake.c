/* intake.c - see intake.h. */
#include "intake.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "connection.h"

enum { SYNC_BYTES = 16 << 20 };

struct intake {
    struct unpack *unpack;
    struct convert *convert;
    int spool;
    uint64_t bytes, synced_bytes, bytes_max; /* of the spool */
};

static enum status write_failed(int error, struct error *err)
{
    error_set(err, error == ENOSPC || error == EDQUOT ? ERR_LIMIT_EXCEEDED : ERR_INTERNAL, NULL,
              "the input cannot be written to disk: %s; nothing was submitted", strerror(error));
    return ST_SYSTEM;
}

static enum status converted(void *arg, struct span data, struct error *err)
{
    struct intake *k = arg;

    if (data.n > k->bytes_max - k->bytes) {
        error_set(err, ERR_LIMIT_EXCEEDED, "max-job-bytes",
                  "the input, unpacked and made into job lines, is over the limit of %llu bytes; nothing was submitted",
                  (unsigned long long)k->bytes_max);
        return ST_LIMIT;
    }
    while (data.n > 0) {
        ssize_t n = write(k->spool, data.at, data.n);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return write_failed(n < 0 ? errno : EIO, err);
        data = span_of(data.at + n, data.n - (size_t)n);
        k->bytes += (size_t)n;
    }
    if (k->bytes - k->synced_bytes >= SYNC_BYTES) {
        if (fdatasync(k->spool) != 0)
            return write_failed(errno, err);
        k->synced_bytes = k->bytes;
        connection_wind_watchdog(); /* a part of a known end: what expands is work, not a loop gone wild */
    }
    return ST_OK;
}

static enum status unpacked(void *arg, struct span data, struct error *err)
{
    struct intake *k = arg;

    return convert_put(k->convert, data, err);
}

enum status intake_new(enum convert_mode mode, const char *template, bool chat, struct intake **ret_intake, struct error *err)
{
    struct intake *k = calloc(1, sizeof *k);
    enum status st = ST_NOMEM;

    error_set(err, ERR_INTERNAL, NULL, "out of memory");
    if (k == NULL)
        return st;
    k->spool = -1;
    st = unpack_new(unpacked, k, &k->unpack);
    if (st == ST_OK)
        st = convert_new(mode, template, chat, converted, k, &k->convert, err);
    if (st != ST_OK) {
        intake_free(k);
        return st;
    }
    *ret_intake = k;
    return ST_OK;
}

void intake_free(struct intake *k)
{
    if (k == NULL)
        return;
    if (k->spool >= 0)
        close(k->spool);
    unpack_free(k->unpack);
    convert_free(k->convert);
    free(k);
}

enum status intake_open(struct intake *k, int fd, uint64_t bytes_max, struct error *err)
{
    k->spool = fd >= 0 ? dup(fd) : -1;
    k->bytes_max = bytes_max;
    if (k->spool >= 0)
        return ST_OK;
    error_set(err, ERR_INTERNAL, NULL, "the job store gave no file for the input");
    return ST_SYSTEM;
}

enum status intake_put(struct intake *k, struct span bytes, struct error *err)
{
    return unpack_put(k->unpack, bytes, err);
}

enum status intake_end(struct intake *k, uint64_t *ret_bytes, struct error *err)
{
    enum status st = unpack_end(k->unpack, err);

    if (st == ST_OK)
        st = convert_end(k->convert, err);
    if (st == ST_OK && fsync(k->spool) != 0)
        st = write_failed(errno, err);
    *ret_bytes = k->bytes;
    return st;
}
