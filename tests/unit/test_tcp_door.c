/* test_tcp_door.c - where the door for clients of other machines listens, on a machine with IPv6 and on one without. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <zmq.h>

#include "broker/tcp_door.h"
#include "log.h"

enum { HAS_NO_FILTER = 77 };

/* From here on this process is on a machine without IPv6. */
static bool take_ipv6_away(void)
{
    struct sock_filter f[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_INET6, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAFNOSUPPORT),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { .len = sizeof(f) / sizeof(f[0]), .filter = f };

    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0 &&
           socket(AF_INET6, SOCK_STREAM, 0) < 0 && errno == EAFNOSUPPORT;
}

/* What a door at uri calls itself begins with this; NULL: it is not opened, and the error names uri.  Each door has a context of its own: the
 * name at which a closed one answered ZAP is free again only when libzmq comes to it. */
static bool opens_as(const char *uri, const char *begins, char ret_uri[128])
{
    static const struct curve_pair pair = { .public_key = { 1 }, .secret_key = { 2 } };
    struct tcp_door *door = NULL;
    struct error err;
    void *context = zmq_ctx_new();
    bool same = begins == NULL;

    if (context == NULL)
        return false;
    if (tcp_door_open(context, uri, &pair, 16, &door, &err) != ST_OK) {
        print_message("%s: %s\n", uri, err.message);
        same = same && strstr(err.message, uri) != NULL;
    } else {
        print_message("%s: %s\n", uri, tcp_door_uri(door));
        same = begins != NULL && strncmp(tcp_door_uri(door), begins, strlen(begins)) == 0;
        snprintf(ret_uri, 128, "%s", tcp_door_uri(door));
        tcp_door_close(door);
    }
    zmq_ctx_term(context);
    return same;
}

static bool all_of_ipv4(void)
{
    char uri[128] = "";

    return opens_as("tcp://*:0", "tcp://0.0.0.0:", uri) && strtol(strrchr(uri, ':') + 1, NULL, 10) > 0 &&
           opens_as("tcp://[::]:0", NULL, uri) && opens_as("tcp://127.0.0.1:0", "tcp://127.0.0.1:", uri);
}

static void without_ipv6_a_star_is_all_of_ipv4_and_an_ipv6_address_is_refused(void **state)
{
    int status = 0;
    pid_t pid = fork();

    (void)state;
    if (pid == 0) {
        log_init("test", LOG_LEVEL_ERROR);
        _exit(!take_ipv6_away() ? HAS_NO_FILTER : all_of_ipv4() ? 0 : 1);
    }
    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == HAS_NO_FILTER)
        skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(without_ipv6_a_star_is_all_of_ipv4_and_an_ipv6_address_is_refused) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
