/* users.h - the users file: who an SSH key, a uid of this machine or a CURVE key belongs to, and what they may use.
 *
 *   # /var/lib/weir/users, mode 0640
 *   [@physics]                                   a group: its limits are for all its members together
 *   max-jobs = 50
 *
 *   [alice]
 *   uid = 1000
 *   key = ssh-ed25519 AAAA... alice@laptop       (repeats)
 *   curve = 64 hexadecimal digits laptop         (repeats: a public key for tcp, and what to call it)
 *   group = physics                              (a section [@physics] must be above)
 *   max-running = 64                             (limits; absent = the pool's default)
 *
 * Further keys: disabled = yes|no, cache-scope = user|pool (of requests that name none), max-queued, max-job-lines, max-job-bytes (512M), max-jobs, max-tokens-a-day,
 * max-connections (by tcp), max-sessions.
 *
 * Names: 1 to 31 of a-z 0-9 _ -, beginning with a letter; uid-N is reserved.  An ipc peer whose uid no user names is called by
 * the machine's account name, or "uid-N" where there is none, or it does not fit, or it is the name of somebody in this file
 * (whose uid is then another, or none: to make the account and the user one, write the uid into the file).
 *
 * The file is replaced as a whole (temporary file, fsync, rename, fsync of the folder), never edited in place; who changes
 * it holds users_lock() from load to save.  Comments are not kept.  Group- or world-writable files are refused. */
#ifndef USERS_H
#define USERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "curve_key.h"
#include "error.h"
#include "limits.h"
#include "span.h"
#include "status.h"

enum { USERS_MAX = 1024, GROUPS_MAX = 256, USER_KEYS_MAX = 64, USER_NAME_BYTES = 32, CURVE_LABEL_BYTES = 32 };
enum { USER_KEY_LINE_BYTES_MAX = 8 << 10 }; /* a key with its options and comment; a line of the users file may be longer */

struct user_key {
    char *type;      /* "ssh-ed25519" */
    char *blob;      /* base64, as in the file */
    char *comment;   /* "" when there is none */
    char *options;   /* authorized_keys options, "" when there are none: from=, expiry-time=, restrict */
};

struct user_curve {
    uint8_t key[CURVE_KEY_BYTES];      /* the public one */
    char label[CURVE_LABEL_BYTES];     /* as names are; "" when there is none */
};

struct user {
    char name[USER_NAME_BYTES];
    int64_t uid;                       /* -1: none */
    bool disabled;
    bool pool_scope;                   /* cache-scope = pool: requests that name no scope may meet the cached blocks of all who say so */
    char group[USER_NAME_BYTES];       /* "": none */
    struct user_key *keys;
    uint32_t n_keys;
    struct user_curve *curve;
    uint32_t n_curve;
    uint64_t max_running, max_queued;  /* 0: the pool's default */
    uint64_t max_job_lines, max_job_bytes, max_jobs, max_tokens_a_day; /* 0: the pool's default */
    uint64_t max_connections, max_sessions; /* likewise; connections by tcp */
};

struct users {
    struct user *list;                 /* sorted by name */
    uint32_t n;
    struct user *groups;               /* [n_groups]; of a group only name and limits mean anything, and of these max_queued, max_jobs and
                                        * max_tokens_a_day: what can be counted over several people */
    uint32_t n_groups;
};

/* ST_OK (a missing file is an empty list), ST_INVALID (*err names file and line), ST_NOMEM, ST_SYSTEM. */
MUST_CHECK enum status users_load(const char *path, struct users *ret_users, struct error *err);
/* Replaces the file.  A list that could not be loaded again (ST_INVALID) is not saved: the file stays as it is. */
MUST_CHECK enum status users_save(const char *path, const struct users *u, struct error *err);
void users_deinit(struct users *u);

/* Take the lock that goes with the file (path.lock, made when missing).  Gives the caller *ret_fd; closing it unlocks.  may_wait: until
 * whoever has it lets go, which may be a person at a terminal.
 * ST_OK; ST_AGAIN: somebody has it, and may_wait is false; ST_SYSTEM; *err set. */
MUST_CHECK enum status users_lock(const char *path, bool may_wait, int *ret_fd, struct error *err);

/* The limits by the names that they have in the file: the i-th, NULL behind the last; its field, NULL: there is none of that name; and can it
 * be a group's, that is counted over several people? */
const char *users_limit_name(size_t i);
uint64_t *users_limit(struct user *u, const char *name, size_t n);
bool users_limit_is_shared(const char *name, size_t n);

bool user_name_ok(const char *name);
const struct user *users_by_name(const struct users *u, const char *name);
const struct user *users_by_uid(const struct users *u, uid_t uid);
/* The user a key belongs to: type and base64 blob equal.  NULL when nobody's. */
const struct user *users_by_key(const struct users *u, const char *type, const char *blob_base64, const struct user_key **ret_key);

/* Add or remove; the list is changed in memory only.  A key is one authorized_keys line; one that belongs to another user
 * is refused by name, and so are options that are not implemented (command=, ...): from=, expiry-time=, restrict and no-* are
 * taken.  ST_OK, ST_INVALID, ST_NOT_FOUND, ST_LIMIT, ST_NOMEM with *err set. */
MUST_CHECK enum status users_add(struct users *u, const char *name, struct error *err);
MUST_CHECK enum status users_add_key(struct users *u, const char *name, const char *authorized_keys_line, struct error *err);
MUST_CHECK enum status users_remove(struct users *u, const char *name, struct error *err);

/* The user a CURVE key belongs to; NULL when nobody's.  Searches every user: for a few calls. */
const struct user *users_by_curve(const struct users *u, const uint8_t key[CURVE_KEY_BYTES]);
/* label is "" or 1 to 31 characters a-z A-Z 0-9 . _ @ -.  ST_OK, ST_INVALID (bad label, or somebody has the key), ST_NOT_FOUND (no such user, no such
 * key), ST_LIMIT, ST_NOMEM with *err set. */
MUST_CHECK enum status users_add_curve(struct users *u, const char *name, const uint8_t key[CURVE_KEY_BYTES], const char *label,
                                       struct error *err);
MUST_CHECK enum status users_remove_curve(struct users *u, const char *name, const uint8_t key[CURVE_KEY_BYTES], struct error *err);

/* Groups: names as of users.  One that has members is not removed.  users_set_group: "" is none; one that is not there is refused. */
const struct user *users_group_by_name(const struct users *u, const char *name);
const struct user *users_group_of(const struct users *u, const struct user *user); /* NULL: in none */
MUST_CHECK enum status users_add_group(struct users *u, const char *name, struct error *err);
MUST_CHECK enum status users_remove_group(struct users *u, const char *name, struct error *err);
MUST_CHECK enum status users_set_group(struct users *u, const char *name, const char *group, struct error *err);

/* Name of a local peer: the users file first, then the account's name, then "uid-N". */
void users_name_of_uid(const struct users *u, uid_t uid, char ret_name[USER_NAME_BYTES]);

#endif
