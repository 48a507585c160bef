/* fuzz_record.c - a request's record, as a broker may write it, through everything a worker does with it before it is
 * scheduled: the checks, the tokenizer, the replay of what another worker generated. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/vocabulary.h"
#include "worker/request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct request_limits limits;
static struct chat_template chat;
static struct encoder *encoder;

static void set_up(void)
{
    static const char *const control[] = { "<|endoftext|>", "<|im_start|>", "<|im_end|>" };
    static const char *const merges[] = { "t h", "th e", "i n", "e r" };
    struct gguf_writer w = { 0 };
    struct error err;
    vocabulary_bpe(&w, "gpt-2", control, 3, merges, 4);
    struct tokenizer *t = vocabulary_load(&w);
    gguf_writer_deinit(&w);
    if (encoder_new(t, &encoder) != ST_OK || chat_template_by_name(span_str("chatml"), &chat, &err) != ST_OK)
        abort();
    limits = (struct request_limits){ .tokenizer = t, .chat = &chat, .n_vocab = 263, .context_tokens = 256, .piece_bytes_max = 16 };
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct request *r = NULL;
    uint8_t *copy = malloc(size + 1); /* exactly as large as it says, for the sanitizer */
    uint32_t bytes = (uint32_t)size, slot = 3, generation = 7;
    if (encoder == NULL)
        set_up();
    if (size > 1 << 16 || copy == NULL) {
        free(copy);
        return 0;
    }
    memcpy(copy, data, size);
    if (size >= sizeof(struct work_request)) { /* the numbers that must agree with the ring's */
        memcpy(copy + offsetof(struct work_request, record_bytes), &bytes, 4);
        memcpy(copy + offsetof(struct work_request, slot), &slot, 4);
        memcpy(copy + offsetof(struct work_request, generation), &generation, 4);
    }
    if (request_new(copy, bytes, slot, generation, &limits, &r) != ST_OK)
        abort();
    memset(copy, 0xff, size); /* the broker's again */
    if (request_needs_encoder(r))
        request_encode(r, encoder);
    if (request_needs_encoder(r)) {
        while (encoder_step(encoder, 1000) == ST_AGAIN)
            continue;
        request_build(r, encoder);
    } else {
        request_build(r, NULL);
    }
    if (r->error.code == ERR_NONE && r->head.kind == WORK_GENERATE)
        for (uint32_t i = 0; i < r->head.n_choices; i++)
            if (r->choices[i].seq.n_tokens > r->choices[i].seq.tokens_max || r->choices[i].seq.n_prompt == 0)
                abort();
    request_free(r);
    free(copy);
    return 0;
}
