/* test_descriptors.c - connections do not get the last descriptors, and libzmq is never told what it would end the process for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "broker/descriptors.h"

enum { LIMIT = 64, FOR_CLIENTS = LIMIT / 2, N_PEERS = 4 };

static void connections_do_not_get_the_last_descriptors(void **state)
{
    struct sockaddr_un at = { .sun_family = AF_UNIX }; /* a name of the kernel's choice */
    socklen_t n = sizeof(sa_family_t);
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0), last = -1, fd;

    (void)state;
    descriptors_raise_limit();
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &(struct rlimit){ LIMIT, LIMIT }), 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&at, n), 0);
    assert_int_equal(listen(listener, N_PEERS), 0);
    n = sizeof(at);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &n), 0);
    for (int i = 0; i < N_PEERS; i++) {
        int peer = socket(AF_UNIX, SOCK_STREAM, 0);

        assert_int_equal(connect(peer, (struct sockaddr *)&at, n), 0);
    }
    fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    assert_in_range(fd, 0, FOR_CLIENTS - 1);
    assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
    while (last < FOR_CLIENTS - 1)
        last = dup(listener);
    assert_int_equal(accept4(listener, NULL, NULL, 0), -1);
    assert_int_equal(errno, ECONNABORTED);
    close(fd);
    assert_int_equal(accept4(listener, NULL, NULL, 0), fd); /* there is room again */
    while (dup(listener) >= 0)
        ;
    assert_int_equal(errno, EMFILE);
    assert_int_equal(accept4(listener, NULL, NULL, 0), -1);
    assert_int_equal(errno, ENFILE);
    close_range(STDERR_FILENO + 1, ~0U, 0); /* who looks for leaks at the end needs some */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(connections_do_not_get_the_last_descriptors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
