/* fuzz_gguf.c - gguf_open_memory(), every getter, and model_open() on any bytes. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "worker/gguf.h"
#include "worker/model_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void ask_everything(const struct gguf *g)
{
    static const char *const keys[] = {"general.architecture", "llama.block_count", "tokenizer.ggml.tokens",
                                       "k"};
    struct error err;
    struct gguf_array a;
    struct span s;
    uint32_t u;
    float f;
    bool b;

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        (void)!gguf_u32(g, keys[i], &u, &err);
        (void)!gguf_f32(g, keys[i], &f, &err);
        (void)!gguf_bool(g, keys[i], &b, &err);
        (void)!gguf_string(g, keys[i], &s, &err);
        if (gguf_array_any(g, keys[i], &a, &err) == ST_OK)
            while (a.n > 0 && a.type == GGUF_STRING)
                s = gguf_array_next_string(&a);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct gguf *g = NULL;
    struct model *m = NULL;
    struct error err;
    char text[4096];
    volatile uint8_t sink = 0;

    if (gguf_open_memory(span_of(data, size), "fuzz", &g, &err) != ST_OK)
        return 0;
    ask_everything(g);
    for (uint32_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);

        sink ^= ((const uint8_t *)t->data)[0] ^ ((const uint8_t *)t->data)[t->bytes - 1];
    }
    if (model_open(g, &m, &err) == ST_OK)
        model_describe(m, text, sizeof(text));
    (void)sink;
    model_close(m);
    gguf_close(g);
    return 0;
}
