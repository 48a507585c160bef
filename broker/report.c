/* report.c - what the broker tells about itself: hello, models, status, the answer to an order by hand.  docs/protocol.md describes every field.
 *
 * Status shows how busy the pool is, to everybody: sums over all users, never a text.  A user's row is for that user, administrators and
 * front ends: how much of it the cache had says something of what was asked.  Workers' numbers come from their pages
 * of statistics as they are; a field is one relaxed load, so two of them need not fit each other to the last digit. */
#include "broker.h"

#include "utf8.h"
#include "version.h"

static void begin(struct broker *b, const char *type)
{
    wire_map_begin(&b->out, NULL);
    wire_put_str(&b->out, "type", span_str(type));
}

/* An id that is no text is not repeated: these replies are free-form maps, and there is one of each kind under way at most. */
static void put_id(struct wire_buffer *o, struct span id)
{
    if (utf8_valid(id))
        wire_put_str(o, "id", id);
}

static void put_limits(struct wire_buffer *o)
{
    wire_map_begin(o, "limits");
    wire_put_u64(o, "frame_bytes", FRAME_BYTES_MAX);
    wire_put_u64(o, "prompt_bytes", PROMPT_BYTES_MAX);
    wire_put_u64(o, "prompt_ids", PROMPT_IDS_MAX);
    wire_put_u64(o, "messages", MESSAGES_MAX);
    wire_put_u64(o, "choices", CHOICES_MAX);
    wire_put_u64(o, "stops", STOPS_MAX);
    wire_put_u64(o, "stop_bytes", STOP_BYTES_MAX);
    wire_put_u64(o, "logit_bias", LOGIT_BIAS_MAX);
    wire_put_u64(o, "logprobs", LOGPROBS_MAX);
    wire_put_u64(o, "id_bytes", CLIENT_ID_BYTES_MAX);
    wire_put_u64(o, "max_tokens", OUTPUT_TOKENS_MAX);
    wire_put_u64(o, "requests", REQUESTS_MAX);
    wire_put_u64(o, "user_requests", USER_REQUESTS_MAX);
    wire_put_u64(o, "probe_ms", CLIENT_PROBE_MS);
    wire_end(o);
}

void report_hello(struct broker *b, const char *user)
{
    static const char *const features[] = { "generate", "tokenize", "cancel", "resume", "logprobs", "takeover", "idempotency", "sessions", "workers", "trace" };
    struct wire_buffer *o = &b->out;

    begin(b, "hello");
    wire_put_str(o, "version", span_str(version_text()));
    wire_put_str(o, "build", span_str(version_build_id()));
    wire_put_u64(o, "protocol_major", WIRE_MAJOR);
    wire_put_u64(o, "protocol_minor", WIRE_MINOR);
    wire_put_str(o, "boot", span_str(b->boot));
    wire_put_str(o, "user", span_str(user));
    put_limits(o);
    wire_array_begin(o, "features");
    for (size_t i = 0; i < sizeof(features) / sizeof(features[0]); i++)
        wire_put_str(o, NULL, span_str(features[i]));
    wire_end(o);
    wire_end(o);
}

void report_models(struct broker *b, struct span id)
{
    struct wire_buffer *o = &b->out;

    begin(b, "models");
    put_id(o, id);
    wire_array_begin(o, "models");
    for (uint32_t i = 0; i < b->n_models; i++) {
        const struct region_card *card = NULL;
        uint32_t n_workers = 0, n_ready = 0;

        for (uint32_t k = 0; k < b->n_workers; k++) {
            const struct worker *w = &b->workers[k];

            if (w->model != i || w->order == ORDER_GONE)
                continue;
            n_workers++;
            n_ready += w->state == WORKER_READY;
            if (w->has_card && (card == NULL || w->state == WORKER_READY))
                card = &w->card;
        }
        wire_map_begin(o, NULL);
        wire_put_str(o, "name", span_str(b->models[i].name));
        wire_put_bool(o, "default", i == 0);
        wire_put_u64(o, "workers", n_workers);
        wire_put_u64(o, "workers_ready", n_ready);
        if (card != NULL) {
            wire_put_str(o, "title", span_str(card->model_name));
            wire_put_str(o, "architecture", span_str(card->architecture));
            wire_put_u64(o, "context_tokens", card->context_tokens);
            wire_put_u64(o, "vocabulary", card->n_vocab);
            wire_put_str(o, "chat_template", span_str(card->chat_template));
            wire_put_str(o, "system_fingerprint", span_str(card->numerics_id));
        }
        wire_end(o);
    }
    wire_end(o);
    wire_end(o);
}

static double share_of(uint64_t part, uint64_t whole)
{
    return whole > 0 ? (double)part / (double)whole : 0;
}

static void put_running_worker(const struct broker *b, struct wire_buffer *o, const struct worker *w)
{
    struct worker_stats s;

    worker_link_stats(&w->link, &s);
    wire_put_u64(o, "pid", (uint64_t)w->pid);
    wire_put_u64(o, "running", s.running_seqs);
    wire_put_u64(o, "waiting", s.waiting_requests);
    wire_put_u64(o, "blocks_total", w->card.n_blocks);
    wire_put_u64(o, "blocks_free", s.blocks_free);
    wire_put_u64(o, "blocks_pinned", s.blocks_pinned);
    wire_put_u64(o, "blocks_cached", s.blocks_cached);
    wire_put_u64(o, "block_bytes", w->card.block_bytes);
    wire_put_u64(o, "steps", s.steps);
    wire_put_f64(o, "step_ms_mean", s.steps > 0 ? (double)s.step_ns / 1e6 / (double)s.steps : 0);
    wire_put_u64(o, "tokens_generated", s.decode_tokens);
    wire_put_u64(o, "tokens_prefilled", s.prefill_tokens);
    wire_put_u64(o, "tokens_cached", s.cached_tokens);
    wire_put_u64(o, "preemptions", s.preemptions);
    wire_put_f64(o, "hit_rate", share_of(s.cached_tokens, s.cached_tokens + s.prefill_tokens));
    wire_put_u64(o, "evictions", s.evictions);
    wire_put_u64(o, "evictions_stored", s.evictions_stored);
    wire_put_u64(o, "tails_superseded", s.tails_superseded);
    wire_put_f64(o, "eviction_age_ms_mean", s.evictions > 0 ? (double)s.eviction_age_ns / 1e6 / (double)s.evictions : 0);
    wire_put_u64(o, "sessions_yielded", s.sessions_yielded);
    wire_put_u64(o, "store_blocks", s.store_blocks);
    wire_put_u64(o, "store_blocks_max", s.store_blocks_max);
    wire_put_u64(o, "store_hits", s.store_hits);
    wire_put_u64(o, "store_hits_other", s.store_hits_other);
    wire_put_u64(o, "store_refused", s.store_refused);
    wire_put_u64(o, "store_puts", s.store_puts);
    wire_put_u64(o, "store_evictions", s.store_evictions);
    wire_put_f64(o, "up_s", (double)(b->now_ns - w->state_since_ns) / 1e9);
}

static void put_worker(const struct broker *b, struct wire_buffer *o, const struct worker *w)
{
    wire_map_begin(o, NULL);
    wire_put_u64(o, "slot", w->slot);
    wire_put_str(o, "state", span_str(w->released && w->state == WORKER_STOPPED ? "released" : worker_state_name(w->state)));
    wire_put_str(o, "order", span_str(worker_order_name(w->order)));
    wire_put_str(o, "model", span_str(b->models[w->model].name));
    wire_put_str(o, "device", span_str(w->has_card ? w->card.device : w->device));
    wire_put_u64(o, "life", w->life);
    wire_put_u64(o, "restarts", w->restarts);
    wire_put_u64(o, "threads", w->has_card ? w->card.n_threads : b->supervision.threads);
    wire_put_u64(o, "held", w->link.open ? w->link.n_held : 0);
    wire_put_bool(o, "alone", w->alone_request >= 0);
    if (w->has_card)
        wire_put_str(o, "system_fingerprint", span_str(w->card.numerics_id));
    if (w->state == WORKER_READY || w->state == WORKER_LEAVING)
        put_running_worker(b, o, w);
    else if (w->state == WORKER_STARTING)
        wire_put_u64(o, "pid", (uint64_t)w->pid);
    else if (w->state == WORKER_WAITING && w->start_due_ns > b->now_ns)
        wire_put_u64(o, "start_in_ms", (w->start_due_ns - b->now_ns) / 1000000);
    if (w->error[0] != '\0') {
        wire_put_str(o, "error", span_str(w->error));
    } else if (supervisor_is_silent(w)) {
        char silent[ERROR_MESSAGE_BYTES];

        snprintf(silent, sizeof(silent), "no sign of life for %.0f s; it is started again after %.0f s", (double)w->silent_ns / 1e9,
                 (double)b->options->hang_ms / 1e3);
        wire_put_str(o, "error", span_str(silent));
    }
    wire_end(o);
}

/* Models with queued requests, and what those wait for. */
static void put_queues(const struct broker *b, struct wire_buffer *o)
{
    uint32_t n_queued[MODELS_MAX] = { 0 };
    char reason[ERROR_MESSAGE_BYTES];

    for (uint32_t i = 0; b->requests.n_live > 0 && i < REQUESTS_MAX; i++)
        if (b->requests.list[i].phase == REQUEST_QUEUED)
            n_queued[b->requests.list[i].model]++;
    wire_array_begin(o, "queues");
    for (uint32_t i = 0; i < b->n_models; i++) {
        if (n_queued[i] == 0)
            continue;
        admin_waits_for(b, i, reason);
        wire_map_begin(o, NULL);
        wire_put_str(o, "model", span_str(b->models[i].name));
        wire_put_u64(o, "queued", n_queued[i]);
        wire_put_str(o, "waits_for", span_str(reason));
        wire_end(o);
    }
    wire_end(o);
}

static void put_devices(const struct broker *b, struct wire_buffer *o)
{
    struct device_numbers d[DEVICES_MAX];
    uint32_t n = devices_look(b->devices, d);

    wire_array_begin(o, "devices");
    for (uint32_t i = 0; i < n; i++) {
        wire_map_begin(o, NULL);
        wire_put_u64(o, "index", i);
        wire_put_str(o, "name", span_str(d[i].name));
        if (d[i].utilization >= 0)
            wire_put_f64(o, "utilization", d[i].utilization);
        if (d[i].memory_size > 0) {
            wire_put_u64(o, "memory_used", d[i].memory_used);
            wire_put_u64(o, "memory_size", d[i].memory_size);
        }
        wire_end(o);
    }
    wire_end(o);
}

static void put_users(const struct broker *b, struct wire_buffer *o, const char *only_user)
{
    wire_array_begin(o, "users");
    for (uint32_t i = 0; i < b->accounts.n; i++) {
        const struct account *a = &b->accounts.list[i];

        if (only_user != NULL && strcmp(a->name, only_user) != 0)
            continue;
        wire_map_begin(o, NULL);
        wire_put_str(o, "name", span_str(a->name));
        wire_put_u64(o, "queued", a->n_live > a->n_running ? a->n_live - a->n_running : 0);
        wire_put_u64(o, "running", a->n_running);
        wire_put_u64(o, "requests", a->n_requests);
        wire_put_u64(o, "prompt_tokens", a->prompt_tokens);
        wire_put_u64(o, "cached_tokens", a->cached_tokens);
        wire_put_f64(o, "hit_rate", share_of(a->cached_tokens, a->prompt_tokens));
        wire_put_f64(o, "queue_ms_mean", a->n_dispatched > 0 ? (double)a->queue_ns / 1e6 / (double)a->n_dispatched : 0);
        wire_put_u64(o, "preemptions", a->n_preemptions);
        wire_put_u64(o, "completion_tokens", a->completion_tokens);
        wire_end(o);
    }
    wire_end(o);
}

static void put_pool(const struct broker *b, struct wire_buffer *o)
{
    uint32_t n_running = 0;

    for (uint32_t i = 0; i < b->accounts.n; i++)
        n_running += b->accounts.list[i].n_running;
    wire_map_begin(o, "pool");
    wire_put_u64(o, "requests", b->requests.n_live);
    wire_put_u64(o, "running", n_running);
    wire_put_u64(o, "queued_interactive", fair_queue_length(b->queue, QUEUE_INTERACTIVE));
    wire_put_u64(o, "queued_batch", fair_queue_length(b->queue, QUEUE_BATCH));
    wire_put_u64(o, "queued_resumed", fair_queue_length(b->queue, QUEUE_RESUMED));
    wire_put_u64(o, "clients", b->clients.n);
    wire_put_u64(o, "sessions", b->sessions.n);
    wire_put_u64(o, "kept_answers", keys_numbers(b->keys).n_kept);
    wire_put_u64(o, "kept_bytes", keys_numbers(b->keys).bytes);
    wire_put_u64(o, "bytes", b->requests.bytes);
    wire_put_u64(o, "bytes_max", b->options->pool_bytes);
    wire_end(o);
    wire_map_begin(o, "totals");
    wire_put_u64(o, "accepted", b->totals.accepted);
    wire_put_u64(o, "done", b->totals.done);
    wire_put_u64(o, "failed", b->totals.failed);
    wire_put_u64(o, "cancelled", b->totals.cancelled);
    wire_put_u64(o, "refused", b->totals.refused);
    wire_put_u64(o, "malformed", b->totals.malformed);
    wire_put_u64(o, "takeovers", b->totals.takeovers);
    wire_put_u64(o, "tokens", b->totals.tokens);
    wire_end(o);
}

void report_admin(struct broker *b, struct span id, uint32_t slot)
{
    struct wire_buffer *o = &b->out;

    begin(b, "admin");
    put_id(o, id);
    wire_put_u64(o, "worker", slot);
    wire_put_str(o, "state", span_str(worker_state_name(b->workers[slot].state)));
    wire_put_str(o, "order", span_str(worker_order_name(b->workers[slot].order)));
    wire_end(o);
}

void report_status(struct broker *b, struct span id, const char *only_user)
{
    static const char *const states[] = { [BROKER_RUNNING] = "running", [BROKER_DRAINING] = "draining", [BROKER_STOPPING] = "stopping" };
    struct wire_buffer *o = &b->out;

    begin(b, "status");
    put_id(o, id);
    wire_put_str(o, "version", span_str(version_text()));
    wire_put_str(o, "build", span_str(version_build_id()));
    wire_put_str(o, "boot", span_str(b->boot));
    wire_put_str(o, "state", span_str(states[b->state]));
    wire_put_f64(o, "up_s", (double)(b->now_ns - b->started_ns) / 1e9);
    put_pool(b, o);
    wire_array_begin(o, "workers");
    for (uint32_t i = 0; i < b->n_workers; i++)
        if (b->workers[i].order != ORDER_GONE)
            put_worker(b, o, &b->workers[i]);
    wire_end(o);
    put_devices(b, o);
    put_queues(b, o);
    put_users(b, o, only_user);
    wire_end(o);
}
