/* sim.h - a whole pool in one thread, from a seed: what the parts of the simulator share.
 *
 *     clients (clients.c)  --wire messages-->  the broker, as it is  --region-->  workers, as they are (pool.c)
 *         ^                                        |                                  |
 *         +---- answers, checked by oracle.c ------+                   fake backend, checked by blocks.c, plans.c
 *
 * What runs is the code of the programs: the broker's loop with all its parts, the worker's loop with scheduler, cache, inbox
 * and outbox.  Only the machine is made up, by the linker's --wrap: the clock, zmq_poll and the socket, fork, pidfds and
 * waitid, random numbers, the tokenizer thread, log lines.  The broker's call of zmq_poll is where everybody else gets to run
 * (world.c), so there is one thread and one order of everything, and one seed gives one trace.
 *
 * Terms: a step is one pass of the broker's or a worker's loop or one act of a client; an ask is one request as its client
 * sees it; a process is one life of a worker.  Times are virtual nanoseconds. */
#ifndef SIM_H
#define SIM_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "limits.h"
#include "sampling.h"
#include "span.h"
#include "tests/support/random.h"
#include "work.h"

struct scheduler;
struct scheduler_plan;
struct tokenizer;

/* Each a bit, and its name on the command line. */
#define SIM_FAULTS(X)                                                              \
    X(DIE, "die")           /* kill -9 from outside, after any event or between */ \
    X(CRASH, "crash")       /* a worker dies by its own fault */                   \
    X(POISON, "poison")     /* some requests kill every worker that runs them */   \
    X(STALL, "stall")       /* a worker stands still, less long than a hang */     \
    X(HANG, "hang")         /* a step that never ends */                           \
    X(GARBAGE, "garbage")   /* a worker writes rubbish into its event ring */      \
    X(START, "start")       /* a worker fails to start, or starts slowly */        \
    X(RING, "ring")         /* the event ring is nearly full at times */           \
    X(GONE, "gone")         /* clients leave without a word */                     \
    X(CANCEL, "cancel")     /* clients cancel */                                   \
    X(SLOW, "slow")         /* clients do not read for a while: pause, resume */   \
    X(DEADLINE, "deadline") /* requests with deadlines */                          \
    X(DELAY, "delay")       /* messages and the broker itself are late at times */ \
    X(JUMP, "jump")         /* the real-time clock jumps */                        \
    X(TIGHT, "tight")       /* few KV blocks, few sequences, few rows */            \
    X(ADMIN, "admin")       /* workers paused, drained, added, removed by hand */  \
    X(KEYS, "keys")         /* requests sent again with their idempotency key */   \
    X(SESSIONS, "sessions") /* sessions that end, and that run out */              \
    X(STORE, "store")       /* a host store so small that it is full */            \
    X(UPGRADE, "upgrade")   /* the broker drains and ends; another comes */        \
    X(BROKER, "broker")     /* the broker is killed; clients go on by resume */

enum {
#define X(name, text) FAULT_BIT_##name,
    SIM_FAULTS(X)
#undef X
        N_FAULTS
};
enum {
#define X(name, text) FAULT_##name = 1 << FAULT_BIT_##name,
    SIM_FAULTS(X)
#undef X
};

enum { SIM_WORKERS_MAX = WORKERS_MAX, SIM_VOCAB = 263 };
enum { SIM_ADMIN = 1 << 20, SIM_UID = 60000 }; /* the administrator's connection; the first of the users' uids */
#define POISON_SEED (UINT64_C(0xdead) << 48) /* requests with such a seed kill their worker */

struct sim_options {
    uint64_t seed;
    uint32_t n_steps; /* of them new asks and faults come; then everything runs to its end */
    uint32_t faults;  /* FAULT_* */
    uint32_t n_asks;  /* at most so many requests; 0: as many as fit the steps */
    bool canary;      /* many small requests of several users on the same texts */
    bool verbose;
};

/* What a seed decides once: see scenario.c. */
struct scenario {
    uint32_t n_workers, n_users, n_clients;
    uint32_t n_blocks, max_seqs, max_rows, context_tokens;
    uint64_t step_ns, row_ns, step_ns_max, age_ns, prefix_wait_ns;
    uint64_t think_ns;    /* mean pause of a client between acts */
    uint32_t outstanding; /* asks a client has under way at most */
    uint64_t user_running_max;
    uint32_t profile[16]; /* of a user: PROFILE_* */
    uint32_t n_documents;
    uint32_t poison_percent;
    uint32_t store_block_bytes; /* what a block takes in the host store: decides how many fit; 0: no store */
    uint64_t drain_ms;
};
enum { PROFILE_MIXED, PROFILE_CHAT, PROFILE_BATCH };

struct sim {
    struct sim_options opt;
    struct scenario plan;
    struct random load, timing, faults; /* streams of their own: another fault does not change the load */
    uint64_t now_ns;                    /* CLOCK_MONOTONIC of this world */
    uint64_t in_step_ns;                /* ahead of it while a worker's step goes on */
    int64_t real_offset_ms;
    uint32_t n_steps;
    bool loading; /* still within opt.n_steps */
    uint64_t trace_hash, n_trace_lines;
    uint64_t stopped_loading_ns;

    /* what happened, for the summary */
    struct {
        uint32_t asks, done, errors, cancelled, gone, deaths, takeovers, blamed, poisoned, preemptions, plans,
            brokers, resumed, given_up, replayed, restored,
            reports, prefix_waits;
        uint32_t tried[N_FAULTS]; /* by kind: how often it struck */
        uint64_t tokens, rows, cached, fair_worst, fair_bound;
    } seen;
};
extern struct sim sim;

/* --- main.c, world.c --------------------------------------------------------------------------- */

/* Say what is wrong, the seed and the command that shows it again; then abort. */
__attribute__((format(printf, 1, 2), noreturn)) void sim_fail(const char *format, ...);
#define sim_demand(condition, ...) \
    do {                           \
        if (!(condition))          \
            sim_fail(__VA_ARGS__); \
    } while (0)

/* A line of the trace: hashed always, printed when asked for.  No address and no real time may get into it. */
__attribute__((format(printf, 1, 2))) void trace(const char *format, ...);

static inline bool fault_is_on(uint32_t fault)
{
    return (sim.opt.faults & fault) != 0;
}
static inline void note_fault(uint32_t bit)
{
    sim.seen.tried[bit]++;
}
static inline bool chance(struct random *r, uint32_t in)
{
    return random_below(r, in) == 0;
}
uint64_t random_ns(struct random *r, uint64_t mean_ns); /* 0 .. 2 * mean */

void scenario_draw(void);
void world_wait(long timeout_ms); /* the broker sleeps: everybody else moves */

/* --- side.c: the broker ------------------------------------------------------------------------ */

struct broker_view {           /* of one worker, as the broker has it */
    bool open, believed, dead; /* dead: ended, not reaped */
    bool has_events;
    bool alone; /* a suspect runs here */
    int order;  /* ORDER_* */
    uint32_t n_held;
};
void side_open(void);
void side_run(void); /* the broker's loop, one broker after the other, until side_stop() */
void side_stop(void);
void side_close(void);
void side_inject(void); /* perhaps its death, or a signal to drain */
bool side_is_dead(void); /* killed: nothing it does is seen any more */
bool side_drains(bool *ret_in_time); /* it is stopping; in_time: what runs may still end by itself */
uint32_t side_n_workers(void);
uint32_t side_n_sessions(void);
uint32_t side_store(uint32_t slot, int ret_fds[SIM_WORKERS_MAX]); /* descriptors of the host store that its process gets */
struct broker_view side_worker(uint32_t slot);
bool side_starting(uint32_t *ret_slot,
                   int ret_fds[3]); /* whose process is being made: memory, request bell, event bell */
void side_check(void);              /* after every pass of it */
uint32_t side_n_live(void);

/* --- pool.c: worker processes ------------------------------------------------------------------- */

void pool_open(void);
void pool_close(void);
uint64_t pool_due_ns(uint32_t *ret_slot); /* UINT64_MAX: nobody has anything to do */
void pool_act(uint32_t slot);             /* one pass, or the start, or the death of it */
void pool_hear_bells(void);               /* after the broker ran: wake who has a message or a flag */
void pool_inject(void);                   /* perhaps a fault */
bool pool_is_dead(uint32_t slot);
bool pool_is_quiet(void);              /* no request, no sequence, no pin anywhere */
bool pool_current(uint32_t *ret_slot); /* in a worker's code right now */
const struct tokenizer *pool_tokenizer(void);

/* --- clients.c ---------------------------------------------------------------------------------- */

void clients_open(void);
void clients_close(void);
uint64_t clients_due_ns(void);
void clients_act(void);
bool clients_all_ended(uint32_t *ret_open); /* every ask has its one end */
uint64_t mail_due_ns(void);                 /* arrival of the next message at the broker; UINT64_MAX: none */
bool mail_take(uint32_t *ret_client, struct span *ret_body); /* body is valid until the next call */
enum { MAIL_TAKEN, MAIL_FULL, MAIL_GONE };
int client_receive(uint32_t client, struct span body);
void clients_broker_gone(bool killed); /* mail is lost; who wants to goes on with the next broker */
void mail_post(uint32_t client, const void *at, size_t n); /* to the broker, in its time */
uid_t client_uid(uint32_t client);
bool client_is_gone(uint32_t client, uint64_t *ret_since_ns);
uint64_t client_scale(void); /* what a byte of backlog counts, so that small answers fill the limit */

/* --- admin.c: the administrator ----------------------------------------------------------------- */

void admin_open(void);
uint64_t admin_due_ns(void);
void admin_act(void);
void admin_receive(struct span body);
void admin_broker_gone(void);
bool admin_is_done(void); /* after the load: everybody is to run again */

/* --- oracle.c ------------------------------------------------------------------------------------ */

enum { ORACLE_TOKENS_MAX = 1024 };
struct expected { /* one choice of an undisturbed run */
    int32_t *ids;
    uint32_t n_ids;
    char *text;
    uint32_t n_text;
    enum finish_reason reason;
    int32_t stop_index;
};
struct question {
    int32_t *prompt; /* ids, as the tokenizer gives them */
    uint32_t n_prompt;
    struct sampling sampling;
    uint32_t max_tokens; /* 0: to the context's end */
    bool ignore_eos;
    const char *stops[STOPS_MAX];
    uint32_t n_stops;
};
/* ids of a text, to be freed. */
int32_t *oracle_encode(struct span text, uint32_t *ret_n);
void oracle_answer(const struct question *q, uint32_t choice, struct expected *ret_answer);
void expected_free(struct expected *e);

/* Beginnings of token sequences that were sent under a scope: how much of a prompt can another request have left in a cache? */
void oracle_forget(void);
void oracle_note(uint64_t scope, const int32_t *tokens, uint32_t from,
                 uint32_t n); /* beginnings of from + 1 .. n tokens */
uint32_t oracle_known(uint64_t scope, const int32_t *tokens, uint32_t n,
                      uint32_t at_least); /* noted so often */

/* --- reports.c: what users read of time and cache ------------------------------------------------- */

void reports_open(void);
void reports_close(void);

/* --- blocks.c: KV blocks; plans.c: what a step computes ------------------------------------------ */

void blocks_check_plan(uint32_t slot, const struct scheduler_plan *plan);
void blocks_moved(uint32_t slot, bool to_host, uint32_t block); /* a copy from or to the store is submitted */
void plans_forget(uint32_t slot); /* its process has ended */
void plans_check(uint32_t slot, const struct scheduler *s, const struct scheduler_plan *plan);
void plans_check_work(void); /* at the end of a run without faults: nothing was computed twice */

#endif
