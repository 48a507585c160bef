/* top_view.h - what `weir top` shows, as text: a pure function of two answers to "status", a size and an order.
 *
 * It never writes a line wider than the screen nor more lines than it has; what does not fit is counted ("... 3 more").
 * A newline or a tab in a worker's error or in `problem` is shown as a blank. */
#ifndef TOP_VIEW_H
#define TOP_VIEW_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum top_sort { TOP_BY_RATE, TOP_BY_RUNNING, TOP_BY_QUEUED, TOP_BY_TOKENS, TOP_BY_NAME, TOP_SORTS };

struct top_view {
    const json_t *now, *before; /* before: NULL: no rates yet */
    double seconds;             /* between the two */
    unsigned columns, lines;    /* of the screen; at least 40 x 8 is assumed */
    enum top_sort sort;
    bool color, paused, on_screen; /* on_screen: lines end with "clear to the end", keys are explained */
    const char *problem;        /* the broker does not answer: why; NULL */
};

void top_view_print(const struct top_view *v, FILE *out);

/* The last two answers.  All 0 at first. */
struct top_looks {
    json_t *now, *before;
    uint64_t now_ns; /* when now came */
};

/* Takes status, which came at now_ns; v shows it, and the rates since the one before if that was of the same broker ("boot"). */
void top_looks_add(struct top_looks *l, json_t *status, uint64_t now_ns, struct top_view *v);
void top_looks_deinit(struct top_looks *l);

#endif
