/* report_trace.c - the answer to `trace`: the timeline of a request that runs or ended not long ago, or a list of them.
 *
 * A user is told of the own requests only, and of others' not even that they exist; an administrator of all. */
#include "broker.h"

#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "utf8.h"

enum { TRACE_LIST_MAX = 50 };

static struct trace trace_of(const struct broker *b, const struct request *r)
{
    struct trace t = {.number = r->number,
                      .model = r->model,
                      .worker = r->worker,
                      .batch = r->batch,
                      .tokenize = r->kind == WORK_TOKENIZE,
                      .prompt_tokens = r->prompt_tokens,
                      .cached_tokens = r->cached_tokens,
                      .completion_tokens = request_completion_tokens(r),
                      .takeovers = r->takeovers,
                      .preemptions = r->preemptions,
                      .arrived_ns = r->arrived_ns,
                      .first_token_ns = r->first_token_ns,
                      .times = r->times,
                      .run = r->run};

    t.state = r->end == END_DONE     ? TRACE_DONE
              : r->end == END_ERROR  ? TRACE_ERROR
              : request_in_worker(r) ? TRACE_RUNNING
                                     : TRACE_QUEUED;
    t.error = r->end == END_ERROR ? r->error.code : ERR_NONE;
    memcpy(t.user, b->accounts.list[r->account].name, sizeof(t.user));
    for (uint32_t i = 0; i < r->n_choices; i++)
        t.last_token_ns =
            r->choices[i].last_token_ns > t.last_token_ns ? r->choices[i].last_token_ns : t.last_token_ns;
    if (request_in_worker(r))
        worker_link_trace(&b->workers[r->worker].link, r->slot, &t.run);
    return t;
}

void trace_keep(struct broker *b, const struct request *r)
{
    struct trace t = trace_of(b, r);

    if (t.times.told_ns == 0) /* nobody was there to tell */
        t.times.told_ns = t.times.ended_ns;
    traces_keep(&b->traces, &t);
}

/* --- finding ---------------------------------------------------------------------------------- */

static bool may_see(const struct trace *t, const char *user)
{
    return user == NULL || strcmp(t->user, user) == 0;
}

/* BOOT-NUMBER, as `accepted` has it, or the number alone. */
static bool read_name(const struct broker *b, struct span name, uint64_t *ret_number)
{
    size_t boot = strlen(b->boot);
    uint64_t number = 0;

    if (name.n > boot && memcmp(name.at, b->boot, boot) == 0 && name.at[boot] == '-')
        name = span_of(name.at + boot + 1, name.n - boot - 1);
    if (name.n == 0 || name.n > 19)
        return false;
    for (size_t i = 0; i < name.n; i++) {
        if (name.at[i] < '0' || name.at[i] > '9')
            return false;
        number = number * 10 + (uint64_t)(name.at[i] - '0');
    }
    *ret_number = number;
    return true;
}

static bool find(const struct broker *b, uint64_t number, struct trace *ret_trace)
{
    for (uint32_t i = 0; i < REQUESTS_MAX; i++)
        if (b->requests.list[i].phase != REQUEST_FREE && b->requests.list[i].number == number) {
            *ret_trace = trace_of(b, &b->requests.list[i]);
            return true;
        }
    for (int batch = 0; batch < 2; batch++) {
        const struct trace *t;

        for (uint32_t k = 0; (t = traces_youngest(&b->traces, batch, k)) != NULL; k++)
            if (t->number == number) {
                *ret_trace = *t;
                return true;
            }
    }
    return false;
}

/* --- telling ---------------------------------------------------------------------------------- */

static void put_ms(struct wire_buffer *o, const char *key, uint64_t ns)
{
    wire_put_f64(o, key, (double)ns / 1e6);
}

static void put_head(const struct broker *b, struct wire_buffer *o, const struct trace *t, uint64_t now_ns)
{
    static const char *const states[] = {[TRACE_QUEUED] = "queued",
                                         [TRACE_RUNNING] = "running",
                                         [TRACE_DONE] = "done",
                                         [TRACE_ERROR] = "error"};
    uint64_t end = t->times.told_ns != 0 ? t->times.told_ns : now_ns;
    char name[40];
    int n = snprintf(name, sizeof(name), "%s-%llu", b->boot, (unsigned long long)t->number);

    wire_put_str(o, "request", span_of(name, (size_t)n));
    wire_put_str(o, "user", span_str(t->user));
    wire_put_str(o, "model", span_str(b->models[t->model].name));
    wire_put_str(o, "kind", span_str(t->tokenize ? "tokenize" : "generate"));
    wire_put_str(o, "class", span_str(t->batch ? "batch" : "interactive"));
    wire_put_str(o, "state", span_str(states[t->state]));
    if (t->state == TRACE_ERROR)
        wire_put_str(o, "error", span_str(error_code_name(t->error)));
    if (t->worker >= 0)
        wire_put_u64(o, "worker", (uint64_t)t->worker);
    wire_put_u64(o, "prompt_tokens", t->prompt_tokens);
    wire_put_u64(o, "cached_tokens", t->cached_tokens);
    wire_put_u64(o, "completion_tokens", t->completion_tokens);
    wire_put_u64(o, "takeovers", t->takeovers);
    wire_put_u64(o, "preemptions", t->preemptions);
    put_ms(o, "age_ms", now_ns > t->arrived_ns ? now_ns - t->arrived_ns : 0);
    put_ms(o, "total_ms", end > t->arrived_ns ? end - t->arrived_ns : 0);
}

static void put_phases(struct wire_buffer *o, const struct trace *t, uint64_t now_ns)
{
    struct trace_phase phases[TRACE_PHASES];

    trace_phases(t, now_ns, phases);
    wire_array_begin(o, "phases");
    for (int i = 0; i < TRACE_PHASES; i++) {
        if (!phases[i].reached && phases[i].took_ns == 0)
            continue;
        wire_map_begin(o, NULL);
        wire_put_str(o, "name", span_str(trace_phase_name((enum trace_phase_name)i)));
        put_ms(o, "start_ms", phases[i].began_ns - t->arrived_ns);
        put_ms(o, "ms", phases[i].took_ns);
        wire_end(o);
    }
    wire_end(o);
}

static void put_work(struct wire_buffer *o, const struct trace *t)
{
    uint64_t n = t->run.chunks < TRACE_CHUNKS ? t->run.chunks : TRACE_CHUNKS;

    put_ms(o, "tokenize_ms", t->run.tokenize_ns);
    wire_put_u64(o, "chunks_total", t->run.chunks);
    put_ms(o, "chunks_ms", t->run.chunk_ns);
    wire_put_u64(o, "steps", t->run.steps);
    put_ms(o, "steps_ms", t->run.step_ns);
    wire_array_begin(o, "chunks");
    for (uint64_t i = 0; i < n; i++) {
        const struct link_chunk *c = &t->run.chunk[i];

        wire_map_begin(o, NULL);
        put_ms(o, "start_ms", c->began_ns > t->arrived_ns ? c->began_ns - t->arrived_ns : 0);
        put_ms(o, "ms", c->took_ns);
        wire_put_u64(o, "rows", c->rows);
        wire_end(o);
    }
    wire_end(o);
}

static void begin(struct broker *b, struct span id)
{
    wire_map_begin(&b->out, NULL);
    wire_put_str(&b->out, "type", span_str("trace"));
    if (utf8_valid(id))
        wire_put_str(&b->out, "id", id);
    wire_array_begin(&b->out, "requests");
}

static void end(struct broker *b)
{
    wire_end(&b->out);
    wire_end(&b->out);
}

static void put_line(struct broker *b, const struct trace *t, uint64_t now_ns)
{
    wire_map_begin(&b->out, NULL);
    put_head(b, &b->out, t, now_ns);
    wire_end(&b->out);
}

/* Those under way first, then the ended ones of both classes, youngest first. */
static void report_list(struct broker *b, struct span id, const char *user, uint64_t now_ns)
{
    uint32_t n = 0, at[2] = {0};

    begin(b, id);
    for (uint32_t i = 0; i < REQUESTS_MAX && n < TRACE_LIST_MAX; i++) {
        if (b->requests.list[i].phase == REQUEST_FREE)
            continue;
        struct trace t = trace_of(b, &b->requests.list[i]);
        if (!may_see(&t, user))
            continue;
        put_line(b, &t, now_ns);
        n++;
    }
    while (n < TRACE_LIST_MAX) {
        const struct trace *t[2] = {traces_youngest(&b->traces, false, at[0]),
                                    traces_youngest(&b->traces, true, at[1])};
        int class = t[1] == NULL ? 0 : t[0] == NULL || t[1]->times.told_ns > t[0]->times.told_ns;

        if (t[class] == NULL)
            break;
        at[class]++;
        if (!may_see(t[class], user))
            continue;
        put_line(b, t[class], now_ns);
        n++;
    }
    end(b);
}

bool report_trace(struct broker *b, struct span id, struct span name, const char *user)
{
    uint64_t number = 0, now_ns = clock_now_ns();
    struct trace t;

    if (name.n == 0) {
        report_list(b, id, user, now_ns);
        return true;
    }
    if (!read_name(b, name, &number) || !find(b, number, &t) || !may_see(&t, user))
        return false;
    begin(b, id);
    wire_map_begin(&b->out, NULL);
    put_head(b, &b->out, &t, now_ns);
    put_phases(&b->out, &t, now_ns);
    put_work(&b->out, &t);
    wire_end(&b->out);
    end(b);
    return true;
}
