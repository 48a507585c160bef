/* oracle.c - what must come out: the answer of an undisturbed run, and the most that a cache may know of a prompt.
 *
 * An answer: the fake model's next token is a hash of the sequence (fake_backend.h), so tokens can be computed here from the
 * prompt alone, one after the other; text, stop strings and half characters go through answer.c once, without any interruption.
 *
 * What a cache may know: every beginning of every sequence that was ever sent under a scope is noted as a hash with a count.  A
 * request may find tokens in the cache only as far as another request of its own scope begins with them.  So a block
 * of somebody else's shows at once, also where all users send the same texts. */
#include "sim.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/fake_backend.h"
#include "worker/answer.h"
#include "worker/encoder.h"

int32_t *oracle_encode(struct span text, uint32_t *ret_n)
{
    struct encoder *e;
    struct error err;
    const int32_t *ids;
    size_t n;
    enum status st = encoder_new(pool_tokenizer(), &e);
    assert(st == ST_OK);
    encoder_begin(e);
    st = encoder_add_bos(e, &err);
    assert(st == ST_OK);
    st = encoder_add(e, text, ENCODE_PLAIN, &err);
    assert(st == ST_OK);
    st = encoder_step(e, UINT64_MAX);
    assert(st == ST_OK);
    ids = encoder_ids(e, &n);
    int32_t *copy = malloc((n + 1) * sizeof(*copy));
    assert(copy != NULL);
    memcpy(copy, ids, n * sizeof(*ids));
    encoder_free(e);
    *ret_n = (uint32_t)n;
    return copy;
}

static void append(struct expected *a, int32_t id, const uint8_t *text, size_t n)
{
    a->ids[a->n_ids++] = id;
    a->text = realloc(a->text, a->n_text + n + 1);
    assert(a->text != NULL);
    if (n > 0)
        memcpy(a->text + a->n_text, text, n);
    a->n_text += (uint32_t)n;
}

void oracle_answer(const struct question *q, uint32_t choice, struct expected *ret_answer)
{
    struct expected a = {0};
    struct answer_rules rules = {.tokenizer = pool_tokenizer(), .ignore_eos = q->ignore_eos};
    struct answer state;
    struct error err;
    struct span stops[STOPS_MAX];
    int32_t tokens[ORACLE_TOKENS_MAX];
    uint8_t text[ANSWER_TEXT_MAX];
    uint32_t end = q->max_tokens > 0 ? q->n_prompt + q->max_tokens : sim.plan.context_tokens, n = q->n_prompt;

    end = end < sim.plan.context_tokens ? end : sim.plan.context_tokens;
    assert(end <= ORACLE_TOKENS_MAX && n < end);
    for (uint32_t i = 0; i < q->n_stops; i++)
        stops[i] = span_str(q->stops[i]);
    enum status st = stop_set_init(&rules.stops, stops, q->n_stops, &err);
    assert(st == ST_OK);
    answer_init(&state, &rules, 0);
    answer_after(&state, q->prompt, q->n_prompt);
    a.ids = calloc(end, sizeof(*a.ids));
    assert(a.ids != NULL);
    memcpy(tokens, q->prompt, n * sizeof(*tokens));
    uint64_t chain = fake_chain(0, tokens, 0, n);
    while (state.finish == FINISH_NONE) {
        tokens[n] = fake_token_after(chain, &q->sampling, choice, n - q->n_prompt, SIM_VOCAB);
        chain = fake_chain(chain, tokens, n, n + 1);
        size_t n_text = answer_push(&state, tokens[n], n + 1 == end, text);
        append(&a, tokens[n++], text, n_text);
    }
    a.reason = state.finish;
    a.stop_index = state.stop_index;
    *ret_answer = a;
}

void expected_free(struct expected *e)
{
    free(e->ids);
    free(e->text);
    *e = (struct expected){0};
}

/* --- beginnings -------------------------------------------------------------------------------- */

static struct beginning {
    uint64_t hash; /* 0: empty */
    uint32_t count;
} * table;
static uint64_t n_table, n_used; /* a power of two, never full */

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t x = (a ^ b) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
    x ^= x >> 32;
    return x != 0 ? x : 1;
}

static struct beginning *find(uint64_t hash)
{
    uint64_t at = hash & (n_table - 1);
    while (table[at].hash != 0 && table[at].hash != hash)
        at = (at + 1) & (n_table - 1);
    return &table[at];
}

static void grow(void)
{
    struct beginning *old = table;
    uint64_t n_old = n_table;
    n_table = n_old > 0 ? 2 * n_old : 1 << 14;
    table = calloc(n_table, sizeof(*table));
    assert(table != NULL);
    for (uint64_t i = 0; i < n_old; i++)
        if (old[i].hash != 0)
            *find(old[i].hash) = old[i];
    free(old);
}

void oracle_forget(void)
{
    free(table);
    table = NULL;
    n_table = n_used = 0;
}

void oracle_note(uint64_t scope, const int32_t *tokens, uint32_t from, uint32_t n)
{
    uint64_t hash = mix(scope, 1);
    for (uint32_t i = 0; i < n; i++) {
        if (2 * n_used >= n_table)
            grow();
        hash = mix(hash, (uint32_t)tokens[i] + 2u);
        if (i < from)
            continue;
        struct beginning *b = find(hash);
        n_used += b->hash == 0;
        b->hash = hash;
        b->count++;
    }
}

uint32_t oracle_known(uint64_t scope, const int32_t *tokens, uint32_t n, uint32_t at_least)
{
    uint64_t hash = mix(scope, 1);
    for (uint32_t i = 0; i < n; i++) {
        hash = mix(hash, (uint32_t)tokens[i] + 2u);
        if (n_table == 0 || find(hash)->count < at_least)
            return i;
    }
    return n;
}
