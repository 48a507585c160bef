/* test_sftp_upload.c - a file on its way from the inbox to a job, seen from the connection process: what it does before it asks the jobs
 * process, which everybody waits for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "gateway/connection.h"
#include "gateway/sftp_upload.h"

static ino_t synced;

/* In the place of the C library's, for everything in this program. */
int fsync(int fd)
{
    struct stat s;

    assert_int_equal(fstat(fd, &s), 0);
    synced = s.st_ino;
    return 0;
}

static void a_renamed_file_is_synced_before_the_jobs_process_is_asked(void **state)
{
    static uint8_t packet[DOOR_PACKET_BYTES];
    char path[] = "/tmp/weir-test-upload.XXXXXX";
    struct connection *c = calloc(1, sizeof *c);
    struct sftp_talk s = { .stage = STAGE_SOURCE, .source = -1, .stored = "a.incomplete", .final = "a" };
    struct door_reader nothing = { 0 };
    struct door_message m;
    struct stat file;
    int ends[2], fd = mkstemp(path);

    (void)state;
    assert_non_null(c);
    assert_int_equal(write(fd, "{}", 2), 2);
    assert_int_equal(fstat(fd, &file), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
    c->door = ends[0];
    s.talk = &c->talks[0];
    s.talk->connection = c;
    sftp_upload_reply(&s, &nothing, fd);
    assert_int_equal(door_receive(ends[1], packet, &m), ST_OK);
    assert_int_equal(m.type, DOOR_FILE_SUBMIT);
    assert_true(synced == file.st_ino);
    sftp_upload_deinit(&s);
    unlink(path);
    close(fd);
    close(ends[0]);
    close(ends[1]);
    free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_renamed_file_is_synced_before_the_jobs_process_is_asked),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
