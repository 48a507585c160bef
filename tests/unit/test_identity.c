/* test_identity.c - the broker's users file while it changes: what is said of it, and how often. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "broker/identity.h"

static char folder[] = "/tmp/weir-identity.XXXXXX", users[64], said[64];

static void write_users(const char *text)
{
    FILE *f = fopen(users, "w");

    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

/* Lines of the log so far that name the event. */
static int told(const char *event)
{
    char line[1024];
    int n = 0;
    FILE *f = fopen(said, "r");

    assert_non_null(f);
    while (fgets(line, sizeof(line), f) != NULL)
        n += strstr(line, event) != NULL;
    fclose(f);
    return n;
}

static void a_file_that_cannot_be_read_is_told_of_once_and_read_when_it_can_be(void **state)
{
    (void)state;
    struct identity id;
    struct error err;
    uint64_t now_ns = 0;

    write_users("[alice]\n");
    assert_int_equal(identity_open(users, &id, &err), ST_OK);
    assert_int_equal(unlink(users), 0);
    assert_int_equal(mkdir(users, 0700), 0); /* a folder cannot be read as a file, not even by root */
    for (int i = 0; i < 5; i++)
        assert_false(identity_look(&id, now_ns += UINT64_C(60000000000), false));
    assert_int_equal(told("users_not_reloaded"), 1);
    assert_false(identity_look(&id, now_ns, true)); /* somebody asked for it: he is told */
    assert_int_equal(told("users_not_reloaded"), 2);
    assert_int_equal(id.users.n, 1);
    assert_int_equal(rmdir(users), 0);
    write_users("[alice]\n[bob]\n");
    assert_true(identity_look(&id, now_ns += UINT64_C(60000000000), false));
    assert_int_equal(id.users.n, 2);
    identity_close(&id);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_that_cannot_be_read_is_told_of_once_and_read_when_it_can_be),
    };

    if (mkdtemp(folder) == NULL)
        return 1;
    snprintf(users, sizeof(users), "%s/users", folder);
    snprintf(said, sizeof(said), "%s/log", folder);
    if (freopen(said, "w", stderr) == NULL)
        return 1;
    setvbuf(stderr, NULL, _IONBF, 0);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    (void)unlink(users);
    (void)unlink(said);
    (void)rmdir(folder);
    return failed;
}
