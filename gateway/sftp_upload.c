/* sftp_upload.c - a file of the inbox that was closed or renamed: is it whole, and if so, the way to a job.  See sftp_upload.h.
 *
 * A plain file becomes the input as it is.  A packed one is unpacked into a spool file, as `submit` does it, and for the same reason in this
 * process: packed data is the attacker's.  That goes in parts between other work.
 *
 * Whether a file is whole: `sftp` closes a file cleanly also when ^C has cut it, so a close says nothing.  A rename does: it was asked for. */
#include "sftp_upload.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "connection.h"
#include "limits.h"
#include "log.h"
#include "weir_batch.h"

enum { PART_BYTES = 64 << 10, PARTS_A_STEP = 16 };

static int source_fd(const struct sftp_talk *s)
{
    return s->source >= 0 ? s->source : s->question.fd;
}

void sftp_upload_deinit(struct sftp_talk *s)
{
    if (s->source >= 0)
        close(s->source);
    intake_free(s->intake);
    s->intake = NULL;
    s->source = -1;
    s->source_at = s->source_bytes = 0;
    s->refused = false;
}

static void answer(struct sftp_talk *s, const struct error *err, bool joined)
{
    struct error copy;
    uint64_t bytes = s->source_bytes;

    if (err != NULL)
        copy = *err;
    sftp_upload_deinit(s);
    sftp_talk_answer(s, &(struct sftp_answer){ .fd = -1, .error = err != NULL ? &copy : NULL, .joined = joined, .size = bytes });
}

/* --- is it whole? ------------------------------------------------------------------------------------------ */

static ssize_t read_at(int fd, void *to, size_t n, uint64_t at)
{
    ssize_t got;

    do
        got = pread(fd, to, n, (off_t)at);
    while (got < 0 && errno == EINTR);
    return got;
}

static bool object_or_blank(const char *text, size_t n)
{
    if (n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) {
        text += 3;
        n -= 3;
    }
    if (weir_line_blank(text, n))
        return true;
    json_t *value = json_loadb(text, n, JSON_DECODE_INT_AS_REAL, NULL);
    bool whole = json_is_object(value);
    json_decref(value);
    return whole;
}

bool sftp_upload_whole(int fd, uint64_t bytes)
{
    uint8_t head[2] = { 0 };
    char last = 0;
    bool whole = false;

    if (bytes == 0)
        return true;
    if (read_at(fd, head, sizeof head, 0) == 2 && ((head[0] == 0xff && head[1] == 0xfe) || (head[0] == 0xfe && head[1] == 0xff)))
        return true;
    if (read_at(fd, &last, 1, bytes - 1) == 1 && last == '\n')
        return true;
    size_t n = bytes < LINE_BYTES_MAX ? (size_t)bytes : LINE_BYTES_MAX;
    char *tail = malloc(n);
    if (tail != NULL && read_at(fd, tail, n, bytes - n) == (ssize_t)n) {
        const char *newline = memrchr(tail, '\n', n), *line = newline != NULL ? newline + 1 : tail;
        whole = (newline != NULL || n == bytes) && object_or_blank(line, n - (size_t)(line - tail));
    }
    free(tail);
    return whole;
}

static bool packed(int fd)
{
    uint8_t first[4];
    ssize_t n = read_at(fd, first, sizeof first, 0);

    return n > 0 && unpack_is_packed(first, (size_t)n);
}

/* --- the ways it can go --------------------------------------------------------------------------------------- */

/* It stays in the inbox.  note: why, or "" when that is what its name says; err: what the client is told, NULL nothing. */
static void keep(struct sftp_talk *s, const char *note, const struct error *err)
{
    uint8_t buffer[2048];
    struct byte_writer w = { .at = buffer, .capacity = sizeof buffer };

    s->refused = err != NULL;
    if (err != NULL)
        s->verdict = *err;
    door_put_str(&w, span_str(s->stored));
    door_put_str(&w, span_str(note));
    sftp_talk_ask(s, STAGE_KEEP, DOOR_FILE_DONE, &w);
}

static void keep_refused(struct sftp_talk *s, enum error_code code, const char *why)
{
    char note[900];
    struct error err;

    error_set(&err, code, NULL, "%s; the file is kept as %s: go on with `put -a`, or rename it to run it as it is", why, s->stored);
    snprintf(note, sizeof note, "%s.\nNothing was submitted.  To go on: `put -a` the file again.  To run it as it is: rename it to %s.\n", why,
             s->final);
    keep(s, note, &err);
}

static void submit(struct sftp_talk *s, bool as_it_is)
{
    uint8_t buffer[1024];
    struct byte_writer w = { .at = buffer, .capacity = sizeof buffer };

    door_put_str(&w, span_str(s->stored));
    door_put_str(&w, span_str(s->final));
    door_put_u32(&w, as_it_is);
    sftp_talk_ask(s, as_it_is ? STAGE_JOB : STAGE_SPOOL, DOOR_FILE_SUBMIT, &w);
}

void sftp_upload_finish(struct sftp_talk *s)
{
    const struct sftp_question *q = &s->question;
    struct stat st;

    inbox_stored_name(q->place.name, s->stored);
    snprintf(s->final, sizeof s->final, "%s", q->place.name);
    connection_wind_watchdog(); /* a sync takes as long as the disk does */
    if (q->refused[0] != '\0') {
        keep_refused(s, ERR_INVALID_REQUEST, q->refused);
    } else if (fsync(q->fd) != 0 || fstat(q->fd, &st) != 0) {
        keep_refused(s, ERR_INTERNAL, "the file cannot be written to disk");
    } else if (inbox_name_unfinished(s->final)) {
        keep(s, "", NULL);
    } else {
        s->source_bytes = (uint64_t)st.st_size;
        if (packed(q->fd))
            submit(s, false);
        else if (sftp_upload_whole(q->fd, s->source_bytes))
            submit(s, true);
        else
            keep_refused(s, ERR_INVALID_REQUEST, "the last line is not complete");
    }
}

void sftp_upload_rename(struct sftp_talk *s)
{
    uint8_t buffer[1024];
    struct byte_writer w = { .at = buffer, .capacity = sizeof buffer };

    inbox_stored_name(s->question.place.name, s->stored);
    snprintf(s->final, sizeof s->final, "%s", s->question.to.name);
    sftp_talk_put_place(&w, &s->question.place);
    door_put_u32(&w, SFTP_FLAG_READ);
    sftp_talk_ask(s, STAGE_SOURCE, DOOR_FILE, &w);
}

/* --- unpacking --------------------------------------------------------------------------------------------------- */

static void give_back(struct sftp_talk *s, const struct error *err)
{
    uint8_t buffer[2048];
    struct byte_writer w = { .at = buffer, .capacity = sizeof buffer };
    char why[ERROR_MESSAGE_BYTES + ERROR_PARAM_BYTES + 64];

    s->refused = true;
    s->verdict = *err;
    snprintf(why, sizeof why, "%s: %s%s%s%s", error_code_name(err->code), err->message, err->param[0] ? " (" : "", err->param,
             err->param[0] ? ")" : "");
    door_put_str(&w, span_str(why));
    sftp_talk_ask(s, STAGE_BACK, DOOR_FILE_BACK, &w);
}

/* All of it is in the spool. */
static void end_unpacking(struct sftp_talk *s)
{
    uint8_t buffer[16];
    struct byte_writer w = { .at = buffer, .capacity = sizeof buffer };
    struct error err;
    uint64_t bytes;

    if (intake_end(s->intake, &bytes, &err) != ST_OK) {
        give_back(s, &err);
        return;
    }
    door_put_u64(&w, bytes);
    sftp_talk_ask(s, STAGE_JOB, DOOR_SUBMIT_END, &w);
}

void sftp_upload_step(struct sftp_talk *s)
{
    static uint8_t bytes[PART_BYTES];
    struct error err;

    for (int i = 0; i < PARTS_A_STEP && s->stage == STAGE_UNPACK; i++) {
        ssize_t n = read_at(source_fd(s), bytes, sizeof bytes, s->source_at);
        if (n == 0) {
            end_unpacking(s);
        } else if (n < 0) {
            error_set(&err, ERR_INTERNAL, NULL, "the file cannot be read: %s", strerror(errno));
            give_back(s, &err);
        } else {
            s->source_at += (uint64_t)n;
            if (intake_put(s->intake, span_of(bytes, (size_t)n), &err) != ST_OK)
                give_back(s, &err);
        }
    }
}

static void begin_unpacking(struct sftp_talk *s, struct door_reader *r, int fd)
{
    struct error err;

    s->stage = STAGE_UNPACK;
    uint64_t bytes_max = door_get_u64(r);
    if (intake_new(CONVERT_NONE, NULL, false, &s->intake, &err) != ST_OK ||
        intake_open(s->intake, door_read_all(r) ? fd : -1, bytes_max, &err) != ST_OK)
        give_back(s, &err);
}

/* --- replies ------------------------------------------------------------------------------------------------------- */

/* The file that is to be renamed. */
static void on_source(struct sftp_talk *s, int fd)
{
    struct error err;
    struct stat st;

    s->source = fd >= 0 ? dup(fd) : -1;
    if (s->source < 0 || fstat(s->source, &st) != 0) {
        error_set(&err, ERR_INTERNAL, NULL, "the file cannot be read");
        answer(s, &err, false);
        return;
    }
    connection_wind_watchdog();
    if (fsync(s->source) != 0) { /* here, where it holds up nobody else: the jobs process then finds nothing left to write */
        error_set(&err, ERR_INTERNAL, NULL, "the file cannot be written to disk: %s", strerror(errno));
        answer(s, &err, false);
        return;
    }
    s->source_bytes = (uint64_t)st.st_size;
    submit(s, !packed(s->source));
}

static void on_job(struct sftp_talk *s, struct door_reader *r, int fd)
{
    char *text = NULL, sentence[160];
    size_t n = 0;
    json_t *job = door_get_text(r, fd, &text, &n) == ST_OK ? json_loadb(text, n, 0, NULL) : NULL;
    const char *id = json_string_value(json_object_get(job, "id"));

    if (id != NULL) {
        snprintf(sentence, sizeof sentence, "is now job %s, %lld lines", id,
                 (long long)json_integer_value(json_object_get(json_object_get(job, "request_counts"), "total")));
        sftp_talk_say(s, s->final, sentence);
    }
    json_decref(job);
    free(text);
    answer(s, NULL, true);
}

void sftp_upload_reply(struct sftp_talk *s, struct door_reader *r, int fd)
{
    switch (s->stage) {
    case STAGE_SOURCE:
        on_source(s, fd);
        break;
    case STAGE_SPOOL:
        begin_unpacking(s, r, fd);
        break;
    case STAGE_JOB:
        on_job(s, r, fd);
        break;
    default: /* KEEP, BACK */
        answer(s, s->refused ? &s->verdict : NULL, false);
    }
}

void sftp_upload_failed(struct sftp_talk *s, const struct error *err)
{
    answer(s, err, false);
}
