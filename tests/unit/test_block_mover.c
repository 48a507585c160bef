/* Two workers of one pool with a scheduler each, small caches and small stores: every block that comes back from a store is checked
 * by the fake backend, whatever was evicted, overwritten or lost with a worker in between.
 *
 * The device's copies are slow here: a copy to the host arrives some polls after it was submitted, with what the block held then, and
 * the host's side of a copy to the device must stay untouched until it is done. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/fake_engine.h"
#include "tests/support/random.h"
#include "tests/support/store_rig.h"
#include "worker/block_mover.h"

static struct random rng;

/* --- a backend whose copies take time ----------------------------------------------------------- */

enum { COPIES_MAX = 256, CONTEXT = 160, ASKED_MAX = 1 << 14 };

struct slow_copy {
    const struct backend *owner; /* NULL: free */
    enum block_copy_kind kind;
    uint8_t *host;
    uint8_t bytes[FAKE_BLOCK_BYTES];
    uint32_t polls_left;
};

static struct slow_copy slow[COPIES_MAX];
static const struct backend *dead; /* its copies are never done */

static enum status slow_submit(struct backend *b, const struct block_copy *c, backend_ticket *ret_ticket)
{
    struct block_copy now = *c;
    backend_ticket ignored;
    uint32_t i = 0;

    while (i < COPIES_MAX && slow[i].owner != NULL)
        i++;
    if (i == COPIES_MAX || random_below(&rng, 32) == 0)
        return ST_AGAIN;
    slow[i] = (struct slow_copy){ .owner = b, .kind = c->kind, .host = c->host, .polls_left = random_below(&rng, 4) };
    if (c->kind == BLOCK_TO_HOST)
        now.host = slow[i].bytes;
    else
        memcpy(slow[i].bytes, c->host, FAKE_BLOCK_BYTES);
    *ret_ticket = i;
    return fake_backend()->copy_submit(b, &now, &ignored);
}

static enum status slow_poll(struct backend *b, backend_ticket t)
{
    struct slow_copy *c = &slow[t];
    if (b == dead)
        return ST_SYSTEM;
    if (c->owner != b) /* done before; the place may be another's by now */
        return ST_OK;
    if (c->polls_left > 0) {
        c->polls_left--;
        return ST_AGAIN;
    }
    if (c->kind == BLOCK_TO_HOST)
        memcpy(c->host, c->bytes, FAKE_BLOCK_BYTES);
    else
        assert_memory_equal(c->host, c->bytes, FAKE_BLOCK_BYTES);
    c->owner = NULL;
    return ST_OK;
}

/* --- a worker -------------------------------------------------------------------------------------- */

struct side {
    struct fake_engine engine;
    struct partition partition;
    struct host_store *store;
    struct block_mover *mover;
    struct fake_sequence *live[16];
    uint32_t n_live;
};

static void open_side(struct side *s, const struct side *other, uint64_t bytes_a_step)
{
    static struct backend_api api;
    struct fake_options fo = { .scheduler = { .n_blocks = 24, .max_seqs = 6, .max_rows = 40, .context_tokens = CONTEXT, .secret = 5 } };

    api = *fake_backend();
    api.copy_submit = slow_submit;
    api.copy_poll = slow_poll;
    s->store = store_rig_open(s->partition.owner_fd, other->partition.reader_fd, "id");
    s->n_live = 0;
    /* The engine comes first: the mover needs its device, the scheduler the mover. */
    fake_engine_init(&s->engine, &fo);
    const struct block_mover_options mo = { .store = s->store,
                                            .api = &api,
                                            .backend = s->engine.backend,
                                            .block_bytes = STORE_BLOCK_BYTES,
                                            .save_bytes_max = bytes_a_step,
                                            .load_bytes_max = bytes_a_step };
    assert_int_equal(block_mover_new(&mo, &s->mover), ST_OK);
    scheduler_free(s->engine.scheduler);
    fo.scheduler.shelf = block_mover_shelf(s->mover);
    assert_int_equal(scheduler_new(&fo.scheduler, &s->engine.scheduler), ST_OK);
}

/* As if killed: nothing that is under way comes to its end. */
static void lose_side(struct side *s)
{
    dead = s->engine.backend;
    block_mover_free(s->mover);
    for (uint32_t i = 0; i < COPIES_MAX; i++)
        if (slow[i].owner == dead)
            slow[i].owner = NULL;
    dead = NULL;
    fake_engine_deinit(&s->engine);
    host_store_free(s->store);
    for (uint32_t i = 0; i < s->n_live; i++)
        fake_sequence_free(s->live[i]);
}

/* --- what was asked before, by scope ------------------------------------------------------------------ */

struct asked {
    const struct fake_sequence *by; /* NULL once it has ended: then with its answer */
    uint64_t scope;
    int32_t tokens[CONTEXT];
    uint32_t n;
};

static struct asked *asked;
static uint32_t n_asked;

static void note(const struct fake_sequence *f, bool ended)
{
    struct asked *a = &asked[n_asked++];
    assert_true(n_asked <= ASKED_MAX);
    a->by = ended ? NULL : f;
    a->scope = f->seq.scope.id[1];
    a->n = f->seq.n_tokens;
    memcpy(a->tokens, f->seq.tokens, a->n * sizeof(int32_t));
}

/* The longest beginning of f's prompt that anybody else of its scope can have left behind. */
static uint32_t most_known(const struct fake_sequence *f)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < n_asked; i++) {
        uint32_t k = 0;
        if (asked[i].by == f || asked[i].scope != f->seq.scope.id[1])
            continue;
        while (k < f->seq.n_prompt && k < asked[i].n && asked[i].tokens[k] == f->seq.tokens[k])
            k++;
        most = k > most ? k : most;
    }
    return most;
}

/* A prompt from a bushy tree, so that beginnings are shared: with the same tokens in every scope. */
static void ask(struct side *s)
{
    int32_t tokens[CONTEXT];
    uint32_t n = 1 + random_below(&rng, 90), path = random_below(&rng, 1 << 8);
    struct error err;

    if (s->n_live == 16)
        return;
    for (uint32_t i = 0; i < n; i++) /* branches every 24 tokens, 4 ways */
        tokens[i] = (int32_t)((path >> (i / 24 * 2)) % 4 + i % 7);
    struct fake_sequence *f = fake_sequence_new(tokens, n, n, 1 + random_below(&rng, 20));
    f->seq.scope = (struct prefix_scope){ { 1, random_below(&rng, 3) } };
    f->seq.cache_off = random_below(&rng, 10) == 0;
    f->seq.interactive = random_below(&rng, 2);
    assert_int_equal(fake_engine_add(&s->engine, f, &err), ST_OK);
    s->live[s->n_live++] = f;
    if (!f->seq.cache_off)
        note(f, false);
}

static void one_step(struct side *s)
{
    assert_int_equal(block_mover_begin_step(s->mover), ST_OK);
    uint32_t n = fake_engine_step(&s->engine);
    (void)scheduler_save_some(s->engine.scheduler);
    struct scheduler_levels l = scheduler_levels(s->engine.scheduler);
    assert_true(n > 0 || s->engine.plan->loading || l.n_running + l.n_waiting == 0);
    for (uint32_t i = s->n_live; i-- > 0;) {
        struct sequence *q = &s->live[i]->seq;
        if (q->state != SEQUENCE_ENDED)
            continue;
        fake_sequence_check(s->live[i]);
        assert_true(q->cache_off ? q->n_cached == 0 : q->n_cached <= most_known(s->live[i]));
        for (uint32_t k = 0; k < n_asked; k++)
            if (asked[k].by == s->live[i])
                asked[k].by = NULL;
        if (!q->cache_off)
            note(s->live[i], true);
        fake_sequence_free(s->live[i]);
        s->live[i] = s->live[--s->n_live];
    }
}

static void blocks_come_back_whole_and_in_their_scope(void **state)
{
    (void)state;
    static struct side sides[2];
    uint64_t hits_own = 0, hits_other = 0, evictions = 0, n_lost = 0;
    uint64_t bytes_a_step = 2 * STORE_BLOCK_BYTES;

    asked = calloc(ASKED_MAX, sizeof(*asked));
    assert_non_null(asked);
    sides[0].partition = store_rig_partition(0);
    sides[1].partition = store_rig_partition(1);
    for (int i = 0; i < 2; i++)
        open_side(&sides[i], &sides[1 - i], bytes_a_step);
    for (uint64_t k = 0; k < random_ops() && n_asked < ASKED_MAX - 2; k++) {
        struct side *s = &sides[random_below(&rng, 2)];
        uint32_t op = random_below(&rng, 1000);
        if (op < 150) {
            ask(s);
        } else if (op < 998) {
            one_step(s);
        } else {
            struct host_store_counts c = host_store_counts(s->store);
            hits_own += c.hits_own;
            hits_other += c.hits_other;
            evictions += c.evictions;
            if (random_below(&rng, 3) == 0)
                partition_discard(&s->partition);
            lose_side(s);
            open_side(s, s == sides ? &sides[1] : &sides[0], bytes_a_step);
            n_lost++;
        }
        if (k % 16 == 0)
            scheduler_check(s->engine.scheduler);
        if (k % 256 == 0)
            host_store_check(s->store);
    }
    printf("%llu own, %llu other, %llu evicted, %llu lost, %u asked\n", (unsigned long long)hits_own, (unsigned long long)hits_other,
           (unsigned long long)evictions, (unsigned long long)n_lost, n_asked);
    assert_true(hits_own > 0 && hits_other > 0 && evictions > 0 && n_lost > 0);
    for (int i = 0; i < 2; i++) {
        lose_side(&sides[i]);
        partition_close(&sides[i].partition);
    }
    free(asked);
}

int main(int argc, char **argv)
{
    rng = random_start(argc, argv, 30000);
    store_rig_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_come_back_whole_and_in_their_scope),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
