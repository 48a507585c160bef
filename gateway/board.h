/* board.h - how the numbers of the gateway get to the process that shows them.
 *
 * The listener makes a memfd of two pages of text before it starts anything: it writes page 0, the jobs process page 1, and the metrics
 * process (metrics_process.c) reads both.  So the process that reads HTTP has nothing but a listening socket and this memory,
 * read-only, and neither of the other two ever waits for a visitor.
 *
 * A page is written under a sequence number, odd while it is being written; a reader copies the page, looks again, and takes the copy
 * only if the number was even and is the same.  A writer that died in the middle leaves an odd number: its successor's next page mends it. */
#ifndef BOARD_H
#define BOARD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "status.h"

enum { BOARD_TEXT_BYTES = 64 << 10, BOARD_WHY_BYTES = 128 };
enum { BOARD_LISTENER, BOARD_JOBS, BOARD_PAGES };

struct board_page {
    _Atomic uint64_t sequence;  /* odd: being written; 0: never was */
    uint64_t at_ns;             /* CLOCK_MONOTONIC of the writing */
    uint32_t n, ready;
    char why[BOARD_WHY_BYTES];  /* not ready: why */
    char text[BOARD_TEXT_BYTES];
};

struct board {
    struct board_page pages[BOARD_PAGES];
};

/* Make one: gives two descriptors (close-on-exec), one to write, one that can only be read.  ST_OK, ST_SYSTEM. */
MUST_CHECK enum status board_create(int *ret_fd, int *ret_read_fd);
/* Map it; fd stays the caller's.  ST_OK, ST_SYSTEM. */
MUST_CHECK enum status board_map(int fd, bool to_write, struct board **ret_board);

/* The owner of a page writes it.  A text that is too long is refused (ST_LIMIT): the old page stays. */
MUST_CHECK enum status board_write(struct board_page *p, const char *text, size_t n, bool ready, const char *why, uint64_t now_ns);
/* Copy a page out.  ST_OK; ST_NOT_FOUND: never written; ST_AGAIN: being written. */
MUST_CHECK enum status board_read(const struct board_page *p, struct board_page *ret_page);

#endif
