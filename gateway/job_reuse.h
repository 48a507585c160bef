/* job_reuse.h - answers of an earlier job taken over by a new one: those whose line has the same custom_id and the same bytes.
 *
 * Runs between the check of an upload and the beginning of its job, in slices.  A line taken over is marked done and its record copied
 * to the new job's output, so that the new job is whole: the earlier one may be deleted. */
#ifndef JOB_REUSE_H
#define JOB_REUSE_H

#include "job_files.h"
#include "job_store.h"

struct job_reuse;

/* from: the earlier job, of the same user.  row: the new one, checked, still JOB_VALIDATING.  ST_OK, ST_NOT_FOUND, ST_NOMEM, ST_SYSTEM. */
MUST_CHECK enum status job_reuse_new(const struct job_files *f, const struct job_row *from, const struct job_row *row,
                                     struct job_reuse **ret_reuse);
void job_reuse_free(struct job_reuse *r); /* NULL is fine */

/* Take over some more, in one transaction.
 * ST_AGAIN: there is more.  ST_OK: *ret_row has the counts, not saved yet, and the output is on disk.  ST_SYSTEM. */
MUST_CHECK enum status job_reuse_step(struct job_reuse *r, struct job_store *s, struct job_row *ret_row);

#endif
