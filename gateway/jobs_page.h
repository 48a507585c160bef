/* jobs_page.h - the jobs process's numbers, written to its page of the board. */
#ifndef JOBS_PAGE_H
#define JOBS_PAGE_H

#include "board.h"
#include "desk.h"

enum { JOBS_PAGE_MS = 1000 };

void jobs_page_write(struct board_page *p, const struct desk *d);

#endif
