/* unpack.c - see unpack.h.  zlib and libzstd do the work; what is ours is the order of streams and the refusals.
 *
 * Output leaves in pieces of OUT_BYTES however much one byte of input expands to, so the sink's limit, not ours, bounds a bomb. */
#include "unpack.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define ZLIB_CONST
#include <zlib.h>
#include <zstd.h>

enum { MAGIC_BYTES = 4, OUT_BYTES = 64 << 10 };
enum format { UNKNOWN, PLAIN, GZIP, ZSTD };

struct unpack {
    unpack_sink *sink;
    void *arg;
    enum format format;
    uint8_t magic[MAGIC_BYTES];
    size_t n_magic;
    bool inside;    /* a member or frame has begun and not ended */
    uint64_t taken; /* compressed bytes before this call */
    z_stream z;
    ZSTD_DStream *zstd;
    uint8_t out[OUT_BYTES];
};

enum status unpack_new(unpack_sink *sink, void *arg, struct unpack **ret_unpack)
{
    struct unpack *u = calloc(1, sizeof *u);

    if (u == NULL)
        return ST_NOMEM;
    u->sink = sink;
    u->arg = arg;
    *ret_unpack = u;
    return ST_OK;
}

void unpack_free(struct unpack *u)
{
    if (u == NULL)
        return;
    if (u->format == GZIP)
        inflateEnd(&u->z);
    ZSTD_freeDStream(u->zstd);
    free(u);
}

static enum status no_memory(struct error *err)
{
    error_set(err, ERR_INTERNAL, NULL, "out of memory");
    return ST_NOMEM;
}

static enum status damaged(const struct unpack *u, size_t used, const char *what, struct error *err)
{
    error_set(err, ERR_INVALID_REQUEST, NULL, "the input is %s, and damaged near its byte %" PRIu64 ": %s",
              u->format == GZIP ? "gzip" : "zstd", u->taken + used, what);
    return ST_INVALID;
}

static enum status put_gzip(struct unpack *u, struct span in, struct error *err)
{
    u->z.next_in = in.at;
    u->z.avail_in = (uInt)in.n;
    do {
        if (!u->inside && u->z.avail_in > 0) {
            if (*u->z.next_in != 0x1f)
                return damaged(u, in.n - u->z.avail_in, "something that is not gzip follows", err);
            if (inflateReset2(&u->z, 15 + 16) != Z_OK)
                return no_memory(err);
            u->inside = true;
        }
        u->z.next_out = u->out;
        u->z.avail_out = OUT_BYTES;
        int rc = inflate(&u->z, Z_NO_FLUSH);
        if (rc == Z_MEM_ERROR)
            return no_memory(err);
        if (rc != Z_OK && rc != Z_STREAM_END && rc != Z_BUF_ERROR)
            return damaged(u, in.n - u->z.avail_in, u->z.msg != NULL ? u->z.msg : "not a gzip stream", err);
        if (rc == Z_STREAM_END)
            u->inside = false;
        if (u->z.avail_out < OUT_BYTES) {
            enum status st = u->sink(u->arg, span_of(u->out, OUT_BYTES - u->z.avail_out), err);
            if (st != ST_OK)
                return st;
        }
    } while (u->z.avail_in > 0 || (u->inside && u->z.avail_out == 0));
    return ST_OK;
}

static enum status put_zstd(struct unpack *u, struct span bytes, struct error *err)
{
    ZSTD_inBuffer in = {bytes.at, bytes.n, 0};
    bool full = false;

    while (in.pos < in.size || (full && u->inside)) {
        ZSTD_outBuffer out = {u->out, OUT_BYTES, 0};
        size_t rc = ZSTD_decompressStream(u->zstd, &out, &in);
        if (ZSTD_isError(rc)) {
            const char *name = ZSTD_getErrorName(rc);
            if (strstr(name, "too much memory") != NULL) {
                error_set(
                    err, ERR_LIMIT_EXCEEDED, NULL,
                    "the input is zstd with a window over the limit of %d MiB; compress it without --long "
                    "and --ultra",
                    1 << (UNPACK_WINDOW_LOG_MAX - 20));
                return ST_INVALID;
            }
            return damaged(u, in.pos, name, err);
        }
        u->inside = rc != 0;
        full = out.pos == out.size;
        if (out.pos > 0) {
            enum status st = u->sink(u->arg, span_of(u->out, out.pos), err);
            if (st != ST_OK)
                return st;
        }
    }
    return ST_OK;
}

static enum format format_of(const uint8_t *m, size_t n)
{
    if (n >= 2 && m[0] == 0x1f && m[1] == 0x8b)
        return GZIP;
    if (n >= MAGIC_BYTES && ((m[0] == 0x28 && m[1] == 0xb5 && m[2] == 0x2f && m[3] == 0xfd) ||
                             (m[0] >> 4 == 5 && m[1] == 0x2a && m[2] == 0x4d && m[3] == 0x18)))
        return ZSTD;
    return PLAIN;
}

bool unpack_is_packed(const uint8_t *first, size_t n)
{
    return format_of(first, n) != PLAIN;
}

static enum status choose(struct unpack *u, struct error *err)
{
    enum format format = format_of(u->magic, u->n_magic);

    u->format = PLAIN; /* until its library is ready */
    if (format == GZIP) {
        if (inflateInit2(&u->z, 15 + 16) != Z_OK)
            return no_memory(err);
        u->format = GZIP;
    } else if (format == ZSTD) {
        u->zstd = ZSTD_createDStream();
        if (u->zstd == NULL ||
            ZSTD_isError(ZSTD_DCtx_setParameter(u->zstd, ZSTD_d_windowLogMax, UNPACK_WINDOW_LOG_MAX)))
            return no_memory(err);
        u->format = ZSTD;
    }
    return ST_OK;
}

static enum status pass(struct unpack *u, struct span bytes, struct error *err)
{
    enum status st = ST_OK;

    if (bytes.n == 0)
        return ST_OK;
    if (u->format == PLAIN)
        st = u->sink(u->arg, bytes, err);
    else
        st = u->format == GZIP ? put_gzip(u, bytes, err) : put_zstd(u, bytes, err);
    u->taken += bytes.n;
    return st;
}

/* The first bytes are known, or there are no more. */
static enum status begin(struct unpack *u, struct error *err)
{
    enum status st = choose(u, err);

    return st == ST_OK ? pass(u, span_of(u->magic, u->n_magic), err) : st;
}

enum status unpack_put(struct unpack *u, struct span bytes, struct error *err)
{
    while (bytes.n > UINT32_MAX / 2) { /* zlib counts in 32 bits */
        enum status st = unpack_put(u, span_of(bytes.at, UINT32_MAX / 2), err);
        if (st != ST_OK)
            return st;
        bytes = span_of(bytes.at + UINT32_MAX / 2, bytes.n - UINT32_MAX / 2);
    }
    if (u->format == UNKNOWN) {
        while (u->n_magic < MAGIC_BYTES && bytes.n > 0) {
            u->magic[u->n_magic++] = *bytes.at;
            bytes = span_of(bytes.at + 1, bytes.n - 1);
        }
        if (u->n_magic < MAGIC_BYTES)
            return ST_OK;
        enum status st = begin(u, err);
        if (st != ST_OK)
            return st;
    }
    return pass(u, bytes, err);
}

enum status unpack_end(struct unpack *u, struct error *err)
{
    if (u->format == UNKNOWN) {
        enum status st = begin(u, err);
        if (st != ST_OK)
            return st;
    }
    return u->inside ? damaged(u, 0, "it ends early", err) : ST_OK;
}
