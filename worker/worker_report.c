/* worker_report.c - what a worker says of itself: the card, once, and the page of statistics, every pass. */
#include "worker_internal.h"

#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "version.h"

static void put(_Atomic uint64_t *field, uint64_t value)
{
    atomic_store_explicit(field, value, memory_order_relaxed);
}

void worker_report_step(struct worker *w, uint64_t began_ns)
{
    put(&w->region->stats->heartbeat_ns, began_ns);
    put(&w->region->stats->step_began_ns, began_ns);
}

static void count(_Atomic uint64_t *field, uint64_t n)
{
    put(field, atomic_load_explicit(field, memory_order_relaxed) + n); /* one writer */
}

void worker_report_batch(struct worker *w, uint32_t n_sequences, uint64_t step_ns)
{
    struct region_stats *s = w->region->stats;
    int batch = 0, time = 0;

    while (batch < STEP_BATCH_BOUNDS && n_sequences > step_batch_bounds[batch])
        batch++;
    while (time < STEP_TIME_BOUNDS && step_ns > step_time_bounds_us[time] * UINT64_C(1000))
        time++;
    count(&s->batches[batch], 1);
    count(&s->batch_sum, n_sequences);
    count(&s->times[time], 1);
}

/* Requests of which no sequence has run yet: with the tokenizer, or waiting for a place. */
static uint32_t n_not_started(const struct worker *w)
{
    uint32_t n = 0, n_left = w->n_requests;
    for (uint32_t i = 0; i < REGION_SLOTS && n_left > 0; i++) {
        if (w->slots[i].request == NULL)
            continue;
        n_left--;
        n += !w->slots[i].started;
    }
    return n;
}

void worker_report(struct worker *w, uint64_t now_ns)
{
    struct region_stats *s = w->region->stats;
    struct scheduler_counters c = scheduler_counters(w->scheduler);
    struct scheduler_levels l = scheduler_levels(w->scheduler);
    struct kv_counts kv = scheduler_kv_counts(w->scheduler);
    struct eviction_counts ev = scheduler_evictions(w->scheduler);

    put(&s->step_began_ns, 0);
    put(&s->heartbeat_ns, now_ns);
    put(&s->steps, w->totals.steps);
    put(&s->step_ns, w->totals.step_ns);
    put(&s->prefill_tokens, c.prefill_tokens);
    put(&s->cached_tokens, c.cached_tokens);
    put(&s->decode_tokens, c.decode_tokens);
    put(&s->requests_started, w->totals.requests_started);
    put(&s->requests_ended, w->totals.requests_ended);
    put(&s->preemptions, c.preemptions);
    put(&s->evictions, ev.for_space);
    put(&s->evictions_stored, ev.stored);
    put(&s->tails_superseded, ev.superseded);
    put(&s->eviction_age_ns, ev.age_ns);
    put(&s->sessions_yielded, scheduler_sessions_yielded(w->scheduler));
    put(&s->running_seqs, l.n_running);
    put(&s->waiting_requests, n_not_started(w));
    put(&s->waiting_tokens, l.tokens_behind);
    put(&s->blocks_free, kv.n_free);
    put(&s->blocks_pinned, kv.n_pinned);
    put(&s->blocks_cached, kv.n_cached);
    if (w->store == NULL)
        return;
    struct host_store_counts hs = host_store_counts(w->store);
    put(&s->store_hits, hs.hits_own);
    put(&s->store_hits_other, hs.hits_other);
    put(&s->store_refused, hs.refused);
    put(&s->store_puts, hs.puts);
    put(&s->store_evictions, hs.evictions);
    put(&s->store_blocks, hs.n_used);
    put(&s->store_blocks_max, hs.n_slots);
}

/* Copy text into a fixed field: whole UTF-8 characters, control characters left out. */
static void put_text(char *field, size_t field_bytes, struct span text)
{
    size_t n = 0;
    text.n = text.n < field_bytes - 1 ? text.n : field_bytes - 1;
    text.n = utf8_valid_prefix(text);
    memset(field, 0, field_bytes);
    for (size_t i = 0; i < text.n; i++)
        if (text.at[i] >= 0x20 && text.at[i] != 0x7f)
            field[n++] = (char)text.at[i];
}

static void put_name(struct worker *w, const char *name, struct region_card *card)
{
    struct span text = span_str(name != NULL ? name : "");
    struct error err;
    if (text.n == 0 && gguf_string(w->engine->gguf, "general.name", &text, &err) != ST_OK)
        text = span_str(gguf_name(w->engine->gguf));
    put_text(card->model_name, sizeof(card->model_name), text);
}

void worker_announce(struct worker *w, const char *name)
{
    const struct engine *e = w->engine;
    struct region_card *card = w->region->card;

    *card = (struct region_card){
        .abi = BACKEND_ABI,
        .ready = 1,
        .context_tokens = e->sizes.context_tokens,
        .n_vocab = e->model->n_vocab,
        .n_blocks = e->sizes.n_blocks,
        .block_bytes = e->memory.block_bytes,
        .max_seqs = e->sizes.max_seqs,
        .max_rows = e->sizes.max_rows,
        .n_threads = e->info.n_threads,
        .bos_token = tokenizer_bos(e->tokenizer),
        .eos_token = tokenizer_eos(e->tokenizer),
        .weight_bytes = e->memory.weights,
        .kv_bytes = e->memory.kv,
    };
    put_text(card->numerics_id, sizeof(card->numerics_id), span_str(e->info.numerics_id));
    put_text(card->device, sizeof(card->device), span_str(e->info.device));
    put_text(card->architecture, sizeof(card->architecture), span_str(model_arch_name(e->model->arch)));
    put_text(card->build_id, sizeof(card->build_id), span_str(version_build_id()));
    if (e->chat.format != CHAT_UNKNOWN)
        put_text(card->chat_template, sizeof(card->chat_template), span_str(chat_template_name(&e->chat)));
    put_name(w, name, card);
    worker_report(w, clock_now_ns());
    outbox_ready(&w->outbox, true);
    outbox_flush(&w->outbox);
}

void worker_announce_failure(struct region *region, const struct error *err)
{
    char text[ERROR_MESSAGE_BYTES];
    struct outbox o = { .ring = &region->events, .bell = &region->event_bell };
    if (err->param[0] != '\0')
        snprintf(text, sizeof(text), "%s: %.270s (%s)", error_code_name(err->code), err->message, err->param);
    else
        snprintf(text, sizeof(text), "%s: %.360s", error_code_name(err->code), err->message);
    region->card->abi = BACKEND_ABI;
    region->card->ready = 0;
    put_text(region->card->error, sizeof(region->card->error), span_str(text));
    put_text(region->card->build_id, sizeof(region->card->build_id), span_str(version_build_id()));
    outbox_ready(&o, false);
    outbox_flush(&o);
}
