/* death.c - a worker has ended: its last words are taken, then its requests go on elsewhere.
 *
 * The process is reaped first, so it cannot write any more; then its ring is emptied to the last whole event.  What was delivered by
 * then is what the next worker is told.  If the ring itself breaks a rule, what was taken before the bad event still counts: each event
 * was checked by itself, and tokens of a request are in order. */
#include "broker.h"

#include <inttypes.h>

#include "fault.h"
#include "log.h"

enum { INNOCENT_MAX = 8 }; /* so many deaths are taken for accidents at most: nothing goes on for ever */

/* Did the worker hang before it so much as took this request?  Then it was not the request. */
static bool was_waiting(const struct worker *w, const struct request *r)
{
    struct link_trace t;

    worker_link_trace(&w->link, r->slot, &t);
    return w->killed == KILL_HANG && !r->started && t.taken_ns == 0 && r->takeovers < INNOCENT_MAX;
}

static void give_on(struct broker *b, uint32_t request, const struct supervisor_end *end, bool alone)
{
    struct request *r = &b->requests.list[request];
    bool own_fault = end->own_fault && !was_waiting(&b->workers[r->worker], r);
    struct takeover_case c = { .own_fault = own_fault,
                               .wanted = r->end == END_NONE,
                               .finished = r->kind == WORK_GENERATE && request_finished(r),
                               .suspect = r->suspect,
                               .alone = alone };
    enum takeover_action action = takeover_decide(&c);

    if (action != TAKEOVER_FORGET) {
        r->takeovers++;
        b->totals.takeovers++;
    }
    switch (action) {
    case TAKEOVER_FORGET:
        ending_left_worker(b, request, true);
        break;
    case TAKEOVER_COMPLETE:
        ending_done(b, request);
        ending_left_worker(b, request, true);
        break;
    case TAKEOVER_BLAME:
        ending_errorf(b, request, ERR_WORKER_KILLER, "",
                      "a worker died under this request, and again when it ran alone (%s)", end->cause);
        ending_left_worker(b, request, true);
        break;
    case TAKEOVER_REQUEUE:
    case TAKEOVER_SUSPECT:
        ending_left_worker(b, request, false);
        if (r->kind == WORK_TOKENIZE) /* nothing was shown of it: from the beginning */
            requests_clear(&b->requests, &r->choices[0].ids);
        r->suspect = action == TAKEOVER_SUSPECT;
        r->bad_deaths += own_fault;
        r->run = (struct link_trace){ 0 }; /* it has no worker now: what the dead one told is no part of what comes (trace.h) */
        r->times.picked_ns = r->times.sent_ns = 0;
        ending_enqueue(b, request, QUEUE_RESUMED);
        r->owes_progress = true;
        requests_mark_dirty(&b->requests, request);
        break;
    }
}

void death_look(struct broker *b, struct worker *w)
{
    struct supervisor_end end;

    if (!supervisor_reap(w, &end))
        return;
    uint32_t n = w->link.n_held;
    enum status st = w->killed == KILL_BROKEN_RULE ? ST_AGAIN : events_take(b, w, EVENT_RING_SLOTS); /* all there can be */

    if (st == ST_CORRUPT && w->killed == KILL_NONE) /* it died by itself, and left rubbish: its own fault */
        end.own_fault = true;
    log_event(b->state == BROKER_STOPPING || w->order >= ORDER_DRAIN || w->state == WORKER_LEAVING ? LOG_LEVEL_INFO : LOG_LEVEL_WARN, "worker_end",
              "slot=%" PRIu32 " life=%" PRIu32 " cause=%s own_fault=%d requests=%" PRIu32, w->slot, w->life, end.cause,
              end.own_fault, n);
    if (end.own_fault)
        partition_discard(&w->store);
    router_forget(b->router, w->slot);
    sessions_forget_worker(&b->sessions, w->slot);
    for (uint32_t slot = 0; slot < REGION_SLOTS; slot++)
        if (w->link.slots[slot].request != LINK_NO_REQUEST)
            give_on(b, w->link.slots[slot].request, &end, n == 1);
    FAULT("broker.taken_over");
    supervisor_bury(w, &end, b->state == BROKER_RUNNING || (b->state == BROKER_DRAINING && b->requests.n_live > 0), b->now_ns);
    if (w->state == WORKER_WAITING && w->start_due_ns > b->now_ns)
        log_info("worker_waits", "slot=%" PRIu32 " ms=%" PRIu64, w->slot, (w->start_due_ns - b->now_ns) / 1000000);
}
