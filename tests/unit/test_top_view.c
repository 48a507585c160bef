/* test_top_view.c - the page of `weir top`: its lines are counted, whatever stands in a text that came from elsewhere. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "top_view.h"

/* The page; the caller frees it. */
static char *page_of(const json_t *now, const char *problem, bool on_screen, unsigned lines)
{
    struct top_view v = { .now = now, .seconds = 1, .columns = 80, .lines = lines, .on_screen = on_screen, .problem = problem };
    char *page = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&page, &n);

    assert_non_null(out);
    top_view_print(&v, out);
    fclose(out);
    return page;
}

static unsigned count(const char *page, const char *what)
{
    unsigned n = 0;

    for (; (page = strstr(page, what)) != NULL; page += strlen(what))
        n++;
    return n;
}

static json_t *status_with(const char *error)
{
    json_t *now = json_pack("{ss ss s{} s{} s[{si ss ss ss}] s[]}", "version", "1", "state", "running", "pool", "totals", "workers", "slot", 0,
                            "state", "down", "model", "m", "error", error, "users");

    assert_non_null(now);
    return now;
}

static void a_text_from_elsewhere_stays_in_its_line(void **state)
{
    json_t *plain = status_with("no such file"), *broken = status_with("no\nsuch\tfile\r\n\n");

    (void)state;
    for (int on_screen = 0; on_screen < 2; on_screen++) {
        char *wanted = page_of(plain, "gone away", on_screen, 24), *got = page_of(broken, "gone\naway\t\n", on_screen, 24);
        assert_int_equal(count(got, "\n"), count(wanted, "\n"));
        assert_int_equal(count(got, "\r\n"), on_screen ? count(got, "\n") : 0);
        assert_int_equal(count(got, "\t"), 0);
        assert_non_null(strstr(got, on_screen ? "no such file^M  " : "no such file^M\n"));
        assert_non_null(strstr(got, on_screen ? "gone away  " : "gone away\n"));
        if (!on_screen) /* no line ends in blanks where nothing has to be wiped out */
            assert_null(strstr(got, " \n"));
        free(wanted);
        free(got);
    }
    json_decref(plain);
    json_decref(broken);
}

static void a_page_has_no_more_lines_than_the_screen(void **state)
{
    json_t *now = status_with("a\nb\nc\nd\ne\nf\ng\nh");

    (void)state;
    for (unsigned lines = 8; lines < 30; lines++) {
        char *page = page_of(now, "x\ny\nz", true, lines);
        assert_true(count(page, "\n") < lines);
        free(page);
    }
    json_decref(now);
}


static void looks_at_two_brokers_are_not_compared(void **state)
{
    struct top_looks looks = { 0 };
    struct top_view v = { 0 };

    (void)state;
    top_looks_add(&looks, json_pack("{ss}", "boot", "a"), 1000000000, &v);
    assert_ptr_equal(v.now, looks.now);
    assert_null(v.before);
    top_looks_add(&looks, json_pack("{ss}", "boot", "a"), 3500000000, &v);
    assert_ptr_equal(v.before, looks.before);
    assert_true(v.seconds == 2.5);
    top_looks_add(&looks, json_pack("{ss}", "boot", "b"), 4000000000, &v);
    assert_ptr_equal(v.now, looks.now);
    assert_null(v.before);
    top_looks_add(&looks, json_pack("{}"), 5000000000, &v); /* of an unknown one */
    assert_null(v.before);
    top_looks_deinit(&looks);
    assert_null(looks.now);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_text_from_elsewhere_stays_in_its_line),
        cmocka_unit_test(a_page_has_no_more_lines_than_the_screen),
        cmocka_unit_test(looks_at_two_brokers_are_not_compared),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
