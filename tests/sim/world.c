/* world.c - time, order and chance.
 *
 * The broker's loop sleeps in zmq_poll; here that is world_wait(), and it is where the rest of the world moves: whoever is due
 * first acts, and the clock stands at that moment, until there is something for the broker or its time is up.  Then the broker
 * is a little late, as every process is, and others act while it is. */
#include "sim.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static const uint64_t us = 1000, ms = 1000000, s = 1000000000;
enum { LATE_US = 30, QUIET_MS = 3000, PATIENCE_S = 900 };

uint64_t random_ns(struct random *r, uint64_t mean_ns)
{
    return mean_ns == 0 ? 0 : random_next(r) % (2 * mean_ns + 1);
}

void trace(const char *format, ...)
{
    char line[512];
    va_list args;
    int head = snprintf(line, sizeof(line), "%llu.%06llu ", (unsigned long long)(sim.now_ns / s),
                        (unsigned long long)(sim.now_ns % s / us));
    va_start(args, format);
    vsnprintf(line + head, sizeof(line) - (size_t)head, format, args);
    va_end(args);
    for (const char *c = line; *c != '\0'; c++)
        sim.trace_hash = (sim.trace_hash ^ (uint8_t)*c) * 0x100000001b3u; /* FNV-1a */
    sim.n_trace_lines++;
    if (sim.opt.verbose)
        puts(line);
}

static uint32_t between(struct random *r, uint32_t low, uint32_t high)
{
    return low + random_below(r, high - low + 1);
}

static void draw_sizes(struct scenario *p, struct random *r)
{
    bool tight = fault_is_on(FAULT_TIGHT);
    p->n_workers = between(r, 1, 3);
    p->max_seqs = tight ? between(r, 1, 6) : between(r, 4, 32);
    p->max_rows = p->max_seqs + (tight ? between(r, 1, 40) : between(r, 32, 512));
    p->context_tokens = between(r, 80, 700);
    uint32_t longest = p->context_tokens / BLOCK_TOKENS + 1;
    p->n_blocks = tight ? longest + between(r, 0, longest) : longest * between(r, 4, 40);
    p->step_ns = between(r, 200, 4000) * us;
    p->row_ns = between(r, 1, 100) * us;
    p->step_ns_max = chance(r, 3) ? 0 : between(r, 5, 60) * ms;
    p->age_ns = chance(r, 2) ? 0 : between(r, 20, 2000) * ms;
    p->prefix_wait_ns = chance(r, 3) ? between(r, 2, 200) * ms : 0;
    if (fault_is_on(FAULT_STORE)) /* 1 MiB a worker: about 250 blocks, down to 15 */
        p->store_block_bytes = between(r, 1, 16) * 4096;
    p->drain_ms = fault_is_on(FAULT_UPGRADE) ? between(r, 0, 3000) : 1000;
}

static void draw_people(struct scenario *p, struct random *r)
{
    p->n_users = between(r, 1, 5);
    p->n_clients = p->n_users * between(r, 1, 3);
    p->think_ns = between(r, 1, 200) * ms;
    p->outstanding = between(r, 1, 24);
    p->user_running_max = chance(r, 4) ? between(r, 1, 8) : 0;
    p->n_documents = between(r, 1, 6);
    p->poison_percent = fault_is_on(FAULT_POISON) ? between(r, 1, 6) : 0;
    for (uint32_t u = 0; u < p->n_users; u++)
        p->profile[u] = between(r, PROFILE_MIXED, PROFILE_BATCH);
    if (chance(r, 6)) /* everybody at the same thing: the fair order alone decides */
        for (uint32_t u = 0; u < p->n_users; u++)
            p->profile[u] = PROFILE_BATCH;
}

void scenario_draw(void)
{
    struct random r = {sim.opt.seed * 0x9e3779b97f4a7c15u + 1};
    sim.load = (struct random){random_next(&r)};
    sim.timing = (struct random){random_next(&r)};
    sim.faults = (struct random){random_next(&r)};
    draw_sizes(&sim.plan, &r);
    draw_people(&sim.plan, &r);
    if (sim.opt.canary) {
        sim.plan.n_workers = 2;
        sim.plan.n_users = 6;
        sim.plan.n_clients = 12;
        sim.plan.outstanding = 12;
        sim.plan.think_ns = 2 * ms;
        sim.plan.n_documents = 4;
        sim.plan.context_tokens = 128;
        sim.plan.max_seqs = 16;
        sim.plan.max_rows = 200;
        sim.plan.n_blocks = 72; /* about as many as run at once: blocks change owners all the time */
    }
    sim.now_ns = 1000 * s;
    sim.loading = true;
    const struct scenario *p = &sim.plan;
    sim.seen.tried[FAULT_BIT_TIGHT] += fault_is_on(FAULT_TIGHT);
    trace("scenario workers=%u blocks=%u seqs=%u rows=%u context=%u users=%u clients=%u", p->n_workers,
          p->n_blocks, p->max_seqs, p->max_rows, p->context_tokens, p->n_users, p->n_clients);
}

static void earlier(uint64_t *at, uint64_t other)
{
    if (other < *at)
        *at = other;
}

/* The next to act, at most at until_ns; false when nobody is due by then. */
static bool act_once(uint64_t until_ns)
{
    uint32_t slot = 0;
    uint64_t pool_ns = pool_due_ns(&slot), clients_ns = clients_due_ns(), admin_ns = admin_due_ns(), next = pool_ns;

    earlier(&next, clients_ns);
    earlier(&next, admin_ns);
    if (next > until_ns)
        return false;
    if (next > sim.now_ns)
        sim.now_ns = next;
    sim.n_steps++;
    if (admin_ns == next)
        admin_act();
    else if (clients_ns <= pool_ns)
        clients_act();
    else
        pool_act(slot);
    return true;
}

static bool broker_has_something(void)
{
    if (mail_due_ns() <= sim.now_ns)
        return true;
    for (uint32_t i = 0; i < side_n_workers(); i++) {
        struct broker_view v = side_worker(i);
        if (v.dead || (v.open && v.believed && v.has_events))
            return true;
    }
    return false;
}

/* All is said and done, and nothing is left anywhere. */
static bool is_over(void)
{
    uint32_t open = 0;
    bool ended = clients_all_ended(&open);

    if (sim.loading)
        return false;
    if (ended && side_n_live() == 0 && admin_is_done() && pool_is_quiet())
        return true;
    sim_demand(sim.now_ns - sim.stopped_loading_ns < PATIENCE_S * s,
               "never at rest: %u requests without an end, %u in the broker's table, %u sessions%s", open, side_n_live(),
               side_n_sessions(), admin_is_done() ? "" : ", orders not obeyed");
    return false;
}

static void stop_loading_in_time(void)
{
    if (!sim.loading || sim.n_steps < sim.opt.n_steps)
        return;
    sim.loading = false;
    sim.stopped_loading_ns = sim.now_ns;
    trace("no more load");
}

static uint64_t lateness_ns(void)
{
    uint64_t late = random_ns(&sim.timing, LATE_US * us);
    if (fault_is_on(FAULT_DELAY) && sim.loading && chance(&sim.faults, 40)) {
        late += random_ns(&sim.faults, 120 * ms);
        note_fault(FAULT_BIT_DELAY);
    }
    return late;
}

void world_wait(long timeout_ms)
{
    sim.n_steps++;
    if (side_is_dead())
        return;
    side_check();
    pool_hear_bells();
    stop_loading_in_time();
    if (is_over()) {
        side_stop();
        return;
    }
    if (sim.loading) {
        pool_inject();
        side_inject();
        if (side_is_dead())
            return;
    }
    uint64_t until = sim.now_ns + (uint64_t)timeout_ms * ms;
    while (!broker_has_something()) {
        uint64_t by = until;
        earlier(&by, mail_due_ns());
        if (act_once(by))
            continue;
        sim.now_ns = by > sim.now_ns ? by : sim.now_ns;
        if (sim.now_ns >= until)
            break;
    }
    until = sim.now_ns + lateness_ns();
    while (act_once(until))
        continue;
    sim.now_ns = until;
}
