/* vocabulary.c - see vocabulary.h. */
#include "tests/support/vocabulary.h"

#include <assert.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { MADE_BYTES = 1400 };

static char byte_texts[256][3];

static void fill_byte_texts(void)
{
    uint32_t n_others = 0;

    for (uint32_t b = 0; b < 256; b++) {
        bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        uint32_t c = itself ? b : 256 + n_others++;

        byte_texts[b][0] = c < 128 ? (char)c : (char)(0xC0 | c >> 6);
        byte_texts[b][1] = c < 128 ? '\0' : (char)(0x80 | (c & 0x3F));
    }
}

void vocabulary_bpe(struct gguf_writer *w, const char *pre, const char *const *control, size_t n_control,
                    const char *const *merges, size_t n_merges)
{
    size_t n = 256 + n_merges + n_control, k = 0;
    const char **tokens = calloc(n, sizeof(*tokens));
    uint32_t *types = calloc(n, sizeof(*types));
    char *made = calloc(n_merges + 1, MADE_BYTES);

    fill_byte_texts();
    for (; k < 256; k++)
        tokens[k] = byte_texts[k];
    for (size_t i = 0; i < n_merges; i++, k++) {
        const char *blank = strchr(merges[i], ' ');

        snprintf(made + MADE_BYTES * i, MADE_BYTES, "%.*s%s", (int)(blank - merges[i]), merges[i], blank + 1);
        tokens[k] = made + MADE_BYTES * i;
    }
    for (size_t i = 0; i < n_control; i++, k++)
        tokens[k] = control[i];
    for (size_t i = 0; i < n; i++)
        types[i] = i < n - n_control ? 1 : 3;
    gguf_writer_string(w, "tokenizer.ggml.model", "gpt2");
    gguf_writer_string(w, "tokenizer.ggml.pre", pre);
    gguf_writer_strings(w, "tokenizer.ggml.tokens", tokens, n);
    gguf_writer_u32s(w, "tokenizer.ggml.token_type", GGUF_I32, types, n);
    gguf_writer_strings(w, "tokenizer.ggml.merges", merges, n_merges);
    free(tokens);
    free(types);
    free(made);
}

void vocabulary_spm(struct gguf_writer *w, const struct vocabulary_entry *entries, size_t n)
{
    size_t n_all = VOCABULARY_SPM_FIRST + n;
    static char bytes[256][8];
    const char **tokens = calloc(n_all, sizeof(*tokens));
    uint32_t *types = calloc(n_all, sizeof(*types));
    float *scores = calloc(n_all, sizeof(*scores));

    tokens[0] = "<unk>";
    tokens[1] = "<s>";
    tokens[2] = "</s>";
    types[0] = 2;
    types[1] = types[2] = 3;
    for (size_t b = 0; b < 256; b++) {
        snprintf(bytes[b], sizeof(bytes[b]), "<0x%02X>", (unsigned)b);
        tokens[VOCABULARY_SPM_FIRST_BYTE + b] = bytes[b];
        types[VOCABULARY_SPM_FIRST_BYTE + b] = 6;
    }
    for (size_t i = 0; i < n; i++) {
        tokens[VOCABULARY_SPM_FIRST + i] = entries[i].text;
        types[VOCABULARY_SPM_FIRST + i] = entries[i].type == 0 ? 1 : entries[i].type;
        scores[VOCABULARY_SPM_FIRST + i] = entries[i].score;
    }
    gguf_writer_string(w, "tokenizer.ggml.model", "llama");
    gguf_writer_strings(w, "tokenizer.ggml.tokens", tokens, n_all);
    gguf_writer_u32s(w, "tokenizer.ggml.token_type", GGUF_I32, types, n_all);
    gguf_writer_f32s(w, "tokenizer.ggml.scores", scores, n_all);
    free(tokens);
    free(types);
    free(scores);
}

struct tokenizer *vocabulary_load(struct gguf_writer *w)
{
    struct gguf *g = NULL;
    struct tokenizer *t = NULL;
    struct error err;

    if (gguf_open_memory(gguf_writer_finish(w), "test.gguf", &g, &err) != ST_OK ||
        tokenizer_new(g, &t, &err) != ST_OK)
        fail_msg("%s", err.message);
    gguf_close(g);
    return t;
}
