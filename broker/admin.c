/* admin.c - workers by hand: pause, resume, drain, add, remove, while everything else goes on.
 *
 * An order changes what a slot is wanted for (supervisor.h); dispatch gives work only to those that are to run, and the supervisor brings
 * the process to where the order wants it.  So no order can lose a request: what a worker holds it ends, what is queued waits for
 * another worker, or for this one to be resumed, and status says for which.  Only the last worker of a model cannot be removed: there would be
 * nothing left to wait for. */
#include "broker.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "log.h"

bool admin_allowed(uid_t uid)
{
    return uid == 0 || uid == geteuid();
}

/* The slot of a removed worker, best one of this model, or a fresh one; WORKERS_MAX when there is none. */
static uint32_t free_slot(const struct broker *b, uint32_t model)
{
    uint32_t gone = b->n_workers;

    for (uint32_t i = 0; i < b->n_workers; i++) {
        if (b->workers[i].order != ORDER_GONE)
            continue;
        if (b->workers[i].model == model)
            return i;
        gone = gone == b->n_workers ? i : gone;
    }
    return gone;
}

/* A new worker in a slot.  What outlives its holders stays: the count of lives (a region's life is never that of an earlier one), and the
 * slot's partition of the host store, which was made at the broker's start and is of use to a worker of the same model only. */
static void init_slot(struct broker *b, uint32_t slot, uint32_t model)
{
    struct worker *w = &b->workers[slot];

    if (slot == b->n_workers) {
        b->n_workers++;
        supervisor_init_worker(w, slot, model, b->added_devices[slot]);
        return;
    }
    struct worker old = *w;
    supervisor_init_worker(w, slot, model, b->added_devices[slot]);
    w->life = old.life;
    w->store = old.store;
    if (model == old.model) {
        memcpy(w->store_fds, old.store_fds, sizeof(w->store_fds));
        w->n_store_fds = old.n_store_fds;
    }
}

static enum status add_worker(struct broker *b, const struct wire_admin *a, uint32_t *ret_slot, struct error *err)
{
    char device[NAME_BYTES_MAX] = "auto";
    uint32_t slot, model = 0;

    while (a->model.n > 0 && model < b->n_models && !span_is(a->model, b->models[model].name))
        model++;
    if (model == b->n_models) {
        error_set(err, ERR_MODEL_NOT_FOUND, "model", "no model \"%.*s\" here", (int)a->model.n, (const char *)a->model.at);
        return ST_INVALID;
    }
    if (a->device.n > 0)
        snprintf(device, sizeof(device), "%.*s", (int)a->device.n, (const char *)a->device.at);
    if (!options_device_ok(device)) {
        error_set(err, ERR_INVALID_PARAMETER, "device", "\"%s\" is not auto, cpu, cuda or cuda:K", device);
        return ST_INVALID;
    }
    slot = free_slot(b, model);
    if (slot == WORKERS_MAX) {
        error_set(err, ERR_LIMIT_EXCEEDED, "", "the pool has %d workers, its limit", WORKERS_MAX);
        return ST_INVALID;
    }
    memcpy(b->added_devices[slot], device, sizeof(device));
    init_slot(b, slot, model);
    b->workers[slot].device_share = broker_device_share(b, device);
    router_forget(b->router, slot);
    *ret_slot = slot;
    return ST_OK;
}

static bool last_of_its_model(const struct broker *b, const struct worker *w)
{
    for (uint32_t i = 0; i < b->n_workers; i++)
        if (&b->workers[i] != w && b->workers[i].model == w->model && b->workers[i].order < ORDER_REMOVE)
            return false;
    return true;
}

enum status admin_order(struct broker *b, const struct wire_admin *a, uint32_t *ret_slot, struct error *err)
{
    static const enum worker_order orders[] = {
        [WIRE_WORKER_PAUSE] = ORDER_PAUSE, [WIRE_WORKER_RESUME] = ORDER_RUN, [WIRE_WORKER_DRAIN] = ORDER_DRAIN,
        [WIRE_WORKER_ADD] = ORDER_RUN,     [WIRE_WORKER_REMOVE] = ORDER_REMOVE,
    };
    uint32_t slot = a->worker;

    if (b->state != BROKER_RUNNING) {
        error_set(err, ERR_SHUTTING_DOWN, "", "the broker is stopping");
        return ST_INVALID;
    }
    if (a->verb == WIRE_WORKER_ADD) {
        enum status st = add_worker(b, a, &slot, err);
        if (st != ST_OK)
            return st;
    }
    if (slot >= b->n_workers || b->workers[slot].order == ORDER_GONE) {
        error_set(err, ERR_NOT_FOUND, "worker", "there is no worker %" PRIu32, slot);
        return ST_INVALID;
    }
    struct worker *w = &b->workers[slot];
    if (a->verb == WIRE_WORKER_REMOVE && last_of_its_model(b, w)) {
        error_set(err, ERR_INVALID_REQUEST, "worker", "worker %" PRIu32 " is the last one of model %s: it can be drained, not removed",
                  slot, b->models[w->model].name);
        return ST_INVALID;
    }
    log_info("worker_order", "slot=%" PRIu32 " verb=%s held=%" PRIu32, slot, wire_admin_verb_name(a->verb),
             w->link.open ? w->link.n_held : 0);
    supervisor_order(w, orders[a->verb], b->now_ns);
    *ret_slot = slot;
    return ST_OK;
}

/* --- what requests wait for ------------------------------------------------------------------- */

enum { HOPE_NONE, HOPE_ORDER, HOPE_IDLE, HOPE_RESTART, HOPE_START, HOPE_ROOM };

static int hope_of(const struct worker *w)
{
    if (w->order >= ORDER_REMOVE)
        return HOPE_NONE;
    if (w->order != ORDER_RUN)
        return HOPE_ORDER;
    if (w->released)
        return HOPE_IDLE;
    return w->state == WORKER_READY ? HOPE_ROOM : w->state == WORKER_STARTING ? HOPE_START : HOPE_RESTART;
}

void admin_waits_for(const struct broker *b, uint32_t model, char ret_text[ERROR_MESSAGE_BYTES])
{
    const struct worker *best = NULL;
    struct error e; /* its text is cut at whole characters */

    for (uint32_t i = 0; i < b->n_workers; i++)
        if (b->workers[i].model == model && (best == NULL || hope_of(&b->workers[i]) > hope_of(best)))
            best = &b->workers[i];
    switch (best != NULL ? hope_of(best) : HOPE_NONE) {
    case HOPE_ROOM:
        error_set(&e, ERR_BUSY, "", "room in a worker");
        break;
    case HOPE_START:
        error_set(&e, ERR_BUSY, "", "worker %" PRIu32 ", which is starting", best->slot);
        break;
    case HOPE_RESTART:
        error_set(&e, ERR_BUSY, "", "worker %" PRIu32 ", which is to be started%s%s", best->slot,
                  best->error[0] != '\0' ? " again; " : "", best->error);
        break;
    case HOPE_IDLE:
        error_set(&e, ERR_BUSY, "", "worker %" PRIu32 ", which left while it was idle and is to come back", best->slot);
        break;
    case HOPE_ORDER:
        error_set(&e, ERR_BUSY, "", "worker %" PRIu32 ", which is %s: weir worker resume %" PRIu32, best->slot,
                  best->order == ORDER_PAUSE ? "paused" : "drained", best->slot);
        break;
    default:
        error_set(&e, ERR_BUSY, "", "a worker: none is left");
    }
    memcpy(ret_text, e.message, sizeof(e.message));
}
