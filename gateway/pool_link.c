/* pool_link.c - opening takes OPEN_MS at most, because the loop of the jobs process waits for it: a local broker answers in a few. */
#include "pool_link.h"

#include "log.h"

enum {
    OPEN_MS = 150,
    PROBE_SILENCE_MS = 10000,
    BACKOFF_MS_MIN = 250,
    BACKOFF_MS_MAX = 5000,
    IN_FLIGHT_MAX = 4096
};

void pool_link_init(struct pool_link *l, const char *endpoint)
{
    *l = (struct pool_link){ .endpoint = endpoint };
}

void pool_link_deinit(struct pool_link *l)
{
    weir_close(l->client);
    l->client = NULL;
    l->up = false;
}

static void back_off(struct pool_link *l, uint64_t now_ns)
{
    uint64_t ms = (uint64_t)BACKOFF_MS_MIN << (l->tries < 5 ? l->tries : 5);

    l->tries++;
    l->next_ns = now_ns + (ms < BACKOFF_MS_MAX ? ms : BACKOFF_MS_MAX) * 1000000;
}

static bool try_open(struct pool_link *l, uint64_t now_ns)
{
    struct weir_options options = { .endpoint = l->endpoint,
                                    .connect_timeout_ms = OPEN_MS,
                                    .silence_timeout_ms = PROBE_SILENCE_MS,
                                    .max_in_flight = IN_FLIGHT_MAX,
                                    .name = "weir-gateway" };
    struct weir_error err;

    if (weir_open(&l->client, &options, &err) == WEIR_OK) {
        log_info("broker", "state=up endpoint=%s", l->endpoint);
        l->up = true;
        l->tries = 0;
        return true;
    }
    l->client = NULL;
    if (l->tries == 0)
        log_warn("broker", "state=unreachable code=%s endpoint=%s", err.code, l->endpoint);
    back_off(l, now_ns);
    return false;
}

static void on_probe(const struct weir_event *event, void *arg)
{
    struct pool_link *l = arg;

    if (event->type != WEIR_JSON && event->type != WEIR_ERROR)
        return;
    l->probing = false;
    if (event->type == WEIR_JSON)
        l->up = true;
}

static void probe(struct pool_link *l, uint64_t now_ns)
{
    struct weir_error err;

    back_off(l, now_ns);
    if (weir_query(l->client, WEIR_QUERY_STATUS, on_probe, l, &err) == WEIR_OK)
        l->probing = true;
}

bool pool_link_step(struct pool_link *l, uint64_t now_ns)
{
    struct weir_error err;
    bool was_up = l->up;

    if (l->client == NULL)
        return now_ns >= l->next_ns && try_open(l, now_ns);
    if (weir_process(l->client, &err) != WEIR_OK && l->up) {
        log_warn("broker", "state=lost code=%s", err.code);
        l->up = false;
        back_off(l, now_ns);
    }
    if (!l->up && !l->probing && now_ns >= l->next_ns)
        probe(l, now_ns);
    if (l->up && !was_up) {
        log_info("broker", "state=up endpoint=%s", l->endpoint);
        l->tries = 0;
        return true;
    }
    return false;
}

int pool_link_timeout_ms(const struct pool_link *l, uint64_t now_ns)
{
    int wait = l->client != NULL ? weir_timeout_ms(l->client) : -1;

    if (!l->up && !l->probing) {
        int next = l->next_ns <= now_ns ? 0 : (int)((l->next_ns - now_ns) / 1000000) + 1;
        if (wait < 0 || next < wait)
            wait = next;
    }
    return wait;
}

int pool_link_fd(const struct pool_link *l)
{
    return l->client != NULL ? weir_fd(l->client) : -1;
}
