/* fuzz_chat_template.c - a template's source and a conversation: "source \0 role \1 content \1 role \1 content ...".  Whatever is
 * recognised must format, or refuse, any roles and contents; and contents must come out of it whole where nothing is trimmed. */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/gguf_writer.h"
#include "worker/chat_template.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct encoder *make_encoder(void)
{
    static const char *const tokens[] = {"<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "a", "[INST]"};
    static const uint32_t types[] = {2, 3, 3, 3, 3, 1, 3};
    static const float scores[7];
    struct gguf_writer w = {0};
    struct gguf *g = NULL;
    struct tokenizer *t = NULL;
    struct encoder *e = NULL;
    struct error err;

    gguf_writer_string(&w, "tokenizer.ggml.model", "llama");
    gguf_writer_strings(&w, "tokenizer.ggml.tokens", tokens, 7);
    gguf_writer_u32s(&w, "tokenizer.ggml.token_type", GGUF_I32, types, 7);
    gguf_writer_f32s(&w, "tokenizer.ggml.scores", scores, 7);
    if (gguf_open_memory(gguf_writer_finish(&w), "fuzz", &g, &err) != ST_OK ||
        tokenizer_new(g, &t, &err) != ST_OK || encoder_new(t, &e) != ST_OK)
        abort();
    gguf_close(g);
    gguf_writer_deinit(&w);
    return e;
}

/* The bytes up to the next mark, which is taken too. */
static struct span next_field(struct span *rest, uint8_t mark)
{
    const uint8_t *end = rest->n > 0 ? memchr(rest->at, mark, rest->n) : NULL;
    size_t n = end != NULL ? (size_t)(end - rest->at) : rest->n;
    struct span field = span_of(rest->at, n), after = span_of(rest->at + n, rest->n - n);

    *rest = end != NULL ? span_of(after.at + 1, after.n - 1) : after;
    return field;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct encoder *e;
    struct span rest = span_of(data, size);
    struct chat_template c = chat_template_detect(next_field(&rest, 0));
    struct chat_message m[32];
    struct error err;
    size_t n = 0;

    if (e == NULL)
        e = make_encoder();
    assert(c.default_system_bytes <= CHAT_DEFAULT_SYSTEM_BYTES_MAX);
    for (; n < 32 && rest.n > 0; n++) {
        m[n].role = next_field(&rest, 1);
        m[n].content = next_field(&rest, 1);
        if (m[n].role.n == 1) /* short for the usual ones, so that the fuzzer finds them */
            m[n].role = span_str(m[n].role.at[0] == 's'   ? "system"
                                 : m[n].role.at[0] == 'u' ? "user"
                                                          : "assistant");
    }
    if (chat_template_encode(&c, e, m, n, size % 2 == 0, &err) != ST_OK)
        return 0;
    for (size_t i = 0; i < n && !c.trims && !c.trims_reply; i++)
        assert(m[i].content.n == 0 ||
               memmem(encoder_text(e).at, encoder_text(e).n, m[i].content.at, m[i].content.n) != NULL);
    while (encoder_step(e, 100) == ST_AGAIN)
        ;
    return 0;
}
