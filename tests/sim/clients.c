/* clients.c - the people: what they ask, when they cancel, leave, or stop to read.
 *
 * All users draw their prompts from the same few documents, so that sharing within a scope and leaking between scopes are both as
 * likely as can be.  A prompt is a document or its beginning, then words of its own; or an earlier prompt of the same user
 * with its answer, gone on with.  Messages to the broker take their time, in order per connection. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ask.h"

enum {
    CONNECTIONS_MAX = 1000,
    MAIL_MAX = 4096,
    DOCUMENTS_MAX = 8,
    DOCUMENT_BYTES = 900,
    MEMORY = 8,
    MAIL_US = 50
};
enum { KEYED = 4, SESSION_NAMES = 3 };
enum { POISON_MAX = 6 }; /* each costs two deaths, and a death by own fault up to 30 s of back-off */
static const uint64_t ms = 1000000;
static const char *const words[] = {"the ", "then ", "in ", "her ",      "er ",          "a", "b ",
                                    "zz ",  "Q",     "7 ",  "\xc3\xa9 ", "\xe2\x82\xac", ". "};

struct mail {
    uint32_t connection;
    uint64_t arrival_ns, order;
    uint8_t *body;
    size_t n;
};

static struct connection connections[CONNECTIONS_MAX];
static uint32_t n_connections;
static struct mail mail[MAIL_MAX];
static uint32_t n_mail;
static uint64_t mail_order;
static uint8_t *taken; /* the message that mail_take() gave last */
static struct wire_buffer out;
static char documents[DOCUMENTS_MAX][DOCUMENT_BYTES + 8];
static struct { /* what a user said and was told lately */
    int32_t *ids;
    uint32_t n;
} memory[16][MEMORY];
static uint32_t memory_at[16];
static struct ask *keyed[16][KEYED]; /* what a user asked lately under an idempotency key: to be asked again */
static uint64_t admin_arrival_ns;
static const char *const session_names[] = {NULL, "s1", "s2", "s3"};

static uint32_t write_words(char *at, uint32_t bytes)
{
    uint32_t n = 0;
    while (n < bytes) {
        const char *w = words[random_below(&sim.load, sizeof(words) / sizeof(words[0]))];
        memcpy(at + n, w, strlen(w));
        n += (uint32_t)strlen(w);
    }
    at[n] = '\0';
    return n;
}

static void connect_user(uint32_t user)
{
    if (n_connections == CONNECTIONS_MAX)
        return;
    connections[n_connections++] = (struct connection){
        .user = user, .used = true, .due_ns = sim.now_ns + random_ns(&sim.load, sim.plan.think_ns)};
}

static void forget_keyed(uint32_t user, uint32_t k)
{
    if (keyed[user][k] != NULL)
        ask_free(keyed[user][k]);
    keyed[user][k] = NULL;
}

void clients_open(void)
{
    uint32_t most = sim.plan.context_tokens < DOCUMENT_BYTES ? sim.plan.context_tokens : DOCUMENT_BYTES;
    n_connections = n_mail = 0;
    mail_order = admin_arrival_ns = 0;
    memset(memory_at, 0, sizeof(memory_at));
    for (uint32_t d = 0; d < DOCUMENTS_MAX; d++)
        write_words(documents[d], random_below(&sim.load, most) + 1);
    for (uint32_t i = 0; i < sim.plan.n_clients; i++)
        connect_user(i % sim.plan.n_users);
}

void clients_close(void)
{
    for (uint32_t i = 0; i < n_connections; i++)
        for (struct ask *a = connections[i].asks, *next; a != NULL; a = next) {
            next = a->next;
            ask_free(a);
        }
    for (uint32_t i = 0; i < n_mail; i++)
        free(mail[i].body);
    for (uint32_t u = 0; u < 16; u++)
        for (uint32_t k = 0; k < MEMORY; k++) {
            free(memory[u][k].ids);
            memory[u][k].ids = NULL;
        }
    for (uint32_t u = 0; u < 16; u++)
        for (uint32_t k = 0; k < KEYED; k++)
            forget_keyed(u, k);
    free(taken);
    taken = NULL;
    wire_buffer_deinit(&out);
    out = (struct wire_buffer){0};
}

/* --- mail ------------------------------------------------------------------------------------- */

void mail_post(uint32_t client, const void *at, size_t n)
{
    uint64_t *last_ns = client == SIM_ADMIN ? &admin_arrival_ns : &connections[client].last_arrival_ns;
    uint64_t at_ns = sim.now_ns + random_ns(&sim.timing, MAIL_US * 1000);
    if (fault_is_on(FAULT_DELAY) && chance(&sim.faults, 10)) {
        at_ns += random_ns(&sim.faults, 200 * ms);
        note_fault(FAULT_BIT_DELAY);
    }
    at_ns = at_ns > *last_ns ? at_ns : *last_ns;
    *last_ns = at_ns;
    assert(n_mail < MAIL_MAX);
    struct mail *m = &mail[n_mail++];
    *m = (struct mail){client, at_ns, ++mail_order, malloc(n), n};
    assert(m->body != NULL);
    memcpy(m->body, at, n);
}

static void post(uint32_t connection)
{
    mail_post(connection, out.at, out.n);
}

uid_t client_uid(uint32_t client)
{
    if (client == SIM_ADMIN)
        return 0;
    return fault_is_on(FAULT_SESSIONS) ? SIM_UID + connections[client].user : 1000;
}

static uint32_t next_mail(void)
{
    uint32_t best = MAIL_MAX;
    for (uint32_t i = 0; i < n_mail; i++)
        if (best == MAIL_MAX || mail[i].arrival_ns < mail[best].arrival_ns ||
            (mail[i].arrival_ns == mail[best].arrival_ns && mail[i].order < mail[best].order))
            best = i;
    return best;
}

uint64_t mail_due_ns(void)
{
    uint32_t at = next_mail();
    return at == MAIL_MAX ? UINT64_MAX : mail[at].arrival_ns;
}

bool mail_take(uint32_t *ret_client, struct span *ret_body)
{
    uint32_t at = next_mail();
    if (at == MAIL_MAX || mail[at].arrival_ns > sim.now_ns)
        return false;
    free(taken);
    taken = mail[at].body;
    *ret_client = mail[at].connection;
    *ret_body = span_of(mail[at].body, mail[at].n);
    mail[at] = mail[--n_mail];
    return true;
}

/* --- what is asked ------------------------------------------------------------------------------ */

static void draw_prompt(struct ask *a, uint32_t user)
{
    char text[2 * DOCUMENT_BYTES];
    struct random *r = &sim.load;
    uint32_t n = 0, k = random_below(r, MEMORY), kind = random_below(r, 10);
    if (kind < 2 && memory[user][k].ids != NULL) { /* go on with a conversation, as ids */
        uint32_t more = random_below(r, 20);
        a->question.n_prompt = memory[user][k].n + more;
        a->question.prompt = calloc(a->question.n_prompt + 1, sizeof(int32_t));
        assert(a->question.prompt != NULL);
        memcpy(a->question.prompt, memory[user][k].ids, memory[user][k].n * sizeof(int32_t));
        for (uint32_t i = 0; i < more; i++)
            a->question.prompt[memory[user][k].n + i] = (int32_t)random_below(r, SIM_VOCAB);
        return;
    }
    if (kind < 8) {
        const char *d = documents[random_below(r, sim.plan.n_documents)];
        n = (uint32_t)strlen(d);
        if (sim.opt.canary || chance(r, 3))
            n = random_below(r, sim.opt.canary ? (n < 70 ? n : 70) : n) + 1;
        while (n > 0 && (d[n] & 0xc0) == 0x80)
            n--;
        memcpy(text, d, n);
    }
    n += write_words(text + n, chance(r, 6) ? random_below(r, sim.plan.context_tokens / 2) + 1
                                            : random_below(r, 30) + 1);
    if (sim.opt.canary && n > 90) {
        n = 90;
        while (n > 0 && (text[n] & 0xc0) == 0x80)
            n--;
    }
    text[n] = '\0';
    a->text = strdup(text);
    assert(a->text != NULL);
    a->question.prompt = oracle_encode(span_str(text), &a->question.n_prompt);
}

static void draw_scope(struct ask *a, uint32_t user)
{
    a->pool_scope = chance(&sim.load, 12);
    a->salt = chance(&sim.load, 12) ? "s1" : NULL;
    a->scope = (a->pool_scope ? 1000 : user) * 2 + (a->salt != NULL);
}

static void draw_wishes(struct ask *a, uint32_t profile)
{
    struct random *r = &sim.load;
    struct question *q = &a->question;
    a->batch = profile == PROFILE_BATCH || (profile == PROFILE_MIXED && chance(r, 2));
    a->n_choices = chance(r, 8) ? random_below(r, 4) + 2 : 1;
    a->stream = !chance(r, 4);
    a->cache_off = chance(r, 15);
    a->has_seed = !chance(r, 4) || fault_is_on(FAULT_SLOW | FAULT_GONE | FAULT_KEYS); /* its answer is known from now on */
    a->logprobs = chance(r, 8);
    a->n_logprobs = a->logprobs ? random_below(r, 4) : 0;
    q->max_tokens = chance(r, 12) ? 0 : random_below(r, chance(r, 4) ? 120 : 24) + 1;
    if (sim.opt.canary)
        q->max_tokens = random_below(r, 8) + 1;
    q->ignore_eos = chance(r, 3);
    q->sampling = (struct sampling){.seed = a->has_seed ? random_next(r) >> 2 : 0,
                                    .temperature = chance(r, 2) ? 0 : 0.75f,
                                    .top_p = 1,
                                    .repetition_penalty = 1,
                                    .n_logprobs = a->n_logprobs,
                                    .logprobs = a->logprobs};
    q->n_stops = chance(r, 5) ? random_below(r, ASK_STOPS_MAX) + 1 : 0;
    for (uint32_t i = 0; i < q->n_stops; i++)
        q->stops[i] = ((const char *const[]){"e", "xy", "the", "\xc3\xa9", "A", "in"})[random_below(r, 6)];
    a->deadline_ms =
        fault_is_on(FAULT_DEADLINE) && chance(&sim.faults, 4) ? random_below(&sim.faults, 2000) + 1 : 0;
    sim.seen.tried[FAULT_BIT_DEADLINE] += a->deadline_ms > 0;
    a->poison = sim.seen.poisoned < POISON_MAX && random_below(&sim.faults, 100) < sim.plan.poison_percent;
    sim.seen.poisoned += a->poison;
    if (a->poison) { /* pool.c knows it by this seed */
        a->has_seed = true;
        q->sampling.seed = POISON_SEED | random_below(r, 1000);
    }
}

/* What a client has of an answer that an earlier broker began. */
static uint32_t delivered(const struct ask *a, struct wire_resume ret_resume[CHOICES_MAX])
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < a->n_choices; i++)
        if (a->got[i].n_ids > 0)
            ret_resume[n++] = (struct wire_resume){.choice = i,
                                                   .ids = a->expected[i].ids,
                                                   .n_ids = a->got[i].n_ids,
                                                   .released_bytes = a->got[i].n_text};
    return n;
}

static void send(const struct ask *a, uint32_t user)
{
    struct wire_generate g;
    struct wire_resume resume[CHOICES_MAX];
    char name[16], key[16];
    wire_generate_init(&g);
    snprintf(name, sizeof(name), "u%u", user);
    g.id = span_str(a->id);
    if (!fault_is_on(FAULT_SESSIONS)) /* then the connection is the user's own: sessions are */
        g.on_behalf_of = span_str(name);
    if (a->session > 0) {
        g.session = span_str(session_names[a->session]);
        g.session_ttl_ms = a->ttl_ms;
    }
    snprintf(key, sizeof(key), "k%u", a->key);
    if (a->key > 0)
        g.idempotency_key = span_str(key);
    g.resume = resume;
    g.n_resume = delivered(a, resume);
    g.prompt_kind = a->text != NULL ? WORK_PROMPT_TEXT : WORK_PROMPT_IDS;
    g.prompt = span_str(a->text != NULL ? a->text : "");
    g.prompt_ids = a->text != NULL ? NULL : a->question.prompt;
    g.n_prompt_ids = a->text != NULL ? 0 : a->question.n_prompt;
    g.batch_class = a->batch;
    g.stream = a->stream;
    g.cache_off = a->cache_off;
    g.ignore_eos = a->question.ignore_eos;
    g.has_seed = a->has_seed;
    g.has_temperature = true;
    g.deadline_ms = a->deadline_ms;
    g.max_tokens = a->question.max_tokens;
    g.n = a->n_choices;
    g.sampling = a->question.sampling;
    g.n_stops = a->question.n_stops;
    for (uint32_t i = 0; i < g.n_stops; i++)
        g.stops[i] = span_str(a->question.stops[i]);
    g.scope = span_str(a->pool_scope ? "pool" : "");
    g.salt = span_str(a->salt != NULL ? a->salt : "");
    enum status st = wire_encode_generate(&out, &g);
    assert(st == ST_OK);
    post(a->connection);
}

static void draw_ask(struct ask *a, uint32_t user)
{
    draw_prompt(a, user);
    draw_scope(a, user);
    draw_wishes(a, sim.plan.profile[user]);
    if (!fault_is_on(FAULT_SESSIONS) || !chance(&sim.faults, 2))
        return;
    a->session = (int)random_below(&sim.faults, SESSION_NAMES) + 1;
    a->ttl_ms = chance(&sim.faults, 3) ? 0 : random_below(&sim.faults, 3000) + 1;
    note_fault(FAULT_BIT_SESSIONS);
}

/* The same question, as yet without an answer. */
static struct ask *copy_ask(const struct ask *a)
{
    struct ask *copy = calloc(1, sizeof(*copy));
    assert(copy != NULL);
    *copy = *a;
    memset(copy->expected, 0, sizeof(copy->expected));
    memset(copy->got, 0, sizeof(copy->got));
    copy->accepted = copy->was_running = copy->cancel_sent = copy->is_expected = copy->resumed = false;
    copy->question.prompt = malloc((a->question.n_prompt + 1) * sizeof(int32_t));
    copy->text = a->text != NULL ? strdup(a->text) : NULL;
    assert(copy->question.prompt != NULL && (a->text == NULL || copy->text != NULL));
    memcpy(copy->question.prompt, a->question.prompt, a->question.n_prompt * sizeof(int32_t));
    return copy;
}

/* Every request of this user and key that is open may now give its place to another, or find another question under its key. */
static void warn_of_key(uint32_t user, uint32_t key, bool conflict)
{
    for (uint32_t i = 0; i < n_connections; i++)
        for (struct ask *a = connections[i].user == user ? connections[i].asks : NULL; a != NULL; a = a->next)
            if (a->key == key) {
                a->may_be_moved = true;
                a->may_conflict = a->may_conflict || conflict;
            }
}

/* Something this user asked before, once more: from a connection that broke, or by mistake with another question.  NULL: nothing. */
static struct ask *ask_again(uint32_t user)
{
    uint32_t k = random_below(&sim.faults, KEYED);
    if (!fault_is_on(FAULT_KEYS) || !chance(&sim.faults, 4) || keyed[user][k] == NULL)
        return NULL;
    struct ask *a = copy_ask(keyed[user][k]);
    bool conflict = chance(&sim.faults, 10);
    note_fault(FAULT_BIT_KEYS);
    a->may_be_moved = true;
    a->stream = !chance(&sim.faults, 4);
    if (conflict) {
        a->question.max_tokens++;
        a->may_conflict = true;
        forget_keyed(user, k);
    }
    warn_of_key(user, a->key, conflict);
    return a;
}

static void remember_key(struct ask *a, uint32_t user)
{
    if (!fault_is_on(FAULT_KEYS) || a->poison || !chance(&sim.faults, 3))
        return;
    uint32_t k = random_below(&sim.faults, KEYED);
    a->key = a->number;
    a->deadline_ms = 0; /* it would be that of whoever asked first */
    forget_keyed(user, k);
    keyed[user][k] = copy_ask(a);
}

static void ask(uint32_t connection)
{
    struct connection *c = &connections[connection];
    struct ask *a = ask_again(c->user);
    bool again = a != NULL;
    if (!again) {
        a = calloc(1, sizeof(*a));
        assert(a != NULL);
        draw_ask(a, c->user);
    }
    a->connection = connection;
    a->number = ++sim.seen.asks;
    snprintf(a->id, sizeof(a->id), "r%u", a->number);
    if (!again)
        remember_key(a, c->user);
    a->sent_ns = sim.now_ns;
    a->next = c->asks;
    c->asks = a;
    c->n_open++;
    trace("client %u asks %s user=%u prompt=%u max=%u n=%u %s%s%s%s", connection, a->id, c->user,
          a->question.n_prompt, a->question.max_tokens, a->n_choices, a->batch ? "batch" : "interactive",
          a->cache_off ? " cache-off" : "", a->poison ? " poison" : "", a->text == NULL ? " ids" : "");
    if (a->has_seed)
        ask_expect(a);
    send(a, c->user);
}

void clients_remember(const struct ask *a)
{
    uint32_t user = connections[a->connection].user, k = memory_at[user]++ % MEMORY;
    const struct question *q = &a->question;
    uint32_t n = q->n_prompt + a->expected[0].n_ids;
    if (n >= sim.plan.context_tokens)
        return;
    free(memory[user][k].ids);
    memory[user][k].ids = malloc(n * sizeof(int32_t));
    assert(memory[user][k].ids != NULL);
    memcpy(memory[user][k].ids, q->prompt, q->n_prompt * sizeof(int32_t));
    memcpy(memory[user][k].ids + q->n_prompt, a->expected[0].ids, a->expected[0].n_ids * sizeof(int32_t));
    memory[user][k].n = n;
}

/* --- what people do ------------------------------------------------------------------------------ */

static void leave(uint32_t connection)
{
    struct connection *c = &connections[connection];
    trace("client %u leaves with %u open", connection, c->n_open);
    note_fault(FAULT_BIT_GONE);
    c->gone = true;
    c->gone_ns = sim.now_ns;
    sim.seen.gone += c->n_open;
    for (struct ask *a = c->asks, *next; a != NULL; a = next) {
        next = a->next;
        ask_free(a);
    }
    c->asks = NULL;
    c->n_open = 0;
    connect_user(c->user);
}

static void cancel_one(uint32_t connection)
{
    struct connection *c = &connections[connection];
    uint32_t k = random_below(&sim.faults, c->n_open);
    struct ask *a = c->asks;
    while (k-- > 0)
        a = a->next;
    a->cancel_sent = true;
    note_fault(FAULT_BIT_CANCEL);
    trace("client %u cancels %s", connection, a->id);
    enum status st = wire_encode_simple(&out, WIRE_CANCEL, span_str(a->id));
    assert(st == ST_OK);
    post(connection);
}

static void end_session(uint32_t connection, int session)
{
    trace("client %u ends session %s", connection, session_names[session]);
    note_fault(FAULT_BIT_SESSIONS);
    enum status st = wire_encode_session_end(&out, span_str("e"), span_str(session_names[session]), span_of(NULL, 0));
    assert(st == ST_OK);
    post(connection);
}

/* The load is over; when the answers are there, sessions are ended, and some time out. */
static void say_goodbye(uint32_t connection)
{
    uint32_t open;
    struct connection *c = &connections[connection];
    if (!fault_is_on(FAULT_SESSIONS)) {
        c->due_ns = UINT64_MAX;
        return;
    }
    c->due_ns = sim.now_ns + 50 * ms;
    for (int i = 1; clients_all_ended(&open) && side_n_sessions() > 0 && i <= SESSION_NAMES; i++)
        end_session(connection, i);
}

static void act(uint32_t connection)
{
    struct connection *c = &connections[connection];
    c->due_ns = sim.now_ns + random_ns(&sim.load, sim.plan.think_ns) + 1000;
    if (!sim.loading) {
        say_goodbye(connection);
        return;
    }
    if (fault_is_on(FAULT_GONE) && chance(&sim.faults, 60) && n_connections < CONNECTIONS_MAX) {
        leave(connection);
        return;
    }
    if (fault_is_on(FAULT_CANCEL) && c->n_open > 0 && chance(&sim.faults, 6))
        cancel_one(connection);
    /* At most 5 s: after 6 the broker gives the connection up, and nobody hears of its requests again.  Less than 3 s where
     * requests are refused for want of a worker: a refusal that cannot be delivered for so long is dropped. */
    uint64_t long_ns = fault_is_on(FAULT_START) ? 1400 * ms : 2500 * ms;
    if (fault_is_on(FAULT_SLOW) && sim.now_ns > c->blocked_until_ns + 1000 * ms && chance(&sim.faults, 12)) {
        c->blocked_until_ns =
            sim.now_ns + random_ns(&sim.faults, chance(&sim.faults, 8) ? long_ns : 400 * ms);
        note_fault(FAULT_BIT_SLOW);
    }
    if (fault_is_on(FAULT_SESSIONS) && chance(&sim.faults, 15))
        end_session(connection, (int)random_below(&sim.faults, SESSION_NAMES) + 1);
    uint32_t burst = chance(&sim.load, 4) ? random_below(&sim.load, 8) + 1 : 1;
    while (burst-- > 0 && c->n_open < sim.plan.outstanding &&
           (sim.opt.n_asks == 0 || sim.seen.asks < sim.opt.n_asks))
        ask(connection);
    if (sim.opt.n_asks != 0 && sim.seen.asks == sim.opt.n_asks)
        sim.opt.n_steps = sim.n_steps;
}

static uint32_t next_client(void)
{
    uint32_t best = CONNECTIONS_MAX;
    for (uint32_t i = 0; i < n_connections; i++)
        if (!connections[i].gone &&
            (best == CONNECTIONS_MAX || connections[i].due_ns < connections[best].due_ns))
            best = i;
    return best;
}

uint64_t clients_due_ns(void)
{
    uint32_t at = next_client();
    return at == CONNECTIONS_MAX ? UINT64_MAX : connections[at].due_ns;
}

void clients_act(void)
{
    act(next_client());
}

int client_receive(uint32_t client, struct span body)
{
    sim_demand(client < n_connections, "a message for connection %u, which never was", client);
    struct connection *c = &connections[client];
    if (c->gone)
        return MAIL_GONE;
    if (c->blocked_until_ns > sim.now_ns)
        return MAIL_FULL;
    reply_take(c, body);
    return MAIL_TAKEN;
}

bool client_is_gone(uint32_t client, uint64_t *ret_since_ns)
{
    const struct connection *c = &connections[client];
    /* Only from the arrival of its last message on can the broker look for it. */
    *ret_since_ns = c->gone_ns > c->last_arrival_ns ? c->gone_ns : c->last_arrival_ns;
    return c->gone;
}

/* To the next broker, with what the last one delivered. */
static void go_on(struct ask *a, uint32_t user)
{
    a->has_seed = a->has_seed || a->accepted;
    a->accepted = a->was_running = false;
    a->sent_ns = sim.now_ns;
    if (a->key > 0) /* the answer comes from its beginning: a key and resume do not go together */
        memset(a->got, 0, sizeof(a->got));
    struct wire_resume resume[CHOICES_MAX];
    a->resumed = delivered(a, resume) > 0;
    sim.seen.resumed += a->resumed;
    trace("client %u goes on with %s%s", a->connection, a->id, a->resumed ? ", resumed" : "");
    send(a, user);
}

void clients_broker_gone(bool killed)
{
    while (n_mail > 0)
        free(mail[--n_mail].body);
    for (uint32_t i = 0; i < n_connections; i++) {
        struct connection *c = &connections[i];
        struct ask *list = c->asks;
        c->asks = NULL;
        c->n_open = 0;
        c->last_arrival_ns = 0;
        for (struct ask *a = list, *next; a != NULL; a = next) {
            next = a->next;
            sim_demand(killed || !a->accepted || fault_is_on(FAULT_SLOW), "the broker has stopped, and request %s has no end", a->id);
            if (chance(&sim.faults, 6)) { /* for this client it is an error */
                sim.seen.given_up++;
                ask_free(a);
                continue;
            }
            a->next = c->asks;
            c->asks = a;
            c->n_open++;
            go_on(a, c->user);
        }
    }
    admin_arrival_ns = 0;
}

bool clients_all_ended(uint32_t *ret_open)
{
    *ret_open = 0;
    for (uint32_t i = 0; i < n_connections; i++)
        *ret_open += connections[i].gone ? 0 : connections[i].n_open;
    return *ret_open == 0;
}

uint64_t client_scale(void)
{
    return fault_is_on(FAULT_SLOW) ? 1 << 14 : 1;
}
