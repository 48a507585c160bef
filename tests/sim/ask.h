/* ask.h - a request as its client sees it; shared by clients.c, which sends them, and replies.c, which judges what comes back. */
#ifndef SIM_ASK_H
#define SIM_ASK_H

#include "sim.h"
#include "wire.h"

enum { ASK_STOPS_MAX = 3 };

struct got { /* of one choice */
    uint32_t n_ids, n_text;
};

struct ask {
    uint32_t connection, number; /* its id on the wire is the number */
    char id[16];
    char name[64];    /* the broker's for it */
    struct question question;
    char *text; /* prompt, when it is not sent as ids */
    uint32_t n_choices, n_logprobs;
    bool batch, stream, cache_off, has_seed, poison, logprobs;
    uint64_t scope; /* of the oracle: user or pool, and salt */
    bool pool_scope;
    const char *salt;
    uint64_t sent_ns, deadline_ms;

    uint32_t key;     /* of idempotency; 0: none */
    int session;      /* 0: none */
    uint64_t ttl_ms;
    bool may_be_moved, may_conflict; /* its key was sent more than once; with another question */
    bool resumed;     /* from an earlier broker */

    bool accepted, was_running, cancel_sent, is_expected;
    struct expected expected[CHOICES_MAX]; /* from accepted on, when the seed is known */
    struct got got[CHOICES_MAX];
    struct ask *next;
};

struct connection {
    uint32_t user;
    bool used, gone;
    uint64_t gone_ns, blocked_until_ns, due_ns, last_arrival_ns;
    uint32_t n_open;
    struct ask *asks;
};

/* One message of the broker to this connection. */
void reply_take(struct connection *c, struct span body);
void ask_expect(struct ask *a); /* its seed is known: what must come, and what caches may come to hold */
void ask_free(struct ask *a);

/* What a user can read of a request's time and cache (reports.c): asked for when it is done, judged when it comes.  Is this answer one? */
void report_began(const struct ask *a);
void report_ended(const struct ask *a);
void report_ask(const struct connection *c, const struct ask *a, const struct wire_done *d);
bool report_take(const struct connection *c, struct span id, const struct wire_message *m, struct span body);

/* A conversation goes on: the prompt and answer of an ask that is done. */
void clients_remember(const struct ask *a);

#endif
