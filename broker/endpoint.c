/* endpoint.c - see endpoint.h.
 *
 * ZMQ_MAXMSGSIZE bounds one frame before libzmq allocates it, the high-water marks bound messages a peer.  HANDSHAKE_IVL cuts peers that
 * connect and say nothing.  There is no ROUTER_HANDOVER: it would let a peer take another's id, and leaks a descriptor each time.
 * A client that dies without a word is found by ROUTER_MANDATORY: a send to it fails with EHOSTUNREACH. */
#include "endpoint.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "descriptors.h"
#include "limits.h"
#include "log.h"
#include "paths.h"
#include "tcp_door.h"
#include "wire.h"

enum { HANDSHAKE_MS = 5000, BACKLOG = 512, PART_COUNT_MAX = 5 };

static enum status system_error(struct error *err, const char *param, const char *what, const char *name)
{
    error_set(err, ERR_INTERNAL, param, "%s %.200s: %s", what, name, zmq_strerror(errno));
    return ST_SYSTEM;
}

/* The lock file is never removed: an unlinked one could be locked by two. */
static enum status take_lock(const char *socket_path, int *ret_fd, struct error *err)
{
    char path[PATHS_SOCKET_BYTES_MAX + sizeof(".lock")];

    snprintf(path, sizeof(path), "%s.lock", socket_path);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0640);
    if (fd < 0)
        return system_error(err, "endpoint", "cannot open", path);
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        bool taken = errno == EWOULDBLOCK;

        if (taken)
            error_set(err, ERR_INVALID_PARAMETER, "endpoint", "another broker holds %s", path);
        else
            system_error(err, "endpoint", "cannot lock", path);
        close(fd);
        return taken ? ST_INVALID : ST_SYSTEM;
    }
    *ret_fd = fd;
    return ST_OK;
}

static void set_int(void *socket, int option, int value)
{
    int rc = zmq_setsockopt(socket, option, &value, sizeof(value));

    assert(rc == 0); /* option and value are constants that this libzmq knows */
}

void endpoint_set_limits(void *socket)
{
    int64_t bytes = FRAME_BYTES_MAX;
    int rc = zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &bytes, sizeof(bytes));

    assert(rc == 0);
    set_int(socket, ZMQ_ROUTER_MANDATORY, 1);
    set_int(socket, ZMQ_SNDHWM, ENDPOINT_SEND_MESSAGES_MAX);
    set_int(socket, ZMQ_RCVHWM, ENDPOINT_RECEIVE_MESSAGES_MAX);
    set_int(socket, ZMQ_HANDSHAKE_IVL, HANDSHAKE_MS);
    set_int(socket, ZMQ_LINGER, ENDPOINT_LINGER_MS);
    set_int(socket, ZMQ_BACKLOG, BACKLOG);
}

enum status endpoint_open(const char *uri, const char *runtime_dir, struct endpoint *ret_endpoint, struct error *err)
{
    const char *path = uri + strlen("ipc://");
    struct endpoint e = { .lock = -1 };
    enum status st = paths_make_private(runtime_dir, 0750, err);

    if (st == ST_OK)
        st = take_lock(path, &e.lock, err);
    if (st != ST_OK)
        return st;
    descriptors_raise_limit();
    e.context = zmq_ctx_new();
    if (e.context != NULL)
        e.socket = zmq_socket(e.context, ZMQ_ROUTER);
    if (e.socket == NULL) {
        st = system_error(err, "endpoint", "cannot make a socket for", uri);
        goto out;
    }
    endpoint_set_limits(e.socket);
    mode_t old = umask(0007); /* the socket is the group's: libzmq sets no mode of its own */
    int rc = zmq_bind(e.socket, uri);
    umask(old);
    if (rc != 0) {
        st = system_error(err, "endpoint", "cannot bind", uri);
        goto out;
    }
    *ret_endpoint = e;
    return ST_OK;
out:
    endpoint_close(&e);
    return st;
}

void endpoint_close(struct endpoint *e)
{
    tcp_door_close(e->tcp);
    if (e->socket != NULL)
        zmq_close(e->socket);
    if (e->context != NULL)
        while (zmq_ctx_term(e->context) != 0 && errno == EINTR)
            continue;
    if (e->lock >= 0)
        close(e->lock);
    *e = (struct endpoint){ .lock = -1 };
}

/* "localhost:UID:GID:PID" -> UID.  ST_OK or ST_INVALID. */
static enum status uid_of_address(const char *address, uid_t *ret_uid)
{
    unsigned uid;
    int end = 0;

    /* The host part of a unix peer is the literal word; anything else is another transport. */
    if (strncmp(address, "localhost:", 10) != 0 || address[10] < '0' || address[10] > '9')
        return ST_INVALID;
    if (sscanf(address + 10, "%10u:%n", &uid, &end) != 1 || end == 0)
        return ST_INVALID;
    *ret_uid = (uid_t)uid;
    return ST_OK;
}

static bool has_more(zmq_msg_t *m)
{
    return zmq_msg_more(m) != 0;
}

static struct span bytes_of(zmq_msg_t *m)
{
    return span_of(zmq_msg_data(m), zmq_msg_size(m));
}

/* Read frames into parts; what is over PART_COUNT_MAX is read and dropped.  Gives how many there were. */
static uint32_t read_parts(void *socket, zmq_msg_t parts[PART_COUNT_MAX])
{
    zmq_msg_t rest;
    uint32_t n = 0;
    bool more = true;

    while (more) {
        zmq_msg_t *m = n < PART_COUNT_MAX ? &parts[n] : &rest;

        zmq_msg_init(m);
        while (zmq_msg_recv(m, socket, ZMQ_DONTWAIT) < 0)
            if (errno != EINTR) {
                zmq_msg_close(m);
                return n; /* the first frame: nothing there.  Later ones come with it: libzmq delivers whole messages */
            }
        more = has_more(m);
        if (n >= PART_COUNT_MAX)
            zmq_msg_close(m);
        n++;
    }
    return n;
}

/* Who sent it: on ipc the kernel's word, on tcp the key that CURVE has verified and the ZAP handler named. */
static bool identify(zmq_msg_t *m, struct received *r)
{
    if (r->peer.socket != ENDPOINT_TCP) {
        const char *address = zmq_msg_gets(m, "Peer-Address");

        return address != NULL && uid_of_address(address, &r->uid) == ST_OK;
    }
    r->by_key = true;
    r->uid = NO_UID;
    return tcp_door_key_of(m, r->key) == ST_OK;
}

/* parts[0] is the id; then an empty delimiter or not; then signature and body. */
static void check_parts(zmq_msg_t *parts, uint32_t n, struct received *r)
{
    struct span id = bytes_of(&parts[0]);
    uint32_t at = 1;
    uint8_t major = 0;

    r->answerable = id.n == PEER_ID_BYTES && id.at[0] == 0;
    if (!r->answerable) {
        error_set(&r->problem, ERR_PERMISSION_DENIED, "", "peers may not choose their routing id");
        return;
    }
    memcpy(r->peer.id, id.at, PEER_ID_BYTES);
    if (n > at && bytes_of(&parts[at]).n == 0) {
        r->peer.delimiter = true;
        at++;
    }
    if (n != at + 2) {
        error_set(&r->problem, ERR_MALFORMED_MESSAGE, "", "a message is two frames, signature and map; this one has %u", n - at);
        return;
    }
    enum status st = wire_check_signature(bytes_of(&parts[at]), &major);
    if (st == ST_UNSUPPORTED)
        error_set(&r->problem, ERR_VERSION_MISMATCH, "", "this broker speaks version %d of the protocol, not %d", WIRE_MAJOR, major);
    else if (st != ST_OK)
        error_set(&r->problem, ERR_MALFORMED_MESSAGE, "", "the first frame is not WEIR and a version byte");
    if (st != ST_OK)
        return;
    if (!identify(&parts[at + 1], r)) {
        error_set(&r->problem, ERR_PERMISSION_DENIED, "", "this connection has no credentials");
        return;
    }
    zmq_msg_move(&r->body, &parts[at + 1]);
}

static void *socket_of(const struct endpoint *e, uint8_t which)
{
    return which == ENDPOINT_TCP ? tcp_door_socket(e->tcp) : e->socket;
}

enum status endpoint_receive(struct endpoint *e, struct received *ret_received)
{
    zmq_msg_t parts[PART_COUNT_MAX];
    uint8_t which = e->tcp_first ? ENDPOINT_TCP : ENDPOINT_IPC;
    uint32_t n = read_parts(socket_of(e, which), parts);

    if (n == 0 && e->tcp != NULL) {
        which = which == ENDPOINT_TCP ? ENDPOINT_IPC : ENDPOINT_TCP;
        n = read_parts(socket_of(e, which), parts);
    }
    if (n == 0)
        return errno == EAGAIN ? ST_AGAIN : ST_SYSTEM;
    e->tcp_first = e->tcp != NULL && which == ENDPOINT_IPC; /* in turn: neither side can keep the other out */
    memset(ret_received, 0, sizeof(*ret_received));
    ret_received->peer.socket = which;
    zmq_msg_init(&ret_received->body);
    if (which == ENDPOINT_TCP && n > 1)
        tcp_door_heard(e->tcp, &parts[1]);
    check_parts(parts, n, ret_received);
    for (uint32_t i = 0; i < n && i < PART_COUNT_MAX; i++)
        zmq_msg_close(&parts[i]);
    return ST_OK;
}

void received_deinit(struct received *r)
{
    zmq_msg_close(&r->body);
}

struct span received_body(struct received *r)
{
    return bytes_of(&r->body);
}

static bool copy_of(zmq_msg_t *m, const void *at, size_t n)
{
    if (zmq_msg_init_size(m, n) != 0)
        return false;
    if (n > 0)
        memcpy(zmq_msg_data(m), at, n);
    return true;
}

static int send_message(void *socket, zmq_msg_t *m, int flags)
{
    int rc;

    do
        rc = zmq_msg_send(m, socket, flags | ZMQ_DONTWAIT);
    while (rc < 0 && errno == EINTR);
    if (rc < 0)
        zmq_msg_close(m);
    return rc;
}

/* All memory is taken before the first frame goes: a message that ends in the middle would be glued to the next one. */
enum status endpoint_send(struct endpoint *e, const struct peer *to, struct span body)
{
    void *socket = socket_of(e, to->socket);
    zmq_msg_t signature, empty, rest;
    int rc;

    if (!copy_of(&rest, body.at, body.n))
        return ST_AGAIN;
    zmq_msg_init(&empty);
    if (!copy_of(&signature, WIRE_SIGNATURE, WIRE_SIGNATURE_BYTES)) {
        zmq_msg_close(&rest);
        return ST_AGAIN;
    }
    do
        rc = zmq_send(socket, to->id, PEER_ID_BYTES, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    while (rc < 0 && errno == EINTR);
    if (rc < 0) {
        enum status st = errno == EAGAIN ? ST_AGAIN : ST_GONE;

        zmq_msg_close(&signature);
        zmq_msg_close(&rest);
        return st;
    }
    /* The first frame chose the pipe and found room; if it breaks now, libzmq drops the rest without an error. */
    bool sent = !to->delimiter || send_message(socket, &empty, ZMQ_SNDMORE) >= 0;
    sent = send_message(socket, &signature, ZMQ_SNDMORE) >= 0 && sent;
    sent = send_message(socket, &rest, 0) >= 0 && sent;
    return sent ? ST_OK : ST_GONE;
}
