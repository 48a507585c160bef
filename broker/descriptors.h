/* descriptors.h - how many descriptors the broker may have, and that those who connect cannot take them all.
 *
 * Whoever may open the socket takes a descriptor for each connection, before anybody asks who it is.  A broker without descriptors could
 * start no worker again; and libzmq, which accepts as long as the kernel lets it, ends the whole process when it is told EMFILE or ENOMEM at
 * an ipc socket (4.3.4).  So accept4() is our own here, for libzmq too: a connection that would have one of the last
 * DESCRIPTORS_KEPT is closed at once (ECONNABORTED), and what libzmq could not bear is told as ENFILE.
 *
 * Threads: connections are accepted in those of libzmq and libmicrohttpd, the rest is the loop's. */
#ifndef DESCRIPTORS_H
#define DESCRIPTORS_H

#include <stdint.h>

enum { DESCRIPTORS_KEPT = 128 }; /* of every two of a limit of less than 256: one */

/* A descriptor a client: as many as we may have. */
void descriptors_raise_limit(void);

/* Say in the log, once a second at most, how many connections were closed since it was said last. */
void descriptors_tell(uint64_t now_ns);

#endif
