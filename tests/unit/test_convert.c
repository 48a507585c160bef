/* test_convert.c - uploads unpacked and made into job lines, in pieces of every size: against what was put in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <zlib.h>
#include <zstd.h>

#include "gateway/convert.h"
#include "gateway/template.h"
#include "limits.h"
#include "tests/support/random.h"

static struct random dice;
static struct error err;

struct text {
    char *at;
    size_t n, max; /* max: the sink refuses more; 0 none */
};

static void add(struct text *t, const void *bytes, size_t n)
{
    t->at = realloc(t->at, t->n + n + 1);
    assert_non_null(t->at);
    memcpy(t->at + t->n, bytes, n);
    t->n += n;
    t->at[t->n] = '\0';
}

static void add_str(struct text *t, const char *s)
{
    add(t, s, strlen(s));
}

static enum status sink(void *arg, struct span bytes, struct error *e)
{
    struct text *t = arg;

    assert_true(bytes.n > 0);
    if (t->max != 0 && bytes.n > t->max - t->n) {
        error_set(e, ERR_LIMIT_EXCEEDED, NULL, "the sink is full");
        return ST_LIMIT;
    }
    add(t, bytes.at, bytes.n);
    return ST_OK;
}

static size_t some(size_t left)
{
    size_t n = 1 + random_below(&dice, random_below(&dice, 2) ? 3 : 5000);
    return n < left ? n : left;
}

/* --- unpack -------------------------------------------------------------------------------------- */

static enum status unpack(const void *bytes, size_t n, struct text *ret)
{
    struct unpack *u;
    enum status st = ST_OK;
    const char *at = bytes;

    assert_int_equal(unpack_new(sink, ret, &u), ST_OK);
    for (size_t done = 0; done < n && st == ST_OK;) {
        size_t part = some(n - done);
        st = unpack_put(u, span_of(at + done, part), &err);
        done += part;
    }
    if (st == ST_OK)
        st = unpack_end(u, &err);
    unpack_free(u);
    return st;
}

static void add_gzip(struct text *to, const char *bytes, size_t n)
{
    z_stream z = { 0 };
    size_t room = n + n / 10 + 100;
    uint8_t *out = malloc(room);

    assert_int_equal(deflateInit2(&z, 1 + (int)random_below(&dice, 9), Z_DEFLATED, 15 + 16, 8, 0), Z_OK);
    z.next_in = (Bytef *)(uintptr_t)bytes;
    z.avail_in = (uInt)n;
    z.next_out = out;
    z.avail_out = (uInt)room;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    add(to, out, room - z.avail_out);
    deflateEnd(&z);
    free(out);
}

static void add_zstd(struct text *to, const char *bytes, size_t n)
{
    ZSTD_CCtx *c = ZSTD_createCCtx();
    size_t room = ZSTD_compressBound(n);
    uint8_t *out = malloc(room);

    ZSTD_CCtx_setParameter(c, ZSTD_c_checksumFlag, 1);
    size_t size = ZSTD_compress2(c, out, room, bytes, n);
    assert_false(ZSTD_isError(size));
    add(to, out, size);
    ZSTD_freeCCtx(c);
    free(out);
}

static void any_text_comes_out_as_it_went_in(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < random_ops(); i++) {
        struct text plain = { 0 }, packed = { 0 }, out = { 0 };
        bool gzip = i % 2;
        for (uint32_t members = 1 + random_below(&dice, 4); members > 0; members--) {
            char piece[3000];
            size_t n = random_below(&dice, sizeof piece);
            for (size_t k = 0; k < n; k++)
                piece[k] = (char)('a' + random_below(&dice, 3));
            add(&plain, piece, n);
            if (gzip)
                add_gzip(&packed, piece, n);
            else
                add_zstd(&packed, piece, n);
        }
        assert_int_equal(unpack(packed.at, packed.n, &out), ST_OK);
        assert_int_equal(out.n, plain.n);
        assert_true(out.n == 0 || memcmp(out.at, plain.at, out.n) == 0);
        /* one byte changed: the same text, or a refusal; never another text */
        packed.at[random_below(&dice, (uint32_t)packed.n)] ^= (char)(1u << random_below(&dice, 8));
        struct text other = { 0 };
        enum status st = unpack(packed.at, packed.n, &other);
        if (st == ST_OK && memcmp(packed.at, gzip ? "\x1f\x8b" : "\x28\xb5\x2f\xfd", gzip ? 2 : 4) == 0)
            assert_true(other.n == plain.n && (other.n == 0 || memcmp(other.at, plain.at, other.n) == 0));
        free(other.at);
        free(out.at);
        free(plain.at);
        free(packed.at);
    }
}

static void a_stream_that_ends_early_is_refused(void **state)
{
    (void)state;
    for (int zstd = 0; zstd < 2; zstd++) {
        struct text packed = { 0 };
        (zstd ? add_zstd : add_gzip)(&packed, "hello hello hello hello", 23);
        for (size_t n = 4; n < packed.n; n++) {
            struct text out = { 0 };
            assert_int_equal(unpack(packed.at, n, &out), ST_INVALID);
            assert_non_null(strstr(err.message, "ends early"));
            free(out.at);
        }
        add_str(&packed, "junk");
        struct text out = { 0 };
        assert_int_equal(unpack(packed.at, packed.n, &out), ST_INVALID);
        free(out.at);
        free(packed.at);
    }
}

static void what_is_not_packed_is_passed_on(void **state)
{
    static const char *const texts[] = { "", "a", "ab\n", "\x1f", "\x28\xb5\x2f", "{\"prompt\": \"x\"}\n" };

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct text out = { 0 };
        assert_int_equal(unpack(texts[i], strlen(texts[i]), &out), ST_OK);
        assert_string_equal(out.at != NULL ? out.at : "", texts[i]);
        free(out.at);
    }
}

static void the_sinks_limit_bounds_a_bomb(void **state)
{
    enum { BYTES = 64 << 20, MAX = 1 << 20 };
    char *zeros = calloc(1, BYTES);

    (void)state;
    for (int zstd = 0; zstd < 2; zstd++) {
        struct text packed = { 0 }, out = { .max = MAX };
        (zstd ? add_zstd : add_gzip)(&packed, zeros, BYTES);
        assert_true(packed.n < BYTES / 200);
        assert_int_equal(unpack(packed.at, packed.n, &out), ST_LIMIT);
        assert_true(out.n <= MAX);
        free(out.at);
        free(packed.at);
    }
    free(zeros);
}

static void a_window_over_the_limit_is_named(void **state)
{
    enum { BYTES = 20 << 20 };
    char *zeros = calloc(1, BYTES);
    ZSTD_CCtx *c = ZSTD_createCCtx();
    size_t room = ZSTD_compressBound(BYTES);
    uint8_t *packed = malloc(room);
    struct text out = { 0 };

    (void)state;
    ZSTD_CCtx_setParameter(c, ZSTD_c_windowLog, 26);
    ZSTD_CCtx_setParameter(c, ZSTD_c_contentSizeFlag, 0);
    size_t n = ZSTD_compress2(c, packed, room, zeros, BYTES);
    assert_false(ZSTD_isError(n));
    enum status st = unpack(packed, n, &out);
    assert_int_equal(st, ST_INVALID);
    assert_non_null(strstr(err.message, "8 MiB"));
    ZSTD_freeCCtx(c);
    free(out.at);
    free(packed);
    free(zeros);
}

/* --- convert ------------------------------------------------------------------------------------- */

static enum status convert(enum convert_mode mode, const char *template, bool chat, const void *bytes, size_t n,
                           struct text *ret)
{
    struct convert *c;
    const char *at = bytes;
    enum status st = convert_new(mode, template, chat, sink, ret, &c, &err);

    if (st != ST_OK)
        return st;
    for (size_t done = 0; done < n && st == ST_OK;) {
        size_t part = some(n - done);
        st = convert_put(c, span_of(at + done, part), &err);
        done += part;
    }
    if (st == ST_OK)
        st = convert_end(c, &err);
    convert_free(c);
    return st;
}

static void check(enum convert_mode mode, const char *template, bool chat, const char *in, const char *wanted)
{
    for (int i = 0; i < 20; i++) {
        struct text out = { 0 };
        assert_int_equal(convert(mode, template, chat, in, strlen(in), &out), ST_OK);
        assert_string_equal(out.at != NULL ? out.at : "", wanted);
        free(out.at);
    }
}

static void text_has_one_prompt_a_line(void **state)
{
    (void)state;
    check(CONVERT_TEXT, NULL, false, "\xef\xbb\xbf" "a\r\n\n \t\nb \"c\"",
          "{\"prompt\":\"a\"}\n\n\n{\"prompt\":\"b \\\"c\\\"\"}\n");
    check(CONVERT_TEXT, NULL, true, "hi\n", "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}\n");
    check(CONVERT_TEXT, NULL, false, "", "");
    check(CONVERT_TEXT, NULL, false, "ok\n\xff\n",
          "{\"prompt\":\"ok\"}\n{\"x_refused\":\"the line is not valid UTF-8\"}\n");
}

static void job_lines_are_passed_on(void **state)
{
    (void)state;
    check(CONVERT_NONE, NULL, false, "\xef\xbb\xbf{}\r\n\nx", "\xef\xbb\xbf{}\r\n\nx");
}

static void json_lines_with_a_template(void **state)
{
    (void)state;
    check(CONVERT_TEMPLATE, "Say {a} {{n}}: {n}", false,
          "{\"a\":\"x\",\"n\":7,\"id\":12}\n{\"a\":\"y\"}\n[1]\nnot\n{\"custom_id\":\"c\",\"a\":\"z\",\"n\":[1]}",
          "{\"id\":\"12\",\"prompt\":\"Say x {n}: 7\",\"metadata\":{\"a\":\"x\",\"n\":7,\"id\":12}}\n"
          "{\"x_refused\":\"the line has no \\\"n\\\", which the template names\"}\n"
          "{\"x_refused\":\"the line is not a JSON object\"}\n"
          "{\"x_refused\":\"the line is not JSON: '[' or '{' expected near 'not'\"}\n"
          "{\"id\":\"c\",\"prompt\":\"Say z {n}: [1]\",\"metadata\":{\"custom_id\":\"c\",\"a\":\"z\",\"n\":[1]}}\n");
}

static void csv_with_a_template_keeps_line_numbers(void **state)
{
    (void)state;
    check(CONVERT_TEMPLATE, "{text}!", false,
          "\xef\xbb\xbf" "id;text\r\n1;\"two\nlines; \"\"q\"\"\"\r\n\r\n2;5\" pipe\n3\n4;\"x\"y\n",
          "\n"
          "{\"id\":\"1\",\"prompt\":\"two\\nlines; \\\"q\\\"!\",\"metadata\":{\"id\":\"1\",\"text\":\"two\\nlines; \\\"q\\\"\"}}\n\n"
          "\n"
          "{\"id\":\"2\",\"prompt\":\"5\\\" pipe!\",\"metadata\":{\"id\":\"2\",\"text\":\"5\\\" pipe\"}}\n"
          "{\"x_refused\":\"the line has 1 fields, the header has 2\"}\n"
          "{\"x_refused\":\"field 2 has text behind its closing quote\"}\n");
}

static void refuse(enum convert_mode mode, const char *template, const char *in, size_t n, const char *word)
{
    for (int i = 0; i < 10; i++) {
        struct text out = { 0 };
        assert_int_equal(convert(mode, template, false, in, n, &out), ST_INVALID);
        if (strstr(err.message, word) == NULL)
            fail_msg("\"%s\" does not say \"%s\"", err.message, word);
        free(out.at);
    }
}

static void what_is_refused_as_a_whole(void **state)
{
    (void)state;
    refuse(CONVERT_NONE, NULL, "\xff\xfe{\0", 4, "UTF-16");
    refuse(CONVERT_TEXT, NULL, "a\0b\0", 4, "UTF-16");
    refuse(CONVERT_TEMPLATE, "{x}", "a,b\n1,2\n", 8, "columns of the input are: a, b");
    refuse(CONVERT_TEMPLATE, "{a}", "a,a\n1,2\n", 8, "twice");
    refuse(CONVERT_TEMPLATE, "{a}", "a,b\n1,2\n\"x,\n3,4\n", 15, "line 3");
    refuse(CONVERT_TEMPLATE, "no column", "", 0, "names no column");
    refuse(CONVERT_TEMPLATE, "{a", "", 0, "not closed");
    refuse(CONVERT_TEMPLATE, "a}", "", 0, "alone");
    refuse(CONVERT_TEMPLATE, "{}", "", 0, "no column");
}

static void a_line_over_the_limit_is_one_error(void **state)
{
    size_t n = LINE_BYTES_MAX + 10;
    char *in = malloc(n + 3);
    struct text out = { 0 };

    (void)state;
    memset(in, 'x', n);
    memcpy(in + n, "\ny", 2);
    assert_int_equal(convert(CONVERT_TEXT, NULL, false, in, n + 2, &out), ST_OK);
    assert_non_null(strstr(out.at, "over the limit"));
    assert_string_equal(strchr(out.at, '\n'), "\n{\"prompt\":\"y\"}\n");
    free(out.at);
    in[0] = '"'; /* in CSV an open quote that long is the end of it */
    out = (struct text){ 0 };
    struct text csv = { 0 };
    add_str(&csv, "a,b\n");
    add(&csv, in, n);
    assert_int_equal(convert(CONVERT_TEMPLATE, "{a}", false, csv.at, csv.n, &out), ST_INVALID);
    assert_non_null(strstr(err.message, "line 2"));
    free(out.at);
    free(csv.at);
    free(in);
}

/* Random tables, written as CSV in a random style: the prompts are the cells. */
static void any_table(void **state)
{
    static const char *const pieces[] = { "a", "\"", ",", ";", "\n", " ", "\xc3\xa4", "\r", "{", "" };

    (void)state;
    for (uint64_t i = 0; i < random_ops(); i++) {
        struct text csv = { 0 }, wanted = { 0 }, out = { 0 };
        uint32_t rows = random_below(&dice, 8);
        char delimiter = ",;\t"[random_below(&dice, 3)];
        char header[] = { 'k', delimiter, 'v', '\n', '\0' };
        add_str(&csv, header);
        add_str(&wanted, "\n");
        for (uint32_t r = 0; r < rows; r++) {
            struct text cell = { 0 }, written = { 0 };
            size_t newlines = 0;
            add_str(&cell, "");
            add_str(&written, "\"");
            for (uint32_t k = random_below(&dice, 6); k > 0; k--) {
                const char *piece = pieces[random_below(&dice, 10)];
                add_str(&cell, piece);
                add_str(&written, piece[0] == '"' ? "\"\"" : piece);
                newlines += piece[0] == '\n';
            }
            add_str(&written, "\"");
            add_str(&csv, "x");
            add(&csv, &delimiter, 1);
            add(&csv, written.at, written.n);
            add_str(&csv, r + 1 == rows && random_below(&dice, 2) ? "" : random_below(&dice, 2) ? "\r\n" : "\n");
            json_t *columns = json_pack("{ssss}", "k", "x", "v", cell.at);
            json_t *line = json_pack("{ssso}", "prompt", cell.at, "metadata", columns);
            char *text = json_dumps(line, JSON_COMPACT);
            add_str(&wanted, text);
            for (size_t k = 0; k <= newlines; k++)
                add_str(&wanted, "\n");
            free(text);
            json_decref(line);
            free(cell.at);
            free(written.at);
        }
        assert_int_equal(convert(CONVERT_TEMPLATE, "{v}", false, csv.at, csv.n, &out), ST_OK);
        assert_string_equal(out.at, wanted.at);
        free(out.at);
        free(csv.at);
        free(wanted.at);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_text_comes_out_as_it_went_in),
        cmocka_unit_test(a_stream_that_ends_early_is_refused),
        cmocka_unit_test(what_is_not_packed_is_passed_on),
        cmocka_unit_test(the_sinks_limit_bounds_a_bomb),
        cmocka_unit_test(a_window_over_the_limit_is_named),
        cmocka_unit_test(text_has_one_prompt_a_line),
        cmocka_unit_test(job_lines_are_passed_on),
        cmocka_unit_test(json_lines_with_a_template),
        cmocka_unit_test(csv_with_a_template_keeps_line_numbers),
        cmocka_unit_test(what_is_refused_as_a_whole),
        cmocka_unit_test(a_line_over_the_limit_is_one_error),
        cmocka_unit_test(any_table),
    };

    dice = random_start(argc, argv, 300);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
