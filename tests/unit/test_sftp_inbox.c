/* test_sftp_inbox.c - files of the inboxes on disk: what a name may open, and that a file is a job or a file, never both or neither, at whatever
 * step the process died. */
#include <setjmp.h>
#include <stdarg.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <cmocka.h>

#include "gateway/inbox.h"
#include "gateway/sftp_upload.h"
#include "limits.h"
#include "log.h"

static char state_dir[] = "/tmp/weir-test-inbox.XXXXXX";
static struct job_files files;

/* In place of the C library's: a file system whose renames know no flags. */
static bool no_flags;

int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags)
{
    if (no_flags && flags != 0) {
        errno = EINVAL;
        return -1;
    }
    return (int)syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
}

static int set_up(void **state)
{
    struct error err;

    (void)state;
    snprintf(state_dir, sizeof state_dir, "/tmp/weir-test-inbox.XXXXXX");
    return mkdtemp(state_dir) == NULL || job_files_open(state_dir, &files, &err) != ST_OK;
}

static int tear_down(void **state)
{
    char command[128];

    (void)state;
    job_files_close(&files);
    snprintf(command, sizeof command, "rm -rf %s", state_dir);
    return system(command);
}

static void put(const char *name, const char *text)
{
    int fd = -1;

    assert_int_equal(inbox_open(&files, "ann", name, INBOX_WRITE | INBOX_CREATE | INBOX_TRUNCATE, &fd), ST_OK);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
}

static bool there(const char *name)
{
    struct inbox_file file;
    return inbox_look(&files, "ann", name, &file) == ST_OK;
}

static void only_regular_files_can_be_opened(void **state)
{
    char path[256];
    int fd = -1;
    struct inbox_file file;

    (void)state;
    put("a.part", "x");
    snprintf(path, sizeof path, "%s/files/ann/inbox/link.part", state_dir);
    assert_int_equal(symlink("/etc/passwd", path), 0);
    snprintf(path, sizeof path, "%s/files/ann/inbox/pipe.part", state_dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    snprintf(path, sizeof path, "%s/files/ann/inbox/folder", state_dir);
    assert_int_equal(mkdir(path, 0700), 0);
    static const char *const names[] = { "link.part", "pipe.part", "folder", "nothing" };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        assert_int_not_equal(inbox_look(&files, "ann", names[i], &file), ST_OK);
        assert_int_not_equal(inbox_open(&files, "ann", names[i], INBOX_READ, &fd), ST_OK);
        if (i < 3)
            assert_int_not_equal(inbox_open(&files, "ann", names[i], INBOX_WRITE | INBOX_CREATE, &fd), ST_OK);
    }
    assert_int_not_equal(inbox_open(&files, "ann", "../../../jobs.db", INBOX_WRITE | INBOX_CREATE, &fd), ST_OK); /* beneath */
    assert_int_equal(inbox_open(&files, "bob", "a.part", INBOX_READ, &fd), ST_NOT_FOUND);
    assert_int_equal(inbox_open(&files, "ann", "a.part", INBOX_WRITE | INBOX_CREATE | INBOX_EXCLUSIVE, &fd), ST_INVALID);
}

static void a_note_goes_with_its_file(void **state)
{
    (void)state;
    put("a.incomplete", "x");
    inbox_note(&files, "ann", "a.incomplete", "why");
    assert_true(there("a.incomplete.txt"));
    assert_int_equal(inbox_rename(&files, "ann", "a.incomplete", "b.part", false), ST_OK);
    assert_false(there("a.incomplete.txt"));
    put("c.part", "y");
    inbox_note(&files, "ann", "c.part", "why");
    assert_int_equal(inbox_rename(&files, "ann", "b.part", "c.part", false), ST_INVALID);
    assert_true(there("c.part.incomplete.txt"));
    assert_int_equal(inbox_rename(&files, "ann", "b.part", "c.part", true), ST_OK);
    assert_false(there("c.part.incomplete.txt"));
    inbox_note(&files, "ann", "c.part", "why");
    assert_true(there("c.part.incomplete.txt"));
    assert_int_equal(inbox_remove(&files, "ann", "c.part"), ST_OK);
    assert_false(there("c.part") || there("c.part.incomplete.txt"));
    assert_int_equal(inbox_remove(&files, "ann", "c.part"), ST_NOT_FOUND);
}

static char known_token[INBOX_TOKEN_BYTES];

/* arg: what the store says of a token that is no job's. */
static enum status known(const char *user, const char *token, void *arg)
{
    assert_string_equal(user, "ann");
    return strcmp(token, known_token) == 0 ? ST_OK : *(enum status *)arg;
}

static void recover(enum status of_others, enum status result)
{
    assert_int_equal(inbox_recover(&files, known, &of_others), result);
    inbox_add_notes(&files);
}

static void what_was_being_submitted_is_a_job_or_goes_back(void **state)
{
    char a[INBOX_TOKEN_BYTES], b[INBOX_TOKEN_BYTES], c[INBOX_TOKEN_BYTES], spool[32];
    struct stat s;
    int fd = -1;

    (void)state;
    put("a.incomplete", "one");
    put("b.incomplete", "two");
    put("c.incomplete", "three");
    put("half.incomplete", "fo");
    assert_int_equal(inbox_take(&files, "ann", "a.incomplete", a), ST_OK);
    assert_int_equal(inbox_take(&files, "ann", "b.incomplete", b), ST_OK);
    assert_int_equal(inbox_take(&files, "ann", "c.incomplete", c), ST_OK);
    assert_string_not_equal(a, b);
    assert_false(there("a.incomplete") || there("b.incomplete") || there("c.incomplete"));
    assert_int_equal(inbox_take(&files, "ann", "a.incomplete", known_token), ST_NOT_FOUND);
    /* the file itself becomes a spool file: two names, one file */
    assert_int_equal(job_files_spool(&files, spool, &fd), ST_OK);
    close(fd);
    job_files_spool_remove(&files, spool);
    assert_int_equal(inbox_link(&files, "ann", "a.incomplete", a, spool), ST_OK);
    assert_int_equal(fstatat(files.spool_fd, spool, &s, 0), 0);
    assert_int_equal(s.st_size, 3);
    assert_int_equal(s.st_nlink, 2);
    /* it is a job, the next start finds that; the others are none */
    memcpy(known_token, a, sizeof known_token);
    recover(ST_NOT_FOUND, ST_OK);
    assert_false(there("a.incomplete"));
    assert_true(there("b.incomplete") && there("b.incomplete.txt") && there("c.incomplete"));
    assert_true(there("half.incomplete.txt"));
    assert_int_equal(fstatat(files.spool_fd, spool, &s, 0), 0);
    assert_int_equal(s.st_nlink, 1);
    recover(ST_NOT_FOUND, ST_OK); /* again: nothing more happens */
    assert_true(there("b.incomplete") && !there("a.incomplete"));
}

static void what_the_store_cannot_tell_stays_until_it_can(void **state)
{
    char token[INBOX_TOKEN_BYTES];

    (void)state;
    known_token[0] = '\0';
    put("a.incomplete", "one");
    assert_int_equal(inbox_take(&files, "ann", "a.incomplete", token), ST_OK);
    recover(ST_SYSTEM, ST_SYSTEM);
    recover(ST_AGAIN, ST_OK); /* a job is being made of it */
    assert_false(there("a.incomplete") || there("a.incomplete.txt"));
    recover(ST_NOT_FOUND, ST_OK);
    assert_true(there("a.incomplete") && there("a.incomplete.txt"));
}

static void read_back(const char *stored, const char *text)
{
    char got[256] = { 0 };
    int fd = -1;

    assert_int_equal(inbox_open(&files, "ann", stored, INBOX_READ, &fd), ST_OK);
    assert_int_equal(read(fd, got, sizeof got - 1), strlen(text));
    assert_string_equal(got, text);
    close(fd);
}

static void a_file_that_goes_back_replaces_no_newer_one(void **state)
{
    char tokens[3][INBOX_TOKEN_BYTES], back[SFTP_NAME_BYTES];
    static const char *const texts[] = { "first", "second", "third" };

    (void)state;
    for (int i = 0; i < 3; i++) {
        put("a.jsonl.incomplete", texts[i]);
        assert_int_equal(inbox_take(&files, "ann", "a.jsonl.incomplete", tokens[i]), ST_OK);
    }
    put("a.jsonl.incomplete", "newest");
    assert_int_equal(inbox_back(&files, "ann", "a.jsonl.incomplete", tokens[0], back), ST_OK);
    assert_string_equal(back, "a.jsonl~1.incomplete");
    inbox_note_return(&files, "ann", "a.jsonl.incomplete", back, "Why.\n");
    assert_int_equal(inbox_back(&files, "ann", "a.jsonl.incomplete", tokens[1], back), ST_OK);
    read_back("a.jsonl.incomplete", "newest");
    read_back("a.jsonl~1.incomplete", "first");
    read_back("a.jsonl~2.incomplete", "second");
    read_back("a.jsonl~1.incomplete.txt", "Why.\nIt was a.jsonl.incomplete; another file has that name by now.\n");
    assert_int_equal(inbox_remove(&files, "ann", "a.jsonl.incomplete"), ST_OK);
    assert_int_equal(inbox_back(&files, "ann", "a.jsonl.incomplete", tokens[2], back), ST_OK);
    assert_string_equal(back, "a.jsonl.incomplete");
    assert_int_equal(inbox_back(&files, "ann", "a.jsonl.incomplete", tokens[2], back), ST_NOT_FOUND);
}

static void nor_where_a_rename_knows_no_flags(void **state)
{
    no_flags = true;
    a_file_that_goes_back_replaces_no_newer_one(state);
    put("b.part", "one");
    put("c.part", "two");
    assert_int_equal(inbox_rename(&files, "ann", "b.part", "c.part", false), ST_INVALID);
    assert_int_equal(inbox_rename(&files, "ann", "b.part", "d.part", false), ST_OK);
    assert_false(there("b.part"));
    read_back("c.part", "two");
    read_back("d.part", "one");
    no_flags = false;
}

/* Each name that may be written, through everything that can be done to it. */
static void a_name_of_any_length_that_may_be_written_can_be_taken_noted_and_recovered(void **state)
{
    static const char *const ends[] = { "", ".part", ".filepart", ".tmp", ".incomplete", ".jsonl.gz", "\xc3\xa9" };
    char name[512], stored[SFTP_NAME_BYTES], note[SFTP_NAME_BYTES], token[INBOX_TOKEN_BYTES], again[INBOX_TOKEN_BYTES];
    size_t tried = 0;

    (void)state;
    known_token[0] = '\0';
    for (size_t e = 0; e < sizeof ends / sizeof ends[0]; e++) {
        for (size_t n = 170; n <= 222; n++) {
            memset(name, 'x', n - strlen(ends[e]));
            snprintf(name + n - strlen(ends[e]), sizeof name - n, "%s", ends[e]);
            if (!inbox_name_valid(span_str(name)) || !inbox_name_writable(name))
                continue;
            tried++;
            inbox_stored_name(name, stored);
            inbox_note_name(stored, note);
            assert_true(inbox_name_valid(span_str(note)) && inbox_name_is_note(note));
            put(stored, "one");
            assert_int_equal(inbox_take(&files, "ann", stored, token), ST_OK);
            recover(ST_NOT_FOUND, ST_OK);
            if (!there(stored) || !there(note))
                fail_msg("%s: not there any more, or without its note", stored);
            assert_int_equal(inbox_take(&files, "ann", stored, token), ST_OK);
            put(stored, "two");
            assert_int_equal(inbox_take(&files, "ann", stored, again), ST_OK);
            put(stored, "three");
            recover(ST_NOT_FOUND, ST_OK);
            for (unsigned k = 0; k <= 2; k++) {
                char other[SFTP_NAME_BYTES];
                snprintf(other, sizeof other, "%s", stored);
                if (k > 0)
                    inbox_other_name(stored, k, other);
                assert_true(inbox_name_writable(other) && inbox_name_unfinished(other) == inbox_name_unfinished(stored));
                if (!there(other))
                    fail_msg("%s: not there any more", other);
                assert_int_equal(inbox_remove(&files, "ann", other), ST_OK);
            }
        }
    }
    assert_true(tried > 200);
}

static void a_job_is_never_called_last(void **state)
{
    static const char *const names[][2] = { { "last.jsonl", "last.jsonl" }, { "last.jsonl.gz", "last.jsonl.gz" }, { "last", "" }, { "last.txt", "last.txt" },
                                            { "blast.jsonl", "blast" }, { "a.jsonl", "a" } };
    char got[64];

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        inbox_job_name(names[i][0], got, sizeof got);
        assert_string_equal(got, names[i][1]);
    }
}

static bool whole(const char *text, size_t n)
{
    char path[] = "/tmp/weir-test-whole.XXXXXX";
    int fd = mkstemp(path);

    unlink(path);
    assert_int_equal(write(fd, text, n), n);
    bool is_whole = sftp_upload_whole(fd, n);
    close(fd);
    return is_whole;
}

static void every_cut_inside_a_line_is_seen(void **state)
{
    static const char text[] = "{\"prompt\": \"a\"}\n{\"prompt\": \"b {}\"}";
    static const char bom[] = "\xef\xbb\xbf{\"prompt\": 1}";
    size_t first = strlen("{\"prompt\": \"a\"}");

    (void)state;
    for (size_t n = 1; n < sizeof text - 1; n++)
        assert_true(whole(text, n) == (n == first || n == first + 1));
    assert_true(whole(text, sizeof text - 1));
    assert_true(whole("", 0));
    assert_true(whole(bom, sizeof bom - 1));
    assert_true(whole("\xff\xfe{\0", 4));
    assert_false(whole("[1]", 3));
    assert_false(whole("{} x", 4));
    size_t n = LINE_BYTES_MAX + 10;
    char *long_line = malloc(n);
    assert_non_null(long_line);
    memset(long_line, 'x', n);
    assert_false(whole(long_line, n));
    long_line[n - 1] = '\n';
    assert_true(whole(long_line, n));
    free(long_line);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(only_regular_files_can_be_opened, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_note_goes_with_its_file, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_was_being_submitted_is_a_job_or_goes_back, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_the_store_cannot_tell_stays_until_it_can, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_file_that_goes_back_replaces_no_newer_one, set_up, tear_down),
        cmocka_unit_test_setup_teardown(nor_where_a_rename_knows_no_flags, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_name_of_any_length_that_may_be_written_can_be_taken_noted_and_recovered, set_up, tear_down),
        cmocka_unit_test(a_job_is_never_called_last),
        cmocka_unit_test(every_cut_inside_a_line_is_seen),
    };

    log_init("test", LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
