/* metrics.h - GET /metrics: the pool's numbers in the text format of Prometheus (version 0.0.4).
 *
 * The broker's loop writes a page once a second and hands it over; a thread of libmicrohttpd serves the last one.  So no visitor
 * can reach the loop, or slow it down.  Numbers and names of models and users only: no texts, no keys.
 *
 * Threads: metrics_publish() is called by one thread at a time; the page is under a lock. */
#ifndef METRICS_H
#define METRICS_H

#include <stddef.h>
#include <stdint.h>

#include "error.h"
#include "status.h"

enum { METRICS_CONNECTIONS_MAX = 16, METRICS_TIMEOUT_S = 5 };

struct metrics; /* opaque */

/* Listen on a numeric IPv4 or IPv6 address.  ST_OK; ST_INVALID, ST_SYSTEM with *err set; ST_NOMEM. */
MUST_CHECK enum status metrics_new(const char *address, uint16_t port, struct metrics **ret_metrics, struct error *err);
void metrics_free(struct metrics *m); /* NULL is fine */

/* Takes page (malloc()ed): it is served from now on. */
void metrics_publish(struct metrics *m, char *page, size_t n);

/* How long things take: counts by upper bound, for a Prometheus histogram. */
enum { HISTOGRAM_BUCKETS = 14 };
struct histogram {
    uint64_t n[HISTOGRAM_BUCKETS + 1]; /* the last: above all bounds */
    double sum_s;
};
void histogram_add(struct histogram *h, double seconds);
extern const double histogram_bounds_s[HISTOGRAM_BUCKETS];

#endif
