/* sftp_memory.h - a backend of sftp sessions without a door: files are memfds in a table.  For the unit test and the fuzzer.
 *
 * It answers at once, or (delay) only when it is told to; it keeps the tree's rules: one inbox, one job of four files. */
#ifndef SFTP_MEMORY_H
#define SFTP_MEMORY_H

#include "gateway/sftp.h"

enum { MEMORY_FILES = 32, MEMORY_OUT_BYTES = 8 << 20, MEMORY_FILE_BYTES_MAX = 1 << 20 };

struct memory_file {
    char name[SFTP_NAME_BYTES]; /* "": free */
    int fd;
};

struct memory {
    struct sftp *session;
    struct memory_file files[MEMORY_FILES];
    bool delay, full, asked;
    struct sftp_question question;
    unsigned n_asked, n_joined, n_said, n_closed;
    uint8_t *out;               /* [MEMORY_OUT_BYTES] */
    size_t out_n;
    bool out_over;
};

extern const struct sftp_backend memory_backend;

/* m: static, so zeroed at first; it keeps its buffer of output for the next time. */
void memory_init(struct memory *m);
void memory_deinit(struct memory *m);
/* Answer the question that is open. */
void memory_answer(struct memory *m);
struct memory_file *memory_find(struct memory *m, const char *name);

#endif
