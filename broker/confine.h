/* confine.h - what the broker gives up once it runs; its workers, which it starts later, inherit it. */
#ifndef CONFINE_H
#define CONFINE_H

#include <stdbool.h>

/* No core dumps (with core_dumps its workers may leave some), no new privileges, and a filter of system calls that neither broker nor
 * workers have any use for, for all threads there are.  Where the kernel refuses one, that is logged and the rest holds. */
void confine_broker(bool core_dumps);

#endif
