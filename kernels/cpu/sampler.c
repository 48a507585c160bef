/* sampler.c - the vocabulary has 50 to 260 thousand entries and nearly all of them are hopeless, so it is never sorted.
 *
 * Candidates are taken in layers: a histogram of (max - logit) / temperature in bins of half a unit tells how many lie in
 * each; as many bins as hold LAYER candidates are collected and sorted, and the walk down the order (for top_k, top_p,
 * min_p and the draw itself) asks for the next layer only when it has used this one up.  Bins are monotone in the logit, so
 * layers are in order too. */
#include "sampler.h"

#include <assert.h>
#include <string.h>

#include "numeric.h"

enum { BINS = 128, LAYER = 48 };

void philox4x32(const uint32_t key[2], const uint32_t counter[4], uint32_t ret_words[4])
{
    uint32_t k0 = key[0], k1 = key[1], c[4];

    memcpy(c, counter, sizeof(c));
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)c[0] * 0xD2511F53u, p1 = (uint64_t)c[2] * 0xCD9E8D57u;
        const uint32_t next[4] = { (uint32_t)(p1 >> 32) ^ c[1] ^ k0, (uint32_t)p1, (uint32_t)(p0 >> 32) ^ c[3] ^ k1,
                                   (uint32_t)p0 };
        memcpy(c, next, sizeof(c));
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    memcpy(ret_words, c, sizeof(c));
}

static bool before(struct ranked a, struct ranked b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

/* Heap sort: no memory, no bad case. */
static void sift(struct ranked *r, uint32_t i, uint32_t n)
{
    const struct ranked x = r[i];

    for (uint32_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && before(r[child], r[child + 1]))
            child++;
        if (!before(x, r[child]))
            break;
        r[i] = r[child];
    }
    r[i] = x;
}

static void sort_ranked(struct ranked *r, uint32_t n)
{
    for (uint32_t i = n / 2; i-- > 0;)
        sift(r, i, n);
    for (uint32_t end = n; end-- > 1;) {
        const struct ranked last = r[0];
        r[0] = r[end];
        r[end] = last;
        sift(r, 0, end);
    }
}

/* The candidates in order, a layer at a time. */
struct order {
    const float *logits;
    uint32_t n_vocab, n_ready, next_bin;
    float max, per_unit; /* bins of one unit of logit: 2 / temperature */
    uint32_t bins[BINS];
    struct ranked *ranked;
};

static uint32_t bin_of(const struct order *o, float logit)
{
    const float at = (o->max - logit) * o->per_unit;

    return at < (float)(BINS - 1) ? (uint32_t)at : BINS - 1; /* the last also takes NaN */
}

static void order_init(struct order *o, const float *logits, uint32_t n_vocab, float max, float factor, struct ranked *ranked)
{
    *o = (struct order){ .logits = logits, .n_vocab = n_vocab, .max = max, .per_unit = 2.0f * factor, .ranked = ranked };
    for (uint32_t i = 0; i < n_vocab; i++)
        o->bins[bin_of(o, logits[i])]++;
}

/* Make candidate i ready; false when there are not so many. */
static bool order_reach(struct order *o, uint32_t i)
{
    while (i >= o->n_ready && o->next_bin < BINS) {
        const uint32_t first = o->next_bin, start = o->n_ready;
        uint32_t n = 0;
        while (o->next_bin < BINS && n < LAYER)
            n += o->bins[o->next_bin++];
        for (uint32_t t = 0; t < o->n_vocab && n > 0; t++) {
            const uint32_t bin = bin_of(o, o->logits[t]);
            if (bin >= first && bin < o->next_bin)
                o->ranked[o->n_ready++] = (struct ranked){ o->logits[t], (int32_t)t };
        }
        sort_ranked(o->ranked + start, o->n_ready - start);
    }
    return i < o->n_ready;
}

static void change_logits(const struct plan_entry *e, float *logits, uint32_t n_vocab)
{
    const struct sampling *s = e->sampling;

    for (uint32_t i = 0; i < e->n_bias; i++) {
        assert(e->bias[i].token >= 0 && (uint32_t)e->bias[i].token < n_vocab);
        logits[e->bias[i].token] += e->bias[i].bias;
    }
    for (uint32_t i = 0; i < e->n_seen; i++) {
        const struct token_count *c = &e->seen[i];
        assert(c->token >= 0 && (uint32_t)c->token < n_vocab);
        float l = logits[c->token];
        if (c->in_prompt + c->in_answer > 0)
            l = l > 0 ? l / s->repetition_penalty : l * s->repetition_penalty;
        if (c->in_answer > 0)
            l -= s->presence_penalty + s->frequency_penalty * (float)c->in_answer;
        logits[c->token] = l;
    }
}

static int32_t largest(const float *logits, uint32_t n_vocab, float max)
{
    for (uint32_t i = 0; i < n_vocab; i++)
        if (logits[i] == max)
            return (int32_t)i;
    return 0; /* no number among them is equal to itself */
}

static double uniform(const struct plan_entry *e)
{
    const uint32_t key[2] = { (uint32_t)e->sampling->seed, (uint32_t)(e->sampling->seed >> 32) };
    const uint32_t counter[4] = { e->index, e->choice, 0, 0 };
    uint32_t words[4];

    philox4x32(key, counter, words);
    return (double)(words[0] >> 8) * 0x1p-24;
}

static int32_t draw(const struct kernels *k, const struct plan_entry *e, const float *logits, uint32_t n_vocab, float max,
                    struct ranked *ranked)
{
    const struct sampling *s = e->sampling;
    const float factor = 1.0f / s->temperature;
    const uint32_t keep = s->top_k > 0 && s->top_k < n_vocab ? s->top_k : n_vocab;
    struct order o;
    double total = 0, kept = 0, sum = 0;
    uint32_t n = 0;

    order_init(&o, logits, n_vocab, max, factor, ranked);
#define WEIGHT(i) exp_f64((double)(o.ranked[i].logit - max) * (double)factor > -700 ? (double)(o.ranked[i].logit - max) * (double)factor : -700)
    if (keep == n_vocab)
        total = (double)k->sum_exp(logits, n_vocab, max, factor);
    else
        for (uint32_t i = 0; i < keep && order_reach(&o, i); i++)
            total += WEIGHT(i);
    kept = total;
    if (s->top_p < 1 || s->min_p > 0) { /* where the prefix that stays ends */
        kept = 0;
        while (n < keep && order_reach(&o, n) && kept < (double)s->top_p * total) {
            const double w = WEIGHT(n);
            if (w < (double)s->min_p)
                break;
            kept += w;
            n++;
        }
    } else {
        n = keep;
    }
    const double target = uniform(e) * kept;
    uint32_t i = 0;
    for (; i < n && order_reach(&o, i); i++) {
        sum += WEIGHT(i);
        if (sum > target)
            return o.ranked[i].token;
    }
#undef WEIGHT
    return i > 0 ? o.ranked[i - 1].token : largest(logits, n_vocab, max); /* rounding left the target past the end */
}

/* The n best by logit, then token. */
static uint32_t best(const float *logits, uint32_t n_vocab, uint32_t n, struct candidate *top)
{
    struct ranked r[LOGPROBS_MAX];
    uint32_t found = 0;

    assert(n <= LOGPROBS_MAX);
    for (uint32_t t = 0; t < n_vocab && n > 0; t++) {
        const struct ranked x = { logits[t], (int32_t)t };
        if (found == n && !before(x, r[n - 1]))
            continue;
        uint32_t i = found < n ? found++ : n - 1;
        for (; i > 0 && before(x, r[i - 1]); i--)
            r[i] = r[i - 1];
        r[i] = x;
    }
    for (uint32_t i = 0; i < found; i++)
        top[i] = (struct candidate){ r[i].token, r[i].logit };
    return found;
}

void sample_token(const struct kernels *k, const struct plan_entry *e, float *logits, uint32_t n_vocab,
                  struct sampler_scratch *s, struct step_result *ret_result)
{
    const bool changes = e->n_bias > 0 || e->n_seen > 0, logprobs = e->sampling->logprobs != 0;
    const float *raw = logits;
    float log_sum = 0;

    ret_result->n_top = 0;
    ret_result->logprob = 0;
    if (logprobs) {
        const float max = k->maximum(logits, n_vocab);
        log_sum = max + (float)log_f64((double)k->sum_exp(logits, n_vocab, max, 1.0f));
        ret_result->n_top = best(logits, n_vocab, e->sampling->n_logprobs, ret_result->top);
        for (uint32_t i = 0; i < ret_result->n_top; i++)
            ret_result->top[i].logprob -= log_sum;
        if (changes)
            raw = memcpy(s->raw, logits, n_vocab * sizeof(*logits));
    }
    if (changes)
        change_logits(e, logits, n_vocab);
    const float max = k->maximum(logits, n_vocab);
    if (e->sampling->temperature <= SAMPLING_GREEDY_BELOW)
        ret_result->token = largest(logits, n_vocab, max);
    else
        ret_result->token = draw(k, e, logits, n_vocab, max, s->ranked);
    if (logprobs)
        ret_result->logprob = raw[ret_result->token] - log_sum;
}
