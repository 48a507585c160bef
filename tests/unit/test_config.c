/* test_config.c - flags, environment, file and fallback: who wins, what is refused, and where it says the fault is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <unistd.h>

#include "config.h"

static const struct config_key keys[] = {
    { "runtime-dir", CONFIG_STRING, NULL, "DIR", "Where the sockets are", 0, 0, 0 },
    { "workers", CONFIG_U64, "2", "N", "How many workers are started", 1, 16, 'w' },
    { "pool-bytes", CONFIG_BYTES, "512M", "SIZE", "Most memory of prompts and output", 1024, 0x1p40, 0 },
    { "grace", CONFIG_MS, "30s", "TIME", "How long a login may take", 1, 3600000, 0 },
    { "share", CONFIG_F64, "0.5", "X", "Share of the pool", -1, 1, 0 },
    { "metrics", CONFIG_BOOL, "yes", NULL, "Serve metrics", 0, 0, 'm' },
    { "model", CONFIG_LIST, NULL, "FILE", "A model to serve", 0, 0, 0 },
};
enum { N_KEYS = sizeof(keys) / sizeof(keys[0]) };

static struct config *c;
static struct error err;
static char path[64];

static enum status load_args(int argc, char *const *argv)
{
    config_free(c);
    c = NULL;
    memset(&err, 0, sizeof(err));
    return config_load(keys, N_KEYS, "broker", argc, argv, &c, &err);
}

#define LOAD(...) \
    load_args((int)(sizeof((char *[]){ "prog", __VA_ARGS__ }) / sizeof(char *)), (char *[]){ "prog", __VA_ARGS__ })
#define LOAD_BARE() load_args(1, (char *[]){ "prog" })

static void write_file(const char *text)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    setenv("WEIR_CONFIG", path, 1);
}

static int clean(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_KEYS; i++) {
        char name[64] = "WEIR_";
        for (size_t k = 0; k <= strlen(keys[i].name); k++)
            name[5 + k] = keys[i].name[k] == '-' ? '_' : (char)(keys[i].name[k] & ~0x20);
        unsetenv(name);
    }
    unsetenv("WEIR_CONFIG");
    config_free(c);
    c = NULL;
    return 0;
}

static void without_anything_the_fallbacks_hold(void **state)
{
    const char *const *items;

    (void)state;
    assert_int_equal(LOAD_BARE(), ST_OK);
    assert_null(config_string(c, "runtime-dir"));
    assert_int_equal(config_u64(c, "workers"), 2);
    assert_int_equal(config_u64(c, "pool-bytes"), 512 << 20);
    assert_int_equal(config_u64(c, "grace"), 30000);
    assert_true(config_f64(c, "share") == 0.5);
    assert_true(config_bool(c, "metrics"));
    assert_int_equal(config_list(c, "model", &items), 0);
    assert_false(config_is_set(c, "workers"));
    assert_int_equal(config_n_args(c), 0);
    assert_null(config_arg(c, 0));
}

static void a_flag_beats_the_environment_beats_the_section_beats_weir(void **state)
{
    (void)state;
    write_file("[weir]\nworkers = 3\ngrace = 1s\nshare = 0.1\nruntime-dir = /w\n[broker]\nworkers = 4\ngrace = 2s\nshare = 0.2\n");
    setenv("WEIR_WORKERS", "5", 1);
    setenv("WEIR_GRACE", "3", 1);
    assert_int_equal(LOAD("--workers", "6"), ST_OK);
    assert_int_equal(config_u64(c, "workers"), 6);
    assert_int_equal(config_u64(c, "grace"), 3000);
    assert_true(config_f64(c, "share") == 0.2);
    assert_string_equal(config_string(c, "runtime-dir"), "/w");
    assert_true(config_is_set(c, "share"));

    /* The order in the file does not matter. */
    write_file("[broker]\nworkers = 4\n[weir]\nworkers = 3\n");
    unsetenv("WEIR_WORKERS");
    assert_int_equal(LOAD_BARE(), ST_OK);
    assert_int_equal(config_u64(c, "workers"), 4);
}

static void flags_have_the_usual_forms(void **state)
{
    (void)state;
    assert_int_equal(LOAD("--workers=7", "in", "--no-metrics", "-", "--runtime-dir", "", "--", "--workers"), ST_OK);
    assert_int_equal(config_u64(c, "workers"), 7);
    assert_false(config_bool(c, "metrics"));
    assert_string_equal(config_string(c, "runtime-dir"), "");
    assert_int_equal(config_n_args(c), 3);
    assert_string_equal(config_arg(c, 0), "in");
    assert_string_equal(config_arg(c, 1), "-");
    assert_string_equal(config_arg(c, 2), "--workers");
    assert_int_equal(LOAD("-w", "3", "-m"), ST_OK);
    assert_int_equal(config_u64(c, "workers"), 3);
    assert_int_equal(LOAD("-w4", "--metrics=no", "--workers", "5"), ST_OK); /* the last one holds */
    assert_int_equal(config_u64(c, "workers"), 5);
    assert_false(config_bool(c, "metrics"));
    assert_int_equal(LOAD("--runtime-dir", "--x"), ST_OK); /* a value may look like a flag */
    assert_string_equal(config_string(c, "runtime-dir"), "--x");
}

static void lists_add_up_within_a_source_and_are_replaced_between(void **state)
{
    const char *const *items = NULL;

    (void)state;
    write_file("[broker]\nmodel = a.gguf\nmodel = b,c.gguf\n");
    assert_int_equal(LOAD_BARE(), ST_OK);
    assert_int_equal(config_list(c, "model", &items), 2);
    assert_string_equal(items[1], "b,c.gguf");
    setenv("WEIR_MODEL", "x,y,z", 1);
    assert_int_equal(LOAD_BARE(), ST_OK);
    assert_int_equal(config_list(c, "model", &items), 3);
    assert_string_equal(items[2], "z");
    assert_int_equal(LOAD("--model", "m,1", "--model=n"), ST_OK);
    assert_int_equal(config_list(c, "model", &items), 2);
    assert_string_equal(items[0], "m,1");
}

static void sizes_times_and_numbers_have_units(void **state)
{
    static const struct { const char *flag, *text, *key; uint64_t value; } good[] = {
        { "--pool-bytes", "1024", "pool-bytes", 1024 },        { "--pool-bytes", "64K", "pool-bytes", 65536 },
        { "--pool-bytes", "1.5G", "pool-bytes", 3ull << 29 },  { "--pool-bytes", "2GiB", "pool-bytes", 2ull << 30 },
        { "--pool-bytes", "3 mb", "pool-bytes", 3 << 20 },     { "--pool-bytes", "1T", "pool-bytes", 1ull << 40 },
        { "--grace", "250ms", "grace", 250 },                  { "--grace", "0.5", "grace", 500 },
        { "--grace", "5s", "grace", 5000 },                    { "--grace", "10m", "grace", 600000 },
        { "--grace", "1h", "grace", 3600000 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_int_equal(LOAD((char *)good[i].flag, (char *)good[i].text), ST_OK);
        assert_true(config_u64(c, good[i].key) == good[i].value);
    }
    assert_int_equal(LOAD("--share", "-1e-1"), ST_OK);
    assert_true(config_f64(c, "share") == -0.1);
}

static void what_is_no_value_or_out_of_range_is_refused(void **state)
{
    static const struct { const char *flag, *text; } bad[] = {
        { "--workers", "" },      { "--workers", "0" },       { "--workers", "17" },    { "--workers", "-1" },
        { "--workers", "4x" },    { "--workers", " 4" },      { "--workers", "0x4" },   { "--workers", "4.0" },
        { "--workers", "18446744073709551617" },              { "--pool-bytes", "1023" }, { "--pool-bytes", "2T" },
        { "--pool-bytes", "64Q" }, { "--pool-bytes", "-1K" }, { "--pool-bytes", "1.2.3K" }, { "--pool-bytes", "K" },
        { "--grace", "0" },       { "--grace", "1.1h" },      { "--grace", "5 apples" },   { "--grace", "ms" },
        { "--share", "nan" },     { "--share", "inf" },       { "--share", "1.01" },    { "--share", "0,5" },
        { "--share", "" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        if (LOAD((char *)bad[i].flag, (char *)bad[i].text) != ST_INVALID)
            fail_msg("%s \"%s\" was taken", bad[i].flag, bad[i].text);
        assert_int_equal(err.code, ERR_INVALID_PARAMETER);
        assert_string_equal(err.param, bad[i].flag);
        assert_null(c);
    }
    assert_int_equal(LOAD("--metrics=maybe"), ST_INVALID);
    assert_string_equal(err.message, "metrics is \"maybe\", must be yes or no");
    assert_int_equal(LOAD("--workers", "99"), ST_INVALID);
    assert_string_equal(err.message, "workers is \"99\", must be a whole number from 1 to 16");
}

static void an_unknown_flag_is_refused_and_a_near_one_suggested(void **state)
{
    (void)state;
    assert_int_equal(LOAD("--worker", "3"), ST_INVALID);
    assert_string_equal(err.message, "there is no --worker; did you mean --workers?");
    assert_int_equal(LOAD("--no-workers"), ST_INVALID);
    assert_int_equal(LOAD("--zzz=1"), ST_INVALID);
    assert_string_equal(err.param, "--zzz");
    assert_int_equal(LOAD("-x"), ST_INVALID);
    assert_string_equal(err.param, "-x");
    assert_int_equal(LOAD("-mw"), ST_INVALID);
    assert_int_equal(LOAD("--workers"), ST_INVALID);
    assert_string_equal(err.message, "--workers needs a value");
    assert_int_equal(LOAD("--no-metrics=yes"), ST_INVALID);
}

static void the_file_is_refused_by_line(void **state)
{
    static const struct { const char *text; int line; const char *says; } bad[] = {
        { "[broker]\n\n# comment\nworkers = many\n", 4, "must be a whole number" },
        { "[broker]\nworker = 3\n", 2, "did you mean workers?" },
        { "[broker]\nnonsense = 3\n", 2, "there is no key nonsense" },
        { "[weir]\nworker = 3\n", 2, "did you mean workers?" },
        { "[broker]\nworkers = 3\nworkers = 4\n", 3, "given twice" },
        { "[broker]\nworkers = 3 ; three\n", 2, "3 ; three" },
        { "workers = 3\n", 1, "before the first" },
        { "[brokr]\nworkers = 3\n", 1, "did you mean [broker]?" },
        { "[broker\nworkers = 3\n", 1, "no section" },
        { "[broker] workers = 3\n", 1, "no section" },
        { "[]\n", 1, "no section" },
        { "[broker]\nworkers\n", 2, "neither" },
        { "[broker]\nruntime-dir = \xFF\n", 2, "UTF-8" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char where[80];

        write_file(bad[i].text);
        enum status st = LOAD_BARE();
        snprintf(where, sizeof(where), "%s:%d", strrchr(path, '/') + 1, bad[i].line);
        if (st != ST_INVALID || strcmp(err.param, where) != 0 || strstr(err.message, bad[i].says) == NULL)
            fail_msg("%s\ngot %d, %s (%s)", bad[i].text, st, err.message, err.param);
    }
    /* Checked although a flag replaces it. */
    write_file("[broker]\nworkers = many\n");
    assert_int_equal(LOAD("--workers", "3"), ST_INVALID);
}

static void the_environment_is_refused_by_name(void **state)
{
    (void)state;
    setenv("WEIR_POOL_BYTES", "lots", 1);
    assert_int_equal(LOAD_BARE(), ST_INVALID);
    assert_string_equal(err.param, "WEIR_POOL_BYTES");
    setenv("WEIR_POOL_BYTES", "", 1); /* empty is unset */
    assert_int_equal(LOAD_BARE(), ST_OK);
    assert_false(config_is_set(c, "pool-bytes"));
}

static void other_programs_parts_of_the_file_are_skipped(void **state)
{
    char *line = malloc(20000);

    (void)state;
    write_file("\xEF\xBB\xBF[gateway]\nport = x\n[weir]\nstate-dir = /s\nruntime-dir=/r/a;b # c\r\n[worker]\n");
    assert_int_equal(LOAD_BARE(), ST_OK);
    assert_string_equal(config_string(c, "runtime-dir"), "/r/a;b # c");

    /* A line longer than inih's own 200 bytes arrives whole; one over our limit is an error. */
    memset(line, 'p', 19999);
    line[19999] = '\0';
    memcpy(line, "[broker]\nruntime-dir = ", 23);
    line[5000] = '\0';
    write_file(line);
    assert_int_equal(LOAD_BARE(), ST_OK);
    assert_int_equal(strlen(config_string(c, "runtime-dir")), 5000 - 23);
    line[5000] = 'p';
    write_file(line);
    assert_int_equal(LOAD_BARE(), ST_INVALID);
    assert_non_null(strstr(err.message, "too long"));
    free(line);
}

static void the_file_is_named_by_flag_or_environment(void **state)
{
    (void)state;
    write_file("[broker]\nworkers = 9\n");
    unsetenv("WEIR_CONFIG");
    assert_int_equal(LOAD("--config", path), ST_OK);
    assert_int_equal(config_u64(c, "workers"), 9);
    assert_int_equal(LOAD("--config=/nonexistent/weir.conf"), ST_SYSTEM);
    assert_string_equal(err.param, "--config");
    setenv("WEIR_CONFIG", "/nonexistent/weir.conf", 1);
    assert_int_equal(LOAD("--config", path), ST_OK);
    assert_int_equal(LOAD_BARE(), ST_SYSTEM);
    assert_string_equal(err.param, "WEIR_CONFIG");
}

static void help_and_version_need_nothing_else_to_be_right(void **state)
{
    (void)state;
    setenv("WEIR_WORKERS", "many", 1);
    assert_int_equal(LOAD("--help"), ST_OK);
    assert_true(config_help_wanted(c));
    assert_int_equal(LOAD("-h"), ST_OK);
    assert_true(config_help_wanted(c));
    assert_int_equal(LOAD("--version"), ST_OK);
    assert_true(config_version_wanted(c));
    assert_false(config_help_wanted(c));
}

static void help_names_every_key_within_110_columns(void **state)
{
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);

    (void)state;
    config_print_help(out, "prog [OPTIONS]", "Does things.", keys, N_KEYS);
    fclose(out);
    for (size_t i = 0; i < N_KEYS; i++)
        assert_non_null(strstr(text, keys[i].name));
    assert_non_null(strstr(text, "WEIR_POOL_BYTES"));
    assert_non_null(strstr(text, "--[no-]metrics"));
    assert_non_null(strstr(text, "-w, --workers N"));
    assert_non_null(strstr(text, "default 512M"));
    for (const char *line = text; *line != '\0'; line += strcspn(line, "\n") + 1)
        assert_in_range(strcspn(line, "\n"), 0, 110);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(without_anything_the_fallbacks_hold, clean),
        cmocka_unit_test_teardown(a_flag_beats_the_environment_beats_the_section_beats_weir, clean),
        cmocka_unit_test_teardown(flags_have_the_usual_forms, clean),
        cmocka_unit_test_teardown(lists_add_up_within_a_source_and_are_replaced_between, clean),
        cmocka_unit_test_teardown(sizes_times_and_numbers_have_units, clean),
        cmocka_unit_test_teardown(what_is_no_value_or_out_of_range_is_refused, clean),
        cmocka_unit_test_teardown(an_unknown_flag_is_refused_and_a_near_one_suggested, clean),
        cmocka_unit_test_teardown(the_file_is_refused_by_line, clean),
        cmocka_unit_test_teardown(the_environment_is_refused_by_name, clean),
        cmocka_unit_test_teardown(other_programs_parts_of_the_file_are_skipped, clean),
        cmocka_unit_test_teardown(the_file_is_named_by_flag_or_environment, clean),
        cmocka_unit_test_teardown(help_and_version_need_nothing_else_to_be_right, clean),
        cmocka_unit_test_teardown(help_names_every_key_within_110_columns, clean),
    };

    snprintf(path, sizeof(path), "/tmp/weir-test-config-%d.conf", (int)getpid());
    clean(NULL);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed;
}
