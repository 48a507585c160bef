/* admin.c - the administrator: pauses, drains, adds and removes workers while everything else goes on.
 *
 * One order at a time, each answered by the state it brought about or by an error that this order can have.  When the load is over
 * everybody who was stopped is told to run again, so that whatever waits for a worker comes to its end. */
#include <assert.h>
#include <stdio.h>

#include "broker/supervisor.h"
#include "sim.h"
#include "wire.h"

enum { POOL_MAX = 6 }; /* workers at most */
static const uint64_t ms = 1000000;

static struct wire_admin order; /* under way */
static bool waits;
static char id[16];
static uint32_t n_orders;
static uint64_t due_ns;
static struct wire_buffer out;

void admin_open(void)
{
    waits = false;
    n_orders = 0;
    due_ns = fault_is_on(FAULT_ADMIN) ? sim.now_ns + random_ns(&sim.faults, 300 * ms) : UINT64_MAX;
}

void admin_broker_gone(void)
{
    waits = false;
}

uint64_t admin_due_ns(void)
{
    return due_ns;
}

static uint32_t n_present(void)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < side_n_workers(); i++)
        n += side_worker(i).order < ORDER_REMOVE;
    return n;
}

/* A slot that is not to run, though it is there. */
static bool find_stopped(uint32_t *ret_slot)
{
    for (uint32_t i = 0; i < side_n_workers(); i++)
        if (side_worker(i).order != ORDER_RUN && side_worker(i).order != ORDER_GONE) {
            *ret_slot = i;
            return true;
        }
    return false;
}

bool admin_is_done(void)
{
    uint32_t slot;
    return !fault_is_on(FAULT_ADMIN) || (!waits && !find_stopped(&slot));
}

static void send(enum wire_admin_verb verb, uint32_t slot)
{
    snprintf(id, sizeof(id), "o%u", ++n_orders);
    order = (struct wire_admin){.id = span_str(id), .verb = verb, .worker = slot};
    if (verb == WIRE_WORKER_ADD) {
        order.worker = 0;
        order.model = span_str(chance(&sim.faults, 2) ? "simulated" : "");
        order.device = span_str(chance(&sim.faults, 2) ? "cpu" : "");
    }
    trace("the administrator: %s %u", wire_admin_verb_name(verb), slot);
    note_fault(FAULT_BIT_ADMIN);
    enum status st = wire_encode_admin(&out, &order);
    assert(st == ST_OK);
    mail_post(SIM_ADMIN, out.at, out.n);
    waits = true;
}

void admin_act(void)
{
    static const enum wire_admin_verb verbs[] = {WIRE_WORKER_PAUSE,  WIRE_WORKER_DRAIN,  WIRE_WORKER_DRAIN,
                                                 WIRE_WORKER_REMOVE, WIRE_WORKER_RESUME, WIRE_WORKER_RESUME,
                                                 WIRE_WORKER_RESUME, WIRE_WORKER_ADD};
    uint32_t slot;
    due_ns = sim.now_ns + random_ns(&sim.faults, (sim.loading ? 400 : 20) * ms) + ms;
    if (waits)
        return;
    if (!sim.loading) {
        if (find_stopped(&slot))
            send(WIRE_WORKER_RESUME, slot);
        return;
    }
    enum wire_admin_verb verb = verbs[random_below(&sim.faults, sizeof(verbs) / sizeof(verbs[0]))];
    if (verb == WIRE_WORKER_ADD && n_present() >= POOL_MAX)
        verb = WIRE_WORKER_REMOVE;
    slot = random_below(&sim.faults, side_n_workers() + (chance(&sim.faults, 20) ? 1 : 0));
    send(verb, slot);
}

static bool may_fail_so(enum error_code code)
{
    bool in_time;
    switch (code) {
    case ERR_SHUTTING_DOWN:
        return side_drains(&in_time);
    case ERR_NOT_FOUND:
        return order.worker >= side_n_workers() || side_worker(order.worker).order == ORDER_GONE;
    case ERR_INVALID_REQUEST: /* the last one cannot be removed */
        return order.verb == WIRE_WORKER_REMOVE && n_present() <= 1;
    default:
        return false;
    }
}

void admin_receive(struct span body)
{
    struct wire_message m;
    struct error err = {0};
    enum status st = wire_decode_reply(body, &m, &err);
    sim_demand(st == ST_OK, "the administrator got something that is no message: %s", err.message);
    sim_demand(waits && span_is(m.id, id), "the administrator got an answer without a question");
    waits = false;
    sim_demand(m.type == WIRE_ADMIN_REPLY || m.type == WIRE_ERROR, "the administrator got a message of type %d", (int)m.type);
    if (m.type == WIRE_ERROR) {
        sim_demand(may_fail_so(m.error.error.code), "order %s %u failed: %s", wire_admin_verb_name(order.verb), order.worker,
                   m.error.error.message);
    } else if (order.verb != WIRE_WORKER_ADD) {
        bool runs = side_worker(order.worker).order == ORDER_RUN;
        sim_demand(runs == (order.verb == WIRE_WORKER_RESUME), "order %s %u was not obeyed",
                   wire_admin_verb_name(order.verb), order.worker);
    }
    wire_message_deinit(&m);
}
