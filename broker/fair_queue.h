/* fair_queue.h - which request goes to a worker next, so that users share the pool by tokens.
 *
 * Start-time fair queueing (Goyal, Vin, Cheng 1996) with tokens as the unit of service.  Every user has a virtual time in each
 * class: the tokens given to it there so far.  The next request of a class is one of the user whose virtual time is least: the
 * oldest of its highest priority.  (Priorities order a user's own requests; no other user notices them.)  A user that comes back after a pause is moved up to the class's virtual time, so idleness earns no credit.  (One time
 * for both classes would not do: interactive users run ahead because of their class, and a batch user whose queue was empty
 * for a moment would be moved up to them, far behind its equals.)  What a request will cost is only
 * known afterwards: it is charged at dispatch with an estimate and settled by count when it ends.
 *
 *   class              order
 *   QUEUE_RESUMED      first of all, oldest first: requests whose worker died.  They were charged already
 *   QUEUE_INTERACTIVE  before batch, but
 *   QUEUE_BATCH        while both wait, batch gets at least one token in FAIR_BATCH_SHARE + 1, so it never stops
 *
 * Items are small numbers (places in the broker's request table), each queued at most once.  A pure structure: no clock, no
 * I/O, one thread; all memory is taken by fair_queue_new(). */
#ifndef FAIR_QUEUE_H
#define FAIR_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

#include "status.h"

enum queue_class { QUEUE_RESUMED, QUEUE_INTERACTIVE, QUEUE_BATCH, QUEUE_CLASSES };
enum queue_priority { QUEUE_HIGH, QUEUE_NORMAL, QUEUE_LOW, QUEUE_PRIORITIES }; /* as they are taken; nothing to QUEUE_RESUMED */
enum { FAIR_NONE = -1, FAIR_BATCH_SHARE = 8 };

struct fair_queue; /* opaque */

/* n_models <= 32 (a mask of models is 32 bits).  ST_OK or ST_NOMEM. */
MUST_CHECK enum status fair_queue_new(uint32_t n_items, uint32_t n_users, uint32_t n_models, struct fair_queue **ret_queue);
void fair_queue_free(struct fair_queue *q);

/* Append.  item is not queued yet; cost is the estimate in tokens, at least 1. */
void fair_queue_push(struct fair_queue *q, uint32_t item, uint32_t user, uint32_t model, enum queue_class class,
                     enum queue_priority priority, uint64_t cost);

/* Take out an item that will not run (cancelled, expired): nobody is charged.  item is queued. */
void fair_queue_remove(struct fair_queue *q, uint32_t item);
bool fair_queue_holds(const struct fair_queue *q, uint32_t item);

/* A user at its limit of running requests is passed over until it is unblocked.  Resumed requests are not affected. */
void fair_queue_block_user(struct fair_queue *q, uint32_t user, bool blocked);

/* The item to dispatch next among interactive and batch requests: interactive ones of the models in interactive_models, batch ones
 * of those in batch_models (bit i: model i has room).  The queue is unchanged.  FAIR_NONE when there is none. */
int64_t fair_queue_pick(const struct fair_queue *q, uint32_t interactive_models, uint32_t batch_models);

/* Dispatch: takes the item out, charges its user (not in class RESUMED).  Gives the fair tag that the worker orders by: the user's
 * virtual time in the class before the charge; of a resumed one the lesser of both. */
uint64_t fair_queue_take(struct fair_queue *q, uint32_t item);

/* The end of a dispatched request: its user was charged `charged` tokens in this class (not RESUMED) and used `used`. */
void fair_queue_settle(struct fair_queue *q, uint32_t user, enum queue_class class, uint64_t charged, uint64_t used);

/* A user's number is given to another person: its virtual times start at the classes'.  Nothing of it may be queued. */
void fair_queue_reset_user(struct fair_queue *q, uint32_t user);

/* Walk the requests of class RESUMED, oldest first: which of them can run where is for the caller to say.  FAIR_NONE at the end. */
int64_t fair_queue_first_resumed(const struct fair_queue *q);
int64_t fair_queue_next_resumed(const struct fair_queue *q, uint32_t item);

uint32_t fair_queue_length(const struct fair_queue *q, enum queue_class class);
uint32_t fair_queue_user_length(const struct fair_queue *q, uint32_t user); /* for tests */
uint64_t fair_queue_user_time(const struct fair_queue *q, uint32_t user, enum queue_class class); /* for tests */

/* How many items of the same user, model and class are taken before this queued one, counted up to `most`. */
uint32_t fair_queue_ahead(const struct fair_queue *q, uint32_t item, uint32_t most);

void fair_queue_check(const struct fair_queue *q); /* aborts at the first broken invariant; O(items + users) */

#endif
