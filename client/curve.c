/* curve.c - the keys of a tcp connection, and what its handshake came to.
 *
 * tcp without keys is refused here, before anything is sent: a broker would say no, but the prompt of a program that connects elsewhere
 * by mistake would be on the wire.  A key for another kind of endpoint is refused when it is given as an option, and ignored when it
 * is in the environment, where it stands for all endpoints. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"

enum {
    TOO_MANY_CONNECTIONS =
        500 /* status of a refused handshake; 400: the key is not known (docs/protocol.md) */
};

static const char *or_environment(const char *given, const char *name)
{
    const char *value = given != NULL ? given : getenv(name);

    return value != NULL && value[0] != '\0' ? value : NULL;
}

int client_find_keys(struct weir_client *c, const struct weir_options *o, struct weir_error *err)
{
    const char *file = or_environment(o->key_file, "WEIR_KEY"),
               *server = or_environment(o->server_key, "WEIR_SERVER_KEY");
    struct error why;

    c->curve = strncmp(c->endpoint, "tcp://", 6) == 0;
    if (!c->curve && (o->key_file != NULL || o->server_key != NULL)) {
        weir_error_format(err, ERR_INVALID_PARAMETER, o->key_file != NULL ? "key" : "server-key",
                          "keys are for tcp://; at %.100s you are who your process is", c->endpoint);
        return WEIR_FAILED;
    }
    if (!c->curve)
        return WEIR_OK;
    if (file == NULL) {
        weir_error_format(err, ERR_INVALID_PARAMETER, "key",
                          "tcp needs a key: --key FILE or WEIR_KEY names one that `weir key new` made on the "
                          "pool's machine");
        return WEIR_FAILED;
    }
    if (curve_pair_load(file, &c->pair, &why) != ST_OK) {
        weir_error_set(err, &why, 0);
        return WEIR_FAILED;
    }
    if (server != NULL && curve_key_parse(span_str(server), c->pair.server_key) != ST_OK) {
        weir_error_format(err, ERR_INVALID_PARAMETER, "server-key",
                          "the server key is neither 64 hexadecimal digits nor 40 of Z85");
        return WEIR_FAILED;
    }
    if (server == NULL && !c->pair.has_server_key) {
        weir_error_format(err, ERR_INVALID_PARAMETER, "server-key",
                          "whose server key?  %.100s has none; --server-key KEY or WEIR_SERVER_KEY, as `weir "
                          "key server` shows it",
                          file);
        return WEIR_FAILED;
    }
    return WEIR_OK;
}

bool client_set_keys(const struct weir_client *c)
{
    int beat_ms = 10000, timeout_ms = 30000;

    return zmq_setsockopt(c->socket, ZMQ_CURVE_SERVERKEY, c->pair.server_key, CURVE_KEY_BYTES) == 0 &&
           zmq_setsockopt(c->socket, ZMQ_CURVE_PUBLICKEY, c->pair.public_key, CURVE_KEY_BYTES) == 0 &&
           zmq_setsockopt(c->socket, ZMQ_CURVE_SECRETKEY, c->pair.secret_key, CURVE_KEY_BYTES) == 0 &&
           zmq_setsockopt(c->socket, ZMQ_IPV6, &(int){1}, sizeof(int)) == 0 &&
           zmq_setsockopt(c->socket, ZMQ_HEARTBEAT_IVL, &beat_ms, sizeof(beat_ms)) == 0 &&
           zmq_setsockopt(c->socket, ZMQ_HEARTBEAT_TIMEOUT, &timeout_ms, sizeof(timeout_ms)) == 0;
}

/* Which kinds of event there were; an event's first frame is u16 kind and u32 value.  *ret_refused: the value of the last refused handshake, which is
 * the status that the broker gave. */
static unsigned read_events(void *monitor, uint32_t *ret_refused)
{
    uint8_t event[256];
    unsigned seen = 0;
    bool first = true;

    for (;;) {
        uint16_t kind = 0;
        uint32_t value = 0;
        int more = 0, n = zmq_recv(monitor, event, sizeof(event), ZMQ_DONTWAIT);
        size_t n_more = sizeof(more);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return seen;
        if (first && n >= (int)(sizeof(kind) + sizeof(value))) {
            memcpy(&kind, event, sizeof(kind));
            memcpy(&value, event + sizeof(kind), sizeof(value));
            seen |= kind;
            if (kind == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH)
                *ret_refused = value;
        }
        first = zmq_getsockopt(monitor, ZMQ_RCVMORE, &more, &n_more) != 0 || more == 0;
    }
}

bool client_look_closed(struct weir_client *c, struct weir_error *ret_why)
{
    uint32_t refused = 0;
    unsigned seen = read_events(c->monitor, &refused);

    if (refused == TOO_MANY_CONNECTIONS)
        weir_error_format(ret_why, ERR_BUSY, "max-connections",
                          "the broker at %s lets no more connections of this user in: as many as "
                          "max-connections allows are open",
                          c->endpoint);
    else if (seen & ZMQ_EVENT_HANDSHAKE_FAILED_AUTH)
        weir_error_format(ret_why, ERR_PERMISSION_DENIED, "key",
                          "the broker at %s does not know this key, or no longer", c->endpoint);
    else if (seen & (ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL))
        weir_error_format(
            ret_why, ERR_UNREACHABLE, "server-key",
            "no handshake with %s: its key is another than the one given, or it is no weir broker",
            c->endpoint);
    else if (seen & ZMQ_EVENT_DISCONNECTED)
        weir_error_format(ret_why, ERR_UNREACHABLE, "", "the broker at %s closed the connection",
                          c->endpoint);
    else if (seen & ZMQ_EVENT_CONNECT_RETRIED)
        weir_error_format(ret_why, ERR_UNREACHABLE, "", "no broker: nobody answers at %s", c->endpoint);
    return seen != 0;
}
