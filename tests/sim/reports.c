/* reports.c - what a user can read of time and cache depends on requests of the own scope alone.
 *
 * In a canary's run every user is on a connection of its own.  Of a request that is done the timeline is asked for, of
 * others' requests too, and now and then the list of requests and the pool's status.  Held against what may be in there:
 *
 *   the own timeline   It tells of as many cached tokens as `done`, which replies.c has held against the scope; where
 *                      nothing was computed twice, its chunks make up exactly the rest of the prompt: no token came from
 *                      anywhere without being told.  It waited for a prefix only if another request of its scope, under
 *                      way at the same time, begins with the same block of tokens.
 *   another's          Is not there, as if it had never been.
 *   list and status    Have rows of the own name only. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ask.h"

enum { PENDING_MAX = 4096, USERS = 16, LIST_EACH = 61, STATUS_EACH = 67, OTHERS_EACH = 5, BEGUN_MAX = 1 << 13 };
enum kind { OWN, OTHERS, LIST, STATUS };

static struct pending {
    uint32_t number; /* of the question; 0: free */
    uint32_t user;
    enum kind kind;
    char name[64];
    uint32_t prompt_tokens, cached_tokens;
    bool may_wait; /* for a prefix that another computed */
    bool is_exact; /* one choice, never preempted, never taken over */
} pending[PENDING_MAX];
static uint32_t n_questions;
static struct beginning { /* of a request that may leave blocks, by its number */
    uint32_t number;
    uint64_t scope, ended_ns;
    int32_t tokens[BLOCK_TOKENS];
} begun[BEGUN_MAX];
static char last_name[USERS][64];
static struct wire_buffer out;

void reports_open(void)
{
    memset(pending, 0, sizeof(pending));
    memset(last_name, 0, sizeof(last_name));
    memset(begun, 0, sizeof(begun));
    n_questions = 0;
}

void reports_close(void)
{
    wire_buffer_deinit(&out);
    out = (struct wire_buffer){0};
}

void report_began(const struct ask *a)
{
    struct beginning *b = &begun[a->number % BEGUN_MAX];
    if (a->cache_off || a->question.n_prompt < BLOCK_TOKENS)
        return;
    *b = (struct beginning){.number = a->number, .scope = a->scope, .ended_ns = UINT64_MAX};
    memcpy(b->tokens, a->question.prompt, sizeof(b->tokens));
}

void report_ended(const struct ask *a)
{
    if (begun[a->number % BEGUN_MAX].number == a->number)
        begun[a->number % BEGUN_MAX].ended_ns = sim.now_ns;
}

static bool has_company(const struct ask *a)
{
    for (uint32_t i = 0; i < BEGUN_MAX && !a->cache_off && a->question.n_prompt >= BLOCK_TOKENS; i++)
        if (begun[i].number != 0 && begun[i].number != a->number && begun[i].scope == a->scope &&
            begun[i].ended_ns >= a->sent_ns &&
            memcmp(begun[i].tokens, a->question.prompt, sizeof(begun[i].tokens)) == 0)
            return true;
    return false;
}

static struct pending *question(const struct connection *c, const struct ask *a, enum kind kind,
                                const char *name)
{
    struct pending *p = &pending[++n_questions % PENDING_MAX];
    char id[16];
    *p = (struct pending){.number = n_questions, .user = c->user, .kind = kind};
    snprintf(p->name, sizeof(p->name), "%s", name);
    snprintf(id, sizeof(id), "t%u", n_questions);
    enum status st = kind == STATUS ? wire_encode_simple(&out, WIRE_STATUS, span_str(id))
                                    : wire_encode_trace(&out, span_str(id), span_str(name), span_of(NULL, 0));
    sim_demand(st == ST_OK, "no memory");
    mail_post(a->connection, out.at, out.n);
    return p;
}

void report_ask(const struct connection *c, const struct ask *a, const struct wire_done *d)
{
    if (!sim.opt.canary || !fault_is_on(FAULT_SESSIONS) || fault_is_on(FAULT_BROKER) ||
        fault_is_on(FAULT_UPGRADE))
        return;
    struct pending *p = question(c, a, OWN, a->name);
    p->prompt_tokens = d->prompt_tokens;
    p->cached_tokens = d->cached_tokens;
    p->may_wait = has_company(a);
    p->is_exact = a->n_choices == 1 && d->preemptions == 0 && d->takeovers == 0;
    snprintf(last_name[c->user], sizeof(last_name[0]), "%s", a->name);
    uint32_t other = a->number % sim.plan.n_users;
    if (a->number % OTHERS_EACH == 0 && other != c->user && last_name[other][0] != '\0')
        question(c, a, OTHERS, last_name[other]);
    if (a->number % LIST_EACH == 0)
        question(c, a, LIST, "");
    if (a->number % STATUS_EACH == 0)
        question(c, a, STATUS, "");
}

/* The number behind the first `key` from *at on; moves *at behind it.  false: there is none. */
static bool next_number(const char **at, const char *key, uint32_t *ret_number)
{
    const char *found = strstr(*at, key);
    if (found == NULL)
        return false;
    *at = found + strlen(key);
    *ret_number = (uint32_t)strtoul(*at, NULL, 10);
    return true;
}

static uint32_t number_of(const char *json, const char *key)
{
    uint32_t n = 0;
    sim_demand(next_number(&json, key, &n), "no %s in %s", key, json);
    return n;
}

static void check_own(const struct pending *p, const char *json)
{
    uint32_t cached = number_of(json, "\"cached_tokens\":"), rows = 0, n;
    sim_demand(strstr(json, p->name) != NULL && number_of(json, "\"prompt_tokens\":") == p->prompt_tokens &&
                   cached == p->cached_tokens,
               "the timeline of %s tells of %u cached tokens, its end of %u", p->name, cached,
               p->cached_tokens);
    for (const char *at = json; next_number(&at, "\"rows\":", &n);)
        rows += n;
    sim_demand(!p->is_exact || rows + cached == p->prompt_tokens,
               "the timeline of %s has %u rows and %u cached tokens, its prompt %u", p->name, rows, cached,
               p->prompt_tokens);
    bool waited = strstr(json, "\"name\":\"prefix\"") != NULL;
    sim.seen.prefix_waits += waited;
    sim_demand(
        !waited || p->may_wait,
        "%s waited for a prefix, but no other request of its scope with the same beginning was under way",
        p->name);
}

/* Every row of users, or of requests, is of this user. */
static void check_names(const struct pending *p, const char *json, const char *key)
{
    char own[32];
    snprintf(own, sizeof(own), "\"uid-%u\"", SIM_UID + p->user);
    for (const char *at = json; (at = strstr(at, key)) != NULL;) {
        at += strlen(key);
        sim_demand(strncmp(at, own, strlen(own)) == 0, "%s can read of %.20s", own, at);
    }
    sim_demand(strstr(json, own) != NULL, "%s cannot read of itself", own);
}

bool report_take(const struct connection *c, struct span id, const struct wire_message *m, struct span body)
{
    const char *digits = (const char *)id.at + 1;
    if (id.n < 2 || *(const char *)id.at != 't')
        return false;
    struct pending *p = &pending[strtoul(digits, NULL, 10) % PENDING_MAX];
    char *json = NULL, name[16];
    snprintf(name, sizeof(name), "t%u", p->number);
    sim_demand(span_is(id, name) && p->user == c->user, "an answer to a question that was not asked: %.*s",
               (int)id.n, (const char *)id.at);
    p->number = 0;
    if (p->kind == OTHERS) {
        sim_demand(m->type == WIRE_ERROR && m->error.error.code == ERR_NOT_FOUND,
                   "user %u can read the timeline of %s", p->user, p->name);
        return true;
    }
    sim_demand(m->type == (p->kind == STATUS ? WIRE_STATUS_REPLY : WIRE_TRACE_REPLY),
               "%s: an answer of type %d", name, (int)m->type);
    enum status st = wire_to_json(body, &json);
    sim_demand(st == ST_OK, "an answer that is no map");
    if (p->kind == OWN)
        check_own(p, json);
    else
        check_names(p, p->kind == STATUS ? strstr(json, "\"users\":") : json,
                    p->kind == STATUS ? "\"name\":" : "\"user\":");
    sim.seen.reports++;
    free(json);
    return true;
}
