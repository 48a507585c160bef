/* test_users.c - the users file: what it takes, what it refuses by line, and that it comes back as it went. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <dirent.h>
#include <pthread.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <zmq.h>

#include "users.h"

#define KEY_A "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICze0yiW/C4oGLa+iavQsh+onZnM64C2fkZMeGxribZk"
#define KEY_B "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJuyTaIGpzouXfU1f1josi5pnx0RPiXgvLQN6WZvkwvo"
#define KEY_C \
    "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBJ0oRmXqO8fuWW+u9JiCZD7YqWJ7BmJ0b4kVnloN3YmL" \
    "u1CmXmmRobQ7UtqKZc9lfWbJcUFLg8ko1j9FKf0D5f8="

static struct users u;
static struct error err;
static char folder[64], path[80];

static void write_file(const char *text)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    assert_int_equal(chmod(path, 0640), 0);
}

static enum status load(const char *text)
{
    users_deinit(&u);
    write_file(text);
    return users_load(path, &u, &err);
}

static int forget(void **state)
{
    (void)state;
    users_deinit(&u);
    unlink(path);
    return 0;
}

static void a_missing_file_is_an_empty_list(void **state)
{
    (void)state;
    assert_int_equal(users_load(path, &u, &err), ST_OK);
    assert_int_equal(u.n, 0);
}

static void everything_in_the_file_arrives(void **state)
{
    const struct user_key *key = NULL;

    (void)state;
    assert_int_equal(load("# people\n[bob]\n\n[alice]\nuid = 1000\nkey = " KEY_A " alice@laptop\n"
                          "key = from=\"10.0.0.0/8,!10.1.1.1\",restrict " KEY_B " b ; c \"d\"\nmax-running = 64\n"
                          "max-queued=7\nmax-job-lines = 1000\nmax-job-bytes = 64M\nmax-jobs = 9\nmax-tokens-a-day = 5000000\n"
                          "disabled = yes\ncache-scope = pool\n"),
                     ST_OK);
    assert_int_equal(u.n, 2);
    const struct user *alice = users_by_name(&u, "alice");
    assert_ptr_equal(alice, &u.list[0]); /* sorted */
    assert_int_equal(alice->uid, 1000);
    assert_true(alice->disabled && alice->pool_scope);
    assert_int_equal(alice->n_keys, 2);
    assert_string_equal(alice->keys[0].comment, "alice@laptop");
    assert_string_equal(alice->keys[1].comment, "b ; c \"d\"");
    assert_string_equal(alice->keys[1].options, "from=\"10.0.0.0/8,!10.1.1.1\",restrict");
    assert_true(alice->max_running == 64 && alice->max_queued == 7 && alice->max_job_lines == 1000);
    assert_true(alice->max_job_bytes == 64 << 20 && alice->max_jobs == 9 && alice->max_tokens_a_day == 5000000);
    const struct user *bob = users_by_name(&u, "bob");
    assert_int_equal(bob->uid, -1);
    assert_int_equal(bob->max_running, 0);
    assert_null(users_by_name(&u, "carol"));
    assert_ptr_equal(users_by_uid(&u, 1000), alice);
    assert_null(users_by_uid(&u, 1001));
    assert_ptr_equal(users_by_key(&u, "ssh-ed25519", strchr(KEY_B, ' ') + 1, &key), alice);
    assert_ptr_equal(key, &alice->keys[1]);
    assert_null(users_by_key(&u, "ssh-rsa", strchr(KEY_B, ' ') + 1, &key));
}

static void groups_have_members_and_shared_limits(void **state)
{
    static const char *const broken[] = { "[alice]\ngroup = no\n", "[@g]\nkey = " KEY_A "\n", "[@g]\nmax-running = 4\n", "[@g]\n[@g]\n",
                                          "[@G]\n", "[alice]\ngroup = g\n[@g]\n", "[@g]\n[alice]\ngroup = g\ngroup = g\n", "[@g]\nuid = 4\n" };
    struct users again = { 0 };

    (void)state;
    assert_int_equal(users_add(&u, "alice", &err), ST_OK);
    assert_int_equal(users_add(&u, "bob", &err), ST_OK);
    assert_int_equal(users_set_group(&u, "alice", "physics", &err), ST_NOT_FOUND);
    assert_int_equal(users_add_group(&u, "physics", &err), ST_OK);
    assert_int_equal(users_add_group(&u, "alice", &err), ST_OK); /* names of their own */
    assert_int_equal(users_add_group(&u, "physics", &err), ST_INVALID);
    assert_int_equal(users_set_group(&u, "alice", "physics", &err), ST_OK);
    assert_int_equal(users_set_group(&u, "carol", "physics", &err), ST_NOT_FOUND);
    u.groups[0].max_jobs = 7;
    assert_int_equal(users_remove_group(&u, "physics", &err), ST_INVALID);
    assert_int_equal(users_remove_group(&u, "alice", &err), ST_OK);
    assert_int_equal(users_save(path, &u, &err), ST_OK);
    assert_int_equal(users_load(path, &again, &err), ST_OK);
    assert_int_equal(again.n_groups, 1);
    assert_int_equal(users_group_of(&again, users_by_name(&again, "alice"))->max_jobs, 7);
    assert_null(users_group_of(&again, users_by_name(&again, "bob")));
    assert_null(users_group_of(&again, NULL));
    users_deinit(&again);
    assert_int_equal(users_set_group(&u, "alice", "", &err), ST_OK);
    assert_int_equal(users_remove_group(&u, "physics", &err), ST_OK);
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        write_file(broken[i]);
        assert_int_equal(users_load(path, &again, &err), ST_INVALID);
    }
}

static void what_is_saved_is_what_is_loaded_again(void **state)
{
    struct users again = { 0 };
    struct stat s;

    (void)state;
    assert_int_equal(users_add(&u, "zoe", &err), ST_OK);
    assert_int_equal(users_add(&u, "alice", &err), ST_OK);
    assert_int_equal(users_add(&u, "m_1-2", &err), ST_OK);
    assert_int_equal(users_add_key(&u, "alice", "  " KEY_A "  two  words \n", &err), ST_OK);
    assert_int_equal(users_add_key(&u, "alice", "no-pty,from=\"a b\" " KEY_C, &err), ST_OK);
    assert_int_equal(users_add_curve(&u, "zoe", (const uint8_t *)"0123456789abcdef0123456789abcdef", "lap-top", &err), ST_OK);
    u.list[2].uid = 0;
    u.list[2].disabled = true;
    u.list[1].pool_scope = true;
    u.list[1].max_job_bytes = 12345;
    assert_int_equal(users_save(path, &u, &err), ST_OK);
    assert_int_equal(stat(path, &s), 0);
    assert_int_equal(s.st_mode & 07777, 0640);
    assert_int_equal(users_load(path, &again, &err), ST_OK);
    assert_int_equal(again.n, 3);
    for (uint32_t i = 0; i < 3; i++) {
        assert_string_equal(again.list[i].name, u.list[i].name);
        assert_int_equal(again.list[i].uid, u.list[i].uid);
        assert_int_equal(again.list[i].disabled, u.list[i].disabled);
        assert_int_equal(again.list[i].pool_scope, u.list[i].pool_scope);
        assert_int_equal(again.list[i].max_job_bytes, u.list[i].max_job_bytes);
        assert_int_equal(again.list[i].n_curve, u.list[i].n_curve);
        for (uint32_t k = 0; k < u.list[i].n_curve; k++)
            assert_memory_equal(&again.list[i].curve[k], &u.list[i].curve[k], sizeof(u.list[i].curve[k]));
        assert_int_equal(again.list[i].n_keys, u.list[i].n_keys);
        for (uint32_t k = 0; k < u.list[i].n_keys; k++) {
            assert_string_equal(again.list[i].keys[k].type, u.list[i].keys[k].type);
            assert_string_equal(again.list[i].keys[k].blob, u.list[i].keys[k].blob);
            assert_string_equal(again.list[i].keys[k].comment, u.list[i].keys[k].comment);
            assert_string_equal(again.list[i].keys[k].options, u.list[i].keys[k].options);
        }
    }
    users_deinit(&again);

    /* No temporary file is left beside it. */
    DIR *d = opendir(folder);
    int n = 0;
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        n += e->d_name[0] != '.';
    closedir(d);
    assert_int_equal(n, 1);
}

static void what_is_wrong_in_the_file_is_named_by_line(void **state)
{
    static const struct { const char *text; int line; const char *says; } bad[] = {
        { "[alice]\n[alice]\n", 2, "a user alice already" },
        { "[Alice]\n", 1, "a-z 0-9" },
        { "[uid-1000]\n", 1, "reserved" },
        { "[this-name-is-longer-than-31-bytes]\n", 1, "1 to 31" },
        { "[alice]\nuid = 1\n[bob]\nuid = 1\n", 4, "belongs to alice" },
        { "[alice]\nuid = 1\nuid = 2\n", 3, "twice" },
        { "[alice]\nuid = -1\n", 2, "whole number" },
        { "[alice]\nuid = 4294967295\n", 2, "4294967294" },
        { "[alice]\nkey = " KEY_A "\n[bob]\nkey = " KEY_A " again\n", 4, "belongs to alice" },
        { "[alice]\nkey = " KEY_A "\nkey = " KEY_A "\n", 3, "already" },
        { "[alice]\nkey = command=\"/bin/sh\" " KEY_A "\n", 2, "command=" },
        { "[alice]\nkey = from=\"x,command=y\",agent-forwarding " KEY_A "\n", 2, "agent-forwarding" },
        { "[alice]\nkey = ssh-dss AAAAB3NzaC1kc3MAAACB\n", 2, "ssh-dss" },
        { "[alice]\nkey = ssh-ed25519\n", 2, "not the base64" },
        { "[alice]\nkey = ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICze0yiW/C4oGLa+iavQsh+onZnM64C2fkZMeGxribZ\n", 2, "not the base64" },
        { "[alice]\nkey = ssh-rsa AAAAC3NzaC1lZDI1NTE5AAAAICze0yiW/C4oGLa+iavQsh+onZnM64C2fkZMeGxribZk\n", 2, "type ssh-rsa" },
        { "[alice]\nkey =\n", 2, "key" },
        { "[alice]\nmax-running = lots\n", 2, "max-running" },
        { "[alice]\nmax-runing = 5\n", 2, "no key max-runing" },
        { "[alice]\ndisabled = perhaps\n", 2, "yes or no" },
        { "[alice]\ncache-scope = mars\n", 2, "user or pool" },
        { "[alice]\ncache-scope = user\ncache-scope = pool\n", 3, "twice" },
        { "uid = 5\n", 1, "before the first" },
        { "[alice]\nuid\n", 2, "neither" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char where[32];

        enum status st = load(bad[i].text);
        snprintf(where, sizeof(where), "users:%d", bad[i].line);
        if (st != ST_INVALID || strcmp(err.param, where) != 0 || strstr(err.message, bad[i].says) == NULL)
            fail_msg("%s\ngot %d, %s (%s)", bad[i].text, st, err.message, err.param);
        assert_int_equal(u.n, 0); /* untouched */
    }
}

static void a_file_that_others_may_write_is_refused(void **state)
{
    (void)state;
    write_file("[alice]\n");
    assert_int_equal(chmod(path, 0660), 0);
    assert_int_equal(users_load(path, &u, &err), ST_INVALID);
    assert_int_equal(err.code, ERR_PERMISSION_DENIED);
    assert_int_equal(chmod(path, 0646), 0);
    assert_int_equal(users_load(path, &u, &err), ST_INVALID);
    assert_int_equal(users_load("/dev/null", &u, &err), ST_INVALID);
}

static void users_and_keys_are_added_and_removed(void **state)
{
    (void)state;
    assert_int_equal(users_add(&u, "bob", &err), ST_OK);
    assert_int_equal(users_add(&u, "bob", &err), ST_INVALID);
    assert_int_equal(users_add(&u, "", &err), ST_INVALID);
    assert_int_equal(users_add(&u, "1bob", &err), ST_INVALID);
    assert_int_equal(users_add(&u, "bo b", &err), ST_INVALID);
    assert_int_equal(users_add(&u, "uid-", &err), ST_OK);
    assert_int_equal(users_add(&u, "uid-7", &err), ST_INVALID);
    assert_int_equal(users_add_key(&u, "carol", KEY_A, &err), ST_NOT_FOUND);
    assert_int_equal(users_add_key(&u, "bob", KEY_A " one\n" KEY_B " two\n", &err), ST_INVALID);
    assert_int_equal(users_add_key(&u, "bob", KEY_A, &err), ST_OK);
    assert_int_equal(users_add(&u, "anna", &err), ST_OK);
    assert_int_equal(users_add_key(&u, "anna", KEY_A, &err), ST_INVALID);
    assert_string_equal(err.message, "the key belongs to bob");
    assert_int_equal(users_remove(&u, "carol", &err), ST_NOT_FOUND);
    assert_int_equal(users_remove(&u, "bob", &err), ST_OK);
    assert_null(users_by_name(&u, "bob"));
    assert_int_equal(users_add_key(&u, "anna", KEY_A, &err), ST_OK);
}

static void a_curve_key_is_read_in_both_forms_and_belongs_to_one(void **state)
{
    static const char z85[] = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7";
    char hex[CURVE_TEXT_BYTES], again[41];
    uint8_t key[CURVE_KEY_BYTES], same[CURVE_KEY_BYTES];

    (void)state;
    assert_int_equal(curve_key_parse(span_str(z85), key), ST_OK);
    assert_string_equal(zmq_z85_encode(again, key, sizeof(key)), z85);
    curve_key_format(key, hex);
    assert_int_equal(curve_key_parse(span_str(hex), same), ST_OK);
    assert_memory_equal(key, same, sizeof(key));
    hex[5] = 'g';
    assert_int_equal(curve_key_parse(span_str(hex), same), ST_INVALID);
    hex[5] = 0x10; /* with bit 5 it would be a digit */
    assert_int_equal(curve_key_parse(span_str(hex), same), ST_INVALID);
    assert_int_equal(curve_key_parse(span_str("#####" "rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"), same), ST_INVALID);

    assert_int_equal(users_add(&u, "anna", &err), ST_OK);
    assert_int_equal(users_add(&u, "bob", &err), ST_OK);
    assert_int_equal(users_add_curve(&u, "anna", key, "lap top", &err), ST_INVALID);
    assert_int_equal(users_add_curve(&u, "carol", key, "", &err), ST_NOT_FOUND);
    assert_int_equal(users_add_curve(&u, "anna", key, "laptop", &err), ST_OK);
    assert_int_equal(users_add_curve(&u, "bob", key, "", &err), ST_INVALID);
    assert_string_equal(err.message, "the key belongs to anna");
    assert_string_equal(users_by_curve(&u, key)->name, "anna");
    for (int i = 1; i < USER_KEYS_MAX; i++) {
        same[0] = (uint8_t)~key[0];
        same[1] = (uint8_t)i;
        assert_int_equal(users_add_curve(&u, "anna", same, "", &err), ST_OK);
    }
    same[1] = 0;
    assert_int_equal(users_add_curve(&u, "anna", same, "", &err), ST_LIMIT);
    assert_int_equal(users_remove_curve(&u, "bob", key, &err), ST_NOT_FOUND);
    assert_int_equal(users_remove_curve(&u, "anna", key, &err), ST_OK);
    assert_null(users_by_curve(&u, key));
}

static void a_key_line_has_a_limit(void **state)
{
    char line[USER_KEY_LINE_BYTES_MAX + 2];

    (void)state;
    memset(line, 'x', sizeof(line));
    memcpy(line, KEY_A " ", sizeof(KEY_A));
    line[USER_KEY_LINE_BYTES_MAX + 1] = '\0';
    assert_int_equal(users_add(&u, "alice", &err), ST_OK);
    assert_int_equal(users_add_key(&u, "alice", line, &err), ST_LIMIT);
    assert_non_null(strstr(err.message, "the limit is 8192"));
    assert_int_equal(u.list[0].n_keys, 0);
    line[USER_KEY_LINE_BYTES_MAX] = '\0';
    assert_int_equal(users_add_key(&u, "alice", line, &err), ST_OK);
    assert_int_equal(users_save(path, &u, &err), ST_OK);
    users_deinit(&u);
    assert_int_equal(users_load(path, &u, &err), ST_OK);
    assert_int_equal(u.list[0].n_keys, 1);
}

static void a_list_that_cannot_be_read_again_does_not_replace_the_file(void **state)
{
    (void)state;
    assert_int_equal(load("[alice]\nkey = " KEY_A "\n[bob]\n"), ST_OK);
    u.list[0].max_job_bytes = UINT64_MAX; /* more than a number of bytes in the file may be */
    assert_int_equal(users_save(path, &u, &err), ST_INVALID);
    assert_non_null(strstr(err.message, "max-job-bytes"));
    assert_string_equal(err.param, path);
    users_deinit(&u);
    assert_int_equal(users_load(path, &u, &err), ST_OK);
    assert_int_equal(u.n, 2);
    assert_int_equal(u.list[0].max_job_bytes, 0);

    DIR *d = opendir(folder);
    int n = 0;
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        n += e->d_name[0] != '.';
    closedir(d);
    assert_int_equal(n, 1); /* nothing is left beside it */
}

static void numbers_of_users_and_keys_have_limits(void **state)
{
    char name[USER_NAME_BYTES];

    (void)state;
    for (int i = 0; i < USERS_MAX; i++) {
        snprintf(name, sizeof(name), "u%d", (i * 7919) % USERS_MAX);
        assert_int_equal(users_add(&u, name, &err), ST_OK);
    }
    assert_int_equal(users_add(&u, "onemore", &err), ST_LIMIT);
    for (uint32_t i = 1; i < u.n; i++)
        assert_true(strcmp(u.list[i - 1].name, u.list[i].name) < 0);
    for (int i = 0; i < USERS_MAX; i++) {
        snprintf(name, sizeof(name), "u%d", i);
        assert_non_null(users_by_name(&u, name));
    }
}

static void a_local_peer_has_one_name_that_nobody_else_has(void **state)
{
    char name[USER_NAME_BYTES];
    struct passwd *account = getpwuid(0);

    (void)state;
    users_name_of_uid(&u, 0, name);
    if (account != NULL && user_name_ok(account->pw_name))
        assert_string_equal(name, account->pw_name);
    users_name_of_uid(&u, 4000000123u, name);
    assert_string_equal(name, "uid-4000000123");

    assert_int_equal(users_add(&u, "zed", &err), ST_OK);
    u.list[0].uid = 4000000123;
    users_name_of_uid(&u, 4000000123u, name);
    assert_string_equal(name, "zed");

    /* Somebody of the file has the account's name, and the file does not say that they are one. */
    assert_int_equal(users_add(&u, "root", &err), ST_OK);
    users_name_of_uid(&u, 0, name);
    assert_string_equal(name, "uid-0");
}

static void *add_one(void *arg)
{
    struct users mine = { 0 };
    struct error e;
    int lock = -1;

    if (users_lock(path, true, &lock, &e) != ST_OK || users_load(path, &mine, &e) != ST_OK ||
        users_add(&mine, arg, &e) != ST_OK || users_save(path, &mine, &e) != ST_OK)
        return arg;
    close(lock);
    users_deinit(&mine);
    return NULL;
}

static void changes_under_the_lock_do_not_lose_each_other(void **state)
{
    pthread_t threads[8];
    char names[8][8], lock_name[100];

    (void)state;
    for (int i = 0; i < 8; i++) {
        snprintf(names[i], sizeof(names[i]), "user%d", i);
        assert_int_equal(pthread_create(&threads[i], NULL, add_one, names[i]), 0);
    }
    for (int i = 0; i < 8; i++) {
        void *failed = NULL;
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
    assert_int_equal(users_load(path, &u, &err), ST_OK);
    assert_int_equal(u.n, 8);
    snprintf(lock_name, sizeof(lock_name), "%s.lock", path);
    unlink(lock_name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_missing_file_is_an_empty_list, forget),
        cmocka_unit_test_teardown(everything_in_the_file_arrives, forget),
        cmocka_unit_test_teardown(groups_have_members_and_shared_limits, forget),
        cmocka_unit_test_teardown(what_is_saved_is_what_is_loaded_again, forget),
        cmocka_unit_test_teardown(what_is_wrong_in_the_file_is_named_by_line, forget),
        cmocka_unit_test_teardown(a_file_that_others_may_write_is_refused, forget),
        cmocka_unit_test_teardown(users_and_keys_are_added_and_removed, forget),
        cmocka_unit_test_teardown(a_curve_key_is_read_in_both_forms_and_belongs_to_one, forget),
        cmocka_unit_test_teardown(a_key_line_has_a_limit, forget),
        cmocka_unit_test_teardown(a_list_that_cannot_be_read_again_does_not_replace_the_file, forget),
        cmocka_unit_test_teardown(numbers_of_users_and_keys_have_limits, forget),
        cmocka_unit_test_teardown(a_local_peer_has_one_name_that_nobody_else_has, forget),
        cmocka_unit_test_teardown(changes_under_the_lock_do_not_lose_each_other, forget),
    };

    snprintf(folder, sizeof(folder), "/tmp/weir-test-users-%d", (int)getpid());
    mkdir(folder, 0700);
    snprintf(path, sizeof(path), "%s/users", folder);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(folder);
    return failed;
}
