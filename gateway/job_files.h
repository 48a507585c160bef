/* job_files.h - the files of jobs under the state folder.
 *
 *   STATE/files/USER/jobs/ID/{input.jsonl, output.jsonl, errors.jsonl}
 *   STATE/spool/NUMBER.part        an upload that is not a job yet; removed at the next start
 *
 * Names are made of user names (a-z 0-9 _ -) and ids only, and every open is beneath a descriptor of the state folder with
 * O_NOFOLLOW, so no name leads elsewhere.  "Durable" below means: synced, and its folder too. */
#ifndef JOB_FILES_H
#define JOB_FILES_H

#include <stdint.h>

#include "error.h"
#include "job_store.h"
#include "status.h"

struct job_files {
    int state_fd, spool_fd, files_fd;
    int lock_fd;              /* held as long as the process lives: one owner of a state folder */
    uint64_t next_spool;
};

/* ST_OK; ST_UNSUPPORTED: a network file system (NFS, SMB, ...: their locks and syncs cannot be trusted); ST_FULL: another gateway has it;
 * ST_SYSTEM.  *err says which. */
MUST_CHECK enum status job_files_open(const char *state_dir, struct job_files *ret_files, struct error *err);
void job_files_close(struct job_files *f);

/* Is this folder, which is there, on a file system that jobs can be kept on?  ST_OK, or *err says why not. */
MUST_CHECK enum status job_files_check_place(const char *state_dir, struct error *err);

/* Bytes that files can still take on the disk of the state folder.  ST_OK, ST_SYSTEM. */
MUST_CHECK enum status job_files_free(const struct job_files *f, uint64_t *ret_bytes);

/* A new empty file for an upload, *ret_fd write-only and appending.  name [32] is how to find it again. */
MUST_CHECK enum status job_files_spool(struct job_files *f, char name[32], int *ret_fd);
void job_files_spool_remove(struct job_files *f, const char *name);

/* The size of an upload, and its bytes on disk. */
MUST_CHECK enum status job_files_spool_sync(struct job_files *f, const char *name, uint64_t *ret_bytes);
/* Make the job's folder, and the upload its input.  Durable. */
MUST_CHECK enum status job_files_adopt(struct job_files *f, const struct job_row *row, const char *spool_name);

/* Open a file of a job.  Output and errors are made when they are missing.  ST_OK, ST_NOT_FOUND, ST_SYSTEM. */
enum job_file { JOB_FILE_INPUT, JOB_FILE_OUTPUT, JOB_FILE_ERRORS };
MUST_CHECK enum status job_files_job(const struct job_files *f, const struct job_row *row, enum job_file which, bool to_write, int *ret_fd);

/* Take the errors file away; it is made again when it is opened.  Whoever reads the old one goes on reading it. */
void job_files_drop_errors(const struct job_files *f, const struct job_row *row);

/* Remove the folder of a job, for good: once its row is gone too nobody would know of it.  What is not there is fine. */
void job_files_remove(const struct job_files *f, const struct job_row *row);

#endif
