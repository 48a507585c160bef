/* connection.c - (c): one ssh connection, from its first byte to its last, and nothing else.
 *
 * Starts with three descriptors (gateway.h), reads the host keys, gives up every privilege, and only then speaks to the network.
 * One thread, one loop: libssh's event polls the TCP socket and the door; after each turn every channel does what it can.
 * The session is non-blocking after the key exchange; no call in here waits for the peer.  If a turn takes longer than WATCHDOG_S, or
 * computes for WATCHDOG_CPU_S (a peer that announces a maximum packet of 10 bytes makes libssh spin), SIGALRM or SIGPROF, which nobody
 * handles, end this process and no other.
 * The login grace is the listener's clock. */
#include "connection.h"

#include <errno.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "clock.h"
#include "gateway.h"
#include "limits.h"
#include "log.h"
#include "sandbox.h"

/* Group exchange is left out: it would read a moduli file. */
#define KEX                                                                                           \
    "curve25519-sha256,curve25519-sha256@libssh.org,ecdh-sha2-nistp256,ecdh-sha2-nistp384,ecdh-sha2-" \
    "nistp521,"                                                                                       \
    "diffie-hellman-group18-sha512,diffie-hellman-group16-sha512"
#define CIPHERS                                                                                          \
    "chacha20-poly1305@openssh.com,aes256-gcm@openssh.com,aes128-gcm@openssh.com,aes256-ctr,aes192-ctr," \
    "aes128-ctr"
#define MACS                "hmac-sha2-256-etm@openssh.com,hmac-sha2-512-etm@openssh.com,hmac-sha2-256,hmac-sha2-512"
#define HOST_KEY_ALGORITHMS "ssh-ed25519,rsa-sha2-512,rsa-sha2-256"
/* No -cert-v01: a certificate would have to be checked, and libssh does not. */
#define USER_KEY_TYPES                                                                                    \
    "ssh-ed25519,ecdsa-sha2-nistp256,ecdsa-sha2-nistp384,ecdsa-sha2-nistp521,sk-ssh-ed25519@openssh.com," \
    "sk-ecdsa-sha2-nistp256@openssh.com,rsa-sha2-512,rsa-sha2-256"

enum { RSA_BITS_MIN = 2048, IDLE_POLL_MS = 5000, LAST_WORDS_MS = 2000, KIT_BYTES_MAX = 64 << 10 };

struct kit {
    char *ed25519, *rsa;
    uint32_t grace_s, log_level;
};

static char *copy_span(struct span s)
{
    char *text = malloc(s.n + 1);

    if (text != NULL) {
        memcpy(text, s.at, s.n);
        text[s.n] = '\0';
    }
    return text;
}

static enum status read_kit(struct kit *ret_kit)
{
    char *bytes = NULL;
    size_t n = 0;
    enum status st = door_memfd_read(FD_KIT, KIT_BYTES_MAX, &bytes, &n);

    close(FD_KIT);
    if (st != ST_OK)
        return st;
    struct door_reader r = { .left = span_of(bytes, n) };
    struct span ed25519 = door_get_str(&r), rsa = door_get_str(&r);
    ret_kit->grace_s = door_get_u32(&r);
    ret_kit->log_level = door_get_u32(&r);
    if (door_read_all(&r)) {
        ret_kit->ed25519 = copy_span(ed25519);
        ret_kit->rsa = copy_span(rsa);
    } else {
        st = ST_CORRUPT;
    }
    explicit_bzero(bytes, n);
    free(bytes);
    return st == ST_OK && ret_kit->ed25519 != NULL && ret_kit->rsa != NULL ? ST_OK : ST_CORRUPT;
}

static bool import_key(ssh_bind bind, char *text)
{
    ssh_key key = NULL;
    bool ok = ssh_pki_import_privkey_base64(text, NULL, NULL, NULL, &key) == SSH_OK &&
              ssh_bind_options_set(bind, SSH_BIND_OPTIONS_IMPORT_KEY, key) == SSH_OK; /* takes key */

    explicit_bzero(text, strlen(text));
    free(text);
    return ok;
}

static bool set_up_bind(ssh_bind bind, struct kit *kit)
{
    const bool off = false;
    const int rsa_bits = RSA_BITS_MIN;
    static const struct {
        enum ssh_bind_options_e option;
        const char *value;
    } strings[] = {
        { SSH_BIND_OPTIONS_KEY_EXCHANGE, KEX },
        { SSH_BIND_OPTIONS_CIPHERS_C_S, CIPHERS },
        { SSH_BIND_OPTIONS_CIPHERS_S_C, CIPHERS },
        { SSH_BIND_OPTIONS_HMAC_C_S, MACS },
        { SSH_BIND_OPTIONS_HMAC_S_C, MACS },
        { SSH_BIND_OPTIONS_PUBKEY_ACCEPTED_KEY_TYPES, USER_KEY_TYPES },
        { SSH_BIND_OPTIONS_BANNER, "Weir" },
    };
    bool ok = ssh_bind_options_set(bind, SSH_BIND_OPTIONS_PROCESS_CONFIG, &off) == SSH_OK &&
              ssh_bind_options_set(bind, SSH_BIND_OPTIONS_RSA_MIN_SIZE, &rsa_bits) == SSH_OK;

    ok = import_key(bind, kit->ed25519) && ok;
    ok = import_key(bind, kit->rsa) && ok;
    ok = ok && ssh_bind_options_set(bind, SSH_BIND_OPTIONS_HOSTKEY_ALGORITHMS, HOST_KEY_ALGORITHMS) == SSH_OK;
    for (size_t i = 0; i < sizeof strings / sizeof strings[0] && ok; i++)
        ok = ssh_bind_options_set(bind, strings[i].option, strings[i].value) == SSH_OK;
    return ok;
}

/* --- channels ---------------------------------------------------------------------------------- */

static ssh_channel on_channel_open(ssh_session session, void *arg)
{
    struct connection *c = arg;

    if (!c->logged_in)
        return NULL;
    for (uint16_t i = 0; i < DOOR_CHANNELS; i++) {
        if (c->talks[i].connection != NULL)
            continue;
        ssh_channel ssh = ssh_channel_new(session);
        if (ssh != NULL)
            talk_init(&c->talks[i], c, i, ssh);
        return ssh;
    }
    log_info("channel_refused", "user=%s limit=%d", c->user,
             DOOR_CHANNELS); /* an open failure; the others go on */
    return NULL;
}

static void door_has_gone(struct connection *c)
{
    struct error err;

    if (c->door_gone_ns != 0)
        return;
    c->door_gone = true;
    c->door_gone_ns = clock_now_ns();
    error_set(&err, ERR_SHUTTING_DOWN, NULL,
              "the gateway's job store has stopped; jobs go on when it is back, try again in a moment");
    for (int i = 0; i < DOOR_CHANNELS; i++) {
        if (c->talks[i].connection != NULL)
            talk_fail(&c->talks[i], &err);
    }
}

static int on_door(socket_t fd, int revents, void *arg)
{
    struct connection *c = arg;
    struct door_message m;

    (void)fd;
    (void)revents;
    if (c->door_gone)
        return SSH_OK;
    if (door_receive(c->door, c->packet, &m) != ST_OK || m.op >= DOOR_CHANNELS) {
        door_has_gone(c);
        return SSH_OK;
    }
    struct talk *t = &c->talks[m.op];
    if (t->connection != NULL && t->asking && t->serial == m.serial)
        talk_on_reply(t, &m);
    if (m.fd >= 0)
        close(m.fd);
    return SSH_OK;
}

/* --- the loop ---------------------------------------------------------------------------------- */

void connection_wind_watchdog(void)
{
    struct itimerval cpu = { .it_value = { .tv_sec = WATCHDOG_CPU_S } };

    alarm(WATCHDOG_S);
    setitimer(ITIMER_PROF, &cpu, NULL);
}

static bool any_talk(const struct connection *c)
{
    for (int i = 0; i < DOOR_CHANNELS; i++) {
        if (c->talks[i].connection != NULL)
            return true;
    }
    return false;
}

static void loop(struct connection *c)
{
    int wait_ms = IDLE_POLL_MS;

    for (;;) {
        connection_wind_watchdog();
        if (ssh_event_dopoll(c->event, wait_ms) == SSH_ERROR)
            return;
        if (ssh_get_status(c->session) & (SSH_CLOSED | SSH_CLOSED_ERROR) || c->give_up)
            return;
        uint64_t now = clock_now_ns();
        if (c->door_gone) {
            door_has_gone(c);
            if (!c->logged_in || !any_talk(c) || now - c->door_gone_ns > LAST_WORDS_MS * 1000000ull)
                return;
        }
        wait_ms = c->door_gone ? 100 : IDLE_POLL_MS;
        for (int i = 0; i < DOOR_CHANNELS; i++) {
            if (c->talks[i].connection != NULL)
                talk_pump(&c->talks[i], now, &wait_ms);
        }
    }
}

static enum status open_session(struct connection *c, struct kit *kit)
{
    const long grace_s = (long)kit->grace_s;
    const int nodelay = 1;

    c->bind = ssh_bind_new();
    c->session = ssh_new();
    c->event = ssh_event_new();
    if (c->bind == NULL || c->session == NULL || c->event == NULL || !set_up_bind(c->bind, kit))
        return ST_SYSTEM;
    ssh_callbacks_init(&c->callbacks);
    c->callbacks.userdata = c;
    c->callbacks.channel_open_request_session_function = on_channel_open;
    login_setup(c);
    ssh_set_server_callbacks(c->session, &c->callbacks);
    ssh_options_set(c->session, SSH_OPTIONS_TIMEOUT, &grace_s);
    ssh_options_set(c->session, SSH_OPTIONS_NODELAY, &nodelay);
    /* "no" for SSH_OPTIONS_COMPRESSION would only put it last */
    bool plain = ssh_options_set(c->session, SSH_OPTIONS_COMPRESSION_C_S, "none") == SSH_OK &&
                 ssh_options_set(c->session, SSH_OPTIONS_COMPRESSION_S_C, "none") == SSH_OK;
    return plain ? ST_OK : ST_SYSTEM;
}

static void converse(struct connection *c, struct kit *kit)
{
    if (sandbox_enter((unsigned long long)JOB_BYTES_MAX + 1) != ST_OK)
        return;
    alarm(kit->grace_s + WATCHDOG_S); /* the listener's clock comes first; this one is for when it has died */
    if (ssh_bind_accept_fd(c->bind, c->session, FD_CLIENT) != SSH_OK) {
        log_warn("accept", "reason=\"%s\"", ssh_get_error(c->bind));
        return;
    }
    if (ssh_handle_key_exchange(c->session) != SSH_OK) {
        log_debug("key_exchange", "reason=\"%s\"", ssh_get_error(c->session));
        return;
    }
    ssh_set_blocking(c->session, 0);
    if (ssh_event_add_session(c->event, c->session) != SSH_OK ||
        ssh_event_add_fd(c->event, c->door, POLLIN, on_door, c) != SSH_OK)
        return;
    loop(c);
}

int connection_run(const char *peer)
{
    static struct connection connection;
    struct connection *c = &connection;
    struct kit kit = { 0 };

    signal(SIGINT, SIG_IGN); /* ^C in the terminal of `weir serve` is for the listener */
    signal(SIGXFSZ, SIG_IGN);
    sandbox_undumpable();
    setlocale(LC_CTYPE, "C.UTF-8"); /* widths of characters, for chat; later there is no file system */
    snprintf(c->peer, sizeof c->peer, "%s", peer);
    c->door = FD_DOOR;
    if (read_kit(&kit) != ST_OK || ssh_init() != SSH_OK)
        return EXIT_INTERNAL;
    log_init("gateway/connection",
             kit.log_level <= LOG_LEVEL_DEBUG ? (enum log_level)kit.log_level : LOG_LEVEL_INFO);
    if (open_session(c, &kit) != ST_OK) {
        log_error("session", "reason=\"%s\"", c->bind != NULL ? ssh_get_error(c->bind) : "memory");
        return EXIT_INTERNAL;
    }
    converse(c, &kit);
    alarm(WATCHDOG_S);
    for (int i = 0; i < DOOR_CHANNELS; i++)
        talk_deinit(&c->talks[i]);
    ssh_disconnect(c->session);
    _exit(EXIT_OK); /* the kernel frees the rest: libssh's own clean-up has had more bugs than it saves */
}
