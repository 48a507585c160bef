/* test_over_ssh.c - words said to `weir` come out of the gateway's splitter as they went in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "client/over_ssh.h"
#include "gateway/command_line.h"
#include "gateway/verb.h"
#include "tests/support/random.h"

static struct random dice;

static void round_trip(int n, char *const *words)
{
    char *command = over_ssh_command("submit", n, words);
    struct command_line line;
    struct error err;

    assert_non_null(command);
    assert_int_equal(command_line_split(span_str(command), &line, &err), ST_OK);
    assert_int_equal(line.n, n + 1);
    assert_string_equal(line.words[0], "submit");
    for (int i = 0; i < n; i++)
        assert_string_equal(line.words[i + 1], words[i]);
    command_line_deinit(&line);
    free(command);
}

static void every_word_arrives_as_it_is(void **state)
{
    static const char letters[] = "a'\"\\ $`;\n\t{}*~";
    char text[4][16], *words[4] = { NULL };

    (void)state;
    round_trip(0, words);
    for (uint64_t round = 0; round < random_ops(); round++) {
        for (int i = 0; i < 4; i++) {
            uint32_t n = random_below(&dice, 15);
            for (uint32_t k = 0; k < n; k++)
                text[i][k] = letters[random_below(&dice, sizeof letters - 1)];
            text[i][n] = '\0';
            words[i] = text[i];
        }
        round_trip(4, words);
    }
}

static void the_verbs_are_those_of_the_gateway(void **state)
{
    size_t n;
    const char *const *verbs = over_ssh_verbs(&n);

    (void)state;
    for (size_t i = 0; i < n; i++) {
        if (verb_by_name(verbs[i]) == NULL)
            fail_msg("the gateway has no verb %s", verbs[i]);
    }
}

int main(int argc, char **argv)
{
    dice = random_start(argc, argv, 20000);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_word_arrives_as_it_is),
        cmocka_unit_test(the_verbs_are_those_of_the_gateway),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
