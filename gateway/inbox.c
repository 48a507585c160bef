/* inbox.c - files of the inboxes.  See inbox.h for where they are and how one becomes a job. */
#include "inbox.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "log.h"

#define LOST_NOTE                                                                                                             \
    "The connection, or the gateway, ended before this file had become a job.\n"                                              \
    "It is not running.  If it is whole, rename it to its name without .incomplete; to go on with it, `put -a` the file again.\n"

static enum status failed(const char *what)
{
    log_error("inbox", "what=%s error=%d text=\"%s\"", what, errno, strerror(errno));
    return ST_SYSTEM;
}

/* Open one word beneath a folder: no links, nothing outside. */
static int open_beneath(int folder, const char *name, int flags, mode_t mode)
{
    struct open_how how = { .flags = (unsigned)(flags | O_CLOEXEC | O_NOFOLLOW),
                            .mode = flags & O_CREAT ? mode : 0,
                            .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV };
    long fd = syscall(SYS_openat2, folder, name, &how, sizeof how);

    if (fd < 0 && (errno == ENOSYS || errno == EPERM)) /* older kernels, strict containers: a word without a slash leads nowhere either */
        fd = openat(folder, name, flags | O_CLOEXEC | O_NOFOLLOW, mode);
    return (int)fd;
}

/* files/USER/WHAT, made if it is missing and make is set.  -1 with errno. */
static int open_folder(const struct job_files *f, const char *user, const char *what, bool make)
{
    const char *const names[] = { user, what };
    int at = f->files_fd;

    for (int i = 0; i < 2; i++) {
        if (make && mkdirat(at, names[i], 0700) == 0)
            (void)fsync(at);
        int next = open_beneath(at, names[i], O_RDONLY | O_DIRECTORY, 0), saved = errno;
        if (at != f->files_fd)
            close(at);
        errno = saved;
        if (next < 0)
            return -1;
        at = next;
    }
    return at;
}

static void taken_name(const char *stored, const char *token, char to[256])
{
    snprintf(to, 256, "%s-%s", token, stored);
}

/* --- looking ---------------------------------------------------------------------------------------- */

enum status inbox_look(const struct job_files *f, const char *user, const char *stored, struct inbox_file *ret_file)
{
    int folder = open_folder(f, user, "inbox", false);
    struct stat s;

    if (folder < 0)
        return errno == ENOENT ? ST_NOT_FOUND : failed("folder");
    int rc = fstatat(folder, stored, &s, AT_SYMLINK_NOFOLLOW), saved = errno;
    close(folder);
    errno = saved;
    if (rc != 0)
        return errno == ENOENT ? ST_NOT_FOUND : failed("look");
    if (!S_ISREG(s.st_mode))
        return ST_NOT_FOUND;
    *ret_file = (struct inbox_file){ .name = stored, .size = (uint64_t)s.st_size, .mtime_s = s.st_mtim.tv_sec };
    return ST_OK;
}

static enum status each_file(int folder, bool (*each)(const struct inbox_file *, void *), void *arg)
{
    DIR *d = fdopendir(folder);
    struct dirent *e;
    struct stat s;

    if (d == NULL) {
        close(folder);
        return failed("list");
    }
    while ((e = readdir(d)) != NULL) {
        if (!inbox_name_valid(span_str(e->d_name)) || fstatat(dirfd(d), e->d_name, &s, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(s.st_mode))
            continue;
        const struct inbox_file file = { .name = e->d_name, .size = (uint64_t)s.st_size, .mtime_s = s.st_mtim.tv_sec };
        if (!each(&file, arg))
            break;
    }
    closedir(d);
    return ST_OK;
}

enum status inbox_each(const struct job_files *f, const char *user, bool (*each)(const struct inbox_file *, void *), void *arg)
{
    int folder = open_folder(f, user, "inbox", false);

    if (folder < 0)
        return errno == ENOENT ? ST_OK : failed("folder");
    return each_file(folder, each, arg);
}

/* --- changing --------------------------------------------------------------------------------------- */

enum status inbox_open(const struct job_files *f, const char *user, const char *stored, unsigned how, int *ret_fd)
{
    int flags = how & INBOX_WRITE ? O_RDWR : O_RDONLY;
    int folder = open_folder(f, user, "inbox", how & INBOX_CREATE);
    struct stat s;

    if (folder < 0)
        return errno == ENOENT ? ST_NOT_FOUND : failed("folder");
    flags |= (how & INBOX_CREATE ? O_CREAT : 0) | (how & INBOX_TRUNCATE ? O_TRUNC : 0) | (how & INBOX_EXCLUSIVE ? O_EXCL : 0);
    int fd = open_beneath(folder, stored, flags | O_NONBLOCK, 0600), saved = errno;
    if (fd >= 0 && how & INBOX_CREATE && fsync(folder) != 0)
        log_warn("inbox", "what=sync error=%d", errno); /* its bytes are not there yet either */
    close(folder);
    errno = saved;
    if (fd < 0)
        return errno == ENOENT ? ST_NOT_FOUND : errno == EEXIST || errno == ELOOP || errno == EISDIR ? ST_INVALID : failed("open");
    if (fstat(fd, &s) != 0 || !S_ISREG(s.st_mode)) {
        close(fd);
        return ST_INVALID;
    }
    *ret_fd = fd;
    return ST_OK;
}

void inbox_note(const struct job_files *f, const char *user, const char *stored, const char *text)
{
    char name[SFTP_NAME_BYTES];
    int folder = open_folder(f, user, "inbox", false);

    if (folder < 0)
        return;
    inbox_note_name(stored, name);
    if (text[0] == '\0') {
        if (unlinkat(folder, name, 0) != 0 && errno != ENOENT)
            failed("note_remove");
    } else {
        int fd = open_beneath(folder, name, O_WRONLY | O_CREAT | O_TRUNC | O_NONBLOCK, 0600);
        if (fd < 0 || write(fd, text, strlen(text)) < 0)
            failed("note");
        if (fd >= 0)
            close(fd);
    }
    close(folder);
}

enum status inbox_remove(const struct job_files *f, const char *user, const char *stored)
{
    int folder = open_folder(f, user, "inbox", false);

    if (folder < 0)
        return errno == ENOENT ? ST_NOT_FOUND : failed("folder");
    int rc = unlinkat(folder, stored, 0), saved = errno;
    if (rc == 0)
        rc = fsync(folder);
    close(folder);
    errno = saved;
    if (rc != 0)
        return errno == ENOENT ? ST_NOT_FOUND : failed("remove");
    if (!inbox_name_is_note(stored))
        inbox_note(f, user, stored, "");
    return ST_OK;
}

enum status inbox_rename(const struct job_files *f, const char *user, const char *from, const char *to, bool replace)
{
    int folder = open_folder(f, user, "inbox", false);

    if (folder < 0)
        return errno == ENOENT ? ST_NOT_FOUND : failed("folder");
    int rc = renameat2(folder, from, folder, to, replace ? 0 : RENAME_NOREPLACE), saved = errno;
    if (rc == 0)
        rc = fsync(folder);
    close(folder);
    errno = saved;
    if (rc != 0)
        return errno == ENOENT ? ST_NOT_FOUND : errno == EEXIST ? ST_INVALID : failed("rename");
    inbox_note(f, user, from, "");
    return ST_OK;
}

/* --- becoming a job ---------------------------------------------------------------------------------- */

/* Move between the two folders of a user. */
static enum status move(const struct job_files *f, const char *user, const char *from_folder, const char *from, const char *to_folder,
                        const char *to)
{
    int a = open_folder(f, user, from_folder, true), b = a >= 0 ? open_folder(f, user, to_folder, true) : -1;
    enum status st = ST_OK;

    if (b < 0)
        st = failed("folder");
    else if (renameat(a, from, b, to) != 0)
        st = errno == ENOENT ? ST_NOT_FOUND : failed("move");
    else if (fsync(b) != 0 || fsync(a) != 0)
        st = failed("sync");
    if (b >= 0)
        close(b);
    if (a >= 0)
        close(a);
    return st;
}

enum status inbox_take(const struct job_files *f, const char *user, const char *stored, char token[INBOX_TOKEN_BYTES])
{
    uint8_t random[16];
    char name[256];

    if (getrandom(random, sizeof random, 0) != sizeof random)
        return failed("random");
    for (size_t i = 0; i < sizeof random; i++)
        snprintf(token + 2 * i, 3, "%02x", random[i]);
    taken_name(stored, token, name);
    return move(f, user, "inbox", stored, "submitting", name);
}

enum status inbox_back(const struct job_files *f, const char *user, const char *stored, const char *token)
{
    char name[256];

    taken_name(stored, token, name);
    return move(f, user, "submitting", name, "inbox", stored);
}

void inbox_drop(const struct job_files *f, const char *user, const char *stored, const char *token)
{
    int folder = open_folder(f, user, "submitting", false);
    char name[256];

    taken_name(stored, token, name);
    if (folder < 0 || unlinkat(folder, name, 0) != 0)
        failed("drop"); /* the next start finds the job that has its token, and drops it then */
    if (folder >= 0)
        close(folder);
    inbox_note(f, user, stored, "");
}

enum status inbox_link(const struct job_files *f, const char *user, const char *stored, const char *token, const char *spool)
{
    int folder = open_folder(f, user, "submitting", false);
    char name[256];
    enum status st = ST_OK;

    if (folder < 0)
        return failed("folder");
    taken_name(stored, token, name);
    if (linkat(folder, name, f->spool_fd, spool, 0) != 0)
        st = failed("link");
    close(folder);
    return st;
}

/* --- at the start ------------------------------------------------------------------------------------ */

struct recovery {
    const struct job_files *files;
    const char *user;
    bool (*known)(const char *, const char *, void *);
    void *arg;
};

static bool recover_taken(const struct inbox_file *file, void *arg)
{
    const struct recovery *r = arg;
    char token[INBOX_TOKEN_BYTES], quoted[SFTP_NAME_BYTES * 2];
    const char *stored = file->name + INBOX_TOKEN_BYTES;

    if (strlen(file->name) <= INBOX_TOKEN_BYTES || file->name[INBOX_TOKEN_BYTES - 1] != '-')
        return true; /* not ours */
    snprintf(token, sizeof token, "%.*s", INBOX_TOKEN_BYTES - 1, file->name);
    bool is_job = r->known(r->user, token, r->arg);
    if (is_job) {
        inbox_drop(r->files, r->user, stored, token);
    } else if (inbox_back(r->files, r->user, stored, token) == ST_OK) {
        inbox_note(r->files, r->user, stored, LOST_NOTE);
    }
    log_info("inbox", "user=%s action=recovered file=%s result=%s", r->user, log_quote(quoted, sizeof quoted, stored),
             is_job ? "is_a_job" : "back");
    return true;
}

static bool add_missing_note(const struct inbox_file *file, void *arg)
{
    const struct recovery *r = arg;
    char name[SFTP_NAME_BYTES];
    struct inbox_file note;

    if (!inbox_name_unfinished(file->name) || inbox_name_is_note(file->name))
        return true;
    inbox_note_name(file->name, name);
    if (inbox_look(r->files, r->user, name, &note) == ST_NOT_FOUND && strcmp(name + strlen(file->name), ".txt") == 0)
        inbox_note(r->files, r->user, file->name, LOST_NOTE);
    return true;
}

void inbox_recover(const struct job_files *f, bool (*known)(const char *user, const char *token, void *arg), void *arg)
{
    int copy = openat(f->files_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = copy >= 0 ? fdopendir(copy) : NULL;
    struct dirent *e;

    if (d == NULL) {
        failed("recover");
        if (copy >= 0)
            close(copy);
        return;
    }
    while ((e = readdir(d)) != NULL) {
        struct recovery r = { .files = f, .user = e->d_name, .known = known, .arg = arg };
        if (e->d_name[0] == '.' || strlen(e->d_name) >= USER_NAME_BYTES)
            continue;
        int folder = open_folder(f, e->d_name, "submitting", false);
        if (folder >= 0 && each_file(folder, recover_taken, &r) != ST_OK)
            log_error("inbox", "what=recover user=%s", e->d_name);
        if (inbox_each(f, e->d_name, add_missing_note, &r) != ST_OK)
            log_error("inbox", "what=recover user=%s", e->d_name);
    }
    closedir(d);
}
