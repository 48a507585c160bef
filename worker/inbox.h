/* inbox.h - requests on their way in: from the request ring and the arena into the worker's own memory.
 *
 * What the ring says is checked before it is used.  A message that a broker cannot have meant (an unknown type, a slot or an
 * arena range that does not exist) is ST_CORRUPT: nothing from there can be believed any more and the worker ends.  A
 * record that is wrong in itself becomes a request with an error.
 *
 * The bytes of a record belong to the broker again once the ring slot is consumed, so they are copied before.
 *
 * Threads: the step thread's. */
#ifndef INBOX_H
#define INBOX_H

#include "region.h"
#include "request.h"

enum inbox_kind { INBOX_START, INBOX_DRAIN, INBOX_SESSION_END };

/* The next message.
 *   ST_OK       *ret_kind; for INBOX_START the caller owns *ret_request; for INBOX_SESSION_END *ret_session is set
 *   ST_AGAIN    the ring is empty
 *   ST_NOMEM    no memory for a copy: the message stays in the ring
 *   ST_CORRUPT  see above */
MUST_CHECK enum status inbox_next(struct region *region, const struct request_limits *limits, enum inbox_kind *ret_kind,
                                  struct request **ret_request, uint64_t *ret_session);

/* The flags of a request slot (SLOT_CANCEL, SLOT_PAUSE) if it is in this generation, else 0. */
uint32_t inbox_flags(const struct region *region, uint32_t slot, uint32_t generation);

#endif
