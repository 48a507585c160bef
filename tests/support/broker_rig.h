/* broker_rig.h - a broker without a socket and with one worker whose side of the region the test plays. */
#ifndef TESTS_BROKER_RIG_H
#define TESTS_BROKER_RIG_H

#include "broker/broker.h"

struct broker_rig {
    struct broker *b;
    struct options options;
    struct region worker;   /* the worker's view */
    uint32_t n_clients;
};

void broker_rig_open(struct broker_rig *rig);
void broker_rig_close(struct broker_rig *rig);

/* A request of a client of its own, queued.  Gives its number in the table. */
uint32_t broker_rig_request(struct broker_rig *rig, uint32_t n_choices, uint32_t max_tokens, bool logprobs);

/* Dispatch what is queued; the worker takes every record and drops it. */
void broker_rig_dispatch(struct broker_rig *rig);

/* Both rings empty and new, every request gone. */
void broker_rig_reset(struct broker_rig *rig);

#endif
