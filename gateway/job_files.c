/* job_files.c - making, finding and removing the files of jobs.  See job_files.h for the layout. */
#include "job_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "beneath.h"
#include "log.h"

enum { LOCK_WAIT_MS = 5000 };

#ifndef CIFS_SUPER_MAGIC
#define CIFS_SUPER_MAGIC 0xff534d42
#endif

static const char *const file_names[] = { "input.jsonl", "output.jsonl", "errors.jsonl" };

static enum status failed(const char *what)
{
    log_error("files", "what=%s error=%d text=\"%s\"", what, errno, strerror(errno));
    return ST_SYSTEM;
}

/* A folder of the state folder itself, made if it is missing. */
static int open_own_folder(const struct job_files *f, const char *name)
{
    return beneath_folder(f->state_fd, &name, 1, true);
}

static enum status check_file_system(int fd, const char *path, struct error *err)
{
    static const struct {
        long magic;
        const char *name;
    } remote[] = { { 0x6969, "NFS" },      { (long)CIFS_SUPER_MAGIC, "CIFS" },
                   { 0xfe534d42, "SMB2" }, { 0x517b, "SMB" },
                   { 0x01021997, "9p" },   { 0x6b414653, "AFS" },
                   { 0x47504653, "GPFS" }, { 0x0bd00bd0, "Lustre" } };
    struct statfs s;

    if (fstatfs(fd, &s) != 0) {
        error_set(err, ERR_INTERNAL, "state-dir", "cannot look at the file system of %s: %s", path, strerror(errno));
        return ST_SYSTEM;
    }
    for (size_t i = 0; i < sizeof remote / sizeof remote[0]; i++) {
        if ((unsigned)s.f_type == (unsigned)remote[i].magic) {
            error_set(err, ERR_INVALID_PARAMETER, "state-dir",
                      "%s is on a network file system (%s), where neither locks nor syncs can be relied on; "
                      "use a local disk",
                      path, remote[i].name);
            return ST_UNSUPPORTED;
        }
    }
    return ST_OK;
}

static void empty_spool(int spool_fd)
{
    int copy = dup(spool_fd);
    DIR *d = copy >= 0 ? fdopendir(copy) : NULL;
    struct dirent *e;

    while (d != NULL && (e = readdir(d)) != NULL) {
        if (e->d_name[0] != '.')
            unlinkat(spool_fd, e->d_name, 0);
    }
    if (d != NULL)
        closedir(d);
    else if (copy >= 0)
        close(copy);
}

enum status job_files_check_place(const char *state_dir, struct error *err)
{
    int fd = open(state_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0) {
        error_set(err, ERR_INTERNAL, "state-dir", "cannot open %s: %s", state_dir, strerror(errno));
        return ST_SYSTEM;
    }
    enum status st = check_file_system(fd, state_dir, err);
    close(fd);
    return st;
}

/* Another jobs process may hold the folder for a moment yet: one whose listener was killed ends by itself. */
static bool lock_folder(int fd)
{
    const struct timespec pause = { .tv_nsec = 20000000 };

    for (int waited_ms = 0; waited_ms < LOCK_WAIT_MS; waited_ms += 20) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0)
            return true;
        if (errno != EWOULDBLOCK && errno != EINTR)
            return false;
        nanosleep(&pause, NULL);
    }
    return false;
}

enum status job_files_open(const char *state_dir, struct job_files *ret_files, struct error *err)
{
    struct job_files f = { .state_fd = -1, .spool_fd = -1, .files_fd = -1, .lock_fd = -1 };
    enum status st = ST_SYSTEM;

    f.state_fd = open(state_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (f.state_fd >= 0) {
        st = check_file_system(f.state_fd, state_dir, err);
        if (st != ST_OK)
            goto out;
        st = ST_SYSTEM;
        f.lock_fd = beneath_open(f.state_fd, "lock", O_RDWR | O_CREAT, 0600);
    }
    if (f.lock_fd >= 0 && !lock_folder(f.lock_fd)) {
        error_set(err, ERR_BUSY, "state-dir", "another gateway uses %s", state_dir);
        st = ST_FULL;
        goto out;
    }
    if (f.lock_fd >= 0) {
        f.spool_fd = open_own_folder(&f, "spool");
        f.files_fd = open_own_folder(&f, "files");
    }
    if (f.files_fd < 0 || f.spool_fd < 0) {
        error_set(err, ERR_INTERNAL, "state-dir", "%s: %s", state_dir, strerror(errno));
        goto out;
    }
    empty_spool(f.spool_fd);
    *ret_files = f;
    return ST_OK;
out:
    job_files_close(&f);
    return st;
}

void job_files_close(struct job_files *f)
{
    int *const fds[] = { &f->files_fd, &f->spool_fd, &f->lock_fd, &f->state_fd };

    for (size_t i = 0; i < 4; i++) {
        if (*fds[i] >= 0)
            close(*fds[i]);
        *fds[i] = -1;
    }
}

enum status job_files_free(const struct job_files *f, uint64_t *ret_bytes)
{
    struct statfs s;

    if (fstatfs(f->files_fd, &s) != 0)
        return failed("free");
    *ret_bytes = (uint64_t)s.f_bavail * (uint64_t)s.f_bsize;
    return ST_OK;
}

enum status job_files_spool(struct job_files *f, char name[32], int *ret_fd)
{
    snprintf(name, 32, "%llu.part", (unsigned long long)++f->next_spool);
    int fd = beneath_open(f->spool_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_APPEND, 0600);

    if (fd < 0)
        return failed("spool");
    *ret_fd = fd;
    return ST_OK;
}

enum status job_files_spool_sync(struct job_files *f, const char *name, uint64_t *ret_bytes)
{
    struct stat s;
    int fd = beneath_open(f->spool_fd, name, O_RDONLY, 0);
    bool ok = fd >= 0 && fstat(fd, &s) == 0 && s.st_size >= 0 &&
              fsync(fd) == 0; /* the writer has synced it already: this is quick */

    if (fd >= 0)
        close(fd);
    if (!ok)
        return failed("spool_sync");
    *ret_bytes = (uint64_t)s.st_size;
    return ST_OK;
}

void job_files_spool_remove(struct job_files *f, const char *name)
{
    unlinkat(f->spool_fd, name, 0);
}

/* The folder of a job: made with its parents, or only opened.  -1 with errno. */
static int job_folder(const struct job_files *f, const struct job_row *row, bool make)
{
    const char *const names[] = { row->user, "jobs", row->id };
    return beneath_folder(f->files_fd, names, 3, make);
}

enum status job_files_adopt(struct job_files *f, const struct job_row *row, const char *spool_name)
{
    int folder = job_folder(f, row, true);
    enum status st = ST_OK;

    if (folder < 0)
        return failed("job_folder");
    if (renameat(f->spool_fd, spool_name, folder, file_names[JOB_FILE_INPUT]) != 0 || fsync(folder) != 0)
        st = failed("adopt");
    close(folder);
    return st;
}

enum status job_files_job(const struct job_files *f, const struct job_row *row, enum job_file which,
                          bool to_write, int *ret_fd)
{
    bool make = which != JOB_FILE_INPUT;
    int folder = job_folder(f, row, false);

    if (folder < 0)
        return errno == ENOENT ? ST_NOT_FOUND : failed("job_folder");
    int fd = beneath_open(folder, file_names[which], to_write ? O_RDWR : O_RDONLY, 0);
    if (fd < 0 && errno == ENOENT && make) {
        fd = beneath_open(folder, file_names[which], O_RDWR | O_CREAT, 0600);
        if (fd >= 0 && fsync(folder) != 0) {
            close(fd);
            fd = -1;
        }
        if (fd >= 0 && !to_write) { /* the other side must not get a descriptor it could write through */
            close(fd);
            fd = beneath_open(folder, file_names[which], O_RDONLY, 0);
        }
    }
    int saved = errno;
    close(folder);
    errno = saved;
    if (fd < 0)
        return errno == ENOENT ? ST_NOT_FOUND : failed(file_names[which]);
    *ret_fd = fd;
    return ST_OK;
}

void job_files_drop_errors(const struct job_files *f, const struct job_row *row)
{
    int folder = job_folder(f, row, false);

    if (folder < 0)
        return;
    if (unlinkat(folder, file_names[JOB_FILE_ERRORS], 0) != 0 && errno != ENOENT)
        failed("drop_errors"); /* it is cut to its committed length when the job goes on */
    close(folder);
}

void job_files_remove(const struct job_files *f, const struct job_row *row)
{
    const char *const names[] = { row->user, "jobs" };
    int jobs = beneath_folder(f->files_fd, names, 2, false), folder = jobs >= 0 ? beneath_folder(jobs, (const char *const[]){ row->id }, 1, false) : -1;

    for (size_t i = 0; i < 3 && folder >= 0; i++)
        unlinkat(folder, file_names[i], 0);
    if (folder >= 0 && (unlinkat(jobs, row->id, AT_REMOVEDIR) != 0 || fsync(jobs) != 0))
        log_warn("files", "what=remove id=%s error=%d", row->id, errno);
    if (folder >= 0)
        close(folder);
    if (jobs >= 0)
        close(jobs);
}
