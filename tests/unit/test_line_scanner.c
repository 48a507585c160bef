/* test_line_scanner.c - lines of a file, against a scanner that holds the whole file in memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <sys/mman.h>
#include <unistd.h>

#include "gateway/line_scanner.h"
#include "tests/support/random.h"

static struct random dice;

static int file_of(const void *bytes, size_t n)
{
    int fd = memfd_create("lines", MFD_CLOEXEC);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, n), n);
    return fd;
}

/* The oracle: next newline in the whole text. */
static void check_all(const uint8_t *text, size_t n)
{
    struct line_scanner s;
    struct scanned_line line;
    size_t at = 0;
    uint32_t number = 0;
    int fd = file_of(text, n);

    assert_int_equal(line_scanner_init(&s, fd), ST_OK);
    while (at < n) {
        const uint8_t *newline = memchr(text + at, '\n', n - at);
        size_t bytes = newline != NULL ? (size_t)(newline - (text + at)) : n - at;
        assert_int_equal(line_scanner_next(&s, &line), ST_OK);
        assert_int_equal(line.number, ++number);
        assert_int_equal(line.offset, at);
        assert_int_equal(line.bytes, bytes);
        assert_int_equal(line.too_long, bytes > LINE_BYTES_MAX);
        if (!line.too_long) {
            assert_int_equal(line.text.n, bytes);
            assert_true(bytes == 0 || memcmp(line.text.at, text + at, bytes) == 0);
        }
        at += bytes + 1;
    }
    assert_int_equal(line_scanner_next(&s, &line), ST_NOT_FOUND);
    assert_int_equal(line_scanner_next(&s, &line), ST_NOT_FOUND);
    line_scanner_deinit(&s);
    close(fd);
}

static void small_files(void **state)
{
    static const char *const texts[] = { "", "\n", "a", "a\n", "a\nb", "\n\n", "a\r\n\r\nb\r\n" };

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        check_all((const uint8_t *)texts[i], strlen(texts[i]));
}

static void lines_around_the_limit(void **state)
{
    size_t n = 4 * (size_t)LINE_BYTES_MAX;
    uint8_t *text = malloc(n);

    (void)state;
    for (int d = -1; d <= 1; d++) {
        memset(text, 'x', n);
        text[LINE_BYTES_MAX + d] = '\n';
        text[LINE_BYTES_MAX + d + 3] = '\n';
        check_all(text, LINE_BYTES_MAX + d);
        check_all(text, LINE_BYTES_MAX + d + 10);
        check_all(text, n);
    }
    free(text);
}

static void any_file(void **state)
{
    enum { BYTES = 3 << 20 };
    uint8_t *text = malloc(BYTES);

    (void)state;
    for (uint64_t i = 0; i < random_ops(); i++) {
        size_t n = random_below(&dice, BYTES);
        uint32_t spread = 1 + random_below(&dice, i % 2 ? 100 : 1000000);
        memset(text, 'y', n);
        for (size_t at = random_below(&dice, spread); at < n; at += 1 + random_below(&dice, spread))
            text[at] = '\n';
        check_all(text, n);
    }
    free(text);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_files),
        cmocka_unit_test(lines_around_the_limit),
        cmocka_unit_test(any_file),
    };

    dice = random_start(argc, argv, 30);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
