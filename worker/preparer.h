/* preparer.h - the thread that turns prompts into token ids, so that no step waits for a tokenizer.
 *
 *   step thread --preparer_give--> [short lane][long lane] --thread--> [done] --preparer_take--> step thread
 *
 * A short prompt never waits for a long one: there is an encoder for each lane, and the long lane's moves on by slices only
 * while the short lane is empty.
 *
 * Threads: give, take and wait are for one other thread.  While a request is inside, nobody else touches it. */
#ifndef PREPARER_H
#define PREPARER_H

#include "request.h"

enum { PREPARER_LONG_BYTES = 32 << 10 }; /* a prompt at least this long goes to the long lane */

struct preparer; /* opaque */

/* Start the thread.  Borrows limits.  ST_OK, ST_NOMEM, ST_SYSTEM. */
MUST_CHECK enum status preparer_new(const struct request_limits *limits, struct preparer **ret_preparer);
void preparer_free(struct preparer *p); /* stops the thread; what is inside is freed.  NULL is fine */

void preparer_give(struct preparer *p, struct request *r);
struct request *preparer_take(struct preparer *p); /* NULL: none is done */

/* Wait until no short prompt is inside that was not done, at most max_ns. */
void preparer_wait_short(struct preparer *p, uint64_t max_ns);

/* An eventfd that becomes readable when a request is done; reading it is up to preparer_take(). */
int preparer_fd(const struct preparer *p);

#endif
