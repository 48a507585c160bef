/* job_reuse.c - see job_reuse.h.  The store joins the two jobs by custom_id; the bytes of both inputs decide. */
#include "job_reuse.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SLICE_LINES = 500 };
enum { FROM_INPUT, FROM_OUTPUT, TO_INPUT, TO_OUTPUT, FILES };

struct job_reuse {
    struct job_row row;
    int64_t from;
    int fd[FILES];
    char after[CUSTOM_ID_BYTES_MAX + 64]; /* custom_id of the last pair */
    struct line_pair pairs[SLICE_LINES];
};

enum status job_reuse_new(const struct job_files *f, const struct job_row *from, const struct job_row *row,
                          struct job_reuse **ret_reuse)
{
    struct job_reuse *r = calloc(1, sizeof *r);

    if (r == NULL)
        return ST_NOMEM;
    r->row = *row;
    r->from = from->seq;
    for (int i = 0; i < FILES; i++)
        r->fd[i] = -1;
    enum status st = job_files_job(f, from, JOB_FILE_INPUT, false, &r->fd[FROM_INPUT]);
    if (st == ST_OK)
        st = job_files_job(f, from, JOB_FILE_OUTPUT, false, &r->fd[FROM_OUTPUT]);
    if (st == ST_OK)
        st = job_files_job(f, row, JOB_FILE_INPUT, false, &r->fd[TO_INPUT]);
    if (st == ST_OK)
        st = job_files_job(f, row, JOB_FILE_OUTPUT, true, &r->fd[TO_OUTPUT]);
    if (st == ST_OK)
        *ret_reuse = r;
    else
        job_reuse_free(r);
    return st;
}

void job_reuse_free(struct job_reuse *r)
{
    if (r == NULL)
        return;
    for (int i = 0; i < FILES; i++) {
        if (r->fd[i] >= 0)
            close(r->fd[i]);
    }
    free(r);
}

static char *read_part(int fd, uint64_t offset, uint32_t bytes)
{
    char *text = malloc((size_t)bytes + 1);

    if (text != NULL && pread(fd, text, bytes, (off_t)offset) != (ssize_t)bytes) {
        free(text);
        return NULL;
    }
    if (text != NULL)
        text[bytes] = '\0';
    return text;
}

/* The same bytes, but for the CR of another system's line end? */
static enum status same_line(struct job_reuse *r, const struct line_pair *p, bool *ret_same)
{
    char *a = read_part(r->fd[FROM_INPUT], p->from.offset, p->from.bytes);
    char *b = read_part(r->fd[TO_INPUT], p->to.offset, p->to.bytes);
    bool read = a != NULL && b != NULL;

    if (read) {
        size_t na = p->from.bytes, nb = p->to.bytes;
        na -= na > 0 && a[na - 1] == '\r';
        nb -= nb > 0 && b[nb - 1] == '\r';
        *ret_same = na == nb && memcmp(a, b, na) == 0;
    }
    free(a);
    free(b);
    return read ? ST_OK : ST_SYSTEM;
}

static enum status copy_answer(struct job_reuse *r, struct job_store *s, const struct line_pair *p)
{
    char *text = read_part(r->fd[FROM_OUTPUT], p->place.offset, p->place.bytes);
    enum status st = ST_SYSTEM;

    if (text != NULL && pwrite(r->fd[TO_OUTPUT], text, p->place.bytes, (off_t)r->row.output_bytes) ==
                            (ssize_t)p->place.bytes)
        st = job_store_line_done(s, r->row.seq, p->to.number, LINE_ANSWERED, r->row.output_bytes, p->place.bytes);
    if (st == ST_OK) {
        r->row.n_done++;
        /* inside a JSON string the quotes would stand behind backslashes, so this is the member itself */
        r->row.n_length += strstr(text, "\"finish_reason\":\"length\"") != NULL ||
                           strstr(text, "\"finish_reason\": \"length\"") != NULL;
        r->row.output_bytes += p->place.bytes;
    }
    free(text);
    return st;
}

static enum status take_pairs(struct job_reuse *r, struct job_store *s, size_t *ret_n)
{
    size_t n = 0;
    enum status st = job_store_pairs(s, r->row.seq, r->from, r->after, sizeof r->after, r->pairs, SLICE_LINES, &n);

    for (size_t i = 0; i < n && st == ST_OK; i++) {
        bool same = false;
        st = same_line(r, &r->pairs[i], &same);
        if (st == ST_OK && same)
            st = copy_answer(r, s, &r->pairs[i]);
    }
    *ret_n = n;
    return st;
}

enum status job_reuse_step(struct job_reuse *r, struct job_store *s, struct job_row *ret_row)
{
    size_t n = 0;
    enum status st = job_store_begin(s);

    if (st != ST_OK)
        return st;
    st = take_pairs(r, s, &n);
    if (st != ST_OK) {
        job_store_rollback(s);
        return ST_SYSTEM;
    }
    if (job_store_commit(s) != ST_OK)
        return ST_SYSTEM;
    if (n == SLICE_LINES)
        return ST_AGAIN;
    if (fdatasync(r->fd[TO_OUTPUT]) != 0)
        return ST_SYSTEM;
    *ret_row = r->row;
    return ST_OK;
}
