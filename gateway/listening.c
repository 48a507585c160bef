/* listening.c - see listening.h. */
#include "listening.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "key_options.h"

static enum status listen_on(struct listening *l, const char *address, unsigned port, struct error *err)
{
    char service[8];
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM,
                              .ai_flags = AI_PASSIVE | AI_NUMERICHOST | AI_NUMERICSERV },
                    *a = NULL;
    enum status st = ST_SYSTEM;
    const int on = 1, off = 0;
    int fd = -1;

    snprintf(service, sizeof service, "%u", port);
    if (getaddrinfo(address, service, &hints, &a) != 0) {
        error_set(err, ERR_INVALID_PARAMETER, "listen", "--listen wants an IP address, not \"%s\"", address);
        return ST_INVALID;
    }
    fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        goto out;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (a->ai_family == AF_INET6) /* "::" also takes IPv4; any other IPv6 address is itself only */
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, strcmp(address, "::") == 0 ? &off : &on, sizeof on);
    if (bind(fd, a->ai_addr, a->ai_addrlen) != 0 || listen(fd, BACKLOG) != 0)
        goto out;
    struct sockaddr_storage bound;
    socklen_t bytes = sizeof bound;
    if (getsockname(fd, (struct sockaddr *)&bound, &bytes) != 0)
        goto out;
    l->port = ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port
                                                : ((struct sockaddr_in *)&bound)->sin_port);
    l->sockets[l->n++] = fd;
    fd = -1;
    st = ST_OK;
out:
    if (st != ST_OK)
        error_set(err, ERR_INTERNAL, "listen", "cannot listen on %s port %u: %s", address, port,
                  strerror(errno));
    if (fd >= 0)
        close(fd);
    freeaddrinfo(a);
    return st;
}

enum status listening_open(struct listening *l, const struct config *c, struct error *err)
{
    const char *const *addresses;
    size_t n = config_list(c, "listen", &addresses);
    unsigned port = (unsigned)config_u64(c, "ssh-port");

    if (n > LISTEN_SOCKETS_MAX) {
        error_set(err, ERR_LIMIT_EXCEEDED, "listen", "%zu addresses to listen on, the limit is %d", n,
                  LISTEN_SOCKETS_MAX);
        return ST_LIMIT;
    }
    if (n == 0) /* machines without IPv6 have no "::" */
        return listen_on(l, "::", port, err) == ST_OK ? ST_OK : listen_on(l, "0.0.0.0", port, err);
    for (size_t i = 0; i < n; i++) {
        enum status st = listen_on(l, addresses[i], port, err);
        if (st != ST_OK)
            return st;
        port = l->port; /* a free port is chosen once, for all addresses */
    }
    return ST_OK;
}

void listening_peer(const struct sockaddr_storage *from, char *peer, size_t peer_bytes,
                          uint8_t source[16])
{
    char text[INET6_ADDRSTRLEN] = "?";
    unsigned port = 0;

    memset(source, 0, 16);
    if (from->ss_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)from;
        port = ntohs(in6->sin6_port);
        if (IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr)) {
            inet_ntop(AF_INET, &in6->sin6_addr.s6_addr[12], text, sizeof text);
            memcpy(source, &in6->sin6_addr, 16);
        } else {
            inet_ntop(AF_INET6, &in6->sin6_addr, text, sizeof text);
            memcpy(source, &in6->sin6_addr, 8); /* one customer has a /64 */
        }
    } else if (from->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)from;
        port = ntohs(in->sin_port);
        inet_ntop(AF_INET, &in->sin_addr, text, sizeof text);
        source[10] = source[11] = 0xff;
        memcpy(&source[12], &in->sin_addr, 4);
    }
    snprintf(peer, peer_bytes, "%s:%u", text, port);
}

void listening_tune(int sock)
{
    const int on = 1, idle = 60, interval = 20, count = 6;
    const unsigned user_timeout_ms =
        180000; /* a peer that is gone without a word holds a process no longer */

    setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(sock, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(sock, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(sock, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(sock, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
    setsockopt(sock, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_timeout_ms, sizeof user_timeout_ms);
}

bool listening_is_from(const char *peer, const char *const *patterns, size_t n)
{
    char address[PEER_BYTES];

    snprintf(address, sizeof address, "%s", peer);
    char *colon = strrchr(address, ':');
    if (colon != NULL)
        *colon = '\0';
    for (size_t i = 0; i < n; i++) {
        if (key_options_address_matches(patterns[i], address))
            return true;
    }
    return false;
}

bool listening_pattern_ok(const char *pattern)
{
    const char *slash = strchr(pattern, '/');
    char network[PEER_BYTES];
    uint8_t bits[16];

    if (pattern[0] == '\0' || strlen(pattern) >= sizeof network || strspn(pattern, "0123456789abcdefABCDEF.:*?/") != strlen(pattern))
        return false;
    snprintf(network, sizeof network, "%.*s", slash != NULL ? (int)(slash - pattern) : PEER_BYTES - 1, pattern);
    int family = strchr(network, ':') != NULL ? AF_INET6 : AF_INET;
    if (slash == NULL && strpbrk(pattern, "*?") != NULL)
        return true;
    if (inet_pton(family, network, bits) != 1)
        return false;
    return slash == NULL || key_options_address_matches(pattern, network); /* its own network is in it, if the bits are a number */
}
