/* fake_broker.c - see fake_broker.h. */
#include "tests/support/fake_broker.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

#include "clock.h"
#include "wire.h"

enum { HELD_MAX = 64 };

struct held {
    char peer[64];
    size_t peer_bytes;
    char id[64];
};

struct serving {
    struct fake_broker *b;
    void *socket;
    char peer[64];
    size_t peer_bytes;
    struct wire_buffer out;
    struct held held[HELD_MAX];
    uint32_t n_held;
};

static void send_to(struct serving *s, const void *peer, size_t peer_bytes, const void *body, size_t n)
{
    zmq_send(s->socket, peer, peer_bytes, ZMQ_SNDMORE);
    zmq_send(s->socket, WIRE_SIGNATURE, WIRE_SIGNATURE_BYTES, ZMQ_SNDMORE);
    zmq_send(s->socket, body, n, 0);
}

static void reply(struct serving *s, enum status encoded)
{
    assert(encoded == ST_OK);
    send_to(s, s->peer, s->peer_bytes, s->out.at, s->out.n);
}

static void send_error(struct serving *s, struct span id, const char *code)
{
    struct wire_error e = { .id = id };

    error_set(&e.error, error_code_from_name(code, strlen(code)), "prompt", "as the test wished");
    reply(s, wire_encode_error(&s->out, &e));
}

static void send_token(struct serving *s, const struct wire_generate *g, uint32_t choice, uint32_t index, struct span text)
{
    int32_t id = 100 + (int32_t)index;
    struct wire_piece top[2] = { { id, -0.25f, text }, { id + 1, -1.5f, { (const uint8_t *)"\xE2\x98", 2 } } };
    struct wire_token_logprobs l = { { id, -0.25f, text }, top, g->sampling.n_logprobs < 2 ? g->sampling.n_logprobs : 2 };
    struct wire_token t = { g->id, choice, index, &id, 1, text, g->sampling.logprobs ? &l : NULL };

    reply(s, wire_encode_token(&s->out, &t));
}

static void send_done(struct serving *s, const struct wire_generate *g, uint32_t n_tokens)
{
    struct wire_done d = {
        .id = g->id,
        .n_choices = g->n,
        .prompt_tokens = 7,
        .cached_tokens = 3,
        .completion_tokens = n_tokens * g->n,
        .queue_ms = 1,
        .prefill_ms = 2,
        .first_token_ms = 3,
        .total_ms = 4.5,
        .worker = 1,
        .model = span_str("fake"),
        .system_fingerprint = span_str("fp-fake"),
    };

    for (uint32_t i = 0; i < g->n; i++)
        d.choices[i] = (struct wire_choice_end){ FINISH_STOP, -1, n_tokens };
    reply(s, wire_encode_done(&s->out, &d));
}

static void echo(struct serving *s, const struct wire_generate *g, struct span text)
{
    uint32_t n = 0;

    for (size_t at = 0; at < text.n;) {
        size_t end = at + 1;
        while (end < text.n && text.at[end] != ' ')
            end++;
        for (uint32_t c = 0; c < g->n; c++)
            send_token(s, g, c, n, span_of(text.at + at, end - at));
        n++;
        at = end;
    }
    send_done(s, g, n);
}

static void hold(struct serving *s, struct span id)
{
    struct held *h = &s->held[s->n_held++];

    assert(s->n_held <= HELD_MAX);
    memcpy(h->peer, s->peer, s->peer_bytes);
    h->peer_bytes = s->peer_bytes;
    snprintf(h->id, sizeof(h->id), "%.*s", (int)id.n, (const char *)id.at);
}

static void on_generate(struct serving *s, const struct wire_generate *g)
{
    struct span text = g->prompt_kind == WORK_PROMPT_MESSAGES ? g->messages[g->n_messages - 1].content : g->prompt;
    char order[64];

    snprintf(order, sizeof(order), "%.*s", (int)(text.n < 60 ? text.n : 60), (const char *)text.at);
    atomic_fetch_add(&s->b->n_generate, 1);
    atomic_store(&s->b->last_seed, g->sampling.seed);
    if (strncmp(order, "!error ", 7) == 0) {
        send_error(s, g->id, order + 7);
        return;
    }
    if (strcmp(order, "!nonsense") == 0) {
        send_to(s, s->peer, s->peer_bytes, "\xC1", 1);
        return;
    }
    reply(s, wire_encode_accepted(&s->out, g->id, span_str("boot-1"), g->sampling.seed));
    if (strcmp(order, "!hold") == 0) {
        hold(s, g->id);
    } else if (strcmp(order, "!choice") == 0) {
        send_token(s, g, 9, 0, span_str("x"));
    } else if (strncmp(order, "!burst ", 7) == 0) {
        uint32_t n = (uint32_t)atoi(order + 7);
        for (uint32_t i = 0; i < n; i++)
            send_token(s, g, 0, i, span_str("b"));
        send_done(s, g, n);
    } else if (strcmp(order, "!silent") != 0) {
        echo(s, g, text);
    }
}

static void on_cancel(struct serving *s, struct span id)
{
    atomic_fetch_add(&s->b->n_cancel, 1);
    for (uint32_t i = 0; i < s->n_held; i++)
        if (span_is(id, s->held[i].id) && s->held[i].peer_bytes == s->peer_bytes &&
            memcmp(s->held[i].peer, s->peer, s->peer_bytes) == 0) {
            s->held[i] = s->held[--s->n_held];
            send_error(s, id, "cancelled");
            return;
        }
}

static void on_hello(struct serving *s)
{
    atomic_fetch_add(&s->b->n_hello, 1);
    if (s->b->no_hello)
        return;
    if (s->b->refuse_hello) {
        send_error(s, span_of(NULL, 0), "permission_denied");
        return;
    }
    wire_map_begin(&s->out, NULL);
    wire_put_str(&s->out, "type", span_str("hello"));
    wire_put_str(&s->out, "boot", span_str(s->b->boot));
    wire_end(&s->out);
    reply(s, ST_OK);
}

static void on_query(struct serving *s, struct span id, const char *type)
{
    wire_map_begin(&s->out, NULL);
    wire_put_str(&s->out, "type", span_str(type));
    wire_put_str(&s->out, "id", id);
    wire_array_begin(&s->out, "models");
    wire_map_begin(&s->out, NULL);
    wire_put_str(&s->out, "name", span_str("fake"));
    wire_end(&s->out);
    wire_end(&s->out);
    wire_end(&s->out);
    reply(s, ST_OK);
}

static void handle(struct serving *s, struct span body)
{
    struct wire_message m;
    struct error err;

    s->out.n = 0;
    if (wire_decode_request(body, &m, &err) != ST_OK) {
        send_error(s, m.id, error_code_name(err.code));
        return;
    }
    switch (m.type) {
    case WIRE_HELLO:
        on_hello(s);
        break;
    case WIRE_GENERATE:
        on_generate(s, &m.generate);
        break;
    case WIRE_CANCEL:
        on_cancel(s, m.id);
        break;
    case WIRE_TOKENIZE: {
        int32_t ids[3] = { (int32_t)m.tokenize.text.n, m.tokenize.special, 42 };
        reply(s, wire_encode_ids(&s->out, m.id, ids, 3));
        break;
    }
    case WIRE_MODELS:
        on_query(s, m.id, "models");
        break;
    case WIRE_STATUS:
        on_query(s, m.id, "status");
        break;
    default:
        break;
    }
    wire_message_deinit(&m);
}

static void receive(struct serving *s)
{
    static uint8_t body[FRAME_BYTES_MAX];
    int n = zmq_recv(s->socket, s->peer, sizeof(s->peer), ZMQ_DONTWAIT), more = n >= 0;
    size_t more_bytes = sizeof(more);

    if (n < 0)
        return;
    s->peer_bytes = (size_t)n;
    for (int last = 0; more; last = n) {
        n = zmq_recv(s->socket, body, sizeof(body), 0);
        zmq_getsockopt(s->socket, ZMQ_RCVMORE, &more, &more_bytes);
        (void)last;
    }
    handle(s, span_of(body, (size_t)n));
}

static void *serve(void *arg)
{
    struct fake_broker *b = arg;
    struct serving s = { .b = b, .socket = zmq_socket(b->context, ZMQ_ROUTER) };
    uint64_t probed = 0;

    zmq_setsockopt(s.socket, ZMQ_LINGER, &(int){ 0 }, sizeof(int));
    zmq_setsockopt(s.socket, ZMQ_SNDHWM, &(int){ 0 }, sizeof(int));
    assert(zmq_bind(s.socket, b->endpoint) == 0);
    while (!atomic_load(&b->stop)) {
        zmq_pollitem_t item = { .socket = s.socket, .events = ZMQ_POLLIN };
        if (atomic_load(&b->sleep)) {
            usleep(5000);
            continue;
        }
        if (zmq_poll(&item, 1, 10) > 0)
            receive(&s);
        if (clock_now_ns() - probed > 20000000) {
            probed = clock_now_ns();
            for (uint32_t i = 0; i < s.n_held; i++) {
                assert(wire_encode_progress(&s.out, span_str(s.held[i].id), true, 0) == ST_OK);
                send_to(&s, s.held[i].peer, s.held[i].peer_bytes, s.out.at, s.out.n);
            }
        }
    }
    zmq_close(s.socket);
    wire_buffer_deinit(&s.out);
    return NULL;
}

void fake_broker_start(struct fake_broker *b)
{
    static unsigned made;

    if (b->endpoint[0] == '\0')
        snprintf(b->endpoint, sizeof(b->endpoint), "ipc:///tmp/weir-test-broker-%d-%u.sock", (int)getpid(), made++);
    if (b->boot[0] == '\0')
        snprintf(b->boot, sizeof(b->boot), "boot-%u", made++);
    atomic_store(&b->stop, false);
    b->context = zmq_ctx_new();
    assert(pthread_create(&b->thread, NULL, serve, b) == 0);
    for (int i = 0; i < 400 && access(b->endpoint + 6, F_OK) != 0; i++)
        usleep(5000);
}

void fake_broker_stop(struct fake_broker *b)
{
    atomic_store(&b->stop, true);
    pthread_join(b->thread, NULL);
    zmq_ctx_term(b->context);
    unlink(b->endpoint + 6);
}
