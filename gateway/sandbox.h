/* sandbox.h - what a connection process gives up before it reads the first byte from the network. */
#ifndef SANDBOX_H
#define SANDBOX_H

#include "status.h"

/* Limits, undumpable, no new privileges; as root also another uid in an empty root folder.  file_bytes_max: largest file it may
 * write.  ST_OK, or ST_SYSTEM (logged): the process must not go on. */
MUST_CHECK enum status sandbox_enter(unsigned long long file_bytes_max);

/* The same for the metrics process, which has to accept connections: without the filter of system calls. */
MUST_CHECK enum status sandbox_enter_server(void);

/* For the jobs process and the listener: no core dumps, nobody attaches. */
void sandbox_undumpable(void);

#endif
