/* fuzz_tokenizer.c - a vocabulary and a text, both hostile: the input is a GGUF file and, after the last "TEXT:" in it, a text.  Texts
 * must come back as the bytes they were, unless the encoder says that it left some out or a special token took part. */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "worker/encoder.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct span text_after_mark(const uint8_t *data, size_t size)
{
    struct span found = span_of(data, size);

    for (size_t i = 0; i + 5 <= size; i++)
        if (memcmp(data + i, "TEXT:", 5) == 0)
            found = span_of(data + i + 5, size - i - 5);
    return found;
}

/* Any slices, any parts: the ids are in the vocabulary, and their number is the same. */
static void encode(struct encoder *e, struct span text, uint64_t slice, enum encoder_part part)
{
    const struct tokenizer *t = encoder_tokenizer(e);
    struct error err;
    size_t n, n_again, half = text.n / 2;
    const int32_t *ids;
    static uint8_t out[1 << 20];

    if (encoder_encode(e, text, part, &ids, &n, &err) != ST_OK)
        return;
    for (size_t i = 0; i < n; i++)
        assert(ids[i] >= 0 && (uint32_t)ids[i] < tokenizer_n_tokens(t));
    (void)tokenizer_decode(t, ids, n, true, out, sizeof(out));
    encoder_begin(e);
    if (encoder_add(e, span_of(text.at, half), part, &err) != ST_OK ||
        encoder_add(e, span_of(text.at + half, text.n - half), part, &err) != ST_OK)
        return;
    while (encoder_step(e, slice) == ST_AGAIN)
        ;
    (void)encoder_ids(e, &n_again);
    assert(n == n_again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct gguf *g = NULL;
    struct tokenizer *t = NULL;
    struct encoder *e = NULL;
    struct error err;
    struct span text = text_after_mark(data, size);

    if (gguf_open_memory(span_of(data, size), "fuzz", &g, &err) != ST_OK)
        return 0;
    if (tokenizer_new(g, &t, &err) == ST_OK && encoder_new(t, &e) == ST_OK) {
        encode(e, text, 1 + size % 64, ENCODE_PLAIN);
        encode(e, text, 1 + size % 64, ENCODE_CONTROL);
        assert(encoder_tokenizer(e) == t);
    }
    encoder_free(e);
    tokenizer_free(t);
    gguf_close(g);
    return 0;
}
