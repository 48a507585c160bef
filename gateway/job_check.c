/* job_check.c - one pass over an upload.  The custom_id of a line is the one that the parser finds which later makes the request of it
 * (weir_line_custom_id), so the two never disagree.
 *
 * The digest covers the bytes of the file and the options that change the answers: it is what an idempotency key is compared by. */
#include "job_check.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "weir_batch.h"
#include <xxhash.h>

enum { SLICE_LINES = 2000, SLICE_BYTES = 1 << 20 };

struct job_check {
    struct job_row row;
    struct line_scanner scanner;
    XXH3_state_t *hash;
    int fd;
    uint64_t lines_max;
    uint64_t hashed; /* bytes of the file that are in the hash */
};

enum status job_check_new(const struct job_row *row, int fd, uint64_t lines_max, struct job_check **ret_check)
{
    struct job_check *c = calloc(1, sizeof *c);
    enum status st = ST_NOMEM;

    if (c == NULL) {
        close(fd);
        return ST_NOMEM;
    }
    c->fd = fd;
    c->row = *row;
    c->lines_max = lines_max;
    c->hash = XXH3_createState();
    if (c->hash == NULL || XXH3_128bits_reset(c->hash) != XXH_OK)
        goto out;
    st = line_scanner_init(&c->scanner, fd);
    if (st != ST_OK)
        goto out;
    char options[NAME_BYTES_MAX + 64];
    int n =
        snprintf(options, sizeof options, "model=%s max_tokens=%" PRIu32 "\n", row->model, row->max_tokens);
    XXH3_128bits_update(c->hash, options, (size_t)n);
    *ret_check = c;
    c = NULL;
out:
    job_check_free(c);
    return st;
}

void job_check_free(struct job_check *c)
{
    if (c == NULL)
        return;
    line_scanner_deinit(&c->scanner);
    XXH3_freeState(c->hash);
    if (c->fd >= 0)
        close(c->fd);
    free(c);
}

static enum status refuse_utf16(const struct scanned_line *line, struct error *err)
{
    const uint8_t *b = line->text.at;

    if (line->number != 1 || line->text.n < 2 ||
        !((b[0] == 0xff && b[1] == 0xfe) || (b[0] == 0xfe && b[1] == 0xff)))
        return ST_OK;
    error_set(err, ERR_INVALID_REQUEST, "line 1",
              "the input is UTF-16, it must be UTF-8 (PowerShell: `Get-Content -Raw FILE | Out-File "
              "-Encoding utf8 NEW`)");
    return ST_INVALID;
}

/* One line into the store. */
static enum status add_line(struct job_check *c, struct job_store *s, const struct scanned_line *line,
                            struct error *err)
{
    struct line_ref ref = { .number = line->number, .bytes = (uint32_t)line->bytes, .offset = line->offset };
    char custom_id[CUSTOM_ID_BYTES_MAX + 1];
    uint32_t first = 0;
    char param[32];

    if (c->row.n_lines == c->lines_max) {
        error_set(err, ERR_LIMIT_EXCEEDED, NULL, "the input has more lines than the limit of %" PRIu64,
                  c->lines_max);
        return ST_INVALID;
    }
    /* a wrong line is met again, and told, when its turn comes */
    if (weir_line_custom_id((const char *)line->text.at, line->text.n, line->number, custom_id) != WEIR_OK) {
        error_set(err, ERR_INTERNAL, NULL, "out of memory");
        return ST_NOMEM;
    }
    enum status st = job_store_add_line(s, c->row.seq, &ref, custom_id, &first);
    if (st == ST_INVALID) {
        snprintf(param, sizeof param, "line %" PRIu32, line->number);
        error_set(err, ERR_DUPLICATE_ID, param,
                  "lines %" PRIu32 " and %" PRIu32 " have the same custom_id \"%.100s\"", first, line->number,
                  custom_id);
    }
    c->row.n_lines += st == ST_OK;
    return st;
}

/* The hash takes the file as it is: all bytes up to end, newlines too. */
static enum status hash_up_to(struct job_check *c, uint64_t end)
{
    char chunk[64 << 10];

    while (c->hashed < end) {
        uint64_t left = end - c->hashed;
        ssize_t n = pread(c->fd, chunk, left < sizeof chunk ? (size_t)left : sizeof chunk, (off_t)c->hashed);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? ST_SYSTEM : ST_OK; /* shorter than announced: the scanner has seen the same end */
        XXH3_128bits_update(c->hash, chunk, (size_t)n);
        c->hashed += (uint64_t)n;
    }
    return ST_OK;
}

static enum status finish(struct job_check *c, struct job_row *ret_row, struct error *err)
{
    if (c->row.n_lines == 0) {
        error_set(err, ERR_INVALID_REQUEST, NULL,
                  "the input is empty: there is no line in its %" PRIu64 " bytes", c->row.input_bytes);
        return ST_INVALID;
    }
    if (hash_up_to(c, c->row.input_bytes) != ST_OK)
        return ST_SYSTEM;
    XXH128_hash_t h = XXH3_128bits_digest(c->hash);
    snprintf(c->row.digest, sizeof c->row.digest, "%016" PRIx64 "%016" PRIx64, (uint64_t)h.high64,
             (uint64_t)h.low64);
    *ret_row = c->row;
    return ST_OK;
}

/* Lines until the slice is full: ST_AGAIN, or the end: ST_NOT_FOUND. */
static enum status check_slice(struct job_check *c, struct job_store *s, struct error *err)
{
    uint64_t bytes = 0;
    struct scanned_line line;

    for (int n = 0; n < SLICE_LINES && bytes < SLICE_BYTES; n++) {
        enum status st = line_scanner_next(&c->scanner, &line);
        if (st == ST_OK)
            st = refuse_utf16(&line, err);
        if (st != ST_OK)
            return st;
        bytes += line.bytes + 1;
        if (!line.too_long && weir_line_blank((const char *)line.text.at, line.text.n))
            continue;
        st = add_line(c, s, &line, err);
        if (st != ST_OK)
            return st;
    }
    return hash_up_to(c, line.offset + line.bytes) == ST_OK ? ST_AGAIN : ST_SYSTEM;
}

enum status job_check_step(struct job_check *c, struct job_store *s, struct job_row *ret_row,
                           struct error *err)
{
    error_set(err, ERR_INTERNAL, NULL, "the job store cannot be written; nothing was submitted");
    enum status st = job_store_begin_early(s);
    if (st != ST_OK)
        return st;
    st = check_slice(c, s, err);
    if (st != ST_AGAIN && st != ST_NOT_FOUND) {
        job_store_rollback(s);
        return st == ST_INVALID ? ST_INVALID : ST_SYSTEM;
    }
    if (job_store_commit(s) != ST_OK)
        return ST_SYSTEM;
    return st == ST_NOT_FOUND ? finish(c, ret_row, err) : ST_AGAIN;
}
