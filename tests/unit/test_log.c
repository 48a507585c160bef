/* test_log.c - an event is one line, whatever its values hold. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "log.h"

static char written[8192];

/* Run what logs with standard error in a pipe. */
#define CAPTURE(...)                                                     \
    do {                                                                 \
        int pipe_[2], old_ = dup(STDERR_FILENO);                         \
        assert_int_equal(pipe(pipe_), 0);                                \
        dup2(pipe_[1], STDERR_FILENO);                                   \
        close(pipe_[1]);                                                 \
        __VA_ARGS__;                                                     \
        dup2(old_, STDERR_FILENO);                                       \
        close(old_);                                                     \
        ssize_t n_ = read(pipe_[0], written, sizeof(written) - 1);       \
        written[n_ > 0 ? n_ : 0] = '\0';                                 \
        close(pipe_[0]);                                                 \
    } while (0)

static void a_line_has_time_level_program_and_event(void **state)
{
    int year, month, day, hour, minute, second, ms, end = 0;

    (void)state;
    log_init("worker/3", LOG_LEVEL_INFO);
    CAPTURE(log_warn("restart", "slot=%d reason=%s", 2, "sigkill"));
    assert_int_equal(sscanf(written, "%4d-%2d-%2dT%2d:%2d:%2d.%3dZ %n", &year, &month, &day, &hour, &minute, &second, &ms, &end), 7);
    assert_string_equal(written + end, "warn worker/3 event=restart slot=2 reason=sigkill\n");
    CAPTURE(log_info("ready", "%s", ""));
    assert_non_null(strstr(written, "event=ready"));
}

static void a_line_for_the_journal_begins_with_its_priority(void **state)
{
    struct stat s;
    char stream[64];

    (void)state;
    setenv("JOURNAL_STREAM", "1:2", 1); /* standard error is another one by now */
    log_init("t", LOG_LEVEL_DEBUG);
    CAPTURE(log_info("a", "x=1"));
    assert_int_equal(written[0], '2');
    CAPTURE(assert_int_equal(fstat(STDERR_FILENO, &s), 0);
            snprintf(stream, sizeof(stream), "%llu:%llu", (unsigned long long)s.st_dev, (unsigned long long)s.st_ino);
            setenv("JOURNAL_STREAM", stream, 1); log_init("t", LOG_LEVEL_DEBUG); log_info("a", "x=1"); log_error("b", "x=1"));
    assert_memory_equal(written, "<6>2", 4);
    assert_non_null(strstr(written, "\n<3>2"));
    unsetenv("JOURNAL_STREAM");
    log_init("t", LOG_LEVEL_INFO);
}

static void events_above_the_level_are_not_written(void **state)
{
    (void)state;
    log_init("t", LOG_LEVEL_WARN);
    CAPTURE(log_info("a", "x=1"); log_debug("b", "x=1"); log_error("c", "x=1"));
    assert_null(strstr(written, "event=a"));
    assert_null(strstr(written, "event=b"));
    assert_non_null(strstr(written, "error t event=c x=1\n"));
}

static void control_bytes_cannot_begin_a_second_line(void **state)
{
    (void)state;
    CAPTURE(log_error("x", "name=%s", "a\nerror t event=forged\x1b[2J"));
    assert_ptr_equal(strchr(written, '\n'), written + strlen(written) - 1);
    assert_null(strchr(written, '\x1b'));
}

static void a_long_line_is_cut_and_says_so(void **state)
{
    char text[4000];

    (void)state;
    memset(text, 'y', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    CAPTURE(log_error("x", "v=%s", text));
    size_t n = strlen(written);
    assert_in_range(n, 1000, 2048);
    assert_string_equal(written + n - 4, "...\n");
}

static void errno_is_left_alone(void **state)
{
    int after;

    (void)state;
    CAPTURE(errno = ENOSPC; log_error("x", "v=%d", 1); after = errno);
    assert_int_equal(after, ENOSPC);
}

static void quoting_escapes_and_cuts_whole_characters(void **state)
{
    char buf[16], tiny[5];

    (void)state;
    assert_string_equal(log_quote(buf, sizeof(buf), "a \"b\"\\"), "\"a \\\"b\\\"\\\\\"");
    assert_string_equal(log_quote(buf, sizeof(buf), "\n"), "\"\\x0a\"");
    assert_string_equal(log_quote(buf, sizeof(buf), "1234567890123"), "\"1234567890123\"");
    assert_string_equal(log_quote(buf, sizeof(buf), "12345678901234"), "\"1234567890...\"");
    assert_string_equal(log_quote(buf, sizeof(buf), "123456789\xE2\x82\xAC\xE2\x82\xAC"), "\"123456789...\"");
    assert_string_equal(log_quote(buf, sizeof(buf), ""), "\"\"");
    assert_string_equal(log_quote(tiny, sizeof(tiny), "abc"), "");
}

static void levels_have_names(void **state)
{
    (void)state;
    assert_int_equal(log_level_from_name("debug"), LOG_LEVEL_DEBUG);
    assert_int_equal(log_level_from_name("error"), LOG_LEVEL_ERROR);
    assert_int_equal(log_level_from_name("loud"), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_has_time_level_program_and_event),
        cmocka_unit_test(a_line_for_the_journal_begins_with_its_priority),
        cmocka_unit_test(events_above_the_level_are_not_written),
        cmocka_unit_test(control_bytes_cannot_begin_a_second_line),
        cmocka_unit_test(a_long_line_is_cut_and_says_so),
        cmocka_unit_test(errno_is_left_alone),
        cmocka_unit_test(quoting_escapes_and_cuts_whole_characters),
        cmocka_unit_test(levels_have_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
