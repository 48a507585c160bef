/* standstill.h - why a job does not go on where the reason is the pool's: the broker is away or full, or has no worker that would take its lines.
 *
 * While lines are under way and none has ended for a while, the broker's status is asked for what its queues wait for. */
#ifndef STANDSTILL_H
#define STANDSTILL_H

#include "runner.h"

/* Once a turn. */
void standstill_step(struct runner *r, uint64_t now_ns);
/* Call standstill_step after so long at the latest; -1: there is nothing to look at. */
int standstill_timeout_ms(const struct runner *r, uint64_t now_ns);

/* Why this job stands still, in words; "": it does not, as far as is known. */
void standstill_note(const struct runner *r, const struct job *job, char ret_note[JOB_NOTE_BYTES]);

#endif
