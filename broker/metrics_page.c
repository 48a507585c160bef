/* metrics_page.c - the broker's numbers as a Prometheus page.
 *
 * Names follow Prometheus' rules: a unit as suffix, _total for what only grows.  A worker's counters begin again at zero with each life
 * of its process; Prometheus' rate() knows how to read that. */
#include "broker.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "version.h"

static void put_tcp(const struct broker *b, FILE *f)
{
    struct tcp_door_numbers n = { 0 };

    if (b->endpoint.tcp != NULL)
        n = tcp_door_numbers(b->endpoint.tcp);
    metrics_head(f, "weir_tcp_connections", "gauge", "Connections of clients of other machines, handshakes included.");
    fprintf(f, "weir_tcp_connections %" PRIu32 "\n", n.connections);
    metrics_head(f, "weir_tcp_refused_total", "counter", "Such connections that were refused or ended, by reason.");
    fprintf(f, "weir_tcp_refused_total{reason=\"unknown_key\"} %" PRIu64 "\n", n.refused_keys);
    fprintf(f, "weir_tcp_refused_total{reason=\"user_connections\"} %" PRIu64 "\n", n.refused_users);
    fprintf(f, "weir_tcp_refused_total{reason=\"handshake\"} %" PRIu64 "\n", n.failed_handshakes);
    fprintf(f, "weir_tcp_refused_total{reason=\"silent\"} %" PRIu64 "\n", n.silent);
}

static void put_pool(const struct broker *b, FILE *f)
{
    uint32_t n_running = 0;

    for (uint32_t i = 0; i < b->accounts.n; i++)
        n_running += b->accounts.list[i].n_running;
    metrics_head(f, "weir_build_info", "gauge", "Always 1; the labels say which program runs.");
    fprintf(f, "weir_build_info{version=\"%s\",build=\"%s\"} 1\n", version_text(), version_build_id());
    metrics_head(f, "weir_requests_total", "counter", "Requests by what became of them.");
    fprintf(f, "weir_requests_total{result=\"done\"} %" PRIu64 "\n", b->totals.done);
    fprintf(f, "weir_requests_total{result=\"failed\"} %" PRIu64 "\n", b->totals.failed);
    fprintf(f, "weir_requests_total{result=\"cancelled\"} %" PRIu64 "\n", b->totals.cancelled);
    fprintf(f, "weir_requests_total{result=\"refused\"} %" PRIu64 "\n", b->totals.refused);
    fprintf(f, "weir_requests_total{result=\"malformed\"} %" PRIu64 "\n", b->totals.malformed);
    metrics_head(f, "weir_requests_accepted_total", "counter", "Requests taken into the table.");
    fprintf(f, "weir_requests_accepted_total %" PRIu64 "\n", b->totals.accepted);
    metrics_head(f, "weir_takeovers_total", "counter", "Requests whose worker died and which another took over.");
    fprintf(f, "weir_takeovers_total %" PRIu64 "\n", b->totals.takeovers);
    metrics_head(f, "weir_tokens_generated_total", "counter", "Tokens delivered by workers.");
    fprintf(f, "weir_tokens_generated_total %" PRIu64 "\n", b->totals.tokens);
    metrics_head(f, "weir_queued_requests", "gauge", "Requests that wait for a worker.");
    fprintf(f, "weir_queued_requests{class=\"interactive\"} %" PRIu32 "\n", fair_queue_length(b->queue, QUEUE_INTERACTIVE));
    fprintf(f, "weir_queued_requests{class=\"batch\"} %" PRIu32 "\n", fair_queue_length(b->queue, QUEUE_BATCH));
    fprintf(f, "weir_queued_requests{class=\"resumed\"} %" PRIu32 "\n", fair_queue_length(b->queue, QUEUE_RESUMED));
    metrics_head(f, "weir_running_requests", "gauge", "Requests that workers hold.");
    fprintf(f, "weir_running_requests %" PRIu32 "\n", n_running);
    metrics_head(f, "weir_clients", "gauge", "Connections with requests under way.");
    fprintf(f, "weir_clients %" PRIu32 "\n", b->clients.n);
    metrics_head(f, "weir_held_bytes", "gauge", "Prompts and output that the broker holds.");
    fprintf(f, "weir_held_bytes %" PRIu64 "\n", b->requests.bytes);
    metrics_head(f, "weir_held_limit_bytes", "gauge", "What it may hold at most.");
    fprintf(f, "weir_held_limit_bytes %" PRIu64 "\n", b->options->pool_bytes);
}

static void put_totals(const struct broker *b, FILE *f)
{
    metrics_head(f, "weir_request_errors_total", "counter", "Requests that ended in an error or were refused, by the error's code.");
    for (int i = ERR_NONE + 1; i < ERR_COUNT; i++)
        fprintf(f, "weir_request_errors_total{code=\"%s\"} %" PRIu64 "\n", error_code_name((enum error_code)i), b->totals.errors[i]);
    metrics_head(f, "weir_prompt_tokens_total", "counter", "Prompt tokens of requests that began: the denominator of the cache's hit rate.");
    fprintf(f, "weir_prompt_tokens_total %" PRIu64 "\n", b->totals.prompt_tokens);
    metrics_head(f, "weir_prompt_cached_tokens_total", "counter", "Of them, those that the cache had: the numerator.");
    fprintf(f, "weir_prompt_cached_tokens_total %" PRIu64 "\n", b->totals.cached_tokens);
}

static void put_histogram(FILE *f, const char *name, const char *help, const struct histogram h[2])
{
    metrics_head(f, name, "histogram", help);
    metrics_histogram(f, name, "class=\"interactive\"", &h[0]);
    metrics_histogram(f, name, "class=\"batch\"", &h[1]);
}

static const struct {
    const char *name, *type, *help;
    size_t at; /* of a number in struct worker_stats */
} worker_numbers[] = {
    { "weir_worker_sequences", "gauge", "Sequences that run.", offsetof(struct worker_stats, running_seqs) },
    { "weir_worker_waiting", "gauge", "Sequences that wait in the worker.", offsetof(struct worker_stats, waiting_requests) },
    { "weir_worker_steps_total", "counter", "Forward passes.", offsetof(struct worker_stats, steps) },
    { "weir_worker_decode_tokens_total", "counter", "Tokens sampled.", offsetof(struct worker_stats, decode_tokens) },
    { "weir_worker_prefill_tokens_total", "counter", "Prompt tokens computed.", offsetof(struct worker_stats, prefill_tokens) },
    { "weir_worker_cached_tokens_total", "counter", "Prompt tokens taken from the cache.", offsetof(struct worker_stats, cached_tokens) },
    { "weir_worker_preemptions_total", "counter", "Sequences that made room.", offsetof(struct worker_stats, preemptions) },
    { "weir_worker_evictions_stored_total", "counter", "KV blocks that made room and whose contents the host store kept.",
      offsetof(struct worker_stats, evictions_stored) },
    { "weir_worker_sessions_yielded_total", "counter", "Sessions that gave up their blocks because others needed them.",
      offsetof(struct worker_stats, sessions_yielded) },
    { "weir_worker_store_blocks", "gauge", "KV blocks in its part of the host store.", offsetof(struct worker_stats, store_blocks) },
    { "weir_worker_store_blocks_max", "gauge", "KV blocks its part holds.", offsetof(struct worker_stats, store_blocks_max) },
    { "weir_worker_store_hits_total", "counter", "Blocks that came back from its own part.", offsetof(struct worker_stats, store_hits) },
    { "weir_worker_store_hits_other_total", "counter", "Blocks read from another worker's part.",
      offsetof(struct worker_stats, store_hits_other) },
    { "weir_worker_store_refused_total", "counter", "Blocks found there and not believed.",
      offsetof(struct worker_stats, store_refused) },
    { "weir_worker_store_puts_total", "counter", "Blocks copied to its part.", offsetof(struct worker_stats, store_puts) },
    { "weir_worker_store_evictions_total", "counter", "Blocks dropped from it.", offsetof(struct worker_stats, store_evictions) },
};

/* A worker that is not gone, as the page shows it. */
struct shown_worker {
    const struct worker *worker;
    char labels[NAME_BYTES_MAX + 32]; /* slot="0",model="name" */
    struct worker_stats stats;        /* zeros while no process runs */
};

static uint32_t shown_workers(const struct broker *b, struct shown_worker ret_shown[WORKERS_MAX])
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < b->n_workers; i++) {
        const struct worker *w = &b->workers[i];

        if (w->order == ORDER_GONE)
            continue;
        struct shown_worker *s = &ret_shown[n++];
        *s = (struct shown_worker){ .worker = w };
        snprintf(s->labels, sizeof(s->labels), "slot=\"%" PRIu32 "\",model=\"%s\"", w->slot, b->models[w->model].name);
        if (w->state == WORKER_READY || w->state == WORKER_LEAVING)
            worker_link_stats(&w->link, &s->stats);
    }
    return n;
}

/* The lines of a worker's histogram: n[n_bounds + 1] counts, the bounds in units of `unit`. */
static void put_worker_histogram(FILE *f, const char *name, const char *labels, const uint64_t *n, const uint32_t *bounds, int n_bounds,
                                 double unit, double sum)
{
    uint64_t total = 0;

    for (int i = 0; i < n_bounds; i++) {
        total += n[i];
        fprintf(f, "%s_bucket{%s,le=\"%g\"} %" PRIu64 "\n", name, labels, bounds[i] * unit, total);
    }
    total += n[n_bounds];
    fprintf(f, "%s_bucket{%s,le=\"+Inf\"} %" PRIu64 "\n", name, labels, total);
    fprintf(f, "%s_sum{%s} %.6f\n%s_count{%s} %" PRIu64 "\n", name, labels, sum, name, labels, total);
}

static void put_steps(FILE *f, const struct shown_worker *w, uint32_t n)
{
    metrics_head(f, "weir_worker_step_seconds_total", "counter", "Time in forward passes; by steps: how long one takes.");
    for (uint32_t i = 0; i < n; i++)
        fprintf(f, "weir_worker_step_seconds_total{%s} %.6f\n", w[i].labels, (double)w[i].stats.step_ns / 1e9);
    metrics_head(f, "weir_worker_batch_sequences", "histogram", "Sequences that a forward pass computed.");
    for (uint32_t i = 0; i < n; i++)
        put_worker_histogram(f, "weir_worker_batch_sequences", w[i].labels, w[i].stats.batches, step_batch_bounds, STEP_BATCH_BOUNDS, 1,
                             (double)w[i].stats.batch_sum);
    metrics_head(f, "weir_worker_step_duration_seconds", "histogram", "How long a forward pass took.");
    for (uint32_t i = 0; i < n; i++)
        put_worker_histogram(f, "weir_worker_step_duration_seconds", w[i].labels, w[i].stats.times, step_time_bounds_us, STEP_TIME_BOUNDS,
                             1e-6, (double)w[i].stats.step_ns / 1e9);
}

static void put_blocks(FILE *f, const struct shown_worker *w, uint32_t n)
{
    metrics_head(f, "weir_worker_blocks", "gauge",
                 "KV blocks: free hold nothing, pinned are used by sequences, cached are kept for reuse.");
    for (uint32_t i = 0; i < n; i++) {
        fprintf(f, "weir_worker_blocks{%s,state=\"free\"} %" PRIu64 "\n", w[i].labels, w[i].stats.blocks_free);
        fprintf(f, "weir_worker_blocks{%s,state=\"pinned\"} %" PRIu64 "\n", w[i].labels, w[i].stats.blocks_pinned);
        fprintf(f, "weir_worker_blocks{%s,state=\"cached\"} %" PRIu64 "\n", w[i].labels, w[i].stats.blocks_cached);
    }
    metrics_head(f, "weir_worker_evictions_total", "counter",
                 "KV blocks dropped from the cache: space made room for others, superseded are contained in a longer one.");
    for (uint32_t i = 0; i < n; i++) {
        fprintf(f, "weir_worker_evictions_total{%s,reason=\"space\"} %" PRIu64 "\n", w[i].labels, w[i].stats.evictions);
        fprintf(f, "weir_worker_evictions_total{%s,reason=\"superseded\"} %" PRIu64 "\n", w[i].labels, w[i].stats.tails_superseded);
    }
    metrics_head(f, "weir_worker_eviction_age_seconds_total", "counter",
                 "From the last use of a KV block to its eviction for space; by these evictions: how long the cache keeps a block.");
    for (uint32_t i = 0; i < n; i++)
        fprintf(f, "weir_worker_eviction_age_seconds_total{%s} %.6f\n", w[i].labels, (double)w[i].stats.eviction_age_ns / 1e9);
}

static void put_workers(const struct broker *b, FILE *f)
{
    struct shown_worker w[WORKERS_MAX];
    uint32_t n = shown_workers(b, w);

    metrics_head(f, "weir_worker_up", "gauge", "1 while the worker is ready.");
    for (uint32_t i = 0; i < n; i++)
        fprintf(f, "weir_worker_up{%s} %d\n", w[i].labels, w[i].worker->state == WORKER_READY);
    metrics_head(f, "weir_worker_restarts_total", "counter", "Processes started after the first.");
    for (uint32_t i = 0; i < n; i++)
        fprintf(f, "weir_worker_restarts_total{%s} %" PRIu32 "\n", w[i].labels, w[i].worker->restarts);
    for (size_t k = 0; k < sizeof(worker_numbers) / sizeof(worker_numbers[0]); k++) {
        metrics_head(f, worker_numbers[k].name, worker_numbers[k].type, worker_numbers[k].help);
        for (uint32_t i = 0; i < n; i++) {
            uint64_t value;

            memcpy(&value, (const uint8_t *)&w[i].stats + worker_numbers[k].at, sizeof(value));
            fprintf(f, "%s{%s} %" PRIu64 "\n", worker_numbers[k].name, w[i].labels, value);
        }
    }
    put_blocks(f, w, n);
    put_steps(f, w, n);
}

static void put_device_number(FILE *f, const char *name, const char *help, uint32_t n, const struct device_numbers *d,
                              const double *values, const bool *told)
{
    metrics_head(f, name, "gauge", help);
    for (uint32_t i = 0; i < n; i++)
        if (told[i])
            fprintf(f, "%s{device=\"%" PRIu32 "\",name=\"%s\"} %.12g\n", name, i, d[i].name, values[i]);
}

static void put_devices(const struct broker *b, FILE *f)
{
    struct device_numbers d[DEVICES_MAX];
    double v[5][DEVICES_MAX];
    bool told[5][DEVICES_MAX];
    uint32_t n = devices_look(b->devices, d);

    for (uint32_t i = 0; i < n; i++) {
        const double values[5] = { d[i].utilization, (double)d[i].memory_used, (double)d[i].memory_size, d[i].temperature_celsius,
                                   d[i].power_watts };
        for (int k = 0; k < 5; k++) {
            v[k][i] = values[k];
            told[k][i] = k == 1 || k == 2 ? d[i].memory_size > 0 : values[k] >= 0;
        }
    }
    metrics_head(f, "weir_devices", "gauge", "GPUs that the driver's library knows on this machine.");
    fprintf(f, "weir_devices %" PRIu32 "\n", n);
    if (n == 0)
        return;
    put_device_number(f, "weir_device_utilization_ratio", "Share of the last second in which the GPU computed.", n, d, v[0], told[0]);
    put_device_number(f, "weir_device_memory_used_bytes", "Memory of the GPU in use, by anybody.", n, d, v[1], told[1]);
    put_device_number(f, "weir_device_memory_size_bytes", "Memory of the GPU.", n, d, v[2], told[2]);
    put_device_number(f, "weir_device_temperature_celsius", "Its temperature.", n, d, v[3], told[3]);
    put_device_number(f, "weir_device_power_watts", "What it draws.", n, d, v[4], told[4]);
}

/* The series are bounded: the first METRICS_USERS_MAX users that came have their own, and it is told how many have none. */
static void put_users(const struct broker *b, FILE *f)
{
    uint32_t n = b->accounts.n < METRICS_USERS_MAX ? b->accounts.n : METRICS_USERS_MAX;

    metrics_head(f, "weir_user_tokens_total", "counter", "Tokens of finished requests, by user.");
    for (uint32_t i = 0; i < n; i++) {
        const struct account *a = &b->accounts.list[i];

        fprintf(f, "weir_user_tokens_total{user=\"%s\",kind=\"prompt\"} %" PRIu64 "\n", a->name, a->prompt_tokens);
        fprintf(f, "weir_user_tokens_total{user=\"%s\",kind=\"cached\"} %" PRIu64 "\n", a->name, a->cached_tokens);
        fprintf(f, "weir_user_tokens_total{user=\"%s\",kind=\"completion\"} %" PRIu64 "\n", a->name, a->completion_tokens);
    }
    metrics_head(f, "weir_user_queue_seconds_total", "counter", "From arrival to the first dispatch, summed, by user.");
    for (uint32_t i = 0; i < n; i++)
        fprintf(f, "weir_user_queue_seconds_total{user=\"%s\"} %.6f\n", b->accounts.list[i].name,
                (double)b->accounts.list[i].queue_ns / 1e9);
    metrics_head(f, "weir_user_dispatched_total", "counter", "Requests that reached a worker: what the queue's seconds are divided by.");
    for (uint32_t i = 0; i < n; i++)
        fprintf(f, "weir_user_dispatched_total{user=\"%s\"} %" PRIu64 "\n", b->accounts.list[i].name, b->accounts.list[i].n_dispatched);
    metrics_head(f, "weir_user_preemptions_total", "counter", "How often a user's requests made room in a worker.");
    for (uint32_t i = 0; i < n; i++)
        fprintf(f, "weir_user_preemptions_total{user=\"%s\"} %" PRIu64 "\n", b->accounts.list[i].name, b->accounts.list[i].n_preemptions);
    metrics_head(f, "weir_user_requests", "gauge", "Requests under way, by user.");
    for (uint32_t i = 0; i < n; i++)
        fprintf(f, "weir_user_requests{user=\"%s\"} %" PRIu32 "\n", b->accounts.list[i].name, b->accounts.list[i].n_live);
    metrics_head(f, "weir_users_without_series", "gauge", "Users beyond those that have series of their own.");
    fprintf(f, "weir_users_without_series %" PRIu32 "\n", b->accounts.n - n);
}

void metrics_page(const struct broker *b, char **ret_page, size_t *ret_n)
{
    char *page = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&page, &n);

    *ret_page = NULL;
    if (f == NULL)
        return;
    put_pool(b, f);
    put_tcp(b, f);
    put_totals(b, f);
    put_histogram(f, "weir_queue_seconds", "From arrival to the first dispatch to a worker.", b->times.queue);
    metrics_head(f, "weir_refusal_seconds", "histogram", "From the arrival of a request refused with busy to its answer, at most.");
    metrics_histogram(f, "weir_refusal_seconds", "", &b->times.refusal);
    put_histogram(f, "weir_first_token_seconds", "From arrival to the first token.", b->times.first_token);
    put_histogram(f, "weir_request_seconds", "From arrival to the end of finished requests.", b->times.total);
    put_histogram(f, "weir_token_interval_seconds", "Between two tokens of one completion, as the broker sees them come.",
                  b->times.token_interval);
    put_workers(b, f);
    put_devices(b, f);
    metrics_process(f, "weir_broker_");
    put_users(b, f);
    if (fclose(f) != 0) {
        free(page);
        return;
    }
    *ret_page = page;
    *ret_n = n;
}

bool metrics_ready(const struct broker *b, const char **ret_why)
{
    if (b->state != BROKER_RUNNING) {
        *ret_why = "the broker is stopping";
        return false;
    }
    for (uint32_t i = 0; i < b->n_workers; i++)
        if (b->workers[i].state == WORKER_READY || b->workers[i].released)
            return true;
    *ret_why = "no worker is ready";
    for (uint32_t i = 0; i < b->n_workers; i++)
        if (b->workers[i].error[0] != '\0')
            *ret_why = b->workers[i].error;
    return false;
}
