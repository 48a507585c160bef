/* login.c - public keys, and nothing else.
 *
 * libssh calls auth_pubkey twice for a key: with state NONE when the client asks whether the key would do, and with state VALID
 * when its signature has been verified.  Only the second call binds the connection to a user, and it takes the key of that very call:
 * the last *offered* key may be another one.  Certificates are refused, because the library only parses them.
 * The name given as `ssh NAME@box` does not matter: the key says who it is. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "connection.h"
#include "log.h"

/* Ask (b) and wait for its answer: only here, where there is nothing else to do.
 * ST_OK, ST_NOT_FOUND (an ERROR came), ST_GONE.  The reply's body is in c->packet. */
static enum status ask_now(struct connection *c, enum door_type type, const struct byte_writer *body, struct door_message *ret_reply)
{
    struct door_message m = { .type = type,
                              .op = DOOR_LOGIN_OP,
                              .serial = c->probes + c->tries,
                              .body = byte_writer_written(body),
                              .fd = -1 };

    if (c->door_gone || door_send(c->door, &m) != ST_OK ||
        door_receive(c->door, c->packet, ret_reply) != ST_OK) {
        c->door_gone = true;
        return ST_GONE;
    }
    if (ret_reply->fd >= 0)
        close(ret_reply->fd);
    ret_reply->fd = -1;
    if (ret_reply->op != DOOR_LOGIN_OP || ret_reply->serial != m.serial) {
        c->door_gone = true;
        return ST_GONE;
    }
    return ret_reply->type == DOOR_REPLY ? ST_OK : ST_NOT_FOUND;
}

/* Type and base64 blob of a plain public key into w.  false: not one we take. */
static bool put_key(struct byte_writer *w, ssh_key key)
{
    const char *type = ssh_key_type_to_char(ssh_key_type(key));
    char *blob = NULL;

    if (type == NULL || strstr(type, "-cert-") != NULL || ssh_pki_export_pubkey_base64(key, &blob) != SSH_OK)
        return false;
    door_put_str(w, span_str(type));
    door_put_str(w, span_str(blob));
    ssh_string_free_char(blob);
    return !w->failed;
}

static int on_probe(struct connection *c, const struct byte_writer *w)
{
    struct door_message reply;

    if (++c->probes > LOGIN_PROBES_MAX) {
        c->give_up = true;
        return SSH_AUTH_DENIED;
    }
    return ask_now(c, DOOR_KEY_PROBE, w, &reply) == ST_OK ? SSH_AUTH_SUCCESS : SSH_AUTH_DENIED;
}

static int on_valid(struct connection *c, struct byte_writer *w, const char *ssh_user)
{
    struct door_message reply;

    c->tries++;
    door_put_str(w, span_of(ssh_user, strnlen(ssh_user, 256)));
    if (w->failed || ask_now(c, DOOR_LOGIN, w, &reply) != ST_OK) {
        c->give_up = c->tries >= LOGIN_TRIES_MAX;
        return SSH_AUTH_DENIED;
    }
    struct door_reader r = { .left = reply.body };
    struct span name = door_get_str(&r);
    if (!door_read_all(&r) || name.n >= sizeof c->user) {
        c->give_up = true;
        return SSH_AUTH_DENIED;
    }
    memcpy(c->user, name.at, name.n);
    c->user[name.n] = '\0';
    c->logged_in = true;
    return SSH_AUTH_SUCCESS;
}

static int on_pubkey(ssh_session session, const char *user, struct ssh_key_struct *key, char state, void *arg)
{
    struct connection *c = arg;
    uint8_t buffer[20 << 10];
    struct byte_writer w = { .at = buffer, .capacity = sizeof buffer };

    (void)session;
    if (c->logged_in || c->give_up)
        return SSH_AUTH_DENIED;
    if (!put_key(&w, key)) {
        c->give_up = ++c->probes > LOGIN_PROBES_MAX;
        return SSH_AUTH_DENIED;
    }
    if (state == SSH_PUBLICKEY_STATE_NONE)
        return on_probe(c, &w);
    if (state == SSH_PUBLICKEY_STATE_VALID)
        return on_valid(c, &w, user);
    c->give_up = ++c->tries >= LOGIN_TRIES_MAX;
    return SSH_AUTH_DENIED;
}

static int on_none(ssh_session session, const char *user, void *arg)
{
    struct connection *c = arg;

    (void)session;
    (void)user;
    c->give_up = ++c->probes > LOGIN_PROBES_MAX; /* each client begins with one, to learn the methods */
    return SSH_AUTH_DENIED;
}

void login_setup(struct connection *c)
{
    c->callbacks.userdata = c;
    c->callbacks.auth_pubkey_function = on_pubkey;
    c->callbacks.auth_none_function = on_none;
    ssh_set_auth_methods(c->session, SSH_AUTH_METHOD_PUBLICKEY);
}
