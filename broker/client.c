/* client.c - a hash table of connections by routing id.  Ids are drawn by libzmq, one after the other, so their low bits spread. */
#include "client.h"

#include <assert.h>
#include <string.h>

void clients_init(struct clients *c)
{
    memset(c, 0, sizeof(*c));
    for (uint32_t i = 0; i < CLIENT_BUCKETS; i++)
        c->buckets[i] = CLIENT_NONE;
    for (uint32_t i = 0; i < CLIENTS_MAX; i++)
        c->list[i].next = i + 1 < CLIENTS_MAX ? i + 1 : CLIENT_NONE;
    c->free = 0;
}

static uint32_t bucket_of(const struct peer *p)
{
    uint32_t id;

    memcpy(&id, p->id + 1, sizeof(id));
    return __builtin_bswap32(id) % CLIENT_BUCKETS;
}

uint32_t clients_find(const struct clients *c, const struct peer *p)
{
    uint32_t at = c->buckets[bucket_of(p)];

    while (at != CLIENT_NONE && !peer_equal(&c->list[at].peer, p))
        at = c->list[at].next;
    return at;
}

enum status clients_add(struct clients *c, const struct peer *p, uid_t uid, const uint8_t key[CURVE_KEY_BYTES],
                        uint64_t now_ns, uint32_t *ret_client)
{
    uint32_t at = c->free, bucket = bucket_of(p);

    assert(clients_find(c, p) == CLIENT_NONE);
    if (at == CLIENT_NONE)
        return ST_FULL;
    c->free = c->list[at].next;
    c->list[at] = (struct client){ .peer = *p,
                                   .uid = uid,
                                   .used = true,
                                   .first = NO_REQUEST,
                                   .last = NO_REQUEST,
                                   .probe = NO_REQUEST,
                                   .probe_due_ns = now_ns + CLIENT_PROBE_MS * UINT64_C(1000000),
                                   .next = c->buckets[bucket] };
    memcpy(c->list[at].key, key, CURVE_KEY_BYTES);
    c->buckets[bucket] = at;
    c->n++;
    *ret_client = at;
    return ST_OK;
}

void clients_remove(struct clients *c, uint32_t client)
{
    struct client *cl = &c->list[client];
    uint32_t *link = &c->buckets[bucket_of(&cl->peer)];

    assert(cl->used && cl->n_live == 0);
    while (*link != client)
        link = &c->list[*link].next;
    *link = cl->next;
    cl->used = false;
    cl->next = c->free;
    c->free = client;
    c->n--;
}
