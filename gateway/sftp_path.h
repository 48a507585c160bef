/* sftp_path.h - the tree that a user sees over sftp, and the names in it.  Pure.
 *
 *   /inbox/NAME                                         files on their way to become jobs
 *   /jobs/JOB/{input,output,errors}.jsonl, status.json  JOB: whatever the verbs take for one: an id, a name, `last`
 *   /NAME                                               the same as /inbox/NAME, for `scp FILE box:`
 *
 * It is no tree of the file system: a path becomes a place, by its words alone, and a place is all that the jobs process is asked for.
 * So "..", links and devices have nothing to lead to.
 *
 * Names in the inbox.  A file that is being written, or was left half, is stored as NAME.incomplete, and found under NAME too.
 * A name that says itself that it is not finished (x.part, x.filepart, x.tmp, x.incomplete, .x) is stored as it is. */
#ifndef SFTP_PATH_H
#define SFTP_PATH_H

#include <stdbool.h>

#include "span.h"
#include "status.h"

enum {
    SFTP_PATH_BYTES_MAX = 4096,
    INBOX_NAME_BYTES_MAX = 200,    /* a name, without .incomplete */
    SFTP_NAME_BYTES = 224,         /* any name of the tree, with its NUL: also that of a note */
    SFTP_JOB_BYTES = 128,          /* what a job is called */
};

enum sftp_kind {
    PLACE_NOWHERE,                 /* there is nothing of that name, and can be nothing */
    PLACE_ROOT,
    PLACE_INBOX,
    PLACE_INBOX_FILE,              /* name */
    PLACE_JOBS,
    PLACE_JOB,                     /* job */
    PLACE_JOB_FILE,                /* job, name: one of the four */
    PLACE_KINDS
};

struct sftp_place {
    enum sftp_kind kind;
    char job[SFTP_JOB_BYTES], name[SFTP_NAME_BYTES];
};

/* The place of a path.  Always gives one; PLACE_NOWHERE when in doubt. */
void sftp_place_of(struct span path, struct sftp_place *ret_place);

/* The path without ".", ".." and double slashes, from the root, NUL-terminated.  to [bytes]: at least SFTP_PATH_BYTES_MAX + 2.
 * ST_OK; ST_INVALID: it is longer than SFTP_PATH_BYTES_MAX, or has a NUL in it. */
MUST_CHECK enum status sftp_path_canonical(struct span path, char *to, size_t bytes);

/* Which of the files of a job: an index, or -1. */
enum sftp_job_file { SFTP_INPUT, SFTP_OUTPUT, SFTP_ERRORS, SFTP_STATUS, SFTP_JOB_FILES };
int sftp_job_file(const char *name);
const char *sftp_job_file_name(enum sftp_job_file which);

/* May there be a file of this name in the inbox?  No control characters, no slash, not . or .., not too long; any other byte. */
bool inbox_name_valid(struct span name);
/* Says of itself that it is not finished. */
bool inbox_name_unfinished(const char *name);
/* NAME.incomplete.txt: why a file is still there. */
bool inbox_name_is_note(const char *name);
/* The name without .incomplete, as which it would become a job, is short enough to be written. */
bool inbox_name_writable(const char *name);
/* Under which name it is stored. */
void inbox_stored_name(const char *name, char to[SFTP_NAME_BYTES]);
/* A stored name beside that one, for n from 1 to 99: NAME~1.incomplete, x~1.part; shortened so that it still is a name that can be written. */
void inbox_other_name(const char *stored, unsigned n, char to[SFTP_NAME_BYTES]);
/* The note beside a stored name. */
void inbox_note_name(const char *stored, char to[SFTP_NAME_BYTES]);
/* What a job made of it is called: the name without .jsonl, .gz and the like, but `last.jsonl` as a whole, as `last` is the newest job;
 * "" when that is no fit name of a job. */
void inbox_job_name(const char *name, char *to, size_t bytes);

#endif
