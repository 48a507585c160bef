/* test_command_line.c - words and quotes of a command, and that nothing of a shell is in them; the verbs and options they make. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "gateway/command_line.h"
#include "gateway/verb.h"
#include "tests/support/random.h"

static struct random dice;
static struct error err;

/* Split text and compare with the words, which end in NULL. */
static void check_words(const char *text, const char *const *words)
{
    struct command_line line;
    size_t n = 0;

    assert_int_equal(command_line_split(span_str(text), &line, &err), ST_OK);
    for (; words[n] != NULL; n++) {
        assert_true(n < line.n);
        assert_string_equal(line.words[n], words[n]);
    }
    assert_int_equal(line.n, n);
    assert_null(line.words[n]);
    command_line_deinit(&line);
}

#define WORDS(text, ...) check_words(text, (const char *const[]){ __VA_ARGS__, NULL })

static void blanks_separate_words(void **state)
{
    (void)state;
    check_words("", (const char *const[]){ NULL });
    check_words(" \t\n\r ", (const char *const[]){ NULL });
    WORDS("a", "a");
    WORDS("  a\tb \n c ", "a", "b", "c");
}

static void quotes_join_and_keep(void **state)
{
    (void)state;
    WORDS("'a b' c", "a b", "c");
    WORDS("\"a b\"c", "a bc");
    WORDS("''", "");
    WORDS("a '' \"\" b", "a", "", "", "b");
    WORDS("'a\\b'", "a\\b");
    WORDS("\"a\\\"b\\\\c\\d\"", "a\"b\\c\\d");
    WORDS("a\\ b", "a b");
    WORDS("\\'x", "'x");
    WORDS("'it'\"'\"'s'", "it's");
}

static void nothing_is_expanded(void **state)
{
    (void)state;
    WORDS("$HOME `id` $(id) * ? ~ ; | & < > # ( ) { } !!", "$HOME", "`id`", "$(id)", "*", "?", "~", ";", "|", "&", "<", ">", "#", "(",
          ")", "{", "}", "!!");
    WORDS("\"$(id)\" \"`id`\"", "$(id)", "`id`");
    WORDS("a;b a&&b", "a;b", "a&&b");
}

static void check_refused(struct span text, enum status st)
{
    struct command_line line = { 0 };

    assert_int_equal(command_line_split(text, &line, &err), st);
    assert_null(line.words);
    assert_true(err.message[0] != '\0');
}

static void what_is_open_or_no_text_is_refused(void **state)
{
    (void)state;
    check_refused(span_str("'a"), ST_INVALID);
    check_refused(span_str("\"a"), ST_INVALID);
    check_refused(span_str("\"a\\\""), ST_INVALID);
    check_refused(span_str("a\\"), ST_INVALID);
    check_refused(span_of("a\0b", 3), ST_INVALID);
    check_refused(span_str("a\xff"), ST_INVALID);
    char *big = malloc(COMMAND_BYTES_MAX + 1);
    memset(big, 'a', COMMAND_BYTES_MAX + 1);
    check_refused(span_of(big, COMMAND_BYTES_MAX + 1), ST_LIMIT);
    for (size_t i = 1; i < COMMAND_BYTES_MAX; i += 2)
        big[i] = ' ';
    check_refused(span_of(big, COMMAND_BYTES_MAX), ST_LIMIT);
    free(big);
}

/* Any words, quoted in a way chosen by dice, come back as they were. */
static void what_is_quoted_comes_back(void **state)
{
    static const char letters[] = "ab '\"\\$`;\n\t*";
    (void)state;
    for (uint64_t i = 0; i < random_ops(); i++) {
        char words[6][9], text[1024];
        const char *wanted[7] = { NULL };
        size_t at = 0, n = random_below(&dice, 6);
        for (size_t w = 0; w < n; w++) {
            size_t length = random_below(&dice, 8);
            for (size_t c = 0; c < length; c++)
                words[w][c] = letters[random_below(&dice, sizeof letters - 1)];
            words[w][length] = '\0';
            wanted[w] = words[w];
            text[at++] = '\'';
            for (size_t c = 0; c < length; c++) {
                if (words[w][c] == '\'')
                    at += (size_t)snprintf(text + at, sizeof text - at, random_below(&dice, 2) ? "'\\''" : "'\"'\"'");
                else
                    text[at++] = words[w][c];
            }
            text[at++] = '\'';
            text[at++] = ' ';
        }
        text[at] = '\0';
        check_words(text, wanted);
    }
}

static enum status parse(const char *text, struct command_line *line, struct verb_call *call)
{
    assert_int_equal(command_line_split(span_str(text), line, &err), ST_OK);
    return verb_parse(line, call, &err);
}

static void check_usage_error(const char *text, const char *says)
{
    struct command_line line;
    struct verb_call call;

    assert_int_equal(parse(text, &line, &call), ST_INVALID);
    if (strstr(err.message, says) == NULL)
        fail_msg("%s: \"%s\" does not say \"%s\"", text, err.message, says);
    command_line_deinit(&line);
}

static void verbs_and_options_are_understood(void **state)
{
    struct command_line line;
    struct verb_call call;

    (void)state;
    assert_int_equal(parse("submit --name=night --max-tokens 7 --deadline 2h --priority high --json", &line, &call), ST_OK);
    assert_int_equal(call.verb->id, VERB_SUBMIT);
    assert_string_equal(call.text[OPT_NAME], "night");
    assert_int_equal(call.number[OPT_MAX_TOKENS], 7);
    assert_int_equal(call.number[OPT_DEADLINE], 7200000);
    assert_int_equal(call.number[OPT_PRIORITY], 3);
    assert_true(call.has[OPT_JSON] && !call.has[OPT_KEY]);
    verb_call_deinit(&call);
    command_line_deinit(&line);

    assert_int_equal(parse("ask --temperature 0.25 -- --json x", &line, &call), ST_OK);
    assert_true(call.real[OPT_TEMPERATURE] == 0.25);
    assert_int_equal(call.n_args, 2);
    assert_string_equal(call.args[0], "--json");
    assert_false(call.has[OPT_JSON]);
    verb_call_deinit(&call);
    command_line_deinit(&line);

    assert_int_equal(parse("--json", &line, &call), ST_OK);
    assert_int_equal(call.verb->id, VERB_HOME);
    verb_call_deinit(&call);
    command_line_deinit(&line);
}

static void usage_errors_say_what_and_what_is_near(void **state)
{
    (void)state;
    check_usage_error("statsu", "did you mean \"status\"?");
    check_usage_error("cancle x", "did you mean \"cancel\"?");
    check_usage_error("xyzzy", "`help` lists them");
    check_usage_error("list --jsno", "did you mean --json?");
    check_usage_error("list --name x", "`list` takes no --name");
    check_usage_error("submit --name", "--name wants NAME");
    check_usage_error("submit --name a --name b", "given twice");
    check_usage_error("submit --json=yes", "takes no value");
    check_usage_error("submit --max-tokens 0", "wants an integer from 1 to 131072");
    check_usage_error("submit --max-tokens -1", "wants an integer from 1 to 131072");
    check_usage_error("submit --max-tokens 99999999999999999999999", "wants an integer from 1 to 131072");
    check_usage_error("submit --max-tokens 9999999999", "over the limit");
    check_usage_error("submit --deadline 10", "wants a time such as 90s");
    check_usage_error("submit --deadline 400d", "over the limit");
    check_usage_error("ask --temperature nan x", "wants a number from 0 to 100");
    check_usage_error("ask --temperature 1e3 x", "wants a number from 0 to 100");
    check_usage_error("ask --temperature 1.2.3 x", "wants a number from 0 to 100");
    check_usage_error("ask --temperature 101 x", "over the limit");
    check_usage_error("cancel", "wants JOB");
    check_usage_error("status a b", "too many words");
    char long_name[200] = "submit --name ";
    memset(long_name + 14, 'x', 65);
    check_usage_error(long_name, "the limit is 64");
}

static void every_verb_has_help_and_json(void **state)
{
    (void)state;
    char *all = verb_help(NULL);
    for (enum verb_id id = VERB_HELP; id < VERB_COUNT; id++) {
        static const char *const names[] = { "help", "ask", "chat", "submit", "run", "status", "list", "watch", "wait", "results", "errors",
                                             "verify", "cancel", "delete", "retry", "release", "usage", "keys", "models", "pool", "top", "trace", "tokenize", "whoami", "version" };
        const struct verb *v = verb_by_name(names[id - 1]);
        assert_non_null(v);
        assert_int_equal(v->id, id);
        assert_non_null(strstr(all, v->summary));
        char *one = verb_help(v);
        assert_non_null(strstr(one, "--json"));
        free(one);
    }
    free(all);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blanks_separate_words),
        cmocka_unit_test(quotes_join_and_keep),
        cmocka_unit_test(nothing_is_expanded),
        cmocka_unit_test(what_is_open_or_no_text_is_refused),
        cmocka_unit_test(what_is_quoted_comes_back),
        cmocka_unit_test(verbs_and_options_are_understood),
        cmocka_unit_test(usage_errors_say_what_and_what_is_near),
        cmocka_unit_test(every_verb_has_help_and_json),
    };

    dice = random_start(argc, argv, 20000);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
