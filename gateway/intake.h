/* intake.h - an upload on its way into the spool file that (b) has opened:
 *
 *   bytes ──► unpack (gzip, zstd) ──► convert (text, CSV, template) ──► spool file
 *
 * It runs in (c), the process that has the least to lose.  The user's limit of bytes counts what is written, so it also bounds what a small
 * upload can expand to.  The file is synced a part at a time while it comes, so that the last sync is short. */
#ifndef INTAKE_H
#define INTAKE_H

#include "convert.h"

struct intake;

/* As convert_new().  ST_OK; ST_INVALID, ST_LIMIT, ST_NOMEM with *err set. */
MUST_CHECK enum status intake_new(enum convert_mode mode, const char *template, bool chat, struct intake **ret_intake, struct error *err);
void intake_free(struct intake *k); /* NULL is fine */

/* Where it goes, before the first byte: makes its own descriptor of fd.  ST_OK, ST_SYSTEM: there is none; *err set. */
MUST_CHECK enum status intake_open(struct intake *k, int fd, uint64_t bytes_max, struct error *err);

/* ST_OK; else the upload is refused, *err says why, and only intake_free() is allowed. */
MUST_CHECK enum status intake_put(struct intake *k, struct span bytes, struct error *err);
/* The upload has ended.  ST_OK: all of it is on disk, in *ret_bytes bytes. */
MUST_CHECK enum status intake_end(struct intake *k, uint64_t *ret_bytes, struct error *err);

#endif
