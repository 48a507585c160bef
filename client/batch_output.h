/* batch_output.h - where answers and errors of a batch go, and what an earlier run left there.
 *
 * An output line's id is "batch_req_HASH-N": the hash of the input line it answers (16 hexadecimal digits) and its number.  So a run that
 * goes on where another stopped knows that an answer is to the same line, not only to one of the same custom_id.
 * A file is written by whole lines at its end; after a crash the piece behind the last newline is cut off.
 * The errors file is written anew by each run, from its first error on: what failed is tried again. */
#ifndef BATCH_OUTPUT_H
#define BATCH_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "batch_ids.h"
#include "weir.h"

struct batch_output {
    int fd, errors_fd;     /* errors_fd -1: not needed so far */
    bool own_fd;
    const char *path;      /* NULL: standard output and standard error */
    char errors_path[4096];
    uint64_t bytes;        /* of whole lines in fd, where it is a file */
    uint64_t synced_ns;
    bool dirty;
};

/* path NULL: standard output, errors to errors_path or standard error.  Otherwise open or make the file, lock it, cut a torn tail,
 * and note in ids what is answered.  errors_path NULL: path + ".errors".
 * WEIR_OK, or WEIR_FAILED with *err: another run writes it, or it holds something else. */
int batch_output_open(struct batch_output *out, const char *path, const char *errors_path, struct batch_ids *ids,
                      struct weir_error *err);
/* Append one line (text without newline).  WEIR_OK; WEIR_FAILED: nothing of it is in the file. */
int batch_output_put(struct batch_output *out, bool is_error, const char *text, size_t bytes, struct weir_error *err);
/* To the disk, at most every few seconds unless forced. */
int batch_output_sync(struct batch_output *out, uint64_t now_ns, bool force, struct weir_error *err);
/* finished: every line has its end; then an errors file of an earlier run is removed if this one had no error. */
void batch_output_close(struct batch_output *out, bool finished);

/* The hash of an input line: white space around it does not count.  Never 0. */
uint64_t batch_line_hash(const char *text, size_t bytes);
void batch_line_id(uint64_t hash, uint64_t number, char ret_id[48]);

#endif
