/* client.c - the connection of libweir: open, keep, lose, come back.
 *
 * Everything happens in the caller's thread inside weir_process(); libzmq's I/O thread only moves bytes.  The socket's monitor
 * says when the connection closes, which is much sooner than any silence; silence catches the broker that is there but stopped.
 * A connect to a path where nobody listens would be retried by libzmq for ever, so weir_open() tries the path itself first:
 * "no broker" is then an answer in microseconds, and a pleasant one. */
#include "client.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <zmq.h>

#include "clock.h"
#include "paths.h"
#include "version.h"

enum {
    CONNECT_TIMEOUT_MS = 5000,
    SILENCE_TIMEOUT_MS = 30000,
    IN_FLIGHT = 4096,
    CLOSE_LINGER_MS = 100,
    MESSAGES_AT_ONCE = 1024, /* of one weir_process(): others of the caller's loop get their turn */
};

void weir_error_set(struct weir_error *e, const struct error *from, uint32_t retry_after_ms)
{
    memset(e, 0, sizeof(*e));
    snprintf(e->code, sizeof(e->code), "%s", error_code_name(from->code));
    snprintf(e->message, sizeof(e->message), "%s", from->message);
    snprintf(e->param, sizeof(e->param), "%s", from->param);
    e->retry_after_ms = retry_after_ms;
    e->http = error_code_http(from->code);
}

void weir_error_format(struct weir_error *e, enum error_code code, const char *param, const char *format, ...)
{
    struct error from;
    char message[ERROR_MESSAGE_BYTES + 16]; /* longer than fits, so that error_set() marks what it cuts */
    va_list args;

    va_start(args, format);
    vsnprintf(message, sizeof(message), format, args);
    va_end(args);
    error_set(&from, code, param, "%s", message);
    weir_error_set(e, &from, 0);
}

/* --- the table of open requests ---------------------------------------------------------------- */

static int table_init(struct weir_client *c, uint32_t n_slots)
{
    c->requests = calloc(n_slots, sizeof(*c->requests));
    if (c->requests == NULL)
        return WEIR_FAILED;
    c->n_slots = n_slots;
    c->generation = 1;
    for (uint32_t i = 0; i < n_slots; i++)
        c->requests[i].next_free = i + 1 < n_slots ? i + 1 : SLOT_NONE;
    c->first_free = 0;
    return WEIR_OK;
}

int client_take_slot(struct weir_client *c, weir_callback *callback, void *arg,
                     struct open_request **ret_request, char id[CLIENT_ID_DIGITS], struct weir_error *err)
{
    if (c->state != CLIENT_READY) {
        *err = c->down;
        return WEIR_FAILED;
    }
    if (c->first_free == SLOT_NONE) {
        weir_error_format(err, ERR_BUSY, "max_in_flight",
                          "%u requests of this client are under way, its limit", c->n_open);
        return WEIR_AGAIN;
    }
    uint32_t slot = c->first_free;
    struct open_request *r = &c->requests[slot];

    c->first_free = r->next_free;
    *r = (struct open_request){
        .number = c->generation++ * c->n_slots + slot, .callback = callback, .arg = arg};
    if (c->n_open++ == 0)
        c->heard_ns = clock_now_ns(); /* silence counts from here: nobody had to say anything before */
    snprintf(id, CLIENT_ID_DIGITS, "%llu", (unsigned long long)r->number);
    *ret_request = r;
    return WEIR_OK;
}

void client_free_slot(struct weir_client *c, struct open_request *r)
{
    assert(r->number != 0);
    r->number = 0;
    r->callback = NULL;
    r->next_free = c->first_free;
    c->first_free = (uint32_t)(r - c->requests);
    c->n_open--;
}

static void fail_all(struct weir_client *c, const struct weir_error *why)
{
    for (uint32_t i = 0; i < c->n_slots && c->n_open > 0; i++)
        if (c->requests[i].number != 0)
            client_fail_request(c, &c->requests[i], why);
}

/* --- sockets ----------------------------------------------------------------------------------- */

static int descriptor_of(void *socket)
{
    int fd = -1;
    size_t n = sizeof(fd);

    return zmq_getsockopt(socket, ZMQ_FD, &fd, &n) == 0 ? fd : -1;
}

static bool readable(void *socket)
{
    int events = 0;
    size_t n = sizeof(events);

    return socket != NULL && zmq_getsockopt(socket, ZMQ_EVENTS, &events, &n) == 0 &&
           (events & ZMQ_POLLIN) != 0;
}

void client_settle(struct weir_client *c)
{
    /* Both are asked, always: the question itself takes in libzmq's commands and so disarms the descriptor. */
    bool message = readable(c->socket), event = readable(c->monitor);

    if (message || event) {
        ssize_t n = write(c->wake, &(uint64_t){1}, sizeof(uint64_t));
        (void)n; /* full: then it is readable, which is all we want */
    }
}

static void socket_close(struct weir_client *c, void **socket, int linger_ms)
{
    if (*socket == NULL)
        return;
    epoll_ctl(c->epoll, EPOLL_CTL_DEL, descriptor_of(*socket), NULL); /* before the reaper closes it */
    zmq_setsockopt(*socket, ZMQ_LINGER, &linger_ms, sizeof(linger_ms));
    zmq_close(*socket);
    *socket = NULL;
}

static bool socket_watch(struct weir_client *c, void *socket)
{
    int fd = descriptor_of(socket);

    return fd >= 0 && epoll_ctl(c->epoll, EPOLL_CTL_ADD, fd, &(struct epoll_event){.events = EPOLLIN}) == 0;
}

static void connection_drop(struct weir_client *c, int linger_ms)
{
    socket_close(c, &c->socket, linger_ms);
    socket_close(c, &c->monitor, 0);
}

/* A new socket, its monitor, connect, hello.  The hello waits in the socket until the broker is there. */
static bool connection_make(struct weir_client *c, struct weir_error *err)
{
    char monitor[64];
    int64_t frame_max = FRAME_BYTES_MAX;

    c->socket = zmq_socket(c->context, ZMQ_DEALER);
    c->monitor = zmq_socket(c->context, ZMQ_PAIR);
    if (c->socket == NULL || c->monitor == NULL)
        goto failed;
    zmq_setsockopt(c->socket, ZMQ_LINGER, &(int){0}, sizeof(int));
    zmq_setsockopt(c->socket, ZMQ_SNDHWM, &(int){0},
                   sizeof(int)); /* max_in_flight bounds it; a cancel always fits */
    zmq_setsockopt(c->socket, ZMQ_MAXMSGSIZE, &frame_max, sizeof(frame_max));
    zmq_setsockopt(c->socket, ZMQ_RECONNECT_IVL, &(int){50}, sizeof(int));
    zmq_setsockopt(c->socket, ZMQ_RECONNECT_IVL_MAX, &(int){500}, sizeof(int));
    snprintf(monitor, sizeof(monitor), "inproc://monitor-%u", c->sockets_made++);
    if (c->curve && !client_set_keys(c))
        goto failed;
    if (zmq_socket_monitor(c->socket, monitor, c->curve ? CLIENT_MONITOR_TCP : CLIENT_MONITOR_IPC) != 0 ||
        zmq_connect(c->monitor, monitor) != 0)
        goto failed;
    if (zmq_connect(c->socket, c->endpoint) != 0) {
        weir_error_format(err, ERR_INVALID_PARAMETER, "endpoint", "cannot connect to %s: %s", c->endpoint,
                          zmq_strerror(errno));
        goto out;
    }
    if (!socket_watch(c, c->socket) || !socket_watch(c, c->monitor))
        goto failed;
    if (wire_encode_hello(&c->out, span_str(c->name)) != ST_OK)
        goto failed;
    if (client_send(c, err) != WEIR_OK)
        goto out;
    return true;
failed:
    weir_error_format(err, ERR_INTERNAL, "", "cannot make a socket: %s", zmq_strerror(errno));
out:
    connection_drop(c, 0);
    return false;
}

static uint32_t backoff_next(struct weir_client *c)
{
    uint32_t ms = c->backoff_ms;

    c->backoff_ms = ms * 2 < CLIENT_BACKOFF_MAX_MS ? ms * 2 : CLIENT_BACKOFF_MAX_MS;
    return ms;
}

static void connect_start(struct weir_client *c)
{
    assert(c->state == CLIENT_DOWN);
    if (!connection_make(c, &c->down)) {
        c->retry_at_ns = clock_now_ns() + backoff_next(c) * 1000000ull;
        return;
    }
    c->state = CLIENT_GREETING;
    c->state_since_ns = clock_now_ns();
}

/* The connection is of no use any more.  State first, so that callbacks that submit at once are refused. */
static void connection_lost(struct weir_client *c, const struct weir_error *why)
{
    connection_drop(c, 0);
    c->state = CLIENT_DOWN;
    c->down = *why;
    c->retry_at_ns = clock_now_ns() + backoff_next(c) * 1000000ull;
    fail_all(c, why);
}

/* A call of libzmq, again for as long as a signal is why it failed. */
#define again_if_interrupted(call, ...)           \
    __extension__({                               \
        int rc_;                                  \
        do                                        \
            rc_ = call(__VA_ARGS__);              \
        while (rc_ < 0 && errno == EINTR);        \
        rc_;                                      \
    })

int client_send(struct weir_client *c, struct weir_error *err)
{
    if (c->out.n > FRAME_BYTES_MAX) {
        weir_error_format(err, ERR_LIMIT_EXCEEDED, "",
                          "the request has %zu bytes when encoded, the limit is %d", c->out.n,
                          FRAME_BYTES_MAX);
        return WEIR_FAILED;
    }
    zmq_msg_t body; /* its memory is taken before the first frame goes: half a message would be glued to the next one */
    bool sent = zmq_msg_init_size(&body, c->out.n) == 0;
    if (sent) {
        memcpy(zmq_msg_data(&body), c->out.at, c->out.n);
        sent = again_if_interrupted(zmq_send, c->socket, WIRE_SIGNATURE, WIRE_SIGNATURE_BYTES, ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0 &&
               again_if_interrupted(zmq_msg_send, &body, c->socket, ZMQ_DONTWAIT) >= 0;
        if (!sent)
            zmq_msg_close(&body);
    }
    if (!sent) {
        weir_error_format(err, ERR_UNREACHABLE, "", "cannot send: %s", zmq_strerror(errno));
        return WEIR_FAILED;
    }
    return WEIR_OK;
}

/* --- receiving --------------------------------------------------------------------------------- */

/* One message: the last frame is the body, the one before it the signature.
 * WEIR_AGAIN when none is there; WEIR_FAILED when what came is not ours. */
static int receive(struct weir_client *c, zmq_msg_t *body, struct weir_error *err)
{
    bool more = true, ours = false;

    while (more) {
        if (again_if_interrupted(zmq_msg_recv, body, c->socket, ZMQ_DONTWAIT) < 0)
            return WEIR_AGAIN; /* only before the first frame: libzmq hands over whole messages */
        more = zmq_msg_more(body);
        if (more && zmq_msg_size(body) > 0) {
            uint8_t major = 0;
            enum status st = wire_check_signature(span_of(zmq_msg_data(body), zmq_msg_size(body)), &major);
            if (st == ST_UNSUPPORTED) {
                weir_error_format(err, ERR_VERSION_MISMATCH, "",
                                  "the broker speaks version %u of the protocol, we speak %d", major,
                                  WIRE_MAJOR);
                return WEIR_FAILED;
            }
            ours = st == ST_OK;
        }
    }
    if (!ours) {
        weir_error_format(err, ERR_UNREACHABLE, "", "what listens at %s is not a weir broker", c->endpoint);
        return WEIR_FAILED;
    }
    return WEIR_OK;
}

/* Take in at most `budget` messages.  WEIR_OK: more may be there; WEIR_AGAIN: none is left; WEIR_FAILED: *err. */
static int drain(struct weir_client *c, uint32_t budget, struct weir_error *err)
{
    zmq_msg_t body;
    int result = WEIR_OK;

    zmq_msg_init(&body);
    while (result == WEIR_OK && budget-- > 0) {
        result = receive(c, &body, err);
        if (result == WEIR_OK) {
            c->heard_ns = clock_now_ns();
            result = client_dispatch(c, span_of(zmq_msg_data(&body), zmq_msg_size(&body)), err);
        }
    }
    zmq_msg_close(&body);
    return result;
}

static bool over(uint64_t since_ns, uint64_t now_ns, uint32_t limit_ms)
{
    return now_ns > since_ns && now_ns - since_ns >= limit_ms * 1000000ull;
}

static void process(struct weir_client *c)
{
    struct weir_error why, how;
    uint64_t ignored, now = clock_now_ns();
    ssize_t n = read(c->wake, &ignored, sizeof(ignored));

    (void)n;
    if (c->state == CLIENT_DOWN && now >= c->retry_at_ns)
        connect_start(c);
    if (c->state == CLIENT_DOWN)
        return;

    bool gone = client_look_closed(c, &how); /* asked first: what was sent before it closed is in the socket by now */
    int result = drain(c, gone ? UINT32_MAX : MESSAGES_AT_ONCE, &why);
    if (result == WEIR_AGAIN && gone) {
        why = how;
        result = WEIR_FAILED;
    } else if (result == WEIR_AGAIN && c->state == CLIENT_READY && c->n_open > 0 &&
               over(c->heard_ns, now, c->silence_timeout_ms)) {
        weir_error_format(&why, ERR_UNREACHABLE, "", "the broker at %s has been silent for %u ms",
                          c->endpoint, c->silence_timeout_ms);
        result = WEIR_FAILED;
    } else if (result == WEIR_AGAIN && c->state == CLIENT_GREETING &&
               over(c->state_since_ns, now, c->connect_timeout_ms)) {
        weir_error_format(&why, ERR_UNREACHABLE, "", "the broker at %s did not answer within %u ms",
                          c->endpoint, c->connect_timeout_ms);
        result = WEIR_FAILED;
    }
    if (result == WEIR_FAILED)
        connection_lost(c, &why);
}

int weir_process(struct weir_client *c, struct weir_error *err)
{
    assert(!c->in_callback);
    process(c);
    client_settle(c);
    if (c->state == CLIENT_READY)
        return WEIR_OK;
    *err = c->down;
    return WEIR_FAILED;
}

int weir_fd(const struct weir_client *c)
{
    return c->epoll;
}

int weir_timeout_ms(const struct weir_client *c)
{
    uint64_t now = clock_now_ns(), at;

    if (c->state == CLIENT_DOWN)
        at = c->retry_at_ns;
    else if (c->state == CLIENT_GREETING)
        at = c->state_since_ns + c->connect_timeout_ms * 1000000ull;
    else if (c->n_open > 0)
        at = c->heard_ns + c->silence_timeout_ms * 1000000ull;
    else
        return -1;
    return at <= now ? 0 : (int)((at - now + 999999) / 1000000);
}

size_t weir_in_flight(const struct weir_client *c)
{
    return c->n_open;
}

bool weir_connected(const struct weir_client *c)
{
    return c->state == CLIENT_READY;
}

void client_wait(struct weir_client *c)
{
    struct pollfd p = {.fd = c->epoll, .events = POLLIN};

    poll(&p, 1, weir_timeout_ms(c)); /* interrupted is as good as woken */
    process(c);
    client_settle(c);
}

int client_wait_ready(struct weir_client *c, struct weir_error *err)
{
    uint64_t until = clock_now_ns() + c->connect_timeout_ms * 1000000ull;

    while (c->state != CLIENT_READY && clock_now_ns() < until)
        client_wait(c);
    if (c->state == CLIENT_READY)
        return WEIR_OK;
    *err = c->down;
    return WEIR_FAILED;
}

/* --- open and close ---------------------------------------------------------------------------- */

/* Is anybody listening on the socket file?  Only a clear no is a no. */
static int probe(const char *endpoint, struct weir_error *err)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};

    if (strncmp(endpoint, "ipc://", 6) != 0 || endpoint[6] == '@')
        return WEIR_OK;
    const char *path = endpoint + 6;
    if (strlen(path) > PATHS_SOCKET_BYTES_MAX) {
        weir_error_format(err, ERR_INVALID_PARAMETER, "endpoint",
                          "the socket's path has %zu bytes, the limit is %d", strlen(path),
                          PATHS_SOCKET_BYTES_MAX);
        return WEIR_FAILED;
    }
    memcpy(to.sun_path, path, strlen(path));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return WEIR_OK;
    int e = connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0 ? 0 : errno;
    close(fd);
    if (e == ENOENT || e == ENOTDIR)
        weir_error_format(err, ERR_UNREACHABLE, "", "no broker: %s does not exist (weir serve starts one)",
                          path);
    else if (e == ECONNREFUSED)
        weir_error_format(err, ERR_UNREACHABLE, "", "no broker: nobody listens at %s any more", path);
    else if (e == EACCES || e == EPERM)
        weir_error_format(err, ERR_UNREACHABLE, "", "no permission to open %s (are you in the group weir?)",
                          path);
    else
        return WEIR_OK;
    return WEIR_FAILED;
}

static int set_endpoint(struct weir_client *c, const char *endpoint, struct weir_error *err)
{
    struct error why;

    if (endpoint == NULL) {
        if (paths_endpoint(c->endpoint, &why) != ST_OK) {
            weir_error_set(err, &why, 0);
            return WEIR_FAILED;
        }
    } else if (snprintf(c->endpoint, sizeof(c->endpoint), "%s", endpoint) >= (int)sizeof(c->endpoint)) {
        weir_error_format(err, ERR_LIMIT_EXCEEDED, "endpoint", "the endpoint is longer than %zu bytes",
                          sizeof(c->endpoint) - 1);
        return WEIR_FAILED;
    }
    if (strstr(c->endpoint, "://") == NULL) {
        weir_error_format(err, ERR_INVALID_PARAMETER, "endpoint",
                          "an endpoint looks like ipc:///run/weir/broker.sock, not \"%.100s\"", c->endpoint);
        return WEIR_FAILED;
    }
    return probe(c->endpoint, err);
}

static int set_options(struct weir_client *c, const struct weir_options *o, struct weir_error *err)
{
    uint32_t in_flight = o->max_in_flight != 0 ? o->max_in_flight : IN_FLIGHT;

    c->connect_timeout_ms = o->connect_timeout_ms != 0 ? o->connect_timeout_ms : CONNECT_TIMEOUT_MS;
    c->silence_timeout_ms = o->silence_timeout_ms != 0 ? o->silence_timeout_ms : SILENCE_TIMEOUT_MS;
    c->backoff_ms = CLIENT_BACKOFF_MIN_MS;
    snprintf(c->name, sizeof(c->name), "%s", o->name != NULL ? o->name : "libweir");
    if (in_flight > CLIENT_IN_FLIGHT_MAX) {
        weir_error_format(err, ERR_LIMIT_EXCEEDED, "max_in_flight", "max_in_flight is %u, the limit is %d",
                          in_flight, CLIENT_IN_FLIGHT_MAX);
        return WEIR_FAILED;
    }
    if (table_init(c, in_flight) != WEIR_OK || set_endpoint(c, o->endpoint, err) != WEIR_OK)
        return WEIR_FAILED;
    return client_find_keys(c, o, err);
}

static void client_free(struct weir_client *c)
{
    if (c == NULL)
        return;
    if (c->context != NULL)
        zmq_ctx_term(c->context);
    if (c->epoll >= 0)
        close(c->epoll);
    if (c->wake >= 0)
        close(c->wake);
    curve_pair_forget(&c->pair);
    wire_buffer_deinit(&c->out);
    free(c->text);
    free(c->requests);
    free(c);
}

int weir_open(struct weir_client **ret_client, const struct weir_options *options, struct weir_error *err)
{
    struct weir_client *c = calloc(1, sizeof(*c));

    weir_error_format(err, ERR_INTERNAL, "", "cannot open a client: out of memory or descriptors");
    if (c == NULL)
        return WEIR_FAILED;
    c->epoll = epoll_create1(EPOLL_CLOEXEC);
    c->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    c->context = zmq_ctx_new();
    if (c->epoll < 0 || c->wake < 0 || c->context == NULL ||
        epoll_ctl(c->epoll, EPOLL_CTL_ADD, c->wake, &(struct epoll_event){.events = EPOLLIN}) != 0)
        goto out;
    if (set_options(c, options != NULL ? options : &(struct weir_options){0}, err) != WEIR_OK)
        goto out;
    connect_start(c);
    client_settle(c);
    while (c->state == CLIENT_GREETING)
        client_wait(c); /* ends by the hello, by its timeout or by the broker's no */
    if (c->state != CLIENT_READY) {
        *err = c->down;
        goto out;
    }
    memset(err, 0, sizeof(*err));
    *ret_client = c;
    return WEIR_OK;
out:
    connection_drop(c, 0);
    client_free(c);
    return WEIR_FAILED;
}

void weir_close(struct weir_client *c)
{
    if (c == NULL)
        return;
    assert(!c->in_callback);
    for (uint32_t i = 0; i < c->n_slots && c->n_open > 0; i++)
        if (c->requests[i].number != 0) {
            weir_cancel(c, c->requests[i].number);
            client_free_slot(c, &c->requests[i]);
        }
    connection_drop(c, CLOSE_LINGER_MS);
    client_free(c);
}

const char *weir_version(void)
{
    return version_text();
}
