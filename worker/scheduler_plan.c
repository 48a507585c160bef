/* scheduler_plan.c - what the next step computes.
 *
 * Blocks first, then rows.  Every running sequence, best rank first, gets the block its next rows go to, if need be by
 * preempting the worst-ranked one; then waiting sequences are admitted; only then is the plan written down.  So nothing
 * that is already in the plan is ever preempted, and the best-ranked sequence always moves, which is why all end.
 *
 * Decodes go before chunks: who reads text notices a stall more than who waits for the first word. */
#include "scheduler_internal.h"

#include <assert.h>
#include <string.h>

struct rows { /* what a plan in the making still has */
    uint32_t rows_left;
    uint32_t event_slots;
    uint64_t now_ns;
};

static bool runs_before(const struct sequence *a, const struct sequence *b)
{
    if (a->paused != b->paused)
        return b->paused;
    if (ranks_interactive(a) != ranks_interactive(b))
        return ranks_interactive(a);
    return a->serial < b->serial;
}

/* A running batch sequence that gets no rows for too long is promoted, one at a time. */
static void promote_aged(struct scheduler *s, uint64_t now_ns)
{
    struct sequence *found = NULL;
    for (uint32_t i = 0; i < s->n_running; i++) {
        struct sequence *r = s->running[i];
        if (r->aged && !r->paused)
            return;
        if (!r->interactive && !r->paused && now_ns - r->progress_ns >= s->opt.age_ns &&
            (found == NULL || r->progress_ns < found->progress_ns))
            found = r;
    }
    if (found != NULL)
        found->aged = true;
}

void scheduler_lend(struct scheduler *s)
{
    for (uint32_t i = 0; i < s->n_running; i++)
        s->running[i]->lent_interactive = false;
    for (struct sequence *w = s->first_waiting; w != NULL && w->interactive; w = w->next)
        if (w->waits_for != NULL)
            w->waits_for->lent_interactive = true;
}

/* The array is nearly sorted from the last plan. */
static void sort_running(struct scheduler *s)
{
    scheduler_lend(s);
    for (uint32_t i = 1; i < s->n_running; i++) {
        struct sequence *seq = s->running[i];
        uint32_t at = i;
        for (; at > 0 && runs_before(seq, s->running[at - 1]); at--)
            s->running[at] = s->running[at - 1];
        s->running[at] = seq;
    }
}

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* See that every running sequence has the blocks of its next rows. */
static void secure_blocks(struct scheduler *s, uint64_t now_ns)
{
    for (uint32_t i = 0; i < s->n_running; i++) {
        struct sequence *seq = s->running[i];
        uint32_t n_tokens = seq->n_computed + min_u32(sequence_behind(seq), MIN_CHUNK);
        if (seq->paused)
            continue;
        while (scheduler_extend(s, seq, n_tokens) < n_tokens) {
            struct sequence *victim = s->running[s->n_running - 1];
            scheduler_preempt(s, victim, now_ns);
            if (victim == seq)
                break;
        }
    }
}

static bool awaits_token(const struct sequence *seq)
{
    return sequence_behind(seq) == 1;
}

/* A step is not to take longer than step_ns_max, by what the last ones took a row; batch prompts make it no longer than a part of that:
 * whoever asks meanwhile waits for the whole step. */
uint32_t scheduler_chunk_rows(const struct scheduler *s, bool interactive)
{
    uint32_t n_decodes = 0;
    for (uint32_t i = 0; i < s->n_running; i++)
        n_decodes += awaits_token(s->running[i]) && !s->running[i]->paused;
    uint32_t rows = s->opt.max_rows - n_decodes;
    if (s->opt.step_ns_max == 0 || s->ns_a_row == 0)
        return rows;
    uint64_t timed = s->opt.step_ns_max / (interactive ? 1 : BATCH_STEP_SHARE) / s->ns_a_row;
    timed = timed > n_decodes + MIN_TIMED_ROWS ? timed - n_decodes : MIN_TIMED_ROWS;
    return timed < rows ? (uint32_t)timed : rows;
}

/* Write n_rows rows of a sequence into the plan; the last one samples if the sequence then is not behind any more. */
static void put(struct scheduler *s, struct sequence *seq, uint32_t n_rows, struct rows *r)
{
    bool samples = n_rows == sequence_behind(seq);
    if (samples && seq->event_slots_max > r->event_slots) {
        samples = false;
        n_rows--; /* computing up to the last row needs no ring slot */
    }
    if (n_rows == 0)
        return;
    struct plan *p = &s->out.plan;
    uint32_t i = p->n_entries++;
    s->planned[i] = seq;
    s->entries[i] = (struct plan_entry){
        .tokens = seq->tokens + seq->n_computed,
        .n_tokens = n_rows,
        .n_past = seq->n_computed,
        .blocks = seq->blocks,
        .from_entry = -1,
        .want = samples ? WANT_TOKEN : WANT_NOTHING,
        .sampling = seq->sampling,
        .bias = seq->bias,
        .seen = seq->seen,
        .n_bias = seq->n_bias,
        .n_seen = seq->n_seen,
        .choice = seq->choice,
        .index = sequence_index(seq),
    };
    p->n_rows += n_rows;
    r->event_slots -= samples ? seq->event_slots_max : 0;
    seq->in_plan = true;
    seq->progress_ns = r->now_ns;
}

static void plan_decodes(struct scheduler *s, struct rows *r)
{
    for (uint32_t i = 0; i < s->n_running; i++)
        if (awaits_token(s->running[i]) && !s->running[i]->paused)
            put(s, s->running[i], 1, r);
}

struct prefill {
    struct sequence *seq;
    uint32_t n_rows; /* granted so far */
};

/* Grant up to n_rows in all, as far as budget and blocks go. */
static void grant(struct scheduler *s, struct prefill *p, uint32_t n_rows, struct rows *r)
{
    n_rows = min_u32(n_rows, sequence_behind(p->seq));
    if (n_rows <= p->n_rows)
        return;
    n_rows = p->n_rows + min_u32(n_rows - p->n_rows, r->rows_left);
    uint32_t held = scheduler_extend(s, p->seq, p->seq->n_computed + n_rows) - p->seq->n_computed;
    if (held <= p->n_rows)
        return;
    r->rows_left -= held - p->n_rows;
    p->n_rows = held;
}

static uint32_t list_prefills(struct scheduler *s, bool interactive, struct prefill *ret)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_running; i++) {
        struct sequence *seq = s->running[i];
        if (seq->paused || sequence_behind(seq) < 2 || ranks_interactive(seq) != interactive)
            continue;
        uint32_t at = n++;
        for (; at > 0 && sequence_behind(ret[at - 1].seq) > sequence_behind(seq); at--)
            ret[at] = ret[at - 1];
        ret[at] = (struct prefill){ .seq = seq };
    }
    return n;
}

static struct prefill *oldest(struct prefill *list, uint32_t n)
{
    struct prefill *best = NULL;
    for (uint32_t i = 0; i < n; i++)
        if (best == NULL || list[i].seq->serial < best->seq->serial)
            best = &list[i];
    return best;
}

/* A quarter for the oldest, a chunk for all, then the shortest first.  list is sorted by length. */
static void share(struct scheduler *s, struct prefill *list, uint32_t n, struct rows *r)
{
    uint32_t quarter = r->rows_left / 4;
    if (n > 0)
        grant(s, oldest(list, n), quarter > MIN_CHUNK ? quarter : MIN_CHUNK, r);
    for (uint32_t i = 0; i < n; i++)
        grant(s, &list[i], MIN_CHUNK, r);
    for (uint32_t i = 0; i < n; i++)
        grant(s, &list[i], UINT32_MAX, r);
}

static void plan_prefills(struct scheduler *s, struct rows *r)
{
    struct prefill interactive[SEQS_MAX], batch[SEQS_MAX];
    uint32_t n_interactive = list_prefills(s, true, interactive), n_batch = list_prefills(s, false, batch);

    const uint32_t rows = r->rows_left, batch_rows = scheduler_chunk_rows(s, false);
    share(s, interactive, n_interactive, r);
    uint32_t taken = rows - r->rows_left, left = batch_rows > taken ? batch_rows - taken : 0;
    r->rows_left = min_u32(r->rows_left, left > MIN_CHUNK ? left : MIN_CHUNK);
    share(s, batch, n_batch, r);
    for (uint32_t i = 0; i < n_interactive; i++)
        if (interactive[i].n_rows > 0)
            put(s, interactive[i].seq, interactive[i].n_rows, r);
    for (uint32_t i = 0; i < n_batch; i++)
        if (batch[i].n_rows > 0)
            put(s, batch[i].seq, batch[i].n_rows, r);
}

const struct scheduler_plan *scheduler_plan(struct scheduler *s, uint64_t now_ns, uint32_t event_slots)
{
    assert(!s->plan_is_open);
    s->out = (struct scheduler_plan){
        .plan = { .entries = s->entries },
        .sequences = s->planned,
        .copies = s->copies,
    };
    s->plan_is_open = true;
    s->preempted = false;
    prefix_cache_set_time(s->cache, now_ns);

    promote_aged(s, now_ns);
    sort_running(s);
    secure_blocks(s, now_ns);
    scheduler_admit(s, now_ns);
    sort_running(s);

    struct rows r = { .rows_left = scheduler_chunk_rows(s, true), .event_slots = event_slots, .now_ns = now_ns };
    plan_decodes(s, &r);
    plan_prefills(s, &r);
    return &s->out;
}
