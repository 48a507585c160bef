/* test_door.c - packets between the gateway's processes: what goes in comes out, and whatever else comes is refused whole. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gateway/door.h"
#include "gateway/key_options.h"
#include "tests/support/random.h"

static struct random dice;
static int pair[2];
static uint8_t packet[DOOR_PACKET_BYTES];

static int set_up(void **state)
{
    (void)state;
    return socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, pair);
}

static int tear_down(void **state)
{
    (void)state;
    close(pair[0]);
    close(pair[1]);
    return 0;
}

static void a_message_and_its_descriptor_arrive(void **state)
{
    uint8_t buffer[256];
    struct byte_writer w = { .at = buffer, .capacity = sizeof buffer };
    struct door_message m;
    int fds[2];

    (void)state;
    assert_int_equal(pipe(fds), 0);
    door_put_u32(&w, 7);
    door_put_str(&w, span_str("hello"));
    door_put_u64(&w, UINT64_MAX);
    assert_false(w.failed);
    assert_int_equal(door_send(pair[0], &(struct door_message){ DOOR_LIST, 3, 9, byte_writer_written(&w), fds[1] }), ST_OK);
    assert_int_equal(door_receive(pair[1], packet, &m), ST_OK);
    assert_int_equal(m.type, DOOR_LIST);
    assert_int_equal(m.op, 3);
    assert_int_equal(m.serial, 9);
    assert_true(m.fd >= 0 && m.fd != fds[1]);
    assert_int_equal(write(m.fd, "x", 1), 1);
    struct door_reader r = { .left = m.body };
    assert_int_equal(door_get_u32(&r), 7);
    assert_true(span_is(door_get_str(&r), "hello"));
    assert_int_equal(door_get_u64(&r), UINT64_MAX);
    assert_true(door_read_all(&r));
    assert_int_equal(door_get_u32(&r), 0);
    assert_false(door_read_all(&r));
    close(m.fd);
    close(fds[0]);
    close(fds[1]);
    assert_int_equal(door_receive(pair[1], packet, &m), ST_AGAIN);
    close(pair[0]);
    assert_int_equal(door_receive(pair[1], packet, &m), ST_GONE);
}

static void packets_that_are_not_ours_are_corrupt(void **state)
{
    struct door_header h = { .type = DOOR_LIST, .body_bytes = 5 };
    struct door_message m;

    (void)state;
    assert_int_equal(send(pair[0], &h, sizeof h - 1, 0), sizeof h - 1);
    assert_int_equal(door_receive(pair[1], packet, &m), ST_CORRUPT);
    assert_int_equal(send(pair[0], &h, sizeof h, 0), sizeof h);
    assert_int_equal(door_receive(pair[1], packet, &m), ST_CORRUPT);
    static uint8_t big[DOOR_PACKET_BYTES + 1];
    h.body_bytes = sizeof big - sizeof h;
    memcpy(big, &h, sizeof h);
    assert_int_equal(send(pair[0], big, sizeof big, 0), sizeof big);
    assert_int_equal(door_receive(pair[1], packet, &m), ST_CORRUPT);
}

static int open_descriptors(void)
{
    int n = 0;

    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) != -1;
    return n;
}

static void extra_descriptors_do_not_stay(void **state)
{
    struct door_header h = { .type = DOOR_LIST };
    struct iovec iov = { &h, sizeof h };
    union {
        char bytes[CMSG_SPACE(3 * sizeof(int))];
        struct cmsghdr align;
    } control = { 0 };
    struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };
    struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
    struct door_message m;

    (void)state;
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(3 * sizeof(int));
    memcpy(CMSG_DATA(c), (int[]){ 0, 1, 2 }, 3 * sizeof(int));
    int before = open_descriptors();
    assert_int_equal(sendmsg(pair[0], &msg, 0), sizeof h);
    assert_int_equal(door_receive(pair[1], packet, &m), ST_OK);
    close(m.fd);
    assert_int_equal(open_descriptors(), before);
    h.body_bytes = 9; /* corrupt, with descriptors */
    assert_int_equal(sendmsg(pair[0], &msg, 0), sizeof h);
    assert_int_equal(door_receive(pair[1], packet, &m), ST_CORRUPT);
    assert_int_equal(open_descriptors(), before);
}

static void a_writer_that_is_full_says_so(void **state)
{
    uint8_t buffer[8];
    struct byte_writer w = { .at = buffer, .capacity = sizeof buffer };

    (void)state;
    door_put_u32(&w, 1);
    door_put_str(&w, span_str("x"));
    assert_true(w.failed);
}

static void texts_of_any_length(void **state)
{
    static const size_t sizes[] = { 0, 1, DOOR_INLINE_BYTES, DOOR_INLINE_BYTES + 1, 1 << 20 };

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct byte_writer w = { .at = packet, .capacity = sizeof packet };
        char *text = malloc(sizes[i] + 1), *back = NULL;
        size_t n = 0;
        int fd = -1;
        memset(text, 't', sizes[i]);
        assert_int_equal(door_put_text(&w, span_of(text, sizes[i]), &fd), ST_OK);
        assert_int_equal(fd >= 0, sizes[i] > DOOR_INLINE_BYTES);
        struct door_reader r = { .left = byte_writer_written(&w) };
        assert_int_equal(door_get_text(&r, fd, &back, &n), ST_OK);
        assert_true(door_read_all(&r));
        assert_int_equal(n, sizes[i]);
        assert_memory_equal(back, text, n);
        if (fd >= 0)
            close(fd);
        free(back);
        free(text);
    }
    struct byte_writer w = { .at = packet, .capacity = sizeof packet };
    char *back = NULL;
    size_t n = 0;
    door_put_u32(&w, DOOR_TEXT_IN_FD);
    struct door_reader r = { .left = byte_writer_written(&w) };
    assert_int_equal(door_get_text(&r, -1, &back, &n), ST_CORRUPT); /* promised, but no descriptor came */
    int pipes[2];
    assert_int_equal(pipe(pipes), 0);
    r = (struct door_reader){ .left = byte_writer_written(&w) };
    assert_int_equal(door_get_text(&r, pipes[0], &back, &n), ST_CORRUPT); /* a pipe could make us wait */
    close(pipes[0]);
    close(pipes[1]);
}

/* Any bytes as the body of any message: read or refused, never beyond the end (the sanitizer watches). */
static void any_bytes_as_a_body(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < random_ops(); i++) {
        size_t n = random_below(&dice, 80);
        uint8_t *bytes = malloc(n + 1);
        for (size_t k = 0; k < n; k++)
            bytes[k] = random_below(&dice, 3) ? 0 : (uint8_t)random_next(&dice);
        struct door_submit s;
        struct error e;
        struct door_reader r = { .left = span_of(bytes, n) };
        door_get_submit(&r, &s);
        r = (struct door_reader){ .left = span_of(bytes, n) };
        door_get_error(&r, &e);
        assert_true(e.code < ERR_COUNT);
        free(bytes);
    }
}

static bool allowed(const char *options, const char *address)
{
    const char *reason = NULL;
    bool ok = key_options_allow(options, address, INT64_C(1700000000000), &reason); /* November 2023 */

    assert_true(ok || reason != NULL);
    return ok;
}

static void options_of_keys(void **state)
{
    (void)state;
    assert_true(allowed("", "1.2.3.4"));
    assert_true(allowed("restrict,no-pty", "1.2.3.4"));
    assert_true(allowed("from=\"1.2.3.4\"", "1.2.3.4"));
    assert_true(allowed("from=\"10.0.0.1,1.2.3.*\"", "1.2.3.4"));
    assert_true(allowed("from=\"1.2.0.0/15\"", "1.3.3.4"));
    assert_true(allowed("from=\"2001:db8::/32\"", "2001:db8::7"));
    assert_true(allowed("expiry-time=\"20240101\"", "1.2.3.4"));
    assert_false(allowed("from=\"1.2.3.5\"", "1.2.3.4"));
    assert_false(allowed("from=\"*,!1.2.3.4\"", "1.2.3.4"));
    assert_false(allowed("from=\"1.2.0.0/15\"", "1.4.3.4"));
    assert_false(allowed("from=\"1.2.0.0/40\"", "1.2.3.4"));
    assert_false(allowed("from=\"0.0.0.0/0\"", "::1"));
    assert_false(allowed("expiry-time=\"20230101\"", "1.2.3.4"));
    assert_false(allowed("expiry-time=\"20241301\"", "1.2.3.4"));
    assert_false(allowed("expiry-time=\"2024\"", "1.2.3.4"));
    assert_false(allowed("command=\"ls\"", "1.2.3.4"));
    assert_false(allowed("from", "1.2.3.4"));
    assert_false(allowed("from=1.2.3.4", "1.2.3.4"));
    assert_false(allowed("from=\"1.2.3.4", "1.2.3.4"));
    assert_false(allowed("restrict,,no-pty", "1.2.3.4"));
    assert_false(allowed("restrict no-pty", "1.2.3.4"));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_message_and_its_descriptor_arrive, set_up, tear_down),
        cmocka_unit_test_setup_teardown(packets_that_are_not_ours_are_corrupt, set_up, tear_down),
        cmocka_unit_test_setup_teardown(extra_descriptors_do_not_stay, set_up, tear_down),
        cmocka_unit_test(a_writer_that_is_full_says_so),
        cmocka_unit_test(texts_of_any_length),
        cmocka_unit_test(any_bytes_as_a_body),
        cmocka_unit_test(options_of_keys),
    };

    dice = random_start(argc, argv, 20000);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
