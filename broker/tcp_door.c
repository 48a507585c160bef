/* tcp_door.c - see tcp_door.h.
 *
 * The listening socket is made here and given to libzmq (ZMQ_USE_FD), because the packet filter has to be put on it; a duplicate of its
 * descriptor stays ours, so that the filter can never be put on a number that libzmq has closed.
 *
 * The monitor's queue has no limit of its own (libzmq's I/O thread would wait in it); what it can hold are the events of
 * connections made in one pass of the broker's loop, and the kernel's backlog bounds these. */
#include "tcp_door.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <zmq.h>

#include "endpoint.h"
#include "log.h"
#include "tcp_peers.h"

enum {
    BACKLOG = 128,
    HEARTBEAT_MS = 10000,
    HEARTBEAT_TIMEOUT_MS = 30000,
    MONITOR_FRAMES = 2048,
    FRAME_BYTES = 256,
    LOOK_MS = 1000 /* for connections that say nothing */
};
static const uint64_t log_interval_ns = UINT64_C(1000000000);

struct tcp_door {
    void *socket, *zap, *monitor;
    int listener; /* our duplicate */
    uint32_t n_connections_max;
    bool shut;
    struct tcp_door_numbers n, logged;
    uint64_t log_due_ns, look_due_ns;
    struct tcp_peers peers;
    char uri[128];
};

/* --- addresses -------------------------------------------------------------------------------- */

struct address {
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } to;
    socklen_t n;
};

static enum status parse_uri(const char *uri, struct address *ret_address, struct error *err)
{
    struct address a = {.n = sizeof(a.to.v4)};
    char host[INET6_ADDRSTRLEN + 2];
    const char *at = uri + strlen("tcp://"), *colon = strrchr(uri, ':');
    size_t digits = colon != NULL ? strspn(colon + 1, "0123456789") : 0,
           n = colon >= at ? (size_t)(colon - at) : 0;
    bool ok = strncmp(uri, "tcp://", 6) == 0 && colon >= at && digits >= 1 && digits <= 5 &&
              colon[1 + digits] == '\0' && n >= 1 && n < sizeof(host);
    unsigned long port = ok ? strtoul(colon + 1, NULL, 10) : 0;

    if (ok && port <= UINT16_MAX) {
        memcpy(host, at, n);
        host[n] = '\0';
        if (strcmp(host, "*") == 0) {
            a.n = sizeof(a.to.v6);
            a.to.v6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
        } else if (host[0] == '[' && host[n - 1] == ']') {
            host[n - 1] = '\0';
            a.n = sizeof(a.to.v6);
            a.to.v6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
            ok = inet_pton(AF_INET6, host + 1, &a.to.v6.sin6_addr) == 1;
        } else {
            a.to.v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
            ok = inet_pton(AF_INET, host, &a.to.v4.sin_addr) == 1;
        }
    }
    if (!ok || port > UINT16_MAX) {
        error_set(
            err, ERR_INVALID_PARAMETER, "tcp",
            "\"%.100s\" is not tcp://ADDRESS:PORT, with an IPv4 address, an IPv6 address in brackets, or *",
            uri);
        return ST_INVALID;
    }
    *ret_address = a;
    return ST_OK;
}

enum status tcp_door_check_uri(const char *uri, struct error *err)
{
    struct address ignored;

    return parse_uri(uri, &ignored, err);
}

/* The uri with the port that the kernel gave. */
static void write_uri(struct tcp_door *d)
{
    struct address a = {.n = sizeof(a.to)};
    char host[INET6_ADDRSTRLEN] = "";

    if (getsockname(d->listener, &a.to.any, &a.n) != 0)
        return;
    if (a.to.any.sa_family == AF_INET6)
        snprintf(d->uri, sizeof(d->uri), "tcp://[%s]:%u",
                 inet_ntop(AF_INET6, &a.to.v6.sin6_addr, host, sizeof(host)), ntohs(a.to.v6.sin6_port));
    else
        snprintf(d->uri, sizeof(d->uri), "tcp://%s:%u",
                 inet_ntop(AF_INET, &a.to.v4.sin_addr, host, sizeof(host)), ntohs(a.to.v4.sin_port));
}

/* --- open and close --------------------------------------------------------------------------- */

static enum status system_error(struct error *err, const char *what, const char *uri)
{
    error_set(err, errno == EACCES ? ERR_PERMISSION_DENIED : ERR_INTERNAL, "tcp", "%s %.100s: %s", what, uri,
              zmq_strerror(errno));
    return ST_SYSTEM;
}

/* ST_OK, or ST_SYSTEM with errno. */
static enum status listen_on(const struct address *a, bool any, int *ret_fd)
{
    int fd = socket(a->to.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return ST_SYSTEM;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    if (a->to.any.sa_family == AF_INET6 && any)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &(int){0}, sizeof(int));
    if (bind(fd, &a->to.any, a->n) != 0 || listen(fd, BACKLOG) != 0) {
        int why = errno;

        close(fd);
        errno = why;
        return ST_SYSTEM;
    }
    *ret_fd = fd;
    return ST_OK;
}

static enum status open_listener(const char *uri, int *ret_fd, struct error *err)
{
    bool any = strncmp(uri, "tcp://*:", 8) == 0;
    struct address a;
    enum status st = parse_uri(uri, &a, err);

    if (st != ST_OK)
        return st;
    st = listen_on(&a, any, ret_fd);
    if (st != ST_OK && any && (errno == EAFNOSUPPORT || errno == EADDRNOTAVAIL)) { /* no IPv6 here: then * is all of IPv4 */
        in_port_t port = a.to.v6.sin6_port;

        a.n = sizeof(a.to.v4);
        a.to.v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = port};
        st = listen_on(&a, any, ret_fd);
    }
    return st == ST_OK ? ST_OK : system_error(err, "cannot listen on", uri);
}

static bool set_int(void *socket, int option, int value)
{
    return zmq_setsockopt(socket, option, &value, sizeof(value)) == 0;
}

static bool set_curve(void *socket, const struct curve_pair *pair)
{
    return set_int(socket, ZMQ_CURVE_SERVER, 1) &&
           zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, pair->secret_key, CURVE_KEY_BYTES) == 0 &&
           zmq_setsockopt(socket, ZMQ_ZAP_DOMAIN, "weir", 4) == 0 &&
           set_int(socket, ZMQ_HEARTBEAT_IVL, HEARTBEAT_MS) &&
           set_int(socket, ZMQ_HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS);
}

/* The ZAP handler first: a server socket that finds none lets everybody in. */
static bool open_sockets(struct tcp_door *d, void *context, const struct curve_pair *pair)
{
    static const char monitor[] = "inproc://tcp-monitor";

    d->zap = zmq_socket(context, ZMQ_REP);
    d->socket = zmq_socket(context, ZMQ_ROUTER);
    d->monitor = zmq_socket(context, ZMQ_PAIR);
    if (d->zap == NULL || d->socket == NULL || d->monitor == NULL || !set_int(d->zap, ZMQ_LINGER, 0) ||
        !set_int(d->monitor, ZMQ_LINGER, 0) || !set_int(d->monitor, ZMQ_RCVHWM, 0) ||
        zmq_bind(d->zap, "inproc://zeromq.zap.01") != 0)
        return false;
    endpoint_set_limits(d->socket);
    return set_curve(d->socket, pair) &&
           zmq_socket_monitor(d->socket, monitor,
                              ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED |
                                  ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                                  ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL) == 0 &&
           zmq_connect(d->monitor, monitor) == 0;
}

enum status tcp_door_open(void *context, const char *uri, const struct curve_pair *pair,
                          uint32_t n_connections_max, struct tcp_door **ret_door, struct error *err)
{
    struct tcp_door *d = calloc(1, sizeof(*d));
    int listener = -1;
    enum status st = ST_NOMEM;

    if (d == NULL) {
        error_set(err, ERR_INTERNAL, "tcp", "out of memory");
        return ST_NOMEM;
    }
    d->listener = -1;
    d->n_connections_max = n_connections_max;
    if (tcp_peers_init(&d->peers, n_connections_max + BACKLOG) != ST_OK) {
        error_set(err, ERR_INTERNAL, "tcp", "out of memory");
        tcp_door_close(d);
        return ST_NOMEM;
    }
    st = open_listener(uri, &listener, err);
    if (st == ST_OK && (d->listener = fcntl(listener, F_DUPFD_CLOEXEC, 3)) < 0)
        st = system_error(err, "cannot duplicate the socket of", uri);
    if (st == ST_OK && (!open_sockets(d, context, pair) || !set_int(d->socket, ZMQ_USE_FD, listener)))
        st = system_error(err, "cannot set up CURVE for", uri);
    if (st == ST_OK) {
        write_uri(d);
        if (zmq_bind(d->socket, d->uri) != 0)
            st = system_error(err, "cannot bind", uri);
        else
            listener = -1; /* libzmq's now */
    }
    if (listener >= 0)
        close(listener);
    if (st == ST_OK)
        *ret_door = d;
    else
        tcp_door_close(d);
    return st;
}

void tcp_door_close(struct tcp_door *d)
{
    if (d == NULL)
        return;
    if (d->socket != NULL) {
        zmq_socket_monitor(d->socket, NULL, 0);
        zmq_close(d->socket);
    }
    if (d->monitor != NULL)
        zmq_close(d->monitor);
    if (d->zap != NULL)
        zmq_close(d->zap);
    if (d->listener >= 0)
        close(d->listener);
    tcp_peers_deinit(&d->peers);
    free(d);
}

void *tcp_door_socket(const struct tcp_door *d)
{
    return d->socket;
}

void *tcp_door_zap(const struct tcp_door *d)
{
    return d->zap;
}

void *tcp_door_monitor(const struct tcp_door *d)
{
    return d->monitor;
}

const char *tcp_door_uri(const struct tcp_door *d)
{
    return d->uri;
}

struct tcp_door_numbers tcp_door_numbers(const struct tcp_door *d)
{
    return d->n;
}

/* --- who may come in -------------------------------------------------------------------------- */

enum {
    ZAP_VERSION,
    ZAP_REQUEST,
    ZAP_DOMAIN,
    ZAP_ADDRESS,
    ZAP_IDENTITY,
    ZAP_MECHANISM,
    ZAP_CREDENTIALS,
    ZAP_FRAMES
};

struct question {
    size_t n[ZAP_FRAMES];
    uint8_t at[ZAP_FRAMES][FRAME_BYTES];
    unsigned n_frames;
};

/* The next question.  A frame that is longer than any of ours is cut, and then equals nothing that is looked for. */
static bool next_question(void *zap, struct question *q)
{
    int more = 1;
    size_t n_more = sizeof(more);

    q->n_frames = 0;
    while (more != 0) {
        uint8_t ignored[FRAME_BYTES], *to = q->n_frames < ZAP_FRAMES ? q->at[q->n_frames] : ignored;
        int n = zmq_recv(zap, to, FRAME_BYTES, ZMQ_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return false;
        if (q->n_frames < ZAP_FRAMES)
            q->n[q->n_frames] = (size_t)n;
        q->n_frames++;
        if (zmq_getsockopt(zap, ZMQ_RCVMORE, &more, &n_more) != 0)
            return false;
    }
    return true;
}

static bool frame_is(const struct question *q, unsigned i, const char *text)
{
    return q->n[i] == strlen(text) && memcmp(q->at[i], text, q->n[i]) == 0;
}

static void send_frame(void *zap, const void *at, size_t n, bool more)
{
    while (zmq_send(zap, at, n, ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0)) < 0 && errno == EINTR)
        continue; /* any other failure: the connection that asked is gone */
}

/* number: of the connection that is let in; 0: it is not, and code and text say why. */
static void answer(void *zap, const struct question *q, uint64_t number, const char *code, const char *text)
{
    char key[CURVE_TEXT_BYTES], user[CURVE_TEXT_BYTES + 24] = "";

    if (number != 0) {
        curve_key_format(q->at[ZAP_CREDENTIALS], key);
        snprintf(user, sizeof(user), "%s %" PRIu64, key, number);
    }
    send_frame(zap, "1.0", 3, true);
    send_frame(zap, q->at[ZAP_REQUEST], q->n[ZAP_REQUEST] <= FRAME_BYTES ? q->n[ZAP_REQUEST] : 0, true);
    send_frame(zap, code, 3, true);
    send_frame(zap, text, strlen(text), true);
    send_frame(zap, user, strlen(user), true);
    send_frame(zap, "", 0, false);
}

static void judge_next(struct tcp_door *d, uint32_t budget, tcp_door_judge *judge, void *arg, uint64_t now_ns)
{
    struct question q;

    while (budget-- > 0 && next_question(d->zap, &q)) {
        struct tcp_door_user u;
        uint64_t number = 0;

        if (q.n_frames != ZAP_FRAMES || !frame_is(&q, ZAP_VERSION, "1.0") ||
            !frame_is(&q, ZAP_MECHANISM, "CURVE") || q.n[ZAP_CREDENTIALS] != CURVE_KEY_BYTES ||
            !judge(arg, q.at[ZAP_CREDENTIALS], &u)) {
            d->n.refused_keys++;
            answer(d->zap, &q, 0, "400", "unknown key");
        } else if (tcp_peers_admitted(&d->peers, u.user, u.connections_max, now_ns, &number) != ST_OK) {
            d->n.refused_users++;
            answer(d->zap, &q, 0, "500", "too many connections of this user");
        } else {
            answer(d->zap, &q, number, "200", "OK");
        }
    }
}

/* "User-Id" as answer() has written it: the key, and the number of the connection. */
static bool user_id_of(zmq_msg_t *m, struct span *ret_key, uint64_t *ret_number)
{
    const char *text = zmq_msg_gets(m, "User-Id"), *space = text != NULL ? strchr(text, ' ') : NULL;

    if (space == NULL)
        return false;
    *ret_key = span_of(text, (size_t)(space - text));
    *ret_number = strtoull(space + 1, NULL, 10);
    return true;
}

void tcp_door_heard(struct tcp_door *d, zmq_msg_t *m)
{
    int fd = zmq_msg_get(m, ZMQ_SRCFD);
    struct span key;
    uint64_t number;

    if (fd >= 0 && user_id_of(m, &key, &number))
        tcp_peers_said(&d->peers, fd, number);
}

enum status tcp_door_key_of(zmq_msg_t *m, uint8_t ret_key[CURVE_KEY_BYTES])
{
    struct span key;
    uint64_t number;

    return user_id_of(m, &key, &number) ? curve_key_parse(key, ret_key) : ST_INVALID;
}

/* --- how many ---------------------------------------------------------------------------------- */

/* The kernel's name of a socket, which no other ever gets; 0: it is none. */
static uint64_t cookie_of(int fd)
{
    uint64_t cookie = 0;
    socklen_t n = sizeof(cookie);

    return getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &n) == 0 ? cookie : 0;
}

/* libzmq has no call for this.  Its descriptor may be closed, and another's, at any moment: our duplicate stays what it is while its name is
 * compared. */
static void end_connection(int fd, uint64_t cookie)
{
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 3);

    if (own < 0)
        return;
    if (cookie != 0 && cookie_of(own) == cookie)
        shutdown(own, SHUT_RDWR);
    close(own);
}

static void count_event(struct tcp_door *d, uint16_t kind, int fd, uint64_t now_ns)
{
    if (kind == ZMQ_EVENT_ACCEPTED) {
        uint64_t cookie = cookie_of(fd);

        d->n.connections++;
        d->n.accepted++;
        if (tcp_peers_accepted(&d->peers, fd, cookie, now_ns) != ST_OK)
            end_connection(fd, cookie);
    } else if (kind == ZMQ_EVENT_DISCONNECTED) {
        d->n.connections -= d->n.connections > 0;
        tcp_peers_closed(&d->peers, fd);
    } else {
        d->n.failed_handshakes++;
    }
}

/* An event is two frames: u16 kind and i32 value, then the address. */
static void count_events(struct tcp_door *d, uint64_t now_ns)
{
    uint8_t event[FRAME_BYTES];
    bool first = true;

    for (unsigned i = 0; i < MONITOR_FRAMES; i++) {
        int more = 0, n = zmq_recv(d->monitor, event, sizeof(event), ZMQ_DONTWAIT);
        size_t n_more = sizeof(more);
        uint16_t kind = 0;
        int32_t fd = 0;

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return;
        if (first && n >= (int)(sizeof(kind) + sizeof(fd))) {
            memcpy(&kind, event, sizeof(kind));
            memcpy(&fd, event + sizeof(kind), sizeof(fd));
            count_event(d, kind, fd, now_ns);
        }
        first = zmq_getsockopt(d->monitor, ZMQ_RCVMORE, &more, &n_more) != 0 || more == 0;
    }
}

/* Drop every packet to the listening socket, or none. */
static void open_or_shut(struct tcp_door *d)
{
    struct sock_filter drop[] = {BPF_STMT(BPF_RET | BPF_K, 0)};
    struct sock_fprog program = {.len = 1, .filter = drop};
    bool full = d->n.connections >= d->n_connections_max;

    if (full == d->shut)
        return;
    int rc = full ? setsockopt(d->listener, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program))
                  : setsockopt(d->listener, SOL_SOCKET, SO_DETACH_FILTER, &(int){0}, sizeof(int));
    if (rc != 0)
        return; /* no memory for it: in the next pass */
    d->shut = full;
    d->n.shut += full;
}

/* One line a second at most, with numbers only: who floods the door shall not fill the disk. */
static void log_refusals(struct tcp_door *d, uint64_t now_ns)
{
    if (now_ns < d->log_due_ns || memcmp(&d->n, &d->logged, sizeof(d->n)) == 0)
        return;
    if (d->n.refused_keys != d->logged.refused_keys || d->n.refused_users != d->logged.refused_users ||
        d->n.silent != d->logged.silent || d->n.failed_handshakes != d->logged.failed_handshakes ||
        d->n.shut != d->logged.shut)
        log_warn("tcp_refused",
                 "unknown_keys=%" PRIu64 " user_connections=%" PRIu64 " silent=%" PRIu64
                 " failed_handshakes=%" PRIu64 " full=%" PRIu64 " connections=%" PRIu32,
                 d->n.refused_keys - d->logged.refused_keys, d->n.refused_users - d->logged.refused_users,
                 d->n.silent - d->logged.silent, d->n.failed_handshakes - d->logged.failed_handshakes,
                 d->n.shut - d->logged.shut, d->n.connections);
    d->logged = d->n;
    d->log_due_ns = now_ns + log_interval_ns;
}

/* A connection that says nothing is nobody's, and would be nobody's for ever. */
static void end_silent(struct tcp_door *d, uint64_t now_ns)
{
    const struct tcp_peer *silent;
    uint32_t at = 0;

    if (now_ns < d->look_due_ns)
        return;
    d->look_due_ns = now_ns + LOOK_MS * UINT64_C(1000000);
    while ((silent = tcp_peers_overdue(&d->peers, now_ns, &at)) != NULL) {
        d->n.silent++;
        end_connection(silent->fd, silent->cookie);
    }
    tcp_peers_expire(&d->peers, now_ns);
}

void tcp_door_serve(struct tcp_door *d, uint32_t budget, tcp_door_judge *judge, void *arg, uint64_t now_ns)
{
    count_events(d, now_ns);
    end_silent(d, now_ns);
    open_or_shut(d);
    judge_next(d, budget, judge, arg, now_ns);
    log_refusals(d, now_ns);
}
