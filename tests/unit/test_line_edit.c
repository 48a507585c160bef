/* test_line_edit.c - typing a line: keys, characters in parts, history, what is drawn; and the conversation behind `chat`. */
#include <locale.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>
#include <cmocka.h>

#include "conversation.h"
#include "limits.h"
#include "line_edit.h"
#include "span.h"
#include "tests/support/random.h"
#include "utf8.h"

static struct random dice;
static FILE *nowhere;

/* Type all of it; the last byte's end. */
static enum line_edit_end type(struct line_edit *e, const char *keys)
{
    enum line_edit_end end = LINE_EDIT_MORE;

    for (; *keys != '\0'; keys++) {
        assert_int_equal(end, LINE_EDIT_MORE);
        end = line_edit_byte(e, (unsigned char)*keys, nowhere);
    }
    return end;
}

static void check_line(struct line_edit *e, const char *keys, const char *wanted)
{
    size_t n;

    line_edit_begin(e, "> ");
    assert_int_equal(type(e, keys), LINE_EDIT_LINE);
    assert_string_equal(line_edit_text(e, &n), wanted);
    assert_int_equal(n, strlen(wanted));
}

static void keys_do_what_they_say(void **state)
{
    struct line_edit *e = line_edit_new();

    (void)state;
    check_line(e, "hello\r", "hello");
    check_line(e, "helo\x1b[Dl\n", "hello");
    check_line(e, "ello\x01h\x05!\r", "hello!");
    check_line(e, "one two\x17three\r", "one three");
    check_line(e, "abcdef\x02\x02\x0b\r", "abcd");
    check_line(e, "abc\x15x\r", "x");
    check_line(e, "abc\x1b[H\x1b[3~\x1b[F\x7f\r", "b");
    check_line(e, "abc\x1bOD\x1bOD\x04\r", "ac");
    check_line(e, "a\x1b[1;5Db\r", "ba"); /* with a modifier */
    check_line(e, "a\x1bxb\r", "ab");     /* Alt and a key is none of ours */
    check_line(e, "a\x1b[99~b\r", "ab");
    check_line(e, "\x1b[200~a\rb\x01\x1b[D\x1b[201~c\r", "a\nbc"); /* pasted: no key but text */
    check_line(e, "a\tb\r", "a\tb");
    line_edit_begin(e, "> ");
    assert_int_equal(type(e, "x\x03"), LINE_EDIT_INTERRUPTED);
    line_edit_begin(e, "> ");
    assert_int_equal(type(e, "\x04"), LINE_EDIT_END);
    line_edit_begin(e, "> ");
    assert_int_equal(type(e, "a\x1b"), LINE_EDIT_MORE);
    line_edit_pause(e); /* ESC stood alone */
    assert_int_equal(type(e, "b\r"), LINE_EDIT_LINE);
    size_t n;
    assert_string_equal(line_edit_text(e, &n), "ab");
    line_edit_free(e);
}

static void a_paste_ends_however_its_mark_comes(void **state)
{
    static const char paste[] = "\x1b[200~a\rb\x1b[201~c\r";
    struct line_edit *e = line_edit_new();
    size_t n;

    (void)state;
    for (size_t pause = 6; pause < sizeof(paste) - 1; pause++) { /* the last of them behind the paste */
        line_edit_begin(e, "> ");
        for (size_t i = 0; i < sizeof(paste) - 1; i++) {
            if (i == pause)
                line_edit_pause(e);
            assert_int_equal(line_edit_byte(e, (unsigned char)paste[i], nowhere),
                             i + 2 < sizeof(paste) ? LINE_EDIT_MORE : LINE_EDIT_LINE);
        }
        assert_string_equal(line_edit_text(e, &n), "a\nbc");
    }
    check_line(e, "\x1b[200~a\x1b\x1b[201~b\r", "ab"); /* an ESC at the end of what was pasted */
    check_line(e, "\x1b[200~a\x1b[\x1b[201~b\r", "ab");
    static const char *const lost[] = { "\x1b[200~a\rb", "\x1b[200~a\x1b", "\x1b[200~a\x1b[20" };
    for (size_t i = 0; i < sizeof(lost) / sizeof(lost[0]); i++) {
        line_edit_begin(e, "> ");
        assert_int_equal(type(e, lost[i]), LINE_EDIT_MORE);
        line_edit_pause(e);
        assert_int_equal(type(e, "\x03"), LINE_EDIT_INTERRUPTED);
        check_line(e, "ab\x7f\r", "a");
    }
    line_edit_free(e);
}

/* ESC O and a small letter is what the keypad of a terminal in application mode sends. */
static void sequences_of_other_keys_do_nothing(void **state)
{
    static const char ours[] = "ABCDHF~;0123456789";
    struct line_edit *e = line_edit_new();
    char keys[16];

    (void)state;
    for (int c = 0x20; c < 0x7F; c++) {
        if (strchr(ours, c) != NULL)
            continue;
        snprintf(keys, sizeof(keys), "ab\x02\x1bO%cc\r", c); /* between a and b */
        check_line(e, keys, "acb");
        snprintf(keys, sizeof(keys), "ab\x02\x1b[3%cc\r", c);
        check_line(e, keys, "acb");
    }
    line_edit_free(e);
}

static void history_is_found_by_up_and_down(void **state)
{
    struct line_edit *e = line_edit_new();

    (void)state;
    check_line(e, "one\r", "one");
    check_line(e, "\r", "");
    check_line(e, "two\r", "two");
    check_line(e, "\x1b[A\x1b[A\x1b[A!\r", "one!");
    check_line(e, "\x10\x10\x0e?\r", "one!?");
    check_line(e, "x\x1b[A\x1b[B\r", "");
    for (int i = 0; i < 300; i++)
        check_line(e, "again\r", "again");
    for (int i = 0; i < 2 * LINE_EDIT_HISTORY; i++)
        assert_int_equal(type(e, "\x1b[A"), LINE_EDIT_MORE);
    size_t n;
    assert_string_equal(line_edit_text(e, &n), "again");
    line_edit_free(e);
}

static void bytes_that_are_no_character_are_replaced(void **state)
{
    struct line_edit *e = line_edit_new();

    (void)state;
    check_line(e, "\xc3\xa9\xe6\xb0\xb4\xf0\x9f\x8c\xb6\r", "\xc3\xa9\xe6\xb0\xb4\xf0\x9f\x8c\xb6");
    check_line(e, "a\xffz\r", "a\xef\xbf\xbdz");
    check_line(e, "a\xc3z\r", "a\xef\xbf\xbdz");             /* cut */
    check_line(e, "a\xe6\xb0\r", "a\xef\xbf\xbd");           /* cut by the end */
    check_line(e, "\xed\xa0\x80\r", "\xef\xbf\xbd");         /* a surrogate */
    check_line(e, "\x80\xbf\r", "\xef\xbf\xbd\xef\xbf\xbd");
    check_line(e, "\xe6\xb0\xb4\x7f\xc3\xa9\r", "\xc3\xa9"); /* Backspace takes a whole one */
    line_edit_free(e);
}

/* Whatever is typed, the text is UTF-8, within its limit, and a drawn row is no wider than the terminal. */
static void anything_typed_stays_text_and_in_its_row(void **state)
{
    static const char *const pieces[] = { "\t", "\xe2\x80\xae", "\xe2\x81\xa6", "\x1b[D", "\x1b[C", "\x1b[A", "\x7f", "\x04", "\x17", "\x1b[200~", "\x1b[201~", "\xe6\xb0\xb4", "\x01", "\x05" };
    struct line_edit *e = line_edit_new();

    (void)state;
    line_edit_begin(e, "> ");
    for (uint64_t i = 0; i < random_ops(); i++) {
        enum line_edit_end end = LINE_EDIT_MORE;
        if (random_below(&dice, 2) == 0) {
            const char *p = pieces[random_below(&dice, sizeof pieces / sizeof pieces[0])];
            for (; *p != '\0' && end == LINE_EDIT_MORE; p++)
                end = line_edit_byte(e, (unsigned char)*p, nowhere);
        } else {
            end = line_edit_byte(e, (unsigned char)random_next(&dice), nowhere);
        }
        size_t n;
        const char *text = line_edit_text(e, &n);
        assert_true(utf8_valid(span_of(text, n)) && n <= LINE_EDIT_BYTES_MAX);
        char *row = NULL;
        size_t bytes = 0;
        FILE *out = open_memstream(&row, &bytes);
        unsigned columns = 20 + random_below(&dice, 30), used = 0;
        line_edit_draw(e, columns, out);
        fclose(out);
        char *from = row + 1, *to = strstr(row, "\x1b[K");
        assert_non_null(to);
        *to = '\0';
        for (wchar_t c; mbtowc(&c, from, MB_CUR_MAX) > 0 && *from != '\0'; from += mbtowc(NULL, from, MB_CUR_MAX))
            used += wcwidth(c) > 0 ? (unsigned)wcwidth(c) : 0;
        assert_true(used < columns);
        unsigned cursor = (unsigned)strtoul(to + 6, NULL, 10);
        assert_true(cursor >= 2 && cursor < columns);
        free(row);
        if (end != LINE_EDIT_MORE)
            line_edit_begin(e, "> ");
    }
    line_edit_free(e);
}

/* The row is what a terminal shows cell by cell, so the cursor stands where the line says. */
static void what_is_drawn_is_as_wide_as_counted(void **state)
{
    static const struct {
        const char *typed, *row;
        unsigned cursor;
    } cases[] = {
        { "a\tb", "> a b", 5 },
        { "\t\t\x01", ">   ", 2 },
        { "\x1b[200~a\nb\x1b[201~\x02", "> a|b", 4 },
        { "x\xE2\x80\xAAy\xE2\x80\xAEz", "> x\\u202Ay\\u202Ez", 17 },
        { "\xE2\x81\xA6\xE2\x81\xA9", "> \\u2066\\u2069", 14 },
        { "\xC2\x85", "> \\u0085", 8 },
        { "\xE6\xB0\xB4" "e\xCC\x81", "> \xE6\xB0\xB4" "e\xCC\x81", 5 },
    };
    struct line_edit *e = line_edit_new();

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char *drawn = NULL, wanted[64];
        size_t n = 0;
        line_edit_begin(e, "> ");
        assert_int_equal(type(e, cases[i].typed), LINE_EDIT_MORE);
        FILE *out = open_memstream(&drawn, &n);
        line_edit_draw(e, 80, out);
        fclose(out);
        snprintf(wanted, sizeof(wanted), "\r%s\x1b[K\r\x1b[%uC", cases[i].row, cases[i].cursor);
        assert_string_equal(drawn, wanted);
        free(drawn);
    }
    line_edit_free(e);
}

static void a_line_has_a_limit(void **state)
{
    struct line_edit *e = line_edit_new();
    size_t n;

    (void)state;
    line_edit_begin(e, "> ");
    for (int i = 0; i < LINE_EDIT_BYTES_MAX + 10; i++)
        assert_int_equal(line_edit_byte(e, 'x', nowhere), LINE_EDIT_MORE);
    line_edit_text(e, &n);
    assert_int_equal(n, LINE_EDIT_BYTES_MAX);
    line_edit_draw(e, 80, nowhere);
    line_edit_free(e);
}

static void conversations_take_lines_and_commands(void **state)
{
    struct conversation c = { 0 };
    char why[128];

    (void)state;
    assert_true(conversation_begin(&c, "be brief"));
    assert_int_equal(conversation_line(&c, "", 0, why), INPUT_NOTHING);
    assert_int_equal(conversation_line(&c, "a\\", 2, why), INPUT_GOES_ON);
    assert_int_equal(conversation_line(&c, "b", 1, why), INPUT_QUESTION);
    assert_string_equal(c.input, "a\nb");
    assert_int_equal(conversation_line(&c, "x\n", 2, why), INPUT_QUESTION); /* a newline at its end is no "\" */
    assert_int_equal(conversation_line(&c, "y", 1, why), INPUT_QUESTION);
    assert_string_equal(c.input, "y");
    assert_true(conversation_say(&c, "user", "q", 1));
    assert_true(conversation_say(&c, "assistant", "", 0));
    assert_int_equal(c.n, 3);
    assert_int_equal(conversation_line(&c, "/reset", 6, why), INPUT_DONE);
    assert_int_equal(c.n, 1);
    assert_int_equal(conversation_line(&c, "/system be long", 15, why), INPUT_DONE);
    assert_string_equal(c.messages[0].content, "be long");
    assert_int_equal(conversation_line(&c, "/system", 7, why), INPUT_DONE);
    assert_int_equal(c.n, 0);
    assert_int_equal(conversation_line(&c, "/resett", 7, why), INPUT_UNKNOWN);
    assert_string_equal(why, "there is no /resett");
    assert_int_equal(conversation_line(&c, " /reset", 7, why), INPUT_QUESTION);
    assert_int_equal(conversation_line(&c, "/help", 5, why), INPUT_HELP);
    assert_int_equal(conversation_line(&c, "/quit", 5, why), INPUT_QUIT);
    char *huge = calloc(1, PROMPT_BYTES_MAX + 1);
    memset(huge, 'x', PROMPT_BYTES_MAX + 1);
    assert_int_equal(conversation_line(&c, huge, PROMPT_BYTES_MAX + 1, why), INPUT_REFUSED);
    assert_int_equal(conversation_line(&c, huge, PROMPT_BYTES_MAX, why), INPUT_QUESTION);
    free(huge);
    conversation_deinit(&c);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_do_what_they_say),
        cmocka_unit_test(a_paste_ends_however_its_mark_comes),
        cmocka_unit_test(sequences_of_other_keys_do_nothing),
        cmocka_unit_test(history_is_found_by_up_and_down),
        cmocka_unit_test(bytes_that_are_no_character_are_replaced),
        cmocka_unit_test(anything_typed_stays_text_and_in_its_row),
        cmocka_unit_test(what_is_drawn_is_as_wide_as_counted),
        cmocka_unit_test(a_line_has_a_limit),
        cmocka_unit_test(conversations_take_lines_and_commands),
    };

    dice = random_start(argc, argv, 3000);
    setlocale(LC_CTYPE, "C.UTF-8");
    nowhere = fopen("/dev/null", "w");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
