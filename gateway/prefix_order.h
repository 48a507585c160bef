/* prefix_order.h - lines whose prompts begin alike, brought together, so that the cache that the first of them fills serves the others.
 *
 * A key is the hash of the prompt's beginning at each of some lengths (64 bytes, 128, ... 64 KiB).  Ordered by keys, lines that share a beginning
 * stand together, and among them those that share a longer one.  Which group comes first means nothing; equal keys keep the order of the
 * file.  A hash that collides costs speed, not correctness.  Pure. */
#ifndef PREFIX_ORDER_H
#define PREFIX_ORDER_H

#include "job_store.h"
#include "weir.h"

enum { PREFIX_LEVELS = 21 };

struct prefix_key {
    uint64_t hash[PREFIX_LEVELS]; /* 0: the prompt is shorter */
};

/* The key of a request: its model, then its messages, prompt or ids. */
void prefix_key_make(const struct weir_request *request, struct prefix_key *ret_key);

/* Order lines [n] by their keys [n].  n is at most PREFIX_LINES_MAX. */
enum { PREFIX_LINES_MAX = 1024 };
void prefix_order(struct line_ref *lines, const struct prefix_key *keys, size_t n);

#endif
