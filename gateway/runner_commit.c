/* runner_commit.c - records go to disk: append, sync, then one transaction for all of them.
 *
 * The order is the promise: a line is marked done only when its record is on disk, and the file's length moves in the same
 * transaction, so after a crash every byte beyond the length belongs to lines that are not marked and will run again.
 *
 * When the disk is full nothing is lost and nobody fails: the records stay in memory (feeding stops, so they are bounded), and it is tried
 * again every RUNNER_DISK_PAUSE_MS.  What was appended is not cut away meanwhile: a commit that was refused because its sync failed may be on
 * disk all the same, and a start that finds it needs these bytes.  The next try writes the same records to the same places.
 * A job whose own files are gone fails alone, and one whose files cannot be opened waits alone. */
#include "runner.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clock.h"
#include "log.h"

void runner_record(struct runner *r, struct job *j, uint32_t number, char *text, size_t bytes,
                   const struct weir_answer *answer, uint64_t now_ns)
{
    char *line = realloc(text, bytes + 1);

    if (line == NULL) {
        free(text);
        runner_fail_job(r, j, "out of memory");
        return;
    }
    line[bytes] = '\n';
    assert(r->n_records < RUNNER_RECORDS_MAX);
    if (r->n_records == 0)
        r->oldest_record_ns = now_ns;
    struct record *rec = &r->records[r->n_records++];
    *rec = (struct record){ .job = j, .number = number, .text = line, .bytes = bytes + 1 };
    if (answer != NULL) {
        rec->answered = true;
        rec->cut = answer->choices[0].finish == WEIR_FINISH_LENGTH;
        rec->usage = answer->usage;
    }
    r->record_bytes += bytes + 1;
    j->n_pending++;
}

/* --- files ---------------------------------------------------------------------------------------- */

static void close_files(struct job *j)
{
    int *const fds[] = { &j->input_fd, &j->output_fd, &j->errors_fd };

    for (size_t i = 0; i < 3; i++) {
        if (*fds[i] >= 0)
            close(*fds[i]);
        *fds[i] = -1;
    }
}

static enum status cut(int fd, uint64_t bytes)
{
    struct stat s;

    if (fstat(fd, &s) != 0)
        return ST_SYSTEM;
    if ((uint64_t)s.st_size < bytes)
        return ST_CORRUPT;
    if ((uint64_t)s.st_size > bytes && ftruncate(fd, (off_t)bytes) != 0)
        return ST_SYSTEM;
    return ST_OK;
}

enum status runner_open_files(struct runner *r, struct job *j, uint64_t now_ns, char *why, size_t why_bytes)
{
    enum status st = job_files_job(r->files, &j->row, JOB_FILE_INPUT, false, &j->input_fd);

    if (st == ST_OK)
        st = job_files_job(r->files, &j->row, JOB_FILE_OUTPUT, true, &j->output_fd);
    if (st == ST_OK)
        st = job_files_job(r->files, &j->row, JOB_FILE_ERRORS, true, &j->errors_fd);
    if (st == ST_OK)
        st = cut(j->output_fd, j->row.output_bytes);
    if (st == ST_OK)
        st = cut(j->errors_fd, j->row.errors_bytes);
    if (st == ST_OK) {
        j->output_end = j->row.output_bytes;
        j->errors_end = j->row.errors_bytes;
        return ST_OK;
    }
    int error = errno;
    close_files(j);
    if (st == ST_NOT_FOUND || st == ST_CORRUPT) {
        snprintf(why, why_bytes,
                 st == ST_NOT_FOUND ? "its files are gone" : "a file of answers is shorter than it was");
        return ST_CORRUPT;
    }
    j->disk_not_before_ns = now_ns + RUNNER_DISK_PAUSE_MS * 1000000ull;
    snprintf(j->note, sizeof j->note, "waiting for the disk: %s", strerror(error));
    j->version++;
    return ST_SYSTEM;
}

static enum status append(struct record *rec)
{
    struct job *j = rec->job;
    int fd = rec->answered ? j->output_fd : j->errors_fd;
    uint64_t *end = rec->answered ? &j->output_end : &j->errors_end;

    rec->place = *end;
    for (size_t done = 0; done < rec->bytes;) {
        ssize_t n = pwrite(fd, rec->text + done, rec->bytes - done, (off_t)(*end + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            errno = n == 0 ? ENOSPC : errno;
            return ST_SYSTEM;
        }
        done += (size_t)n;
    }
    *end += rec->bytes;
    return ST_OK;
}

/* All records into their files, and the files to disk. */
static enum status write_records(struct runner *r)
{
    for (size_t i = 0; i < r->n_records; i++) {
        if (append(&r->records[i]) != ST_OK)
            return ST_SYSTEM;
    }
    for (struct job *j = r->jobs; j != NULL; j = j->next) {
        if (j->n_pending == 0)
            continue;
        if ((j->output_end != j->row.output_bytes && fdatasync(j->output_fd) != 0) ||
            (j->errors_end != j->row.errors_bytes && fdatasync(j->errors_fd) != 0))
            return ST_SYSTEM;
    }
    return ST_OK;
}

/* --- the transaction ------------------------------------------------------------------------------- */

/* What a job's row will be when its pending records are committed. */
static struct job_row next_row(const struct runner *r, const struct job *j, int64_t real_ms)
{
    struct job_row row = j->row;

    for (size_t i = 0; i < r->n_records; i++) {
        const struct record *rec = &r->records[i];
        if (rec->job != j)
            continue;
        row.n_done += rec->answered;
        row.n_failed += !rec->answered;
        row.n_length += rec->cut;
        row.prompt_tokens += rec->usage.prompt_tokens;
        row.cached_tokens += rec->usage.cached_tokens;
        row.completion_tokens += rec->usage.completion_tokens;
    }
    row.output_bytes = j->output_end;
    row.errors_bytes = j->errors_end;
    row.n_retries += j->n_retried;
    if (row.n_done + row.n_failed == row.n_lines) {
        row.state = row.state == JOB_CANCELLING ? JOB_CANCELLED
                    : row.state == JOB_EXPIRING ? JOB_EXPIRED
                                                : JOB_COMPLETED;
        row.ended_ms = real_ms;
    }
    return row;
}

static enum status commit_records(struct runner *r, int64_t real_ms)
{
    enum status st = job_store_begin(r->store);

    if (st != ST_OK)
        return st;
    for (size_t i = 0; i < r->n_records && st == ST_OK; i++) {
        const struct record *rec = &r->records[i];
        st = job_store_line_done(r->store, rec->job->row.seq, rec->number,
                                 rec->answered ? LINE_ANSWERED : LINE_FAILED, rec->place,
                                 (uint32_t)rec->bytes);
    }
    for (struct job *j = r->jobs; j != NULL && st == ST_OK; j = j->next) {
        if (j->n_pending == 0)
            continue;
        struct job_row row = next_row(r, j, real_ms);
        struct usage more = { .answers = row.n_done - j->row.n_done,
                              .errors = row.n_failed - j->row.n_failed,
                              .prompt_tokens = row.prompt_tokens - j->row.prompt_tokens,
                              .cached_tokens = row.cached_tokens - j->row.cached_tokens,
                              .completion_tokens = row.completion_tokens - j->row.completion_tokens };
        st = job_store_save(r->store, &row);
        if (st == ST_OK)
            st = job_store_add_usage(r->store, row.user, usage_day(real_ms), &more);
    }
    if (st != ST_OK) {
        job_store_rollback(r->store);
        return st;
    }
    return job_store_commit(r->store);
}

static void on_committed(struct runner *r, int64_t real_ms)
{
    for (struct job *j = r->jobs; j != NULL; j = j->next) {
        if (j->n_pending == 0)
            continue;
        struct job_row row = next_row(r, j, real_ms);
        if (job_state_ended(row.state)) {
            log_info("job", "id=%s user=%s state=%s lines=%" PRIu64 " failed=%" PRIu64, row.id, row.user,
                     job_state_name(row.state), row.n_lines, row.n_failed);
            runner_tell_end(r, &row);
        }
        j->row = row;
        j->n_pending = 0;
        j->n_retried = 0;
        j->note[0] = '\0';
        j->version++;
    }
    for (size_t i = 0; i < r->n_records; i++) {
        r->n_answered += r->records[i].answered;
        r->n_failed += !r->records[i].answered;
        free(r->records[i].text);
    }
    r->n_records = 0;
    r->record_bytes = 0;
}

/* The disk refused: wait, and append the same again to what is committed. */
static void on_refused(struct runner *r, int error, uint64_t now_ns)
{
    log_error("commit", "records=%zu error=%d text=\"%s\" retry_ms=%d", r->n_records, error, strerror(error),
              RUNNER_DISK_PAUSE_MS);
    r->n_refused++;
    for (struct job *j = r->jobs; j != NULL; j = j->next) {
        if (j->n_pending == 0)
            continue;
        j->output_end = j->row.output_bytes;
        j->errors_end = j->row.errors_bytes;
        snprintf(j->note, sizeof j->note, "waiting for the disk: %s", strerror(error));
        j->version++;
    }
    r->flush_not_before_ns = now_ns + RUNNER_DISK_PAUSE_MS * 1000000ull;
}

void runner_flush(struct runner *r, uint64_t now_ns)
{
    if (r->n_records == 0)
        return;
    int64_t real_ms = clock_real_ms(); /* once: the rows in memory are those in the store */
    errno = 0;
    enum status st = write_records(r);
    int error = errno;
    if (st == ST_OK) {
        st = commit_records(r, real_ms);
        error = errno != 0 ? errno : EIO;
    }
    r->last_flush_ns = now_ns;
    if (st == ST_OK)
        on_committed(r, real_ms);
    else
        on_refused(r, error, now_ns);
}

/* --- the end of a job ------------------------------------------------------------------------------- */

void runner_fail_job(struct runner *r, struct job *j, const char *why)
{
    size_t kept = 0;

    if (j->row.state == JOB_FAILED)
        return;
    for (size_t i = 0; i < r->n_records; i++) {
        struct record *rec = &r->records[i];
        if (rec->job == j) {
            r->record_bytes -= rec->bytes;
            free(rec->text);
        } else {
            r->records[kept++] = *rec;
        }
    }
    r->n_records = kept;
    j->n_pending = 0;
    j->n_retries = 0;
    runner_take_back(r, j);
    j->row.state = JOB_FAILED;
    j->row.ended_ms = clock_real_ms();
    snprintf(j->row.error, sizeof j->row.error, "%s", why);
    j->version++;
    log_error("job", "id=%s user=%s state=failed reason=\"%s\"", j->row.id, j->row.user, why);
    if (job_store_save(r->store, &j->row) == ST_OK) {
        runner_tell_end(r, &j->row);
        return;
    }
    log_error("job", "id=%s what=not_saved", j->row.id);
    r->jobs_left = true; /* it is in progress there: taken up again, it meets the same reason */
}

void runner_tell_end(const struct runner *r, const struct job_row *row)
{
    if (r->on_end != NULL)
        r->on_end(row, r->on_end_arg);
}

void runner_drop(struct runner *r, struct job *j)
{
    struct job **at = &r->jobs;

    assert(j->n_pending == 0 && j->n_flying == 0);
    while (*at != j)
        at = &(*at)->next;
    *at = j->next;
    r->n_jobs--;
    close_files(j);
    free(j->retries);
    free(j);
}
