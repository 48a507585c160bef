/* The KV pool against a stupid one: arrays that are searched, no links, no counters. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/random.h"
#include "worker/kv_cache.h"

static struct random rng;

static uint32_t take(struct kv_cache *kv)
{
    uint32_t b = KV_BLOCK_NONE;
    bool evicted;
    assert_int_equal(kv_cache_take(kv, &b, &evicted), ST_OK);
    return b;
}

static uint32_t leave_cached(struct kv_cache *kv)
{
    uint32_t b = take(kv);
    kv_cache_publish(kv, b);
    kv_cache_release(kv, b);
    assert_int_equal(kv_cache_state(kv, b), KV_CACHED);
    return b;
}

static void evicts_the_block_released_longest_ago(void **state)
{
    (void)state;
    struct kv_cache *kv = NULL;
    bool evicted = false;
    uint32_t b = KV_BLOCK_NONE;
    assert_int_equal(kv_cache_new(3, &kv), ST_OK);
    uint32_t first = leave_cached(kv), second = leave_cached(kv), third = leave_cached(kv);
    assert_int_equal(kv_cache_oldest(kv), first);

    /* A hit moves the first to the young end. */
    kv_cache_pin(kv, first);
    kv_cache_release(kv, first);

    assert_int_equal(kv_cache_take(kv, &b, &evicted), ST_OK);
    assert_true(evicted);
    assert_int_equal(b, second);
    assert_int_equal(kv_cache_oldest(kv), third);
    kv_cache_check(kv);
    kv_cache_free(kv);
}

static void never_hands_out_a_pinned_block(void **state)
{
    (void)state;
    struct kv_cache *kv = NULL;
    uint32_t b = KV_BLOCK_NONE;
    bool evicted = false;
    assert_int_equal(kv_cache_new(2, &kv), ST_OK);
    uint32_t first = take(kv), second = take(kv);
    assert_int_equal(kv_cache_n_available(kv), 0);
    assert_int_equal(kv_cache_take(kv, &b, &evicted), ST_FULL);
    assert_int_equal(b, KV_BLOCK_NONE); /* untouched on failure */
    kv_cache_release(kv, first);
    assert_int_equal(kv_cache_take(kv, &b, &evicted), ST_OK);
    assert_int_equal(b, first);
    assert_false(evicted);
    kv_cache_release(kv, second);
    assert_int_equal(kv_cache_state(kv, second), KV_FREE);
    kv_cache_check(kv);
    kv_cache_free(kv);
}

static void prefers_a_free_block_to_a_cached_one(void **state)
{
    (void)state;
    struct kv_cache *kv = NULL;
    assert_int_equal(kv_cache_new(2, &kv), ST_OK);
    uint32_t cached = leave_cached(kv);
    uint32_t other = take(kv);
    assert_int_not_equal(cached, other);
    assert_int_equal(kv_cache_state(kv, cached), KV_CACHED);
    kv_cache_free(kv);
}

enum { N = 12 };
struct oracle {
    enum kv_state state[N];
    uint32_t pins[N];
    bool published[N];
    uint64_t released_at[N], clock;
};

static uint32_t any(const struct oracle *o, enum kv_state a, enum kv_state b)
{
    uint32_t start = random_below(&rng, N);
    for (uint32_t i = 0; i < N; i++) {
        uint32_t k = (start + i) % N;
        if (o->state[k] == a || o->state[k] == b)
            return k;
    }
    return KV_BLOCK_NONE;
}

static void oracle_rest(struct oracle *o, uint32_t b, bool keep)
{
    o->state[b] = keep ? KV_CACHED : KV_FREE;
    o->published[b] = keep;
    o->released_at[b] = ++o->clock;
}

static void do_take(struct kv_cache *kv, struct oracle *o)
{
    uint32_t oldest = KV_BLOCK_NONE, b = KV_BLOCK_NONE;
    bool has_free = any(o, KV_FREE, KV_FREE) != KV_BLOCK_NONE, evicted = false;
    for (uint32_t i = 0; i < N; i++)
        if (o->state[i] == KV_CACHED && (oldest == KV_BLOCK_NONE || o->released_at[i] < o->released_at[oldest]))
            oldest = i;
    assert_int_equal(kv_cache_oldest(kv), oldest);
    enum status st = kv_cache_take(kv, &b, &evicted);
    assert_int_equal(st, has_free || oldest != KV_BLOCK_NONE ? ST_OK : ST_FULL);
    if (st != ST_OK)
        return;
    assert_int_equal(evicted, !has_free);
    if (evicted)
        assert_int_equal(b, oldest);
    else
        assert_int_equal(o->state[b], KV_FREE);
    o->state[b] = KV_PINNED;
    o->pins[b] = 1;
    o->published[b] = false;
}

static void do_release(struct kv_cache *kv, struct oracle *o, uint32_t b)
{
    kv_cache_release(kv, b);
    if (--o->pins[b] == 0)
        oracle_rest(o, b, o->published[b]);
}

static void do_forget(struct kv_cache *kv, struct oracle *o, uint32_t b)
{
    if (!o->published[b])
        return;
    kv_cache_forget(kv, b);
    o->published[b] = false;
    if (o->state[b] == KV_CACHED)
        o->state[b] = KV_FREE;
}

static void do_any(struct kv_cache *kv, struct oracle *o)
{
    uint32_t op = random_below(&rng, 11), b;
    if (op < 4) {
        do_take(kv, o);
    } else if (op < 7) {
        if ((b = any(o, KV_PINNED, KV_PINNED)) != KV_BLOCK_NONE)
            do_release(kv, o, b);
    } else if (op < 8) {
        if ((b = any(o, KV_PINNED, KV_CACHED)) != KV_BLOCK_NONE) {
            kv_cache_pin(kv, b);
            o->state[b] = KV_PINNED;
            o->pins[b]++;
        }
    } else if (op < 10) {
        b = any(o, KV_PINNED, KV_PINNED);
        if (b != KV_BLOCK_NONE && !o->published[b]) {
            kv_cache_publish(kv, b);
            o->published[b] = true;
        }
    } else {
        if ((b = any(o, KV_PINNED, KV_CACHED)) != KV_BLOCK_NONE)
            do_forget(kv, o, b);
    }
}

static void behaves_like_a_stupid_pool(void **state)
{
    (void)state;
    struct kv_cache *kv = NULL;
    struct oracle o = { { KV_FREE }, { 0 }, { false }, { 0 }, 0 };
    assert_int_equal(kv_cache_new(N, &kv), ST_OK);
    for (uint64_t i = 0; i < random_ops(); i++) {
        do_any(kv, &o);
        kv_cache_check(kv);
        uint32_t n[3] = { 0 };
        for (uint32_t b = 0; b < N; b++) {
            assert_int_equal(kv_cache_state(kv, b), o.state[b]);
            assert_int_equal(kv_cache_pins(kv, b), o.pins[b]);
            assert_int_equal(kv_cache_is_published(kv, b), o.published[b]);
            n[o.state[b]]++;
        }
        struct kv_counts c = kv_cache_counts(kv);
        assert_true(c.n_free == n[KV_FREE] && c.n_pinned == n[KV_PINNED] && c.n_cached == n[KV_CACHED]);
    }
    kv_cache_free(kv);
}

int main(int argc, char **argv)
{
    rng = random_start(argc, argv, 300000);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(evicts_the_block_released_longest_ago),
        cmocka_unit_test(never_hands_out_a_pinned_block),
        cmocka_unit_test(prefers_a_free_block_to_a_cached_one),
        cmocka_unit_test(behaves_like_a_stupid_pool),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
