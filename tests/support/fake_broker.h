/* fake_broker.h - a broker for tests of the client: a thread with a ROUTER that does what the prompt tells it.
 *
 *   any text       one token a word (ids 100, 101, ...), each choice the same; then done, reason "stop"
 *   !hold          accepted, then progress every 20 ms until it is cancelled
 *   !silent        accepted, then nothing
 *   !error CODE    an error with this code
 *   !choice        a token of choice 9
 *   !nonsense      a frame that is no msgpack
 *   !burst N       N one-token messages at once, then done
 *
 * With logprobs each token has alternatives whose bytes are no UTF-8.  Counters may be read at any time. */
#ifndef FAKE_BROKER_H
#define FAKE_BROKER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct fake_broker {
    char endpoint[128];
    char boot[32];
    bool refuse_hello;          /* answer hello with permission_denied */
    bool no_hello;              /* never answer it */
    pthread_t thread;
    void *context;
    atomic_bool stop, sleep;    /* sleep: let everything lie, as if stopped */
    atomic_uint n_generate, n_cancel, n_hello;
    _Atomic uint64_t last_seed;
};

/* Bind a fresh ipc path under /tmp (kept in endpoint; one that is set is used again) and start. */
void fake_broker_start(struct fake_broker *b);
void fake_broker_stop(struct fake_broker *b); /* closes the socket: clients see the connection end */

#endif
