/* startups.c - see startups.h.  At most a thousand entries, touched once a connection: plain loops. */
#include "startups.h"

#include <assert.h>
#include <string.h>

static bool older(const struct startup *a, const struct startup *b)
{
    bool a_silent = a->bytes_received < STARTUP_SILENT_BYTES,
         b_silent = b->bytes_received < STARTUP_SILENT_BYTES;

    if (a_silent != b_silent)
        return a_silent;
    return a->since_ns < b->since_ns || (a->since_ns == b->since_ns && a->number < b->number);
}

static int oldest(const struct startups *s, const uint8_t *source)
{
    int best = -1;

    for (uint32_t i = 0; i < s->max; i++) {
        const struct startup *e = &s->list[i];
        if (e->number == 0 || (source != NULL && memcmp(e->source, source, 16) != 0))
            continue;
        if (best < 0 || older(e, &s->list[best]))
            best = (int)i;
    }
    return best;
}

static bool is_settled(const struct startup *e, uint64_t now_ns)
{
    return now_ns - e->since_ns >= STARTUP_SETTLE_NS;
}

int startups_victim(const struct startups *s, const uint8_t source[16], uint32_t dice, uint64_t now_ns)
{
    uint32_t same = 0;

    for (uint32_t i = 0; i < s->max; i++)
        same += s->list[i].number != 0 && memcmp(s->list[i].source, source, 16) == 0;
    int own = same >= s->per_source ? oldest(s, source) : -1;
    if (own >= 0 && (s->n >= s->free || is_settled(&s->list[own], now_ns)))
        return own;
    if (s->n < s->free)
        return -1;
    int any = oldest(s, NULL);
    if (s->n >= s->max)
        return any;
    /* percent at `free`, 100 at `max`, linear between */
    uint32_t chance = s->percent + (100 - s->percent) * (s->n - s->free) / (s->max - s->free);
    return dice % 100 < chance && is_settled(&s->list[any], now_ns) ? any : -1;
}

void startups_add(struct startups *s, uint64_t number, const uint8_t source[16], uint64_t now_ns)
{
    assert(number != 0);
    for (uint32_t i = 0; i < s->max; i++) {
        if (s->list[i].number != 0)
            continue;
        s->list[i] = (struct startup){ .number = number, .since_ns = now_ns };
        memcpy(s->list[i].source, source, 16);
        s->n++;
        return;
    }
    assert(!"startups_add without room");
}

bool startups_remove(struct startups *s, uint64_t number)
{
    for (uint32_t i = 0; i < s->max; i++) {
        if (s->list[i].number != number || number == 0)
            continue;
        s->list[i].number = 0;
        s->n--;
        return true;
    }
    return false;
}

uint64_t startups_overdue(const struct startups *s, uint64_t now_ns)
{
    for (uint32_t i = 0; i < s->max; i++) {
        if (s->list[i].number != 0 && now_ns - s->list[i].since_ns >= s->grace_ns)
            return s->list[i].number;
    }
    return 0;
}

uint64_t startups_next_ns(const struct startups *s)
{
    uint64_t next = UINT64_MAX;

    for (uint32_t i = 0; i < s->max; i++) {
        if (s->list[i].number != 0 && s->list[i].since_ns + s->grace_ns < next)
            next = s->list[i].since_ns + s->grace_ns;
    }
    return next;
}
