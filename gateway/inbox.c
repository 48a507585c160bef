/* inbox.c - files of the inboxes.  See inbox.h for where they are and how one becomes a job. */
#include "inbox.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "beneath.h"
#include "log.h"

enum { OTHER_NAMES_MAX = 99 };

#define LOST_NOTE                                                                                                             \
    "The connection, or the gateway, ended before this file had become a job.\n"                                              \
    "It is not running.  If it is whole, rename it to its name without .incomplete; to go on with it, `put -a` the file again.\n"

static enum status failed(const char *what)
{
    log_error("inbox", "what=%s error=%d text=\"%s\"", what, errno, strerror(errno));
    return ST_SYSTEM;
}

/* files/USER/WHAT, made if it is missing and make is set.  -1 with errno. */
static int open_folder(const struct job_files *f, const char *user, const char *what, bool make)
{
    const char *const names[] = { user, what };
    return beneath_folder(f->files_fd, names, 2, make);
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

/* Takes the folder.  skip: so many bytes come before the name that a user knows. */
static enum status each_file(int folder, size_t skip, bool (*each)(const struct inbox_file *, void *), void *arg)
{
    DIR *d = fdopendir(folder);
    struct dirent *e;
    struct stat s;

    if (d == NULL) {
        close(folder);
        return failed("list");
    }
    while ((e = readdir(d)) != NULL) {
        if (strlen(e->d_name) <= skip || !inbox_name_valid(span_str(e->d_name + skip)) ||
            fstatat(dirfd(d), e->d_name, &s, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(s.st_mode))
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
    return each_file(folder, 0, each, arg);
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
    int fd = beneath_open(folder, stored, flags | O_NONBLOCK, 0600), saved = errno;
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
        int fd = beneath_open(folder, name, O_WRONLY | O_CREAT | O_TRUNC | O_NONBLOCK, 0600);
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
    enum status st = ST_OK;
    if (unlinkat(folder, stored, 0) != 0)
        st = errno == ENOENT ? ST_NOT_FOUND : failed("remove");
    else if (fsync(folder) != 0)
        st = failed("sync");
    close(folder);
    if (st == ST_OK && !inbox_name_is_note(stored))
        inbox_note(f, user, stored, "");
    return st;
}

/* As renameat(), but another file is never replaced: EEXIST.  Where a rename knows no flags (ZFS before 2.2, some of FUSE) the file has two
 * names for a moment. */
static int rename_to_free(int a, const char *from, int b, const char *to)
{
    if (renameat2(a, from, b, to, RENAME_NOREPLACE) == 0)
        return 0;
    if (errno != EINVAL)
        return -1;
    return linkat(a, from, b, to, 0) == 0 ? unlinkat(a, from, 0) : -1;
}

enum status inbox_rename(const struct job_files *f, const char *user, const char *from, const char *to, bool replace)
{
    int folder = open_folder(f, user, "inbox", false);

    if (folder < 0)
        return errno == ENOENT ? ST_NOT_FOUND : failed("folder");
    enum status st = ST_OK;
    if ((replace ? renameat(folder, from, folder, to) : rename_to_free(folder, from, folder, to)) != 0)
        st = errno == ENOENT ? ST_NOT_FOUND : errno == EEXIST ? ST_INVALID : failed("rename");
    else if (fsync(folder) != 0)
        st = failed("sync");
    close(folder);
    if (st != ST_OK)
        return st;
    inbox_note(f, user, from, "");
    inbox_note(f, user, to, ""); /* it was of the file that was replaced */
    return ST_OK;
}

/* --- becoming a job ---------------------------------------------------------------------------------- */

/* Move between the two folders of a user; nothing is replaced: ST_INVALID if the name is taken.  only: nothing else can have that name. */
static enum status move(const struct job_files *f, const char *user, const char *from_folder, const char *from, const char *to_folder,
                        const char *to, bool only)
{
    int a = open_folder(f, user, from_folder, true), b = a >= 0 ? open_folder(f, user, to_folder, true) : -1;
    enum status st = ST_OK;

    if (b < 0)
        st = failed("folder");
    else if ((only ? renameat(a, from, b, to) : rename_to_free(a, from, b, to)) != 0)
        st = errno == ENOENT ? ST_NOT_FOUND : errno == EEXIST ? ST_INVALID : failed("move");
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
    return move(f, user, "inbox", stored, "submitting", name, true);
}

enum status inbox_back(const struct job_files *f, const char *user, const char *stored, const char *token, char ret_stored[SFTP_NAME_BYTES])
{
    char name[256], back[SFTP_NAME_BYTES];
    enum status st = ST_INVALID;

    taken_name(stored, token, name);
    for (unsigned n = 0; n <= OTHER_NAMES_MAX && st == ST_INVALID; n++) {
        if (n == 0)
            snprintf(back, sizeof back, "%s", stored);
        else
            inbox_other_name(stored, n, back);
        st = move(f, user, "submitting", name, "inbox", back, false);
    }
    if (st == ST_OK)
        memcpy(ret_stored, back, sizeof back);
    return st;
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
    enum status (*known)(const char *, const char *, void *);
    void *arg;
    enum status worst;              /* of what could not be done: it is tried again */
};

void inbox_note_return(const struct job_files *f, const char *user, const char *stored, const char *back, const char *why)
{
    char text[2048];

    if (strcmp(stored, back) == 0)
        snprintf(text, sizeof text, "%s", why);
    else
        snprintf(text, sizeof text, "%sIt was %s; another file has that name by now.\n", why, stored);
    inbox_note(f, user, back, text);
}

static bool recover_taken(const struct inbox_file *file, void *arg)
{
    struct recovery *r = arg;
    char token[INBOX_TOKEN_BYTES], quoted[SFTP_NAME_BYTES * 2], back[SFTP_NAME_BYTES];
    const char *stored = file->name + INBOX_TOKEN_BYTES, *result = "is_a_job";

    if (file->name[INBOX_TOKEN_BYTES - 1] != '-')
        return true; /* not ours */
    snprintf(token, sizeof token, "%.*s", INBOX_TOKEN_BYTES - 1, file->name);
    enum status st = r->known(r->user, token, r->arg);
    if (st == ST_AGAIN)
        return true; /* a job is being made of it at this moment */
    if (st == ST_OK) {
        inbox_drop(r->files, r->user, stored, token);
    } else if (st != ST_NOT_FOUND) {
        result = "later"; /* going back, it could become a second job */
        r->worst = st;
    } else {
        st = inbox_back(r->files, r->user, stored, token, back);
        result = st == ST_OK ? "back" : "later";
        if (st == ST_OK)
            inbox_note_return(r->files, r->user, stored, back, LOST_NOTE);
        else
            r->worst = st;
    }
    log_info("inbox", "user=%s action=recovered file=%s result=%s", r->user, log_quote(quoted, sizeof quoted, stored), result);
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

/* Every user's folder of files. */
static enum status each_user(const struct job_files *f, void (*each)(struct recovery *), struct recovery *r)
{
    int copy = beneath_open(f->files_fd, ".", O_RDONLY | O_DIRECTORY, 0);
    DIR *d = copy >= 0 ? fdopendir(copy) : NULL;
    struct dirent *e;

    if (d == NULL) {
        if (copy >= 0)
            close(copy);
        return failed("recover");
    }
    while ((e = readdir(d)) != NULL) {
        if (e->d_name[0] == '.' || strlen(e->d_name) >= USER_NAME_BYTES)
            continue;
        r->user = e->d_name;
        each(r);
    }
    closedir(d);
    return r->worst;
}

static void recover_user(struct recovery *r)
{
    int folder = open_folder(r->files, r->user, "submitting", false);

    if (folder < 0) {
        if (errno != ENOENT && errno != ENOTDIR) /* what is no folder is no user's */
            r->worst = failed("recover");
    } else if (each_file(folder, INBOX_TOKEN_BYTES, recover_taken, r) != ST_OK) {
        r->worst = ST_SYSTEM;
    }
}

static void add_missing_notes(struct recovery *r)
{
    if (inbox_each(r->files, r->user, add_missing_note, r) != ST_OK)
        r->worst = ST_SYSTEM;
}

enum status inbox_recover(const struct job_files *f, enum status (*known)(const char *user, const char *token, void *arg), void *arg)
{
    return each_user(f, recover_user, &(struct recovery){ .files = f, .known = known, .arg = arg });
}

void inbox_add_notes(const struct job_files *f)
{
    if (each_user(f, add_missing_notes, &(struct recovery){ .files = f }) != ST_OK)
        log_error("inbox", "what=notes");
}
