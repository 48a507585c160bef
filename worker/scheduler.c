/* scheduler.c - sequences come, wait, run and end; the lists and the blocks they hold.  What a plan contains is decided in
 * scheduler_plan.c, who gets in by scheduler_admit.c.
 *
 * The waiting list is a sorted list and not a heap: it holds at most a few hundred sequences, is read in order from its head,
 * and the ones that cannot run now (they wait for a prefix, or are paused) are stepped over. */
#include "scheduler_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t age_ns_default = 5000000000, prefix_wait_ns_default = 10000000000;

enum status scheduler_new(const struct scheduler_options *opt, struct scheduler **ret_scheduler)
{
    assert(opt->max_seqs >= 1 && opt->max_seqs <= SEQS_MAX);
    assert(opt->max_rows > opt->max_seqs && opt->max_rows <= PLAN_TOKENS_MAX);
    assert(opt->context_tokens >= 2);

    enum status st = ST_NOMEM;
    struct scheduler *s = calloc(1, sizeof(*s));
    if (s == NULL)
        goto out;
    s->opt = *opt;
    if (s->opt.age_ns == 0)
        s->opt.age_ns = age_ns_default;
    if (s->opt.prefix_wait_ns == 0)
        s->opt.prefix_wait_ns = prefix_wait_ns_default;
    s->scratch = calloc(blocks_for(opt->context_tokens), sizeof(*s->scratch));
    if (s->scratch == NULL)
        goto out;
    st = prefix_cache_new(opt->n_blocks, opt->secret, &s->cache);
    if (st != ST_OK)
        goto out;
    if (opt->shelf != NULL)
        st = prefix_cache_attach(s->cache, opt->shelf);
    if (st != ST_OK)
        goto out;
    *ret_scheduler = s;
    s = NULL;
out:
    scheduler_free(s);
    return st;
}

void scheduler_free(struct scheduler *s)
{
    if (s == NULL)
        return;
    prefix_cache_free(s->cache);
    free(s->scratch);
    free(s);
}

static bool waits_before(const struct sequence *a, const struct sequence *b)
{
    if (a->interactive != b->interactive)
        return a->interactive;
    if (a->fair_tag != b->fair_tag)
        return a->fair_tag < b->fair_tag;
    return a->serial < b->serial;
}

/* Into the waiting list, in order. */
static void wait_in_line(struct scheduler *s, struct sequence *seq)
{
    /* From the end: most arrivals come last. */
    struct sequence *after = s->last_waiting;
    while (after != NULL && waits_before(seq, after))
        after = after->before;
    seq->before = after;
    seq->next = after != NULL ? after->next : s->first_waiting;
    if (seq->next != NULL)
        seq->next->before = seq;
    else
        s->last_waiting = seq;
    if (after != NULL)
        after->next = seq;
    else
        s->first_waiting = seq;
    seq->state = SEQUENCE_WAITING;
    s->n_waiting++;
}

void scheduler_unwait(struct scheduler *s, struct sequence *seq)
{
    assert(seq->state == SEQUENCE_WAITING);
    if (seq->before != NULL)
        seq->before->next = seq->next;
    else
        s->first_waiting = seq->next;
    if (seq->next != NULL)
        seq->next->before = seq->before;
    else
        s->last_waiting = seq->before;
    seq->next = seq->before = NULL;
    seq->waits_for = NULL;
    s->n_waiting--;
}

enum status scheduler_add(struct scheduler *s, struct sequence *seq, uint64_t now_ns, struct error *err)
{
    assert(seq->state == SEQUENCE_NEW);
    assert(seq->n_prompt >= 1 && seq->n_tokens >= seq->n_prompt);

    if (seq->n_tokens >= s->opt.context_tokens) {
        error_set(err, ERR_CONTEXT_OVERFLOW, "prompt", "prompt has %u tokens, model takes %u with the answer",
                  seq->n_tokens, s->opt.context_tokens);
        return ST_LIMIT;
    }
    if (blocks_for(seq->n_tokens + 1) > s->opt.n_blocks) {
        error_set(err, ERR_LIMIT_EXCEEDED, "prompt", "prompt has %u tokens, this worker's KV cache holds %llu",
                  seq->n_tokens, (unsigned long long)s->opt.n_blocks * BLOCK_TOKENS);
        return ST_LIMIT;
    }
    assert(seq->tokens_max > seq->n_tokens && seq->tokens_max <= s->opt.context_tokens);
    assert(blocks_for(seq->tokens_max) <= s->opt.n_blocks);
    assert(seq->leader == NULL || seq->leader->state != SEQUENCE_NEW);

    session_pins_touch(&s->sessions, seq->session);
    seq->serial = ++s->serial;
    seq->added_ns = seq->progress_ns = now_ns;
    wait_in_line(s, seq);
    return ST_OK;
}

/* Make the full blocks that are computed known to the index. */
static void publish_full(struct scheduler *s, struct sequence *seq)
{
    if (seq->cache_off)
        return;
    while ((seq->n_published + 1) * BLOCK_TOKENS <= seq->n_computed) {
        uint32_t i = seq->n_published++;
        uint32_t parent = i > 0 ? seq->blocks[i - 1] : KV_BLOCK_NONE;
        seq->blocks[i] = prefix_cache_publish(s->cache, seq->scope, parent, seq->blocks[i],
                                              seq->tokens + (size_t)i * BLOCK_TOKENS, BLOCK_TOKENS);
    }
}

/* Publish and release its blocks. */
static void let_go(struct scheduler *s, struct sequence *seq)
{
    uint32_t n_full = seq->n_computed / BLOCK_TOKENS, n_tail = seq->n_computed % BLOCK_TOKENS;

    publish_full(s, seq);
    if (n_tail > 0 && !seq->cache_off)
        seq->blocks[n_full] = prefix_cache_publish(s->cache, seq->scope, n_full > 0 ? seq->blocks[n_full - 1] : KV_BLOCK_NONE,
                                                   seq->blocks[n_full], seq->tokens + (size_t)n_full * BLOCK_TOKENS, n_tail);
    while (seq->n_blocks > 0)
        prefix_cache_release(s->cache, seq->blocks[--seq->n_blocks]);
    seq->n_computed = seq->n_published = 0;
}

/* Out of running[]; who waits for it is told. */
static void leave(struct scheduler *s, struct sequence *seq)
{
    uint32_t i = 0;
    while (i < s->n_running && s->running[i] != seq)
        i++;
    assert(i < s->n_running);
    memmove(&s->running[i], &s->running[i + 1], (s->n_running - i - 1) * sizeof(s->running[0]));
    s->n_running--;
    for (struct sequence *w = s->first_waiting; w != NULL; w = w->next)
        if (w->waits_for == seq)
            w->waits_for = NULL;
}

void scheduler_preempt(struct scheduler *s, struct sequence *seq, uint64_t now_ns)
{
    assert(seq->state == SEQUENCE_RUNNING && !seq->in_plan);
    let_go(s, seq);
    leave(s, seq);
    seq->n_preemptions++;
    seq->progress_ns = now_ns;
    seq->lent_interactive = seq->aged = false;
    s->counters.preemptions++;
    s->preempted = true;
    wait_in_line(s, seq);
}

uint32_t scheduler_extend(struct scheduler *s, struct sequence *seq, uint32_t n_tokens)
{
    while (seq->n_blocks < blocks_for(n_tokens)) {
        uint32_t block = KV_BLOCK_NONE;
        if (prefix_cache_take(s->cache, &block) != ST_OK) {
            if (session_pins_drop_oldest(&s->sessions, s->cache))
                continue;
            break;
        }
        seq->blocks[seq->n_blocks++] = block;
    }
    uint64_t held = (uint64_t)seq->n_blocks * BLOCK_TOKENS;
    return held < n_tokens ? (uint32_t)held : n_tokens;
}

/* Rows [n_computed, n_computed + n) of a sequence were computed: which kind of work was it? */
static void count_rows(struct scheduler *s, struct sequence *seq, uint32_t n, bool sampled)
{
    uint32_t end = seq->n_computed + n;
    uint32_t n_new = end > seq->n_ever_computed ? end - seq->n_ever_computed : 0;
    uint32_t n_new_prompt = 0;
    if (n_new > 0 && seq->n_ever_computed < seq->n_prompt)
        n_new_prompt = (end < seq->n_prompt ? end : seq->n_prompt) - seq->n_ever_computed;
    s->counters.prefill_tokens += n_new_prompt;
    s->counters.recomputed_tokens += n - n_new;
    s->counters.decode_tokens += sampled;
    if (n_new > 0)
        seq->n_ever_computed = end;
}

void scheduler_step_done(struct scheduler *s, uint64_t step_ns)
{
    assert(s->plan_is_open);
    uint32_t n_rows = s->out.plan.n_rows;

    if (n_rows >= MIN_TIMED_ROWS) {
        uint64_t ns = step_ns / n_rows;
        s->ns_a_row = s->ns_a_row == 0 ? ns : (3 * s->ns_a_row + ns) / 4;
    }
    for (uint32_t i = 0; i < s->out.n_copies; i++)
        prefix_cache_release(s->cache, s->copies[i].from);
    for (uint32_t i = 0; i < s->out.plan.n_entries; i++) {
        struct sequence *seq = s->planned[i];
        count_rows(s, seq, s->entries[i].n_tokens, s->entries[i].want == WANT_TOKEN);
        seq->in_plan = false;
        seq->n_computed += s->entries[i].n_tokens;
        publish_full(s, seq);
    }
    s->plan_is_open = false;
}

void scheduler_append(struct scheduler *s, struct sequence *seq, int32_t token)
{
    assert(!s->plan_is_open);
    assert(seq->state == SEQUENCE_RUNNING);
    assert(seq->n_computed == seq->n_tokens && seq->n_tokens < seq->tokens_max);
    seq->tokens[seq->n_tokens++] = token;
}

static void keep_for_session(struct scheduler *s, struct sequence *seq)
{
    if (seq->session == 0 || seq->cache_off)
        return;
    publish_full(s, seq);
    if (seq->n_published > 0)
        session_pins_hold(&s->sessions, s->cache, seq->session, seq->blocks[seq->n_published - 1], seq->n_published);
}

void scheduler_session_end(struct scheduler *s, uint64_t session)
{
    assert(!s->plan_is_open);
    session_pins_drop(&s->sessions, s->cache, session);
}

void scheduler_end(struct scheduler *s, struct sequence *seq)
{
    assert(!s->plan_is_open);
    if (seq->state == SEQUENCE_RUNNING) {
        keep_for_session(s, seq);
        let_go(s, seq);
        leave(s, seq);
    } else if (seq->state == SEQUENCE_WAITING) {
        scheduler_unwait(s, seq);
    }
    seq->state = SEQUENCE_ENDED;
}

bool scheduler_save_some(struct scheduler *s)
{
    assert(!s->plan_is_open);
    return prefix_cache_save_some(s->cache);
}

struct scheduler_counters scheduler_counters(const struct scheduler *s)
{
    return s->counters;
}

static uint32_t prompt_behind(const struct sequence *seq)
{
    return seq->n_computed < seq->n_prompt ? seq->n_prompt - seq->n_computed : 0;
}

struct scheduler_levels scheduler_levels(const struct scheduler *s)
{
    struct scheduler_levels l = { .n_running = s->n_running, .n_waiting = s->n_waiting };
    for (uint32_t i = 0; i < s->n_running; i++)
        l.tokens_behind += prompt_behind(s->running[i]);
    for (const struct sequence *w = s->first_waiting; w != NULL; w = w->next)
        l.tokens_behind += w->leader == NULL ? prompt_behind(w) : 0;
    return l;
}

struct kv_counts scheduler_kv_counts(const struct scheduler *s)
{
    return prefix_cache_counts(s->cache);
}

struct eviction_counts scheduler_evictions(const struct scheduler *s)
{
    return prefix_cache_evictions(s->cache);
}

uint64_t scheduler_sessions_yielded(const struct scheduler *s)
{
    return s->sessions.n_yielded;
}

static void check_running(const struct scheduler *s, const struct sequence *seq)
{
    assert(seq->state == SEQUENCE_RUNNING);
    assert(seq->n_computed <= seq->n_tokens && seq->n_tokens <= seq->tokens_max);
    assert(seq->n_blocks >= blocks_for(seq->n_computed) && seq->n_blocks <= blocks_for(seq->tokens_max));
    assert(seq->n_published == (seq->cache_off ? 0 : seq->n_computed / BLOCK_TOKENS));
    assert(seq->in_plan ? s->plan_is_open : true);
    for (uint32_t i = 0; i < seq->n_blocks; i++)
        assert(seq->blocks[i] < s->opt.n_blocks);
}

void scheduler_check(const struct scheduler *s)
{
    prefix_cache_check(s->cache);
    uint32_t n_held = 0;
    for (uint32_t i = 0; i < s->n_running; i++) {
        check_running(s, s->running[i]);
        n_held += s->running[i]->n_blocks;
    }
    struct kv_counts c = prefix_cache_counts(s->cache);
    assert(c.n_free + c.n_pinned + c.n_cached == s->opt.n_blocks);
    if (!s->plan_is_open)
        assert(c.n_pinned <= n_held + s->sessions.n_blocks); /* sequences and sessions share blocks, and nobody else pins any */
    session_pins_check(&s->sessions, s->cache);

    const struct sequence *before = NULL;
    uint32_t n = 0;
    for (const struct sequence *w = s->first_waiting; w != NULL; before = w, w = w->next, n++) {
        assert(n < s->n_waiting);
        assert(w->state == SEQUENCE_WAITING && w->before == before);
        assert(w->n_blocks == 0 && w->n_computed == 0 && !w->in_plan);
        assert(before == NULL || waits_before(before, w));
        assert(w->waits_for == NULL || w->waits_for->state == SEQUENCE_RUNNING);
    }
    assert(n == s->n_waiting && s->last_waiting == before);
}
