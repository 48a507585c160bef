/* pool_link.h - the jobs process's connection to the broker, and whether it is up.
 *
 *   CLOSED ──weir_open──► UP ──lost──► DOWN ──probe answered──► UP        (libweir reconnects by itself; the probe finds out)
 *
 * While it is not up nothing is sent: lines wait, questions are refused at once.  Attempts back off from 0.25 s to 5 s. */
#ifndef POOL_LINK_H
#define POOL_LINK_H

#include <stdbool.h>
#include <stdint.h>

#include "weir.h"

struct pool_link {
    struct weir_client *client;  /* NULL: never opened yet */
    const char *endpoint;        /* borrowed */
    bool up, probing;
    uint64_t next_ns;            /* of the next attempt */
    unsigned tries;
};

void pool_link_init(struct pool_link *l, const char *endpoint);
void pool_link_deinit(struct pool_link *l);

/* Run what has come and what is due.  Callbacks of requests run in here.  true: it has just come up. */
bool pool_link_step(struct pool_link *l, uint64_t now_ns);
/* Call pool_link_step after so long at the latest. */
int pool_link_timeout_ms(const struct pool_link *l, uint64_t now_ns);
/* To poll; -1 while it was never open. */
int pool_link_fd(const struct pool_link *l);

#endif
