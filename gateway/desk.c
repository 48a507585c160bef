/* desk.c - connections as the jobs process sees them: their messages, their one user, their replies.
 *
 * The table below is the whole policy of who may say what when.  Sockets are non-blocking: a connection process that does not
 * take its replies has them queued up to a bound, and is dropped beyond it; nobody else waits for it. */
#include "desk.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clock.h"
#include "key_options.h"
#include "log.h"

enum { MESSAGES_A_TURN = 16, SWEEP_LINES = 2000, PROBES_MAX = 256, WATCH_SERVE_MS = 50 };

enum { NEW = 1, USER = 2 };

static desk_handler on_key_probe, on_login;

static const struct {
    const char *name;
    desk_handler *handle;
    unsigned allowed_in;
    bool on_channel;   /* the op is a channel's, else the login's */
    bool after_upload; /* legal while an upload is open on the op */
    bool during_ask;   /* legal while an answer is open on the op */
} table[DOOR_REQUESTS] = {
    [DOOR_KEY_PROBE] = { "key_probe", on_key_probe, NEW, false, false, false },
    [DOOR_LOGIN] = { "login", on_login, NEW, false, false, false },
    [DOOR_SUBMIT] = { "submit", desk_on_submit, USER, true, false, false },
    [DOOR_SUBMIT_END] = { "submit_end", desk_on_submit_end, USER, true, true, false },
    [DOOR_JOB] = { "job", desk_on_job, USER, true, false, false },
    [DOOR_LIST] = { "list", desk_on_list, USER, true, false, false },
    [DOOR_WATCH] = { "watch", desk_on_watch, USER, true, false, false },
    [DOOR_OPEN] = { "open", desk_on_open, USER, true, false, false },
    [DOOR_ORDER] = { "order", desk_on_order, USER, true, false, false },
    [DOOR_CANCEL] = { "cancel", desk_on_cancel, USER, true, false, false },
    [DOOR_DELETE] = { "delete", desk_on_delete, USER, true, false, false },
    [DOOR_RETRY] = { "retry", desk_on_retry, USER, true, false, false },
    [DOOR_RELEASE] = { "release", desk_on_release, USER, true, false, false },
    [DOOR_USAGE] = { "usage", desk_on_usage, USER, true, false, false },
    [DOOR_KEYS] = { "keys", desk_on_keys, USER, true, false, false },
    [DOOR_ASK] = { "ask", desk_on_ask, USER, true, false, false },
    [DOOR_MORE] = { "more", desk_on_more, USER, true, false, true },
    [DOOR_RERUN] = { "rerun", desk_on_rerun, USER, true, false, false },
    [DOOR_TOKENIZE] = { "tokenize", desk_on_tokenize, USER, true, false, false },
    [DOOR_LOOK] = { "look", desk_on_look, USER, true, false, false },
    [DOOR_FOLDER] = { "folder", desk_on_folder, USER, true, false, false },
    [DOOR_FILE] = { "file", desk_on_file, USER, true, false, false },
    [DOOR_FILE_DONE] = { "file_done", desk_on_file_done, USER, true, false, false },
    [DOOR_FILE_SUBMIT] = { "file_submit", desk_on_file_submit, USER, true, false, false },
    [DOOR_FILE_BACK] = { "file_back", desk_on_file_back, USER, true, true, false },
    [DOOR_FILE_RENAME] = { "file_rename", desk_on_file_rename, USER, true, false, false },
    [DOOR_FILE_REMOVE] = { "file_remove", desk_on_file_remove, USER, true, false, false },
    [DOOR_SPACE] = { "space", desk_on_space, USER, true, false, false },
    [DOOR_POOL] = { "pool", desk_on_pool, USER, true, false, false },
    [DOOR_TRACE] = { "trace", desk_on_trace, USER, true, false, false },
};

bool desk_copy(struct span s, char *to, size_t bytes)
{
    if (s.n >= bytes || (s.n > 0 && memchr(s.at, 0, s.n) != NULL))
        return false;
    if (s.n > 0)
        memcpy(to, s.at, s.n);
    to[s.n] = '\0';
    return true;
}

/* --- conns ----------------------------------------------------------------------------------------- */

void desk_open(struct desk *d, uint64_t number, const char *peer, int sock)
{
    struct conn *c = d->n_conns < CONNS_MAX ? calloc(1, sizeof *c) : NULL;
    struct epoll_event event = { .events = EPOLLIN, .data.ptr = c };

    if (c == NULL || epoll_ctl(d->epoll, EPOLL_CTL_ADD, sock, &event) != 0) {
        log_warn("refused", "peer=%s reason=conns", peer);
        free(c);
        close(sock);
        return;
    }
    c->sock = sock;
    c->number = number;
    snprintf(c->peer, sizeof c->peer, "%s", peer);
    snprintf(c->address, sizeof c->address, "%.*s",
             (int)(strrchr(peer, ':') != NULL ? strrchr(peer, ':') - peer : 0), peer);
    c->queue_end = &c->queue;
    c->next = d->conns;
    d->conns = c;
    d->n_conns++;
}

void desk_stop_op(struct desk *d, struct conn *c, struct op *op)
{
    uint32_t serial = op->serial;

    job_check_free(op->check);
    job_reuse_free(op->reuse);
    desk_drop_count(op);
    if (op->spool[0] != '\0')
        job_files_spool_remove(d->files, op->spool);
    if (op->kind == OP_CHECK && op->row.seq != 0 &&
        op->row.state == JOB_VALIDATING) { /* nobody has learnt its id */
        op->row.state = JOB_DELETED;
        if (job_store_save(d->store, &op->row) != ST_OK)
            log_error("desk", "what=drop_upload id=%s",
                      op->row.id); /* the next start finds it and drops it */
        d->sweep_left = true;
    }
    desk_inbox_back(d, c, op);
    desk_drop_ask(d, op);
    *op = (struct op){ .serial = serial };
}

static void free_queued(struct conn *c)
{
    struct queued *q = c->queue;

    c->queue = q->next;
    if (c->queue == NULL)
        c->queue_end = &c->queue;
    if (q->message.fd >= 0)
        close(q->message.fd);
    free(q);
    c->n_queued--;
}

static void conn_free(struct desk *d, struct conn *c)
{
    for (int i = 0; i < DOOR_OPS; i++)
        desk_stop_op(d, c, &c->ops[i]);
    for (size_t i = 0; i < DOOR_OPS; i++)
        desk_end_session(d, c, i);
    desk_inbox_release(d, c, NULL);
    while (c->queue != NULL)
        free_queued(c);
    if (c->user[0] == '\0' && c->probes > 0)
        tally_add(&d->logins_refused, "no_known_key");
    if (c->user[0] == '\0' && c->probes > 0) /* one line a connection, of a form that fail2ban can read */
        log_warn("login_failed", "peer=%s address=%s keys_offered=%u", c->peer, c->address, c->probes);
    else if (c->user[0] != '\0')
        log_info("logout", "user=%s peer=%s", c->user, c->peer);
    close(c->sock);
    free(c);
    d->n_conns--;
}

void desk_break(struct desk *d, struct conn *c, const char *why)
{
    (void)d;
    if (!c->dead)
        log_error("conn_broken", "peer=%s user=%s reason=%s", c->peer, c->user, why);
    c->dead = true;
}

/* --- replies ---------------------------------------------------------------------------------------- */

static void want_writable(struct desk *d, struct conn *c, bool writable)
{
    struct epoll_event event = { .events = EPOLLIN | (writable ? EPOLLOUT : 0), .data.ptr = c };

    if (epoll_ctl(d->epoll, EPOLL_CTL_MOD, c->sock, &event) != 0)
        c->dead = true;
}

static void enqueue(struct desk *d, struct conn *c, const struct door_message *m)
{
    struct queued *q = c->n_queued < CONN_QUEUE_MAX ? malloc(sizeof *q + m->body.n) : NULL;

    if (q == NULL) {
        desk_break(d, c, "replies_not_taken");
        return;
    }
    q->next = NULL;
    q->message = *m;
    if (m->body.n > 0)
        memcpy(q->bytes, m->body.at, m->body.n);
    q->message.body = span_of(q->bytes, m->body.n);
    q->message.fd = m->fd >= 0 ? dup(m->fd) : -1;
    if (m->fd >= 0 && q->message.fd < 0) {
        free(q);
        desk_break(d, c, "descriptors");
        return;
    }
    *c->queue_end = q;
    c->queue_end = &q->next;
    c->n_queued++;
    want_writable(d, c, true);
}

static void send_message(struct desk *d, struct conn *c, const struct door_message *m)
{
    enum status st = ST_AGAIN;

    if (c->dead)
        return;
    if (c->queue == NULL)
        st = door_send(c->sock, m);
    if (st == ST_AGAIN)
        enqueue(d, c, m);
    else if (st != ST_OK)
        c->dead = true;
}

static void send_queued(struct desk *d, struct conn *c)
{
    while (c->queue != NULL && !c->dead) {
        enum status st = door_send(c->sock, &c->queue->message);
        if (st == ST_AGAIN)
            return;
        if (st != ST_OK)
            c->dead = true;
        free_queued(c);
    }
    if (!c->dead)
        want_writable(d, c, false);
}

void desk_reply(struct desk *d, struct conn *c, struct op *op, const struct byte_writer *body, int fd)
{
    struct door_message m = {
        .type = DOOR_REPLY, .op = (uint16_t)(op - c->ops), .serial = op->serial, .fd = fd
    };
    struct error err;

    if (body != NULL && body->failed) {
        error_set(&err, ERR_LIMIT_EXCEEDED, NULL, "the answer does not fit a message");
        desk_error(d, c, op, &err);
        return;
    }
    if (body != NULL)
        m.body = byte_writer_written(body);
    op->waiting = false;
    send_message(d, c, &m);
}

void desk_error(struct desk *d, struct conn *c, struct op *op, const struct error *err)
{
    uint8_t buffer[1024];
    struct byte_writer w = { .at = buffer, .capacity = sizeof buffer };
    struct door_message m = {
        .type = DOOR_ERROR, .op = (uint16_t)(op - c->ops), .serial = op->serial, .fd = -1
    };

    door_put_error(&w, err);
    m.body = byte_writer_written(&w);
    desk_inbox_refused(d, c, op, err); /* before the client hears of it */
    op->waiting = false;
    send_message(d, c, &m);
}

void desk_reply_json(struct desk *d, struct conn *c, struct op *op, struct byte_writer *w, json_t *value)
{
    uint8_t buffer[DOOR_PACKET_BYTES - 256];
    struct byte_writer own = { .at = buffer, .capacity = sizeof buffer };
    char *text = value != NULL ? json_dumps(value, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    struct error err;
    int fd = -1;

    if (w == NULL)
        w = &own;
    if (text != NULL && door_put_text(w, span_str(text), &fd) == ST_OK) {
        desk_reply(d, c, op, w, fd);
    } else {
        error_set(&err, ERR_INTERNAL, NULL, "out of memory");
        desk_error(d, c, op, &err);
    }
    if (fd >= 0)
        close(fd);
    free(text);
    json_decref(value);
}

/* --- requests --------------------------------------------------------------------------------------- */

/* Is this message legal now?  NULL: yes; else what is wrong. */
static const char *check_message(const struct conn *c, const struct door_message *m)
{
    unsigned state = c->user[0] == '\0' ? NEW : USER;

    if (m->op >= DOOR_OPS)
        return "op";
    if (m->type <= DOOR_NONE || m->type >= DOOR_REQUESTS || table[m->type].handle == NULL)
        return "type";
    const struct op *op = &c->ops[m->op];
    if (!(table[m->type].allowed_in & state))
        return "state";
    if (table[m->type].on_channel != (m->op != DOOR_LOGIN_OP))
        return "channel";
    if (op->waiting)
        return "impatient";
    if ((op->kind == OP_UPLOAD) != table[m->type].after_upload)
        return "upload";
    if ((op->kind == OP_ASK) != table[m->type].during_ask)
        return "ask";
    return NULL;
}

static void on_message(struct desk *d, struct conn *c, const struct door_message *m)
{
    struct door_reader r = { .left = m->body };

    if (m->type == DOOR_STOP && m->op < DOOR_CHANNELS && c->user[0] != '\0') { /* legal at any time */
        c->ops[m->op].serial = m->serial;
        desk_stop_op(d, c, &c->ops[m->op]);
        desk_inbox_release(d, c, &c->ops[m->op]);
        if (door_get_u32(&r) != 0)
            desk_end_session(d, c, m->op);
        if (!door_read_all(&r))
            desk_break(d, c, "stop");
        return;
    }
    const char *wrong = check_message(c, m);
    if (wrong != NULL) {
        desk_break(d, c, wrong);
        return;
    }
    struct op *op = &c->ops[m->op];
    op->serial = m->serial;
    op->waiting = true;
    log_debug("request", "user=%s type=%s op=%u", c->user, table[m->type].name, m->op);
    table[m->type].handle(d, c, op, &r, m->fd);
    if (!c->dead && !door_read_all(&r))
        desk_break(d, c, "body");
}

void desk_on_event(struct desk *d, struct conn *c, bool readable, bool writable)
{
    if (writable && c->queue != NULL)
        send_queued(d, c);
    for (int i = 0; readable && i < MESSAGES_A_TURN && !c->dead; i++) {
        struct door_message m;
        enum status st = door_receive(c->sock, d->packet, &m);
        if (st == ST_AGAIN)
            return;
        if (st == ST_GONE) {
            c->dead = true;
        } else if (st != ST_OK) {
            desk_break(d, c, "packet");
        } else {
            on_message(d, c, &m);
            if (m.fd >= 0)
                close(m.fd);
        }
    }
}

/* --- login ------------------------------------------------------------------------------------------ */

/* The user whose key it is and who may come in with it now.  NULL: nobody; *ret_reason. */
static const struct user *user_of_key(struct desk *d, struct conn *c, struct span type, struct span blob,
                                      const char **ret_reason)
{
    char type_text[64], blob_text[16 << 10];
    const struct user_key *key = NULL;

    *ret_reason = "key_unknown";
    if (!desk_copy(type, type_text, sizeof type_text) || !desk_copy(blob, blob_text, sizeof blob_text))
        return NULL;
    desk_reload_users(d, false);
    const struct user *u = users_by_key(&d->users, type_text, blob_text, &key);
    if (u == NULL) {
        pending_add(&d->pending, c->address, type_text, blob_text, d->real_ms);
        return NULL;
    }
    if (u->disabled) {
        *ret_reason = "user_disabled";
        return NULL;
    }
    return key_options_allow(key->options, c->address, d->real_ms, ret_reason) ? u : NULL;
}

static void refuse_key(struct desk *d, struct conn *c, struct op *op)
{
    struct error err;

    error_set(&err, ERR_PERMISSION_DENIED, NULL, "this key is not known here");
    desk_error(d, c, op, &err);
}

static void on_key_probe(struct desk *d, struct conn *c, struct op *op, struct door_reader *r, int fd)
{
    struct span type = door_get_str(r), blob = door_get_str(r);
    const char *reason;

    (void)fd;
    if (++c->probes > PROBES_MAX) {
        desk_break(d, c, "probes");
        return;
    }
    if (user_of_key(d, c, type, blob, &reason) != NULL)
        desk_reply(d, c, op, NULL, -1);
    else
        refuse_key(d, c, op);
}

static unsigned conns_of(const struct desk *d, const char *user)
{
    unsigned n = 0;

    for (const struct conn *c = d->conns; c != NULL; c = c->next)
        n += strcmp(c->user, user) == 0;
    return n;
}

static void tell_listener(struct desk *d, uint64_t number)
{
    uint8_t buffer[8];
    struct byte_writer w = { .at = buffer, .capacity = sizeof buffer };

    door_put_u64(&w, number);
    if (door_send(d->control, &(struct door_message){
                                  .type = DOOR_LOGGED_IN, .body = byte_writer_written(&w), .fd = -1 }) != ST_OK)
        log_error("desk", "what=control"); /* the listener will drop the connection at the end of its grace */
}

static void on_login(struct desk *d, struct conn *c, struct op *op, struct door_reader *r, int fd)
{
    struct span type = door_get_str(r), blob = door_get_str(r), ssh_user = door_get_str(r);
    uint8_t buffer[USER_NAME_BYTES + 8];
    struct byte_writer w = { .at = buffer, .capacity = sizeof buffer };
    char name[257], quoted[300];
    const char *reason;

    (void)fd;
    c->probes++;
    if (!desk_copy(ssh_user, name, sizeof name))
        snprintf(name, sizeof name, "?");
    const struct user *u = user_of_key(d, c, type, blob, &reason);
    if (u != NULL && conns_of(d, u->name) >= USER_CONNS_MAX) {
        reason = "connections";
        u = NULL;
    }
    if (u == NULL) {
        log_warn("login_refused", "peer=%s address=%s ssh_user=%s reason=%s", c->peer, c->address,
                 log_quote(quoted, sizeof quoted, name), reason);
        tally_add(&d->logins_refused, reason);
        refuse_key(d, c, op);
        return;
    }
    memcpy(c->user, u->name, sizeof c->user);
    d->n_logins++;
    log_info("login", "user=%s peer=%s ssh_user=%s key_type=%.*s", c->user, c->peer,
             log_quote(quoted, sizeof quoted, name), (int)type.n, (const char *)type.at);
    tell_listener(d, c->number);
    door_put_str(&w, span_str(c->user));
    desk_reply(d, c, op, &w, -1);
}

void desk_reload_users(struct desk *d, bool always)
{
    struct stat s = { 0 };
    struct users fresh = { 0 };
    struct error err;
    bool there = stat(d->users_path, &s) == 0;
    int64_t mtime = there ? (int64_t)s.st_mtim.tv_sec * 1000000000 + s.st_mtim.tv_nsec : 0;

    bool again = !always && d->users_mtime_ns == -1;

    if (!always && mtime == d->users_mtime_ns && s.st_ino == d->users_ino)
        return;
    d->users_mtime_ns = mtime;
    d->users_ino = s.st_ino;
    enum status st = users_load(d->users_path, &fresh, &err);
    if (st != ST_OK && st != ST_INVALID)
        d->users_mtime_ns = -1; /* not the file's fault: the next look reads it again, and says nothing if it is no better */
    if (st != ST_OK) {
        if (!again || st == ST_INVALID)
            log_error("users", "state=kept reason=\"%s\"", err.message); /* a broken edit must not lock everybody out */
        return;
    }
    users_deinit(&d->users);
    d->users = fresh;
    log_info("users", "n=%u", d->users.n);
    for (struct conn *c = d->conns; c != NULL; c = c->next) {
        const struct user *u = c->user[0] != '\0' ? users_by_name(&d->users, c->user) : NULL;
        if (c->user[0] != '\0' && (u == NULL || u->disabled)) {
            log_info("logout", "user=%s peer=%s reason=removed", c->user, c->peer);
            c->dead = true;
        }
    }
}

/* --- the step --------------------------------------------------------------------------------------- */

static void remove_files(const struct job_row *row, void *arg)
{
    struct desk *d = arg;

    job_files_remove(d->files, row);
    log_info("job", "id=%s user=%s state=removed", row->id, row->user);
}

static void free_dead(struct desk *d)
{
    struct conn **at = &d->conns;

    while (*at != NULL) {
        struct conn *c = *at;
        if (!c->dead) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        conn_free(d, c);
    }
}

void desk_step(struct desk *d)
{
    bool serve_watches = d->now_ns - d->watch_served_ns >= WATCH_SERVE_MS * 1000000ull;

    d->work_left = false;
    pending_write(&d->pending, d->pending_path, d->real_ms);
    if (serve_watches)
        d->watch_served_ns = d->now_ns;
    for (struct conn *c = d->conns; c != NULL; c = c->next) {
        for (int i = 0; i < DOOR_CHANNELS && !c->dead; i++) {
            struct op *op = &c->ops[i];
            if (op->kind == OP_CHECK)
                desk_step_check(d, c, op);
            else if (op->kind == OP_WATCH && serve_watches)
                desk_serve_watch(d, c, op);
        }
    }
    if (d->sweep_left && job_store_sweep(d->store, SWEEP_LINES, remove_files, d, &d->sweep_left) != ST_OK)
        d->sweep_left = false;
    desk_step_inbox(d);
    free_dead(d);
}

int desk_timeout_ms(const struct desk *d, uint64_t now_ns)
{
    if (d->work_left || d->sweep_left)
        return 0;
    for (const struct conn *c = d->conns; c != NULL; c = c->next) {
        for (int i = 0; i < DOOR_CHANNELS; i++) {
            if (c->ops[i].kind == OP_WATCH) {
                uint64_t due = d->watch_served_ns + WATCH_SERVE_MS * 1000000ull;
                return due <= now_ns ? 0 : (int)((due - now_ns) / 1000000) + 1;
            }
        }
    }
    return -1;
}

void desk_deinit(struct desk *d)
{
    for (struct conn *c = d->conns; c != NULL; c = c->next)
        c->dead = true;
    free_dead(d);
    users_deinit(&d->users);
}
