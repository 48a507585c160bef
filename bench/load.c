/* load.c - clients of a pool: many questions behind one beginning, over some connections, through libweir.
 *
 * usage: load [NAME=VALUE...]
 *
 *   endpoint      of the broker (what libweir takes by default)
 *   requests      how many (32); 0: until `seconds` are over
 *   connections   each asks its next question when it has the answer to the last (16)
 *   words         of the common beginning (430)
 *   tokens        of each answer, greedy, end of text ignored (32)
 *   batch         1: class batch
 *   user          on whose behalf (nobody's)
 *   pause_ms      between an answer and the next question of a connection (0)
 *   seconds       no new question after so long (0: no limit)
 *   same          1: all questions are one
 *   first         number of the first question (0)
 *
 * Prints one JSON object: seconds, answers, tokens, tokens a second, cached tokens, prompt tokens of the last, and for the time to the
 * first token and the time between two tokens median and 99th percentile in milliseconds, as this program saw them.
 *
 * One thread and poll(): on a small machine sixteen threads of a client would be part of what is measured. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "weir.h"

enum { CONNECTIONS_MAX = 256, SAMPLES_MAX = 1 << 20 };

struct load {
    const char *endpoint, *user;
    long requests, connections, words, tokens, batch, pause_ms, seconds, same, first;
};

struct samples {
    double *at;
    size_t n;
};

struct connection {
    struct bench *b;
    struct weir_client *client;
    double asked_at, token_at, next_at;
    bool busy;
};

struct bench {
    struct load o;
    char *prefix;
    long n_asked, n_answers, n_busy;
    unsigned long n_tokens, n_prompt, n_cached, prompt_tokens;
    double began;
    struct samples first, between;
    struct connection c[CONNECTIONS_MAX];
};

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void die(const char *what, const struct weir_error *err)
{
    fprintf(stderr, "load: %s: %s: %s\n", what, err->code, err->message);
    exit(1);
}

static void add(struct samples *s, double value)
{
    if (s->n < SAMPLES_MAX)
        s->at[s->n++] = value;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double quantile_ms(struct samples *s, double q)
{
    if (s->n == 0)
        return 0;
    qsort(s->at, s->n, sizeof(double), by_size);
    return 1e3 * s->at[(size_t)(q * (double)(s->n - 1) + 0.5)];
}

static void on_event(const struct weir_event *e, void *arg)
{
    struct connection *c = arg;
    struct bench *b = c->b;

    switch (e->type) {
    case WEIR_TEXT: {
        double t = now();

        if (c->token_at == 0)
            add(&b->first, t - c->asked_at);
        else
            add(&b->between, (t - c->token_at) / (double)(e->n_ids > 0 ? e->n_ids : 1));
        c->token_at = t;
        break;
    }
    case WEIR_DONE:
        b->n_answers++;
        b->n_busy--;
        b->n_tokens += e->usage.completion_tokens;
        b->n_cached += e->usage.cached_tokens;
        b->n_prompt += e->usage.prompt_tokens;
        b->prompt_tokens = e->usage.prompt_tokens;
        c->busy = false;
        c->next_at = now() + 1e-3 * (double)b->o.pause_ms;
        break;
    case WEIR_ERROR:
        die("answer", e->error);
        break;
    default:
        break;
    }
}

static void ask(struct bench *b, struct connection *c)
{
    static const double greedy = 0;
    struct weir_error err;
    size_t room = strlen(b->prefix) + 128;
    char *prompt = malloc(room);
    uint64_t id;
    long i = b->o.first + (b->o.same ? 0 : b->n_asked);

    if (prompt == NULL)
        exit(1);
    snprintf(prompt, room, "%s\nQuestion %ld: what happens %ld hours later near mile %ld? Answer:", b->prefix, i, i, i * 7 % 97);
    struct weir_request r = {
        .prompt = prompt,
        .max_tokens = (uint32_t)b->o.tokens,
        .temperature = &greedy,
        .ignore_eos = true,
        .batch = b->o.batch != 0,
        .on_behalf_of = b->o.user,
    };
    c->asked_at = now();
    c->token_at = 0;
    if (weir_submit(c->client, &r, on_event, c, &id, &err) != WEIR_OK)
        die("submit", &err);
    free(prompt);
    c->busy = true;
    b->n_asked++;
    b->n_busy++;
}

static bool wants_more(const struct bench *b)
{
    return (b->o.requests == 0 || b->n_asked < b->o.requests) &&
           (b->o.seconds == 0 || now() - b->began < (double)b->o.seconds);
}

static int min_wait(int a, int b)
{
    return a < 0 ? b : b < 0 || a < b ? a : b;
}

static void run(struct bench *b)
{
    struct weir_error err;
    struct pollfd fds[CONNECTIONS_MAX];
    size_t n = (size_t)b->o.connections;

    b->began = now();
    while (wants_more(b) || b->n_busy > 0) {
        int wait_ms = -1;

        for (size_t i = 0; i < n; i++) {
            struct connection *c = &b->c[i];

            if (weir_process(c->client, &err) != WEIR_OK)
                die("process", &err);
            if (!c->busy && wants_more(b)) { /* perhaps its answer has just come */
                if (now() >= c->next_at)
                    ask(b, c);
                else
                    wait_ms = min_wait(wait_ms, 1 + (int)(1e3 * (c->next_at - now())));
            }
            fds[i] = (struct pollfd){ .fd = weir_fd(c->client), .events = POLLIN };
            wait_ms = min_wait(wait_ms, weir_timeout_ms(c->client));
        }
        if (b->n_busy > 0 || wait_ms >= 0)
            (void)poll(fds, n, wait_ms);
    }
}

static char *make_prefix(long words)
{
    static const char *const word[] = { "the",   "river",  "bends", "past", "a",    "mill", "where", "grain", "is",
                                        "ground", "and",   "boats", "wait", "for",  "the",  "lock",  "to",    "open" };
    char *text = malloc((size_t)words * 8 + 1), *at = text;

    if (text == NULL)
        exit(1);
    *at = '\0';
    for (long i = 0; i < words; i++)
        at += snprintf(at, 9, "%s%s", i > 0 ? " " : "", word[(size_t)i % (sizeof(word) / sizeof(word[0]))]);
    return text;
}

static void read_options(int argc, char **argv, struct load *o)
{
    const struct {
        const char *name;
        long *to;
    } numbers[] = { { "requests", &o->requests }, { "connections", &o->connections }, { "words", &o->words },
                    { "tokens", &o->tokens },     { "batch", &o->batch },             { "pause_ms", &o->pause_ms },
                    { "seconds", &o->seconds },   { "same", &o->same },               { "first", &o->first } };

    for (int i = 1; i < argc; i++) {
        char *value = strchr(argv[i], '='), *end = NULL;
        size_t k = 0, n_name = value != NULL ? (size_t)(value - argv[i]) : 0;

        if (n_name == 8 && strncmp(argv[i], "endpoint", 8) == 0) {
            o->endpoint = value + 1;
            continue;
        }
        if (n_name == 4 && strncmp(argv[i], "user", 4) == 0) {
            o->user = value + 1;
            continue;
        }
        for (; k < sizeof(numbers) / sizeof(numbers[0]); k++)
            if (n_name == strlen(numbers[k].name) && strncmp(argv[i], numbers[k].name, n_name) == 0)
                break;
        if (k < sizeof(numbers) / sizeof(numbers[0]))
            *numbers[k].to = strtol(value + 1, &end, 10);
        if (end == NULL || *end != '\0' || *numbers[k].to < 0) {
            fprintf(stderr, "load: %s: not an option; see the head of bench/load.c\n", argv[i]);
            exit(2);
        }
    }
    if (o->connections < 1 || o->connections > CONNECTIONS_MAX || (o->requests == 0 && o->seconds == 0)) {
        fprintf(stderr, "load: connections are 1 to %d, and requests or seconds end it\n", CONNECTIONS_MAX);
        exit(2);
    }
}

int main(int argc, char **argv)
{
    static struct bench b = { .o = { .requests = 32, .connections = 16, .words = 430, .tokens = 32 } };
    struct weir_error err;

    read_options(argc, argv, &b.o);
    b.prefix = make_prefix(b.o.words);
    b.first.at = malloc(SAMPLES_MAX * sizeof(double));
    b.between.at = malloc(SAMPLES_MAX * sizeof(double));
    if (b.first.at == NULL || b.between.at == NULL)
        return 1;
    for (long i = 0; i < b.o.connections; i++) {
        b.c[i].b = &b;
        if (weir_open(&b.c[i].client, &(struct weir_options){ .endpoint = b.o.endpoint, .name = "load" }, &err) != WEIR_OK)
            die("connect", &err);
    }
    run(&b);
    double s = now() - b.began;
    printf("{\"seconds\": %.3f, \"answers\": %ld, \"tokens\": %lu, \"tokens_per_s\": %.1f, \"prompt_tokens\": %lu, \"cached_tokens\": %lu, "
           "\"last_prompt_tokens\": %lu, \"first_token_ms_p50\": %.2f, \"first_token_ms_p99\": %.2f, \"between_ms_p50\": %.3f, "
           "\"between_ms_p99\": %.3f}\n",
           s, b.n_answers, b.n_tokens, (double)b.n_tokens / s, b.n_prompt, b.n_cached, b.prompt_tokens, quantile_ms(&b.first, 0.5),
           quantile_ms(&b.first, 0.99), quantile_ms(&b.between, 0.5), quantile_ms(&b.between, 0.99));
    for (long i = 0; i < b.o.connections; i++)
        weir_close(b.c[i].client);
    free(b.prefix);
    free(b.first.at);
    free(b.between.at);
    return 0;
}
