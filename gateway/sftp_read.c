/* sftp_read.c - the requests of an sftp session that move bytes: READ, WRITE, READDIR.
 *
 * A file of a job is read up to the length that is committed, and no further.  A write that is refused is remembered: what was cut short
 * must not become a job when the file is closed. */
#include "sftp_handles.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "door.h"

enum { LIST_ENTRIES = 128, LONGNAME_BYTES = 400, ENTRY_BYTES_MAX = 1024, HALF_YEAR_S = 182 * 24 * 3600, DATA_HEADER = 13 };

void sftp_do_read(struct sftp *s, uint32_t id, struct sftp_handle *h, uint64_t offset, uint32_t length)
{
    struct byte_writer w = { .at = s->out, .capacity = sizeof s->out };
    struct stat st;
    char why[160];
    uint64_t end = h->length;

    if (h->place.kind == PLACE_INBOX_FILE) {
        if (fstat(h->fd, &st) != 0 || st.st_size < 0) {
            sftp_reply_status(s, id, SFTP_FAILURE, "the file cannot be read");
            return;
        }
        end = (uint64_t)st.st_size;
    }
    if (offset >= end) {
        sftp_reply_status(s, id, SFTP_EOF, "end of file");
        return;
    }
    length = length < SFTP_DATA_BYTES_MAX ? length : SFTP_DATA_BYTES_MAX;
    size_t n = end - offset < length ? (size_t)(end - offset) : length;
    ssize_t got;
    do
        got = pread(h->fd, s->out + DATA_HEADER, n, (off_t)offset);
    while (got < 0 && errno == EINTR);
    if (got < 0 || (got == 0 && n > 0)) {
        snprintf(why, sizeof why, "the file cannot be read at byte %" PRIu64 ": %s", offset,
                 got == 0 ? "it is shorter than it was" : strerror(errno));
        sftp_reply_status(s, id, SFTP_FAILURE, why);
        return;
    }
    sftp_begin(&w, SFTP_DATA_REPLY, id);
    sftp_put_u32(&w, (uint32_t)got);
    w.n += (size_t)got;
    h->moved += (uint64_t)got;
    sftp_reply(s, &w);
}

static void refuse_write(struct sftp *s, uint32_t id, struct sftp_handle *h, const char *why)
{
    if (h->refused[0] == '\0')
        s->backend->say(s->arg, h->place.name, why);
    snprintf(h->refused, sizeof h->refused, "%s", why);
    sftp_reply_status(s, id, SFTP_FAILURE, why);
}

void sftp_do_write(struct sftp *s, const struct sftp_request *q, struct sftp_handle *h)
{
    struct span data = q->data;
    uint64_t at = q->offset;
    char why[200];
    struct stat st;

    if (h->append && fstat(h->fd, &st) == 0)
        at = (uint64_t)st.st_size;
    if (data.n > h->bytes_max || at > h->bytes_max - data.n) {
        snprintf(why, sizeof why, "limit_exceeded: the file would be longer than the limit of %" PRIu64 " bytes (%s)", h->bytes_max,
                 h->bytes_limit);
        refuse_write(s, q->id, h, why);
        return;
    }
    while (data.n > 0) {
        ssize_t n = pwrite(h->fd, data.at, data.n, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            snprintf(why, sizeof why, "the file cannot be written to disk: %s", strerror(n < 0 ? errno : EIO));
            refuse_write(s, q->id, h, why);
            return;
        }
        data = span_of(data.at + n, data.n - (size_t)n);
        at += (uint64_t)n;
        h->moved += (uint64_t)n;
    }
    if (h->moved - h->synced >= SFTP_SYNC_BYTES) {
        (void)sync_file_range(h->fd, 0, 0, SYNC_FILE_RANGE_WRITE); /* only begins it, so that the last sync is short */
        h->synced = h->moved;
    }
    sftp_reply_status(s, q->id, SFTP_OK, "");
}

/* --- listings ----------------------------------------------------------------------------------------- */

enum status sftp_put_entry(const struct sftp_entry *e, uint8_t *to, size_t bytes, size_t *ret_n)
{
    struct byte_writer w = { .at = to, .capacity = bytes };

    door_put_u32(&w, e->folder);
    door_put_u64(&w, e->size);
    door_put_u64(&w, e->mtime_s);
    door_put_str(&w, e->name);
    if (w.failed)
        return ST_FULL;
    *ret_n = w.n;
    return ST_OK;
}

/* As `ls -l` writes it; times are UTC. */
static size_t longname(const struct sftp *s, const struct sftp_entry *e, const struct sftp_attrs *a, char to[LONGNAME_BYTES])
{
    char when[32] = "";
    struct tm tm;
    time_t t = (time_t)e->mtime_s;
    bool recent = (int64_t)e->mtime_s > s->real_s - HALF_YEAR_S && (int64_t)e->mtime_s <= s->real_s + 60;

    if (gmtime_r(&t, &tm) != NULL)
        strftime(when, sizeof when, recent ? "%b %e %H:%M" : "%b %e  %Y", &tm);
    int n = snprintf(to, LONGNAME_BYTES, "%cr%c%c------    1 %-8s %-8s %12" PRIu64 " %s ", e->folder ? 'd' : '-',
                     a->mode & 0200 ? 'w' : '-', a->mode & 0100 ? 'x' : '-', s->user, "weir", e->size, when);
    if (n < 0 || (size_t)n + e->name.n > LONGNAME_BYTES)
        return 0;
    memcpy(to + n, e->name.at, e->name.n);
    return (size_t)n + e->name.n;
}

/* The place an entry of a folder is. */
static struct sftp_place entry_place(const struct sftp_place *folder, const struct sftp_entry *e)
{
    struct sftp_place p = { .kind = PLACE_JOB_FILE };

    if (folder->kind == PLACE_ROOT)
        p.kind = span_is(e->name, "inbox") ? PLACE_INBOX : PLACE_JOBS;
    else if (folder->kind == PLACE_INBOX)
        p.kind = PLACE_INBOX_FILE;
    else if (folder->kind == PLACE_JOBS)
        p.kind = PLACE_JOB;
    if (e->name.n < sizeof p.name)
        memcpy(p.name, e->name.at, e->name.n);
    return p;
}

void sftp_do_readdir(struct sftp *s, uint32_t id, struct sftp_handle *h)
{
    struct byte_writer w = { .at = s->out, .capacity = sizeof s->out };
    uint32_t n = 0;
    char text[LONGNAME_BYTES];

    sftp_begin(&w, SFTP_NAME_REPLY, id);
    sftp_put_u32(&w, 0);
    while (n < LIST_ENTRIES && h->listing_at < h->listing_bytes && w.n < sizeof s->out - ENTRY_BYTES_MAX) {
        struct door_reader r = { .left = span_of(h->listing + h->listing_at, h->listing_bytes - h->listing_at) };
        struct sftp_entry e = { .folder = door_get_u32(&r) != 0 };
        e.size = door_get_u64(&r);
        e.mtime_s = door_get_u64(&r);
        e.name = door_get_str(&r);
        if (r.failed)
            break;
        h->listing_at = h->listing_bytes - r.left.n;
        struct sftp_place place = entry_place(&h->place, &e);
        struct sftp_attrs a = sftp_attrs_of(&place, e.folder, e.size, e.mtime_s);
        size_t bytes = longname(s, &e, &a, text);
        if (bytes == 0)
            continue; /* no name of ours is so long */
        sftp_put_string(&w, e.name);
        sftp_put_string(&w, span_of(text, bytes));
        sftp_put_attrs(&w, &a);
        n++;
    }
    if (n == 0) {
        sftp_reply_status(s, id, SFTP_EOF, "end of the folder");
        return;
    }
    struct byte_writer count = { .at = s->out + 9, .capacity = 4 };
    sftp_put_u32(&count, n);
    sftp_reply(s, &w);
}
