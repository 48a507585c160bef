/* fake_worker.c - the worker's side of a region without a model, so that the broker can be tested by itself, and badly treated.
 *
 * Token i of a choice is a function of (prompt, seed, choice, i): 0..25, said as a letter; every 7th is a two-byte character whose first half
 * is one token and whose second the next.  Text is released one token late, so a takeover always finds ids without text.  A choice
 * ends by "stop" where the function says so, or at max_tokens.  One step makes one token of every running choice and takes
 * WEIR_FAKE_STEP_MS (1).
 *
 * A prompt that begins with '!' asks for trouble:
 *   !signal S N      raise signal S after N tokens           !exit C N      exit with code C after N tokens
 *   !hang N          stop responding after N tokens          !first ...     ... only in the first life of the slot
 *   !lie WHAT        push an event that breaks a rule: index, choice, slot, length, type, id, text, done, finish
 *   !noise SEED      write random bytes over the event ring and its positions, again and again
 *   !scribble SEED   write random bytes anywhere into the region, at random times; the heartbeat goes on, so it does not look hung
 *   !error           answer with context_overflow
 * WEIR_FAKE_START: "fail" says FAILED, "exit" exits with 3, "mute" never says anything, "card" says READY over a card of random bytes.  WEIR_FAKE_NUMERICS: numerics id; "life": another in every life. */
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "error.h"
#include "region.h"
#include "work.h"

enum { N_VOCAB = 64, FIRST_HALF = 40, SECOND_HALF = 41, MAX_SEQS = 8, N_BLOCKS = 1024, BLOCKS_A_REQUEST = 3 };

struct choice {
    uint32_t n_ids;
    uint64_t released;    /* bytes of text released, here or by the worker before */
    int32_t *ids;
    bool finished;
};

struct request {
    bool used, announced;
    uint8_t *record;
    struct work_request head;
    uint64_t key;
    struct choice choices[CHOICES_MAX];
    char trouble[16], argument[16];
    long count;           /* tokens before the trouble; -1: none */
    uint32_t n_new;       /* tokens made here */
};

static struct region region;
static struct request requests[REGION_SLOTS];
static long step_ms = 1;

static uint64_t mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

static void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){ .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 }, NULL);
}

static void push_raw(const void *event, uint32_t n_slots)
{
    while (ring_push(&region.events, event, n_slots) == ST_AGAIN)
        sleep_ms(1);
    doorbell_ring(&region.event_bell);
}

static void push(struct work_event *e, const void *payload, uint32_t bytes)
{
    static uint8_t buffer[EVENT_SLOTS_MAX * RING_SLOT_BYTES];

    e->bytes = bytes;
    e->n_more = (uint16_t)(event_slots(bytes) - 1);
    memcpy(buffer, e, sizeof(*e));
    if (bytes > 0)
        memcpy(buffer + offsetof(struct work_event, data), payload, bytes);
    push_raw(buffer, 1u + e->n_more);
}

static struct work_event event_of(const struct request *r, uint8_t type, uint32_t choice)
{
    return (struct work_event){ .type = type, .choice = (uint8_t)choice, .slot = r->head.slot, .generation = r->head.generation };
}

static int32_t token(const struct request *r, uint32_t choice, uint32_t i)
{
    if (i % 7 == 3)
        return FIRST_HALF;
    if (i % 7 == 4)
        return SECOND_HALF;
    return (int32_t)(mix(r->key ^ (uint64_t)choice << 32 ^ i) % 26);
}

static bool ends_at(const struct request *r, uint32_t choice, uint32_t i)
{
    return (r->head.flags & WORK_IGNORE_EOS) == 0 && i > 4 && mix(~r->key ^ (uint64_t)choice << 40 ^ i) % 60 == 0;
}

/* Text of the first n ids; half a character is held back.  Gives its length. */
static uint32_t text_of(const struct choice *c, uint32_t n, char *text)
{
    uint32_t bytes = 0;

    for (uint32_t i = 0; i < n; i++) {
        if (c->ids[i] == SECOND_HALF) {
            memcpy(text + bytes, "\xC3\xA9", 2);
            bytes += 2;
        } else if (c->ids[i] != FIRST_HALF) {
            text[bytes++] = (char)('a' + c->ids[i]);
        }
    }
    return bytes;
}

static void release_text(const struct request *r, uint32_t choice, uint32_t up_to)
{
    static char text[2 * OUTPUT_TOKENS_MAX];
    struct choice *c = (struct choice *)&r->choices[choice];
    uint32_t bytes = text_of(c, up_to, text);

    if (bytes <= c->released)
        return;
    struct work_event e = event_of(r, EVENT_TEXT, choice);
    e.text.n_tokens = up_to;
    push(&e, text + c->released, bytes - (uint32_t)c->released);
    c->released = bytes;
}

static void finish(struct request *r, uint32_t choice, enum finish_reason reason)
{
    struct choice *c = &r->choices[choice];
    struct work_event e = event_of(r, EVENT_FINISH, choice);

    release_text(r, choice, c->n_ids);
    e.finish.reason = (uint32_t)reason;
    e.finish.n_tokens = c->n_ids;
    e.finish.stop_index = -1;
    push(&e, NULL, 0);
    c->finished = true;
}

static void lie(const struct request *r)
{
    const char *what = r->argument;
    struct work_event e = event_of(r, EVENT_TOKEN, 0);

    e.token.index = r->choices[0].n_ids;
    if (strcmp(what, "index") == 0)
        e.token.index += 5;
    else if (strcmp(what, "choice") == 0)
        e.choice = 15;
    else if (strcmp(what, "slot") == 0)
        e.slot = 0x7FFFFFFF;
    else if (strcmp(what, "length") == 0)
        e.bytes = 0x40000000;
    else if (strcmp(what, "type") == 0)
        e.type = 200;
    else if (strcmp(what, "id") == 0)
        e.token.id = N_VOCAB;
    else if (strcmp(what, "done") == 0)
        e.type = EVENT_DONE;
    else if (strcmp(what, "finish") == 0)
        e = (struct work_event){ .type = EVENT_FINISH, .slot = e.slot, .generation = e.generation, .finish = { 99, 0, 0, 0 } };
    else if (strcmp(what, "text") == 0)
        e = (struct work_event){ .type = EVENT_TEXT, .slot = e.slot, .generation = e.generation, .bytes = 2, .data = "\xFF\xFE" };
    push_raw(&e, 1);
}

static void noise(uint64_t seed)
{
    uint8_t *at = (uint8_t *)region.events.shared;
    size_t bytes = ring_bytes(EVENT_RING_SLOTS);

    for (;;) {
        for (int i = 0; i < 2000; i++) {
            seed = mix(seed);
            at[seed % 3 == 0 ? mix(seed) % 128 : mix(seed) % bytes] = (uint8_t)(seed >> 56);
        }
        uint64_t one = 1;
        ssize_t n = write(region.event_bell.fd, &one, sizeof(one));
        (void)n;
        sleep_ms(1);
    }
}

/* Much of it goes to the card, the numbers, the bells and the rings, and in the end some to the positions of the event ring. */
static void scribble(uint64_t seed)
{
    size_t small = (size_t)(region.arena - region.at);

    for (;;) {
        seed = mix(seed);
        for (uint64_t n = seed % 300; n > 0; n--) {
            seed = mix(seed);
            size_t within = seed % 4 == 0 ? region.bytes : seed % 4 == 1 ? 16384 : small;
            region.at[mix(seed) % within] = (uint8_t)(seed >> 56);
        }
        if (mix(seed) % 150 == 0)
            ((uint8_t *)region.events.shared)[mix(seed) / 150 % 128] = (uint8_t)(seed >> 48);
        atomic_store(&region.stats->heartbeat_ns, clock_now_ns());
        uint64_t one = 1;
        ssize_t n = seed % 3 == 0 ? write(region.event_bell.fd, &one, sizeof(one)) : 0;
        (void)n;
        if (seed >> 32 & 1)
            sleep_ms((long)(seed >> 40) % 4);
    }
}

static void trouble(struct request *r)
{
    if (r->count < 0 || r->n_new < (uint32_t)r->count)
        return;
    if (strcmp(r->trouble, "!signal") == 0) {
        signal(atoi(r->argument), SIG_DFL);
        raise(atoi(r->argument));
    } else if (strcmp(r->trouble, "!exit") == 0) {
        _exit(atoi(r->argument));
    } else if (strcmp(r->trouble, "!hang") == 0) {
        for (;;)
            pause();
    } else if (strcmp(r->trouble, "!lie") == 0) {
        lie(r);
    } else if (strcmp(r->trouble, "!noise") == 0) {
        noise(strtoull(r->argument, NULL, 10));
    } else if (strcmp(r->trouble, "!scribble") == 0) {
        scribble(strtoull(r->argument, NULL, 10));
    }
    r->count = -1;
}

static void read_trouble(struct request *r, const char *prompt, uint32_t bytes)
{
    char text[64] = "";
    const char *at = text;

    r->count = -1;
    if (bytes == 0 || prompt[0] != '!')
        return;
    memcpy(text, prompt, bytes < sizeof(text) - 1 ? bytes : sizeof(text) - 1);
    if (strncmp(at, "!first ", 7) == 0) {
        if (region.life != 1)
            return;
        at += 6;
        text[6] = '!';
    }
    r->count = 0;
    int n = sscanf(at, "%15s %15s %ld", r->trouble, r->argument, &r->count);
    if (n == 2 && strcmp(r->trouble, "!hang") == 0)
        r->count = atol(r->argument);
}

static void push_error(const struct request *r, uint32_t code, const char *param, const char *message)
{
    char payload[512];
    struct work_event e = event_of(r, EVENT_ERROR, 0);
    int n = snprintf(payload, sizeof(payload), "%s%s", param, message);

    e.error.code = code;
    e.error.param_bytes = (uint32_t)strlen(param);
    push(&e, payload, (uint32_t)n);
}

static void drop(struct request *r)
{
    for (uint32_t i = 0; i < CHOICES_MAX; i++)
        free(r->choices[i].ids);
    free(r->record);
    memset(r, 0, sizeof(*r));
}

static void tokenize(struct request *r)
{
    static int32_t ids[64];
    const uint8_t *prompt = r->record + r->head.prompt.offset;

    for (uint32_t first = 0; first < r->head.prompt.bytes; first += 64) {
        uint32_t n = r->head.prompt.bytes - first < 64 ? r->head.prompt.bytes - first : 64;
        struct work_event e = event_of(r, EVENT_IDS, 0);

        for (uint32_t i = 0; i < n; i++)
            ids[i] = prompt[first + i];
        e.ids.first = first;
        e.ids.total = r->head.prompt.bytes;
        push(&e, ids, n * 4);
    }
    struct work_event done = event_of(r, EVENT_DONE, 0);
    push(&done, NULL, 0);
    drop(r);
}

static void take_resume(struct request *r)
{
    const uint8_t *at = r->record + r->head.resume.offset;

    for (uint32_t i = 0; i < r->head.n_resume; i++) {
        struct work_resume w;

        memcpy(&w, at, sizeof(w));
        struct choice *c = &r->choices[w.choice];
        memcpy(c->ids, at + sizeof(w), w.n_ids * 4);
        c->n_ids = w.n_ids;
        c->released = w.released_bytes;
        c->finished = w.finished != 0;
        at += sizeof(w) + w.n_ids * 4;
    }
}

static void take(const struct work_message *m)
{
    struct request *r = &requests[m->slot];
    uint32_t most;

    memset(r, 0, sizeof(*r));
    r->used = true;
    r->record = malloc(m->record_bytes);
    memcpy(r->record, region.arena + m->record_at, m->record_bytes);
    memcpy(&r->head, r->record, sizeof(r->head));
    const uint8_t *prompt = r->record + r->head.prompt.offset;
    r->key = r->head.sampling.temperature <= SAMPLING_GREEDY_BELOW ? 1 : mix(r->head.sampling.seed);
    for (uint32_t i = 0; i < r->head.prompt.bytes; i++)
        r->key = mix(r->key ^ prompt[i]);
    most = r->head.max_tokens > 0 && r->head.max_tokens < OUTPUT_TOKENS_MAX ? r->head.max_tokens : OUTPUT_TOKENS_MAX / 4;
    for (uint32_t i = 0; i < r->head.n_choices; i++)
        r->choices[i].ids = calloc(most + 1, sizeof(int32_t));
    read_trouble(r, (const char *)prompt, r->head.prompt.bytes);
    if (r->head.n_resume > 0)
        take_resume(r);
}

/* One token of one choice; its end when it has one. */
static void step_choice(struct request *r, uint32_t choice)
{
    struct choice *c = &r->choices[choice];
    uint32_t most = r->head.max_tokens > 0 ? r->head.max_tokens : OUTPUT_TOKENS_MAX / 4;

    if (c->n_ids >= most || (c->n_ids > 0 && ends_at(r, choice, c->n_ids - 1))) {
        finish(r, choice, c->n_ids >= most ? FINISH_LENGTH : FINISH_STOP); /* a takeover found it complete */
        return;
    }
    struct work_event e = event_of(r, EVENT_TOKEN, choice);
    e.token.index = c->n_ids;
    e.token.id = c->ids[c->n_ids] = token(r, choice, c->n_ids);
    e.token.logprob = -0.5f;
    if (r->head.sampling.logprobs) {
        uint8_t piece[12] = { 0 };
        uint16_t n = 1;

        memcpy(piece, &e.token.id, 4);
        memcpy(piece + 4, &e.token.logprob, 4);
        memcpy(piece + 8, &n, 2);
        piece[10] = 'x';
        e.token.has_logprobs = 1;
        push(&e, piece, 11);
    } else {
        push(&e, NULL, 0);
    }
    c->n_ids++;
    r->n_new++;
    release_text(r, choice, c->n_ids - 1);
    trouble(r);
    if (c->n_ids >= most || ends_at(r, choice, c->n_ids - 1))
        finish(r, choice, c->n_ids >= most ? FINISH_LENGTH : FINISH_STOP);
}

static void announce(struct request *r)
{
    struct work_event e = event_of(r, EVENT_STARTED, 0);

    e.started.prompt_tokens = r->head.prompt.bytes / 16 + 1;
    push(&e, NULL, 0);
    r->announced = true;
    if (r->count == 0)
        trouble(r);
}

static void step_request(struct request *r)
{
    uint64_t word = atomic_load(&region.slots[r->head.slot].word);
    bool all = true;

    if (word >> 32 == r->head.generation && (word & SLOT_CANCEL) != 0) {
        push_error(r, ERR_CANCELLED, "", "cancelled");
        drop(r);
        return;
    }
    if (word >> 32 == r->head.generation && (word & SLOT_PAUSE) != 0)
        return;
    if (strcmp(r->trouble, "!error") == 0) {
        push_error(r, ERR_CONTEXT_OVERFLOW, "prompt", "prompt has 9,120 tokens, model takes 8,192");
        drop(r);
        return;
    }
    if (r->head.kind == WORK_TOKENIZE) {
        tokenize(r);
        return;
    }
    if (!r->announced)
        announce(r);
    for (uint32_t i = 0; i < r->head.n_choices; i++) {
        if (!r->choices[i].finished)
            step_choice(r, i);
        all = all && r->choices[i].finished;
    }
    if (!all)
        return;
    struct work_event e = event_of(r, EVENT_DONE, 0);
    e.done.prefill_ns = 1000;
    push(&e, NULL, 0);
    drop(r);
}

static uint32_t step(void)
{
    uint32_t n = 0, n_seqs = 0;

    for (uint32_t i = 0; i < REGION_SLOTS; i++) {
        if (!requests[i].used)
            continue;
        step_request(&requests[i]);
        n += requests[i].used;
        n_seqs += requests[i].used ? requests[i].head.n_choices : 0;
    }
    atomic_store(&region.stats->running_seqs, n_seqs);
    atomic_store(&region.stats->blocks_pinned, n * BLOCKS_A_REQUEST);
    atomic_store(&region.stats->blocks_free, N_BLOCKS - n * BLOCKS_A_REQUEST);
    atomic_fetch_add(&region.stats->steps, 1);
    return n;
}

static void say_ready(bool failed)
{
    struct region_card *card = region.card;
    const char *numerics = getenv("WEIR_FAKE_NUMERICS");
    struct work_event e = { .type = failed ? EVENT_FAILED : EVENT_READY };

    card->abi = BACKEND_ABI;
    card->ready = !failed;
    card->context_tokens = CONTEXT_TOKENS_MAX;
    card->n_vocab = N_VOCAB;
    card->n_blocks = N_BLOCKS;
    card->max_seqs = MAX_SEQS;
    card->n_threads = 1;
    if (numerics != NULL && strcmp(numerics, "life") == 0)
        snprintf(card->numerics_id, sizeof(card->numerics_id), "fake-life-%u", region.life);
    else
        snprintf(card->numerics_id, sizeof(card->numerics_id), "%s", numerics != NULL ? numerics : "fake-1");
    snprintf(card->device, sizeof(card->device), "fake");
    snprintf(card->error, sizeof(card->error), "%s", failed ? "told to fail" : "");
    push(&e, NULL, 0);
}

/* A card that nobody can have meant, another in every life; some of them are nearly right. */
static void say_rubbish(void)
{
    struct work_event e = { .type = EVENT_READY };
    uint64_t seed = region.life;

    for (size_t i = 0; i < sizeof(*region.card); i++)
        ((uint8_t *)region.card)[i] = (uint8_t)(seed = mix(seed));
    if (region.life % 2 == 0) {
        region.card->abi = BACKEND_ABI;
        region.card->ready = 1;
    }
    push(&e, NULL, 0);
    for (;;)
        pause();
}

static void wait_for_work(uint32_t n_running)
{
    struct pollfd fds[2] = { { .fd = region.request_bell.fd, .events = POLLIN }, { .fd = REGION_FD_CONTROL, .events = POLLIN } };
    struct work_message m;
    bool sleeps = n_running == 0;

    if (sleeps) {
        doorbell_sleep_begin(&region.request_bell);
        sleeps = ring_peek(&region.requests, &m) == ST_AGAIN;
    }
    poll(fds, 2, sleeps ? 500 : 0);
    doorbell_sleep_end(&region.request_bell);
    if (fds[1].revents != 0)
        _exit(0); /* the broker is gone */
    if (n_running > 0)
        sleep_ms(step_ms);
}

int main(void)
{
    const char *start = getenv("WEIR_FAKE_START"), *ms = getenv("WEIR_FAKE_STEP_MS");
    struct work_message m;
    uint32_t n_running = 0;
    bool draining = false;

    if (ms != NULL)
        step_ms = atol(ms);
    if (start != NULL && strcmp(start, "exit") == 0)
        return 3;
    if (region_attach(REGION_FD_MEMORY, REGION_FD_REQUEST_BELL, REGION_FD_EVENT_BELL, &region) != ST_OK)
        return 4;
    while (start != NULL && strcmp(start, "mute") == 0)
        pause();
    if (start != NULL && strcmp(start, "card") == 0)
        say_rubbish();
    say_ready(start != NULL && strcmp(start, "fail") == 0);
    if (start != NULL && strcmp(start, "fail") == 0)
        return 1;
    while (!draining || n_running > 0) {
        atomic_store(&region.stats->heartbeat_ns, clock_now_ns());
        while (ring_peek(&region.requests, &m) == ST_OK) {
            if (m.type == WORK_DRAIN)
                draining = true;
            else if (m.type == WORK_START)
                take(&m);
            if (ring_pop(&region.requests, &m, 1) != ST_OK)
                return 5;
        }
        n_running = step();
        if (!draining)
            wait_for_work(n_running);
    }
    return 0;
}
