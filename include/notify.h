/* notify.h - tell systemd how we are: sd_notify's protocol, which is a datagram to the socket that $NOTIFY_SOCKET names.
 *
 *   "READY=1"      the unit counts as started
 *   "STOPPING=1"   it is being drained
 *   "WATCHDOG=1"   the loop turns; at least twice within WatchdogSec=
 *   "STATUS=text"  shown by systemctl status
 *
 * Without systemd (the variable is not set) nothing is sent.  Never waits: a full socket drops the message, and the next tells it anew.
 * Source: sd_notify(3).  Threads: any. */
#ifndef NOTIFY_H
#define NOTIFY_H

#include <stdint.h>

#include "status.h"

/* One message; several lines may go in one.  ST_OK; ST_NOT_FOUND: no systemd; ST_AGAIN, ST_SYSTEM: not sent, which harms nothing. */
enum status notify_send(const char *message);

/* How often WATCHDOG=1 should be sent, in ms; 0: no watchdog is set for this process ($WATCHDOG_USEC, $WATCHDOG_PID). */
uint64_t notify_watchdog_ms(void);

#endif
