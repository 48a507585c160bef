/* test_client_batch.c - the parts of `weir batch`: reading lines, knowing ids, resuming an output file; and what reaches a terminal. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "client/batch_ids.h"
#include "client/batch_input.h"
#include "client/batch_output.h"
#include "client/flags.h"
#include "terminal.h"
#include "limits.h"
#include "tests/support/random.h"

static struct random dice;
static char folder[] = "/tmp/weir-test-batch-XXXXXX";

static const char *in_folder(const char *name)
{
    static char paths[4][128];
    static unsigned next;
    char *path = paths[next++ % 4];

    snprintf(path, sizeof(paths[0]), "%s/%s", folder, name);
    return path;
}

static void write_file(const char *path, const char *text, size_t bytes)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, bytes), bytes);
    close(fd);
}

static size_t read_file(const char *path, char *text, size_t room)
{
    int fd = open(path, O_RDONLY);
    ssize_t n = fd >= 0 ? read(fd, text, room - 1) : 0;

    assert_true(n >= 0);
    text[n] = '\0';
    close(fd);
    return (size_t)n;
}

/* --- input ------------------------------------------------------------------------------------- */

static void lines_come_as_they_are_in_the_file(void **state)
{
    const char text[] = "one\r\n\n  \nthree \0 nul\nlast without newline";
    const char *const lines[] = { "one\r", "", "  ", "three \0 nul", "last without newline" };
    const size_t sizes[] = { 4, 0, 2, 11, 20 };
    struct batch_input *in = NULL;
    struct weir_error err;
    const char *at;
    size_t n;
    uint64_t number;
    (void)state;

    write_file(in_folder("in"), text, sizeof(text) - 1);
    assert_int_equal(batch_input_open(in_folder("in"), &in, &err), WEIR_OK);
    assert_int_equal(batch_input_count(in), 3); /* not empty */
    for (uint64_t i = 0; i < 5; i++) {
        assert_int_equal(batch_input_next(in, &at, &n, &number, &err), INPUT_LINE);
        assert_int_equal(number, i + 1);
        assert_int_equal(n, sizes[i]);
        assert_memory_equal(at, lines[i], n);
    }
    assert_int_equal(batch_input_next(in, &at, &n, &number, &err), INPUT_END);
    assert_int_equal(batch_input_next(in, &at, &n, &number, &err), INPUT_END);
    batch_input_free(in);
}

static void a_line_over_the_limit_is_told_once_and_the_next_is_whole(void **state)
{
    static const size_t over[] = { 3, 4, 1000, LINE_BYTES_MAX + 5, 3 * LINE_BYTES_MAX };
    (void)state;

    for (size_t i = 0; i < sizeof(over) / sizeof(over[0]); i++) {
        size_t n_long = LINE_BYTES_MAX + over[i], total = 2 + n_long + 1 + 3, n;
        char *text = malloc(total);
        const char *at;
        uint64_t number;
        struct batch_input *in = NULL;
        struct weir_error err;

        memset(text, 'x', total);
        memcpy(text, "a\n", 2);
        memcpy(text + 2 + n_long, "\nb\n", 3);
        write_file(in_folder("in"), text, 2 + n_long + 3);
        free(text);
        assert_int_equal(batch_input_open(in_folder("in"), &in, &err), WEIR_OK);
        assert_int_equal(batch_input_next(in, &at, &n, &number, &err), INPUT_LINE);
        assert_int_equal(batch_input_next(in, &at, &n, &number, &err), INPUT_TOO_LONG);
        assert_int_equal(number, 2);
        assert_int_equal(batch_input_next(in, &at, &n, &number, &err), INPUT_LINE);
        assert_int_equal(number, 3);
        assert_int_equal(n, 1);
        assert_int_equal(batch_input_next(in, &at, &n, &number, &err), INPUT_END);
        batch_input_free(in);
    }
}

static void folders_and_missing_files_are_refused(void **state)
{
    struct batch_input *in = NULL;
    struct weir_error err;
    (void)state;

    assert_int_equal(batch_input_open(folder, &in, &err), WEIR_FAILED);
    assert_int_equal(batch_input_open(in_folder("nothing"), &in, &err), WEIR_FAILED);
    assert_null(in);
}

/* A pipe gives what it has in pieces of any size; the lines must be those of the whole text. */
static void a_pipe_in_pieces_gives_the_same_lines(void **state)
{
    (void)state;

    for (int round = 0; round < 200; round++) {
        char text[600];
        size_t n_text = random_below(&dice, sizeof(text)), sent = 0, given = 0;
        int fds[2], old = dup(STDIN_FILENO);
        struct batch_input *in = NULL;
        struct weir_error err;
        const char *at;
        size_t n;
        uint64_t number, expected = 1;

        for (size_t i = 0; i < n_text; i++)
            text[i] = random_below(&dice, 8) == 0 ? '\n' : (char)('a' + random_below(&dice, 26));
        assert_int_equal(pipe(fds), 0);
        dup2(fds[0], STDIN_FILENO);
        assert_int_equal(batch_input_open("-", &in, &err), WEIR_OK);
        for (bool open = true;;) {
            enum batch_input_result r = batch_input_next(in, &at, &n, &number, &err);
            if (r == INPUT_WAIT && sent == n_text && open) {
                close(fds[1]);
                open = false;
            } else if (r == INPUT_WAIT && sent < n_text) {
                size_t piece = 1 + random_below(&dice, 20);
                piece = piece < n_text - sent ? piece : n_text - sent;
                assert_int_equal(write(fds[1], text + sent, piece), piece);
                sent += piece;
            } else if (r == INPUT_LINE) {
                assert_int_equal(number, expected++);
                assert_true(given + n <= n_text);
                assert_memory_equal(at, text + given, n);
                given += n;
                assert_true(given == n_text || text[given] == '\n');
                given++;
            } else if (r == INPUT_END) {
                break;
            }
        }
        assert_true(given >= n_text);
        batch_input_free(in);
        dup2(old, STDIN_FILENO);
        close(old);
        close(fds[0]);
    }
}

/* --- ids --------------------------------------------------------------------------------------- */

static void ids_are_found_again_whatever_came_between(void **state)
{
    enum { N = 3000 };
    static uint64_t oracle[N];
    struct batch_ids ids = { 0 };
    (void)state;

    for (uint64_t i = 1; i <= 20000; i++) {
        uint64_t which = random_below(&dice, N);
        char text[32];
        snprintf(text, sizeof(text), "id-%llu", (unsigned long long)which);
        struct batch_id *id = batch_ids_get(&ids, text);
        assert_non_null(id);
        assert_int_equal(id->line, oracle[which]);
        id->line = oracle[which] = i;
    }
    batch_ids_deinit(&ids);
}

/* --- output ------------------------------------------------------------------------------------ */

#define ANSWER(hash, number, id) \
    "{\"id\": \"batch_req_" hash "-" number "\", \"custom_id\": \"" id "\", \"response\": {\"status_code\": 200}, \"error\": null}"

static void a_torn_tail_is_cut_at_every_byte(void **state)
{
    const char *first = ANSWER("00000000000000aa", "1", "a") "\n", *second = ANSWER("00000000000000bb", "2", "b \xC3\xA9") "\n";
    char text[1024], now[1024];
    (void)state;

    for (size_t cut = 0; cut <= strlen(second); cut++) {
        struct batch_output out;
        struct batch_ids ids = { 0 };
        struct weir_error err;
        int n = snprintf(text, sizeof(text), "%s%.*s", first, (int)cut, second);

        write_file(in_folder("out"), text, (size_t)n);
        assert_int_equal(batch_output_open(&out, in_folder("out"), NULL, &ids, &err), WEIR_OK);
        assert_int_equal(batch_ids_get(&ids, "a")->answered, 0xaa);
        assert_int_equal(batch_ids_get(&ids, "b \xC3\xA9")->answered, cut == strlen(second) ? 0xbb : 0);
        assert_int_equal(batch_output_put(&out, false, "next", 4, &err), WEIR_OK);
        batch_output_close(&out, false);
        batch_ids_deinit(&ids);
        read_file(in_folder("out"), now, sizeof(now));
        snprintf(text, sizeof(text), "%s%snext\n", first, cut == strlen(second) ? second : "");
        assert_string_equal(now, text);
    }
}

static void a_file_of_something_else_is_left_alone(void **state)
{
    static const char *const others[] = { "hello\n", "{}\n", "{\"id\": \"batch_req_x\", \"custom_id\": \"a\", \"response\": {}}\n",
                                          ANSWER("0000000000000000", "1", "a") "\n" };
    char now[256];
    (void)state;

    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        struct batch_output out;
        struct batch_ids ids = { 0 };
        struct weir_error err;

        write_file(in_folder("out"), others[i], strlen(others[i]));
        assert_int_equal(batch_output_open(&out, in_folder("out"), NULL, &ids, &err), WEIR_FAILED);
        assert_string_equal(err.code, "key_conflict");
        batch_output_close(&out, false);
        batch_ids_deinit(&ids);
        read_file(in_folder("out"), now, sizeof(now));
        assert_string_equal(now, others[i]);
    }
}

static void two_runs_do_not_write_one_file(void **state)
{
    struct batch_output one, two;
    struct batch_ids ids = { 0 };
    struct weir_error err;
    (void)state;

    write_file(in_folder("out"), "", 0);
    assert_int_equal(batch_output_open(&one, in_folder("out"), NULL, &ids, &err), WEIR_OK);
    assert_int_equal(batch_output_open(&two, in_folder("out"), NULL, &ids, &err), WEIR_FAILED);
    assert_string_equal(err.code, "key_conflict");
    batch_output_close(&two, false);
    batch_output_close(&one, false);
    batch_ids_deinit(&ids);
}

static void errors_have_their_file_as_long_as_there_are_any(void **state)
{
    struct batch_output out;
    struct batch_ids ids = { 0 };
    struct weir_error err;
    char now[64];
    (void)state;

    write_file(in_folder("out"), "", 0);
    write_file(in_folder("out.errors"), "old\n", 4);
    assert_int_equal(batch_output_open(&out, in_folder("out"), NULL, &ids, &err), WEIR_OK);
    assert_int_equal(batch_output_put(&out, true, "new", 3, &err), WEIR_OK);
    batch_output_close(&out, true);
    read_file(in_folder("out.errors"), now, sizeof(now));
    assert_string_equal(now, "new\n");

    assert_int_equal(batch_output_open(&out, in_folder("out"), NULL, &ids, &err), WEIR_OK);
    batch_output_close(&out, true);
    assert_int_equal(access(in_folder("out.errors"), F_OK), -1);
    batch_ids_deinit(&ids);
}

static void a_full_disk_leaves_no_half_line(void **state)
{
    struct batch_output out = { .errors_fd = -1, .path = "/dev/full" };
    struct weir_error err;
    (void)state;

    out.fd = open("/dev/full", O_WRONLY);
    assert_int_equal(batch_output_put(&out, false, "line", 4, &err), WEIR_FAILED);
    assert_non_null(strstr(err.message, "/dev/full"));
    assert_int_equal(out.bytes, 0);
    close(out.fd);
}

static void white_space_around_a_line_does_not_change_its_hash(void **state)
{
    (void)state;
    assert_int_equal(batch_line_hash("{}", 2), batch_line_hash(" \t{} \r", 6));
    assert_int_not_equal(batch_line_hash("{}", 2), batch_line_hash("{ }", 3));
    assert_int_not_equal(batch_line_hash("", 0), 0);
}

/* --- terminal ---------------------------------------------------------------------------------- */

static void control_characters_are_shown_not_sent(void **state)
{
    static const struct {
        const char *text, *shown;
    } cases[] = {
        { "plain \xC3\xA9 \xF0\x9F\x98\x80\n\tx", "plain \xC3\xA9 \xF0\x9F\x98\x80\n\tx" },
        { "\x1b]0;title\x07", "^[]0;title^G" },
        { "a\rb\x7F", "a^Mb^?" },
        { "\xC2\x9B"
          "2J",
          "\\u009B2J" },
        { "x\xE2\x80\xAEy\xE2\x81\xA6", "x\\u202Ey\\u2066" },
        { "\xC2\xA0\xE2\x80\x94", "\xC2\xA0\xE2\x80\x94" },
        { "", "" },
    };
    (void)state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char *shown = NULL;
        size_t n = 0;
        FILE *out = open_memstream(&shown, &n);
        terminal_show(out, cases[i].text, strlen(cases[i].text));
        fclose(out);
        assert_string_equal(shown, cases[i].shown);
        free(shown);
    }
}

/* --- flags ------------------------------------------------------------------------------------- */

struct wanted {
    bool json;
    const char *text;
    uint32_t n, ms;
    struct flag_number t;
    struct flag_list list;
};

static int parse(struct wanted *w, int argc, char **argv)
{
    const struct flag flags[] = {
        { "json", 'j', FLAG_SWITCH, &w->json, NULL, "", 0, 0 }, { "text", 0, FLAG_TEXT, &w->text, "T", "", 0, 0 },
        { "num", 'n', FLAG_U32, &w->n, "N", "", 1, 16 },        { "time", 0, FLAG_MS, &w->ms, "T", "", 0, 0 },
        { "temp", 't', FLAG_NUMBER, &w->t, "X", "", 0, 2 },     { "stop", 0, FLAG_LIST, &w->list, "S", "", 0, 0 },
    };

    memset(w, 0, sizeof(*w));
    return flags_parse(flags, sizeof(flags) / sizeof(flags[0]), "test", argc, argv);
}

#define PARSE(w, ...) parse(w, (int)(sizeof((char *[]){ __VA_ARGS__ }) / sizeof(char *)), argv = (char *[]){ __VA_ARGS__ })

static void flags_stand_anywhere_and_arguments_keep_their_order(void **state)
{
    struct wanted w;
    char **argv;
    (void)state;

    assert_int_equal(PARSE(&w, "one", "--num=3", "-", "--stop", "a", "--stop=", "-t1.5", "--time", "250ms", "-j", "--", "--two"), 3);
    assert_string_equal(argv[0], "one");
    assert_string_equal(argv[1], "-");
    assert_string_equal(argv[2], "--two");
    assert_true(w.json && w.n == 3 && w.t.set && w.t.value == 1.5 && w.ms == 250 && w.list.n == 2);
    assert_string_equal(w.list.at[1], "");
    assert_int_equal(PARSE(&w, "--time", "2"), 0);
    assert_int_equal(w.ms, 2000);
}

static void wrong_flags_are_refused(void **state)
{
    struct wanted w;
    char **argv;
    (void)state;

    assert_int_equal(PARSE(&w, "--nothing"), FLAGS_WRONG);
    assert_int_equal(PARSE(&w, "--num"), FLAGS_WRONG);
    assert_int_equal(PARSE(&w, "--num", "0"), FLAGS_WRONG);
    assert_int_equal(PARSE(&w, "--num", "17"), FLAGS_WRONG);
    assert_int_equal(PARSE(&w, "--num", "-1"), FLAGS_WRONG);
    assert_int_equal(PARSE(&w, "--num", "3x"), FLAGS_WRONG);
    assert_int_equal(PARSE(&w, "--num", "99999999999999999999"), FLAGS_WRONG);
    assert_int_equal(PARSE(&w, "--temp", "nan"), FLAGS_WRONG);
    assert_int_equal(PARSE(&w, "--temp", ""), FLAGS_WRONG);
    assert_int_equal(PARSE(&w, "--json=yes"), FLAGS_WRONG);
    assert_int_equal(PARSE(&w, "--time", "5 weeks"), FLAGS_WRONG);
    assert_int_equal(PARSE(&w, "x", "--help"), FLAGS_HELP);
    (void)argv;
}

static void near_words_are_suggested_and_far_ones_not(void **state)
{
    const char *const words[] = { "generate", "chat", "batch", "tokenize", "status" };
    (void)state;

    assert_string_equal(flags_nearest("genrate", words, 5), "generate");
    assert_string_equal(flags_nearest("stat", words, 5), "status");
    assert_string_equal(flags_nearest("bacth", words, 5), "batch");
    assert_null(flags_nearest("zzzzzz", words, 5));
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) != NULL ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(in_folder("in"));
    unlink(in_folder("out"));
    unlink(in_folder("out.errors"));
    return rmdir(folder);
}

int main(int argc, char **argv)
{
    dice = random_start(argc, argv, 20000);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_come_as_they_are_in_the_file),
        cmocka_unit_test(a_line_over_the_limit_is_told_once_and_the_next_is_whole),
        cmocka_unit_test(folders_and_missing_files_are_refused),
        cmocka_unit_test(a_pipe_in_pieces_gives_the_same_lines),
        cmocka_unit_test(ids_are_found_again_whatever_came_between),
        cmocka_unit_test(a_torn_tail_is_cut_at_every_byte),
        cmocka_unit_test(a_file_of_something_else_is_left_alone),
        cmocka_unit_test(two_runs_do_not_write_one_file),
        cmocka_unit_test(errors_have_their_file_as_long_as_there_are_any),
        cmocka_unit_test(a_full_disk_leaves_no_half_line),
        cmocka_unit_test(white_space_around_a_line_does_not_change_its_hash),
        cmocka_unit_test(control_characters_are_shown_not_sent),
        cmocka_unit_test(flags_stand_anywhere_and_arguments_keep_their_order),
        cmocka_unit_test(wrong_flags_are_refused),
        cmocka_unit_test(near_words_are_suggested_and_far_ones_not),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
