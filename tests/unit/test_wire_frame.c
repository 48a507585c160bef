/* test_wire_frame.c - bytes that are no message: refused before anything is allocated for them, by name where there is one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <malloc.h>
#include <sys/resource.h>

#include "tests/support/pack.h"
#include "tests/support/random.h"
#include "wire.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#endif

static struct random rng;
static struct error err;

/* Decode as both kinds; the frame lies in memory of its exact size, so that a sanitizer sees a read past it. */
static enum status decode(const void *at, size_t n, bool as_request)
{
    struct wire_message m;
    uint8_t *exact = malloc(n > 0 ? n : 1);
    enum status st;

    memcpy(exact, at, n);
    memset(&err, 0, sizeof(err));
    st = as_request ? wire_decode_request(span_of(exact, n), &m, &err) : wire_decode_reply(span_of(exact, n), &m, &err);
    if (st == ST_OK)
        wire_message_deinit(&m);
    else
        assert_true(err.code != ERR_NONE && err.message[0] != '\0');
    free(exact);
    return st;
}

#define REQUEST(bytes) decode((bytes), sizeof(bytes) - 1, true)

static void is_malformed(const void *at, size_t n)
{
    assert_int_equal(decode(at, n, true), ST_INVALID);
    assert_int_equal(err.code, ERR_MALFORMED_MESSAGE);
    assert_int_equal(decode(at, n, false), ST_INVALID);
    assert_int_equal(err.code, ERR_MALFORMED_MESSAGE);
}

#define MALFORMED(bytes) is_malformed((bytes), sizeof(bytes) - 1)

static const char rich[] =
    "{'type':'generate','id':'abc','messages':[{'role':'system','content':'You are \\u00e9\\ud83d\\ude00'},{'role':'user',"
    "'content':'x'}],'seed':81985529216486895,'temperature':0.7,'logit_bias':{'5':-100,'70000':1},'stop':['a','bb'],"
    "'resume':[{'choice':0,'ids':[1,200,70000],'released_bytes':12}],'ext':{'a':[1,{'b':null}],'c':-5},'n':2}";

static void every_truncation_is_refused(void **state)
{
    struct span whole = pack_json(rich);

    (void)state;
    assert_int_equal(decode(whole.at, whole.n, true), ST_OK);
    for (size_t n = 0; n < whole.n; n++)
        is_malformed(whole.at, n);
}

static void bytes_behind_the_message_are_refused(void **state)
{
    struct span whole = pack_json(rich);
    uint8_t *longer = malloc(2 * whole.n);

    (void)state;
    memcpy(longer, whole.at, whole.n);
    longer[whole.n] = 0xC0;
    is_malformed(longer, whole.n + 1);
    memcpy(longer + whole.n, whole.at, whole.n);
    is_malformed(longer, 2 * whole.n);
    free(longer);
}

static void what_is_no_map_is_refused(void **state)
{
    (void)state;
    MALFORMED("");
    MALFORMED("\xC0");
    MALFORMED("\xC1");
    MALFORMED("\x90");
    MALFORMED("\xA3" "abc");
    MALFORMED("\x07");
    MALFORMED("{\"type\":\"status\"}");
    MALFORMED("\x81\x01\x02");             /* a key that is no string */
    MALFORMED("\x81\x90\x02");
    MALFORMED("\x81\xC4\x01" "a\x02");     /* binary is no string */
    MALFORMED("\x81\xA1" "a\xC1");         /* the byte that is never used */
}

/* The counts of each of these announce gigabytes; nothing may be taken for them. */
static void an_announced_length_takes_no_memory(void **state)
{
    static const struct { const char *bytes; size_t n; } bombs[] = {
        { "\xDD\xFF\xFF\xFF\xFF", 5 }, { "\xDF\xFF\xFF\xFF\xFF", 5 }, { "\xC6\xFF\xFF\xFF\xFF", 5 },
        { "\xDB\xFF\xFF\xFF\xFF", 5 }, { "\xC9\xFF\xFF\xFF\xFF\x01", 6 }, { "\xDC\xFF\xFF", 3 }, { "\xDE\xFF\xFF", 3 },
        { "\xC5\xFF\xFF", 3 },         { "\xDA\xFF\xFF", 3 },             { "\xD9\xFF", 2 },     { "\xC4\xFF", 2 },
        { "\xC7\xFF\x01", 3 },         { "\xC8\xFF\xFF\x01", 4 },         { "\xDD\x00\x10\x00\x00", 5 },
    };
    struct rlimit old;

    (void)state;
    assert_int_equal(getrlimit(RLIMIT_AS, &old), 0);
#ifndef SANITIZED /* a sanitizer's own memory is larger */
    assert_int_equal(setrlimit(RLIMIT_AS, &(struct rlimit){ 256 << 20, old.rlim_max }), 0);
#endif
    for (size_t i = 0; i < sizeof(bombs) / sizeof(bombs[0]); i++) {
        uint8_t frame[32] = "\x81\xA6prompt";
        size_t before = mallinfo2().uordblks;

        is_malformed(bombs[i].bytes, bombs[i].n); /* as the message */
        memcpy(frame + 8, bombs[i].bytes, bombs[i].n);
        is_malformed(frame, 8 + bombs[i].n);      /* as a value */
        assert_true(mallinfo2().uordblks <= before + 4096);
    }
    setrlimit(RLIMIT_AS, &old);
}

/* n lists inside one another, the innermost empty, as the value of a key of the outermost map. */
static size_t nest(uint8_t *frame, unsigned n, uint8_t list)
{
    size_t at = 0;

    memcpy(frame, "\x83\xA4type\xA6status\xA2id\xA1" "a\xA3" "ext", 22);
    at = 22;
    for (unsigned i = 0; i < n; i++) {
        frame[at++] = i + 1 < n ? list : list - 1;
        if (list == 0x81 && i + 1 < n) {
            frame[at++] = 0xA1;
            frame[at++] = 'k';
        }
    }
    return at;
}

static void nesting_has_a_limit(void **state)
{
    uint8_t frame[4096];

    (void)state;
    assert_int_equal(decode(frame, nest(frame, FRAME_NESTING_MAX - 1, 0x81), true), ST_OK); /* and the message itself */
    assert_int_equal(decode(frame, nest(frame, FRAME_NESTING_MAX, 0x81), true), ST_LIMIT);
    assert_int_equal(err.code, ERR_LIMIT_EXCEEDED);
    assert_int_equal(decode(frame, nest(frame, FRAME_NESTING_MAX, 0x91), true), ST_LIMIT);
    assert_int_equal(decode(frame, nest(frame, 33, 0x91), true), ST_LIMIT); /* msgpack-c's own stack has 32 */
    assert_int_equal(decode(frame, nest(frame, 1000, 0x91), true), ST_LIMIT);
}

static void size_and_number_of_objects_have_limits(void **state)
{
    size_t n = FRAME_BYTES_MAX + 1;
    uint8_t *frame = calloc(n, 1);

    (void)state;
    assert_int_equal(decode(frame, n, true), ST_LIMIT);
    assert_int_equal(err.code, ERR_LIMIT_EXCEEDED);

    /* {"ids": [0, 0, ...]} with one object too many: map, key, list and FRAME_ITEMS_MAX - 3 numbers are allowed. */
    memcpy(frame, "\x81\xA3ids\xDD", 6);
    for (uint32_t more = 0; more < 2; more++) {
        uint32_t count = FRAME_ITEMS_MAX - 3 + more;
        for (int i = 0; i < 4; i++)
            frame[6 + i] = (uint8_t)(count >> (24 - 8 * i));
        assert_int_equal(decode(frame, 10 + count, true), more == 0 ? ST_INVALID : ST_LIMIT);
        assert_int_equal(err.code, more == 0 ? ERR_INVALID_REQUEST : ERR_LIMIT_EXCEEDED);
    }
    free(frame);
}

static void a_key_given_twice_is_refused(void **state)
{
    (void)state;
    assert_int_equal(REQUEST("\x83\xA4type\xA6status\xA2id\xA1" "a\xA2id\xA1" "b"), ST_INVALID);
    assert_string_equal(err.message, "id is given twice");
    assert_int_equal(REQUEST("\x83\xA4type\xA6status\xA2id\xA1" "a\xA4type\xA6status"), ST_INVALID);
    assert_int_equal(REQUEST("\x84\xA4type\xA8generate\xA2id\xA1" "a\xA6prompt\xA1x\xA6prompt\xC0"), ST_INVALID);
    assert_string_equal(err.param, "prompt");
    assert_int_equal(REQUEST("\x83\xA4type\xA8generate\xA2id\xA1" "a\xA8messages\x91\x83\xA4role\xA1u\xA7" "content\xA1x\xA4role\xA1u"),
                     ST_INVALID);
    assert_string_equal(err.param, "messages[0].role");
    assert_int_equal(REQUEST("\x84\xA4type\xA8generate\xA2id\xA1" "a\xA6prompt\xA1x\xAAlogit_bias\x82\x05\x01\x05\x02"), ST_INVALID);
    assert_string_equal(err.param, "logit_bias.5");
}

static void text_that_is_no_utf8_is_refused_by_field_and_for_its_request(void **state)
{
    static const char frame[] = "\x83\xA4type\xA8generate\xA2id\xA3req\xA6prompt\xA5" "ab\xED\xA0\x80";
    struct wire_message m;

    (void)state;
    assert_int_equal(wire_decode_request(span_of(frame, sizeof(frame) - 1), &m, &err), ST_INVALID);
    assert_int_equal(err.code, ERR_INVALID_PARAMETER);
    assert_string_equal(err.message, "prompt is not valid UTF-8 at byte 2");
    assert_string_equal(err.param, "prompt");
    assert_true(span_is(m.id, "req"));

    assert_int_equal(REQUEST("\x82\xA4type\xA6status\xA2id\xA1\xFF"), ST_INVALID); /* the id itself */
    assert_string_equal(err.param, "id");
    assert_int_equal(REQUEST("\x83\xA4type\xA6status\xA2id\xA1" "a\xA1\xFF\x01"), ST_INVALID);
    assert_int_equal(err.code, ERR_MALFORMED_MESSAGE);
    assert_int_equal(REQUEST("\x83\xA4type\xA6status\xA2id\xA1" "a\xA3" "ext\x81\xA1k\xA1\xC0"), ST_INVALID); /* nested, too */
    assert_string_equal(err.param, "ext");
}

static void nan_and_infinity_are_refused_by_name(void **state)
{
    static const char *const keys[] = { "temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty" };
    static const char *const values[] = { "\xCB\x7F\xF8\0\0\0\0\0\0", "\xCB\x7F\xF0\0\0\0\0\0\0", "\xCB\xFF\xF0\0\0\0\0\0\0" };

    (void)state;
    for (size_t i = 0; i < 5; i++)
        for (size_t k = 0; k < 3; k++) {
            uint8_t frame[128] = "\x84\xA4type\xA8generate\xA2id\xA1" "a\xA6prompt\xA1x";
            size_t n = 29, key_bytes = strlen(keys[i]);

            frame[n++] = (uint8_t)(0xA0 | key_bytes);
            memcpy(frame + n, keys[i], key_bytes);
            memcpy(frame + n + key_bytes, values[k], 9);
            assert_int_equal(decode(frame, n + key_bytes + 9, true), ST_INVALID);
            assert_int_equal(err.code, ERR_INVALID_PARAMETER);
            assert_string_equal(err.param, keys[i]);
        }
}

static void integers_of_every_width_are_taken(void **state)
{
    static const struct { const char *bytes; size_t n; } fives[] = {
        { "\x05", 1 },         { "\xCC\x05", 2 }, { "\xCD\0\x05", 3 }, { "\xCE\0\0\0\x05", 5 }, { "\xCF\0\0\0\0\0\0\0\x05", 9 },
        { "\xD0\x05", 2 },     { "\xD1\0\x05", 3 }, { "\xD2\0\0\0\x05", 5 }, { "\xD3\0\0\0\0\0\0\0\x05", 9 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(fives) / sizeof(fives[0]); i++) {
        uint8_t frame[64] = "\x84\xA4type\xA8generate\xA2id\xA1" "a\xA6prompt\xA1x\xA1n";

        memcpy(frame + 31, fives[i].bytes, fives[i].n);
        assert_int_equal(decode(frame, 31 + fives[i].n, true), ST_OK);
    }
}

static void the_signature_is_five_bytes(void **state)
{
    uint8_t major = 77;

    (void)state;
    assert_int_equal(wire_check_signature(span_of("WEIR\x01", 5), &major), ST_OK);
    assert_int_equal(major, 1);
    assert_int_equal(wire_check_signature(span_of("WEIR\x02", 5), &major), ST_UNSUPPORTED);
    assert_int_equal(major, 2);
    assert_int_equal(wire_check_signature(span_of("WEIR", 4), &major), ST_INVALID);
    assert_int_equal(wire_check_signature(span_of("WEIR\x01\x01", 6), &major), ST_INVALID);
    assert_int_equal(wire_check_signature(span_of("weir\x01", 5), &major), ST_INVALID);
    assert_int_equal(wire_check_signature(span_of(NULL, 0), &major), ST_INVALID);
}

/* Bytes changed at random in a good message: any status, no crash, no leak (the sanitizers watch). */
static void damaged_messages_are_answered_with_a_status(void **state)
{
    struct span whole = pack_json(rich);
    uint8_t *frame = malloc(whole.n);

    (void)state;
    for (uint64_t op = 0; op < random_ops(); op++) {
        uint32_t n_changes = 1 + random_below(&rng, 4);
        size_t n = random_below(&rng, 3) == 0 ? random_below(&rng, (uint32_t)whole.n + 1) : whole.n;

        memcpy(frame, whole.at, whole.n);
        for (uint32_t i = 0; i < n_changes; i++)
            frame[random_below(&rng, (uint32_t)whole.n)] = (uint8_t)random_next(&rng);
        decode(frame, n, true);
        decode(frame, n, false);
        char *json = NULL;
        if (wire_to_json(span_of(frame, n), &json) == ST_OK)
            free(json);
    }
    free(frame);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(bytes_behind_the_message_are_refused),
        cmocka_unit_test(what_is_no_map_is_refused),
        cmocka_unit_test(an_announced_length_takes_no_memory),
        cmocka_unit_test(nesting_has_a_limit),
        cmocka_unit_test(size_and_number_of_objects_have_limits),
        cmocka_unit_test(a_key_given_twice_is_refused),
        cmocka_unit_test(text_that_is_no_utf8_is_refused_by_field_and_for_its_request),
        cmocka_unit_test(nan_and_infinity_are_refused_by_name),
        cmocka_unit_test(integers_of_every_width_are_taken),
        cmocka_unit_test(the_signature_is_five_bytes),
        cmocka_unit_test(damaged_messages_are_answered_with_a_status),
    };

    rng = random_start(argc, argv, 20000);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
