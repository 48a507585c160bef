/* metrics.c - see metrics.h.  One page, swapped under a lock; a visitor gets a copy, so the next page waits for nobody. */
#include "metrics.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct metrics {
    struct MHD_Daemon *daemon;
    pthread_mutex_t lock;
    char *page;      /* under lock */
    size_t n;        /* under lock */
};

const double histogram_bounds_s[HISTOGRAM_BUCKETS] = { 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60, 600 };

void histogram_add(struct histogram *h, double seconds)
{
    int i = 0;

    while (i < HISTOGRAM_BUCKETS && seconds > histogram_bounds_s[i])
        i++;
    h->n[i]++;
    h->sum_s += seconds;
}

static enum MHD_Result answer_text(struct MHD_Connection *c, unsigned code, char *text, size_t n, enum MHD_ResponseMemoryMode mode)
{
    struct MHD_Response *r = MHD_create_response_from_buffer(n, text, mode);
    enum MHD_Result result;

    if (r == NULL) {
        if (mode == MHD_RESPMEM_MUST_FREE)
            free(text);
        return MHD_NO;
    }
    MHD_add_response_header(r, "Content-Type", "text/plain; version=0.0.4; charset=utf-8");
    result = MHD_queue_response(c, code, r);
    MHD_destroy_response(r);
    return result;
}

static enum MHD_Result answer(void *arg, struct MHD_Connection *c, const char *url, const char *method, const char *version,
                              const char *upload, size_t *upload_bytes, void **state)
{
    static char not_here[] = "only GET /metrics is here\n", nothing_yet[] = "no numbers yet\n";
    struct metrics *m = arg;
    char *copy = NULL;
    size_t n;

    (void)version;
    (void)upload;
    (void)state;
    if (strcmp(url, "/metrics") != 0 || (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)) {
        *upload_bytes = 0;
        return answer_text(c, MHD_HTTP_NOT_FOUND, not_here, sizeof(not_here) - 1, MHD_RESPMEM_PERSISTENT);
    }
    pthread_mutex_lock(&m->lock);
    n = m->n;
    if (m->page != NULL && (copy = malloc(n + 1)) != NULL)
        memcpy(copy, m->page, n);
    pthread_mutex_unlock(&m->lock);
    if (copy == NULL)
        return answer_text(c, MHD_HTTP_SERVICE_UNAVAILABLE, nothing_yet, sizeof(nothing_yet) - 1, MHD_RESPMEM_PERSISTENT);
    return answer_text(c, MHD_HTTP_OK, copy, n, MHD_RESPMEM_MUST_FREE);
}

/* A socket address of text and port.  Gives its size, 0 when the text is no address. */
static socklen_t parse_address(const char *address, uint16_t port, struct sockaddr_storage *ret_at)
{
    struct sockaddr_in *four = (struct sockaddr_in *)ret_at;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)ret_at;

    memset(ret_at, 0, sizeof(*ret_at));
    if (inet_pton(AF_INET, address, &four->sin_addr) == 1) {
        four->sin_family = AF_INET;
        four->sin_port = htons(port);
        return sizeof(*four);
    }
    if (inet_pton(AF_INET6, address, &six->sin6_addr) == 1) {
        six->sin6_family = AF_INET6;
        six->sin6_port = htons(port);
        return sizeof(*six);
    }
    return 0;
}

enum status metrics_new(const char *address, uint16_t port, struct metrics **ret_metrics, struct error *err)
{
    struct sockaddr_storage at;

    if (parse_address(address, port, &at) == 0) {
        error_set(err, ERR_INVALID_PARAMETER, "metrics-address", "\"%s\" is no IPv4 or IPv6 address in numbers", address);
        return ST_INVALID;
    }
    struct metrics *m = calloc(1, sizeof(*m));
    if (m == NULL)
        return ST_NOMEM;
    pthread_mutex_init(&m->lock, NULL);
    unsigned flags = MHD_USE_POLL_INTERNAL_THREAD | (at.ss_family == AF_INET6 ? MHD_USE_IPv6 : 0);
    m->daemon = MHD_start_daemon(flags, port, NULL, NULL, answer, m, MHD_OPTION_SOCK_ADDR, (struct sockaddr *)&at,
                                 MHD_OPTION_CONNECTION_LIMIT, (unsigned)METRICS_CONNECTIONS_MAX, MHD_OPTION_CONNECTION_TIMEOUT,
                                 (unsigned)METRICS_TIMEOUT_S, MHD_OPTION_END);
    if (m->daemon == NULL) {
        error_set(err, ERR_INTERNAL, "metrics-port", "cannot listen on %s port %u: %s", address, (unsigned)port, strerror(errno));
        metrics_free(m);
        return ST_SYSTEM;
    }
    *ret_metrics = m;
    return ST_OK;
}

void metrics_free(struct metrics *m)
{
    if (m == NULL)
        return;
    if (m->daemon != NULL)
        MHD_stop_daemon(m->daemon);
    pthread_mutex_destroy(&m->lock);
    free(m->page);
    free(m);
}

void metrics_publish(struct metrics *m, char *page, size_t n)
{
    pthread_mutex_lock(&m->lock);
    char *old = m->page;
    m->page = page;
    m->n = n;
    pthread_mutex_unlock(&m->lock);
    free(old);
}
