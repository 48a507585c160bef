/* request.c - see request.h.
 *
 * Places are taken at start; prompts and outputs, whose sizes differ by a factor of a million, are allocated as they come and counted.
 * Ids grow by doubling, so a long answer costs a handful of allocations. */
#include "request.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

enum { BYTES_MIN = 256 };

enum status requests_init(struct requests *t)
{
    memset(t, 0, sizeof(*t));
    t->list = calloc(REQUESTS_MAX, sizeof(*t->list));
    t->buckets = calloc(REQUEST_BUCKETS, sizeof(*t->buckets));
    if (t->list == NULL || t->buckets == NULL) {
        requests_deinit(t);
        return ST_NOMEM;
    }
    for (uint32_t i = 0; i < REQUEST_BUCKETS; i++)
        t->buckets[i] = NO_REQUEST;
    for (uint32_t i = 0; i < REQUESTS_MAX; i++)
        t->list[i].bucket_next = i + 1 < REQUESTS_MAX ? i + 1 : NO_REQUEST;
    t->dirty_first = t->dirty_last = NO_REQUEST;
    t->next_number = 1;
    return ST_OK;
}

static void free_contents(struct requests *t, struct request *r)
{
    for (uint32_t i = 0; r->choices != NULL && i < r->n_choices; i++) {
        requests_clear(t, &r->choices[i].ids);
        requests_clear(t, &r->choices[i].text);
        requests_clear(t, &r->choices[i].logprobs);
    }
    free(r->choices);
    r->choices = NULL;
    t->bytes -= r->record.bytes;
    record_deinit(&r->record);
}

void requests_deinit(struct requests *t)
{
    for (uint32_t i = 0; t->list != NULL && i < REQUESTS_MAX; i++)
        if (t->list[i].phase != REQUEST_FREE)
            free_contents(t, &t->list[i]);
    free(t->list);
    free(t->buckets);
    memset(t, 0, sizeof(*t));
}

static uint32_t *bucket_of(const struct requests *t, uint32_t client, struct span id)
{
    return &t->buckets[XXH3_64bits_withSeed(id.at, id.n, client) % REQUEST_BUCKETS];
}

uint32_t requests_find(const struct requests *t, uint32_t client, struct span id)
{
    uint32_t at = *bucket_of(t, client, id);

    while (at != NO_REQUEST && (t->list[at].client != client || !span_equal(request_id(&t->list[at]), id)))
        at = t->list[at].bucket_next;
    return at;
}

enum status requests_add(struct requests *t, struct clients *c, uint32_t client, struct span id, uint32_t n_choices,
                         struct record *record, uint32_t *ret_request)
{
    uint32_t at = t->free;

    assert(n_choices >= 1 && n_choices <= CHOICES_MAX);
    if (at == NO_REQUEST)
        return ST_FULL;
    struct choice *choices = calloc(n_choices, sizeof(*choices));
    if (choices == NULL)
        return ST_NOMEM;
    struct request *r = &t->list[at];

    t->free = r->bucket_next;
    *r = (struct request){ .phase = REQUEST_OVER,
                           .number = t->next_number++,
                           .client = CLIENT_NONE,
                           .key = NO_KEY,
                           .session = SESSION_NONE,
                           .record = *record,
                           .worker = NO_WORKER,
                           .n_choices = n_choices,
                           .choices = choices,
                           .client_next = NO_REQUEST,
                           .client_prev = NO_REQUEST,
                           .bucket_next = NO_REQUEST,
                           .dirty_next = NO_REQUEST };
    *record = (struct record){ 0 };
    t->bytes += r->record.bytes;
    t->n_live++;
    requests_attach(t, c, at, client, id);
    *ret_request = at;
    return ST_OK;
}

void requests_attach(struct requests *t, struct clients *c, uint32_t request, uint32_t client, struct span id)
{
    struct request *r = &t->list[request];
    struct client *cl = &c->list[client];
    uint32_t *bucket = bucket_of(t, client, id);

    assert(id.n >= 1 && id.n <= CLIENT_ID_BYTES_MAX);
    assert(r->client == CLIENT_NONE);
    memcpy(r->id, id.at, id.n);
    r->id_bytes = (uint32_t)id.n;
    r->client = client;
    r->client_next = NO_REQUEST;
    r->client_prev = cl->last;
    r->bucket_next = *bucket;
    *bucket = request;
    if (cl->last != NO_REQUEST)
        t->list[cl->last].client_next = request;
    else
        cl->first = request;
    cl->last = request;
    cl->n_live++;
}

void requests_detach(struct requests *t, struct clients *c, uint32_t request)
{
    struct request *r = &t->list[request];

    if (r->client == CLIENT_NONE)
        return;
    struct client *cl = &c->list[r->client];
    uint32_t *link = bucket_of(t, r->client, request_id(r));

    while (*link != request)
        link = &t->list[*link].bucket_next;
    *link = r->bucket_next;
    r->bucket_next = NO_REQUEST;
    if (cl->probe == request)
        cl->probe = r->client_next;
    if (r->client_prev != NO_REQUEST)
        t->list[r->client_prev].client_next = r->client_next;
    else
        cl->first = r->client_next;
    if (r->client_next != NO_REQUEST)
        t->list[r->client_next].client_prev = r->client_prev;
    else
        cl->last = r->client_prev;
    cl->n_live--;
    r->client = CLIENT_NONE;
}

/* Take a request out of the dirty list; it is short, for it is emptied in every pass of the loop. */
static void drop_dirty(struct requests *t, uint32_t request)
{
    uint32_t prev = NO_REQUEST, at = t->dirty_first;

    while (at != request) {
        prev = at;
        at = t->list[at].dirty_next;
    }
    if (prev == NO_REQUEST)
        t->dirty_first = t->list[at].dirty_next;
    else
        t->list[prev].dirty_next = t->list[at].dirty_next;
    if (t->dirty_last == at)
        t->dirty_last = prev;
    t->list[at].dirty = false;
}

void requests_remove(struct requests *t, uint32_t request)
{
    struct request *r = &t->list[request];

    assert(r->phase == REQUEST_OVER && r->client == CLIENT_NONE);
    if (r->dirty)
        drop_dirty(t, request);
    free_contents(t, r);
    r->phase = REQUEST_FREE;
    r->bucket_next = t->free;
    t->free = request;
    t->n_live--;
}

void requests_mark_dirty(struct requests *t, uint32_t request)
{
    struct request *r = &t->list[request];

    if (r->dirty)
        return;
    r->dirty = true;
    r->dirty_next = NO_REQUEST;
    if (t->dirty_last != NO_REQUEST)
        t->list[t->dirty_last].dirty_next = request;
    else
        t->dirty_first = request;
    t->dirty_last = request;
}

uint32_t requests_take_dirty(struct requests *t)
{
    uint32_t at = t->dirty_first;

    if (at == NO_REQUEST)
        return NO_REQUEST;
    t->dirty_first = t->list[at].dirty_next;
    if (t->dirty_first == NO_REQUEST)
        t->dirty_last = NO_REQUEST;
    t->list[at].dirty = false;
    return at;
}

enum status requests_append(struct requests *t, struct bytes *b, const void *at, size_t n)
{
    if (n == 0)
        return ST_OK;
    if (b->capacity - b->n < n) {
        size_t capacity = b->capacity > 0 ? b->capacity : BYTES_MIN;

        while (capacity - b->n < n)
            capacity *= 2;
        uint8_t *more = realloc(b->at, capacity);
        if (more == NULL)
            return ST_NOMEM;
        t->bytes += capacity - b->capacity;
        b->at = more;
        b->capacity = capacity;
    }
    memcpy(b->at + b->n, at, n);
    b->n += n;
    return ST_OK;
}

void requests_consume(struct bytes *b, size_t n)
{
    assert(n <= b->n);
    if (n == 0)
        return;
    memmove(b->at, b->at + n, b->n - n);
    b->n -= n;
}

void requests_clear(struct requests *t, struct bytes *b)
{
    free(b->at);
    t->bytes -= b->capacity;
    *b = (struct bytes){ 0 };
}

uint64_t request_backlog(const struct request *r)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < r->n_choices; i++) {
        const struct choice *c = &r->choices[i];

        n += c->ids.n - (uint64_t)c->n_sent * 4 + (c->text.n - c->text_sent) + (c->logprobs.n - c->logprobs_sent);
    }
    return n;
}

bool request_finished(const struct request *r)
{
    for (uint32_t i = 0; i < r->n_choices; i++)
        if (!r->choices[i].finished)
            return false;
    return true;
}

uint32_t request_completion_tokens(const struct request *r)
{
    uint32_t n = 0;

    for (uint32_t i = 0; r->kind == WORK_GENERATE && i < r->n_choices; i++)
        n += choice_n_ids(&r->choices[i]);
    return n;
}

void requests_check(const struct requests *t, const struct clients *c)
{
    uint32_t n_live = 0, n_attached = 0, n_listed = 0;
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < REQUESTS_MAX; i++) {
        const struct request *r = &t->list[i];

        if (r->phase == REQUEST_FREE)
            continue;
        n_live++;
        bytes += r->record.bytes;
        for (uint32_t k = 0; k < r->n_choices; k++) {
            const struct choice *ch = &r->choices[k];

            bytes += ch->ids.capacity + ch->text.capacity + ch->logprobs.capacity;
            assert(ch->n_sent <= choice_n_ids(ch));
            assert(ch->text_sent <= ch->text.n && ch->logprobs_sent <= ch->logprobs.n);
        }
        if (r->client == CLIENT_NONE)
            continue;
        n_attached++;
        assert(c->list[r->client].used);
        assert(requests_find(t, r->client, request_id(r)) == i);
    }
    for (uint32_t i = 0; i < CLIENTS_MAX; i++) {
        uint32_t n = 0;

        if (!c->list[i].used)
            continue;
        for (uint32_t at = c->list[i].first; at != NO_REQUEST; at = t->list[at].client_next) {
            assert(t->list[at].client == i);
            n++;
        }
        assert(n == c->list[i].n_live);
        n_listed += n;
    }
    assert(n_live == t->n_live);
    assert(n_attached == n_listed);
    assert(bytes == t->bytes);
}
