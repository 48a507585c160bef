/* clock.h - time.  Decisions take it as an argument; only loops and mains read it here. */
#ifndef CLOCK_H
#define CLOCK_H

#include <stdint.h>

uint64_t clock_now_ns(void);  /* CLOCK_MONOTONIC; comparable between the processes of one machine */
int64_t clock_real_ms(void);  /* CLOCK_REALTIME, milliseconds since 1970; for records, log lines and the day of a quota, never for a wait */

#endif
