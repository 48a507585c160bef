/* replies.c - every message a client gets is held against what it must be.
 *
 * Tokens and text come without a gap or a repeat and are those of an undisturbed run, whatever happened to the workers;
 * there is one end, after which nothing of the request is heard again; an error is one that this request can have. */
#include <stdlib.h>
#include <string.h>

#include "ask.h"

void ask_free(struct ask *a)
{
    for (uint32_t i = 0; i < a->n_choices; i++)
        expected_free(&a->expected[i]);
    free(a->question.prompt);
    free(a->text);
    free(a);
}

static struct ask **find(struct connection *c, struct span id)
{
    struct ask **at = &c->asks;
    while (*at != NULL && !span_is(id, (*at)->id))
        at = &(*at)->next;
    sim_demand(*at != NULL, "a message about request \"%.*s\", which is over or never was", (int)id.n,
               (const char *)id.at);
    return at;
}

static void drop(struct connection *c, struct ask **at)
{
    struct ask *a = *at;
    *at = a->next;
    c->n_open--;
    report_ended(a);
    ask_free(a);
}

void ask_expect(struct ask *a)
{
    struct question *q = &a->question;
    a->is_expected = true;
    report_began(a);
    if (q->n_prompt >= sim.plan.context_tokens)
        return;
    if (!a->cache_off)
        oracle_note(a->scope, q->prompt, 0, q->n_prompt);
    for (uint32_t i = 0; i < a->n_choices; i++) {
        int32_t tokens[ORACLE_TOKENS_MAX];
        oracle_answer(q, i, &a->expected[i]);
        memcpy(tokens, q->prompt, q->n_prompt * sizeof(*tokens));
        memcpy(tokens + q->n_prompt, a->expected[i].ids, a->expected[i].n_ids * sizeof(*tokens));
        if (!a->cache_off)
            oracle_note(a->scope, tokens, q->n_prompt, q->n_prompt + a->expected[i].n_ids);
    }
}

static void on_accepted(struct ask *a, uint64_t seed, struct span name)
{
    sim_demand(!a->accepted, "request %s was accepted twice", a->id);
    sim_demand(!a->has_seed || seed == a->question.sampling.seed, "request %s has another seed", a->id);
    sim_demand(name.n < sizeof(a->name), "request %s was given a name of %zu bytes", a->id, name.n);
    memcpy(a->name, name.at, name.n);
    a->name[name.n] = '\0';
    a->accepted = true;
    a->question.sampling.seed = seed;
    if (!a->is_expected)
        ask_expect(a);
}

static void on_token(struct ask *a, const struct wire_token *t)
{
    a->was_running = true;
    sim_demand(a->accepted && t->choice < a->n_choices, "request %s: token of choice %u", a->id, t->choice);
    struct got *g = &a->got[t->choice];
    const struct expected *e = &a->expected[t->choice];
    sim_demand(t->index == g->n_ids, "request %s choice %u: token %u comes after %u tokens", a->id, t->choice,
               t->index, g->n_ids);
    sim_demand(t->n_ids <= e->n_ids - g->n_ids, "request %s choice %u: %u tokens too many", a->id, t->choice,
               t->n_ids);
    for (uint32_t i = 0; i < t->n_ids; i++)
        sim_demand(t->ids[i] == e->ids[g->n_ids + i],
                   "request %s choice %u: token %u is %d, undisturbed it is %d", a->id, t->choice,
                   g->n_ids + i, t->ids[i], e->ids[g->n_ids + i]);
    sim_demand(t->text.n <= e->n_text - g->n_text &&
                   (t->text.n == 0 || memcmp(t->text.at, e->text + g->n_text, t->text.n) == 0),
               "request %s choice %u: text after byte %u is not that of an undisturbed run", a->id, t->choice,
               g->n_text);
    sim_demand(!a->logprobs || t->n_ids == 0 || t->logprobs != NULL, "request %s: no log-probabilities",
               a->id);
    for (uint32_t i = 0; t->logprobs != NULL && i < t->n_ids; i++)
        sim_demand(t->logprobs[i].chosen.id == t->ids[i] && t->logprobs[i].n_top == a->n_logprobs,
                   "request %s: log-probabilities of another token", a->id);
    g->n_ids += t->n_ids;
    g->n_text += (uint32_t)t->text.n;
}

/* Itself is one that knows its prompt; after a takeover it may find in the host store what it left there before. */
static void check_cached(const struct ask *a, uint32_t n_cached, uint32_t n_takeovers)
{
    const struct question *q = &a->question;
    uint32_t others = n_takeovers > 0 && fault_is_on(FAULT_STORE) ? 1 : 2;
    uint32_t known = a->cache_off ? 0 : oracle_known(a->scope, q->prompt, q->n_prompt - 1, others);
    sim_demand(n_cached <= known,
               "request %s: %u tokens of its prompt came from the cache, but no other request of its scope "
               "had more than %u",
               a->id, n_cached, known);
    sim.seen.cached += n_cached;
}

static void on_done(struct ask *a, const struct wire_done *d)
{
    uint32_t n_tokens = 0;
    sim_demand(a->accepted && a->question.n_prompt < sim.plan.context_tokens, "request %s cannot be done",
               a->id);
    sim_demand(d->n_choices == a->n_choices && d->prompt_tokens == a->question.n_prompt,
               "request %s: done has other counts", a->id);
    for (uint32_t i = 0; i < a->n_choices; i++) {
        const struct expected *e = &a->expected[i];
        const struct wire_choice_end *c = &d->choices[i];
        sim_demand(a->got[i].n_ids == e->n_ids && a->got[i].n_text == e->n_text && c->n_tokens == e->n_ids,
                   "request %s choice %u is done after %u of %u tokens, %u of %u bytes", a->id, i,
                   a->got[i].n_ids, e->n_ids, a->got[i].n_text, e->n_text);
        sim_demand(c->reason == e->reason && c->stop_index == e->stop_index,
                   "request %s choice %u ended with %d/%d, undisturbed %d/%d", a->id, i, (int)c->reason,
                   c->stop_index, (int)e->reason, e->stop_index);
        n_tokens += e->n_ids;
    }
    sim_demand(d->completion_tokens == n_tokens, "request %s: done counts %u tokens of %u", a->id,
               d->completion_tokens, n_tokens);
    check_cached(a, d->cached_tokens, d->takeovers);
    sim.seen.preemptions += d->preemptions;
    sim.seen.tokens += n_tokens;
    sim.seen.done++;
    clients_remember(a);
}

static bool may_fail_so(const struct ask *a, enum error_code code)
{
    bool in_time;
    switch (code) {
    case ERR_CANCELLED:
        return a->cancel_sent || a->may_be_moved;
    case ERR_KEY_CONFLICT:
        return a->may_conflict;
    case ERR_SHUTTING_DOWN: /* what runs has its time to end */
        return side_drains(&in_time) && (!a->was_running || !in_time);
    case ERR_DEADLINE_EXCEEDED:
        return a->deadline_ms > 0 && sim.now_ns - a->sent_ns >= a->deadline_ms * 1000000;
    case ERR_WORKER_KILLER:
        return a->poison;
    case ERR_CONTEXT_OVERFLOW:
        return a->question.n_prompt >= sim.plan.context_tokens;
    case ERR_SLOW_READER:
        return fault_is_on(FAULT_SLOW);
    case ERR_NO_WORKER:
        return fault_is_on(FAULT_START);
    default:
        return false;
    }
}

static void on_error(struct ask *a, const struct error *e, uint32_t retry_after_ms)
{
    sim_demand(may_fail_so(a, e->code), "request %s ended with %s: %s", a->id, error_code_name(e->code),
               e->message);
    sim_demand(retry_after_ms > 0 || (e->code != ERR_SHUTTING_DOWN && e->code != ERR_BUSY), "request %s: %s, and no word of when to try again",
               a->id, error_code_name(e->code));
    sim.seen.errors++;
    sim.seen.cancelled += e->code == ERR_CANCELLED;
    sim.seen.blamed += e->code == ERR_WORKER_KILLER;
}

void reply_take(struct connection *c, struct span body)
{
    struct wire_message m;
    struct error err = {0};
    enum status st = wire_decode_reply(body, &m, &err);
    sim_demand(st == ST_OK, "the broker sent something that is no message: %s", err.message);
    if (report_take(c, m.id, &m, body)) {
        wire_message_deinit(&m);
        return;
    }
    struct ask **at = find(c, m.id), *a = *at;
    switch (m.type) {
    case WIRE_ACCEPTED:
        on_accepted(a, m.accepted.seed, m.accepted.request);
        break;
    case WIRE_PROGRESS:
        sim_demand(a->accepted, "request %s makes progress before it is accepted", a->id);
        a->was_running = a->was_running || m.progress.running;
        break;
    case WIRE_TOKEN:
        on_token(a, &m.token);
        break;
    case WIRE_DONE:
        on_done(a, &m.done);
        report_ask(c, a, &m.done);
        trace("client %u done %s", a->connection, a->id);
        drop(c, at);
        break;
    case WIRE_ERROR:
        on_error(a, &m.error.error, m.error.retry_after_ms);
        trace("client %u error %s %s", a->connection, a->id, error_code_name(m.error.error.code));
        drop(c, at);
        break;
    default:
        sim_fail("the broker sent a message of type %d, which nobody asked for", (int)m.type);
    }
    wire_message_deinit(&m);
}
