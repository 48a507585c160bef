/* desk_inbox.c - what sftp sessions ask: names of the tree, descriptors of files, uploads that become jobs.
 *
 * A file of the inbox that is open for writing, or of which a job is being made, is held by one channel: nobody else may write, rename or
 * remove it meanwhile.  A hold ends with the request that ends it, with the channel, or with the connection. */
#include "desk.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "job_json.h"
#include "log.h"
#include "sftp.h"
#include "utf8.h"

enum { STATUS_BYTES = 4096, LISTED_JOBS_MAX = 10000, LISTING_BYTES_MAX = 4 << 20, RECOVER_AGAIN_MS = 5000 };

#define CUT_NOTE                                                                                                        \
    "The connection ended while this file was being written.\n"                                                         \
    "To go on: `put -a FILE inbox/`.  To run it as it is: rename it to its name without .incomplete.\n"

struct inbox_hold {
    struct inbox_hold *next;
    uint16_t op;
    uint64_t bytes_max;              /* what it may grow to */
    char stored[SFTP_NAME_BYTES];
};

/* An upload of which a job is being made. */
struct inbox_upload {
    char stored[SFTP_NAME_BYTES], token[INBOX_TOKEN_BYTES];
    char why[ERROR_MESSAGE_BYTES + ERROR_PARAM_BYTES + 64]; /* it is not a job */
};

/* --- the log: who, what, which file, how many bytes, with what result -------------------------------- */

static void audit(const struct conn *c, const char *action, const char *file, uint64_t bytes, const char *result)
{
    char quoted[2 * SFTP_NAME_BYTES];

    log_info("inbox", "user=%s peer=%s action=%s file=%s bytes=%" PRIu64 " result=%s", c->user, c->peer, action,
             log_quote(quoted, sizeof quoted, file), bytes, result);
}

static uint64_t size_of(const struct desk *d, const struct conn *c, const char *stored)
{
    struct inbox_file file = { 0 };
    return inbox_look(d->files, c->user, stored, &file) == ST_OK ? file.size : 0;
}

/* --- holds -------------------------------------------------------------------------------------------- */

static const struct inbox_hold *find_hold(const struct desk *d, const char *user, const char *stored)
{
    for (const struct conn *c = d->conns; c != NULL; c = c->next) {
        if (strcmp(c->user, user) != 0)
            continue;
        for (const struct inbox_hold *h = c->holds; h != NULL; h = h->next) {
            if (strcmp(h->stored, stored) == 0)
                return h;
        }
    }
    return NULL;
}

static struct inbox_hold *hold(struct conn *c, const struct op *op, const char *stored, uint64_t bytes_max)
{
    struct inbox_hold *h = calloc(1, sizeof *h);

    if (h == NULL)
        return NULL;
    h->op = (uint16_t)(op - c->ops);
    h->bytes_max = bytes_max;
    snprintf(h->stored, sizeof h->stored, "%s", stored);
    h->next = c->holds;
    c->holds = h;
    return h;
}

static struct inbox_hold **own_hold(struct conn *c, const struct op *op, const char *stored)
{
    for (struct inbox_hold **at = &c->holds; *at != NULL; at = &(*at)->next) {
        if ((*at)->op == op - c->ops && strcmp((*at)->stored, stored) == 0)
            return at;
    }
    return NULL;
}

static void release(struct conn *c, const struct op *op, const char *stored)
{
    struct inbox_hold **at = own_hold(c, op, stored), *h;

    if (at == NULL)
        return;
    h = *at;
    *at = h->next;
    free(h);
}

void desk_inbox_release(struct desk *d, struct conn *c, const struct op *op)
{
    struct inbox_hold **at = &c->holds;

    while (*at != NULL) {
        struct inbox_hold *h = *at;
        if (op != NULL && h->op != op - c->ops) {
            at = &h->next;
            continue;
        }
        inbox_note(d->files, c->user, h->stored, CUT_NOTE);
        audit(c, "put", h->stored, size_of(d, c, h->stored), "cut");
        *at = h->next;
        free(h);
    }
}

/* --- what a request names ------------------------------------------------------------------------------- */

/* false: the message is broken. */
static bool read_place(struct door_reader *r, struct sftp_place *ret_place)
{
    uint32_t kind = door_get_u32(r);
    struct span job = door_get_str(r), name = door_get_str(r);

    *ret_place = (struct sftp_place){ .kind = (enum sftp_kind)kind };
    if (r->failed || kind >= PLACE_KINDS || !desk_copy(job, ret_place->job, sizeof ret_place->job) ||
        !desk_copy(name, ret_place->name, sizeof ret_place->name))
        return false;
    if (kind == PLACE_INBOX_FILE)
        return inbox_name_valid(name);
    return kind != PLACE_JOB_FILE || sftp_job_file(ret_place->name) >= 0;
}

/* A name of the inbox. */
static bool read_name(struct door_reader *r, char to[SFTP_NAME_BYTES])
{
    struct span name = door_get_str(r);
    return inbox_name_valid(name) && desk_copy(name, to, SFTP_NAME_BYTES);
}

static bool find_job(struct desk *d, struct conn *c, struct op *op, const char *job, struct job_row *ret_row)
{
    struct error err;

    error_set(&err, ERR_NOT_FOUND, NULL, "there is no job of that name");
    if (utf8_valid(span_str(job)) && job_store_find(d->store, c->user, job, ret_row, &err) == ST_OK && ret_row->state != JOB_VALIDATING)
        return true;
    desk_error(d, c, op, &err);
    return false;
}

static void not_found(struct desk *d, struct conn *c, struct op *op)
{
    struct error err;

    error_set(&err, ERR_NOT_FOUND, NULL, "there is no such file");
    desk_error(d, c, op, &err);
}

/* status.json: the job as the verbs show it, filled up with spaces, so that its length does not change with every digit. */
static char *job_status_text(struct desk *d, const struct job_row *row, size_t *ret_bytes)
{
    json_t *job = job_json(row, d->runner);
    char *json = json_dumps(job, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    size_t n = json != NULL ? strlen(json) : 0, bytes = (n + 1 + STATUS_BYTES - 1) / STATUS_BYTES * STATUS_BYTES;
    char *text = json != NULL ? malloc(bytes) : NULL;

    if (text != NULL) {
        memcpy(text, json, n);
        memset(text + n, ' ', bytes - n);
        text[bytes - 1] = '\n';
        *ret_bytes = bytes;
    }
    free(json);
    json_decref(job);
    return text;
}

static void look_at_job_file(struct desk *d, const struct job_row *row, enum sftp_job_file which, uint64_t *ret_size, uint64_t *ret_mtime_s)
{
    const uint64_t sizes[] = { [SFTP_INPUT] = row->input_bytes, [SFTP_OUTPUT] = row->output_bytes, [SFTP_ERRORS] = row->errors_bytes };
    int64_t changed_ms = which == SFTP_INPUT ? row->created_ms : row->ended_ms != 0 ? row->ended_ms : d->real_ms;
    size_t bytes = 0;

    if (which == SFTP_STATUS)
        free(job_status_text(d, row, &bytes));
    *ret_size = which == SFTP_STATUS ? bytes : sizes[which];
    *ret_mtime_s = (uint64_t)(changed_ms / 1000);
}

void desk_on_look(struct desk *d, struct conn *c, struct op *op, struct door_reader *r, int fd)
{
    uint8_t buffer[32];
    struct byte_writer w = { .at = buffer, .capacity = sizeof buffer };
    char stored[SFTP_NAME_BYTES];
    struct sftp_place place;
    struct inbox_file file;
    struct job_row row;
    uint64_t size = 0, mtime_s = 0;

    (void)fd;
    if (!read_place(r, &place)) {
        desk_break(d, c, "look");
        return;
    }
    if (place.kind == PLACE_INBOX_FILE) {
        inbox_stored_name(place.name, stored);
        if (inbox_look(d->files, c->user, stored, &file) != ST_OK) {
            not_found(d, c, op);
            return;
        }
        size = file.size;
        mtime_s = (uint64_t)file.mtime_s;
    } else if (place.kind == PLACE_JOB || place.kind == PLACE_JOB_FILE) {
        if (!find_job(d, c, op, place.job, &row))
            return;
        mtime_s = (uint64_t)(row.created_ms / 1000);
        if (place.kind == PLACE_JOB_FILE)
            look_at_job_file(d, &row, (enum sftp_job_file)sftp_job_file(place.name), &size, &mtime_s);
    }
    door_put_u32(&w, place.kind != PLACE_INBOX_FILE && place.kind != PLACE_JOB_FILE);
    door_put_u64(&w, size);
    door_put_u64(&w, mtime_s);
    desk_reply(d, c, op, &w, -1);
}

/* --- folders ---------------------------------------------------------------------------------------------- */

struct folder {
    uint8_t *at;
    size_t n, capacity, entries, entries_max;
    bool failed;
};

static bool add_entry(struct folder *f, const struct sftp_entry *e)
{
    size_t more = 0;

    if (f->capacity - f->n < 1024) {
        size_t capacity = f->capacity * 2 + 4096;
        uint8_t *at = capacity <= LISTING_BYTES_MAX ? realloc(f->at, capacity) : NULL;
        if (at == NULL) {
            f->failed = true;
            return false;
        }
        f->at = at;
        f->capacity = capacity;
    }
    if (sftp_put_entry(e, f->at + f->n, f->capacity - f->n, &more) != ST_OK)
        f->failed = true;
    f->n += more;
    return !f->failed && ++f->entries < f->entries_max;
}

static bool add_inbox_file(const struct inbox_file *file, void *arg)
{
    return add_entry(arg, &(struct sftp_entry){ .size = file->size, .mtime_s = (uint64_t)file->mtime_s, .name = span_str(file->name) });
}

static bool add_job(const struct job_row *row, void *arg)
{
    if (row->state == JOB_VALIDATING)
        return true;
    return add_entry(arg, &(struct sftp_entry){ .folder = true, .mtime_s = (uint64_t)(row->created_ms / 1000), .name = span_str(row->id) });
}

static void add_job_files(struct desk *d, struct folder *f, const struct job_row *row)
{
    for (int i = 0; i < SFTP_JOB_FILES; i++) {
        struct sftp_entry e = { .name = span_str(sftp_job_file_name((enum sftp_job_file)i)) };
        look_at_job_file(d, row, (enum sftp_job_file)i, &e.size, &e.mtime_s);
        add_entry(f, &e);
    }
}

void desk_on_folder(struct desk *d, struct conn *c, struct op *op, struct door_reader *r, int fd)
{
    uint8_t buffer[DOOR_PACKET_BYTES - 256];
    struct byte_writer w = { .at = buffer, .capacity = sizeof buffer };
    struct folder f = { .entries_max = LISTED_JOBS_MAX };
    struct sftp_place place;
    struct job_row row;
    enum status st = ST_OK;
    int memfd = -1;

    (void)fd;
    if (!read_place(r, &place)) {
        desk_break(d, c, "folder");
        return;
    }
    if (place.kind == PLACE_JOB && !find_job(d, c, op, place.job, &row))
        return;
    if (place.kind == PLACE_JOB)
        add_job_files(d, &f, &row);
    else if (place.kind == PLACE_INBOX)
        st = inbox_each(d->files, c->user, add_inbox_file, &f);
    else
        st = job_store_each(d->store, c->user, 0, add_job, &f);
    if (st == ST_OK && !f.failed)
        st = door_put_text(&w, span_of(f.at, f.n), &memfd);
    if (st == ST_OK && !f.failed)
        desk_reply(d, c, op, &w, memfd);
    else
        desk_fail_internal(d, c, op, "the folder cannot be read");
    if (memfd >= 0)
        close(memfd);
    free(f.at);
}

/* --- opening ---------------------------------------------------------------------------------------------- */

static void reply_file(struct desk *d, struct conn *c, struct op *op, uint64_t size, uint64_t bytes_max, const char *limit, bool grows, int file)
{
    uint8_t buffer[128];
    struct byte_writer w = { .at = buffer, .capacity = sizeof buffer };

    door_put_u64(&w, size);
    door_put_u64(&w, bytes_max);
    door_put_str(&w, span_str(limit));
    door_put_u32(&w, grows);
    desk_reply(d, c, op, &w, file);
}

static void open_job_file(struct desk *d, struct conn *c, struct op *op, const struct sftp_place *place)
{
    static const enum job_file files[] = { [SFTP_INPUT] = JOB_FILE_INPUT, [SFTP_OUTPUT] = JOB_FILE_OUTPUT, [SFTP_ERRORS] = JOB_FILE_ERRORS };
    enum sftp_job_file which = (enum sftp_job_file)sftp_job_file(place->name);
    struct job_row row;
    uint64_t size = 0, mtime_s;
    size_t bytes = 0;
    int file = -1;

    if (!find_job(d, c, op, place->job, &row))
        return;
    look_at_job_file(d, &row, which, &size, &mtime_s);
    if (which == SFTP_STATUS) {
        char *text = job_status_text(d, &row, &bytes);
        size = bytes;
        if (text == NULL || door_memfd(span_of(text, bytes), &file) != ST_OK)
            file = -1;
        free(text);
    } else if (job_files_job(d->files, &row, files[which], false, &file) != ST_OK) {
        file = -1;
    }
    if (file < 0) {
        desk_fail_internal(d, c, op, "a file of the job cannot be opened");
        return;
    }
    bool ended = job_state_ended(row.state);
    reply_file(d, c, op, size, 0, "", !ended && (which == SFTP_OUTPUT || which == SFTP_ERRORS), file);
    close(file);
}

struct total {
    const struct desk *desk;
    const struct conn *conn;
    const char *stored;              /* does not count */
    uint64_t bytes, files;
};

static bool add_up(const struct inbox_file *file, void *arg)
{
    struct total *t = arg;
    const struct inbox_hold *h = find_hold(t->desk, t->conn->user, file->name);

    if (strcmp(file->name, t->stored) == 0)
        return true;
    t->files++;
    if (__builtin_add_overflow(t->bytes, h != NULL && h->bytes_max > file->size ? h->bytes_max : file->size, &t->bytes))
        t->bytes = UINT64_MAX; /* of sparse files: over every limit */
    return true;
}

/* May this file be written, and up to which length?  false: *err. */
static bool may_write(struct desk *d, struct conn *c, const char *name, const char *stored, uint64_t *ret_max, const char **ret_limit,
                      struct error *err)
{
    uint64_t jobs_max, lines_max, bytes_max;
    struct total t = { .desk = d, .conn = c, .stored = stored };

    desk_job_limits(d, c->user, &jobs_max, &lines_max, &bytes_max);
    if (!inbox_name_writable(name))
        error_set(err, ERR_PERMISSION_DENIED, NULL, "a file of this name cannot be written");
    else if (find_hold(d, c->user, stored) != NULL)
        error_set(err, ERR_BUSY, NULL, "another session writes this file, or a job is being made of it");
    else if (!inbox_name_unfinished(name) && !desk_may_submit(d, c->user, err))
        return false;
    else if (inbox_each(d->files, c->user, add_up, &t) != ST_OK)
        error_set(err, ERR_INTERNAL, NULL, "the inbox cannot be read");
    else if (t.files >= INBOX_FILES_MAX)
        error_set(err, ERR_LIMIT_EXCEEDED, "inbox-files", "there are %" PRIu64 " files in your inbox, the limit is %d", t.files, INBOX_FILES_MAX);
    else if (t.bytes >= INBOX_TIMES * bytes_max)
        error_set(err, ERR_LIMIT_EXCEEDED, "inbox-bytes", "the files in your inbox have %" PRIu64 " bytes, the limit is %" PRIu64, t.bytes,
                  INBOX_TIMES * bytes_max);
    else {
        uint64_t left = INBOX_TIMES * bytes_max - t.bytes;
        *ret_max = left < bytes_max ? left : bytes_max;
        *ret_limit = left < bytes_max ? "inbox-bytes" : "max-job-bytes";
        return true;
    }
    return false;
}

static void open_to_write(struct desk *d, struct conn *c, struct op *op, const char *name, const char *stored, uint32_t flags)
{
    unsigned how = INBOX_WRITE | (flags & SFTP_FLAG_CREATE ? INBOX_CREATE : 0u) | (flags & SFTP_FLAG_TRUNCATE ? INBOX_TRUNCATE : 0u) |
                   (flags & SFTP_FLAG_EXCLUSIVE ? INBOX_EXCLUSIVE : 0u);
    struct error err;
    uint64_t max = 0;
    const char *limit = "";
    int file = -1;

    if (!may_write(d, c, name, stored, &max, &limit, &err)) {
        audit(c, "put", name, 0, error_code_name(err.code));
        desk_error(d, c, op, &err);
        return;
    }
    enum status st = inbox_open(d->files, c->user, stored, how, &file);
    if (st == ST_NOT_FOUND) {
        not_found(d, c, op);
    } else if (st == ST_INVALID) {
        error_set(&err, ERR_INVALID_REQUEST, NULL, "there is a file of this name already");
        desk_error(d, c, op, &err);
    } else if (st != ST_OK || hold(c, op, stored, max) == NULL) {
        desk_fail_internal(d, c, op, "the file cannot be opened: the disk refuses it");
    } else {
        inbox_note(d->files, c->user, stored, "");
        reply_file(d, c, op, size_of(d, c, stored), max, limit, false, file);
    }
    if (file >= 0)
        close(file);
}

void desk_on_file(struct desk *d, struct conn *c, struct op *op, struct door_reader *r, int fd)
{
    struct sftp_place place;
    char stored[SFTP_NAME_BYTES];
    bool known = read_place(r, &place);
    uint32_t flags = door_get_u32(r);
    int file = -1;

    (void)fd;
    if (!known || r->failed || flags > SFTP_FLAGS || (place.kind != PLACE_INBOX_FILE && place.kind != PLACE_JOB_FILE) ||
        (place.kind == PLACE_JOB_FILE && flags & SFTP_FLAG_WRITE)) {
        desk_break(d, c, "file");
        return;
    }
    if (place.kind == PLACE_JOB_FILE) {
        open_job_file(d, c, op, &place);
        return;
    }
    inbox_stored_name(place.name, stored);
    if (flags & SFTP_FLAG_WRITE) {
        open_to_write(d, c, op, place.name, stored, flags);
    } else if (inbox_open(d->files, c->user, stored, INBOX_READ, &file) == ST_OK) {
        reply_file(d, c, op, size_of(d, c, stored), 0, "", false, file);
        close(file);
    } else {
        not_found(d, c, op);
    }
}

void desk_on_file_done(struct desk *d, struct conn *c, struct op *op, struct door_reader *r, int fd)
{
    char stored[SFTP_NAME_BYTES], note[1024];
    bool known = read_name(r, stored) && desk_copy(door_get_str(r), note, sizeof note);

    (void)fd;
    if (!known || own_hold(c, op, stored) == NULL) {
        desk_break(d, c, "file_done");
        return;
    }
    inbox_note(d->files, c->user, stored, note);
    audit(c, "put", stored, size_of(d, c, stored), note[0] != '\0' ? "incomplete" : "kept");
    release(c, op, stored);
    desk_reply(d, c, op, NULL, -1);
}

/* --- renaming, removing ----------------------------------------------------------------------------------- */

static bool refuse_held(struct desk *d, struct conn *c, struct op *op, const char *stored)
{
    struct error err;

    if (find_hold(d, c->user, stored) == NULL)
        return false;
    error_set(&err, ERR_BUSY, NULL, "the file is open for writing, or a job is being made of it");
    desk_error(d, c, op, &err);
    return true;
}

void desk_on_file_rename(struct desk *d, struct conn *c, struct op *op, struct door_reader *r, int fd)
{
    char from[SFTP_NAME_BYTES], to[SFTP_NAME_BYTES];
    bool known = read_name(r, from) && read_name(r, to);
    bool replace = door_get_u32(r) != 0;
    struct error err;

    (void)fd;
    if (!known || r->failed || inbox_name_is_note(from) || !inbox_name_unfinished(to) || !inbox_name_writable(to)) {
        desk_break(d, c, "file_rename");
        return;
    }
    if (refuse_held(d, c, op, from) || refuse_held(d, c, op, to))
        return;
    uint64_t bytes = size_of(d, c, from);
    enum status st = inbox_rename(d->files, c->user, from, to, replace);
    audit(c, "rename", from, bytes, st == ST_OK ? "ok" : "refused");
    if (st == ST_OK) {
        desk_reply(d, c, op, NULL, -1);
    } else if (st == ST_NOT_FOUND) {
        not_found(d, c, op);
    } else if (st == ST_INVALID) {
        error_set(&err, ERR_INVALID_REQUEST, NULL, "there is a file of the new name already");
        desk_error(d, c, op, &err);
    } else {
        desk_fail_internal(d, c, op, "the file cannot be renamed");
    }
}

void desk_on_file_remove(struct desk *d, struct conn *c, struct op *op, struct door_reader *r, int fd)
{
    char name[SFTP_NAME_BYTES], stored[SFTP_NAME_BYTES];

    (void)fd;
    if (!read_name(r, name)) {
        desk_break(d, c, "file_remove");
        return;
    }
    inbox_stored_name(name, stored);
    if (refuse_held(d, c, op, stored))
        return;
    uint64_t bytes = size_of(d, c, stored);
    enum status st = inbox_remove(d->files, c->user, stored);
    if (st == ST_NOT_FOUND && inbox_name_is_note(stored))
        st = ST_OK; /* `rm *`: it went with its file, a moment ago */
    audit(c, "remove", stored, bytes, st == ST_OK ? "ok" : "refused");
    if (st == ST_OK)
        desk_reply(d, c, op, NULL, -1);
    else if (st == ST_NOT_FOUND)
        not_found(d, c, op);
    else
        desk_fail_internal(d, c, op, "the file cannot be removed");
}

/* --- how much there may be --------------------------------------------------------------------------------- */

void desk_on_space(struct desk *d, struct conn *c, struct op *op, struct door_reader *r, int fd)
{
    uint8_t buffer[64];
    struct byte_writer w = { .at = buffer, .capacity = sizeof buffer };
    struct total t = { .desk = d, .conn = c, .stored = "" };
    uint64_t jobs_max, lines_max, bytes_max, bytes_free = 0;

    (void)r;
    (void)fd;
    desk_job_limits(d, c->user, &jobs_max, &lines_max, &bytes_max);
    if (inbox_each(d->files, c->user, add_up, &t) != ST_OK || job_files_free(d->files, &bytes_free) != ST_OK) {
        desk_fail_internal(d, c, op, "the inbox cannot be read");
        return;
    }
    door_put_u64(&w, INBOX_TIMES * bytes_max);
    door_put_u64(&w, t.bytes);
    door_put_u64(&w, bytes_free);
    door_put_u64(&w, INBOX_FILES_MAX);
    door_put_u64(&w, t.files);
    desk_reply(d, c, op, &w, -1);
}

/* --- becoming a job ----------------------------------------------------------------------------------------- */

/* What is in submitting/ stays there until it can be told what it is. */
static void recover_later(struct desk *d)
{
    d->recover_ns = d->now_ns + RECOVER_AGAIN_MS * 1000000ull;
}

/* What the job will be: as from `submit` without options, named like the file. */
static struct job_row upload_row(const struct desk *d, const struct conn *c, const char *final, const char *token)
{
    struct job_row row = { .state = JOB_VALIDATING, .created_ms = d->real_ms };

    memcpy(row.user, c->user, sizeof row.user);
    inbox_job_name(final, row.name, sizeof row.name);
    snprintf(row.key, sizeof row.key, "%s", token);
    return row;
}

/* The file itself becomes the input: a second name of it in the spool. */
static bool link_spool(struct desk *d, struct op *op)
{
    int spool = -1;

    if (job_files_spool(d->files, op->spool, &spool) != ST_OK) {
        op->spool[0] = '\0';
        return false;
    }
    close(spool);
    job_files_spool_remove(d->files, op->spool); /* only its name was wanted */
    return inbox_link(d->files, op->row.user, op->inbox->stored, op->inbox->token, op->spool) == ST_OK;
}

/* An own file, not held by another channel, and one more job is allowed.  false: *err. */
static bool may_take(struct desk *d, struct conn *c, struct op *op, const char *stored, struct error *err)
{
    const struct inbox_hold *h = find_hold(d, c->user, stored);
    struct inbox_file file;

    if (h != NULL && own_hold(c, op, stored) == NULL)
        error_set(err, ERR_BUSY, NULL, "another session writes this file, or a job is being made of it");
    else if (inbox_look(d->files, c->user, stored, &file) != ST_OK)
        error_set(err, ERR_NOT_FOUND, NULL, "there is no such file");
    else
        return desk_may_submit(d, c->user, err);
    return false;
}

/* Refused before anything was moved. */
static void refuse_submit(struct desk *d, struct conn *c, struct op *op, const char *stored, const struct error *err)
{
    audit(c, "submit", stored, size_of(d, c, stored), error_code_name(err->code));
    if (err->code != ERR_NOT_FOUND && err->code != ERR_BUSY)
        inbox_note(d->files, c->user, stored, err->message);
    release(c, op, stored);
    desk_error(d, c, op, err);
}

void desk_on_file_submit(struct desk *d, struct conn *c, struct op *op, struct door_reader *r, int fd)
{
    char stored[SFTP_NAME_BYTES], final[SFTP_NAME_BYTES];
    bool known = read_name(r, stored) && read_name(r, final);
    bool as_it_is = door_get_u32(r) != 0;
    struct error err;
    uint8_t buffer[8];
    struct byte_writer w = { .at = buffer, .capacity = sizeof buffer };
    uint64_t jobs_max, lines_max, bytes_max;
    int spool = -1;

    (void)fd;
    if (!known || r->failed || inbox_name_is_note(stored) || inbox_name_unfinished(final)) {
        desk_break(d, c, "file_submit");
        return;
    }
    if (!may_take(d, c, op, stored, &err)) {
        refuse_submit(d, c, op, stored, &err);
        return;
    }
    error_set(&err, ERR_INTERNAL, NULL, "the file cannot be moved; nothing was submitted");
    op->inbox = calloc(1, sizeof *op->inbox);
    if (op->inbox == NULL || (own_hold(c, op, stored) == NULL && hold(c, op, stored, 0) == NULL) ||
        inbox_take(d->files, c->user, stored, op->inbox->token) != ST_OK) {
        free(op->inbox);
        op->inbox = NULL;
        recover_later(d); /* it may have been moved before the disk refused */
        refuse_submit(d, c, op, stored, &err);
        return;
    }
    snprintf(op->inbox->stored, sizeof op->inbox->stored, "%s", stored);
    op->row = upload_row(d, c, final, op->inbox->token);
    op->kind = OP_UPLOAD;
    if (as_it_is) {
        if (link_spool(d, op) && desk_begin_check(d, op, DOOR_BYTES_ANY, &err)) {
            d->work_left = true;
            return;
        }
    } else if (job_files_spool(d->files, op->spool, &spool) == ST_OK) {
        desk_job_limits(d, c->user, &jobs_max, &lines_max, &bytes_max);
        door_put_u64(&w, bytes_max);
        desk_reply(d, c, op, &w, spool);
        close(spool);
        return;
    } else {
        op->spool[0] = '\0';
    }
    desk_error(d, c, op, &err);
    desk_stop_op(d, c, op);
}

void desk_on_file_back(struct desk *d, struct conn *c, struct op *op, struct door_reader *r, int fd)
{
    char why[1024];

    (void)fd;
    if (!desk_copy(door_get_str(r), why, sizeof why) || op->inbox == NULL) {
        desk_break(d, c, "file_back");
        return;
    }
    snprintf(op->inbox->why, sizeof op->inbox->why, "%.500s", why);
    desk_stop_op(d, c, op);
    op->waiting = true;
    desk_reply(d, c, op, NULL, -1);
}

void desk_inbox_joined(struct desk *d, struct conn *c, struct op *op, const struct job_row *row)
{
    char result[JOB_ID_BYTES + 8];

    if (op->inbox == NULL)
        return;
    inbox_drop(d->files, c->user, op->inbox->stored, op->inbox->token);
    snprintf(result, sizeof result, "job:%s", row->id);
    audit(c, "submit", op->inbox->stored, row->input_bytes, result);
    release(c, op, op->inbox->stored);
    free(op->inbox);
    op->inbox = NULL;
}

void desk_inbox_back(struct desk *d, struct conn *c, struct op *op)
{
    char text[sizeof op->inbox->why + 160], back[SFTP_NAME_BYTES];
    struct inbox_upload *u = op->inbox;
    struct job_row row;

    if (u == NULL)
        return;
    op->inbox = NULL;
    snprintf(text, sizeof text, "%s\nNothing was submitted.  Put the file again, or rename it to its final name to try once more.\n",
             u->why[0] != '\0' ? u->why : "The connection ended before the file had become a job.");
    /* only what is certainly no job, now and after a crash, goes back */
    if (job_store_settle(d->store) == ST_OK && job_store_by_key(d->store, c->user, u->token, &row) == ST_NOT_FOUND &&
        inbox_back(d->files, c->user, u->stored, u->token, back) == ST_OK) {
        inbox_note_return(d->files, c->user, u->stored, back, text);
        audit(c, "submit", u->stored, size_of(d, c, back), "refused");
    } else {
        recover_later(d);
    }
    release(c, op, u->stored);
    free(u);
}

/* Is a job being made of this upload? */
static bool is_in_work(const struct desk *d, const char *token)
{
    for (const struct conn *c = d->conns; c != NULL; c = c->next) {
        for (size_t i = 0; i < DOOR_OPS; i++) {
            if (c->ops[i].inbox != NULL && strcmp(c->ops[i].inbox->token, token) == 0)
                return true;
        }
    }
    return false;
}

static enum status is_a_job(const char *user, const char *token, void *arg)
{
    struct desk *d = arg;
    struct job_row row;

    if (is_in_work(d, token))
        return ST_AGAIN;
    enum status st = job_store_settle(d->store);
    return st == ST_OK ? job_store_by_key(d->store, user, token, &row) : st;
}

void desk_inbox_refused(struct desk *d, struct conn *c, struct op *op, const struct error *err)
{
    if (op->inbox == NULL)
        return;
    snprintf(op->inbox->why, sizeof op->inbox->why, "%s: %s%s%s%s", error_code_name(err->code), err->message,
             err->param[0] ? " (" : "", err->param, err->param[0] ? ")" : "");
    desk_inbox_back(d, c, op);
}

static void recover(struct desk *d)
{
    d->recover_ns = 0;
    if (inbox_recover(d->files, is_a_job, d) != ST_OK)
        recover_later(d);
}

void desk_inbox_recover(struct desk *d)
{
    recover(d);
    inbox_add_notes(d->files);
}

void desk_step_inbox(struct desk *d)
{
    if (d->recover_ns != 0 && d->now_ns >= d->recover_ns)
        recover(d);
}
