/* sftp_packet.c - bytes of SFTP packets.  Every length is compared with what is there before anything is taken. */
#include "sftp_packet.h"

#include <assert.h>

enum {
    ATTR_SIZE = 1,
    ATTR_UIDGID = 2,
    ATTR_PERMISSIONS = 4,
    ATTR_ACMODTIME = 8,
    ATTR_EXTENDED = 0x80000000u,
    ATTR_EXTENDED_MAX = 64,
};

/* --- taking apart ---------------------------------------------------------------------------------- */

struct reader {
    struct span left;
    bool failed;
};

uint32_t sftp_u32(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static struct span get(struct reader *r, size_t n)
{
    static const uint8_t zeros[8];

    if (r->failed || n > r->left.n) {
        r->failed = true;
        return n <= sizeof zeros ? span_of(zeros, n) : span_of(zeros, 0);
    }
    struct span s = span_of(r->left.at, n);
    r->left = span_of(r->left.at + n, r->left.n - n);
    return s;
}

static uint32_t get_u32(struct reader *r)
{
    return sftp_u32(get(r, 4).at);
}

static uint64_t get_u64(struct reader *r)
{
    uint64_t high = get_u32(r);
    return high << 32 | get_u32(r);
}

static struct span get_string(struct reader *r)
{
    uint32_t n = get_u32(r);

    if (r->failed || n > r->left.n) {
        r->failed = true;
        return span_of("", 0);
    }
    return get(r, n);
}

static void get_attrs(struct reader *r, struct sftp_attrs *a)
{
    uint32_t flags = get_u32(r);

    *a = (struct sftp_attrs){ .has_size = flags & ATTR_SIZE, .has_mode = flags & ATTR_PERMISSIONS, .has_times = flags & ATTR_ACMODTIME };
    if (a->has_size)
        a->size = get_u64(r);
    if (flags & ATTR_UIDGID)
        get_u64(r);
    if (a->has_mode)
        a->mode = get_u32(r);
    if (a->has_times) {
        a->atime = get_u32(r);
        a->mtime = get_u32(r);
    }
    if (!(flags & ATTR_EXTENDED))
        return;
    uint32_t pairs = get_u32(r);
    if (pairs > ATTR_EXTENDED_MAX)
        r->failed = true;
    for (uint32_t i = 0; i < pairs && !r->failed; i++) {
        get_string(r);
        get_string(r);
    }
}

static void get_extended(struct reader *r, struct sftp_request *q)
{
    struct span name = get_string(r);

    q->extension = span_is(name, "posix-rename@openssh.com") ? SFTP_EXT_POSIX_RENAME
                   : span_is(name, "fsync@openssh.com")      ? SFTP_EXT_FSYNC
                   : span_is(name, "limits@openssh.com")     ? SFTP_EXT_LIMITS
                   : span_is(name, "statvfs@openssh.com")    ? SFTP_EXT_STATVFS
                   : span_is(name, "fstatvfs@openssh.com")   ? SFTP_EXT_FSTATVFS
                                                             : SFTP_EXT_UNKNOWN;
    if (q->extension == SFTP_EXT_POSIX_RENAME) {
        q->path = get_string(r);
        q->to = get_string(r);
    } else if (q->extension == SFTP_EXT_STATVFS) {
        q->path = get_string(r);
    } else if (q->extension == SFTP_EXT_FSYNC || q->extension == SFTP_EXT_FSTATVFS) {
        q->handle = get_string(r);
    } else if (q->extension == SFTP_EXT_UNKNOWN && !r->failed) {
        r->left.n = 0; /* whatever it has */
    }
}

/* The fields of a type.  false: there is no such type. */
static bool get_fields(struct reader *r, struct sftp_request *q)
{
    switch (q->type) {
    case SFTP_OPEN:
        q->path = get_string(r);
        q->flags = get_u32(r);
        get_attrs(r, &q->attrs);
        return true;
    case SFTP_READ:
        q->handle = get_string(r);
        q->offset = get_u64(r);
        q->length = get_u32(r);
        return true;
    case SFTP_WRITE:
        q->handle = get_string(r);
        q->offset = get_u64(r);
        q->data = get_string(r);
        return true;
    case SFTP_CLOSE:
    case SFTP_FSTAT:
    case SFTP_READDIR:
        q->handle = get_string(r);
        return true;
    case SFTP_FSETSTAT:
        q->handle = get_string(r);
        get_attrs(r, &q->attrs);
        return true;
    case SFTP_SETSTAT:
    case SFTP_MKDIR:
        q->path = get_string(r);
        get_attrs(r, &q->attrs);
        return true;
    case SFTP_LSTAT:
    case SFTP_STAT:
    case SFTP_OPENDIR:
    case SFTP_REMOVE:
    case SFTP_RMDIR:
    case SFTP_REALPATH:
    case SFTP_READLINK:
        q->path = get_string(r);
        return true;
    case SFTP_RENAME:
    case SFTP_SYMLINK:
        q->path = get_string(r);
        q->to = get_string(r);
        return true;
    case SFTP_EXTENDED:
        get_extended(r, q);
        return true;
    default:
        return false;
    }
}

enum status sftp_parse(struct span packet, struct sftp_request *ret_request)
{
    struct reader r = { .left = packet };
    struct sftp_request q = { .type = get(&r, 1).at[0], .id = get_u32(&r) };

    if (r.failed)
        return ST_CORRUPT;
    bool known = true;
    if (q.type == SFTP_INIT) {
        while (r.left.n > 0 && !r.failed) { /* extensions of the client: name, data */
            get_string(&r);
            get_string(&r);
        }
    } else {
        known = get_fields(&r, &q);
    }
    *ret_request = q;
    return !known ? ST_UNSUPPORTED : r.failed || r.left.n > 0 ? ST_INVALID : ST_OK;
}

/* --- making ---------------------------------------------------------------------------------------- */

void sftp_put_u32(struct byte_writer *w, uint32_t v)
{
    const uint8_t bytes[4] = { (uint8_t)(v >> 24), (uint8_t)(v >> 16), (uint8_t)(v >> 8), (uint8_t)v };
    byte_writer_put(w, bytes, sizeof bytes);
}

void sftp_put_u64(struct byte_writer *w, uint64_t v)
{
    sftp_put_u32(w, (uint32_t)(v >> 32));
    sftp_put_u32(w, (uint32_t)v);
}

void sftp_put_string(struct byte_writer *w, struct span s)
{
    sftp_put_u32(w, (uint32_t)s.n);
    byte_writer_put(w, s.at, s.n);
}

void sftp_put_attrs(struct byte_writer *w, const struct sftp_attrs *a)
{
    sftp_put_u32(w, (a->has_size ? ATTR_SIZE : 0u) | (a->has_mode ? ATTR_PERMISSIONS : 0u) | (a->has_times ? ATTR_ACMODTIME : 0u));
    if (a->has_size)
        sftp_put_u64(w, a->size);
    if (a->has_mode)
        sftp_put_u32(w, a->mode);
    if (a->has_times) {
        sftp_put_u32(w, a->atime);
        sftp_put_u32(w, a->mtime);
    }
}

void sftp_begin(struct byte_writer *w, enum sftp_type type, uint32_t id)
{
    const uint8_t byte = (uint8_t)type;

    w->n = 0;
    sftp_put_u32(w, 0);
    byte_writer_put(w, &byte, 1);
    sftp_put_u32(w, id);
}

struct span sftp_end(struct byte_writer *w)
{
    assert(!w->failed && w->n >= 4 && w->n - 4 <= SFTP_PACKET_BYTES_MAX);
    size_t n = w->n;
    w->n = 0;
    sftp_put_u32(w, (uint32_t)(n - 4));
    w->n = n;
    return span_of(w->at, n);
}
