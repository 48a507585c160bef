/* plans.c - promises about what a step computes, checked on every plan.
 *
 *   interactive   An interactive sequence that could run is in the plan, unless interactive ones alone fill the pool: then nothing
 *                 that ranks below it runs, or holds what it needs.  Or a batch sequence has been kept out for 2 * age_ns by those that run.
 *   batch         Batch never stops: while some of it could run, at most 2 * age_ns and then as many plans as the longest
 *                 sequence has tokens go by without a row of it.
 *   prefix        Two entries of one plan never compute the same whole block of the same scope.
 *   work          Over a run without faults, evictions and preemptions every prompt token is computed once per worker and
 *                 scope, but for the last one of a prompt and the block it shares only in part. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"
#include "worker/request.h"
#include "worker/scheduler_internal.h"

static struct watch {        /* of one worker */
    uint64_t batch_since_ns; /* batch could run since; 0: it has just run, or there is none */
    uint32_t n_plans_late;   /* plans since it was due */
} watches[SIM_WORKERS_MAX];

/* Prompt positions computed, as beginnings: oracle_note() under a scope of the worker's own. */
static uint64_t n_rows, n_again, n_allowed;
static bool is_exact; /* no eviction, no preemption so far */

void plans_forget(uint32_t slot)
{
    watches[slot] = (struct watch){0};
    is_exact = false;
}

static bool ranks_high(const struct sequence *q)
{
    return ranks_interactive(q) && !q->paused;
}

static bool waits_for_leader(const struct sequence *q)
{
    const struct sequence *l = q->leader;
    return l != NULL && !q->was_admitted &&
           (l->state == SEQUENCE_WAITING || (l->state == SEQUENCE_RUNNING && l->n_computed < q->n_prompt));
}

static bool could_run(const struct sequence *q)
{
    return !q->paused && q->waits_for == NULL && !waits_for_leader(q);
}

/* Blocks that sequences of high rank hold or will need to run on. */
static uint32_t claimed_by_high(const struct scheduler *s)
{
    static bool held[1 << 16];
    uint32_t n = 0;
    assert(s->opt.n_blocks <= sizeof(held));
    memset(held, 0, s->opt.n_blocks);
    for (uint32_t i = 0; i < s->n_running; i++) {
        const struct sequence *r = s->running[i];
        if (!ranks_high(r))
            continue;
        for (uint32_t k = 0; k < r->n_blocks; k++) {
            n += !held[r->blocks[k]];
            held[r->blocks[k]] = true;
        }
        uint32_t all = blocks_for(r->n_tokens) + 1;
        n += all > r->n_blocks ? all - r->n_blocks : 1;
    }
    return n;
}

static void print_sequence(const char *where, const struct sequence *q)
{
    const struct choice *c = q->owner;
    fprintf(stderr,
            "  %s slot %u choice %u: prompt %u tokens %u of %u computed %u blocks %u%s%s%s%s%s%s%s loaded %u preempted "
            "%u\n",
            where, c->request->slot, q->choice, q->n_prompt, q->n_tokens, q->tokens_max, q->n_computed,
            q->n_blocks, q->interactive ? " interactive" : " batch", q->lent_interactive ? " lent" : "",
            q->aged ? " aged" : "", q->paused ? " paused" : "", q->in_plan ? " in-plan" : "",
            q->waits_for != NULL ? " waits-for-prefix" : "", q->cache_off ? " cache-off" : "",
            q->n_loaded_to, q->n_preemptions);
}

/* For whoever looks into a failure. */
static void print_all(const struct scheduler *s)
{
    struct kv_counts kv = scheduler_kv_counts(s);
    fprintf(stderr, "  blocks: %u free, %u pinned, %u cached of %u; at most %u sequences, %u rows\n",
            kv.n_free, kv.n_pinned, kv.n_cached, s->opt.n_blocks, s->opt.max_seqs, s->opt.max_rows);
    for (uint32_t i = 0; i < s->n_running; i++)
        print_sequence("runs ", s->running[i]);
    for (const struct sequence *w = s->first_waiting; w != NULL; w = w->next)
        print_sequence("waits", w);
}

struct survey {
    uint32_t n_low;       /* running, of low rank or paused */
    bool low_prefill;     /* one of them computes more than one row */
    bool high_unfinished; /* one of high rank got fewer rows than it needs, or all there are were taken */
    uint32_t n_high_prefills;
};

static struct survey look(const struct scheduler *s, const struct scheduler_plan *plan)
{
    struct survey v = {0};
    for (uint32_t i = 0; i < s->n_running; i++) {
        v.n_low += !ranks_high(s->running[i]);
        v.high_unfinished = v.high_unfinished || (ranks_high(s->running[i]) && !s->running[i]->in_plan);
    }
    v.high_unfinished = v.high_unfinished || plan->plan.n_rows == s->opt.max_rows;
    for (uint32_t i = 0; i < plan->plan.n_entries; i++) {
        const struct sequence *q = plan->sequences[i];
        uint32_t behind = sequence_behind(q), rows = plan->plan.entries[i].n_tokens;
        if (behind < 2)
            continue;
        if (!ranks_high(q)) {
            v.low_prefill = true;
            continue;
        }
        v.n_high_prefills++;
        v.high_unfinished = v.high_unfinished || rows < behind;
    }
    return v;
}

/* Then nobody is admitted before it. */
static bool batch_is_kept_out(const struct scheduler *s)
{
    for (const struct sequence *w = s->first_waiting; w != NULL; w = w->next)
        if (!w->interactive && could_run(w) && sim.now_ns - w->progress_ns >= 2 * s->opt.age_ns &&
            claimed_by_high(s) + blocks_for(w->n_tokens) > s->opt.n_blocks)
            return true;
    return false;
}

static void check_interactive(uint32_t slot, const struct scheduler *s, const struct scheduler_plan *plan)
{
    struct survey v = look(s, plan);
    if (v.n_low == 0)
        return;
    const bool door_is_closed = batch_is_kept_out(s);
    for (const struct sequence *w = s->first_waiting; w != NULL && w->interactive; w = w->next) {
        if (!could_run(w))
            continue;
        bool blocks_full = claimed_by_high(s) + blocks_for(w->n_tokens) > s->opt.n_blocks;
        /* The budget of an admission is smaller by the decodes that are preempted later in the same plan. */
        bool few_rows = s->opt.step_ns_max != 0 || plan->plan.n_rows + s->opt.max_seqs >= s->opt.max_rows;
        bool rows_full = !v.low_prefill && (v.high_unfinished || (v.n_high_prefills >= PREFILLS_A_CLASS && few_rows));
        const struct choice *c = w->owner;
        bool excused = blocks_full || rows_full || door_is_closed;
        if (!excused)
            print_all(s);
        sim_demand(
            excused,
            "worker %u: an interactive sequence (slot %u, %u tokens) waits, while %u of lower rank run%s "
            "(%u blocks, %u claimed; %u running, %u prefills of high rank; %u rows of %u)",
            slot, c->request->slot, w->n_tokens, v.n_low, v.low_prefill ? ", one of them a prefill" : "",
            s->opt.n_blocks, claimed_by_high(s), s->n_running, v.n_high_prefills, plan->plan.n_rows,
            s->opt.max_rows);
        return; /* those behind it may not overtake it */
    }
    for (uint32_t i = 0; i < s->n_running; i++) {
        const struct sequence *r = s->running[i];
        sim_demand(
            !r->interactive || r->paused || r->in_plan || !v.low_prefill || fault_is_on(FAULT_RING),
            "worker %u: an interactive sequence runs and gets no row, while a prefill of lower rank does",
            slot);
    }
}

static bool batch_could_run(const struct scheduler *s)
{
    for (uint32_t i = 0; i < s->n_running; i++)
        if (!s->running[i]->interactive && !s->running[i]->paused)
            return true;
    for (const struct sequence *w = s->first_waiting; w != NULL; w = w->next)
        if (!w->interactive && could_run(w))
            return true;
    return false;
}

static void check_batch(uint32_t slot, const struct scheduler *s, const struct scheduler_plan *plan)
{
    struct watch *w = &watches[slot];
    bool ran = false;
    for (uint32_t i = 0; i < plan->plan.n_entries; i++)
        ran = ran || !plan->sequences[i]->interactive;
    if (ran || !batch_could_run(s)) {
        *w = (struct watch){0};
        return;
    }
    if (w->batch_since_ns == 0)
        w->batch_since_ns = sim.now_ns;
    if (sim.now_ns - w->batch_since_ns <= 2 * s->opt.age_ns || plan->plan.n_entries == 0)
        return;
    if (++w->n_plans_late > s->opt.context_tokens + 50)
        print_all(s);
    sim_demand(w->n_plans_late <= s->opt.context_tokens + 50,
               "worker %u: no row of batch work for %llu ms and %u plans", slot,
               (unsigned long long)((sim.now_ns - w->batch_since_ns) / 1000000), w->n_plans_late);
}

/* But for the last token, which is always computed. */
static uint32_t common(const struct sequence *a, const struct sequence *b)
{
    uint32_t n = (a->n_tokens < b->n_tokens ? a->n_tokens : b->n_tokens) - 1, i = 0;
    while (i < n && a->tokens[i] == b->tokens[i])
        i++;
    return i;
}

static uint32_t min3(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t ab = a < b ? a : b;
    return ab < c ? ab : c;
}

/* Has it a right to compute what another computes?  It waited long enough for it, or it could not know. */
static bool is_excused(const struct scheduler *s, const struct sequence *q)
{
    return q->cache_off || q->n_preemptions > 0 ||
           (q->waits_since_ns != 0 && sim.now_ns - q->waits_since_ns >= s->opt.prefix_wait_ns);
}

static void check_prefixes(uint32_t slot, const struct scheduler *s, const struct scheduler_plan *plan)
{
    for (uint32_t i = 0; i < plan->plan.n_entries; i++) {
        const struct sequence *a = plan->sequences[i];
        const struct plan_entry *ea = &plan->plan.entries[i];
        if (ea->n_tokens < BLOCK_TOKENS || is_excused(s, a) || fault_is_on(FAULT_SLOW))
            continue;
        for (uint32_t k = i + 1; k < plan->plan.n_entries; k++) {
            const struct sequence *b = plan->sequences[k];
            const struct plan_entry *eb = &plan->plan.entries[k];
            if (eb->n_tokens < BLOCK_TOKENS || is_excused(s, b) ||
                memcmp(&a->scope, &b->scope, sizeof(a->scope)) != 0)
                continue;
            uint32_t from = ea->n_past > eb->n_past ? ea->n_past : eb->n_past;
            uint32_t to = min3(ea->n_past + ea->n_tokens, eb->n_past + eb->n_tokens, common(a, b));
            from = (from + BLOCK_TOKENS - 1) / BLOCK_TOKENS * BLOCK_TOKENS;
            if (to >= from + BLOCK_TOKENS)
                print_all(s);
            sim_demand(to < from + BLOCK_TOKENS,
                       "worker %u: two sequences of one scope compute positions %u to %u of the same tokens",
                       slot, from, to);
        }
    }
}

static void count_work(uint32_t slot, const struct scheduler *s, const struct scheduler_plan *plan)
{
    struct scheduler_counters c = scheduler_counters(s);
    is_exact = is_exact && c.preemptions == 0 && scheduler_evictions(s).for_space == 0;
    for (uint32_t i = 0; is_exact && i < plan->plan.n_entries; i++) {
        const struct sequence *q = plan->sequences[i];
        const struct plan_entry *e = &plan->plan.entries[i];
        uint32_t end = e->n_past + e->n_tokens < q->n_prompt ? e->n_past + e->n_tokens : q->n_prompt;
        if (q->cache_off || e->n_past >= q->n_prompt)
            continue;
        uint64_t scope = (q->scope.id[0] ^ q->scope.id[1]) + slot + 1000000;
        uint32_t known = oracle_known(scope, q->tokens, end, 1);
        n_rows += end - e->n_past;
        n_again += known > e->n_past ? known - e->n_past : 0;
        n_allowed += e->n_past == q->n_computed && end == q->n_prompt ? BLOCK_TOKENS : 0; /* its tail */
        oracle_note(scope, q->tokens, e->n_past, end);
    }
}

void plans_check(uint32_t slot, const struct scheduler *s, const struct scheduler_plan *plan)
{
    if (sim.seen.plans == 0) {
        n_rows = n_again = n_allowed = 0;
        is_exact = sim.opt.faults == 0 && !sim.opt.canary && sim.plan.prefix_wait_ns == 0;
    }
    check_interactive(slot, s, plan);
    check_batch(slot, s, plan);
    check_prefixes(slot, s, plan);
    count_work(slot, s, plan);
}

void plans_check_work(void)
{
    sim_demand(!is_exact || n_again <= n_allowed,
               "%llu of %llu prompt tokens were computed again; at most %llu had to be",
               (unsigned long long)n_again, (unsigned long long)n_rows, (unsigned long long)n_allowed);
}
