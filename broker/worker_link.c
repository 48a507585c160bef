/* worker_link.c - see worker_link.h.
 *
 * Nothing of the region is read twice: an event is copied out and the copy checked, the card is copied and the copy checked.
 * Of an event the ring gives us first one slot, which says how many more follow; a worker could change that slot between the look
 * and the copy, so the two are compared. */
#include "worker_link.h"

#include <assert.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "utf8.h"

enum { LINE = 64 };

static uint64_t up(uint64_t n)
{
    return (n + LINE - 1) / LINE * LINE;
}

enum status worker_link_open(struct worker_link *l, uint32_t worker_slot, uint32_t life, uint64_t boot_id)
{
    memset(l, 0, sizeof(*l));
    l->memory = l->bells[0] = l->bells[1] = l->control[0] = l->control[1] = -1;
    for (uint32_t i = 0; i < REGION_SLOTS; i++)
        l->slots[i].request = LINK_NO_REQUEST;
    enum status st = region_create(worker_slot, life, boot_id, &l->region, &l->memory, l->bells);
    if (st != ST_OK)
        return st;
    l->open = true;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, l->control) != 0) {
        l->control[0] = l->control[1] = -1;
        worker_link_close(l);
        return ST_SYSTEM;
    }
    return ST_OK;
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

void worker_link_close(struct worker_link *l)
{
    if (!l->open)
        return;
    region_unmap(&l->region);
    close_fd(&l->memory);
    close_fd(&l->bells[0]);
    close_fd(&l->bells[1]);
    close_fd(&l->control[0]);
    close_fd(&l->control[1]);
    l->open = false;
    l->n_held = 0;
}

void worker_link_started(struct worker_link *l)
{
    close_fd(&l->control[1]);
    close_fd(&l->memory); /* the mapping stays */
}

/* Forget the records whose ring slots the worker has taken. */
static enum status reclaim(struct worker_link *l, uint32_t *ret_ring_room)
{
    enum status st = ring_room(&l->region.requests, ret_ring_room);

    if (st != ST_OK)
        return st;
    while (l->on_way_head != l->on_way_tail) {
        const struct link_record *r = &l->on_way[l->on_way_head % REQUEST_RING_SLOTS];

        if (r->ring_position >= l->region.requests.seen)
            break;
        l->arena_head = r->arena_end;
        l->on_way_head++;
    }
    return ST_OK;
}

static uint32_t free_slot(const struct worker_link *l)
{
    for (uint32_t i = 0; i < REGION_SLOTS; i++)
        if (l->slots[i].request == LINK_NO_REQUEST)
            return i;
    return REGION_SLOTS;
}

enum status worker_link_reserve(struct worker_link *l, uint64_t bytes, uint8_t **ret_at, uint32_t *ret_slot,
                                uint32_t *ret_generation)
{
    assert(l->open);
    assert(bytes > 0 && bytes <= RECORD_BYTES_MAX);
    const uint64_t size = l->region.arena_bytes;
    uint32_t ring_slots, slot = free_slot(l);
    enum status st = reclaim(l, &ring_slots);

    if (st != ST_OK)
        return st;
    if (slot == REGION_SLOTS || ring_slots == 0)
        return ST_FULL;
    uint64_t at = l->arena_tail;
    if (at % size + up(bytes) > size)
        at += size - at % size; /* a record never wraps */
    if (at + up(bytes) - l->arena_head > size)
        return ST_FULL;
    l->reserved_at = at;
    *ret_at = l->region.arena + at % size;
    *ret_slot = slot;
    *ret_generation = l->slots[slot].generation + 1 != 0 ? l->slots[slot].generation + 1 : 1;
    return ST_OK;
}

static void store_word(struct worker_link *l, uint32_t slot)
{
    const struct link_slot *s = &l->slots[slot];

    /* Release: a worker that sees the generation sees the record, though it learns of it by the ring (P3) anyway. */
    atomic_store_explicit(&l->region.slots[slot].word, (uint64_t)s->generation << 32 | s->flags, memory_order_release);
}

void worker_link_commit(struct worker_link *l, uint32_t slot, uint32_t request, uint64_t bytes, uint64_t session)
{
    struct link_slot *s = &l->slots[slot];
    assert(s->request == LINK_NO_REQUEST && request != LINK_NO_REQUEST);

    *s = (struct link_slot){ .generation = s->generation + 1 != 0 ? s->generation + 1 : 1, .request = request };
    struct work_message m = { .type = WORK_START,
                              .slot = slot,
                              .generation = s->generation,
                              .record_bytes = (uint32_t)bytes,
                              .record_at = l->reserved_at % l->region.arena_bytes,
                              .session = session };
    uint64_t position = l->region.requests.mine;

    l->n_held++;
    store_word(l, slot);
    enum status st = ring_push(&l->region.requests, &m, 1);
    assert(st == ST_OK); /* reserve saw room, and only this side fills it */
    l->arena_tail = l->reserved_at + up(bytes);
    l->on_way[l->on_way_tail++ % REQUEST_RING_SLOTS] = (struct link_record){ position, l->arena_tail };
    doorbell_ring(&l->region.request_bell);
}

void worker_link_flag(struct worker_link *l, uint32_t slot, uint32_t flags)
{
    assert(l->slots[slot].request != LINK_NO_REQUEST);
    if (l->slots[slot].flags == flags)
        return;
    l->slots[slot].flags = flags;
    store_word(l, slot);
    /* The doorbell's proof wants a ring's tail before D2.  A flag is no message, so the wake-up is sent whether or not the worker
     * is seen to sleep: one write of an eventfd, and only when a request is cancelled, paused or resumed. */
    uint64_t one = 1;
    ssize_t n = write(l->region.request_bell.fd, &one, sizeof(one));
    (void)n; /* EAGAIN: it is ringing already */
}

void worker_link_release(struct worker_link *l, uint32_t slot)
{
    assert(l->slots[slot].request != LINK_NO_REQUEST);
    l->slots[slot].request = LINK_NO_REQUEST;
    l->slots[slot].flags = 0;
    l->n_held--;
}

static enum status tell(struct worker_link *l, const struct work_message *m)
{
    enum status st = ring_push(&l->region.requests, m, 1);

    if (st == ST_OK)
        doorbell_ring(&l->region.request_bell);
    return st == ST_AGAIN ? ST_FULL : st;
}

enum status worker_link_drain(struct worker_link *l)
{
    return tell(l, &(struct work_message){ .type = WORK_DRAIN });
}

enum status worker_link_session_end(struct worker_link *l, uint64_t session)
{
    return tell(l, &(struct work_message){ .type = WORK_SESSION_END, .session = session });
}

/* Is this event one a worker may send at all?  Payloads fit their slots, and only those types that have one have one. */
static bool head_ok(const struct work_event *e)
{
    if (e->type < EVENT_READY || e->type > EVENT_IDS)
        return false;
    if (e->n_more >= EVENT_SLOTS_MAX || event_slots(e->bytes) != 1u + e->n_more)
        return false;
    if (e->bytes > EVENT_SLOTS_MAX * RING_SLOT_BYTES)
        return false;
    switch (e->type) {
    case EVENT_TOKEN:
    case EVENT_TEXT:
    case EVENT_ERROR:
        return true;
    case EVENT_IDS:
        return e->bytes % 4 == 0;
    default:
        return e->bytes == 0;
    }
}

/* Pop one whole event into l->event. */
static enum status pop(struct worker_link *l, struct work_event *ret_head)
{
    struct work_event first;
    enum status st = ring_peek(&l->region.events, &first);

    if (st != ST_OK)
        return st;
    if (!head_ok(&first))
        return ST_CORRUPT;
    st = ring_pop(&l->region.events, l->event, 1u + first.n_more);
    if (st != ST_OK)
        return ST_CORRUPT; /* announced slots that are not there */
    memcpy(ret_head, l->event, sizeof(*ret_head));
    if (ret_head->type != first.type || ret_head->n_more != first.n_more || ret_head->bytes != first.bytes)
        return ST_CORRUPT; /* changed under our eyes */
    return ST_OK;
}

enum status worker_link_next(struct worker_link *l, struct link_event *ret_event)
{
    struct work_event head;
    uint32_t request = LINK_NO_REQUEST;
    enum status st = pop(l, &head);

    if (st != ST_OK)
        return st;
    if (head.type != EVENT_READY && head.type != EVENT_FAILED) {
        if (head.slot >= REGION_SLOTS || head.generation == 0 || head.generation > l->slots[head.slot].generation)
            return ST_CORRUPT;
        if (head.generation == l->slots[head.slot].generation)
            request = l->slots[head.slot].request; /* else it was on its way when its request ended */
    }
    *ret_event = (struct link_event){ .head = head,
                                      .payload = span_of(l->event + offsetof(struct work_event, data), head.bytes),
                                      .request = request };
    return ST_OK;
}

static bool text_ok(const char *text, size_t bytes)
{
    size_t n = strnlen(text, bytes);

    return n < bytes && utf8_valid(span_of(text, n));
}

enum status worker_link_card(const struct worker_link *l, struct region_card *ret_card)
{
    struct region_card c;

    memcpy(&c, l->region.card, sizeof(c));
    if (!text_ok(c.numerics_id, sizeof(c.numerics_id)) || !text_ok(c.device, sizeof(c.device)) ||
        !text_ok(c.architecture, sizeof(c.architecture)) || !text_ok(c.model_name, sizeof(c.model_name)) ||
        !text_ok(c.chat_template, sizeof(c.chat_template)) || !text_ok(c.build_id, sizeof(c.build_id)) ||
        !text_ok(c.error, sizeof(c.error)))
        return ST_CORRUPT;
    *ret_card = c;
    return ST_OK;
}

void worker_link_stats(const struct worker_link *l, struct worker_stats *ret_stats)
{
#define X(name) ret_stats->name = atomic_load_explicit(&l->region.stats->name, memory_order_relaxed);
    REGION_STATS_LIST(X)
#undef X
    for (int i = 0; i <= STEP_BATCH_BOUNDS; i++)
        ret_stats->batches[i] = atomic_load_explicit(&l->region.stats->batches[i], memory_order_relaxed);
    ret_stats->batch_sum = atomic_load_explicit(&l->region.stats->batch_sum, memory_order_relaxed);
    for (int i = 0; i <= STEP_TIME_BOUNDS; i++)
        ret_stats->times[i] = atomic_load_explicit(&l->region.stats->times[i], memory_order_relaxed);
}

void worker_link_trace(const struct worker_link *l, uint32_t slot, struct link_trace *ret_trace)
{
    const struct region_trace *t = &l->region.traces[slot];
    uint64_t generation = atomic_load_explicit(&t->generation, memory_order_acquire);
    struct link_trace copy;

#define X(name) copy.name = atomic_load_explicit(&t->name, memory_order_relaxed);
    REGION_TRACE_LIST(X)
#undef X
    for (uint32_t i = 0; i < TRACE_CHUNKS; i++)
        copy.chunk[i] = (struct link_chunk){ atomic_load_explicit(&t->chunk[i].began_ns, memory_order_relaxed),
                                             atomic_load_explicit(&t->chunk[i].took_ns, memory_order_relaxed),
                                             atomic_load_explicit(&t->chunk[i].rows, memory_order_relaxed) };
    atomic_thread_fence(memory_order_acquire);
    bool same = generation == l->slots[slot].generation && atomic_load_explicit(&t->generation, memory_order_relaxed) == generation;
    *ret_trace = same ? copy : (struct link_trace){ 0 };
}

void worker_link_check(const struct worker_link *l)
{
    uint32_t n_held = 0;

    for (uint32_t i = 0; i < REGION_SLOTS; i++)
        n_held += l->slots[i].request != LINK_NO_REQUEST;
    assert(n_held == l->n_held);
    assert(l->arena_tail >= l->arena_head);
    assert(l->arena_tail - l->arena_head <= l->region.arena_bytes);
    assert(l->on_way_tail - l->on_way_head <= REQUEST_RING_SLOTS);
}
