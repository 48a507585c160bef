/* sessions.c - see sessions.h.  A list that is looked through when a request of a session comes, and once a tick. */
#include "sessions.h"

#include <assert.h>
#include <string.h>

_Static_assert(WORKERS_MAX <= 32, "one bit each");

static int find(const struct sessions *s, const uint64_t name[2])
{
    for (int i = 0; i < SESSIONS_MAX; i++)
        if (s->list[i].number != 0 && !s->list[i].ended && s->list[i].name[0] == name[0] && s->list[i].name[1] == name[1])
            return i;
    return SESSION_NONE;
}

static void free_if_done(struct sessions *s, int at)
{
    struct session *e = &s->list[at];

    if (!e->ended || e->n_users > 0 || e->told != 0)
        return;
    *e = (struct session){ 0 };
    s->n--;
}

static void start_time(struct session *e, uint64_t now_ns)
{
    e->expires_ns = now_ns + e->ttl_ns;
}

static enum status open_session(struct sessions *s, const uint64_t name[2], uint64_t user, uint64_t n_user_max, int *ret_at)
{
    uint32_t n_own = 0;
    int at = SESSION_NONE;

    for (int i = 0; i < SESSIONS_MAX; i++) {
        n_own += s->list[i].number != 0 && !s->list[i].ended && s->list[i].user == user;
        if (at == SESSION_NONE && s->list[i].number == 0)
            at = i;
    }
    if (n_own >= n_user_max)
        return ST_LIMIT;
    if (at == SESSION_NONE)
        return ST_FULL;
    s->list[at] = (struct session){ .number = ++s->last_number, .user = user, .worker = -1 };
    memcpy(s->list[at].name, name, sizeof(s->list[at].name));
    s->n++;
    *ret_at = at;
    return ST_OK;
}

enum status sessions_use(struct sessions *s, const uint64_t name[2], uint64_t user, uint64_t n_user_max, uint64_t ttl_ns,
                         uint64_t now_ns, int *ret_at)
{
    int at = find(s, name);

    if (at == SESSION_NONE) {
        enum status st = open_session(s, name, user, n_user_max, &at);
        if (st != ST_OK)
            return st;
    }
    s->list[at].ttl_ns = ttl_ns;
    s->list[at].n_users++;
    start_time(&s->list[at], now_ns);
    *ret_at = at;
    return ST_OK;
}

void sessions_unuse(struct sessions *s, int at, uint64_t now_ns)
{
    assert(s->list[at].n_users > 0);
    s->list[at].n_users--;
    start_time(&s->list[at], now_ns);
    free_if_done(s, at);
}

bool sessions_end(struct sessions *s, const uint64_t name[2])
{
    int at = find(s, name);

    if (at == SESSION_NONE)
        return false;
    s->list[at].ended = true;
    free_if_done(s, at);
    return true;
}

uint64_t sessions_place(struct sessions *s, int at, uint32_t worker)
{
    struct session *e = &s->list[at];

    assert(e->number != 0 && worker < WORKERS_MAX);
    if (e->ended)
        return 0;
    e->worker = (int)worker;
    e->told |= UINT32_C(1) << worker;
    return e->number;
}

void sessions_expire(struct sessions *s, uint64_t now_ns)
{
    for (int i = 0; s->n > 0 && i < SESSIONS_MAX; i++) {
        struct session *e = &s->list[i];

        if (e->number != 0 && !e->ended && e->n_users == 0 && e->expires_ns <= now_ns) {
            e->ended = true;
            free_if_done(s, i);
        }
    }
}

int sessions_to_tell(const struct sessions *s, uint32_t worker)
{
    for (int i = 0; s->n > 0 && i < SESSIONS_MAX; i++) {
        const struct session *e = &s->list[i];

        if (e->number != 0 && e->n_users == 0 && (e->told & UINT32_C(1) << worker) != 0 && (e->ended || e->worker != (int)worker))
            return i;
    }
    return SESSION_NONE;
}

void sessions_told(struct sessions *s, int at, uint32_t worker)
{
    s->list[at].told &= ~(UINT32_C(1) << worker);
    free_if_done(s, at);
}

void sessions_forget_worker(struct sessions *s, uint32_t worker)
{
    for (int i = 0; s->n > 0 && i < SESSIONS_MAX; i++) {
        if (s->list[i].number == 0)
            continue;
        if (s->list[i].worker == (int)worker)
            s->list[i].worker = -1;
        sessions_told(s, i, worker);
    }
}

void sessions_check(const struct sessions *s)
{
    uint32_t n = 0;

    for (int i = 0; i < SESSIONS_MAX; i++) {
        const struct session *e = &s->list[i];

        if (e->number == 0)
            continue;
        n++;
        assert(e->number <= s->last_number);
        assert(!e->ended || e->n_users > 0 || e->told != 0);
        assert(e->worker < WORKERS_MAX);
        assert(e->worker < 0 || (e->told & UINT32_C(1) << e->worker) != 0 || e->ended);
    }
    assert(n == s->n);
}
