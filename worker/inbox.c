/* inbox.c - see inbox.h.  The slot is peeked, the record copied, and only then the slot is consumed. */
#include "inbox.h"

#include "fault.h"
#include "log.h"

/* Does the record the message names lie in the arena? */
static bool message_ok(const struct region *region, const struct work_message *m)
{
    return m->slot < REGION_SLOTS && m->generation > 0 && m->record_bytes >= sizeof(struct work_request) &&
           m->record_bytes <= RECORD_BYTES_MAX && m->record_at % 64 == 0 && m->record_at <= region->arena_bytes &&
           m->record_bytes <= region->arena_bytes - m->record_at;
}

static enum status broken(const struct work_message *m)
{
    log_error("request_ring_broken", "type=%u slot=%u generation=%u record_bytes=%u record_at=%llu", m->type, m->slot,
              m->generation, m->record_bytes, (unsigned long long)m->record_at);
    return ST_CORRUPT;
}

enum status inbox_next(struct region *region, const struct request_limits *limits, enum inbox_kind *ret_kind,
                       struct request **ret_request, uint64_t *ret_session)
{
    struct work_message m, consumed;
    struct request *r = NULL;
    enum status st = ring_peek(&region->requests, &m);
    if (st != ST_OK)
        return st;
    if (m.type != WORK_START && m.type != WORK_DRAIN && m.type != WORK_SESSION_END)
        return broken(&m);
    if (m.type == WORK_START) {
        if (!message_ok(region, &m))
            return broken(&m);
        st = request_new(region->arena + m.record_at, m.record_bytes, m.slot, m.generation, limits, &r);
        if (st != ST_OK)
            return st;
        r->session = m.session;
        FAULT("worker.request_read");
    }
    st = ring_pop(&region->requests, &consumed, 1);
    if (st != ST_OK) {
        request_free(r);
        return ST_CORRUPT; /* it was there when we looked */
    }
    if (m.type == WORK_START)
        FAULT("worker.request_taken");
    *ret_kind = m.type == WORK_START ? INBOX_START : m.type == WORK_DRAIN ? INBOX_DRAIN : INBOX_SESSION_END;
    *ret_session = m.session;
    *ret_request = r;
    return ST_OK;
}

uint32_t inbox_flags(const struct region *region, uint32_t slot, uint32_t generation)
{
    uint64_t word = atomic_load_explicit(&region->slots[slot].word, memory_order_acquire);
    return (uint32_t)(word >> 32) == generation ? (uint32_t)word : 0;
}
