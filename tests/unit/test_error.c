/* test_error.c - an error keeps its code and its text, and never ends inside a character. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "error.h"
#include "utf8.h"

static void codes_have_names_that_lead_back(void **state)
{
    (void)state;
    for (enum error_code code = ERR_NONE; code < ERR_COUNT; code++) {
        const char *name = error_code_name(code);

        assert_int_equal(error_code_from_name(name, strlen(name)), code);
        assert_in_range(error_code_http(code), 200, 599);
    }
    assert_int_equal(error_code_from_name("nonsense", 8), ERR_INTERNAL);
    assert_int_equal(error_code_from_name("context_overflo", 15), ERR_INTERNAL);
    assert_string_equal(error_code_name(ERR_COUNT), "internal_error");
    assert_int_equal(error_code_http((enum error_code)-1), 500);
}

static void a_long_text_is_cut_at_a_character_and_says_so(void **state)
{
    struct error e;
    char text[2 * ERROR_MESSAGE_BYTES];

    (void)state;
    for (size_t lead = 0; lead < 6; lead++) { /* every place of the cut inside a character of three bytes */
        memset(text, 'a', lead);
        for (size_t i = lead; i + 3 < sizeof(text); i += 3)
            memcpy(text + i, "\xE2\x82\xAC", 4);
        error_set(&e, ERR_INTERNAL, text, "%s", text);
        assert_true(utf8_valid(span_str(e.message)));
        assert_true(utf8_valid(span_str(e.param)));
        assert_in_range(strlen(e.message), ERROR_MESSAGE_BYTES - 4, ERROR_MESSAGE_BYTES - 1);
        assert_string_equal(e.message + strlen(e.message) - 3, "...");
        assert_string_equal(e.param + strlen(e.param) - 3, "...");
    }
}

static void a_text_that_fits_is_kept(void **state)
{
    struct error e;
    char text[ERROR_MESSAGE_BYTES];

    (void)state;
    memset(text, 'b', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    error_set(&e, ERR_BUSY, NULL, "%s", text);
    assert_string_equal(e.message, text);
    assert_string_equal(e.param, "");
    assert_int_equal(e.code, ERR_BUSY);
}

static void every_status_has_a_text(void **state)
{
    (void)state;
    for (enum status st = ST_OK; st <= ST_SYSTEM; st++)
        assert_true(strlen(status_text(st)) > 1);
    assert_string_equal(status_text((enum status)999), "unknown status");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_have_names_that_lead_back),
        cmocka_unit_test(a_long_text_is_cut_at_a_character_and_says_so),
        cmocka_unit_test(a_text_that_fits_is_kept),
        cmocka_unit_test(every_status_has_a_text),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
