/* metrics.h - a program's numbers in the text format of Prometheus (version 0.0.4), over HTTP:
 *
 *   GET /metrics   the numbers
 *   GET /healthz   200 while the program's loop writes new pages; 503 when it has not for METRICS_STALE_S: it hangs
 *   GET /readyz    200 while it can do its work now; 503 and why not
 *
 * The owner's loop writes a page every second or two and hands it over; the last one is served.  So no visitor can reach the loop, or slow
 * it down.  Numbers and names of models and users only: no texts, no keys.
 *
 * Threads: metrics_new() serves in a thread of libmicrohttpd; metrics_publish() is called by one thread at a time; the page is under
 * a lock.  metrics_new_on() has no thread: its owner calls metrics_serve().  Only programs that call these link libmicrohttpd. */
#ifndef METRICS_H
#define METRICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "error.h"
#include "status.h"

enum { METRICS_CONNECTIONS_MAX = 16, METRICS_TIMEOUT_S = 5, METRICS_STALE_S = 10 };

struct metrics; /* opaque */

/* Listen on a numeric IPv4 or IPv6 address.  ST_OK; ST_INVALID, ST_SYSTEM with *err set; ST_NOMEM. */
MUST_CHECK enum status metrics_new(const char *address, uint16_t port, struct metrics **ret_metrics, struct error *err);

/* A listening socket for metrics_new_on(), which another process may then use.  ST_OK; ST_INVALID, ST_SYSTEM with *err set. */
MUST_CHECK enum status metrics_listen(const char *address, uint16_t port, int *ret_fd, struct error *err);
/* Serve on it without a thread.  Takes fd.  ST_OK, ST_NOMEM, ST_SYSTEM. */
MUST_CHECK enum status metrics_new_on(int fd, struct metrics **ret_metrics);
/* Of metrics_new_on(): answer who is there, or wait for somebody, timeout_ms at most.  ST_OK, ST_SYSTEM. */
MUST_CHECK enum status metrics_serve(struct metrics *m, int timeout_ms);

void metrics_free(struct metrics *m); /* NULL is fine */

struct metrics_health {
    uint64_t at_ns;    /* CLOCK_MONOTONIC when the loop wrote this */
    bool ready;
    const char *why;   /* not ready: one line; copied */
};

/* Takes page (malloc()ed; NULL: keep the old one): it is served from now on. */
void metrics_publish(struct metrics *m, char *page, size_t n, const struct metrics_health *health);

/* --- writing a page --------------------------------------------------------------------------------- */

/* "# HELP" and "# TYPE": before the first line of each name.  type: gauge, counter, histogram. */
void metrics_head(FILE *f, const char *name, const char *type, const char *help);

/* How long things take: counts by upper bound, for a Prometheus histogram. */
enum { HISTOGRAM_BUCKETS = 16 };
struct histogram {
    uint64_t n[HISTOGRAM_BUCKETS + 1]; /* the last: above all bounds */
    double sum_s;
};
void histogram_add(struct histogram *h, double seconds);
extern const double histogram_bounds_s[HISTOGRAM_BUCKETS];

/* The lines of one histogram; labels: "class=\"batch\"" or "". */
void metrics_histogram(FILE *f, const char *name, const char *labels, const struct histogram *h);

/* What the kernel says of this process: start time, memory, CPU time, open files; names begin with prefix, "weir_broker_". */
void metrics_process(FILE *f, const char *prefix);

#endif
