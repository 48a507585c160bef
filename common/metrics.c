/* metrics.c - see metrics.h.  One page, swapped under a lock; a visitor gets a copy, so the next page waits for nobody. */
#include "metrics.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"

struct metrics {
    struct MHD_Daemon *daemon;
    pthread_mutex_t lock;
    char *page;             /* under lock, as the rest */
    size_t n;
    bool ready;
    uint64_t at_ns;
    char why[256];
};

/* --- answers ------------------------------------------------------------------------------------ */

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

static enum MHD_Result answer_line(struct MHD_Connection *c, unsigned code, const char *line)
{
    char text[320];
    int n = snprintf(text, sizeof(text), "%s\n", line);

    return answer_text(c, code, text, (size_t)n, MHD_RESPMEM_MUST_COPY);
}

static enum MHD_Result answer_page(struct metrics *m, struct MHD_Connection *c)
{
    char *copy = NULL;
    size_t n;

    pthread_mutex_lock(&m->lock);
    n = m->n;
    if (m->page != NULL && (copy = malloc(n + 1)) != NULL)
        memcpy(copy, m->page, n);
    pthread_mutex_unlock(&m->lock);
    if (copy == NULL)
        return answer_line(c, MHD_HTTP_SERVICE_UNAVAILABLE, "no numbers yet");
    return answer_text(c, MHD_HTTP_OK, copy, n, MHD_RESPMEM_MUST_FREE);
}

static enum MHD_Result answer_health(struct metrics *m, struct MHD_Connection *c, bool ask_ready)
{
    char why[320] = "ok";
    bool good = true;

    pthread_mutex_lock(&m->lock);
    uint64_t now_ns = clock_now_ns(), age_s = m->at_ns < now_ns ? (now_ns - m->at_ns) / 1000000000 : 0;
    if (m->at_ns == 0 || age_s >= METRICS_STALE_S) {
        good = false;
        snprintf(why, sizeof(why), m->at_ns == 0 ? "starting" : "no sign of life for %" PRIu64 " s", age_s);
    } else if (ask_ready && !m->ready) {
        good = false;
        snprintf(why, sizeof(why), "not ready: %s", m->why);
    }
    pthread_mutex_unlock(&m->lock);
    return answer_line(c, good ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE, why);
}

static enum MHD_Result answer(void *arg, struct MHD_Connection *c, const char *url, const char *method, const char *version,
                              const char *upload, size_t *upload_bytes, void **state)
{
    struct metrics *m = arg;
    bool reading = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;

    (void)version;
    (void)upload;
    (void)state;
    *upload_bytes = 0;
    if (reading && strcmp(url, "/metrics") == 0)
        return answer_page(m, c);
    if (reading && strcmp(url, "/healthz") == 0)
        return answer_health(m, c, false);
    if (reading && strcmp(url, "/readyz") == 0)
        return answer_health(m, c, true);
    return answer_line(c, MHD_HTTP_NOT_FOUND, "only GET /metrics, /healthz and /readyz are here");
}

/* --- listening ---------------------------------------------------------------------------------- */

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

enum status metrics_listen(const char *address, uint16_t port, int *ret_fd, struct error *err)
{
    struct sockaddr_storage at;
    socklen_t n = parse_address(address, port, &at);

    if (n == 0) {
        error_set(err, ERR_INVALID_PARAMETER, "metrics-address", "\"%s\" is no IPv4 or IPv6 address in numbers", address);
        return ST_INVALID;
    }
    int fd = socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0) {
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){ 1 }, sizeof(int));
        if (bind(fd, (struct sockaddr *)&at, n) == 0 && listen(fd, METRICS_CONNECTIONS_MAX) == 0) {
            *ret_fd = fd;
            return ST_OK;
        }
    }
    error_set(err, ERR_INTERNAL, "metrics-port", "cannot listen on %s port %u: %s", address, (unsigned)port, strerror(errno));
    if (fd >= 0)
        close(fd);
    return ST_SYSTEM;
}

static enum status start(int fd, unsigned flags, struct metrics **ret_metrics)
{
    struct metrics *m = calloc(1, sizeof(*m));

    if (m == NULL) {
        close(fd);
        return ST_NOMEM;
    }
    pthread_mutex_init(&m->lock, NULL);
    m->daemon = MHD_start_daemon(flags, 0, NULL, NULL, answer, m, MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT,
                                 (unsigned)METRICS_CONNECTIONS_MAX, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)METRICS_TIMEOUT_S,
                                 MHD_OPTION_END);
    if (m->daemon == NULL) {
        close(fd);
        metrics_free(m);
        return ST_SYSTEM;
    }
    *ret_metrics = m;
    return ST_OK;
}

enum status metrics_new(const char *address, uint16_t port, struct metrics **ret_metrics, struct error *err)
{
    int fd;
    enum status st = metrics_listen(address, port, &fd, err);

    if (st != ST_OK)
        return st;
    st = start(fd, MHD_USE_POLL_INTERNAL_THREAD, ret_metrics);
    if (st == ST_SYSTEM)
        error_set(err, ERR_INTERNAL, "metrics-port", "cannot start the thread that serves port %u", (unsigned)port);
    return st;
}

enum status metrics_new_on(int fd, struct metrics **ret_metrics)
{
    return start(fd, MHD_NO_FLAG, ret_metrics);
}

enum status metrics_serve(struct metrics *m, int timeout_ms)
{
    return MHD_run_wait(m->daemon, timeout_ms) == MHD_YES ? ST_OK : ST_SYSTEM;
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

void metrics_publish(struct metrics *m, char *page, size_t n, const struct metrics_health *health)
{
    char *old = NULL;

    pthread_mutex_lock(&m->lock);
    if (page != NULL) {
        old = m->page;
        m->page = page;
        m->n = n;
    }
    m->ready = health->ready;
    m->at_ns = health->at_ns;
    snprintf(m->why, sizeof(m->why), "%s", health->why != NULL ? health->why : "");
    pthread_mutex_unlock(&m->lock);
    free(old);
}
