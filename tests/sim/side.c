/* side.c - the broker: the program's own loop, with a socket, a clock and dice that belong to the simulation.
 *
 * Checked after each of its passes: its tables (broker_check), and that users who want the same share the pool:
 *
 *   While two users both have requests of one class queued, and neither is held back by a limit of its own, their virtual
 *   times (tokens charged and settled) differ by at most M * (1 + 2 N) tokens, where M is the most that one request was
 *   charged or used and N the most requests a user had dispatched and not settled.
 *
 * Why: let a be ahead of b.  When a was last picked it was not ahead, so then it got ahead by one charge, at most M.  Since
 * then a grew only by settling what it had under way (N requests by at most M each), and b fell only by refunds of what it had
 * under way then (as much); what b was given since only brings it closer. */
#include "sim.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "broker/broker.h"

static struct options options;
static struct broker *broker;
static struct random dice;

static struct { /* by account number */
    uint32_t n_queued, n_out, n_out_max;
} users[ACCOUNTS_MAX][QUEUE_CLASSES];
static enum queue_class item_class[REQUESTS_MAX];
static uint64_t cost_max;
static uint32_t n_passes;

/* Of the broker that runs now: a broker ends when the run is over, by a signal, or by kill -9. */
static bool run_is_over, is_dead;
static uint64_t drain_until_ns, hurried_ns; /* it was told to stop: the first, the second time.  0: it was not */
static struct { /* as it stood after the last pass */
    uint32_t n_held, life;
    bool paused;
} before[SIM_WORKERS_MAX];

/* --- the machine ------------------------------------------------------------------------------ */

uint64_t __wrap_clock_now_ns(void);
int64_t __wrap_clock_real_ms(void);
ssize_t __wrap_getrandom(void *at, size_t n, unsigned flags);
int __wrap_zmq_poll(zmq_pollitem_t *items, int n, long timeout_ms);
void __wrap_log_event(enum log_level level, const char *event, const char *format, ...);
enum status __wrap_endpoint_open(const char *uri, const char *runtime_dir, struct endpoint *ret_endpoint,
                                 struct error *err);
void __wrap_endpoint_close(struct endpoint *e);
enum status __wrap_endpoint_receive(struct endpoint *e, struct received *ret_received);
enum status __wrap_endpoint_send(struct endpoint *e, const struct peer *to, struct span body);
uint64_t __real_request_backlog(const struct request *r);
uint64_t __wrap_request_backlog(const struct request *r);

uint64_t __wrap_clock_now_ns(void)
{
    return sim.now_ns + sim.in_step_ns;
}

int64_t __wrap_clock_real_ms(void)
{
    return 1800000000000 + (int64_t)(sim.now_ns / 1000000) + sim.real_offset_ms;
}

ssize_t __wrap_getrandom(void *at, size_t n, unsigned flags)
{
    (void)flags;
    for (size_t i = 0; i < n; i++)
        ((uint8_t *)at)[i] = (uint8_t)random_next(&dice);
    return (ssize_t)n;
}

int __wrap_zmq_poll(zmq_pollitem_t *items, int n, long timeout_ms)
{
    (void)items, (void)n;
    world_wait(timeout_ms);
    return 0;
}

void __wrap_log_event(enum log_level level, const char *event, const char *format, ...)
{
    char text[300];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (level <= LOG_LEVEL_INFO)
        trace("log %s %s", event, text);
}

enum status __wrap_endpoint_open(const char *uri, const char *runtime_dir, struct endpoint *ret_endpoint,
                                 struct error *err)
{
    (void)uri, (void)runtime_dir, (void)err;
    *ret_endpoint = (struct endpoint){.lock = -1};
    return ST_OK;
}

void __wrap_endpoint_close(struct endpoint *e)
{
    (void)e;
}

static struct peer peer_of(uint32_t client)
{
    uint32_t n = client + 1;
    return (struct peer){.id = {0, (uint8_t)(n >> 24), (uint8_t)(n >> 16), (uint8_t)(n >> 8), (uint8_t)n}};
}

static uint32_t client_of(const struct peer *p)
{
    return ((uint32_t)p->id[1] << 24 | (uint32_t)p->id[2] << 16 | (uint32_t)p->id[3] << 8 | p->id[4]) - 1;
}

enum status __wrap_endpoint_receive(struct endpoint *e, struct received *ret_received)
{
    uint32_t client;
    struct span body;
    (void)e;
    if (is_dead || !mail_take(&client, &body))
        return ST_AGAIN;
    *ret_received = (struct received){.peer = peer_of(client), .uid = client_uid(client), .answerable = true};
    if (zmq_msg_init_size(&ret_received->body, body.n) != 0)
        return ST_SYSTEM;
    memcpy(zmq_msg_data(&ret_received->body), body.at, body.n);
    return ST_OK;
}

enum status __wrap_endpoint_send(struct endpoint *e, const struct peer *to, struct span body)
{
    (void)e;
    if (is_dead)
        return ST_OK; /* nobody hears it */
    if (client_of(to) == SIM_ADMIN) {
        admin_receive(body);
        return ST_OK;
    }
    switch (client_receive(client_of(to), body)) {
    case MAIL_TAKEN:
        return ST_OK;
    case MAIL_FULL:
        return ST_AGAIN;
    default:
        return ST_GONE;
    }
}

uint64_t __wrap_request_backlog(const struct request *r)
{
    return __real_request_backlog(r) * client_scale();
}

/* --- shares ------------------------------------------------------------------------------------ */

void __real_fair_queue_push(struct fair_queue *q, uint32_t item, uint32_t user, uint32_t model,
                            enum queue_class class, enum queue_priority priority, uint64_t cost);
void __wrap_fair_queue_push(struct fair_queue *q, uint32_t item, uint32_t user, uint32_t model,
                            enum queue_class class, enum queue_priority priority, uint64_t cost);
uint64_t __real_fair_queue_take(struct fair_queue *q, uint32_t item);
uint64_t __wrap_fair_queue_take(struct fair_queue *q, uint32_t item);
void __real_fair_queue_settle(struct fair_queue *q, uint32_t user, enum queue_class class, uint64_t charged,
                              uint64_t used);
void __wrap_fair_queue_settle(struct fair_queue *q, uint32_t user, enum queue_class class, uint64_t charged,
                              uint64_t used);

void __real_fair_queue_remove(struct fair_queue *q, uint32_t item);
void __wrap_fair_queue_remove(struct fair_queue *q, uint32_t item);

static void note_cost(uint64_t tokens)
{
    cost_max = tokens > cost_max ? tokens : cost_max;
}

void __wrap_fair_queue_push(struct fair_queue *q, uint32_t item, uint32_t user, uint32_t model,
                            enum queue_class class, enum queue_priority priority, uint64_t cost)
{
    item_class[item] = class;
    users[user][class].n_queued++;
    note_cost(cost);
    __real_fair_queue_push(q, item, user, model, class, priority, cost);
}

void __wrap_fair_queue_remove(struct fair_queue *q, uint32_t item)
{
    users[broker->requests.list[item].account][item_class[item]].n_queued--;
    __real_fair_queue_remove(q, item);
}

uint64_t __wrap_fair_queue_take(struct fair_queue *q, uint32_t item)
{
    uint32_t user = broker->requests.list[item].account;
    enum queue_class class = item_class[item];
    users[user][class].n_queued--;
    if (class != QUEUE_RESUMED && ++users[user][class].n_out > users[user][class].n_out_max)
        users[user][class].n_out_max = users[user][class].n_out;
    uint64_t tag = __real_fair_queue_take(q, item);
    trace("take user=%u class=%d tag=%llu queued=%u", user, (int)class, (unsigned long long)tag,
          fair_queue_user_length(q, user));
    return tag;
}

void __wrap_fair_queue_settle(struct fair_queue *q, uint32_t user, enum queue_class class, uint64_t charged,
                              uint64_t used)
{
    sim_demand(users[user][class].n_out > 0, "a request of account %u is settled that was never charged",
               user);
    users[user][class].n_out--;
    note_cost(charged);
    note_cost(used);
    __real_fair_queue_settle(q, user, class, charged, used);
    trace("settle user=%u class=%d charged=%llu used=%llu time=%llu", user, (int)class,
          (unsigned long long)charged, (unsigned long long)used,
          (unsigned long long)fair_queue_user_time(q, user, class));
}

/* Two users, both with something of this class queued. */
static void check_pair(uint32_t a, uint32_t b, enum queue_class class)
{
    uint64_t time_a = fair_queue_user_time(broker->queue, a, class),
             time_b = fair_queue_user_time(broker->queue, b, class);
    uint64_t apart = time_a > time_b ? time_a - time_b : time_b - time_a;
    uint32_t n_a = users[a][class].n_out_max, n_b = users[b][class].n_out_max;
    uint64_t bound = cost_max * (1 + 2 * (uint64_t)(n_a > n_b ? n_a : n_b));
    if (apart > sim.seen.fair_worst) {
        sim.seen.fair_worst = apart;
        sim.seen.fair_bound = bound;
    }
    sim_demand(apart <= bound,
               "users %s and %s both wait in class %d, and are %llu tokens apart; the bound is %llu",
               broker->accounts.list[a].name, broker->accounts.list[b].name, (int)class,
               (unsigned long long)apart, (unsigned long long)bound);
}

static void check_shares(void)
{
    if (sim.plan.user_running_max > 0)
        return;
    for (enum queue_class class = QUEUE_INTERACTIVE; class <= QUEUE_BATCH; class ++)
        for (uint32_t a = 0; a < broker->accounts.n; a++)
            for (uint32_t b = a + 1; b < broker->accounts.n; b++)
                if (users[a][class].n_queued > 0 && users[b][class].n_queued > 0)
                    check_pair(a, b, class);
}

/* --- what the others may know of it ------------------------------------------------------------ */

struct broker_view side_worker(uint32_t slot)
{
    const struct worker *w = &broker->workers[slot];
    uint8_t first[RING_SLOT_BYTES];
    return (struct broker_view){
        .open = w->link.open,
        .believed = w->killed != KILL_BROKEN_RULE,
        .dead = w->pidfd >= 0 && pool_is_dead(slot),
        .has_events = w->link.open && ring_peek((struct ring_end *)&w->link.region.events, first) != ST_AGAIN,
        .alone = w->alone_request >= 0,
        .order = w->order,
        .n_held = w->link.n_held,
    };
}

bool side_starting(uint32_t *ret_slot, int ret_fds[3])
{
    for (uint32_t i = 0; i < broker->n_workers; i++) {
        const struct worker *w = &broker->workers[i];
        if (w->state != WORKER_WAITING || !w->link.open)
            continue;
        *ret_slot = i;
        ret_fds[0] = w->link.memory;
        ret_fds[1] = w->link.bells[0];
        ret_fds[2] = w->link.bells[1];
        return true;
    }
    return false;
}

uint32_t side_n_workers(void)
{
    return broker->n_workers;
}

uint32_t side_n_sessions(void)
{
    return broker->sessions.n;
}

uint32_t side_store(uint32_t slot, int ret_fds[SIM_WORKERS_MAX])
{
    const struct worker *w = &broker->workers[slot];
    memcpy(ret_fds, w->store_fds, w->n_store_fds * sizeof(*ret_fds));
    return w->n_store_fds;
}

bool side_is_dead(void)
{
    return is_dead;
}

bool side_drains(bool *ret_in_time)
{
    *ret_in_time = sim.now_ns < drain_until_ns && hurried_ns == 0;
    return drain_until_ns != 0;
}

uint32_t side_n_live(void)
{
    return broker->requests.n_live;
}

/* A client that left is known to have left within a probe, a tick, and the time its messages take. */
static void check_gone_clients(void)
{
    const uint64_t bound_ns = (CLIENT_PROBE_MS + 2 * TICK_MS + 10) * UINT64_C(1000000);
    if (fault_is_on(FAULT_DELAY) || fault_is_on(FAULT_SLOW))
        return;
    for (uint32_t i = 0; i < CLIENTS_MAX && broker->clients.n > 0; i++) {
        const struct client *c = &broker->clients.list[i];
        uint64_t since_ns;
        if (c->used && client_is_gone(client_of(&c->peer), &since_ns))
            sim_demand(sim.now_ns - since_ns <= bound_ns, "client %u left %llu ms ago and still has requests",
                       client_of(&c->peer), (unsigned long long)((sim.now_ns - since_ns) / 1000000));
    }
}

/* Who is not to run gets nothing. */
static void check_orders(void)
{
    for (uint32_t i = 0; i < broker->n_workers; i++) {
        const struct worker *w = &broker->workers[i];
        uint32_t n = w->link.open ? w->link.n_held : 0;
        bool paused = w->order != ORDER_RUN;
        sim_demand(!paused || !before[i].paused || before[i].life != w->life || n <= before[i].n_held,
                   "worker %u is to get nothing, and holds %u requests after %u", i, n, before[i].n_held);
        before[i].n_held = n;
        before[i].life = w->life;
        before[i].paused = paused;
    }
}

void side_check(void)
{
    check_shares();
    check_orders();
    if (++n_passes % 8 == 0 || !sim.loading)
        check_gone_clients();
    if (n_passes % 16 == 0)
        broker_check(broker);
    static uint64_t takeovers;
    if (broker->totals.takeovers > takeovers) {
        trace("takeovers %llu", (unsigned long long)broker->totals.takeovers);
        sim.seen.takeovers += (uint32_t)(broker->totals.takeovers - takeovers);
    }
    takeovers = broker->totals.takeovers;
}

/* --- its life ---------------------------------------------------------------------------------- */

static void tell_to_stop(void)
{
    trace("the broker is told to stop%s", drain_until_ns != 0 ? " again" : "");
    note_fault(FAULT_BIT_UPGRADE);
    if (drain_until_ns == 0)
        drain_until_ns = sim.now_ns + sim.plan.drain_ms * 1000000 + 1;
    else
        hurried_ns = sim.now_ns;
    raise(SIGTERM); /* blocked: it comes through the broker's own signalfd */
}

void side_inject(void)
{
    if (fault_is_on(FAULT_UPGRADE) && chance(&sim.faults, drain_until_ns == 0 ? 600 : 100))
        tell_to_stop();
    if (!fault_is_on(FAULT_BROKER) || !chance(&sim.faults, 600))
        return;
    trace("the broker is killed");
    note_fault(FAULT_BIT_BROKER);
    is_dead = true;
    broker->state = BROKER_STOPPING; /* its loop ends after this pass, of which nothing is seen */
    broker->stop_due_ns = 0;
}

void side_open(void)
{
    static char name[] = "simulated";
    struct error err;
    dice = (struct random){sim.opt.seed + 77 + sim.seen.brokers};
    memset(users, 0, sizeof(users));
    memset(before, 0, sizeof(before));
    cost_max = n_passes = 0;
    run_is_over = is_dead = false;
    drain_until_ns = hurried_ns = 0;
    sim.seen.brokers++;
    options = (struct options){
        .endpoint = "ipc://simulated",
        .worker_program = "/bin/false",
        .n_models = 1,
        .model_paths = {name},
        .n_workers = sim.plan.n_workers,
        .pool_bytes = POOL_BYTES_DEFAULT,
        .host_store_bytes = fault_is_on(FAULT_STORE) ? sim.plan.n_workers * (uint64_t)PARTITION_BYTES_MIN : 0,
        .drain_ms = sim.plan.drain_ms,
        .hang_ms = 1000,
        .start_ms = 2000,
        .slow_reader_ms = 3000,
        .user_running_max = sim.plan.user_running_max,
        .front_ends = {1000},
        .n_front_ends = 1,
        .ready_fd = -1,
        .log_level_name = "error",
    };
    memcpy(options.model_names[0], name, sizeof(name));
    for (uint32_t i = 0; i < options.n_workers; i++)
        options.worker_devices[i] = "cpu";
    enum status st = broker_new(&options, &broker, &err);
    sim_demand(st == ST_OK, "no broker: %s", err.message);
}

void side_run(void)
{
    for (;;) {
        int rc = broker_run(broker);
        sim_demand(rc == 0, "the broker ended with %d", rc);
        if (run_is_over)
            return;
        trace("the broker has ended");
        bool killed = is_dead;
        side_close();
        sim.now_ns += random_ns(&sim.faults, 200 * 1000000);
        clients_broker_gone(killed);
        admin_broker_gone();
        side_open();
    }
}

void side_stop(void)
{
    broker_check(broker);
    for (uint32_t i = 0; i < broker->n_workers; i++)
        sim_demand(broker->workers[i].link.n_held == 0, "worker %u still holds %u requests", i,
                   broker->workers[i].link.n_held);
    sim_demand(broker->requests.bytes == 0, "requests are over, and %llu bytes are counted",
               (unsigned long long)broker->requests.bytes);
    for (uint32_t a = 0; a < broker->accounts.n; a++)
        for (int class = QUEUE_INTERACTIVE; class <= QUEUE_BATCH; class ++)
            sim_demand(users[a][class].n_out == 0, "account %u has %u requests charged and not settled", a,
                       users[a][class].n_out);
    run_is_over = true;
    broker->state = BROKER_STOPPING;
    broker->stop_due_ns = sim.now_ns;
}

void side_close(void)
{
    broker_free(broker);
    broker = NULL;
}
