/* batch_progress.h - how far a batch is: a bar on a terminal, a plain line every few seconds elsewhere, a sum at the end. */
#ifndef BATCH_PROGRESS_H
#define BATCH_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "weir.h"

struct batch_progress {
    bool quiet;
    uint64_t total;            /* lines; 0: not known */
    uint64_t n_answered, n_failed, n_skipped; /* skipped: answered by an earlier run */
    uint64_t prompt_tokens, cached_tokens, completion_tokens, takeovers;
    uint64_t started_ns, told_ns;
    const char *waiting;       /* why nothing goes on; NULL: it does */
};

void batch_progress_add(struct batch_progress *p, const struct weir_answer *a);
/* Tell, if it is time; gives the ms until it will be. */
int batch_progress_tell(struct batch_progress *p, uint64_t now_ns);
/* Take the bar away (before other text) and print the sum.  errors_path: NULL or "" if they went to standard error. */
void batch_progress_sum(const struct batch_progress *p, uint64_t now_ns, const char *errors_path);

#endif
