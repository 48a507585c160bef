/* inbox.h - the files of the inboxes, on disk.  In the jobs process only.
 *
 *   STATE/files/USER/inbox/NAME.incomplete        on its way, or left half; see sftp_path.h for names
 *   STATE/files/USER/inbox/NAME.incomplete.txt    why it is still there
 *   STATE/files/USER/submitting/TOKEN-STORED      complete: a job is being made of it
 *
 * How a file becomes one job, whatever dies when:
 *
 *   inbox/STORED ──take──► submitting/TOKEN-STORED ──► job committed with the key TOKEN ──► drop
 *         ▲                        │
 *         └──────────back──────────┘ refused, or the connection has gone
 *
 * At the start inbox_recover() looks at what is in submitting/: if a job has its token as key the file is dropped, if none has it goes back,
 * and if the store cannot tell it stays there and is looked at again later.
 *
 * Every name is one word (inbox_name_valid) and is opened beneath the folder's descriptor with openat2: no links, no other file system,
 * nothing but regular files. */
#ifndef INBOX_H
#define INBOX_H

#include "job_files.h"
#include "sftp_path.h"

enum {
    INBOX_TOKEN_BYTES = 33,        /* 128 random bits, hexadecimal */
    INBOX_FILES_MAX = 1000,        /* files of one inbox, notes too */
    INBOX_TIMES = 4,               /* all files of an inbox together have at most so many times the bytes of a job */
};

struct inbox_file {
    const char *name;              /* as stored; borrowed for the call */
    uint64_t size;
    int64_t mtime_s;
};

/* ST_OK, ST_NOT_FOUND, ST_SYSTEM (logged). */
MUST_CHECK enum status inbox_look(const struct job_files *f, const char *user, const char *stored, struct inbox_file *ret_file);
/* each returns false to stop. */
MUST_CHECK enum status inbox_each(const struct job_files *f, const char *user, bool (*each)(const struct inbox_file *, void *), void *arg);

enum inbox_open { INBOX_READ = 0, INBOX_WRITE = 1, INBOX_CREATE = 2, INBOX_TRUNCATE = 4, INBOX_EXCLUSIVE = 8 };
/* how: bits.  ST_OK; ST_NOT_FOUND; ST_INVALID: it is there and EXCLUSIVE was asked, or it is no file; ST_SYSTEM. */
MUST_CHECK enum status inbox_open(const struct job_files *f, const char *user, const char *stored, unsigned how, int *ret_fd);

/* Its note goes too. */
MUST_CHECK enum status inbox_remove(const struct job_files *f, const char *user, const char *stored);
/* Likewise, and that of a file that is replaced.  ST_INVALID: there is one of that name, and replace is false. */
MUST_CHECK enum status inbox_rename(const struct job_files *f, const char *user, const char *from, const char *to, bool replace);
/* Write the note of a file; text "": remove it. */
void inbox_note(const struct job_files *f, const char *user, const char *stored, const char *text);

/* The steps of the drawing above.  Durable.  inbox_back replaces nothing: if another file has the name by now it gets one beside it
 * (inbox_other_name), and *ret_stored is what it is called.  ST_OK, ST_NOT_FOUND, ST_INVALID: no name is free; ST_SYSTEM. */
MUST_CHECK enum status inbox_take(const struct job_files *f, const char *user, const char *stored, char token[INBOX_TOKEN_BYTES]);
MUST_CHECK enum status inbox_back(const struct job_files *f, const char *user, const char *stored, const char *token,
                                  char ret_stored[SFTP_NAME_BYTES]);
/* The note of a file that went back: why, and what it was called if it has another name now. */
void inbox_note_return(const struct job_files *f, const char *user, const char *stored, const char *back, const char *why);
void inbox_drop(const struct job_files *f, const char *user, const char *stored, const char *token);
/* Give what was taken a second name: that of a spool file.  No byte is copied. */
MUST_CHECK enum status inbox_link(const struct job_files *f, const char *user, const char *stored, const char *token, const char *spool);

/* What is in the folders submitting/: known(user, token) says ST_OK: a job has that key; ST_NOT_FOUND: none has; ST_AGAIN: one is being
 * made; anything else: cannot be told now, and the file stays where it is.  ST_OK: no file was left for that reason or another; else call
 * it again later. */
MUST_CHECK enum status inbox_recover(const struct job_files *f, enum status (*known)(const char *user, const char *token, void *arg), void *arg);
/* At the start, when nobody writes: the notes that are missing. */
void inbox_add_notes(const struct job_files *f);

#endif
