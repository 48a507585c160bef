/* user_account.c - see user_command.h. */
#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "user_command.h"

enum { FILE_LINE_BYTES_MAX = 16 << 10, FILE_LINES_MAX = 4096 };

/* Open it with the rights of the account: where we are root, root for no longer than it takes to become that. */
static FILE *open_as(uid_t uid, gid_t gid, const char *path)
{
    uid_t was = geteuid();
    gid_t was_in = getegid();
    bool change = getuid() == 0;

    if (change && ((was != 0 && seteuid(0) != 0) || setegid(gid) != 0 || seteuid(uid) != 0))
        abort();
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    int problem = errno;
    if (change && (seteuid(0) != 0 || setegid(was_in) != 0 || (was != 0 && seteuid(was) != 0)))
        abort();
    FILE *f = fd >= 0 ? fdopen(fd, "r") : NULL;
    errno = problem;
    return f;
}

static enum status set_uid(struct users *u, const char *name, uid_t uid, struct error *err)
{
    const struct user *other = users_by_uid(u, uid);
    struct user *user = (struct user *)(uintptr_t)users_by_name(u, name);

    if (other != NULL && other != user) {
        error_set(err, ERR_INVALID_PARAMETER, "name", "uid %u of the account %s is that of the user %s", (unsigned)uid, name, other->name);
        return ST_INVALID;
    }
    if (user != NULL)
        user->uid = uid;
    return ST_OK;
}

/* Every usable line; the others are named by their number: what stands in them is not repeated. */
static enum status add_lines(struct users *u, const char *name, FILE *in, const char *path, unsigned *ret_n)
{
    char line[FILE_LINE_BYTES_MAX];
    struct error err;
    unsigned n = 0;

    for (unsigned number = 1; number <= FILE_LINES_MAX && fgets(line, sizeof line, in) != NULL; number++) {
        size_t bytes = strcspn(line, "\r\n");
        bool whole = line[bytes] != '\0' || feof(in);
        line[bytes] = '\0';
        const char *text = line + strspn(line, " \t");
        if (text[0] == '\0' || text[0] == '#')
            continue;
        enum status st = whole ? users_add_key(u, name, text, &err) : ST_LIMIT;
        n += st == ST_OK;
        if (!whole) {
            fprintf(stderr, "weir user: %s:%u: the line is over %d bytes; the rest of the file is left out\n", path, number, FILE_LINE_BYTES_MAX - 2);
            break;
        }
        if (st == ST_NOMEM)
            return st;
        if (st != ST_OK)
            fprintf(stderr, "weir user: %s:%u: left out: no key that can be used here, or one that is in use\n", path, number);
    }
    *ret_n = n;
    return ST_OK;
}

enum status user_add_account(struct users *u, const char *name, unsigned *n_keys, struct error *err)
{
    struct passwd account, *found = NULL;
    char text[8192], path[4096];
    unsigned n = 0;

    if (getpwnam_r(name, &account, text, sizeof text, &found) != 0 || found == NULL) {
        error_set(err, ERR_NOT_FOUND, "name", "there is no account %.40s on this machine", name);
        return ST_NOT_FOUND;
    }
    if ((size_t)snprintf(path, sizeof path, "%s/.ssh/authorized_keys", found->pw_dir) >= sizeof path) {
        error_set(err, ERR_LIMIT_EXCEEDED, "name", "the home folder of %.40s has too long a name", name);
        return ST_LIMIT;
    }
    enum status st = set_uid(u, name, found->pw_uid, err);
    if (st != ST_OK)
        return st;
    FILE *in = open_as(found->pw_uid, found->pw_gid, path);
    if (in == NULL) {
        error_set(err, ERR_NOT_FOUND, "name", "cannot open %s: %s", path, strerror(errno));
        return ST_NOT_FOUND;
    }
    st = add_lines(u, name, in, path, &n);
    fclose(in);
    if (st == ST_OK && n == 0) {
        error_set(err, ERR_INVALID_PARAMETER, "name", "%s has no key that can be used here", path);
        st = ST_INVALID;
    } else if (st != ST_OK) {
        error_set(err, ERR_INTERNAL, NULL, "out of memory");
    }
    *n_keys += n;
    return st;
}
