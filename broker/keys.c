/* keys.c - see keys.h.
 *
 * Names lie together in an array of their own, so that a search reads 128 KiB at the very worst, and only for requests that have a key.  Kept
 * answers form a list in the order in which they were complete: the head is the one that goes first. */
#include "keys.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { NO_PLACE = 0xFFFFFFFFu };

struct place {
    enum key_state state;
    uint32_t request;         /* LIVE */
    uint64_t user, content[2];
    uint64_t until_ns;        /* 0: it was never complete */
    struct kept_answer answer;/* KEPT */
    uint32_t next, prev;      /* list of KEPT, oldest first */
};

struct keys {
    uint64_t names[KEYS_PLACES][2]; /* of absent places: 0 */
    struct place places[KEYS_PLACES];
    uint32_t first, last;
    struct keys_numbers numbers;
};

enum status keys_new(struct keys **ret_keys)
{
    struct keys *k = calloc(1, sizeof(*k));

    if (k == NULL)
        return ST_NOMEM;
    k->first = k->last = NO_PLACE;
    *ret_keys = k;
    return ST_OK;
}

void kept_answer_deinit(struct kept_answer *a)
{
    for (uint32_t i = 0; a->choices != NULL && i < a->n_choices; i++) {
        free(a->choices[i].ids.at);
        free(a->choices[i].text.at);
        free(a->choices[i].logprobs.at);
    }
    free(a->choices);
    *a = (struct kept_answer){ 0 };
}

void keys_free(struct keys *k)
{
    if (k == NULL)
        return;
    for (uint32_t i = 0; i < KEYS_PLACES; i++)
        kept_answer_deinit(&k->places[i].answer);
    free(k);
}

/* The place of a name; NO_PLACE.  A hash of zeros is as good as any other: the state decides. */
static uint32_t find(const struct keys *k, const uint64_t name[2])
{
    for (uint32_t i = 0; i < KEYS_PLACES; i++)
        if (k->names[i][0] == name[0] && k->names[i][1] == name[1] && k->places[i].state != KEY_ABSENT)
            return i;
    return NO_PLACE;
}

enum key_state keys_find(const struct keys *k, const struct key *key, uint32_t *ret_place, bool *ret_same, uint32_t *ret_request)
{
    uint32_t at = find(k, key->name);

    if (at == NO_PLACE)
        return KEY_ABSENT;
    const struct place *p = &k->places[at];
    *ret_place = at;
    *ret_same = p->content[0] == key->content[0] && p->content[1] == key->content[1];
    *ret_request = p->state == KEY_LIVE ? p->request : NO_REQUEST;
    return p->state;
}

static void unlink_kept(struct keys *k, uint32_t at)
{
    struct place *p = &k->places[at];

    assert(p->state == KEY_KEPT);
    if (p->prev != NO_PLACE)
        k->places[p->prev].next = p->next;
    else
        k->first = p->next;
    if (p->next != NO_PLACE)
        k->places[p->next].prev = p->prev;
    else
        k->last = p->prev;
    k->numbers.n_kept--;
    k->numbers.bytes -= p->answer.bytes;
}

static void make_absent(struct keys *k, uint32_t at)
{
    k->places[at] = (struct place){ .state = KEY_ABSENT };
    k->names[at][0] = k->names[at][1] = 0;
}

static void forget_kept(struct keys *k, uint32_t at)
{
    unlink_kept(k, at);
    kept_answer_deinit(&k->places[at].answer);
    make_absent(k, at);
}

uint32_t keys_add(struct keys *k, const struct key *key, uint32_t request)
{
    uint32_t at = 0;

    assert(find(k, key->name) == NO_PLACE);
    while (at < KEYS_PLACES && k->places[at].state != KEY_ABSENT)
        at++;
    if (at == KEYS_PLACES) {
        at = k->first; /* there is one: fewer requests than places */
        assert(at != NO_PLACE);
        forget_kept(k, at);
    }
    memcpy(k->names[at], key->name, sizeof(key->name));
    k->places[at] = (struct place){ .state = KEY_LIVE, .request = request, .user = key->user };
    memcpy(k->places[at].content, key->content, sizeof(key->content));
    k->numbers.n_live++;
    return at;
}

/* The oldest kept answer of the user, if it has all it may have. */
static uint32_t over_share(const struct keys *k, uint64_t user)
{
    uint32_t n = 0, oldest = NO_PLACE;

    for (uint32_t at = k->first; at != NO_PLACE; at = k->places[at].next)
        if (k->places[at].user == user) {
            if (oldest == NO_PLACE)
                oldest = at;
            n++;
        }
    return n >= KEYS_USER_KEPT_MAX ? oldest : NO_PLACE;
}

void keys_keep(struct keys *k, uint32_t place, struct kept_answer *a, uint64_t now_ns)
{
    struct place *p = &k->places[place];

    assert(p->state == KEY_LIVE);
    if (p->until_ns == 0)
        p->until_ns = now_ns + KEYS_KEEP_MS * UINT64_C(1000000);
    if (a->bytes > KEYS_BYTES_MAX || p->until_ns <= now_ns) {
        kept_answer_deinit(a);
        keys_drop(k, place);
        return;
    }
    uint32_t own = over_share(k, p->user);
    if (own != NO_PLACE)
        forget_kept(k, own);
    while (k->numbers.bytes + a->bytes > KEYS_BYTES_MAX)
        forget_kept(k, k->first);
    p->state = KEY_KEPT;
    p->answer = *a;
    *a = (struct kept_answer){ 0 };
    p->next = NO_PLACE;
    p->prev = k->last;
    /* One that was replayed is older than those before it: it goes where its time puts it. */
    while (p->prev != NO_PLACE && k->places[p->prev].until_ns > p->until_ns) {
        p->next = p->prev;
        p->prev = k->places[p->prev].prev;
    }
    *(p->prev != NO_PLACE ? &k->places[p->prev].next : &k->first) = place;
    *(p->next != NO_PLACE ? &k->places[p->next].prev : &k->last) = place;
    k->numbers.n_live--;
    k->numbers.n_kept++;
    k->numbers.bytes += p->answer.bytes;
}

void keys_take(struct keys *k, uint32_t place, uint32_t request, struct kept_answer *ret_answer)
{
    struct place *p = &k->places[place];

    unlink_kept(k, place);
    *ret_answer = p->answer;
    p->answer = (struct kept_answer){ 0 };
    p->state = KEY_LIVE;
    p->request = request;
    k->numbers.n_live++;
}

void keys_drop(struct keys *k, uint32_t place)
{
    assert(k->places[place].state == KEY_LIVE);
    k->numbers.n_live--;
    make_absent(k, place);
}

void keys_expire(struct keys *k, uint64_t now_ns)
{
    while (k->first != NO_PLACE && k->places[k->first].until_ns <= now_ns)
        forget_kept(k, k->first);
}

struct keys_numbers keys_numbers(const struct keys *k)
{
    return k->numbers;
}

uint32_t keys_request(const struct keys *k, uint32_t place)
{
    return k->places[place].state == KEY_LIVE ? k->places[place].request : NO_REQUEST;
}

void keys_check(const struct keys *k)
{
    struct keys_numbers n = { 0 };
    uint32_t n_listed = 0, prev = NO_PLACE;

    for (uint32_t i = 0; i < KEYS_PLACES; i++) {
        const struct place *p = &k->places[i];

        n.n_live += p->state == KEY_LIVE;
        n.n_kept += p->state == KEY_KEPT;
        n.bytes += p->answer.bytes;
        assert((p->answer.choices != NULL) == (p->state == KEY_KEPT));
    }
    for (uint32_t at = k->first; at != NO_PLACE; prev = at, at = k->places[at].next) {
        assert(k->places[at].state == KEY_KEPT && k->places[at].prev == prev);
        assert(prev == NO_PLACE || k->places[prev].until_ns <= k->places[at].until_ns);
        n_listed++;
    }
    assert(prev == k->last && n_listed == n.n_kept);
    assert(n.n_live == k->numbers.n_live && n.n_kept == k->numbers.n_kept && n.bytes == k->numbers.bytes);
    assert(n.bytes <= KEYS_BYTES_MAX);
}
