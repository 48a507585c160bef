/* door.c - packets between the processes of the gateway: header, body, at most one descriptor.
 *
 * SOCK_SEQPACKET keeps message boundaries, so there is no reassembly to get wrong, and the kernel refuses a packet that does not
 * fit.  Every number that comes in is compared with what is really there before it is used. */
#include "door.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum status door_send(int sock, const struct door_message *m)
{
    struct door_header header = {
        .type = (uint16_t)m->type, .op = m->op, .serial = m->serial, .body_bytes = (uint32_t)m->body.n
    };
    struct iovec iov[2] = { { &header, sizeof header }, { (void *)(uintptr_t)m->body.at, m->body.n } };
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = { 0 };
    struct msghdr msg = { .msg_iov = iov, .msg_iovlen = 2 };

    assert(sizeof header + m->body.n <= DOOR_PACKET_BYTES);
    if (m->fd >= 0) {
        msg.msg_control = control.bytes;
        msg.msg_controllen = sizeof control.bytes;
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &m->fd, sizeof(int));
    }
    for (;;) {
        ssize_t n = sendmsg(sock, &msg, MSG_NOSIGNAL);
        if (n >= 0)
            return ST_OK;
        if (errno == EINTR)
            continue;
        if (errno == EAGAIN || errno == ENOBUFS)
            return ST_AGAIN;
        if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN)
            return ST_GONE;
        return ST_SYSTEM;
    }
}

/* Take the descriptors out of a control message: the first is kept, any other closed. */
static int take_descriptor(struct msghdr *msg)
{
    int kept = -1;

    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c != NULL; c = CMSG_NXTHDR(msg, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
            if (kept < 0)
                kept = fd;
            else
                close(fd);
        }
    }
    return kept;
}

enum status door_receive(int sock, uint8_t *buffer, struct door_message *ret_message)
{
    struct iovec iov = { buffer, DOOR_PACKET_BYTES };
    union {
        char bytes[CMSG_SPACE(4 * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct msghdr msg = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes
    };
    struct door_header header;
    ssize_t n;

    do
        n = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return errno == EAGAIN ? ST_AGAIN : errno == ECONNRESET ? ST_GONE : ST_SYSTEM;
    if (n == 0)
        return ST_GONE;
    int fd = take_descriptor(&msg);
    if (msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC) || (size_t)n < sizeof header)
        goto corrupt;
    memcpy(&header, buffer, sizeof header);
    if (header.body_bytes != (size_t)n - sizeof header)
        goto corrupt;
    *ret_message = (struct door_message){ .type = header.type,
                                          .op = header.op,
                                          .serial = header.serial,
                                          .fd = fd,
                                          .body = span_of(buffer + sizeof header, header.body_bytes) };
    return ST_OK;

corrupt:
    if (fd >= 0)
        close(fd);
    return ST_CORRUPT;
}

/* --- bodies ---------------------------------------------------------------------------------- */

void door_put_u32(struct byte_writer *w, uint32_t v)
{
    byte_writer_put(w, &v, sizeof v);
}

void door_put_u64(struct byte_writer *w, uint64_t v)
{
    byte_writer_put(w, &v, sizeof v);
}

void door_put_str(struct byte_writer *w, struct span s)
{
    if (s.n >= DOOR_TEXT_IN_FD) {
        w->failed = true;
        return;
    }
    door_put_u32(w, (uint32_t)s.n);
    byte_writer_put(w, s.at, s.n);
}

static void get(struct door_reader *r, void *to, size_t n)
{
    if (r->failed || n > r->left.n) {
        r->failed = true;
        memset(to, 0, n);
        return;
    }
    memcpy(to, r->left.at, n);
    r->left = span_of(r->left.at + n, r->left.n - n);
}

uint32_t door_get_u32(struct door_reader *r)
{
    uint32_t v;
    get(r, &v, sizeof v);
    return v;
}

uint64_t door_get_u64(struct door_reader *r)
{
    uint64_t v;
    get(r, &v, sizeof v);
    return v;
}

struct span door_get_str(struct door_reader *r)
{
    uint32_t n = door_get_u32(r);

    if (r->failed || n > r->left.n) {
        r->failed = true;
        return span_of("", 0);
    }
    struct span s = span_of(r->left.at, n);
    r->left = span_of(r->left.at + n, r->left.n - n);
    return s;
}

bool door_read_all(const struct door_reader *r)
{
    return !r->failed && r->left.n == 0;
}

void door_put_submit(struct byte_writer *w, const struct door_submit *s)
{
    door_put_str(w, s->name);
    door_put_str(w, s->key);
    door_put_str(w, s->model);
    door_put_u32(w, s->max_tokens);
    door_put_u32(w, s->priority);
    door_put_u64(w, s->deadline_ms);
    door_put_u32(w, s->try_lines);
    door_put_str(w, s->reuse);
    door_put_u32(w, s->check);
}

void door_get_submit(struct door_reader *r, struct door_submit *ret_submit)
{
    ret_submit->name = door_get_str(r);
    ret_submit->key = door_get_str(r);
    ret_submit->model = door_get_str(r);
    ret_submit->max_tokens = door_get_u32(r);
    ret_submit->priority = door_get_u32(r);
    ret_submit->deadline_ms = door_get_u64(r);
    ret_submit->try_lines = door_get_u32(r);
    ret_submit->reuse = door_get_str(r);
    ret_submit->check = door_get_u32(r) != 0;
}

void door_put_error(struct byte_writer *w, const struct error *e)
{
    door_put_u32(w, (uint32_t)e->code);
    door_put_str(w, span_str(e->param));
    door_put_str(w, span_str(e->message));
}

void door_get_error(struct door_reader *r, struct error *ret_error)
{
    uint32_t code = door_get_u32(r);
    struct span param = door_get_str(r), message = door_get_str(r);
    char name[ERROR_PARAM_BYTES];

    if (code >= ERR_COUNT || param.n >= sizeof name)
        r->failed = true;
    if (r->failed) {
        error_set(ret_error, ERR_INTERNAL, NULL, "the gateway's processes do not understand each other");
        return;
    }
    memcpy(name, param.at, param.n);
    name[param.n] = '\0';
    error_set(ret_error, (enum error_code)code, name, "%.*s", (int)message.n, (const char *)message.at);
}

/* --- texts of any length ----------------------------------------------------------------------- */

enum status door_memfd(struct span bytes, int *ret_fd)
{
    int fd = memfd_create("weir-text", MFD_CLOEXEC);

    if (fd < 0)
        return ST_SYSTEM;
    for (size_t done = 0; done < bytes.n;) {
        ssize_t n = write(fd, bytes.at + done, bytes.n - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            close(fd);
            return ST_SYSTEM;
        }
        done += (size_t)n;
    }
    *ret_fd = fd;
    return ST_OK;
}

enum status door_memfd_read(int fd, size_t bytes_max, char **ret_text, size_t *ret_bytes)
{
    struct stat s;

    if (fd < 0 || fstat(fd, &s) != 0 || !S_ISREG(s.st_mode) || s.st_size < 0)
        return ST_CORRUPT;
    if ((uint64_t)s.st_size > bytes_max)
        return ST_LIMIT;
    size_t size = (size_t)s.st_size, done = 0;
    char *text = malloc(size + 1);
    if (text == NULL)
        return ST_NOMEM;
    while (done < size) {
        ssize_t n = pread(fd, text + done, size - done, (off_t)done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            free(text);
            return n == 0 ? ST_CORRUPT : ST_SYSTEM;
        }
        done += (size_t)n;
    }
    text[size] = '\0';
    *ret_text = text;
    *ret_bytes = size;
    return ST_OK;
}

enum status door_put_text(struct byte_writer *w, struct span text, int *ret_fd)
{
    if (text.n > DOOR_TEXT_BYTES_MAX)
        return ST_LIMIT;
    if (text.n <= DOOR_INLINE_BYTES) {
        door_put_str(w, text);
        *ret_fd = -1;
        return ST_OK;
    }
    int fd;
    enum status st = door_memfd(text, &fd);
    if (st != ST_OK)
        return st;
    door_put_u32(w, DOOR_TEXT_IN_FD);
    *ret_fd = fd;
    return ST_OK;
}

enum status door_get_text(struct door_reader *r, int fd, char **ret_text, size_t *ret_bytes)
{
    struct door_reader peek = *r;

    if (door_get_u32(&peek) == DOOR_TEXT_IN_FD && !peek.failed) {
        *r = peek;
        return door_memfd_read(fd, DOOR_TEXT_BYTES_MAX, ret_text, ret_bytes);
    }
    struct span s = door_get_str(r);
    if (r->failed)
        return ST_CORRUPT;
    char *text = malloc(s.n + 1);
    if (text == NULL)
        return ST_NOMEM;
    memcpy(text, s.at, s.n);
    text[s.n] = '\0';
    *ret_text = text;
    *ret_bytes = s.n;
    return ST_OK;
}
