/* test_sftp_inbox.c - files of the inboxes on disk: what a name may open, and that a file is a job or a file, never both or neither, at whatever
 * step the process died. */
#include <setjmp.h>
#include <stdarg.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "gateway/inbox.h"
#include "gateway/sftp_upload.h"
#include "limits.h"

static char state_dir[] = "/tmp/weir-test-inbox.XXXXXX";
static struct job_files files;

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
    assert_int_equal(inbox_rename(&files, "ann", "b.part", "c.part", false), ST_INVALID);
    assert_int_equal(inbox_rename(&files, "ann", "b.part", "c.part", true), ST_OK);
    inbox_note(&files, "ann", "c.part", "why");
    assert_true(there("c.part.incomplete.txt"));
    assert_int_equal(inbox_remove(&files, "ann", "c.part"), ST_OK);
    assert_false(there("c.part") || there("c.part.incomplete.txt"));
    assert_int_equal(inbox_remove(&files, "ann", "c.part"), ST_NOT_FOUND);
}

static char known_token[INBOX_TOKEN_BYTES];

static bool known(const char *user, const char *token, void *arg)
{
    (void)arg;
    assert_string_equal(user, "ann");
    return strcmp(token, known_token) == 0;
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
    inbox_recover(&files, known, NULL);
    assert_false(there("a.incomplete"));
    assert_true(there("b.incomplete") && there("b.incomplete.txt") && there("c.incomplete"));
    assert_true(there("half.incomplete.txt"));
    assert_int_equal(fstatat(files.spool_fd, spool, &s, 0), 0);
    assert_int_equal(s.st_nlink, 1);
    inbox_recover(&files, known, NULL); /* again: nothing more happens */
    assert_true(there("b.incomplete") && !there("a.incomplete"));
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
        cmocka_unit_test(every_cut_inside_a_line_is_seen),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
