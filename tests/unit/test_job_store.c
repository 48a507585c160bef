/* test_job_store.c - jobs and lines on disk: against a table in memory, through reopening, and with torn files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gateway/job_check.h"
#include "gateway/job_files.h"
#include "gateway/job_store.h"
#include "tests/support/random.h"

static struct random dice;
static struct error err;
static char folder[64], path[96];
static struct job_store *store;

static bool disk_refuses; /* to sync */

/* That of the C library, for SQLite too. */
int fdatasync(int fd)
{
    if (disk_refuses) {
        errno = EIO;
        return -1;
    }
    return fsync(fd);
}

static int set_up(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/weir-job-store.XXXXXX");
    if (mkdtemp(folder) == NULL)
        return -1;
    snprintf(path, sizeof path, "%s/jobs.db", folder);
    return job_store_open(path, &store, &err) == ST_OK ? 0 : -1;
}

static int tear_down(void **state)
{
    char command[128];

    (void)state;
    job_store_close(store);
    store = NULL;
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

static struct job_row new_row(const char *user, const char *name, const char *key)
{
    struct job_row row = { .state = JOB_IN_PROGRESS, .created_ms = 1000 };

    snprintf(row.user, sizeof row.user, "%s", user);
    snprintf(row.name, sizeof row.name, "%s", name);
    snprintf(row.key, sizeof row.key, "%s", key);
    return row;
}

static struct job_row add(const char *user, const char *name, const char *key)
{
    struct job_row row = new_row(user, name, key);

    assert_int_equal(job_store_add(store, &row), ST_OK);
    return row;
}

static void reopen(void)
{
    job_store_close(store);
    assert_int_equal(job_store_open(path, &store, &err), ST_OK);
}

static void a_row_comes_back_whole(void **state)
{
    struct job_row row = add("alice", "night", "k"), back;

    (void)state;
    row.state = JOB_EXPIRED;
    row.n_lines = 1;
    row.n_done = 2;
    row.n_failed = 3;
    row.n_retries = 4;
    row.n_length = 12;
    row.prompt_tokens = 5;
    row.cached_tokens = 6;
    row.completion_tokens = 7;
    row.output_bytes = 8;
    row.errors_bytes = 9;
    row.n_held = 13;
    row.deadline_ms = 14;
    row.started_ms = 10;
    row.ended_ms = 11;
    snprintf(row.error, sizeof row.error, "why");
    snprintf(row.digest, sizeof row.digest, "0123");
    assert_int_equal(job_store_save(store, &row), ST_OK);
    reopen();
    assert_int_equal(job_store_by_seq(store, row.seq, &back), ST_OK);
    assert_memory_equal(&back, &row, sizeof row);
}

static void ids_sort_by_age_and_are_never_used_again(void **state)
{
    char last[JOB_ID_BYTES] = "";

    (void)state;
    for (int i = 0; i < 50; i++) {
        struct job_row row = add("alice", "", "");
        assert_true(strncmp(row.id, last, 6) > 0);
        memcpy(last, row.id, sizeof last);
        row.state = JOB_DELETED;
        assert_int_equal(job_store_save(store, &row), ST_OK);
        if (i % 10 == 9)
            reopen();
    }
}

static enum status find(const char *user, const char *what, struct job_row *ret_row)
{
    return job_store_find(store, user, what, ret_row, &err);
}

static void jobs_are_found_by_what_people_call_them(void **state)
{
    struct job_row a = add("alice", "night", ""), b = add("alice", "night", ""), c = add("bob", "x", ""), row;

    (void)state;
    assert_int_equal(find("alice", a.id, &row), ST_OK);
    assert_int_equal(row.seq, a.seq);
    assert_int_equal(find("alice", "night", &row), ST_OK);
    assert_int_equal(row.seq, b.seq);
    assert_int_equal(find("alice", "last", &row), ST_OK);
    assert_int_equal(row.seq, b.seq);
    char prefix[7];
    snprintf(prefix, sizeof prefix, "%.6s", a.id);
    assert_int_equal(find("alice", prefix, &row), ST_OK);
    assert_int_equal(row.seq, a.seq);
    assert_int_equal(find("alice", "j", &row), ST_NOT_FOUND);
    assert_non_null(strstr(err.message, "several"));
    assert_int_equal(find("alice", c.id, &row), ST_NOT_FOUND);
    assert_int_equal(find("alice", "", &row), ST_NOT_FOUND);
    assert_int_equal(find("alice", "%", &row), ST_NOT_FOUND);
    assert_int_equal(find("alice", "' OR 1=1 --", &row), ST_NOT_FOUND);
    assert_int_equal(find("carol", "last", &row), ST_NOT_FOUND);
}

static void a_key_belongs_to_one_job_of_a_user(void **state)
{
    struct job_row a = add("alice", "", "k"), again = new_row("alice", "", "k"), row;

    (void)state;
    add("bob", "", "k");
    assert_int_equal(job_store_add(store, &again), ST_INVALID);
    assert_int_equal(again.seq, 0);
    assert_int_equal(job_store_by_key(store, "alice", "k", &row), ST_OK);
    assert_int_equal(row.seq, a.seq);
    a.state = JOB_DELETED;
    assert_int_equal(job_store_save(store, &a), ST_OK);
    assert_int_equal(job_store_add(store, &again), ST_OK);
}

/* Is there such a job for a start that finds the disk as it is now? */
static enum status found_after_a_crash(const char *key)
{
    struct job_store *after;
    struct job_row row;
    char command[512], copy[128];

    snprintf(copy, sizeof copy, "%s/crash/jobs.db", folder);
    snprintf(command, sizeof command, "cd %s && rm -rf crash && mkdir crash && cp jobs.db jobs.db-wal crash/", folder);
    assert_int_equal(system(command), 0);
    assert_int_equal(job_store_open(copy, &after, &err), ST_OK);
    enum status st = job_store_by_key(after, "ada", key, &row);
    job_store_close(after);
    return st;
}

static void a_commit_whose_sync_failed_does_not_come_back(void **state)
{
    struct job_row row = add("ada", "a", "");
    struct job_row known;

    (void)state;
    snprintf(row.key, sizeof row.key, "k");
    disk_refuses = true;
    assert_int_equal(job_store_begin(store), ST_OK);
    assert_int_equal(job_store_save(store, &row), ST_OK);
    assert_int_equal(job_store_commit(store), ST_SYSTEM);
    assert_int_equal(job_store_settle(store), ST_SYSTEM);
    disk_refuses = false;
    assert_int_equal(job_store_by_key(store, "ada", "k", &known), ST_NOT_FOUND);
    assert_int_equal(job_store_settle(store), ST_OK);
    assert_int_equal(found_after_a_crash("k"), ST_NOT_FOUND);
    assert_int_equal(job_store_save(store, &row), ST_OK);
    assert_int_equal(found_after_a_crash("k"), ST_OK);
}

static void add_line(int64_t seq, uint32_t number, const char *id)
{
    struct line_ref line = { .number = number, .bytes = 10, .offset = number * 11ull };
    uint32_t first;

    assert_int_equal(job_store_add_line(store, seq, &line, id, &first), ST_OK);
}

static void a_custom_id_twice_names_the_first_line(void **state)
{
    struct job_row a = add("alice", "", ""), b = add("alice", "", "");
    struct line_ref line = { .number = 9 };
    uint32_t first = 0;

    (void)state;
    add_line(a.seq, 3, "x");
    add_line(b.seq, 4, "x");
    assert_int_equal(job_store_add_line(store, a.seq, &line, "x", &first), ST_INVALID);
    assert_int_equal(first, 3);
}

static void a_line_is_done_once(void **state)
{
    struct job_row a = add("alice", "", "");

    (void)state;
    add_line(a.seq, 1, "x");
    assert_int_equal(job_store_line_done(store, a.seq, 1, LINE_ANSWERED, 5, 6), ST_OK);
    assert_int_equal(job_store_line_done(store, a.seq, 1, LINE_FAILED, 5, 6), ST_CORRUPT);
    assert_int_equal(job_store_line_done(store, a.seq, 2, LINE_ANSWERED, 5, 6), ST_CORRUPT);
}

/* Lines done at random, in transactions that are committed or rolled back, with reopening between: the store and a table agree. */
static void lines_against_a_table(void **state)
{
    enum { LINES = 300 };
    uint8_t table[LINES + 1] = { 0 }, tried[LINES + 1];
    struct job_row job = add("alice", "", "");

    (void)state;
    for (uint32_t i = 1; i <= LINES; i++) {
        char id[16];
        snprintf(id, sizeof id, "%u", i);
        add_line(job.seq, i, id);
    }
    for (uint64_t op = 0; op < random_ops(); op++) {
        memcpy(tried, table, sizeof table);
        assert_int_equal(job_store_begin(store), ST_OK);
        for (uint32_t k = random_below(&dice, 8); k > 0; k--) {
            uint32_t n = 1 + random_below(&dice, LINES);
            if (tried[n] != 0)
                continue;
            tried[n] = random_below(&dice, 2) ? LINE_ANSWERED : LINE_FAILED;
            assert_int_equal(job_store_line_done(store, job.seq, n, tried[n], n * 100, n), ST_OK);
        }
        if (random_below(&dice, 3) == 0) {
            job_store_rollback(store);
        } else {
            assert_int_equal(job_store_commit(store), ST_OK);
            memcpy(table, tried, sizeof table);
        }
        if (random_below(&dice, 10) == 0)
            reopen();
        struct line_ref lines[LINES];
        uint32_t after = random_below(&dice, LINES), wanted = after;
        size_t n = 0;
        assert_int_equal(job_store_open_lines(store, job.seq, after, lines, LINES, &n), ST_OK);
        for (size_t i = 0; i < n; i++) {
            do
                wanted++;
            while (table[wanted] != 0);
            assert_int_equal(lines[i].number, wanted);
            assert_int_equal(lines[i].offset, wanted * 11);
        }
    }
    struct line_place *places = NULL;
    size_t n = 0, at = 0;
    assert_int_equal(job_store_places(store, job.seq, &places, &n), ST_OK);
    for (uint32_t i = 1; i <= LINES; i++) {
        if (table[i] != LINE_ANSWERED)
            continue;
        assert_int_equal(places[at].number, i);
        assert_int_equal(places[at++].offset, i * 100);
    }
    assert_int_equal(at, n);
    free(places);
}

static size_t open_lines(int64_t seq)
{
    struct line_ref lines[64];
    size_t n = 0;

    assert_int_equal(job_store_open_lines(store, seq, 0, lines, 64, &n), ST_OK);
    return n;
}

static void held_and_failed_lines_are_opened_again(void **state)
{
    struct job_row a = add("alice", "", ""), b = add("alice", "", "");
    uint64_t held = 0;

    (void)state;
    for (uint32_t i = 1; i <= 40; i++) {
        char id[16];
        snprintf(id, sizeof id, "%u", i);
        add_line(a.seq, i, id);
        add_line(b.seq, i, id);
    }
    assert_int_equal(job_store_hold_lines(store, a.seq, 50, &held), ST_OK);
    assert_int_equal(held, 0);
    assert_int_equal(job_store_line_done(store, a.seq, 1, LINE_ANSWERED, 0, 1), ST_OK);
    assert_int_equal(job_store_line_done(store, a.seq, 2, LINE_FAILED, 0, 1), ST_OK);
    assert_int_equal(job_store_hold_lines(store, a.seq, 5, &held), ST_OK);
    assert_int_equal(held, 33);
    assert_int_equal(open_lines(a.seq), 5);
    assert_int_equal(open_lines(b.seq), 40);
    assert_int_equal(job_store_reopen_lines(store, a.seq, LINE_HELD), ST_OK);
    assert_int_equal(open_lines(a.seq), 38);
    assert_int_equal(job_store_reopen_lines(store, a.seq, LINE_FAILED), ST_OK);
    assert_int_equal(open_lines(a.seq), 39);
    assert_int_equal(job_store_line_done(store, a.seq, 2, LINE_ANSWERED, 5, 6), ST_OK);
    assert_int_equal(job_store_line_done(store, a.seq, 1, LINE_ANSWERED, 5, 6), ST_CORRUPT);
}

static void usage_adds_up_by_day(void **state)
{
    uint64_t table[40] = { 0 };
    struct usage got;

    (void)state;
    for (uint64_t op = 0; op < random_ops(); op++) {
        uint32_t day = random_below(&dice, 40), n = random_below(&dice, 1000);
        const struct usage more = { .jobs = 1, .questions = 2, .answers = n, .errors = 3, .prompt_tokens = 2 * n,
                                    .cached_tokens = 4, .completion_tokens = 5 };
        assert_int_equal(job_store_add_usage(store, "alice", day, &more), ST_OK);
        assert_int_equal(job_store_add_usage(store, "bob", day, &more), ST_OK);
        table[day] += n;
    }
    reopen();
    for (int64_t since = 0; since <= 40; since++) {
        uint64_t wanted = 0;
        for (int64_t day = since; day < 40; day++)
            wanted += table[day];
        assert_int_equal(job_store_usage(store, "alice", since, &got), ST_OK);
        assert_int_equal(got.answers, wanted);
        assert_int_equal(got.prompt_tokens, 2 * wanted);
    }
    assert_int_equal(job_store_usage(store, "carol", 0, &got), ST_OK);
    assert_int_equal(got.jobs, 0);
    assert_int_equal(usage_month(951782400000), usage_day(951782400000) - 28); /* 29 February 2000 */
    assert_int_equal(usage_month(951868800000), usage_day(951868800000));      /* the day after */
}

static void a_store_of_the_format_before_is_taken_over(void **state)
{
    struct job_row a = add("alice", "night", ""), back;
    struct usage got;
    sqlite3 *db = NULL;

    (void)state;
    job_store_close(store);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "ALTER TABLE jobs DROP COLUMN n_held; DROP TABLE usage; PRAGMA user_version=1;",
                                  NULL, NULL, NULL),
                     SQLITE_OK);
    sqlite3_close(db);
    assert_int_equal(job_store_open(path, &store, &err), ST_OK);
    assert_int_equal(job_store_by_seq(store, a.seq, &back), ST_OK);
    assert_string_equal(back.name, "night");
    assert_int_equal(back.n_held, 0);
    assert_int_equal(job_store_usage(store, "alice", 0, &got), ST_OK);
    reopen();
}

static unsigned removed;

static void count_removed(const struct job_row *row, void *arg)
{
    (void)row;
    (void)arg;
    removed++;
}

static void deleted_jobs_are_swept_in_pieces(void **state)
{
    struct job_row a = add("alice", "", ""), row;
    bool left = true;
    int rounds = 0;

    (void)state;
    for (uint32_t i = 1; i <= 100; i++) {
        char id[16];
        snprintf(id, sizeof id, "%u", i);
        add_line(a.seq, i, id);
    }
    a.state = JOB_COMPLETED;
    a.ended_ms = 500;
    assert_int_equal(job_store_save(store, &a), ST_OK);
    assert_int_equal(job_store_expire(store, 500), ST_OK);
    assert_int_equal(job_store_by_seq(store, a.seq, &row), ST_OK);
    assert_int_equal(job_store_expire(store, 501), ST_OK);
    assert_int_equal(job_store_by_seq(store, a.seq, &row), ST_NOT_FOUND);
    removed = 0;
    for (; left; rounds++)
        assert_int_equal(job_store_sweep(store, 30, count_removed, NULL, &left), ST_OK);
    assert_int_equal(removed, 1);
    assert_true(rounds >= 5 && rounds <= 7);
}

static bool collect(const struct job_row *row, void *arg)
{
    *(int64_t *)arg = *(int64_t *)arg * 10 + row->seq;
    return true;
}

static void listing(void **state)
{
    struct job_row a = add("alice", "", ""), b = add("alice", "", "");
    int64_t seen = 0;
    uint64_t n = 0;

    (void)state;
    add("bob", "", "");
    assert_int_equal(job_store_each(store, "alice", 0, collect, &seen), ST_OK);
    assert_int_equal(seen, 21);
    a.state = JOB_FAILED;
    a.ended_ms = 100;
    assert_int_equal(job_store_save(store, &a), ST_OK);
    seen = 0;
    assert_int_equal(job_store_each(store, "alice", 101, collect, &seen), ST_OK);
    assert_int_equal(seen, b.seq);
    seen = 0;
    assert_int_equal(job_store_each(store, NULL, 0, collect, &seen), ST_OK);
    assert_int_equal(seen, 23);
    assert_int_equal(job_store_count_open(store, "alice", &n), ST_OK);
    assert_int_equal(n, 1);
}

static void a_file_that_is_not_ours_is_refused(void **state)
{
    struct job_store *other = NULL;
    char name[96];
    FILE *f;

    (void)state;
    snprintf(name, sizeof name, "%s/other.db", folder);
    f = fopen(name, "w");
    fputs("this is no database, but it is long enough to look at", f);
    fclose(f);
    assert_int_not_equal(job_store_open(name, &other, &err), ST_OK);
    assert_null(other);
    unlink(name);
    assert_int_equal(symlink(path, name), 0);
    assert_int_not_equal(job_store_open(name, &other, &err), ST_OK);
}

/* --- files and the check ------------------------------------------------------------------------- */

static void the_files_of_a_job(void **state)
{
    struct job_files f, second;
    struct job_row row = add("alice", "", "");
    char name[32];
    int fd = -1;
    uint64_t bytes = 0;

    (void)state;
    assert_int_equal(job_files_open(folder, &f, &err), ST_OK);
    assert_int_equal(job_files_open(folder, &second, &err), ST_FULL);
    assert_int_equal(job_files_spool(&f, name, &fd), ST_OK);
    assert_int_equal(write(fd, "abc", 3), 3);
    close(fd);
    assert_int_equal(job_files_spool_sync(&f, name, &bytes), ST_OK);
    assert_int_equal(bytes, 3);
    assert_int_equal(job_files_job(&f, &row, JOB_FILE_INPUT, false, &fd), ST_NOT_FOUND);
    assert_int_equal(job_files_adopt(&f, &row, name), ST_OK);
    assert_int_equal(job_files_job(&f, &row, JOB_FILE_INPUT, false, &fd), ST_OK);
    assert_int_equal(write(fd, "x", 1), -1);
    close(fd);
    assert_int_equal(job_files_job(&f, &row, JOB_FILE_OUTPUT, false, &fd), ST_OK);
    assert_int_equal(write(fd, "x", 1), -1);
    close(fd);
    job_files_remove(&f, &row);
    assert_int_equal(job_files_job(&f, &row, JOB_FILE_INPUT, false, &fd), ST_NOT_FOUND);
    assert_int_equal(job_files_spool(&f, name, &fd), ST_OK);
    close(fd);
    job_files_close(&f);
    assert_int_equal(job_files_open(folder, &f, &err), ST_OK); /* an upload that was left is gone */
    assert_int_equal(job_files_spool_sync(&f, name, &bytes), ST_SYSTEM);
    job_files_close(&f);
}

/* Check a text to its end.  The row is what the last step gave. */
static enum status check(const char *text, size_t n, uint64_t lines_max, struct job_row *ret_row)
{
    struct job_row row = add("alice", "", "");
    struct job_check *c = NULL;
    char name[96];
    enum status st;

    snprintf(name, sizeof name, "%s/input", folder);
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
    assert_int_equal(write(fd, text, n), n);
    row.input_bytes = n;
    assert_int_equal(job_check_new(&row, fd, lines_max, &c), ST_OK);
    do
        st = job_check_step(c, store, ret_row, &err);
    while (st == ST_AGAIN);
    job_check_free(c);
    return st;
}

static void the_digest_knows_every_byte(void **state)
{
    const char *text = "{\"prompt\":\"a\"}\n{\"prompt\":\"b\"}\n";
    struct job_row one, two;

    (void)state;
    assert_int_equal(check(text, strlen(text), 10, &one), ST_OK);
    assert_int_equal(one.n_lines, 2);
    assert_int_equal(strlen(one.digest), 32);
    assert_int_equal(check(text, strlen(text), 10, &two), ST_OK);
    assert_string_equal(one.digest, two.digest);
    assert_int_equal(check(text, strlen(text) - 1, 10, &two), ST_OK);
    assert_string_not_equal(one.digest, two.digest);
    assert_int_equal(check(text, strlen(text), 1, &two), ST_INVALID);
    assert_int_equal(err.code, ERR_LIMIT_EXCEEDED);
    assert_int_equal(check("\n\n", 2, 10, &two), ST_INVALID);
    assert_int_equal(check("\xff\xfe{", 3, 10, &two), ST_INVALID);
    assert_non_null(strstr(err.message, "UTF-16"));
}

static void many_lines_keep_their_places(void **state)
{
    enum { LINES = 30000 };
    char *text = malloc(LINES * 40);
    struct line_ref refs[10];
    struct job_row row;
    size_t at = 0, n = 0;

    (void)state;
    for (int i = 1; i <= LINES; i++)
        at += (size_t)snprintf(text + at, 40, "%s{\"id\":\"n%d\",\"prompt\":\"x\"}\n", i % 3 ? "" : "\n", i);
    assert_int_equal(check(text, at, LINES, &row), ST_OK);
    assert_int_equal(row.n_lines, LINES);
    assert_int_equal(job_store_open_lines(store, row.seq, 20000, refs, 10, &n), ST_OK);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(text[refs[i].offset], '{');
        assert_int_equal(text[refs[i].offset + refs[i].bytes], '\n');
    }
    free(text);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
        T(a_row_comes_back_whole),
        T(ids_sort_by_age_and_are_never_used_again),
        T(jobs_are_found_by_what_people_call_them),
        T(a_key_belongs_to_one_job_of_a_user),
        T(a_commit_whose_sync_failed_does_not_come_back),
        T(a_custom_id_twice_names_the_first_line),
        T(a_line_is_done_once),
        T(lines_against_a_table),
        T(held_and_failed_lines_are_opened_again),
        T(usage_adds_up_by_day),
        T(a_store_of_the_format_before_is_taken_over),
        T(deleted_jobs_are_swept_in_pieces),
        T(listing),
        T(a_file_that_is_not_ours_is_refused),
        T(the_files_of_a_job),
        T(the_digest_knows_every_byte),
        T(many_lines_keep_their_places),
    };

    dice = random_start(argc, argv, 100);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
