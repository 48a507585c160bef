/* trace.c - see trace.h.  Pure: no clock, no I/O. */
#include "trace.h"

#include <stddef.h>

enum point { ARRIVED, FIRST_PICKED, PICKED, SENT, TAKEN, TOKENIZED, ADMITTED, FIRST, LAST, TOLD, POINTS };

const char *trace_phase_name(enum trace_phase_name p)
{
    static const char *const names[TRACE_PHASES] = {
        [TRACE_QUEUE] = "queue",       [TRACE_EARLIER] = "earlier",   [TRACE_ROUTING] = "routing",
        [TRACE_HANDOVER] = "handover", [TRACE_TOKENIZE] = "tokenize", [TRACE_WAIT] = "wait",
        [TRACE_PREFIX] = "prefix",     [TRACE_PREFILL] = "prefill",   [TRACE_STEPS] = "steps",
        [TRACE_STREAM] = "stream",
    };

    return names[p];
}

static bool is_over(const struct trace *t)
{
    return t->state == TRACE_DONE || t->state == TRACE_ERROR;
}

/* When each point was passed, in order and without a gap; ret_passed: those that really were. */
static void points_of(const struct trace *t, uint64_t now_ns, uint64_t at[POINTS], bool ret_passed[POINTS])
{
    const struct link_trace *run = &t->run;
    uint64_t end = t->times.told_ns != 0 ? t->times.told_ns : now_ns;
    /* That of a worker that died since is no point of this one's run. */
    bool in_worker = t->times.sent_ns != 0;
    uint64_t first_told = in_worker && t->first_token_ns >= t->times.sent_ns ? t->first_token_ns : 0;
    uint64_t last_told = in_worker && t->last_token_ns >= t->times.sent_ns ? t->last_token_ns : 0;
    const uint64_t known[POINTS] = {
        [ARRIVED] = t->arrived_ns,
        [FIRST_PICKED] = t->times.first_picked_ns,
        [PICKED] = t->times.picked_ns,
        [SENT] = t->times.sent_ns,
        [TAKEN] = run->taken_ns,
        [TOKENIZED] = run->tokenized_ns,
        [ADMITTED] = run->admitted_ns,
        [FIRST] = run->first_ns != 0 ? run->first_ns : first_told,
        [LAST] = !is_over(t)             ? 0
                 : run->last_ns != 0     ? run->last_ns
                 : last_told != 0        ? last_told
                                         : t->times.ended_ns,
        [TOLD] = end,
    };

    for (int i = POINTS - 1; i >= 0; i--) {
        ret_passed[i] = known[i] != 0 && (i < LAST || is_over(t));
        at[i] = known[i] != 0 ? known[i] : at[i + 1];
    }
    for (int i = ARRIVED + 1; i < POINTS; i++) { /* a worker's word is bounded by its neighbours */
        at[i] = at[i] < at[i - 1] ? at[i - 1] : at[i];
        at[i] = at[i] > end && end >= at[i - 1] ? end : at[i];
    }
}

void trace_phases(const struct trace *t, uint64_t now_ns, struct trace_phase ret_phases[TRACE_PHASES])
{
    static const enum point begins[TRACE_PHASES] = {
        [TRACE_QUEUE] = ARRIVED,   [TRACE_EARLIER] = FIRST_PICKED, [TRACE_ROUTING] = PICKED,
        [TRACE_HANDOVER] = SENT,   [TRACE_TOKENIZE] = TAKEN,       [TRACE_WAIT] = TOKENIZED,
        [TRACE_PREFIX] = ADMITTED, [TRACE_PREFILL] = ADMITTED,     [TRACE_STEPS] = FIRST,
        [TRACE_STREAM] = LAST,
    };
    uint64_t at[POINTS];
    bool passed[POINTS];

    points_of(t, now_ns, at, passed);
    for (int i = 0; i < TRACE_PHASES; i++) {
        enum point from = begins[i];

        if (i == TRACE_PREFIX)
            continue;
        ret_phases[i] = (struct trace_phase){at[from], at[from + 1] - at[from], passed[from]};
    }
    struct trace_phase *wait = &ret_phases[TRACE_WAIT];
    uint64_t prefix_ns = t->run.prefix_wait_ns < wait->took_ns ? t->run.prefix_wait_ns : wait->took_ns;
    wait->took_ns -= prefix_ns;
    ret_phases[TRACE_PREFIX] = (struct trace_phase){wait->began_ns + wait->took_ns, prefix_ns, prefix_ns > 0};
    ret_phases[TRACE_EARLIER].reached = t->takeovers > 0;
}

void traces_keep(struct traces *t, const struct trace *one)
{
    t->list[one->batch][t->n[one->batch]++ % TRACES_KEPT] = *one;
}

const struct trace *traces_youngest(const struct traces *t, bool batch, uint32_t k)
{
    if (k >= TRACES_KEPT || k >= t->n[batch])
        return NULL;
    return &t->list[batch][(t->n[batch] - 1 - k) % TRACES_KEPT];
}
