/* worker_trace.c - where the time of each request goes: the worker writes it into the region as it happens, the broker reads it when a
 * request ends or somebody asks (`weir trace`).
 *
 * Not events: an event takes room in the ring and a long prompt has many chunks, while here every value has its place, a request that
 * runs can be looked at, and one whose worker dies leaves what it has.  One writer, the step thread; a reader may meet a value of the next
 * moment beside one of this, which for a timeline does not matter.  All times are CLOCK_MONOTONIC, which the broker's are, too. */
#include "worker_internal.h"

#include "clock.h"

static void put(_Atomic uint64_t *field, uint64_t value)
{
    atomic_store_explicit(field, value, memory_order_relaxed);
}

static uint64_t get(const _Atomic uint64_t *field)
{
    return atomic_load_explicit(field, memory_order_relaxed);
}

static void add(_Atomic uint64_t *field, uint64_t value)
{
    put(field, get(field) + value); /* one writer */
}

void worker_trace_taken(struct worker *w, const struct request *r)
{
    struct region_trace *t = &w->region->traces[r->slot];

    put(&t->generation, 0);
    atomic_thread_fence(
        memory_order_release); /* who sees a value from here on and looks at the generation again sees that it changes */
#define X(name) put(&t->name, 0);
    REGION_TRACE_LIST(X)
#undef X
    for (uint32_t i = 0; i < TRACE_CHUNKS; i++) {
        put(&t->chunk[i].began_ns, 0);
        put(&t->chunk[i].took_ns, 0);
        put(&t->chunk[i].rows, 0);
    }
    put(&t->taken_ns, clock_now_ns());
    atomic_store_explicit(&t->generation, r->generation, memory_order_release);
}

void worker_trace_prepared(struct worker *w, const struct request *r)
{
    struct region_trace *t = &w->region->traces[r->slot];

    put(&t->tokenized_ns, r->tokenized_ns);
    put(&t->tokenize_ns, r->tokenize_ns);
}

void worker_trace_planned(struct worker *w, const struct scheduler_plan *plan)
{
    for (uint32_t i = 0; i < plan->plan.n_entries; i++) {
        const struct sequence *q = plan->sequences[i];
        const struct choice *c = q->owner;
        struct region_trace *t = &w->region->traces[c->request->slot];

        if (get(&t->admitted_ns) != 0)
            continue;
        put(&t->prefix_wait_ns, q->prefix_wait_ns);
        put(&t->admitted_ns, q->admitted_ns);
    }
}

static void put_chunk(struct region_trace *t, uint64_t rows, uint64_t began_ns, uint64_t took_ns)
{
    uint64_t n = get(&t->chunks);
    struct region_chunk *c = &t->chunk[n < TRACE_CHUNKS ? n : TRACE_CHUNKS - 1];

    if (n < TRACE_CHUNKS)
        put(&c->began_ns, began_ns);
    add(&c->took_ns, took_ns);
    add(&c->rows, rows);
    add(&t->chunk_ns, took_ns);
    put(&t->chunks, n + 1);
}

/* Several choices of a request may have rows in one step: it is counted once, a chunk with the rows of all. */
void worker_trace_step(struct worker *w, const struct scheduler_plan *plan, uint64_t began_ns,
                       uint64_t now_ns)
{
    const uint64_t this_step = w->totals.steps + 1;

    for (uint32_t i = 0; i < plan->plan.n_entries; i++) {
        struct request *r = ((const struct choice *)plan->sequences[i]->owner)->request;
        struct region_trace *t = &w->region->traces[r->slot];
        uint64_t rows = 0;

        if (r->traced_step == this_step)
            continue;
        r->traced_step = this_step;
        if (r->first_token_ns != 0) {
            add(&t->steps, 1);
            add(&t->step_ns, now_ns - began_ns);
            continue;
        }
        for (uint32_t k = i; k < plan->plan.n_entries; k++)
            if (((const struct choice *)plan->sequences[k]->owner)->request == r)
                rows += plan->plan.entries[k].n_tokens;
        put_chunk(t, rows, began_ns, now_ns - began_ns);
    }
}

void worker_trace_token(struct worker *w, const struct request *r, uint64_t now_ns)
{
    struct region_trace *t = &w->region->traces[r->slot];

    if (get(&t->first_ns) == 0)
        put(&t->first_ns, now_ns);
    put(&t->last_ns, now_ns);
}
