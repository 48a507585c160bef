/* runner.h - runs the jobs that have not ended: feeds their lines to the broker, writes the answers down, ends the jobs.
 *
 * A line is in exactly one place:
 *
 *   open (store) ──feed──► flying (a slot, the broker has it) ──answer──► pending (a record in memory) ──commit──► done (store + file)
 *                   ▲           │
 *                   └── retry ◄─┘   the request failed for our reason: waits in its job's list, then is fed again
 *
 * A crash forgets flying, pending and retry: such lines are open again. Nothing is both pending and done, because one transaction
 * marks the line done and moves the length of the file that the record was appended to.
 *
 * One thread; no call waits for the broker.  It does wait for the disk in commits, which are batched. */
#ifndef RUNNER_H
#define RUNNER_H

#include <jansson.h>

#include "job_files.h"
#include "job_store.h"
#include "pool_link.h"
#include "users.h"
#include "weir_batch.h"

enum {
    RUNNER_WINDOW_MAX = 2048,           /* lines flying at once, */
    RUNNER_OWN_SHARE = 4,               /* and beyond the window so many of each user who has no more, */
    RUNNER_RESERVE = 256,               /* in so many slots: who holds the window with long lines keeps nobody out */
    RUNNER_PAGE = 256,                  /* open lines read from the store at once, and fed in the order of their prefixes, */
    RUNNER_PAGE_BYTES = 2 << 20,        /* or fewer when they are long */
    RUNNER_JOBS_MAX = 4096,             /* jobs that have not ended, all users */
    RUNNER_RECORDS_MAX = 4096,          /* records in memory; more are not made, by not feeding */
    RUNNER_RECORD_BYTES_MAX = 64 << 20,
    RUNNER_DISK_PAUSE_MS = 2000,        /* before the disk is tried again */
    JOB_NOTE_BYTES = 256,
};

/* How often a line has met each of these: every kind has a bound, or none, of its own. */
struct tries {
    uint32_t busy, no_worker, internal;
};

struct retry {
    struct line_ref line;
    struct tries tries;
    uint64_t due_ns;
};

struct job {
    struct job_row row;                 /* as committed */
    struct job *next;
    uint32_t user;                      /* a number that the jobs of one user have in common, below RUNNER_JOBS_MAX */
    int input_fd, output_fd, errors_fd; /* -1 until the first line */
    uint64_t output_end, errors_end;    /* appended, perhaps not committed yet */
    struct line_ref page[RUNNER_PAGE];
    size_t page_n, page_at;
    uint32_t cursor;                    /* number of the last line taken from the store */
    bool exhausted;                     /* the store has no open line behind the cursor */
    struct retry *retries;
    size_t n_retries, retries_capacity;
    uint32_t n_flying, n_pending;
    uint64_t n_retried;                 /* not in row yet */
    uint64_t last_turn;                 /* runner.turn when it was last fed */
    bool capped;                        /* its user has as many lines with the broker as the window or max-queued allows */
    uint64_t feed_not_before_ns;        /* after "busy": of all jobs of that user, nobody else's */
    uint64_t disk_not_before_ns;        /* after its files or its lines could not be read: the other jobs go on */
    uint64_t version;                   /* changes with everything a watcher can see */
    char note[JOB_NOTE_BYTES];          /* why it does not go on: "no space on the disk" */
    char goes_again[JOB_NOTE_BYTES];    /* what the pool said when it last gave a line back */
};

struct standstill {                     /* standstill.h */
    uint64_t ended;                     /* lines, when they were last counted */
    uint64_t look_ns;                   /* when the broker is asked next */
    bool asking, up;                    /* up: the link, when it was last looked at */
    json_t *queues;                     /* models for which requests wait, and no worker takes any; NULL: not known */
};

struct flight;
struct record;

struct runner {
    struct job_store *store;
    struct job_files *files;
    struct pool_link *link;
    const struct users *users;          /* for max-queued of users and groups; NULL: no limits */
    struct job *jobs;                   /* in the order of their sequence numbers */
    size_t n_jobs;
    bool jobs_left;                     /* in the store are jobs that have not ended and are not here, */
    uint64_t jobs_look_ns;              /* which are looked for then */
    struct flight *flights;             /* [n_flights]: the window and the reserve */
    uint32_t window, n_flights, n_flying;
    struct record *records;             /* [RUNNER_RECORDS_MAX] not committed yet, oldest first */
    size_t n_records, record_bytes;
    uint64_t oldest_record_ns;
    uint64_t flush_not_before_ns;       /* after a failed commit: until then nothing is fed either */
    uint64_t turn;                      /* counts feeds */
    void (*on_end)(const struct job_row *row, void *arg); /* a job has ended, which is committed; NULL: nobody wants to know */
    void *on_end_arg;
    uint64_t last_flush_ns;
    uint64_t n_answered, n_failed, n_retried, n_refused; /* lines since the start; commits that the disk refused */
    double pace_ns, pace_lines;         /* outlook.c: time with lines under way, and lines answered in it */
    uint64_t pace_seen_ns, pace_seen;
    bool pace_busy;
    uint32_t n_users;                   /* with lines to be answered, as counted lately */
    uint64_t users_counted_ns;
    struct standstill standstill;
};

MUST_CHECK enum status runner_init(struct runner *r, struct job_store *store, struct job_files *files, struct pool_link *link,
                                   uint32_t window);
/* Commits what is pending and frees everything; the lines that fly are forgotten, that is: open again. */
void runner_deinit(struct runner *r, uint64_t now_ns);

/* Take over the jobs that the store says have not ended. */
MUST_CHECK enum status runner_recover(struct runner *r);
/* A new job, committed in state JOB_IN_PROGRESS.  ST_OK, ST_LIMIT (RUNNER_JOBS_MAX), ST_NOMEM: then a later runner_step() takes it from the
 * store. */
MUST_CHECK enum status runner_add(struct runner *r, const struct job_row *row);
/* NULL: it has ended, or is not there. */
struct job *runner_find(struct runner *r, int64_t seq);

/* Begin to end a job: JOB_CANCELLING or JOB_EXPIRING, committed when it returns ST_OK.  Already so: ST_OK. */
MUST_CHECK enum status runner_end(struct runner *r, struct job *j, enum job_state how);

/* A line that could not be made into a request when it was uploaded (convert.h) carries the reason: it replaces *error. */
void runner_refusal_of(const char *text, size_t bytes, struct weir_error *error);

/* Run the held lines too: committed when it returns ST_OK.  ST_AGAIN: lines that were not held are still under way. */
MUST_CHECK enum status runner_release(struct runner *r, struct job *j);

/* Feed, commit, end what is to be ended.  Call in each turn of the loop, after pool_link_step(). */
void runner_step(struct runner *r, uint64_t now_ns, int64_t real_ms);
/* Call runner_step after so long at the latest; -1: when something happens. */
int runner_timeout_ms(const struct runner *r, uint64_t now_ns);

/* --- between runner.c, runner_commit.c and runner_turn.c -------------------------------------------------- */

struct record {                         /* one answer or error that is not on disk yet */
    struct job *job;
    uint32_t number;                    /* of the line */
    bool answered;                      /* output.jsonl, else errors.jsonl */
    char *text;                         /* with its newline */
    size_t bytes;
    uint64_t place;                     /* where it was appended */
    bool cut;                           /* answered, and ended by its limit of tokens */
    struct weir_usage usage;
};

/* Keep a record; takes text, adds the newline.  answer: NULL for an error.  The caller has seen that there is room. */
void runner_record(struct runner *r, struct job *j, uint32_t number, char *text, size_t bytes, const struct weir_answer *answer,
                   uint64_t now_ns);
/* Of whom a line is fed next: each user stands with one job, so a hundred jobs of one do not hide that of another.  NULL: nobody has
 * anything, or room. */
struct job *runner_whose_turn(const struct runner *r, uint64_t now_ns);
/* Open the files of a job, cut to what is committed.  ST_OK, ST_SYSTEM (try again at its disk_not_before_ns), ST_CORRUPT: *why. */
MUST_CHECK enum status runner_open_files(struct runner *r, struct job *j, uint64_t now_ns, char *why, size_t why_bytes);
/* Append, sync, commit all records.  A failure keeps them for a later try. */
void runner_flush(struct runner *r, uint64_t now_ns);
/* End a job as a whole: its records are dropped, its lines taken back from the broker, its state becomes failed. */
void runner_fail_job(struct runner *r, struct job *j, const char *why);
/* Ask the broker to end what it has of a job. */
void runner_take_back(struct runner *r, struct job *j);
/* Tell whoever wants to know that a job has ended. */
void runner_tell_end(const struct runner *r, const struct job_row *row);
/* Remove a job that has ended from the list. */
void runner_drop(struct runner *r, struct job *j);

#endif
