/* test_protocol_page.c - docs/protocol.md says what the code does: limits, error codes, keys, example bytes; docs/shared-memory.md,
 * too, as far as it quotes numbers.
 *
 * Run from the top of the tree, as the runner does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "broker/keys.h"
#include "region.h"
#include "wire.h"

static char *page;

static char *memory_page;

static char *read_file(const char *path)
{
    FILE *f = fopen(path, "r");
    long n;

    if (f == NULL || fseek(f, 0, SEEK_END) != 0)
        return NULL;
    n = ftell(f);
    rewind(f);
    char *text = calloc((size_t)n + 1, 1);
    size_t got = fread(text, 1, (size_t)n, f);
    fclose(f);
    return got == (size_t)n ? text : NULL;
}

static int read_pages(void **state)
{
    (void)state;
    page = read_file("docs/protocol.md");
    memory_page = read_file("docs/shared-memory.md");
    return page != NULL && memory_page != NULL ? 0 : -1;
}

static int free_pages(void **state)
{
    (void)state;
    free(page);
    free(memory_page);
    return 0;
}

static void has(const char *text, const char *part)
{
    if (strstr(text, part) == NULL)
        fail_msg("the page lacks: %s", part);
}

static void page_has(const char *part)
{
    has(page, part);
}

#define LIMIT(name) { #name, name }

static void the_page_of_shared_memory_has_the_numbers_of_the_headers(void **state)
{
    static const struct { const char *name; long value; } limits[] = {
        LIMIT(REGION_SLOTS), LIMIT(REQUEST_RING_SLOTS), LIMIT(EVENT_RING_SLOTS), LIMIT(RING_SLOT_BYTES), LIMIT(ARENA_BYTES),
        LIMIT(RECORD_BYTES_MAX), LIMIT(EVENT_SLOTS_MAX),
    };
    char row[96];

    (void)state;
    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
        snprintf(row, sizeof(row), "| `%s` | %ld |", limits[i].name, limits[i].value);
        has(memory_page, row);
    }
    snprintf(row, sizeof(row), "`struct work_request`, %zu bytes", sizeof(struct work_request));
    has(memory_page, row);
    snprintf(row, sizeof(row), "first one's %d bytes", EVENT_DATA_BYTES);
    has(memory_page, row);
    snprintf(row, sizeof(row), "| %d | the memory: a memfd |", REGION_FD_MEMORY);
    has(memory_page, row);
    snprintf(row, sizeof(row), "| %d | one end of a socketpair", REGION_FD_CONTROL);
    has(memory_page, row);
}

static void limits_are_those_of_the_header(void **state)
{
    static const struct { const char *name; long value; } limits[] = {
        LIMIT(FRAME_BYTES_MAX), LIMIT(FRAME_NESTING_MAX), LIMIT(FRAME_ITEMS_MAX), LIMIT(PROMPT_BYTES_MAX), LIMIT(PROMPT_IDS_MAX), LIMIT(TOKENIZE_IDS_MAX),
        LIMIT(MESSAGES_MAX), LIMIT(CHOICES_MAX), LIMIT(STOPS_MAX), LIMIT(STOP_BYTES_MAX), LIMIT(LOGIT_BIAS_MAX), LIMIT(LOGPROBS_MAX),
        LIMIT(CLIENT_ID_BYTES_MAX), LIMIT(SALT_BYTES_MAX), LIMIT(NAME_BYTES_MAX), LIMIT(EXT_BYTES_MAX), LIMIT(OUTPUT_TOKENS_MAX),
        LIMIT(DEADLINE_MS_MAX), LIMIT(REQUESTS_MAX), LIMIT(USER_REQUESTS_MAX), LIMIT(CLIENTS_MAX), LIMIT(CLIENT_PROBE_MS),
        LIMIT(SESSIONS_MAX), LIMIT(SESSIONS_USER_MAX), LIMIT(SESSION_TTL_MS), LIMIT(SESSION_TTL_MS_MAX),
        LIMIT(CLIENT_BACKLOG_BYTES_MAX), LIMIT(KEYS_KEEP_MS), LIMIT(KEYS_USER_KEPT_MAX), LIMIT(KEYS_BYTES_MAX), LIMIT(KEYS_ORPHAN_MS),
    };
    size_t n_rows = 0;

    (void)state;
    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
        char row[80];

        snprintf(row, sizeof(row), "| `%s` | %ld |", limits[i].name, limits[i].value);
        page_has(row);
    }
    for (const char *p = strstr(page, "## Limits"); (p = strstr(p, "\n| `")) != NULL; p++)
        n_rows++;
    assert_int_equal(n_rows, sizeof(limits) / sizeof(limits[0])); /* no row that is not compared */
}

static void errors_are_those_of_the_header(void **state)
{
    (void)state;
    for (enum error_code code = ERR_INVALID_REQUEST; code < ERR_COUNT; code++) {
        char row[80];

        snprintf(row, sizeof(row), "\n| `%s` | %d |", error_code_name(code), error_code_http(code));
        page_has(row);
    }
}

/* Every key in the first column of a table of `generate` is one that the decoder knows: it refuses the value, not the name. */
static void keys_of_generate_are_known_to_the_decoder(void **state)
{
    const char *end = strstr(page, "### tokenize"), *p = strstr(page, "### generate");
    size_t n_keys = 0;

    (void)state;
    assert_non_null(p);
    assert_non_null(end);
    while ((p = strstr(p, "\n| `")) != NULL && p < end) {
        uint8_t frame[128] = "\x81";
        struct wire_message m;
        struct error err;
        size_t n = strcspn(p + 4, "`");

        frame[1] = (uint8_t)(0xA0 | n);
        memcpy(frame + 2, p + 4, n);
        memcpy(frame + 2 + n, "\xC4\x01\xFF\0", 4); /* binary, which few take, and those may */
        uint8_t whole[256] = "\x83\xA4type\xA8generate\xA2id\xA1" "a";
        memcpy(whole + 20, frame + 1, n + 4);
        enum status st = wire_decode_request(span_of(whole, 20 + n + 4), &m, &err);
        assert_int_not_equal(st, ST_OK);
        if (err.code == ERR_UNKNOWN_FIELD || err.code == ERR_MALFORMED_MESSAGE || err.code == ERR_UNSUPPORTED_PARAMETER)
            fail_msg("%.*s: %s", (int)n, p + 4, err.message);
        n_keys++;
        p += 4;
    }
    assert_in_range(n_keys, 34, 60);
}

/* Bytes of the hex block that begins at *p, which is moved behind it. */
static size_t read_hex(const char **p, uint8_t *bytes, size_t most)
{
    size_t n = 0;
    char *after;

    *p = strchr(*p, '\n');
    while (n < most) {
        long byte = strtol(*p, &after, 16);
        if (after == *p)
            break;
        bytes[n++] = (uint8_t)byte;
        *p = after;
    }
    return n;
}

static void example_bytes_are_messages(void **state)
{
    const char *p = strstr(page, "```hex-request");
    uint8_t bytes[256];
    struct wire_message m;
    struct error err;

    (void)state;
    assert_non_null(p);
    size_t n = read_hex(&p, bytes, sizeof(bytes));
    assert_int_equal(wire_decode_request(span_of(bytes, n), &m, &err), ST_OK);
    assert_true(span_is(m.generate.prompt, "The sea is") && m.generate.max_tokens == 2 && m.generate.sampling.seed == 7);
    wire_message_deinit(&m);
    static const enum wire_type replies[] = { WIRE_ACCEPTED, WIRE_TOKEN };
    for (int i = 0; i < 2; i++) {
        p = strstr(p, "```hex-reply");
        assert_non_null(p);
        n = read_hex(&p, bytes, sizeof(bytes));
        assert_int_equal(wire_decode_reply(span_of(bytes, n), &m, &err), ST_OK);
        assert_int_equal(m.type, replies[i]);
        wire_message_deinit(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(limits_are_those_of_the_header),
        cmocka_unit_test(errors_are_those_of_the_header),
        cmocka_unit_test(keys_of_generate_are_known_to_the_decoder),
        cmocka_unit_test(example_bytes_are_messages),
        cmocka_unit_test(the_page_of_shared_memory_has_the_numbers_of_the_headers),
    };

    return cmocka_run_group_tests(tests, read_pages, free_pages);
}
