/* fuzz_key_options.c - any text as the options of a key, and as the body of a door message.  Targets: key_options_allow, door_get_*. */
#include <stdlib.h>
#include <string.h>

#include "gateway/door.h"
#include "gateway/key_options.h"

int LLVMFuzzerTestOneInput(const uint8_t *at, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *at, size_t n)
{
    const char *reason = NULL;
    char *text = malloc(n + 1);
    struct door_reader r = { .left = span_of(at, n) };
    struct door_submit submit;
    struct error error;

    if (text == NULL)
        return 0;
    memcpy(text, at, n);
    text[n] = '\0';
    if (!key_options_allow(text, "192.0.2.7", 1700000000000, &reason) && reason == NULL)
        abort();
    free(text);
    door_get_submit(&r, &submit);
    r = (struct door_reader){ .left = span_of(at, n) };
    door_get_error(&r, &error);
    return 0;
}
