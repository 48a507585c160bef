/* job_store.h - jobs and their lines on disk: one SQLite file, written by the jobs process only.
 *
 * WAL, synchronous FULL: when a commit returns it survives power loss.  Counters are columns, so a status costs one row however
 * long the job is.  A line's row says where it is in the input, whether it is done, and where its answer is in the output.
 *
 *   validating ──► in_progress ──► completed            ids are never reused: the sequence number only grows
 *       │              │  │  └──► expired               (AUTOINCREMENT), also over deletions
 *       ▼              │  └─────► failed
 *   (removed)          └► cancelling ──► cancelled
 *
 * The file and its answers together: records are appended to output.jsonl and errors.jsonl and synced first, then one
 * transaction marks their lines done and moves the files' lengths (output_bytes, errors_bytes).  After a crash the files are cut to those
 * lengths, and the lines not marked run again: each line is answered once on disk.
 *
 * No threads.  Every call may return ST_SYSTEM (logged: the disk is full or broken): then nothing of the transaction is kept. */
#ifndef JOB_STORE_H
#define JOB_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "error.h"
#include "limits.h"
#include "status.h"
#include "users.h"

enum job_state {
    JOB_VALIDATING,
    JOB_IN_PROGRESS,
    JOB_CANCELLING,  /* lines that are left become errors */
    JOB_EXPIRING,    /* the same, because its deadline has passed; shown as in_progress */
    JOB_COMPLETED,
    JOB_CANCELLED,
    JOB_EXPIRED,
    JOB_FAILED,
    JOB_DELETED,     /* hidden; its rows are being removed */
    JOB_STATES
};
const char *job_state_name(enum job_state s); /* as in the OpenAI API */
static inline bool job_state_ended(enum job_state s)
{
    return s >= JOB_COMPLETED;
}

enum { JOB_ID_BYTES = 16, JOB_NAME_BYTES = 65, JOB_KEY_BYTES = 129, JOB_DIGEST_BYTES = 33, JOB_ERROR_BYTES = 200 };

struct job_row {
    int64_t seq;                          /* 0: not stored yet */
    char id[JOB_ID_BYTES];
    char user[USER_NAME_BYTES];
    char name[JOB_NAME_BYTES];
    char key[JOB_KEY_BYTES];              /* "": none */
    char digest[JOB_DIGEST_BYTES];        /* of content and options, hexadecimal */
    char model[NAME_BYTES_MAX];           /* "": what the lines say */
    uint32_t max_tokens, priority;        /* 0: not given; 1 low, 2 normal, 3 high */
    enum job_state state;
    int64_t created_ms, started_ms, ended_ms, deadline_ms; /* real time; 0: not yet, none */
    uint64_t n_lines, n_done, n_failed, n_retries;
    uint64_t n_length;                    /* of n_done: answers that their limit of tokens ended */
    uint64_t prompt_tokens, cached_tokens, completion_tokens;
    uint64_t input_bytes, output_bytes, errors_bytes;
    uint64_t n_held;                      /* lines that wait for `release` */
    char error[JOB_ERROR_BYTES];          /* why it failed as a whole */
};

enum line_state { LINE_OPEN, LINE_ANSWERED, LINE_FAILED, LINE_HELD };

/* What a user used: on a day, or in what is added up. */
struct usage {
    uint64_t jobs, questions, answers, errors;
    uint64_t prompt_tokens, cached_tokens, completion_tokens;
};

/* Everything it was to answer for now is answered; the rest waits for `release`. */
static inline bool job_row_rests(const struct job_row *r)
{
    return r->n_held > 0 && r->n_done + r->n_failed + r->n_held == r->n_lines;
}

struct line_ref {
    uint32_t number;                      /* in the file, from 1 */
    uint32_t bytes;                       /* without the newline */
    uint64_t offset;
};

struct line_place {                       /* of an answer, in output.jsonl */
    uint64_t offset;
    uint32_t bytes, number;
};

/* A line of one job, and the answered line of another that has the same custom_id. */
struct line_pair {
    struct line_ref to, from;
    struct line_place place;              /* of the answer of from */
};

struct job_store;

/* ST_OK; ST_SYSTEM, ST_CORRUPT (not our file, or a newer version) with *err set. */
MUST_CHECK enum status job_store_open(const char *path, struct job_store **ret_store, struct error *err);
void job_store_close(struct job_store *s); /* NULL is fine */

/* One transaction; they do not nest.  A failed commit has rolled back. */
MUST_CHECK enum status job_store_begin(struct job_store *s);
/* One whose commit does not wait for the disk: power loss may undo it, until the next other commit, which makes it durable too.  For what
 * nobody has been told of yet. */
MUST_CHECK enum status job_store_begin_early(struct job_store *s);
MUST_CHECK enum status job_store_commit(struct job_store *s);
void job_store_rollback(struct job_store *s);
/* After a failure: make sure that what this store says now is what a start would find.  A commit whose sync failed may be on disk all the
 * same, and count after a crash, until the next commit writes over it.  Before anybody is told that something did not happen; costs nothing
 * when nothing failed.  ST_SYSTEM: still not known. */
MUST_CHECK enum status job_store_settle(struct job_store *s);

/* Insert a new job: sets row->seq and row->id.  ST_INVALID: this user has a job with this key already. */
MUST_CHECK enum status job_store_add(struct job_store *s, struct job_row *row);
/* Write everything that can change of row, its key too.  ST_INVALID: this user has another job with this key. */
MUST_CHECK enum status job_store_save(struct job_store *s, const struct job_row *row);

/* ST_INVALID: custom_id is there already, *ret_first is its line. */
MUST_CHECK enum status job_store_add_line(struct job_store *s, int64_t seq, const struct line_ref *line, const char *custom_id,
                                          uint32_t *ret_first);
MUST_CHECK enum status job_store_line_done(struct job_store *s, int64_t seq, uint32_t number, enum line_state state,
                                           uint64_t offset, uint32_t bytes);
/* Open the failed (LINE_FAILED) or held (LINE_HELD) lines again; what the job's row says of them is the caller's to save. */
MUST_CHECK enum status job_store_reopen_lines(struct job_store *s, int64_t seq, enum line_state which);
/* Hold all open lines but n of them, chosen at random.  *ret_held: how many. */
MUST_CHECK enum status job_store_hold_lines(struct job_store *s, int64_t seq, uint64_t n, uint64_t *ret_held);

/* day: days since 1970, UTC.  job_store_usage adds up the days from since on. */
MUST_CHECK enum status job_store_add_usage(struct job_store *s, const char *user, int64_t day, const struct usage *more);
MUST_CHECK enum status job_store_usage(struct job_store *s, const char *user, int64_t since, struct usage *ret_usage);
/* The day of a moment, and the first day of its month. */
int64_t usage_day(int64_t real_ms);
int64_t usage_month(int64_t real_ms);

/* The next open lines after a number, in order: at most max.  *ret_n 0: there are none left. */
MUST_CHECK enum status job_store_open_lines(struct job_store *s, int64_t seq, uint32_t after, struct line_ref *ret_lines, size_t max,
                                            size_t *ret_n);
/* Pairs of lines of job to and job from, in the order of their custom_ids, behind the one in after [after_bytes], which becomes the last one's;
 * at first it is "".  At most max. */
MUST_CHECK enum status job_store_pairs(struct job_store *s, int64_t to, int64_t from, char *after, size_t after_bytes,
                                       struct line_pair *ret_pairs, size_t max, size_t *ret_n);
/* Where the answers are, by line.  Gives *ret_places (free()). */
MUST_CHECK enum status job_store_places(struct job_store *s, int64_t seq, struct line_place **ret_places, size_t *ret_n);

/* What a user may call a job: its id, "last", its name (the newest of that name), or the beginning of one id.
 * ST_NOT_FOUND with *err (also: the beginning of several). */
MUST_CHECK enum status job_store_find(struct job_store *s, const char *user, const char *what, struct job_row *ret_row, struct error *err);
MUST_CHECK enum status job_store_by_seq(struct job_store *s, int64_t seq, struct job_row *ret_row);
MUST_CHECK enum status job_store_by_key(struct job_store *s, const char *user, const char *key, struct job_row *ret_row);

/* Call each(row) for the jobs of a user, newest first (ended ones only if they ended at since_ms or later); user NULL: those of all
 * users that have not ended, oldest first.  each returns false to stop.  It must not change the store. */
MUST_CHECK enum status job_store_each(struct job_store *s, const char *user, int64_t since_ms, bool (*each)(const struct job_row *, void *),
                                      void *arg);
/* Jobs of a user that have not ended. */
MUST_CHECK enum status job_store_count_open(struct job_store *s, const char *user, uint64_t *ret_n);

/* How many jobs there are in each state. */
MUST_CHECK enum status job_store_count_states(struct job_store *s, uint64_t ret_n[JOB_STATES]);

/* Remove at most so many lines of a deleted job; when none is left remove(row) removes its files, then its row goes.
 * *ret_left: there is more to do. */
MUST_CHECK enum status job_store_sweep(struct job_store *s, unsigned lines_max, void (*remove)(const struct job_row *, void *), void *arg,
                                       bool *ret_left);
/* Mark the jobs that ended before as deleted: the sweep removes them. */
MUST_CHECK enum status job_store_expire(struct job_store *s, int64_t ended_before_ms);

#endif
