/* intake.c - messages of clients: who sent it, what it is, and either a request in the queue or a refusal that names the reason.
 *
 * A refusal costs no memory and is sent at once, so an overloaded broker still answers within a pass of its loop.  The order of checks
 * is from cheap to dear: frames, credentials, decoding, then the limits (admission.c), then copying. */
#include "admission.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include <xxhash.h>

#include "clock.h"
#include "fault.h"
#include "log.h"

enum { STOPPING_RETRY_MS = 1000 };
_Static_assert(SCOPE_SECRET_BYTES >= XXH3_SECRET_SIZE_MIN, "the key of the scope hash");

typedef void message_handler(struct broker *b, const struct sender *from, const struct wire_message *m);

static void refuse(struct broker *b, const struct sender *from, struct span id, const struct error *error)
{
    uint32_t retry_after_ms = error->code == ERR_BUSY            ? ending_retry_after_ms(b)
                              : error->code == ERR_SHUTTING_DOWN ? STOPPING_RETRY_MS
                                                                 : 0;

    b->totals.refused++;
    b->totals.errors[error->code]++;
    delivery_error(b, &from->peer, id, error, retry_after_ms);
    if (error->code == ERR_BUSY)
        histogram_add(&b->times.refusal, (double)(clock_now_ns() - b->messages_since_ns) / 1e9);
}

/* --- generate and tokenize -------------------------------------------------------------------- */

/* Whose cached blocks the request may meet: equal hash, equal scope.  A request that names none has its user's.  Keyed, so that nobody
 * can look for a collision. */
static void scope_hash(const struct broker *b, const struct account *account, struct span scope, struct span salt,
                       uint64_t ret_scope[2])
{
    uint8_t text[8 + USER_NAME_BYTES + SALT_BYTES_MAX] = "user";
    size_t n = 5;
    const struct user *user = scope.n == 0 ? users_by_name(&b->identity.users, account->name) : NULL;

    if (span_is(scope, "pool") || (user != NULL && user->pool_scope)) {
        memcpy(text, "pool", 5);
    } else {
        memcpy(text + n, account->name, strlen(account->name) + 1);
        n += strlen(account->name) + 1;
    }
    if (salt.n > 0)
        memcpy(text + n, salt.at, salt.n);
    XXH128_hash_t h = XXH3_128bits_withSecret(text, n + salt.n, b->scope_secret, sizeof(b->scope_secret));
    ret_scope[0] = h.low64;
    ret_scope[1] = h.high64;
}

static uint64_t draw_seed(void)
{
    uint64_t seed = 0;

    while (getrandom(&seed, sizeof(seed), 0) != sizeof(seed))
        continue; /* interrupted; eight bytes never come in part */
    return seed;
}

/* A client may go on with a request that an earlier broker began. */
static bool take_resume(struct broker *b, struct request *r, const struct wire_generate *g, struct error *err)
{
    for (uint32_t i = 0; i < g->n_resume; i++) {
        const struct wire_resume *w = &g->resume[i];

        if (w->choice >= r->n_choices || r->choices[w->choice].ids.n > 0 || w->n_ids > r->max_tokens) {
            error_set(err, ERR_INVALID_PARAMETER, "resume", "choice %u is not among the %u, comes twice, or has more than max_tokens",
                      w->choice, r->n_choices);
            return false;
        }
        if (w->released_bytes > (uint64_t)w->n_ids * PIECE_BYTES_MAX) { /* a worker would be blamed for it */
            error_set(err, ERR_INVALID_PARAMETER, "resume", "choice %u has %u released_bytes, more than its %u tokens can hold",
                      w->choice, w->released_bytes, w->n_ids);
            return false;
        }
        struct choice *c = &r->choices[w->choice];
        if (requests_append(&b->requests, &c->ids, w->ids, (size_t)w->n_ids * 4) != ST_OK) {
            error_set(err, ERR_INTERNAL, "", "out of memory");
            return false;
        }
        c->n_sent = w->n_ids;
        c->released_bytes = w->released_bytes;
    }
    return true;
}

static uint64_t estimate_prompt(const struct broker *b, const struct request *r)
{
    uint64_t bytes = record_prompt(&r->record).n;

    if (record_head(&r->record)->prompt_kind == WORK_PROMPT_IDS)
        return bytes / 4;
    return (uint64_t)((double)bytes / b->models[r->model].bytes_per_token) + 1;
}

/* Make the request of a record.  Takes the record in any case.  NO_REQUEST when there is no memory. */
static uint32_t make_request(struct broker *b, const struct admission *a, struct span id, uint32_t n_choices,
                             struct record *record, enum work_kind kind)
{
    uint32_t request = NO_REQUEST;

    if (requests_add(&b->requests, &b->clients, a->client, id, n_choices, record, &request) != ST_OK) {
        record_deinit(record);
        return NO_REQUEST;
    }
    struct request *r = &b->requests.list[request];
    r->account = a->account;
    r->model = a->model;
    r->kind = kind;
    r->arrived_ns = record_head(&r->record)->arrived_ns;
    r->deadline_ns = record_head(&r->record)->deadline_ns;
    r->max_tokens = record_head(&r->record)->max_tokens != 0 ? record_head(&r->record)->max_tokens : OUTPUT_TOKENS_MAX;
    r->prompt_tokens_estimate = estimate_prompt(b, r);
    b->accounts.list[a->account].n_live++;
    b->accounts.list[a->account].n_requests++;
    b->totals.accepted++;
    return request;
}

/* --- idempotency keys ------------------------------------------------------------------------- */

static void keyed_hash(const struct broker *b, const void *at, size_t n, uint64_t ret_hash[2])
{
    XXH128_hash_t h = XXH3_128bits_withSecret(at, n, b->scope_secret, sizeof(b->scope_secret));

    ret_hash[0] = h.low64;
    ret_hash[1] = h.high64;
}

/* Name and content of a keyed request.  Content is its record, without when it came and how long it may take, and what else decides the
 * answer.  False with a->error set when there is no such request. */
static bool key_of(const struct broker *b, const struct wire_generate *g, struct admission *a, struct key *ret_key)
{
    const struct account *account = &b->accounts.list[a->account];
    struct record_context c = { .seed = g->has_seed ? g->sampling.seed : 0 };
    uint8_t name[USER_NAME_BYTES + CLIENT_ID_BYTES_MAX];
    size_t user_bytes = strlen(account->name) + 1;
    struct record record;
    uint64_t user[2], all[5] = { a->model, g->has_seed, g->takeover_any };

    scope_hash(b, account, g->scope, g->salt, c.scope);
    if (record_of_generate(g, &c, &record, &a->error) != ST_OK)
        return false;
    keyed_hash(b, record.at, record.bytes, ret_key->content);
    record_deinit(&record);
    memcpy(all + 3, ret_key->content, sizeof(ret_key->content));
    keyed_hash(b, all, sizeof(all), ret_key->content);
    memcpy(name, account->name, user_bytes);
    memcpy(name + user_bytes, g->idempotency_key.at, g->idempotency_key.n);
    keyed_hash(b, name, user_bytes + g->idempotency_key.n, ret_key->name);
    keyed_hash(b, name, user_bytes, user);
    ret_key->user = user[0];
    return true;
}

/* --- sessions --------------------------------------------------------------------------------- */

static void session_name(const struct broker *b, const char *user, struct span session, uint64_t ret_name[2], uint64_t *ret_user)
{
    uint8_t text[USER_NAME_BYTES + NAME_BYTES_MAX];
    size_t user_bytes = strlen(user) + 1;
    uint64_t hash[2];

    memcpy(text, user, user_bytes);
    memcpy(text + user_bytes, session.at, session.n);
    keyed_hash(b, text, user_bytes + session.n, ret_name);
    keyed_hash(b, text, user_bytes, hash);
    *ret_user = hash[0];
}

/* The session the request names, if it names one.  False with a->error set. */
static bool use_session(struct broker *b, const struct wire_generate *g, struct admission *a, int *ret_session)
{
    const char *user = b->accounts.list[a->account].name;
    uint64_t name[2], hash, ttl_ms = g->session_ttl_ms != 0 ? g->session_ttl_ms : SESSION_TTL_MS;

    if (g->session.n == 0)
        return true;
    const struct user *u = users_by_name(&b->identity.users, user);
    uint64_t most = u != NULL && u->max_sessions > 0 ? u->max_sessions : SESSIONS_USER_MAX;
    session_name(b, user, g->session, name, &hash);
    enum status st = sessions_use(&b->sessions, name, hash, most, ttl_ms * UINT64_C(1000000), b->now_ns, ret_session);
    if (st == ST_LIMIT)
        error_set(&a->error, ERR_LIMIT_EXCEEDED, "session",
                  "user %s has as many sessions as max-sessions allows, %" PRIu64 ": end one, or wait for its time-out", user, most);
    else if (st != ST_OK)
        error_set(&a->error, ERR_BUSY, "session", "the pool has %d sessions, its limit", SESSIONS_MAX);
    return st == ST_OK;
}

/* --- a request with a key that is known ------------------------------------------------------- */

/* The request is told from its beginning, to this client. */
static void tell_again(struct broker *b, uint32_t request, const struct wire_generate *g)
{
    struct request *r = &b->requests.list[request];

    for (uint32_t i = 0; i < r->n_choices; i++) {
        r->choices[i].n_sent = 0;
        r->choices[i].text_sent = r->choices[i].logprobs_sent = 0;
    }
    r->stream = g->stream;
    r->orphaned_ns = 0;
    r->owes_accepted = true;
    r->owes_progress = r->phase == REQUEST_RUNNING;
    requests_mark_dirty(&b->requests, request);
}

/* A request that is under way goes on for the connection that asked last. */
static void move_request(struct broker *b, uint32_t request, const struct wire_message *m, const struct admission *a)
{
    struct request *r = &b->requests.list[request];
    uint32_t old = r->client;
    struct error moved;

    if (old != CLIENT_NONE) {
        error_set(&moved, ERR_CANCELLED, "idempotency_key", "the request was sent again: its answer goes where that came from");
        delivery_error(b, &b->clients.list[old].peer, request_id(r), &moved, 0);
        requests_detach(&b->requests, &b->clients, request);
    }
    requests_attach(&b->requests, &b->clients, request, a->client, m->id);
    if (old != CLIENT_NONE && b->clients.list[old].n_live == 0)
        clients_remove(&b->clients, old);
    tell_again(b, request, &m->generate);
}

/* A kept answer is told by a request that is over before it began.  False with a->error set. */
static bool replay(struct broker *b, uint32_t place, const struct wire_message *m, struct admission *a)
{
    struct record record = { 0 };
    struct record_context c = { .arrived_ns = b->now_ns };
    struct kept_answer answer;
    uint32_t request;

    if (record_of_generate(&m->generate, &c, &record, &a->error) != ST_OK)
        return false;
    if (requests_add(&b->requests, &b->clients, a->client, m->id, 1, &record, &request) != ST_OK) {
        record_deinit(&record);
        error_set(&a->error, ERR_BUSY, "", "the pool holds %d requests, its limit, or has no memory", REQUESTS_MAX);
        return false;
    }
    struct request *r = &b->requests.list[request];
    keys_take(b->keys, place, request, &answer);
    free(r->choices);
    r->choices = answer.choices;
    r->n_choices = answer.n_choices;
    b->requests.bytes += answer.bytes;
    record_set_seed(&r->record, answer.seed);
    r->number = answer.number;
    r->key = place;
    r->account = a->account;
    r->model = a->model;
    r->kind = WORK_GENERATE;
    r->arrived_ns = b->now_ns;
    r->logprobs = m->generate.sampling.logprobs != 0 || m->generate.sampling.n_logprobs > 0;
    r->prompt_tokens = answer.prompt_tokens;
    r->cached_tokens = answer.cached_tokens;
    r->preemptions = answer.preemptions;
    r->takeovers = answer.takeovers;
    r->prefill_ns = answer.prefill_ns;
    r->worker = answer.worker;
    memcpy(r->numerics_id, answer.numerics_id, sizeof(r->numerics_id));
    r->end = END_DONE;
    b->accounts.list[a->account].n_live++;
    tell_again(b, request, &m->generate);
    return true;
}

/* Is there a request with this key, under way or done?  Then it is answered, or refused, here.  Otherwise false, with the key to be
 * entered for the request that will be made. */
static bool answer_by_key(struct broker *b, const struct sender *from, const struct wire_message *m, struct key *ret_key)
{
    const struct wire_generate *g = &m->generate;
    struct admission a = { .job_line = admission_is_job_line(g) };
    uint32_t place, request;
    bool same, ok = true;

    if (g->n_resume > 0) {
        error_set(&a.error, ERR_INVALID_REQUEST, "idempotency_key", "idempotency_key and resume do not go together");
        ok = false;
    }
    ok = ok && admission_model(b, g->model, &a) && admission_account(b, from, g->on_behalf_of, &a) && key_of(b, g, &a, ret_key);
    enum key_state state = ok ? keys_find(b->keys, ret_key, &place, &same, &request) : KEY_ABSENT;
    if (ok && state == KEY_LIVE && b->requests.list[request].end == END_ERROR) {
        keys_drop(b->keys, place); /* it failed and its client will hear so: this one is a new try */
        b->requests.list[request].key = NO_KEY;
        state = KEY_ABSENT;
    }
    if (ok && state == KEY_ABSENT)
        return false;
    if (ok && !same) {
        error_set(&a.error, ERR_KEY_CONFLICT, "idempotency_key", "this key came with another request before");
        ok = false;
    }
    ok = ok && admission_client(b, from, m->id, &a);
    if (ok && state == KEY_LIVE) {
        move_request(b, request, m, &a);
    } else if (ok && !replay(b, place, m, &a)) {
        admission_undo(b, &a);
        ok = false;
    }
    if (!ok)
        refuse(b, from, m->id, &a.error);
    return true;
}

static void on_generate(struct broker *b, const struct sender *from, const struct wire_message *m)
{
    const struct wire_generate *g = &m->generate;
    struct admission a = { .job_line = admission_is_job_line(g) };
    struct record record = { 0 };

    struct key key;

    if (g->idempotency_key.n > 0 && answer_by_key(b, from, m, &key))
        return;
    if (!admission_take(b, from, m->id, g->model, g->on_behalf_of, &a)) {
        refuse(b, from, m->id, &a.error);
        return;
    }
    struct record_context c = { .arrived_ns = b->now_ns,
                                .deadline_ns = g->deadline_ms > 0 ? b->now_ns + g->deadline_ms * UINT64_C(1000000) : 0,
                                .seed = g->has_seed ? g->sampling.seed : draw_seed() };
    scope_hash(b, &b->accounts.list[a.account], g->scope, g->salt, c.scope);
    uint32_t request = NO_REQUEST;
    int session = SESSION_NONE;
    if (use_session(b, g, &a, &session) && record_of_generate(g, &c, &record, &a.error) == ST_OK) {
        request = make_request(b, &a, m->id, g->n, &record, WORK_GENERATE);
        if (request == NO_REQUEST)
            error_set(&a.error, ERR_INTERNAL, "", "the broker has no memory for this request");
    }
    if (request == NO_REQUEST) {
        if (session != SESSION_NONE)
            sessions_unuse(&b->sessions, session, b->now_ns);
        admission_undo(b, &a);
        refuse(b, from, m->id, &a.error);
        return;
    }
    struct request *r = &b->requests.list[request];
    r->session = session;
    r->batch = g->batch_class;
    r->priority = g->priority;
    r->stream = g->stream;
    r->logprobs = g->sampling.logprobs != 0 || g->sampling.n_logprobs > 0;
    r->takeover_any = g->takeover_any;
    r->cache_off = g->cache_off;
    r->owes_accepted = true;
    if (g->idempotency_key.n > 0)
        r->key = keys_add(b->keys, &key, request);
    if (!take_resume(b, r, g, &a.error)) {
        ending_error(b, request, &a.error, 0);
        return;
    }
    ending_enqueue(b, request, r->batch ? QUEUE_BATCH : QUEUE_INTERACTIVE);
    FAULT("broker.accepted");
    requests_mark_dirty(&b->requests, request);
}

static void on_tokenize(struct broker *b, const struct sender *from, const struct wire_message *m)
{
    struct admission a = { 0 };
    struct record record = { 0 };
    struct record_context c = { .arrived_ns = b->now_ns };

    if (!admission_take(b, from, m->id, m->tokenize.model, (struct span){ 0 }, &a)) {
        refuse(b, from, m->id, &a.error);
        return;
    }
    uint32_t request = NO_REQUEST;
    if (record_of_tokenize(m->tokenize.text, m->tokenize.special, &c, &record, &a.error) == ST_OK) {
        request = make_request(b, &a, m->id, 1, &record, WORK_TOKENIZE);
        if (request == NO_REQUEST)
            error_set(&a.error, ERR_INTERNAL, "", "the broker has no memory for this request");
    }
    if (request == NO_REQUEST) {
        admission_undo(b, &a);
        refuse(b, from, m->id, &a.error);
        return;
    }
    ending_enqueue(b, request, QUEUE_INTERACTIVE);
}

/* --- the other messages ----------------------------------------------------------------------- */

static void on_cancel(struct broker *b, const struct sender *from, const struct wire_message *m)
{
    uint32_t client = clients_find(&b->clients, &from->peer);
    uint32_t request = client != CLIENT_NONE ? requests_find(&b->requests, client, m->id) : NO_REQUEST;

    if (request == NO_REQUEST)
        return; /* its end is on the way: an error now would look like that of a later request with this id */
    ending_errorf(b, request, ERR_CANCELLED, "", "cancelled by the client");
}

static void on_hello(struct broker *b, const struct sender *from, const struct wire_message *m)
{
    (void)m;
    report_hello(b, from->user);
    if (!b->out.failed)
        delivery_reply(b, &from->peer);
}

static void on_models(struct broker *b, const struct sender *from, const struct wire_message *m)
{
    report_models(b, m->id);
    if (!b->out.failed)
        delivery_reply(b, &from->peer);
}

/* What others asked, and how much of it their cache had, is told to administrators and front ends only. */
static void on_status(struct broker *b, const struct sender *from, const struct wire_message *m)
{
    bool all = admin_allowed(from->uid) || admission_is_front_end(b, from->uid);

    report_status(b, m->id, all ? NULL : from->user);
    if (!b->out.failed)
        delivery_reply(b, &from->peer);
}

/* No answer but a refusal: what is not there has ended already. */
static void on_session_end(struct broker *b, const struct sender *from, const struct wire_message *m)
{
    char of[USER_NAME_BYTES];
    uint64_t name[2], user;
    struct error e;

    if (!admission_name(b, from, m->session_end.on_behalf_of, of, &e)) {
        refuse(b, from, m->id, &e);
        return;
    }
    session_name(b, of, m->session_end.session, name, &user);
    (void)!sessions_end(&b->sessions, name);
}

/* Another's request and one that is not kept are told apart by nobody but an administrator. */
static void on_trace(struct broker *b, const struct sender *from, const struct wire_message *m)
{
    bool for_itself = m->trace.on_behalf_of.n == 0;
    char user[USER_NAME_BYTES];
    struct error e;

    if (!admission_name(b, from, m->trace.on_behalf_of, user, &e)) {
        refuse(b, from, m->id, &e);
        return;
    }
    if (report_trace(b, m->id, m->trace.request, for_itself && admin_allowed(from->uid) ? NULL : user)) {
        if (!b->out.failed)
            delivery_reply(b, &from->peer);
        return;
    }
    error_set(&e, ERR_NOT_FOUND, "request", "no request of that name under way, nor of yours among the last that ended");
    refuse(b, from, m->id, &e);
}

static void on_admin(struct broker *b, const struct sender *from, const struct wire_message *m)
{
    struct error e;
    uint32_t slot;

    if (!admin_allowed(from->uid)) {
        if (from->uid == NO_UID)
            error_set(&e, ERR_PERMISSION_DENIED, "", "orders are taken on the pool's own machine only");
        else
            error_set(&e, ERR_PERMISSION_DENIED, "", "uid %u is neither root nor the broker's", (unsigned)from->uid);
        refuse(b, from, m->id, &e);
    } else if (admin_order(b, &m->admin, &slot, &e) != ST_OK) {
        refuse(b, from, m->id, &e);
    } else {
        report_admin(b, m->id, slot);
        if (!b->out.failed)
            delivery_reply(b, &from->peer);
    }
}

static const struct {
    message_handler *handle;
    bool needs_enabled_user; /* the others tell nothing of anybody's requests */
} dispatch[] = {
    [WIRE_HELLO] = { on_hello, false },       [WIRE_GENERATE] = { on_generate, true }, [WIRE_CANCEL] = { on_cancel, true },
    [WIRE_TOKENIZE] = { on_tokenize, true },  [WIRE_MODELS] = { on_models, false },    [WIRE_STATUS] = { on_status, false },
    [WIRE_SESSION_END] = { on_session_end, true }, [WIRE_ADMIN] = { on_admin, false },
    [WIRE_TRACE] = { on_trace, true },
};

/* The connection that had this id belongs to somebody else now: the old one has left. */
static void check_owner(struct broker *b, const struct sender *from)
{
    uint32_t client = clients_find(&b->clients, &from->peer);

    if (client != CLIENT_NONE && (b->clients.list[client].uid != from->uid ||
                                  memcmp(b->clients.list[client].key, from->key, sizeof(from->key)) != 0))
        ending_client_gone(b, client);
}

/* Who sent it.  False: the key was somebody's when the connection was made, and is nobody's now. */
static bool name_sender(struct broker *b, const struct received *r, struct sender *from)
{
    *from = (struct sender){ .peer = r->peer, .uid = r->uid };
    if (!r->by_key) {
        identity_of_uid(&b->identity, r->uid, from->user);
        return true;
    }
    const struct user *user = identity_of_key(&b->identity, r->key);
    memcpy(from->key, r->key, sizeof(from->key));
    if (user != NULL)
        memcpy(from->user, user->name, sizeof(from->user));
    return user != NULL;
}

static void handle(struct broker *b, struct received *received)
{
    struct sender from;
    struct wire_message m;
    struct error error = { 0 };

    if (!name_sender(b, received, &from)) {
        error_set(&error, ERR_PERMISSION_DENIED, "", "the key of this connection has been removed");
        b->totals.errors[error.code]++;
        delivery_error(b, &from.peer, (struct span){ 0 }, &error, 0);
        return;
    }
    check_owner(b, &from);
    enum status st = wire_decode_request(received_body(received), &m, &error);
    if (st != ST_OK) {
        b->totals.malformed++;
        delivery_error(b, &from.peer, m.id, &error, 0);
        return;
    }
    assert(m.type > WIRE_INVALID && m.type <= WIRE_TRACE);
    const struct user *user = users_by_name(&b->identity.users, from.user);
    if (dispatch[m.type].needs_enabled_user && user != NULL && user->disabled) {
        error_set(&error, ERR_PERMISSION_DENIED, "", "user %s is disabled", from.user);
        refuse(b, &from, m.id, &error);
    } else {
        dispatch[m.type].handle(b, &from, &m);
    }
    wire_message_deinit(&m);
}

bool intake_judge_key(void *arg, const uint8_t key[CURVE_KEY_BYTES], struct tcp_door_user *ret_user)
{
    const struct broker *b = arg;
    const struct user *user = identity_of_key(&b->identity, key);

    if (user == NULL)
        return false;
    uint64_t most = user->max_connections > 0 ? user->max_connections : b->options->user_connections_max;
    *ret_user = (struct tcp_door_user){ .user = XXH3_64bits(user->name, strlen(user->name)),
                                        .connections_max = most < UINT32_MAX ? (uint32_t)most : UINT32_MAX };
    return true;
}

void intake_users_changed(struct broker *b)
{
    struct error e;

    error_set(&e, ERR_PERMISSION_DENIED, "", "the key of this connection has been removed");
    for (uint32_t i = 0; i < REQUESTS_MAX; i++) {
        const struct request *r = &b->requests.list[i];
        const struct client *c = r->phase != REQUEST_FREE && r->client != CLIENT_NONE ? &b->clients.list[r->client] : NULL;

        if (c == NULL || c->uid != NO_UID || r->end != END_NONE || identity_of_key(&b->identity, c->key) != NULL)
            continue;
        ending_error(b, i, &e, 0);
    }
}

void intake_receive(struct broker *b)
{
    struct received received;
    bool more = true;

    for (uint32_t n = 0; n < PASS_MESSAGES && (more = endpoint_receive(&b->endpoint, &received) == ST_OK); n++) {
        if (received.problem.code == ERR_NONE) {
            handle(b, &received);
        } else {
            b->totals.malformed++;
            if (received.answerable)
                delivery_error(b, &received.peer, (struct span){ 0 }, &received.problem, 0);
        }
        received_deinit(&received);
    }
    if (!more)
        b->messages_since_ns = clock_now_ns();
}
