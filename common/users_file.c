/* users_file.c - the users file on disk.
 *
 * Reading adds to a list through the same functions as the command line does, so both refuse the same things.  Writing goes to a
 * temporary file beside it that takes the old one's place when it is safe on disk: a reader sees the old list or the new
 * one, also after a power cut.  The temporary file is read before that, as anybody will read it. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config_value.h"
#include "ini_file.h"
#include "users.h"

static const struct {
    struct config_key key;
    size_t at;
} limits[] = {
    { { .name = "max-running", .type = CONFIG_U64 }, offsetof(struct user, max_running) },
    { { .name = "max-queued", .type = CONFIG_U64 }, offsetof(struct user, max_queued) },
    { { .name = "max-job-lines", .type = CONFIG_U64 }, offsetof(struct user, max_job_lines) },
    { { .name = "max-job-bytes", .type = CONFIG_BYTES }, offsetof(struct user, max_job_bytes) },
    { { .name = "max-jobs", .type = CONFIG_U64 }, offsetof(struct user, max_jobs) },
    { { .name = "max-tokens-a-day", .type = CONFIG_U64 }, offsetof(struct user, max_tokens_a_day) },
    { { .name = "max-connections", .type = CONFIG_U64 }, offsetof(struct user, max_connections) },
    { { .name = "max-sessions", .type = CONFIG_U64 }, offsetof(struct user, max_sessions) },
};
enum { N_LIMITS = sizeof(limits) / sizeof(limits[0]) };

static const struct config_key uid_key = { .name = "uid", .type = CONFIG_U64, .min = 0, .max = 4294967294.0 };
static const struct config_key disabled_key = { .name = "disabled", .type = CONFIG_BOOL };

static enum status system_error(const char *what, const char *path, struct error *err)
{
    error_set(err, ERR_INTERNAL, path, "%s: %s", what, strerror(errno));
    return ST_SYSTEM;
}

static enum status out_of_memory(struct error *err)
{
    error_set(err, ERR_INTERNAL, NULL, "out of memory while the users file was handled");
    return ST_NOMEM;
}

/* --- read ------------------------------------------------------------------------------------ */

struct reader {
    struct users *users;
    char name[USER_NAME_BYTES]; /* of the section we are in */
    bool group;                 /* it is a group's */
    uint64_t seen;              /* which single keys of the section have been there: limits, then uid, disabled, group, cache-scope */
};

/* A key that may stand once in a section. */
static enum status once(struct reader *r, unsigned bit, const struct ini_entry *e, struct error *err)
{
    if ((r->seen >> bit & 1) != 0) {
        error_set(err, ERR_INVALID_PARAMETER, e->where, "%s is given twice", e->key);
        return ST_INVALID;
    }
    r->seen |= UINT64_C(1) << bit;
    return ST_OK;
}

static enum status set_uid(struct reader *r, struct user *user, const struct ini_entry *e, struct error *err)
{
    struct config_value value = { 0 };
    enum status st = once(r, N_LIMITS, e, err);

    if (st == ST_OK)
        st = config_value_parse(&uid_key, e->value, e->where, &value, err);
    if (st != ST_OK)
        return st;
    const struct user *other = users_by_uid(r->users, (uid_t)value.u64);
    if (other != NULL) {
        error_set(err, ERR_INVALID_PARAMETER, e->where, "uid %s belongs to %s", e->value, other->name);
        return ST_INVALID;
    }
    user->uid = (int64_t)value.u64;
    return ST_OK;
}

static enum status set_scope(struct reader *r, struct user *user, const struct ini_entry *e, struct error *err)
{
    user->pool_scope = strcmp(e->value, "pool") == 0;
    if (user->pool_scope || strcmp(e->value, "user") == 0)
        return once(r, N_LIMITS + 3, e, err);
    error_set(err, ERR_INVALID_PARAMETER, e->where, "cache-scope has to be user or pool");
    return ST_INVALID;
}

/* Groups stand before the users who are in them. */
static enum status set_group(struct reader *r, const struct ini_entry *e, struct error *err)
{
    enum status st = once(r, N_LIMITS + 2, e, err);

    if (st == ST_OK && users_group_by_name(r->users, e->value) == NULL) {
        error_set(err, ERR_INVALID_PARAMETER, e->where, "there is no [@%.40s] above this line", e->value);
        st = ST_INVALID;
    }
    return st == ST_OK ? users_set_group(r->users, r->name, e->value, err) : st;
}

const char *users_limit_name(size_t i)
{
    return i < N_LIMITS ? limits[i].key.name : NULL;
}

uint64_t *users_limit(struct user *u, const char *name, size_t n)
{
    for (size_t i = 0; i < N_LIMITS; i++)
        if (span_is(span_of(name, n), limits[i].key.name))
            return (uint64_t *)(void *)((uint8_t *)u + limits[i].at);
    return NULL;
}

bool users_limit_is_shared(const char *name, size_t n)
{
    struct span limit = span_of(name, n);

    return span_is(limit, "max-queued") || span_is(limit, "max-jobs") || span_is(limit, "max-tokens-a-day");
}

static enum status take_limit(struct reader *r, struct user *user, const struct ini_entry *e, struct error *err)
{
    struct config_value value = { 0 };
    enum status st;

    for (unsigned i = 0; i < N_LIMITS; i++) {
        if (strcmp(e->key, limits[i].key.name) != 0 || (r->group && !users_limit_is_shared(e->key, strlen(e->key))))
            continue;
        st = once(r, i, e, err);
        if (st == ST_OK)
            st = config_value_parse(&limits[i].key, e->value, e->where, &value, err);
        if (st == ST_OK)
            memcpy((uint8_t *)user + limits[i].at, &value.u64, sizeof(value.u64));
        return st;
    }
    error_set(err, ERR_INVALID_PARAMETER, e->where, "there is no key %s for a %s", e->key, r->group ? "group" : "user");
    return ST_INVALID;
}

static enum status take_value(struct reader *r, struct user *user, const struct ini_entry *e, struct error *err)
{
    struct config_value value = { 0 };
    enum status st;

    if (strcmp(e->key, "group") == 0)
        return set_group(r, e, err);

    if (strcmp(e->key, "uid") == 0)
        return set_uid(r, user, e, err);
    if (strcmp(e->key, "disabled") == 0) {
        st = once(r, N_LIMITS + 1, e, err);
        if (st == ST_OK)
            st = config_value_parse(&disabled_key, e->value, e->where, &value, err);
        if (st == ST_OK)
            user->disabled = value.u64 != 0;
        return st;
    }
    if (strcmp(e->key, "cache-scope") == 0)
        return set_scope(r, user, e, err);
    return take_limit(r, user, e, err);
}

/* "KEY [LABEL]" */
static enum status take_curve(struct reader *r, const struct ini_entry *e, struct error *err)
{
    size_t n = strcspn(e->value, " \t");
    const char *label = e->value + n + strspn(e->value + n, " \t");
    uint8_t key[CURVE_KEY_BYTES];

    if (curve_key_parse(span_of(e->value, n), key) != ST_OK) {
        error_set(err, ERR_INVALID_PARAMETER, e->where, "the key is neither 64 hexadecimal digits nor 40 of Z85");
        return ST_INVALID;
    }
    return users_add_curve(r->users, r->name, key, label, err);
}

static enum status take_entry(void *state, const struct ini_entry *e, struct error *err)
{
    struct reader *r = state;
    enum status st;

    if (e->key == NULL) {
        r->group = e->section[0] == '@';
        st = r->group ? users_add_group(r->users, e->section + 1, err) : users_add(r->users, e->section, err);
        snprintf(r->name, sizeof(r->name), "%.*s", USER_NAME_BYTES - 1, e->section + r->group);
        r->seen = 0;
    } else if (e->section[0] == '\0') {
        error_set(err, ERR_INVALID_PARAMETER, e->where, "%s stands before the first [user]", e->key);
        return ST_INVALID;
    } else if (r->group) {
        return take_limit(r, (struct user *)users_group_by_name(r->users, r->name), e, err);
    } else if (strcmp(e->key, "key") == 0) {
        st = users_add_key(r->users, r->name, e->value, err);
    } else if (strcmp(e->key, "curve") == 0) {
        st = take_curve(r, e, err);
    } else {
        return take_value(r, (struct user *)users_by_name(r->users, r->name), e, err);
    }
    if (st != ST_OK) /* the list's own errors know no line */
        snprintf(err->param, sizeof(err->param), "%s", e->where);
    return st;
}

static enum status check_file(FILE *file, const char *path, struct error *err)
{
    struct stat s;

    if (fstat(fileno(file), &s) < 0)
        return system_error("cannot be looked at", path, err);
    if (!S_ISREG(s.st_mode) || (s.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
        error_set(err, ERR_PERMISSION_DENIED, path, "the users file has mode %04o: it has to be a file that only its owner may write",
                  (unsigned)s.st_mode & 07777);
        return ST_INVALID;
    }
    return ST_OK;
}

enum status users_load(const char *path, struct users *ret_users, struct error *err)
{
    struct users users = { 0 };
    struct reader r = { .users = &users };
    enum status st;
    FILE *file = fopen(path, "re");

    if (file == NULL && errno == ENOENT) {
        *ret_users = users;
        return ST_OK;
    }
    if (file == NULL)
        return system_error("cannot be opened", path, err);
    st = check_file(file, path, err);
    if (st == ST_OK)
        st = ini_file_read(file, path, take_entry, &r, err);
    fclose(file);
    if (st == ST_UNSUPPORTED || st == ST_LIMIT)
        st = ST_INVALID;
    if (st != ST_OK) {
        users_deinit(&users);
        return st;
    }
    *ret_users = users;
    return ST_OK;
}

/* --- write ----------------------------------------------------------------------------------- */

static void write_limits(FILE *file, const struct user *user)
{
    for (unsigned i = 0; i < N_LIMITS; i++) {
        uint64_t value;
        memcpy(&value, (const uint8_t *)user + limits[i].at, sizeof(value));
        if (value != 0)
            fprintf(file, "%s = %llu\n", limits[i].key.name, (unsigned long long)value);
    }
}

static void write_user(FILE *file, const struct user *user)
{
    fprintf(file, "\n[%s]\n", user->name);
    if (user->uid >= 0)
        fprintf(file, "uid = %lld\n", (long long)user->uid);
    if (user->disabled)
        fprintf(file, "disabled = yes\n");
    if (user->pool_scope)
        fprintf(file, "cache-scope = pool\n");
    if (user->group[0] != '\0')
        fprintf(file, "group = %s\n", user->group);
    for (uint32_t i = 0; i < user->n_keys; i++) {
        const struct user_key *k = &user->keys[i];
        fprintf(file, "key = %s%s%s %s%s%s\n", k->options, k->options[0] != '\0' ? " " : "", k->type, k->blob,
                k->comment[0] != '\0' ? " " : "", k->comment);
    }
    for (uint32_t i = 0; i < user->n_curve; i++) {
        char text[CURVE_TEXT_BYTES];
        curve_key_format(user->curve[i].key, text);
        fprintf(file, "curve = %s%s%s\n", text, user->curve[i].label[0] != '\0' ? " " : "", user->curve[i].label);
    }
    write_limits(file, user);
}

/* Make the rename last: the folder's entry is on disk only after this. */
static enum status sync_folder(const char *path, struct error *err)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash == NULL ? strdup(".") : strndup(path, slash == path ? 1 : (size_t)(slash - path));
    enum status st = ST_OK;

    if (folder == NULL)
        return out_of_memory(err);
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fsync(fd) < 0)
        st = system_error("cannot be synced", folder, err);
    if (fd >= 0)
        close(fd);
    free(folder);
    return st;
}

/* Write all of it to fd, which is then closed. */
static enum status write_list(int fd, const char *path, const struct users *u, struct error *err)
{
    struct stat old;
    enum status st = ST_OK;
    FILE *file = fdopen(fd, "w");

    if (file == NULL) {
        st = system_error("cannot be written", path, err);
        close(fd);
        return st;
    }
    if (stat(path, &old) == 0 && fchown(fd, (uid_t)-1, old.st_gid) < 0)
        st = system_error("the group cannot be kept", path, err);
    fprintf(file, "# Users of this pool.  `weir user` writes this file as a whole: comments are not kept.\n");
    for (uint32_t i = 0; i < u->n_groups; i++) {
        fprintf(file, "\n[@%s]\n", u->groups[i].name);
        write_limits(file, &u->groups[i]);
    }
    for (uint32_t i = 0; i < u->n; i++)
        write_user(file, &u->list[i]);
    if (st == ST_OK && (fflush(file) != 0 || ferror(file) || fchmod(fd, 0640) < 0 || fsync(fd) < 0))
        st = system_error("cannot be written", path, err);
    if (fclose(file) != 0 && st == ST_OK)
        st = system_error("cannot be written", path, err);
    return st;
}

/* A file that is refused would lock everybody out, so none is put in the place of one that was good. */
static enum status check_written(const char *temporary, const char *path, struct error *err)
{
    struct users again = { 0 };
    struct error why;
    enum status st = users_load(temporary, &again, &why);

    if (st != ST_OK) {
        error_set(err, why.code, path, "not changed, for the new list could not be read again: %s", why.message);
        return st;
    }
    users_deinit(&again);
    return ST_OK;
}

enum status users_save(const char *path, const struct users *u, struct error *err)
{
    char *temporary = NULL;
    enum status st;

    if (asprintf(&temporary, "%s.XXXXXX", path) < 0)
        return out_of_memory(err);
    int fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0) {
        st = system_error("cannot be created", temporary, err);
        goto out;
    }
    st = write_list(fd, path, u, err);
    if (st == ST_OK)
        st = check_written(temporary, path, err);
    if (st == ST_OK && rename(temporary, path) < 0)
        st = system_error("cannot be replaced", path, err);
    if (st == ST_OK)
        st = sync_folder(path, err);
    else
        unlink(temporary);
out:
    free(temporary);
    return st;
}

enum status users_lock(const char *path, bool may_wait, int *ret_fd, struct error *err)
{
    char *name = NULL;
    enum status st = ST_OK;
    int rc = -1;

    if (asprintf(&name, "%s.lock", path) < 0)
        return out_of_memory(err);
    int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd >= 0)
        do
            rc = flock(fd, LOCK_EX | (may_wait ? 0 : LOCK_NB));
        while (rc < 0 && errno == EINTR);
    if (rc < 0 && fd >= 0 && errno == EWOULDBLOCK) {
        error_set(err, ERR_BUSY, "users", "the users file is being changed by somebody else; try again in a moment");
        st = ST_AGAIN;
    } else if (rc < 0) {
        st = system_error("cannot be locked", name, err);
    } else {
        *ret_fd = fd;
    }
    if (rc < 0 && fd >= 0)
        close(fd);
    free(name);
    return st;
}
