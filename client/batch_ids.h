/* batch_ids.h - the custom_ids of a batch: which line has one, and which was answered by an earlier run. */
#ifndef BATCH_IDS_H
#define BATCH_IDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct batch_id {
    char *text;            /* NULL: the cell is empty */
    uint64_t answered;     /* hash of the line whose answer is there already; 0: none is */
    uint64_t line;         /* number of the line of this run that has it; 0: none so far */
};

/* Open addressing, at most half full; a zeroed one is empty. */
struct batch_ids {
    struct batch_id *cells;
    size_t capacity, n;    /* capacity: a power of two, or 0 */
};

/* The entry of text, made if it is not there.  Valid until the next call.  NULL: out of memory. */
struct batch_id *batch_ids_get(struct batch_ids *ids, const char *text);
void batch_ids_deinit(struct batch_ids *ids);

#endif
