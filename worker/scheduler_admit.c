/* scheduler_admit.c - which waiting sequence starts to run, and with which blocks.
 *
 * A sequence that is admitted brings along what is already computed of it: published blocks that the index finds, or, for
 * the second and later choices of a request, the blocks of the first.  A block that fits only in part is copied and the copy
 * extended, so reuse is exact to the token.
 *
 * Why a request waits for a prefix in the making instead of computing it again: on a shared system prompt the first of
 * thirty requests that arrive together pays for it, and the others find it a step later. */
#include "scheduler_internal.h"

#include <assert.h>

struct admission {
    uint64_t now_ns;
    uint32_t rows_left[2];    /* of the plan's budget, for each class (1: interactive): not claimed by those that run already
                               * and come before it */
    uint32_t n_prefills[2];   /* running and behind, by rank */
    uint32_t n_batch;         /* running batch sequences, paused or not */
    bool closed[2];           /* a sequence of this class found no room: those behind it may not overtake */
};

static uint32_t batch_slots(const struct scheduler *s)
{
    uint32_t kept = s->opt.max_seqs / 8;
    if (kept == 0 && s->opt.max_seqs > 1)
        kept = 1;
    return s->opt.max_seqs - kept;
}

static void claim_rows(struct admission *a, const struct sequence *seq)
{
    uint32_t behind = sequence_behind(seq);
    if (behind < 2 || seq->paused) /* a paused one gets no rows, so it must not keep others from them */
        return;
    bool high = ranks_interactive(seq);
    for (int class = 0; class <= high; class++)
        a->rows_left[class] -= behind < a->rows_left[class] ? behind : a->rows_left[class];
    a->n_prefills[high]++;
}

/* Anew after every change to running[], or of somebody's rank there: who is preempted for a newcomer leaves a row behind as well. */
static void survey(const struct scheduler *s, struct admission *a)
{
    a->rows_left[0] = scheduler_chunk_rows(s, false);
    a->rows_left[1] = scheduler_chunk_rows(s, true);
    a->n_prefills[0] = a->n_prefills[1] = 0;
    a->n_batch = 0;
    for (uint32_t i = 0; i < s->n_running; i++) {
        a->n_batch += !s->running[i]->interactive;
        claim_rows(a, s->running[i]);
    }
}

/* Tokens of it that need not be computed at most: all but the last. */
static uint32_t reusable(const struct sequence *seq)
{
    return seq->n_tokens - 1;
}

/* How many leading tokens it shares with its request's first choice: the prompt. */
static uint32_t shared_with_leader(const struct sequence *seq)
{
    return seq->n_prompt < reusable(seq) ? seq->n_prompt : reusable(seq);
}

/* How many of them it can take over from there now. */
static uint32_t leader_tokens(const struct sequence *seq)
{
    const struct sequence *l = seq->leader;
    if (l == NULL || l->state != SEQUENCE_RUNNING || l->n_computed < shared_with_leader(seq))
        return 0;
    return shared_with_leader(seq);
}

/* The first choice has yet to compute the prompt that this one will share. */
static bool waits_for_leader(const struct sequence *seq)
{
    const struct sequence *l = seq->leader;
    if (l == NULL || seq->was_admitted || (l->state != SEQUENCE_WAITING && l->state != SEQUENCE_RUNNING))
        return false;
    return l->state == SEQUENCE_WAITING || l->n_computed < shared_with_leader(seq);
}

static uint32_t common_tokens(const struct sequence *a, const struct sequence *b)
{
    uint32_t n = reusable(a) < b->n_tokens ? reusable(a) : b->n_tokens, i = 0;
    while (i < n && a->tokens[i] == b->tokens[i])
        i++;
    return i;
}

/* A running sequence that is about to compute more whole blocks of seq than the index has. */
static struct sequence *find_computing(struct scheduler *s, const struct sequence *seq, uint32_t *ret_until)
{
    uint32_t found = UINT32_MAX;
    for (uint32_t i = 0; i < s->n_running; i++) {
        struct sequence *r = s->running[i];
        if (r->cache_off || r->paused || sequence_behind(r) < 2 || r->scope.id[0] != seq->scope.id[0] ||
            r->scope.id[1] != seq->scope.id[1] || r->tokens[0] != seq->tokens[0])
            continue;
        uint32_t common = common_tokens(seq, r) / BLOCK_TOKENS * BLOCK_TOKENS;
        if (common <= r->n_computed)
            continue; /* what it has of seq is published already */
        if (found == UINT32_MAX)
            found = prefix_cache_peek(s->cache, seq->scope, seq->tokens, reusable(seq), s->scratch);
        if (common > found) {
            *ret_until = common;
            return r;
        }
    }
    return NULL;
}

static bool waited_enough(const struct scheduler *s, const struct sequence *seq, uint64_t now_ns)
{
    return seq->waits_since_ns != 0 && now_ns - seq->waits_since_ns >= s->opt.prefix_wait_ns;
}

/* What it has been waiting for is still to come. */
static bool still_waits(const struct scheduler *s, const struct sequence *seq, uint64_t now_ns)
{
    return seq->waits_for != NULL && seq->waits_for->n_computed < seq->waits_until && !seq->waits_for->paused &&
           !waited_enough(s, seq, now_ns);
}

static bool waits_for_prefix(struct scheduler *s, struct admission *a, struct sequence *seq)
{
    const uint64_t now_ns = a->now_ns;
    if (seq->cache_off)
        return false;
    if (still_waits(s, seq, now_ns))
        return true;
    const struct sequence *before = seq->waits_for;
    seq->waits_for = waited_enough(s, seq, now_ns) ? NULL : find_computing(s, seq, &seq->waits_until);
    /* At once: who is waited for keeps its slot from newcomers of this plan, and who is no longer waited for does not. */
    if (before != NULL && before != seq->waits_for)
        scheduler_lend(s);
    else if (seq->waits_for != NULL && seq->interactive)
        seq->waits_for->lent_interactive = true;
    if (before != seq->waits_for)
        survey(s, a);
    if (seq->waits_for == NULL) {
        if (seq->waits_since_ns != 0 && seq->prefix_wait_ns == 0)
            seq->prefix_wait_ns = now_ns - seq->waits_since_ns;
        return false;
    }
    if (seq->waits_since_ns == 0) {
        seq->waits_since_ns = now_ns != 0 ? now_ns : 1;
        s->counters.prefix_waits++;
    }
    return true;
}

/* Blocks that a running sequence still needs for the tokens it has, and one to grow. */
static uint32_t promised_to(const struct sequence *r)
{
    uint32_t all = blocks_for(r->n_tokens);
    return 1 + (all > r->n_blocks ? all - r->n_blocks : 0);
}

static uint32_t promised_blocks(const struct scheduler *s)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_running; i++)
        n += promised_to(s->running[i]);
    return n;
}

/* May a newcomer take the place of r?  Of a paused one always, of a batch one if it is interactive. */
static bool gives_way(const struct sequence *r, const struct sequence *newcomer)
{
    return r->paused || (newcomer->interactive && !ranks_interactive(r));
}

/* The first to give way, of batch if it must be: a paused one, else the youngest. */
static struct sequence *find_victim(const struct scheduler *s, const struct sequence *newcomer, bool of_batch)
{
    struct sequence *found = NULL;
    for (uint32_t i = 0; i < s->n_running; i++) {
        struct sequence *r = s->running[i];
        if (gives_way(r, newcomer) && !(of_batch && r->interactive) &&
            (found == NULL || (r->paused != found->paused ? r->paused : r->serial > found->serial)))
            found = r;
    }
    return found;
}

/* Blocks that preempting all that give way would free at most. */
static uint32_t victims_blocks(const struct scheduler *s, const struct sequence *newcomer)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_running; i++)
        n += gives_way(s->running[i], newcomer) ? s->running[i]->n_blocks : 0;
    return n;
}

/* Are there n_needed blocks?  Others are preempted for them, unless even that would not do. */
static bool make_room(struct scheduler *s, const struct sequence *seq, uint32_t n_needed, uint64_t now_ns)
{
    for (;;) {
        uint64_t wanted = (uint64_t)n_needed + promised_blocks(s);
        uint32_t available = prefix_cache_n_available(s->cache);
        if (available >= wanted || (s->n_running == 0 && available >= n_needed))
            return true;
        if (session_pins_drop_oldest(&s->sessions, s->cache))
            continue; /* idle blocks before work under way */
        struct sequence *victim = find_victim(s, seq, false);
        if (victim == NULL || available + (uint64_t)victims_blocks(s, seq) < n_needed)
            return false;
        scheduler_preempt(s, victim, now_ns);
    }
}

static void drop_prefix(struct scheduler *s, struct sequence *seq, struct prefix_match *m)
{
    if (m->partial != KV_BLOCK_NONE)
        prefix_cache_release(s->cache, m->partial);
    while (m->n_blocks > 0)
        prefix_cache_release(s->cache, seq->blocks[--m->n_blocks]);
}

/* Pin what is already computed of seq: whole blocks into its table, and the block to copy the rest from. */
static struct prefix_match take_prefix(struct scheduler *s, struct sequence *seq)
{
    struct prefix_match m = { .partial = KV_BLOCK_NONE };
    uint32_t from_leader = leader_tokens(seq);

    if (!seq->cache_off)
        prefix_cache_match(s->cache, seq->scope, seq->tokens, reusable(seq), seq->blocks, &m);
    if (prefix_match_tokens(&m) >= from_leader)
        return m;

    drop_prefix(s, seq, &m);
    m = (struct prefix_match){
        .n_blocks = from_leader / BLOCK_TOKENS,
        .partial = KV_BLOCK_NONE,
        .partial_tokens = from_leader % BLOCK_TOKENS,
    };
    for (uint32_t i = 0; i < m.n_blocks; i++) {
        seq->blocks[i] = seq->leader->blocks[i];
        prefix_cache_pin(s->cache, seq->blocks[i]);
    }
    if (m.partial_tokens > 0) {
        m.partial = seq->leader->blocks[m.n_blocks];
        prefix_cache_pin(s->cache, m.partial);
    }
    return m;
}

/* Lengthen m by what the shelf has.  false: there is more after the next step, and it is worth waiting for. */
static bool load_prefix(struct scheduler *s, struct sequence *seq, struct prefix_match *m)
{
    uint32_t n_before = m->n_blocks;
    if (seq->cache_off || leader_tokens(seq) > 0)
        return true;
    enum status st = prefix_cache_load(s->cache, seq->scope, seq->tokens, reusable(seq), seq->blocks, &m->n_blocks);
    if (m->n_blocks > n_before && m->partial != KV_BLOCK_NONE) {
        prefix_cache_release(s->cache, m->partial);
        m->partial = KV_BLOCK_NONE;
        m->partial_tokens = 0;
    }
    if (st != ST_AGAIN || m->n_blocks <= seq->n_loaded_to)
        return true; /* without progress it would wait for ever: others evict what it loads */
    seq->n_loaded_to = m->n_blocks;
    return false;
}

/* Start to run with the blocks of m; there is room for the others. */
static void start(struct scheduler *s, struct sequence *seq, const struct prefix_match *m, uint64_t now_ns)
{
    scheduler_unwait(s, seq);
    seq->state = SEQUENCE_RUNNING;
    seq->n_loaded_to = 0;
    seq->n_blocks = m->n_blocks;
    seq->n_computed = m->n_blocks * BLOCK_TOKENS;
    seq->n_published = seq->cache_off ? 0 : m->n_blocks;
    if (m->partial != KV_BLOCK_NONE) {
        seq->n_computed += m->partial_tokens;
        uint32_t held = scheduler_extend(s, seq, seq->n_computed);
        assert(held == seq->n_computed && s->out.n_copies < 2 * SEQS_MAX);
        s->copies[s->out.n_copies++] = (struct scheduler_copy){ m->partial, seq->blocks[m->n_blocks] };
    }
    if (!seq->was_admitted) {
        seq->was_admitted = true;
        seq->admitted_ns = now_ns;
        seq->n_cached = seq->n_computed < seq->n_prompt ? seq->n_computed : seq->n_prompt;
        seq->n_ever_computed = seq->n_computed;
        s->counters.cached_tokens += seq->n_cached;
    }
    s->running[s->n_running++] = seq;

    uint32_t behind = sequence_behind(seq);
    uint32_t first = seq->n_computed + (behind < MIN_CHUNK ? behind : MIN_CHUNK);
    uint32_t held = scheduler_extend(s, seq, first);
    assert(held == first);
}

/* A slot for it: a free one, or that of one that gives way. */
static bool make_slot(struct scheduler *s, struct admission *a, const struct sequence *seq)
{
    const bool batch_full = !seq->interactive && a->n_batch >= batch_slots(s);
    if (s->n_running < s->opt.max_seqs && !batch_full)
        return true;
    struct sequence *victim = find_victim(s, seq, batch_full);
    if (victim == NULL)
        return false;
    scheduler_preempt(s, victim, a->now_ns);
    return true;
}

/* Would it get rows now?  Holding blocks without computing helps nobody. */
static bool has_rows(const struct admission *a, const struct sequence *seq)
{
    return a->rows_left[seq->interactive] > 0 || a->n_prefills[seq->interactive] < PREFILLS_A_CLASS;
}

static void try_admit(struct scheduler *s, struct admission *a, struct sequence *seq)
{
    if (seq->paused || waits_for_leader(seq) || waits_for_prefix(s, a, seq))
        return;
    /* When blocks are so short that somebody was preempted, only who may preempt gets in. */
    if ((s->preempted && !seq->interactive) || !has_rows(a, seq) || !make_slot(s, a, seq)) {
        a->closed[seq->interactive] = true;
        return;
    }
    struct prefix_match m = take_prefix(s, seq);
    uint32_t n_needed = blocks_for(seq->n_tokens) - m.n_blocks;
    bool room = make_room(s, seq, n_needed, a->now_ns);
    if (!room && m.partial != KV_BLOCK_NONE) {
        /* It needs all that can be had, and the block to copy from is in its own way. */
        prefix_cache_release(s->cache, m.partial);
        m.partial = KV_BLOCK_NONE;
        m.partial_tokens = 0;
        room = make_room(s, seq, n_needed, a->now_ns);
    }
    if (!room) {
        drop_prefix(s, seq, &m);
        a->closed[0] = a->closed[1] = true;
    } else if (!load_prefix(s, seq, &m)) {
        drop_prefix(s, seq, &m);
        s->out.loading = true;
    } else {
        start(s, seq, &m, a->now_ns);
    }
    survey(s, a);
}

/* The batch sequence that has waited longest without progress, if it has waited too long and no other one has been
 * promoted.  One that cannot run whatever its rank (paused, or waiting for what another computes) would only stand in the way. */
static struct sequence *aged_batch(const struct scheduler *s, uint64_t now_ns)
{
    struct sequence *found = NULL;
    for (uint32_t i = 0; i < s->n_running; i++)
        if (s->running[i]->aged && !s->running[i]->paused)
            return NULL;
    for (struct sequence *w = s->first_waiting; w != NULL; w = w->next)
        if (!w->interactive && !w->paused && !still_waits(s, w, now_ns) && !waits_for_leader(w) &&
            now_ns - w->progress_ns >= s->opt.age_ns && (found == NULL || w->progress_ns < found->progress_ns))
            found = w;
    return found;
}

/* The interactive class alone leaves no room for this batch sequence, and what one of them gives back the next one takes: for ever, unless
 * the door is closed until enough have ended. */
static bool is_kept_out(const struct scheduler *s, const struct sequence *seq, uint64_t now_ns)
{
    uint64_t left = prefix_cache_n_available(s->cache), wanted = blocks_for(seq->n_tokens);
    for (uint32_t i = 0; i < s->n_running; i++) {
        const struct sequence *r = s->running[i];
        if (ranks_interactive(r))
            wanted += promised_to(r);
        else
            left += r->n_blocks; /* for a newcomer it would give way */
    }
    return now_ns - seq->progress_ns >= 2 * s->opt.age_ns && left < wanted;
}

void scheduler_admit(struct scheduler *s, uint64_t now_ns)
{
    struct admission a = { .now_ns = now_ns };

    survey(s, &a);
    struct sequence *aged = aged_batch(s, now_ns);
    if (aged != NULL) {
        try_admit(s, &a, aged);
        aged->aged = aged->state == SEQUENCE_RUNNING;
        if (!aged->aged && is_kept_out(s, aged, now_ns))
            return;
    }
    a.closed[0] = a.closed[1] = false;
    for (struct sequence *w = s->first_waiting, *next; w != NULL; w = next) {
        next = w->next;
        if (w->interactive && a.closed[1])
            continue;
        if (!w->interactive && (a.closed[0] || a.closed[1]))
            break;
        try_admit(s, &a, w);
    }
}
