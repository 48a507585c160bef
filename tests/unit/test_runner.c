/* test_runner.c - which line is sent when, and what of it is on disk after a failure: a real store and real files, and a broker that is
 * the test itself (weir_submit, weir_cancel and weir_query are wrapped by the linker). */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clock.h"
#include "gateway/job_files.h"
#include "gateway/job_store.h"
#include "gateway/runner.h"

enum { SENT_MAX = 64, WINDOW = 16 };
#define MS 1000000ull

static char folder[64];
static struct error err;
static struct job_store *store;
static struct job_files files;
static struct pool_link link_up = {.up = true};
static struct runner runner;
static uint64_t now_ns;

/* --- the broker ----------------------------------------------------------------------------------- */

static struct sent {
    weir_callback *callback;
    void *arg;
    char prompt[32], user[32];
    bool cancelled;
} sent[SENT_MAX];
static size_t n_sent;
static int submit_result;

int __wrap_weir_submit(struct weir_client *c, const struct weir_request *r, weir_callback *callback,
                       void *arg, uint64_t *ret_request, struct weir_error *ret_err);
int __wrap_weir_submit(struct weir_client *c, const struct weir_request *r, weir_callback *callback,
                       void *arg, uint64_t *ret_request, struct weir_error *ret_err)
{
    (void)c, (void)ret_err;
    if (submit_result != WEIR_OK)
        return submit_result;
    assert_true(n_sent < SENT_MAX);
    sent[n_sent] = (struct sent){.callback = callback, .arg = arg};
    snprintf(sent[n_sent].prompt, sizeof sent[n_sent].prompt, "%s", r->prompt);
    snprintf(sent[n_sent].user, sizeof sent[n_sent].user, "%s", r->on_behalf_of);
    *ret_request = ++n_sent;
    return WEIR_OK;
}

void __wrap_weir_cancel(struct weir_client *c, uint64_t request);
void __wrap_weir_cancel(struct weir_client *c, uint64_t request)
{
    (void)c;
    if (request > 0)
        sent[request - 1].cancelled = true;
}

int __wrap_weir_query(struct weir_client *c, enum weir_query what, weir_callback *callback, void *arg,
                      struct weir_error *err_out);
int __wrap_weir_query(struct weir_client *c, enum weir_query what, weir_callback *callback, void *arg,
                      struct weir_error *err_out)
{
    (void)c, (void)what, (void)callback, (void)arg, (void)err_out;
    return WEIR_AGAIN; /* it tells nothing of its workers */
}

static void answer(size_t i)
{
    const struct weir_event done = {.type = WEIR_DONE, .request = i + 1, .n_choices = 1};
    sent[i].callback(&done, sent[i].arg);
}

static void refuse(size_t i, const char *code)
{
    struct weir_error why = {.message = "the test says so"};
    const struct weir_event event = {.type = WEIR_ERROR, .request = i + 1, .error = &why};

    snprintf(why.code, sizeof why.code, "%s", code);
    sent[i].callback(&event, sent[i].arg);
}

/* --- a pool of jobs --------------------------------------------------------------------------------- */

static int set_up(void **state)
{
    char path[96];

    (void)state;
    snprintf(folder, sizeof folder, "/tmp/weir-runner.XXXXXX");
    if (mkdtemp(folder) == NULL)
        return -1;
    snprintf(path, sizeof path, "%s/jobs.db", folder);
    n_sent = 0;
    submit_result = WEIR_OK;
    now_ns = clock_now_ns(); /* answers are timed by the real clock, which this one only runs ahead of */
    return job_files_open(folder, &files, &err) == ST_OK && job_store_open(path, &store, &err) == ST_OK &&
                   runner_init(&runner, store, &files, &link_up, WINDOW) == ST_OK
               ? 0
               : -1;
}

static int tear_down(void **state)
{
    char command[128];

    (void)state;
    runner_deinit(&runner, now_ns);
    job_store_close(store);
    job_files_close(&files);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

/* A job of n lines with prompts NAME-1, NAME-2, ..., committed; not yet the runner's. */
static struct job_row new_job(const char *user, const char *name, uint32_t n)
{
    struct job_row row = {.state = JOB_IN_PROGRESS, .created_ms = 1000, .n_lines = n};
    char spool[32], text[64];
    uint64_t offset = 0;
    uint32_t first = 0;
    int fd = -1;

    snprintf(row.user, sizeof row.user, "%s", user);
    snprintf(row.name, sizeof row.name, "%s", name);
    assert_int_equal(job_store_add(store, &row), ST_OK);
    assert_int_equal(job_files_spool(&files, spool, &fd), ST_OK);
    for (uint32_t i = 1; i <= n; i++) {
        char id[16];
        int bytes = snprintf(text, sizeof text, "{\"prompt\": \"%s-%u\"}\n", name, i);
        const struct line_ref line = {.number = i, .bytes = (uint32_t)bytes - 1, .offset = offset};
        snprintf(id, sizeof id, "line-%u", i);
        assert_int_equal(write(fd, text, (size_t)bytes), bytes);
        assert_int_equal(job_store_add_line(store, row.seq, &line, id, &first), ST_OK);
        offset += (uint64_t)bytes;
    }
    close(fd);
    row.input_bytes = offset;
    assert_int_equal(job_store_save(store, &row), ST_OK);
    assert_int_equal(job_files_adopt(&files, &row, spool), ST_OK);
    return row;
}

static struct job_row add_job(const char *user, const char *name, uint32_t n)
{
    struct job_row row = new_job(user, name, n);

    assert_int_equal(runner_add(&runner, &row), ST_OK);
    return row;
}

static void path_of(const struct job_row *row, const char *file, char path[256])
{
    snprintf(path, 256, "%s/files/%s/jobs/%s/%s", folder, row->user, row->id, file);
}

/* So many turns of the loop, a tenth of a second apart. */
static void turns(int n)
{
    for (int i = 0; i < n; i++) {
        now_ns += 100 * MS;
        runner_step(&runner, now_ns, 5000);
    }
}

static struct job_row stored(const struct job_row *row)
{
    struct job_row now;

    assert_int_equal(job_store_by_seq(store, row->seq, &now), ST_OK);
    return now;
}

/* --- tests ---------------------------------------------------------------------------------------- */

static void every_line_is_answered_once_and_the_job_ends(void **state)
{
    (void)state;
    const struct job_row row = add_job("ada", "a", 3);

    turns(1);
    assert_int_equal(n_sent, 3);
    for (size_t i = 0; i < 3; i++)
        answer(i);
    turns(2);
    assert_int_equal(stored(&row).state, JOB_COMPLETED);
    assert_int_equal(stored(&row).n_done, 3);
    assert_null(runner_find(&runner, row.seq));
}

static void a_job_whose_files_cannot_be_opened_holds_nobody_up(void **state)
{
    char path[256];

    (void)state;
    const struct job_row broken = new_job("ada", "broken", 1);
    path_of(&broken, "output.jsonl", path);
    assert_int_equal(symlink("/dev/null", path),
                     0); /* a link is never followed: every try to open it fails */
    assert_int_equal(runner_add(&runner, &broken), ST_OK);
    const struct job_row good = add_job("bob", "good", 1);

    turns(3);
    assert_int_equal(n_sent, 1);
    assert_string_equal(sent[0].prompt, "good-1");
    answer(0);
    turns(3);
    assert_int_equal(stored(&good).state, JOB_COMPLETED);
    assert_int_equal(stored(&broken).state, JOB_IN_PROGRESS);
    assert_int_equal(unlink(path), 0);
    turns(30);
    assert_string_equal(sent[1].prompt, "broken-1"); /* it goes on as soon as its files can be had */
}

/* Nobody else commits until unlock_store(). */
static sqlite3 *lock_store(void)
{
    char path[96];
    sqlite3 *other = NULL;

    snprintf(path, sizeof path, "%s/jobs.db", folder);
    assert_int_equal(sqlite3_open(path, &other), SQLITE_OK);
    assert_int_equal(sqlite3_exec(other, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    return other;
}

static void unlock_store(sqlite3 *other)
{
    assert_int_equal(sqlite3_exec(other, "ROLLBACK", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(other);
}

static void what_was_synced_stays_in_the_file_when_the_commit_is_refused(void **state)
{
    char path[256];
    struct stat s;

    (void)state;
    const struct job_row row = add_job("ada", "a", 1);
    turns(1);
    answer(0);
    sqlite3 *other = lock_store();
    turns(1);
    assert_int_equal(runner.n_refused, 1);
    path_of(&row, "output.jsonl", path);
    assert_int_equal(stat(path, &s), 0);
    assert_true(s.st_size >
                0); /* a commit whose sync failed may be on disk all the same: then these bytes are in it */
    unlock_store(other);
    turns(30);
    assert_int_equal(stored(&row).state, JOB_COMPLETED);
    assert_int_equal(stored(&row).output_bytes, s.st_size);
    assert_int_equal(stat(path, &s), 0);
    assert_int_equal(stored(&row).output_bytes, s.st_size);
}

static void a_busy_broker_does_not_use_up_the_tries_of_a_line(void **state)
{
    (void)state;
    const struct job_row row = add_job("ada", "a", 1);

    for (int i = 0; i < 10; i++) {
        turns(400);
        assert_int_equal(n_sent, i + 1);
        refuse((size_t)i, "busy");
    }
    turns(400);
    assert_int_equal(n_sent, 11);
    refuse(10, "internal_error"); /* the first of this kind: the line goes again */
    turns(400);
    assert_int_equal(n_sent, 12);
    answer(11);
    turns(2);
    assert_int_equal(stored(&row).n_done, 1);
}

static void an_error_of_ours_ends_a_line_after_a_few_tries(void **state)
{
    (void)state;
    const struct job_row row = add_job("ada", "a", 1);

    for (size_t i = 0; i < 4; i++) {
        turns(400);
        assert_int_equal(n_sent, i + 1);
        refuse(i, "internal_error");
    }
    turns(400);
    assert_int_equal(n_sent, 4);
    assert_int_equal(stored(&row).n_failed, 1);
}

static void of_two_jobs_of_a_user_the_older_one_goes_first_also_if_it_began_later(void **state)
{
    (void)state;
    const struct job_row older = new_job("ada", "older", 20); /* its input took longer to be read */
    add_job("ada", "newer", 20);
    assert_int_equal(runner_add(&runner, &older), ST_OK);

    turns(1);
    assert_int_equal(n_sent, WINDOW);
    for (size_t i = 0; i < n_sent; i++)
        assert_memory_equal(sent[i].prompt, "older", 5);
}

static void a_job_that_fails_as_a_whole_takes_its_lines_back_and_leaves_the_loop_asleep(void **state)
{
    (void)state;
    const struct job_row row = add_job("ada", "a", 20);

    turns(1);
    assert_int_equal(n_sent, WINDOW);
    runner_fail_job(&runner, runner_find(&runner, row.seq), "the test says so");
    for (size_t i = 0; i < n_sent; i++)
        assert_true(sent[i].cancelled);
    turns(1);
    assert_int_not_equal(runner_timeout_ms(&runner, now_ns), 0);
    for (size_t i = 0; i < n_sent; i++)
        refuse(i, "cancelled");
    turns(1);
    assert_null(runner_find(&runner, row.seq));
    assert_int_equal(stored(&row).state, JOB_FAILED);
}

static void a_job_for_which_there_was_no_room_begins_when_there_is(void **state)
{
    (void)state;
    const struct job_row row = new_job("ada", "a", 3);
    const size_t n_jobs = runner.n_jobs;

    runner.n_jobs = RUNNER_JOBS_MAX;
    assert_int_equal(runner_add(&runner, &row), ST_LIMIT);
    turns(1);
    assert_int_equal(n_sent, 0);
    assert_true(runner_timeout_ms(&runner, now_ns) > 0); /* it looks again, and not all the time */
    runner.n_jobs = n_jobs;
    turns(RUNNER_DISK_PAUSE_MS / 100 + 1);
    assert_int_equal(n_sent, 3);
}

static void a_job_whose_end_was_not_saved_is_taken_up_again(void **state)
{
    (void)state;
    const struct job_row row = add_job("ada", "a", 1);
    sqlite3 *other = lock_store();

    turns(1);
    runner_fail_job(&runner, runner_find(&runner, row.seq), "the test says so");
    unlock_store(other);
    turns(RUNNER_DISK_PAUSE_MS / 100 + 1);
    assert_int_equal(n_sent, 1); /* the broker still has the line */
    refuse(0, "cancelled");
    turns(RUNNER_DISK_PAUSE_MS / 100 + 1);
    assert_int_equal(n_sent, 2);
    answer(1);
    turns(5);
    assert_int_equal(stored(&row).state, JOB_COMPLETED);
}

static void a_line_that_the_client_did_not_take_is_no_retry(void **state)
{
    (void)state;
    const struct job_row row = add_job("ada", "a", 1);

    submit_result = WEIR_AGAIN;
    turns(5);
    submit_result = WEIR_OK;
    turns(5);
    assert_int_equal(n_sent, 1);
    answer(0);
    turns(2);
    assert_int_equal(runner.n_retried, 0);
    assert_int_equal(stored(&row).n_retries, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
        TEST(every_line_is_answered_once_and_the_job_ends),
        TEST(a_job_whose_files_cannot_be_opened_holds_nobody_up),
        TEST(what_was_synced_stays_in_the_file_when_the_commit_is_refused),
        TEST(a_busy_broker_does_not_use_up_the_tries_of_a_line),
        TEST(an_error_of_ours_ends_a_line_after_a_few_tries),
        TEST(of_two_jobs_of_a_user_the_older_one_goes_first_also_if_it_began_later),
        TEST(a_job_that_fails_as_a_whole_takes_its_lines_back_and_leaves_the_loop_asleep),
        TEST(a_job_for_which_there_was_no_room_begins_when_there_is),
        TEST(a_job_whose_end_was_not_saved_is_taken_up_again),
        TEST(a_line_that_the_client_did_not_take_is_no_retry),
#undef TEST
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
