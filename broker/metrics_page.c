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

static void head(FILE *f, const char *name, const char *type, const char *help)
{
    fprintf(f, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void put_pool(const struct broker *b, FILE *f)
{
    uint32_t n_running = 0;

    for (uint32_t i = 0; i < b->accounts.n; i++)
        n_running += b->accounts.list[i].n_running;
    head(f, "weir_build_info", "gauge", "Always 1; the labels say which program runs.");
    fprintf(f, "weir_build_info{version=\"%s\",build=\"%s\"} 1\n", version_text(), version_build_id());
    head(f, "weir_requests_total", "counter", "Requests by what became of them.");
    fprintf(f, "weir_requests_total{result=\"done\"} %" PRIu64 "\n", b->totals.done);
    fprintf(f, "weir_requests_total{result=\"failed\"} %" PRIu64 "\n", b->totals.failed);
    fprintf(f, "weir_requests_total{result=\"cancelled\"} %" PRIu64 "\n", b->totals.cancelled);
    fprintf(f, "weir_requests_total{result=\"refused\"} %" PRIu64 "\n", b->totals.refused);
    fprintf(f, "weir_requests_total{result=\"malformed\"} %" PRIu64 "\n", b->totals.malformed);
    head(f, "weir_requests_accepted_total", "counter", "Requests taken into the table.");
    fprintf(f, "weir_requests_accepted_total %" PRIu64 "\n", b->totals.accepted);
    head(f, "weir_takeovers_total", "counter", "Requests whose worker died and which another took over.");
    fprintf(f, "weir_takeovers_total %" PRIu64 "\n", b->totals.takeovers);
    head(f, "weir_tokens_generated_total", "counter", "Tokens delivered by workers.");
    fprintf(f, "weir_tokens_generated_total %" PRIu64 "\n", b->totals.tokens);
    head(f, "weir_queued_requests", "gauge", "Requests that wait for a worker.");
    fprintf(f, "weir_queued_requests{class=\"interactive\"} %" PRIu32 "\n", fair_queue_length(b->queue, QUEUE_INTERACTIVE));
    fprintf(f, "weir_queued_requests{class=\"batch\"} %" PRIu32 "\n", fair_queue_length(b->queue, QUEUE_BATCH));
    fprintf(f, "weir_queued_requests{class=\"resumed\"} %" PRIu32 "\n", fair_queue_length(b->queue, QUEUE_RESUMED));
    head(f, "weir_running_requests", "gauge", "Requests that workers hold.");
    fprintf(f, "weir_running_requests %" PRIu32 "\n", n_running);
    head(f, "weir_clients", "gauge", "Connections with requests under way.");
    fprintf(f, "weir_clients %" PRIu32 "\n", b->clients.n);
    head(f, "weir_held_bytes", "gauge", "Prompts and output that the broker holds.");
    fprintf(f, "weir_held_bytes %" PRIu64 "\n", b->requests.bytes);
}

static void put_histogram(FILE *f, const char *name, const char *help, const struct histogram h[2])
{
    static const char *const classes[2] = { "interactive", "batch" };

    head(f, name, "histogram", help);
    for (int k = 0; k < 2; k++) {
        uint64_t n = 0;

        for (int i = 0; i < HISTOGRAM_BUCKETS; i++) {
            n += h[k].n[i];
            fprintf(f, "%s_bucket{class=\"%s\",le=\"%g\"} %" PRIu64 "\n", name, classes[k], histogram_bounds_s[i], n);
        }
        n += h[k].n[HISTOGRAM_BUCKETS];
        fprintf(f, "%s_bucket{class=\"%s\",le=\"+Inf\"} %" PRIu64 "\n", name, classes[k], n);
        fprintf(f, "%s_sum{class=\"%s\"} %.6f\n%s_count{class=\"%s\"} %" PRIu64 "\n", name, classes[k], h[k].sum_s, name, classes[k], n);
    }
}

static const struct {
    const char *name, *type, *help;
    size_t at; /* of a number in struct worker_stats */
} worker_numbers[] = {
    { "weir_worker_sequences", "gauge", "Sequences that run.", offsetof(struct worker_stats, running_seqs) },
    { "weir_worker_waiting", "gauge", "Sequences that wait in the worker.", offsetof(struct worker_stats, waiting_requests) },
    { "weir_worker_blocks_free", "gauge", "KV blocks that hold nothing.", offsetof(struct worker_stats, blocks_free) },
    { "weir_worker_blocks_pinned", "gauge", "KV blocks that sequences use.", offsetof(struct worker_stats, blocks_pinned) },
    { "weir_worker_blocks_cached", "gauge", "KV blocks kept for reuse.", offsetof(struct worker_stats, blocks_cached) },
    { "weir_worker_steps_total", "counter", "Forward passes.", offsetof(struct worker_stats, steps) },
    { "weir_worker_decode_tokens_total", "counter", "Tokens sampled.", offsetof(struct worker_stats, decode_tokens) },
    { "weir_worker_prefill_tokens_total", "counter", "Prompt tokens computed.", offsetof(struct worker_stats, prefill_tokens) },
    { "weir_worker_cached_tokens_total", "counter", "Prompt tokens taken from the cache.", offsetof(struct worker_stats, cached_tokens) },
    { "weir_worker_preemptions_total", "counter", "Sequences that made room.", offsetof(struct worker_stats, preemptions) },
    { "weir_worker_evictions_total", "counter", "KV blocks dropped from the cache.", offsetof(struct worker_stats, evictions) },
};

static void put_worker_number(const struct broker *b, FILE *f, const char *name, const struct worker *w, uint64_t value)
{
    fprintf(f, "%s{slot=\"%" PRIu32 "\",model=\"%s\"} %" PRIu64 "\n", name, w->slot, b->models[w->model].name, value);
}

static void put_workers(const struct broker *b, FILE *f)
{
    struct worker_stats stats[WORKERS_MAX] = { 0 };

    head(f, "weir_worker_up", "gauge", "1 while the worker is ready.");
    for (uint32_t i = 0; i < b->n_workers; i++)
        put_worker_number(b, f, "weir_worker_up", &b->workers[i], b->workers[i].state == WORKER_READY);
    head(f, "weir_worker_restarts_total", "counter", "Processes started after the first.");
    for (uint32_t i = 0; i < b->n_workers; i++) {
        put_worker_number(b, f, "weir_worker_restarts_total", &b->workers[i], b->workers[i].restarts);
        if (b->workers[i].state == WORKER_READY || b->workers[i].state == WORKER_LEAVING)
            worker_link_stats(&b->workers[i].link, &stats[i]);
    }
    for (size_t k = 0; k < sizeof(worker_numbers) / sizeof(worker_numbers[0]); k++) {
        head(f, worker_numbers[k].name, worker_numbers[k].type, worker_numbers[k].help);
        for (uint32_t i = 0; i < b->n_workers; i++) {
            uint64_t value;

            memcpy(&value, (const uint8_t *)&stats[i] + worker_numbers[k].at, sizeof(value));
            put_worker_number(b, f, worker_numbers[k].name, &b->workers[i], value);
        }
    }
}

static void put_users(const struct broker *b, FILE *f)
{
    head(f, "weir_user_tokens_total", "counter", "Tokens of finished requests, by user.");
    for (uint32_t i = 0; i < b->accounts.n; i++) {
        const struct account *a = &b->accounts.list[i];

        fprintf(f, "weir_user_tokens_total{user=\"%s\",kind=\"prompt\"} %" PRIu64 "\n", a->name, a->prompt_tokens);
        fprintf(f, "weir_user_tokens_total{user=\"%s\",kind=\"cached\"} %" PRIu64 "\n", a->name, a->cached_tokens);
        fprintf(f, "weir_user_tokens_total{user=\"%s\",kind=\"completion\"} %" PRIu64 "\n", a->name, a->completion_tokens);
    }
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
    put_histogram(f, "weir_queue_seconds", "From arrival to the first dispatch to a worker.", b->times.queue);
    put_histogram(f, "weir_first_token_seconds", "From arrival to the first token.", b->times.first_token);
    put_histogram(f, "weir_request_seconds", "From arrival to the end of finished requests.", b->times.total);
    put_workers(b, f);
    put_users(b, f);
    if (fclose(f) != 0) {
        free(page);
        return;
    }
    *ret_page = page;
    *ret_n = n;
}
