/* fuzz_wire.c - any bytes as a frame.  Targets: wire_decode_request, wire_decode_reply, wire_to_json; what decodes is encoded and
 * has to decode again. */
#include <stdlib.h>

#include "wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *at, size_t n);

static void encode_again(const struct wire_message *m)
{
    static struct wire_buffer b;
    struct wire_message again;
    struct error err;

    if (m->type != WIRE_GENERATE)
        return;
    if (wire_encode_generate(&b, &m->generate) != ST_OK)
        abort();
    if (wire_decode_request(span_of(b.at, b.n), &again, &err) != ST_OK)
        abort();
    if (!span_equal(again.generate.prompt, m->generate.prompt) || again.generate.n_stops != m->generate.n_stops)
        abort();
    wire_message_deinit(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *at, size_t n)
{
    struct wire_message m;
    struct error err;
    char *json = NULL;

    if (wire_decode_request(span_of(at, n), &m, &err) == ST_OK) {
        encode_again(&m);
        wire_message_deinit(&m);
    }
    if (wire_decode_reply(span_of(at, n), &m, &err) == ST_OK)
        wire_message_deinit(&m);
    if (wire_to_json(span_of(at, n), &json) == ST_OK)
        free(json);
    return 0;
}
