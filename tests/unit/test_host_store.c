/* The host store against a stupid one: a list of block numbers, youngest last. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/support/random.h"
#include "tests/support/store_rig.h"
#include "worker/host_store_internal.h"

static struct random rng;
static _Alignas(64) uint8_t payload[STORE_BLOCK_BYTES];

static const struct block_name *name_of(uint32_t i)
{
    return &store_rig_block(i)->name;
}

static void put(struct host_store *hs, uint32_t i)
{
    uint32_t slot;
    void *to = NULL;
    assert_int_equal(host_store_put_begin(hs, name_of(i), &slot, &to), ST_OK);
    store_rig_fill(i, to, 2);
    host_store_put_end(hs, slot, true);
}

static bool get(struct host_store *hs, uint32_t i)
{
    if (host_store_get(hs, name_of(i), payload) != ST_OK)
        return false;
    assert_true(store_rig_is(i, payload));
    return true;
}

static void hashes_as_siphash_does(void **state)
{
    (void)state;
    /* openssl mac -macopt hexkey:000102...0f -macopt size:16 -in MESSAGE SIPHASH, MESSAGE being bytes 0, 1, 2, ... */
    static const uint8_t of_16[16] = { 0x6e, 0xe2, 0xa4, 0xca, 0x67, 0xb0, 0x54, 0xbb, 0xfd, 0x33, 0x15, 0xbf, 0x85, 0x23, 0x05, 0x77 };
    static const uint8_t of_80[16] = { 0xd2, 0xc7, 0x6a, 0xe1, 0x7a, 0x43, 0x70, 0xf8, 0x58, 0xfb, 0xa4, 0x79, 0x5a, 0x0d, 0xf8, 0x22 };
    uint8_t message[80];
    struct block_secret secret;
    struct prefix_scope scope;
    struct block_key parent, key;
    int32_t tokens[BLOCK_TOKENS];

    for (int i = 0; i < 80; i++)
        message[i] = (uint8_t)i;
    memcpy(&secret, message, 16);
    memcpy(&scope, message, 16);
    memcpy(&parent, message, 16);
    memcpy(tokens, message + 16, 64);
    key = block_key_root(&secret, scope);
    assert_memory_equal(&key, of_16, 16);
    key = block_key_next(&secret, parent, tokens);
    assert_memory_equal(&key, of_80, 16);
}

static void another_scope_prefix_or_position_is_a_miss(void **state)
{
    (void)state;
    struct partition p = store_rig_partition(0);
    struct host_store *hs = store_rig_open(p.owner_fd, -1, "id");
    put(hs, 5);
    assert_true(host_store_has(hs, name_of(5)) && get(hs, 5));
    for (uint32_t i = 0; i < STORE_BLOCKS; i++)
        assert_int_equal(host_store_has(hs, name_of(i)), i == 5);

    struct block_name n = *name_of(5); /* as if the hashes collided */
    n.scope.id[1]++;
    assert_false(host_store_has(hs, &n));
    n = *name_of(5);
    n.position++;
    assert_false(host_store_has(hs, &n));
    n = *name_of(5);
    n.parent.h[0]++;
    assert_false(host_store_has(hs, &n));
    n = *name_of(5);
    n.tokens = store_rig_block(6)->tokens; /* other tokens */
    assert_true(memcmp(n.tokens, name_of(5)->tokens, sizeof(int32_t) * BLOCK_TOKENS) != 0);
    assert_false(host_store_has(hs, &n));
    host_store_free(hs);
    partition_close(&p);
}

static void another_worker_reads_and_cannot_write(void **state)
{
    (void)state;
    struct partition p = store_rig_partition(0), q = store_rig_partition(1);
    struct host_store *a = store_rig_open(p.owner_fd, q.reader_fd, "id"), *b = store_rig_open(q.owner_fd, p.reader_fd, "id");
    put(a, 1);
    put(b, 2);
    assert_true(get(a, 1) && get(a, 2) && get(b, 1) && get(b, 2));
    assert_false(host_store_touch(b, name_of(1)));
    host_store_drop(b, name_of(1));
    assert_true(get(b, 1));
    host_store_drop(a, name_of(1));
    assert_false(get(b, 1));
    struct host_store_counts c = host_store_counts(a);
    assert_true(c.hits_own == 1 && c.hits_other == 1 && c.puts == 1 && c.n_used == 0);
    void *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, p.reader_fd, 0);
    assert_true(at == MAP_FAILED);
    host_store_free(a);
    host_store_free(b);
    partition_close(&p);
    partition_close(&q);
}

static void another_numerics_id_sees_nothing_and_begins_anew(void **state)
{
    (void)state;
    struct partition p = store_rig_partition(0);
    struct host_store *a = store_rig_open(p.owner_fd, -1, "id"), *b = store_rig_open(-1, p.reader_fd, "other");
    put(a, 1);
    assert_false(host_store_has(b, name_of(1)));
    host_store_free(a);
    a = store_rig_open(p.owner_fd, -1, "other");
    assert_int_equal(host_store_counts(a).n_adopted, 0);
    put(a, 2);
    assert_true(get(b, 2));
    assert_false(get(b, 1));
    host_store_free(a);
    host_store_free(b);
    partition_close(&p);
}

static void a_restart_finds_its_blocks_and_a_discard_leaves_none(void **state)
{
    (void)state;
    struct partition p = store_rig_partition(0);
    struct host_store *a = store_rig_open(p.owner_fd, -1, "id"), *b = store_rig_open(-1, p.reader_fd, "id");
    for (uint32_t i = 0; i < 20; i++)
        put(a, i);
    host_store_free(a);
    assert_true(get(b, 3)); /* of a worker that is gone */
    a = store_rig_open(p.owner_fd, -1, "id");
    assert_int_equal(host_store_counts(a).n_adopted, 20);
    host_store_check(a);
    host_store_free(a);

    partition_discard(&p);
    for (uint32_t i = 0; i < 20; i++)
        assert_false(host_store_has(b, name_of(i)));
    a = store_rig_open(p.owner_fd, -1, "id");
    assert_int_equal(host_store_counts(a).n_adopted, 0);
    put(a, 7);
    assert_true(get(b, 7));
    host_store_free(a);
    host_store_free(b);
    partition_close(&p);
}

/* Any byte of the contents broken, at any place: a wrong byte is never handed out, and nothing crashes. */
static void corrupted_bytes_are_never_believed(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < 300; round++) {
        struct partition p = store_rig_partition(0);
        struct host_store *a = store_rig_open(p.owner_fd, -1, "id"), *b = store_rig_open(-1, p.reader_fd, "id");
        uint8_t *at = mmap(NULL, STORE_PARTITION_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, p.owner_fd, 0);
        struct store_geometry g;
        assert_true(at != MAP_FAILED && store_geometry(STORE_PARTITION_BYTES, STORE_BLOCK_BYTES, &g));
        for (uint32_t i = 0; i < 30; i++)
            put(a, i);
        host_store_free(a);
        uint32_t n = 1 + random_below(&rng, 40);
        while (n-- > 0) {
            /* half of them in header, index and entries, which are small */
            uint32_t below = random_below(&rng, 2) ? (uint32_t)g.payload_at : STORE_PARTITION_BYTES;
            uint32_t where = STORE_HEADER_AT + random_below(&rng, below - STORE_HEADER_AT);
            at[where] = (uint8_t)random_next(&rng);
        }
        uint32_t n_found = 0;
        for (uint32_t i = 0; i < 40; i++)
            n_found += get(b, i); /* compares all bytes */
        a = store_rig_open(p.owner_fd, -1, "id");
        host_store_check(a);
        for (uint32_t i = 0; i < 40; i++)
            get(a, i);
        assert_true(host_store_counts(a).n_adopted <= 30 && n_found <= 30);
        munmap(at, STORE_PARTITION_BYTES);
        host_store_free(a);
        host_store_free(b);
        partition_close(&p);
    }
}

static void a_geometry_fits_its_partition(void **state)
{
    (void)state;
    struct store_geometry g;
    assert_false(store_geometry(STORE_INDEX_AT, 64, &g));
    assert_false(store_geometry(1 << 20, 1 << 20, &g));
    assert_false(store_geometry(1 << 20, 0, &g));
    assert_false(store_geometry(UINT64_C(1) << 40, UINT32_MAX, &g));
    for (uint32_t i = 0; i < 20000; i++) {
        uint64_t bytes = (1 << 20) + ((random_next(&rng) >> random_below(&rng, 40)) & ((UINT64_C(1) << 36) - 1));
        uint32_t block = 1 + random_below(&rng, 1u << random_below(&rng, 22));
        if (!store_geometry(bytes, block, &g))
            continue;
        assert_true(g.n_slots > 0 && g.n_buckets >= 2 * g.n_slots && (g.n_buckets & (g.n_buckets - 1)) == 0);
        assert_true(g.slot_bytes >= block && g.slot_bytes % 64 == 0 && g.payload_at % 4096 == 0);
        assert_true(g.payload_at + (uint64_t)g.n_slots * g.slot_bytes <= bytes);
        assert_true(g.entries_at + g.n_slots * sizeof(struct store_entry) <= g.payload_at);
        assert_true(g.entries_at >= STORE_INDEX_AT + 8ull * g.n_buckets);
    }
}

/* --- against the stupid store ------------------------------------------------------------------- */

struct oracle {
    uint32_t n_slots, n;
    uint32_t list[128];           /* oldest first */
    uint64_t serial[STORE_BLOCKS], next_serial;
    uint32_t n_writing, writing[4], slots[4];
    uint64_t writing_serial[4];
    void *at[4];
};

static int find(const struct oracle *o, uint32_t i)
{
    for (uint32_t k = 0; k < o->n; k++)
        if (o->list[k] == i)
            return (int)k;
    return -1;
}

static void forget(struct oracle *o, uint32_t k)
{
    memmove(&o->list[k], &o->list[k + 1], (o->n - k - 1) * sizeof(o->list[0]));
    o->n--;
}

static bool touch(struct oracle *o, uint32_t i)
{
    int k = find(o, i);
    if (k < 0)
        return false;
    forget(o, (uint32_t)k);
    o->list[o->n++] = i;
    return true;
}

static void end_one(struct host_store *hs, struct oracle *o, bool keep)
{
    uint32_t k = random_below(&rng, o->n_writing), i = o->writing[k];
    store_rig_fill(i, o->at[k], 2);
    host_store_put_end(hs, o->slots[k], keep);
    if (keep && find(o, i) < 0) {
        o->list[o->n++] = i;
        o->serial[i] = o->writing_serial[k];
    }
    o->n_writing--;
    o->writing_serial[k] = o->writing_serial[o->n_writing];
    o->writing[k] = o->writing[o->n_writing];
    o->slots[k] = o->slots[o->n_writing];
    o->at[k] = o->at[o->n_writing];
}

static void begin_one(struct host_store *hs, struct oracle *o, uint32_t i)
{
    uint32_t k = o->n_writing;
    enum status st = host_store_put_begin(hs, name_of(i), &o->slots[k], &o->at[k]);
    assert_int_equal(st, ST_OK);
    if (o->n + o->n_writing == o->n_slots)
        forget(o, 0);
    o->writing_serial[k] = ++o->next_serial;
    o->writing[o->n_writing++] = i;
}

/* What a new life knows is in which order blocks were put in, not when they were used. */
static void sort_by_serial(struct oracle *o)
{
    for (uint32_t a = 1; a < o->n; a++)
        for (uint32_t b = a; b > 0 && o->serial[o->list[b - 1]] > o->serial[o->list[b]]; b--) {
            uint32_t t = o->list[b];
            o->list[b] = o->list[b - 1];
            o->list[b - 1] = t;
        }
}

static void behaves_like_a_stupid_store(void **state)
{
    (void)state;
    static struct oracle o;
    struct partition p = store_rig_partition(0);
    struct host_store *hs = store_rig_open(p.owner_fd, -1, "id"), *reader = store_rig_open(-1, p.reader_fd, "id");
    uint64_t n_hits = 0;
    o = (struct oracle){ .n_slots = host_store_counts(hs).n_slots };
    assert_in_range(o.n_slots, 50, 70);

    for (uint64_t k = 0; k < random_ops(); k++) {
        uint32_t i = random_below(&rng, STORE_BLOCKS / 2), op = random_below(&rng, 1000);
        if (op < 400 && o.n_writing < 4) {
            if (find(&o, i) < 0) /* a block that is there is not put in, one that is being written may be */
                begin_one(hs, &o, i);
        } else if (op < 700 && o.n_writing > 0) {
            end_one(hs, &o, op % 16 != 0);
        } else if (op < 800) {
            assert_int_equal(host_store_touch(hs, name_of(i)), touch(&o, i));
        } else if (op < 940) {
            bool there = touch(&o, i);
            assert_int_equal(get(hs, i), there);
            assert_int_equal(get(reader, i), there);
            n_hits += there;
        } else if (op < 998) {
            int at = find(&o, i);
            host_store_drop(hs, name_of(i));
            if (at >= 0)
                forget(&o, (uint32_t)at);
        } else { /* a new life; what was being written is lost */
            host_store_free(hs);
            hs = store_rig_open(p.owner_fd, -1, "id");
            assert_int_equal(host_store_counts(hs).n_adopted, o.n);
            o.n_writing = 0;
            sort_by_serial(&o);
        }
        assert_int_equal(host_store_counts(hs).n_used, o.n);
        assert_true(o.n + o.n_writing <= o.n_slots);
        if (k % 64 == 0)
            host_store_check(hs);
        if (k % 1024 == 0)
            for (uint32_t b = 0; b < STORE_BLOCKS; b++)
                assert_int_equal(host_store_has(reader, name_of(b)), find(&o, b) >= 0);
    }
    assert_true(n_hits > 0);
    host_store_free(hs);
    host_store_free(reader);
    partition_close(&p);
}

int main(int argc, char **argv)
{
    rng = random_start(argc, argv, 100000);
    store_rig_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hashes_as_siphash_does),
        cmocka_unit_test(another_scope_prefix_or_position_is_a_miss),
        cmocka_unit_test(another_worker_reads_and_cannot_write),
        cmocka_unit_test(another_numerics_id_sees_nothing_and_begins_anew),
        cmocka_unit_test(a_restart_finds_its_blocks_and_a_discard_leaves_none),
        cmocka_unit_test(corrupted_bytes_are_never_believed),
        cmocka_unit_test(a_geometry_fits_its_partition),
        cmocka_unit_test(behaves_like_a_stupid_store),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
