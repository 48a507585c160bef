/* job_check.h - reading an upload once, before it is a job: every line's place and custom_id into the store, a digest of it all.
 *
 * In slices, so that the loop of the jobs process goes on meanwhile; memory does not grow with the file.  What refuses the whole
 * input: no lines, too many lines, a custom_id twice (both lines are named), UTF-16.  A line that is wrong in itself is no reason: it
 * becomes an error line of the job. */
#ifndef JOB_CHECK_H
#define JOB_CHECK_H

#include "error.h"
#include "job_store.h"
#include "line_scanner.h"

struct job_check;

/* row is stored already, in state JOB_VALIDATING; takes fd (of the input).  lines_max: this user's limit. */
MUST_CHECK enum status job_check_new(const struct job_row *row, int fd, uint64_t lines_max, struct job_check **ret_check);
void job_check_free(struct job_check *c); /* NULL is fine */

/* Check the next slice, in one transaction.
 * ST_AGAIN: there is more.  ST_OK: *ret_row is the row with n_lines and digest, not saved yet.
 * ST_INVALID: refused, *err says why.  ST_SYSTEM: the disk; *err says so. */
MUST_CHECK enum status job_check_step(struct job_check *c, struct job_store *s, struct job_row *ret_row, struct error *err);

#endif
