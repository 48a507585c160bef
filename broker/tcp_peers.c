/* tcp_peers.c - see tcp_peers.h.  A hash table of descriptors, and a list of numbers in the order in which they were given. */
#include "tcp_peers.h"

#include <stdlib.h>
#include <string.h>

enum { NO_PLACE = 0xFFFFFFFFu };

enum status tcp_peers_init(struct tcp_peers *p, uint32_t n_max)
{
    *p = (struct tcp_peers){.list = calloc(n_max, sizeof(*p->list)),
                            .buckets = calloc(n_max, sizeof(*p->buckets)),
                            .awaited = calloc(n_max, sizeof(*p->awaited)),
                            .n_max = n_max};
    if (p->list == NULL || p->buckets == NULL || p->awaited == NULL) {
        tcp_peers_deinit(p);
        return ST_NOMEM;
    }
    for (uint32_t i = 0; i < n_max; i++) {
        p->buckets[i] = NO_PLACE;
        p->list[i].next = i + 1 < n_max ? i + 1 : NO_PLACE;
    }
    return ST_OK;
}

void tcp_peers_deinit(struct tcp_peers *p)
{
    free(p->list);
    free(p->buckets);
    free(p->awaited);
    *p = (struct tcp_peers){0};
}

static uint32_t *bucket_of(const struct tcp_peers *p, int fd)
{
    return &p->buckets[(uint32_t)fd % p->n_max];
}

/* Where the place of this descriptor is noted: NO_PLACE is, when it is not known. */
static uint32_t *find(const struct tcp_peers *p, int fd)
{
    uint32_t *at = bucket_of(p, fd);

    while (*at != NO_PLACE && p->list[*at].fd != fd)
        at = &p->list[*at].next;
    return at;
}

enum status tcp_peers_accepted(struct tcp_peers *p, int fd, uint64_t cookie, uint64_t now_ns)
{
    tcp_peers_closed(p, fd); /* it is another connection's now */
    uint32_t at = p->free;
    if (at == NO_PLACE)
        return ST_FULL;
    p->free = p->list[at].next;
    p->list[at] = (struct tcp_peer){
        .fd = fd, .next = *bucket_of(p, fd), .used = true, .cookie = cookie, .since_ns = now_ns};
    *bucket_of(p, fd) = at;
    p->n++;
    return ST_OK;
}

void tcp_peers_closed(struct tcp_peers *p, int fd)
{
    uint32_t *link = find(p, fd), at = *link;

    if (at == NO_PLACE)
        return;
    *link = p->list[at].next;
    p->list[at] = (struct tcp_peer){.next = p->free};
    p->free = at;
    p->n--;
}

uint32_t tcp_peers_of(const struct tcp_peers *p, uint64_t user)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < p->n_max; i++)
        n += p->list[i].number != 0 && p->list[i].user == user;
    for (uint32_t i = 0; i < p->n_awaited; i++)
        n += p->awaited[i].user == user;
    return n;
}

enum status tcp_peers_admitted(struct tcp_peers *p, uint64_t user, uint32_t n_user_max, uint64_t now_ns,
                               uint64_t *ret_number)
{
    if (tcp_peers_of(p, user) >= n_user_max)
        return ST_LIMIT;
    if (p->n_awaited == p->n_max)
        return ST_FULL;
    p->awaited[p->n_awaited++] =
        (struct tcp_awaited){.number = ++p->last_number, .user = user, .since_ns = now_ns};
    *ret_number = p->last_number;
    return ST_OK;
}

/* false: nobody waits for that number.  *ret_user is whose it was. */
static bool take_awaited(struct tcp_peers *p, uint64_t number, uint64_t *ret_user)
{
    uint32_t i = 0;

    while (i < p->n_awaited && p->awaited[i].number != number)
        i++;
    if (i == p->n_awaited)
        return false;
    *ret_user = p->awaited[i].user;
    p->n_awaited--;
    memmove(&p->awaited[i], &p->awaited[i + 1], (p->n_awaited - i) * sizeof(*p->awaited));
    return true;
}

void tcp_peers_said(struct tcp_peers *p, int fd, uint64_t number)
{
    uint32_t at = *find(p, fd);
    uint64_t user = 0;

    if (at == NO_PLACE || p->list[at].number == number)
        return; /* it has gone, or is not known yet; every message of a connection but its first */
    if (take_awaited(p, number, &user) && p->list[at].number < number) {
        p->list[at].number = number;
        p->list[at].user = user;
    }
}

static bool is_over(uint64_t since_ns, uint64_t now_ns)
{
    return now_ns > since_ns && now_ns - since_ns >= TCP_PEERS_SILENT_MS * UINT64_C(1000000);
}

void tcp_peers_expire(struct tcp_peers *p, uint64_t now_ns)
{
    uint32_t n = 0;

    while (n < p->n_awaited && is_over(p->awaited[n].since_ns, now_ns))
        n++;
    p->n_awaited -= n;
    memmove(p->awaited, p->awaited + n, p->n_awaited * sizeof(*p->awaited));
}

const struct tcp_peer *tcp_peers_overdue(struct tcp_peers *p, uint64_t now_ns, uint32_t *at)
{
    while (*at < p->n_max) {
        struct tcp_peer *peer = &p->list[(*at)++];

        if (peer->used && peer->number == 0 && is_over(peer->since_ns, now_ns)) {
            peer->since_ns = now_ns;
            return peer;
        }
    }
    return NULL;
}
