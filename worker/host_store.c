/* host_store.c - the owner's side of a partition, and the one store that is made of all of them; reading is in store_view.c.
 *
 * What is shared is only what readers need.  Which slot is free, which is next to go and which are being written is kept in the
 * owner's own memory, and made again from the slots by its next life: after a kill at any instruction a slot is
 * either whole, with an even generation and a checksum that is right, or it is cleared.  The index is
 * derived data: it may lack a block, name one twice or name the wrong slot without harm, and is built anew by every life.
 *
 * Order of a put: the old block leaves the index, its generation becomes odd, payload and record are written, the generation becomes
 * even, the new block enters the index.  Readers find a block last and lose it first.
 *
 * The index is open addressing with linear probing; a removal shifts the rest of its run back, so there are no gravestones and a
 * probe that meets an empty bucket may stop.  A reader in the middle of a shift may miss a block that moves past it: a miss. */
#include "host_store_internal.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fault.h"
#include "log.h"

enum slot_state { SLOT_FREE, SLOT_USED, SLOT_WRITING };

#define SLOT_NONE UINT32_MAX

struct own_slot {
    struct block_key key;
    uint32_t older, younger; /* LRU neighbours while USED; `older` is the next FREE slot while FREE */
    uint8_t state;
};

struct host_store {
    struct store_view views[WORKERS_MAX]; /* [0] is the own partition, if there is one */
    uint32_t n_views;
    uint8_t *own;                 /* the own partition, writable; NULL: none.  views[0].at is the same */
    struct own_slot *slots;       /* [n_slots] */
    uint32_t free_head, oldest, youngest;
    uint64_t serial;              /* of the last put */
    struct block_secret secret;
    uint64_t boot_id;
    struct host_store_counts counts;
};

static struct store_header *own_header(const struct host_store *hs)
{
    return (struct store_header *)(hs->own + STORE_HEADER_AT);
}

static store_bucket *own_index(const struct host_store *hs)
{
    return (store_bucket *)(hs->own + STORE_INDEX_AT);
}

static struct store_entry *own_entry(const struct host_store *hs, uint32_t slot)
{
    return (struct store_entry *)(hs->own + hs->views[0].g.entries_at) + slot;
}

static uint8_t *own_payload(const struct host_store *hs, uint32_t slot)
{
    return hs->own + hs->views[0].g.payload_at + (uint64_t)slot * hs->views[0].g.slot_bytes;
}

void *host_store_memory(struct host_store *hs, size_t *ret_bytes)
{
    const struct store_geometry *g = &hs->views[0].g;

    *ret_bytes = hs->own == NULL ? 0 : (size_t)g->n_slots * g->slot_bytes;
    return hs->own == NULL ? NULL : hs->own + g->payload_at;
}

/* --- lists, in private memory ----------------------------------------------------------------- */

static void lru_append(struct host_store *hs, uint32_t slot)
{
    struct own_slot *s = &hs->slots[slot];
    s->state = SLOT_USED;
    s->older = hs->youngest;
    s->younger = SLOT_NONE;
    if (hs->youngest != SLOT_NONE)
        hs->slots[hs->youngest].younger = slot;
    else
        hs->oldest = slot;
    hs->youngest = slot;
    hs->counts.n_used++;
}

static void lru_unlink(struct host_store *hs, uint32_t slot)
{
    struct own_slot *s = &hs->slots[slot];
    assert(s->state == SLOT_USED);
    if (s->older != SLOT_NONE)
        hs->slots[s->older].younger = s->younger;
    else
        hs->oldest = s->younger;
    if (s->younger != SLOT_NONE)
        hs->slots[s->younger].older = s->older;
    else
        hs->youngest = s->older;
    hs->counts.n_used--;
}

static void push_free(struct host_store *hs, uint32_t slot)
{
    hs->slots[slot].state = SLOT_FREE;
    hs->slots[slot].older = hs->free_head;
    hs->free_head = slot;
}

/* --- the index, in shared memory ---------------------------------------------------------------- */

static void set_bucket(struct host_store *hs, uint32_t at, uint64_t value)
{
    atomic_store_explicit(&own_index(hs)[at], value, memory_order_release);
}

static uint64_t bucket(const struct host_store *hs, uint32_t at)
{
    return atomic_load_explicit(&own_index(hs)[at], memory_order_relaxed); /* nobody else writes it */
}

static void index_insert(struct host_store *hs, uint32_t slot)
{
    const struct store_geometry *g = &hs->views[0].g;
    struct block_key key = hs->slots[slot].key;
    uint32_t at = store_home(g, key);

    while (bucket(hs, at) != 0)
        at = (at + 1) & (g->n_buckets - 1);
    set_bucket(hs, at, store_bucket_of(key, slot));
}

/* Empty a bucket and close the gap: each later one of the run moves back if its home allows. */
static void index_remove(struct host_store *hs, uint32_t slot)
{
    const struct store_geometry *g = &hs->views[0].g;
    const uint32_t mask = g->n_buckets - 1;
    struct block_key key = hs->slots[slot].key;
    uint32_t gap = store_home(g, key);

    while (bucket(hs, gap) != store_bucket_of(key, slot)) {
        assert(bucket(hs, gap) != 0);
        gap = (gap + 1) & mask;
    }
    for (uint32_t at = (gap + 1) & mask; bucket(hs, at) != 0; at = (at + 1) & mask) {
        uint32_t home = store_home(g, hs->slots[(uint32_t)bucket(hs, at) - 1].key);
        if (((at - home) & mask) < ((at - gap) & mask))
            continue; /* its home lies behind the gap */
        set_bucket(hs, gap, bucket(hs, at));
        FAULT("index.shift");
        gap = at;
    }
    set_bucket(hs, gap, 0);
}

/* --- opening ------------------------------------------------------------------------------------ */

/* Begin anew: nobody believes anything while the state is odd. */
static void format(struct host_store *hs)
{
    const struct store_view *v = &hs->views[0];
    struct store_header *h = own_header(hs);
    uint64_t state = atomic_load_explicit(&h->state, memory_order_relaxed);

    state += state % 2 == 0;
    atomic_store(&h->state, state);
    FAULT("format.begin");
    h->magic = STORE_MAGIC;
    h->version = STORE_VERSION;
    h->epoch = atomic_load(&view_birth(v)->epoch);
    h->n_slots = v->g.n_slots;
    h->block_bytes = v->g.block_bytes;
    memcpy(h->numerics_id, v->numerics_id, sizeof(h->numerics_id));
    FAULT("format.header");
    memset(own_index(hs), 0, v->g.n_buckets * sizeof(store_bucket));
    FAULT("format.index");
    memset(own_entry(hs, 0), 0, v->g.n_slots * sizeof(struct store_entry));
    FAULT("format.entries");
    atomic_store(&h->state, state + 1);
}

struct found {
    uint64_t serial;
    uint32_t slot;
};

static int by_serial(const void *a, const void *b)
{
    const struct found *x = a, *y = b;
    return x->serial < y->serial ? -1 : x->serial > y->serial;
}

static bool entry_is_whole(const struct host_store *hs, uint32_t slot)
{
    const struct store_view *v = &hs->views[0];
    const struct store_entry *e = own_entry(hs, slot);
    uint64_t generation = atomic_load_explicit(&e->generation, memory_order_relaxed);
    struct store_place seen;
    struct block_name name = {
        .scope = e->record.scope, .key = e->record.key, .parent = e->record.parent, .position = e->record.position, .tokens = e->record.tokens,
    };

    if (generation == 0 || generation % 2 != 0 || e->record.n_tokens != BLOCK_TOKENS || store_view_find(v, &name, &seen))
        return false; /* (the index holds those already adopted) */
    return store_checksum(v->checksum_seed, own_payload(hs, slot), v->g.block_bytes, &e->record) == e->checksum;
}

/* Take over what an earlier life of this slot has left: whole slots are kept, oldest put first in the LRU list. */
static enum status adopt(struct host_store *hs)
{
    const struct store_view *v = &hs->views[0];
    uint32_t n = 0;
    struct found *found = calloc(v->g.n_slots, sizeof(*found));

    if (found == NULL)
        return ST_NOMEM;
    memset(own_index(hs), 0, v->g.n_buckets * sizeof(store_bucket));
    FAULT("adopt.index");
    for (uint32_t i = v->g.n_slots; i-- > 0;) {
        struct store_entry *e = own_entry(hs, i);
        if (entry_is_whole(hs, i)) {
            found[n++] = (struct found){ e->record.serial, i };
            hs->slots[i].key = e->record.key;
            index_insert(hs, i);
        } else {
            atomic_store_explicit(&e->generation, 0, memory_order_release);
            push_free(hs, i);
        }
        FAULT("adopt.slot");
    }
    qsort(found, n, sizeof(*found), by_serial);
    for (uint32_t i = 0; i < n; i++)
        lru_append(hs, found[i].slot);
    hs->serial = n > 0 ? found[n - 1].serial : 0;
    hs->counts.n_adopted = n;
    free(found);
    return ST_OK;
}

static enum status open_view(struct host_store *hs, const struct host_store_options *opt, int fd, bool writable)
{
    struct store_view *v = &hs->views[hs->n_views];
    struct partition_birth birth;
    enum status st = partition_read_birth(fd, &birth);

    if (st != ST_OK)
        return st;
    if (hs->n_views == 0) {
        hs->secret = (struct block_secret){ { birth.secret[0], birth.secret[1] } };
        hs->boot_id = birth.boot_id;
    }
    if (birth.boot_id != hs->boot_id || birth.secret[0] != hs->secret.k[0] || birth.secret[1] != hs->secret.k[1])
        return ST_CORRUPT;
    if (!store_geometry(birth.bytes, opt->block_bytes, &v->g)) {
        log_warn("store_too_small", "bytes=%llu block_bytes=%u", (unsigned long long)birth.bytes, opt->block_bytes);
        return ST_LIMIT;
    }
    int rc = 0;
    while (writable && (rc = fallocate(fd, 0, 0, (off_t)birth.bytes)) != 0 && errno == EINTR)
        continue;
    if (rc != 0) {
        log_warn("store_no_memory", "bytes=%llu errno=%d", (unsigned long long)birth.bytes, errno);
        return ST_NOMEM;
    }
    void *at = mmap(NULL, birth.bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        return errno == ENOMEM ? ST_NOMEM : ST_SYSTEM;
    v->at = at;
    v->bytes = birth.bytes;
    v->checksum_seed = hs->secret.k[0];
    memcpy(v->numerics_id, opt->numerics_id, strnlen(opt->numerics_id, NUMERICS_ID_BYTES - 1));
    hs->n_views++;
    return ST_OK;
}

static enum status open_own(struct host_store *hs, const struct host_store_options *opt)
{
    uint64_t state;
    enum status st = open_view(hs, opt, opt->own_fd, true);

    if (st != ST_OK)
        return st;
    const struct store_view *v = &hs->views[0];
    hs->own = (uint8_t *)v->at;
    hs->counts.n_slots = v->g.n_slots;
    hs->slots = calloc(v->g.n_slots, sizeof(*hs->slots));
    if (hs->slots == NULL)
        return ST_NOMEM;
    if (!store_view_valid(v, &state))
        format(hs);
    return adopt(hs);
}

enum status host_store_new(const struct host_store_options *opt, struct host_store **ret_store)
{
    assert(opt->n_others < WORKERS_MAX && strlen(opt->numerics_id) < NUMERICS_ID_BYTES);
    enum status st = ST_OK;
    struct host_store *hs = calloc(1, sizeof(*hs));

    if (hs == NULL)
        return ST_NOMEM;
    hs->free_head = hs->oldest = hs->youngest = SLOT_NONE;
    if (opt->own_fd >= 0)
        st = open_own(hs, opt);
    for (uint32_t i = 0; st == ST_OK && i < opt->n_others; i++)
        st = open_view(hs, opt, opt->other_fds[i], false);
    if (st == ST_OK) {
        *ret_store = hs;
        hs = NULL;
    }
    host_store_free(hs);
    return st;
}

void host_store_free(struct host_store *hs)
{
    if (hs == NULL)
        return;
    for (uint32_t i = 0; i < hs->n_views; i++)
        munmap((void *)hs->views[i].at, hs->views[i].bytes);
    free(hs->slots);
    free(hs);
}

struct block_secret host_store_secret(const struct host_store *hs)
{
    return hs->secret;
}

/* --- reading --------------------------------------------------------------------------------------- */

bool host_store_has(const struct host_store *hs, const struct block_name *name)
{
    struct store_place p;
    for (uint32_t i = 0; i < hs->n_views; i++)
        if (store_view_find(&hs->views[i], name, &p))
            return true;
    return false;
}

enum status host_store_get(struct host_store *hs, const struct block_name *name, void *to)
{
    struct store_place p;
    for (uint32_t i = 0; i < hs->n_views; i++) {
        if (!store_view_find(&hs->views[i], name, &p))
            continue;
        if (!store_view_copy(&hs->views[i], &p, to)) {
            hs->counts.refused++;
            continue;
        }
        if (hs->own != NULL && i == 0) {
            lru_unlink(hs, p.slot);
            lru_append(hs, p.slot);
            hs->counts.hits_own++;
        } else {
            hs->counts.hits_other++;
        }
        return ST_OK;
    }
    return ST_NOT_FOUND;
}

/* --- writing --------------------------------------------------------------------------------------- */

static uint32_t find_own(const struct host_store *hs, const struct block_name *name)
{
    struct store_place p;
    return hs->own != NULL && store_view_find(&hs->views[0], name, &p) ? p.slot : SLOT_NONE;
}

bool host_store_touch(struct host_store *hs, const struct block_name *name)
{
    uint32_t slot = find_own(hs, name);
    if (slot == SLOT_NONE)
        return false;
    lru_unlink(hs, slot);
    lru_append(hs, slot);
    return true;
}

/* A used slot becomes one that nobody finds. */
static void take_out(struct host_store *hs, uint32_t slot)
{
    index_remove(hs, slot);
    FAULT("take_out.unindexed");
    lru_unlink(hs, slot);
}

enum status host_store_put_begin(struct host_store *hs, const struct block_name *name, uint32_t *ret_slot, void **ret_payload)
{
    uint32_t slot = hs->free_head;

    if (slot != SLOT_NONE) {
        hs->free_head = hs->slots[slot].older;
    } else if (hs->oldest != SLOT_NONE) {
        slot = hs->oldest;
        take_out(hs, slot);
        hs->counts.evictions++;
    } else {
        return ST_FULL;
    }
    struct store_entry *e = own_entry(hs, slot);
    uint64_t generation = atomic_load_explicit(&e->generation, memory_order_relaxed);

    assert(generation % 2 == 0);
    hs->slots[slot].state = SLOT_WRITING;
    hs->slots[slot].key = name->key;
    atomic_store(&e->generation, generation + 1); /* W1 */
    FAULT("put.odd");
    e->record = (struct store_record){ .scope = name->scope,
                                       .key = name->key,
                                       .parent = name->parent,
                                       .serial = ++hs->serial,
                                       .position = name->position,
                                       .n_tokens = BLOCK_TOKENS };
    FAULT("put.half_record");
    memcpy(e->record.tokens, name->tokens, sizeof(e->record.tokens));
    FAULT("put.record");
    *ret_slot = slot;
    *ret_payload = own_payload(hs, slot);
    return ST_OK;
}

void host_store_put_end(struct host_store *hs, uint32_t slot, bool keep)
{
    assert(hs->own != NULL && slot < hs->counts.n_slots && hs->slots[slot].state == SLOT_WRITING);
    struct store_entry *e = own_entry(hs, slot);
    uint64_t generation = atomic_load_explicit(&e->generation, memory_order_relaxed);
    struct block_name name = {
        .scope = e->record.scope, .key = e->record.key, .parent = e->record.parent, .position = e->record.position, .tokens = e->record.tokens,
    };

    assert(generation % 2 == 1);
    if (!keep || find_own(hs, &name) != SLOT_NONE) { /* another put of the same block was done first */
        atomic_store_explicit(&e->generation, 0, memory_order_release);
        FAULT("put.dropped");
        push_free(hs, slot);
        return;
    }
    e->checksum = store_checksum(hs->views[0].checksum_seed, own_payload(hs, slot), hs->views[0].g.block_bytes, &e->record);
    FAULT("put.checksum");
    atomic_store_explicit(&e->generation, generation + 1, memory_order_release); /* W3 */
    FAULT("put.even");
    index_insert(hs, slot);
    FAULT("put.indexed");
    lru_append(hs, slot);
    hs->counts.puts++;
}

void host_store_drop(struct host_store *hs, const struct block_name *name)
{
    uint32_t slot = find_own(hs, name);
    if (slot == SLOT_NONE)
        return;
    take_out(hs, slot);
    atomic_store_explicit(&own_entry(hs, slot)->generation, 0, memory_order_release);
    FAULT("drop.cleared");
    push_free(hs, slot);
}

struct host_store_counts host_store_counts(const struct host_store *hs)
{
    return hs->counts;
}

/* --- checking -------------------------------------------------------------------------------------- */

static void check_used(const struct host_store *hs, uint32_t slot)
{
    const struct store_view *v = &hs->views[0];
    const struct store_entry *e = own_entry(hs, slot);
    uint64_t generation = atomic_load(&e->generation);
    struct block_name name = {
        .scope = e->record.scope, .key = e->record.key, .parent = e->record.parent, .position = e->record.position, .tokens = e->record.tokens,
    };

    assert(generation > 0 && generation % 2 == 0);
    assert(block_key_equal(e->record.key, hs->slots[slot].key));
    assert(find_own(hs, &name) == slot);
    assert(e->record.serial <= hs->serial);
    assert(store_checksum(v->checksum_seed, own_payload(hs, slot), v->g.block_bytes, &e->record) == e->checksum);
}

void host_store_check(const struct host_store *hs)
{
    uint32_t n_used = 0, n_free = 0, n_writing = 0, n_indexed = 0, before = SLOT_NONE;

    if (hs->own == NULL)
        return;
    for (uint32_t s = hs->oldest; s != SLOT_NONE; before = s, s = hs->slots[s].younger, n_used++) {
        assert(n_used < hs->counts.n_slots && hs->slots[s].state == SLOT_USED && hs->slots[s].older == before);
        check_used(hs, s);
    }
    assert(hs->youngest == before && n_used == hs->counts.n_used);
    for (uint32_t s = hs->free_head; s != SLOT_NONE; s = hs->slots[s].older, n_free++)
        assert(n_free < hs->counts.n_slots && hs->slots[s].state == SLOT_FREE);
    for (uint32_t s = 0; s < hs->counts.n_slots; s++)
        n_writing += hs->slots[s].state == SLOT_WRITING;
    assert(n_used + n_free + n_writing == hs->counts.n_slots);
    for (uint32_t i = 0; i < hs->views[0].g.n_buckets; i++)
        n_indexed += bucket(hs, i) != 0;
    assert(n_indexed == n_used);
}
