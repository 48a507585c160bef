/* fuzz_region.c - a region as a broker gone bad may leave it: any header, any ring positions, any messages.  Targets: region_attach, the
 * ring, inbox_next, and what becomes of the records it finds.  (A worker gone bad: fuzz_worker_events.c.)
 *
 * The input is a list of commands.  Most leave the region right but for a few bytes, so that what lies behind the first check is met, too. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "region.h"
#include "tests/support/vocabulary.h"
#include "worker/inbox.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { RECORDS_AT = 0, RECORDS_BYTES = 1 << 16, TAKES_MAX = 300 };

static struct region ours;
static int memory, bells[2];
static uint8_t *pristine; /* all before the arena */
static size_t n_pristine;
static struct request_limits limits;
static struct chat_template chat;
static struct encoder *encoder;

struct input {
    const uint8_t *at;
    size_t n;
};

static uint32_t number(struct input *in, size_t bytes)
{
    uint32_t v = 0;
    for (size_t i = 0; i < bytes && in->n > 0; i++, in->n--)
        v = v << 8 | *in->at++;
    return v;
}

static size_t copy(struct input *in, uint8_t *to, size_t n)
{
    n = n < in->n ? n : in->n;
    memcpy(to, in->at, n);
    in->at += n;
    in->n -= n;
    return n;
}

static void set_up(void)
{
    static const char *const control[] = { "<|endoftext|>", "<|im_start|>", "<|im_end|>" };
    static const char *const merges[] = { "t h", "th e" };
    struct gguf_writer w = { 0 };
    struct error err;

    if (region_create(1, 1, 7, &ours, &memory, bells) != ST_OK)
        abort();
    n_pristine = (size_t)(ours.arena - ours.at);
    pristine = malloc(n_pristine);
    if (pristine == NULL)
        abort();
    memcpy(pristine, ours.at, n_pristine);
    vocabulary_bpe(&w, "gpt-2", control, 3, merges, 2);
    struct tokenizer *t = vocabulary_load(&w);
    gguf_writer_deinit(&w);
    if (encoder_new(t, &encoder) != ST_OK || chat_template_by_name(span_str("chatml"), &chat, &err) != ST_OK)
        abort();
    limits = (struct request_limits){ .tokenizer = t, .chat = &chat, .n_vocab = 263, .context_tokens = 256, .piece_bytes_max = 16 };
}

/* A message that is right in all that the input does not say, with a record whose head agrees with it. */
static void send(struct input *in, struct ring_end *ring)
{
    struct work_message m = { .type = 1 + number(in, 1) % 4, .slot = number(in, 1), .generation = 1 + number(in, 1), .session = number(in, 1) };
    struct work_request *head = (struct work_request *)(ours.arena + RECORDS_AT + number(in, 1) * 64);
    uint32_t bytes = number(in, 2) % (RECORDS_BYTES / 4);

    m.record_at = (uint64_t)((uint8_t *)head - ours.arena);
    m.record_bytes = bytes < sizeof(*head) ? sizeof(*head) : bytes;
    (void)copy(in, (uint8_t *)head, bytes);
    head->version = WORK_VERSION;
    head->record_bytes = m.record_bytes;
    head->slot = m.slot;
    head->generation = m.generation;
    if (number(in, 1) % 8 == 0) /* now and then anything */
        (void)copy(in, (uint8_t *)&m, sizeof(m));
    (void)!ring_push(ring, &m, 1);
}

static void take(struct region *theirs)
{
    struct request *r;
    enum inbox_kind kind;
    uint64_t session;

    for (int i = 0; i < TAKES_MAX && inbox_next(theirs, &limits, &kind, &r, &session) == ST_OK; i++) {
        if (kind != INBOX_START)
            continue;
        if (r->slot >= REGION_SLOTS)
            abort();
        (void)inbox_flags(theirs, r->slot, r->generation);
        if (request_needs_encoder(r))
            request_encode(r, encoder);
        while (request_needs_encoder(r) && encoder_step(encoder, 1000) == ST_AGAIN)
            continue;
        request_build(r, request_needs_encoder(r) ? encoder : NULL);
        request_free(r);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = { data, size };
    struct region theirs;
    struct ring_end ring;

    if (pristine == NULL)
        set_up();
    memcpy(ours.at, pristine, n_pristine);
    memset(ours.arena, 0, RECORDS_BYTES);
    if (ring_attach_producer(&ring, ours.requests.shared, REQUEST_RING_SLOTS) != ST_OK)
        abort();
    while (in.n > 0) {
        uint32_t command = number(&in, 1), at;

        if (command % 4 == 0) { /* into the header */
            at = number(&in, 1) % sizeof(struct region_header);
            (void)copy(&in, ours.at + at, 1 + command / 4 % (sizeof(struct region_header) - at));
        } else if (command % 4 == 1) { /* anywhere before the arena */
            at = number(&in, 3) % (uint32_t)(n_pristine - 64);
            (void)copy(&in, ours.at + at, 1 + command / 4);
        } else if (command == 2) { /* a position of the ring */
            (void)copy(&in, (uint8_t *)ours.requests.shared + number(&in, 1) % 128, 1);
        } else {
            send(&in, &ring);
        }
    }
    if (region_attach(memory, bells[0], bells[1], &theirs) == ST_OK) {
        take(&theirs);
        region_unmap(&theirs);
    }
    return 0;
}
