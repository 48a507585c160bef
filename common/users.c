/* users.c - the list of users in memory; users_file.c reads and writes it.
 *
 * A list sorted by name, searched by bisection for names and from end to end for uids and keys: a thousand users with a few keys
 * each are a few microseconds, and only logins and new connections ask. */
#include "users.h"

#include <assert.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "user_key.h"

bool user_name_ok(const char *name)
{
    size_t n = strlen(name);

    if (n == 0 || n >= USER_NAME_BYTES || name[0] < 'a' || name[0] > 'z')
        return false;
    return strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_-") == n;
}

/* "uid-1000": what a peer without a name is called, so nobody may take it as a name. */
static bool is_reserved(const char *name)
{
    return strncmp(name, "uid-", 4) == 0 && name[4] != '\0' && name[4 + strspn(name + 4, "0123456789")] == '\0';
}

/* Where name stands, or would have to. */
static uint32_t position_of(const struct users *u, const char *name, bool *ret_found)
{
    uint32_t low = 0, high = u->n;

    *ret_found = false;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        int order = strcmp(name, u->list[middle].name);

        if (order == 0) {
            *ret_found = true;
            return middle;
        }
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

const struct user *users_by_name(const struct users *u, const char *name)
{
    bool found = false;
    uint32_t at = position_of(u, name, &found);

    return found ? &u->list[at] : NULL;
}

const struct user *users_by_uid(const struct users *u, uid_t uid)
{
    for (uint32_t i = 0; i < u->n; i++)
        if (u->list[i].uid == (int64_t)uid)
            return &u->list[i];
    return NULL;
}

const struct user *users_by_key(const struct users *u, const char *type, const char *blob_base64,
                                const struct user_key **ret_key)
{
    for (uint32_t i = 0; i < u->n; i++)
        for (uint32_t k = 0; k < u->list[i].n_keys; k++) {
            const struct user_key *key = &u->list[i].keys[k];

            if (strcmp(key->blob, blob_base64) == 0 && strcmp(key->type, type) == 0) {
                if (ret_key != NULL)
                    *ret_key = key;
                return &u->list[i];
            }
        }
    return NULL;
}

enum status users_add(struct users *u, const char *name, struct error *err)
{
    bool found = false;

    if (!user_name_ok(name)) {
        error_set(err, ERR_INVALID_PARAMETER, "name", "the name has to be 1 to %d of a-z 0-9 _ -, and begin with a letter",
                  USER_NAME_BYTES - 1);
        return ST_INVALID;
    }
    if (is_reserved(name)) {
        error_set(err, ERR_INVALID_PARAMETER, "name", "%s is reserved for the account of that number", name);
        return ST_INVALID;
    }
    uint32_t at = position_of(u, name, &found);
    if (found) {
        error_set(err, ERR_INVALID_PARAMETER, "name", "there is a user %s already", name);
        return ST_INVALID;
    }
    if (u->n >= USERS_MAX) {
        error_set(err, ERR_LIMIT_EXCEEDED, "name", "there are %d users, which is the most", USERS_MAX);
        return ST_LIMIT;
    }
    struct user *grown = realloc(u->list, (u->n + 1) * sizeof(*grown));
    if (grown == NULL) {
        error_set(err, ERR_INTERNAL, NULL, "out of memory while a user was added");
        return ST_NOMEM;
    }
    u->list = grown;
    memmove(&grown[at + 1], &grown[at], (u->n - at) * sizeof(*grown));
    grown[at] = (struct user){ .uid = -1 };
    memcpy(grown[at].name, name, strlen(name) + 1);
    u->n++;
    return ST_OK;
}

static enum status no_such_user(const char *name, struct error *err)
{
    error_set(err, ERR_NOT_FOUND, "name", "there is no user %.40s", name);
    return ST_NOT_FOUND;
}

enum status users_add_key(struct users *u, const char *name, const char *authorized_keys_line, struct error *err)
{
    struct user_key key = { 0 };
    bool found = false;
    uint32_t at = position_of(u, name, &found);
    enum status st;

    if (!found)
        return no_such_user(name, err);
    st = user_key_parse(authorized_keys_line, "key", &key, err);
    if (st != ST_OK)
        return st;
    struct user *user = &u->list[at];
    const struct user *owner = users_by_key(u, key.type, key.blob, NULL);
    if (owner != NULL) {
        error_set(err, ERR_INVALID_PARAMETER, "key", owner == user ? "%s has this key already" : "the key belongs to %s",
                  owner->name);
        st = ST_INVALID;
        goto out;
    }
    if (user->n_keys >= USER_KEYS_MAX) {
        error_set(err, ERR_LIMIT_EXCEEDED, "key", "%s has %d keys, which is the most", name, USER_KEYS_MAX);
        st = ST_LIMIT;
        goto out;
    }
    struct user_key *grown = realloc(user->keys, (user->n_keys + 1) * sizeof(*grown));
    if (grown == NULL) {
        error_set(err, ERR_INTERNAL, NULL, "out of memory while a key was added");
        st = ST_NOMEM;
        goto out;
    }
    user->keys = grown;
    grown[user->n_keys++] = key;
    key = (struct user_key){ 0 };
out:
    user_key_deinit(&key);
    return st;
}

const struct user *users_by_curve(const struct users *u, const uint8_t key[CURVE_KEY_BYTES])
{
    for (uint32_t i = 0; i < u->n; i++)
        for (uint32_t k = 0; k < u->list[i].n_curve; k++)
            if (memcmp(u->list[i].curve[k].key, key, CURVE_KEY_BYTES) == 0)
                return &u->list[i];
    return NULL;
}

static bool label_ok(const char *label)
{
    return strlen(label) < CURVE_LABEL_BYTES &&
           label[strspn(label, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._@-")] == '\0';
}

enum status users_add_curve(struct users *u, const char *name, const uint8_t key[CURVE_KEY_BYTES], const char *label,
                            struct error *err)
{
    const struct user *owner = users_by_curve(u, key);
    bool found = false;
    uint32_t at = position_of(u, name, &found);

    if (!found)
        return no_such_user(name, err);
    struct user *user = &u->list[at];
    if (!label_ok(label)) {
        error_set(err, ERR_INVALID_PARAMETER, "label", "a label has at most %d characters a-z A-Z 0-9 . _ @ -", CURVE_LABEL_BYTES - 1);
        return ST_INVALID;
    }
    if (owner != NULL) {
        error_set(err, ERR_INVALID_PARAMETER, "curve", owner == user ? "%s has this key already" : "the key belongs to %s",
                  owner->name);
        return ST_INVALID;
    }
    if (user->n_curve >= USER_KEYS_MAX) {
        error_set(err, ERR_LIMIT_EXCEEDED, "curve", "%s has %d keys, which is the most", name, USER_KEYS_MAX);
        return ST_LIMIT;
    }
    struct user_curve *grown = realloc(user->curve, (user->n_curve + 1) * sizeof(*grown));
    if (grown == NULL) {
        error_set(err, ERR_INTERNAL, NULL, "out of memory while a key was added");
        return ST_NOMEM;
    }
    user->curve = grown;
    struct user_curve *added = &grown[user->n_curve++];
    *added = (struct user_curve){ .label = "" };
    memcpy(added->key, key, CURVE_KEY_BYTES);
    memcpy(added->label, label, strlen(label) + 1);
    return ST_OK;
}

enum status users_remove_curve(struct users *u, const char *name, const uint8_t key[CURVE_KEY_BYTES], struct error *err)
{
    bool found = false;
    uint32_t at = position_of(u, name, &found);

    if (!found)
        return no_such_user(name, err);
    struct user *user = &u->list[at];
    for (uint32_t k = 0; k < user->n_curve; k++)
        if (memcmp(user->curve[k].key, key, CURVE_KEY_BYTES) == 0) {
            memmove(&user->curve[k], &user->curve[k + 1], (user->n_curve - k - 1) * sizeof(*user->curve));
            user->n_curve--;
            return ST_OK;
        }
    error_set(err, ERR_NOT_FOUND, "curve", "%s has no such key", name);
    return ST_NOT_FOUND;
}

static void user_deinit(struct user *user)
{
    free(user->curve);
    for (uint32_t i = 0; i < user->n_keys; i++)
        user_key_deinit(&user->keys[i]);
    free(user->keys);
}

enum status users_remove(struct users *u, const char *name, struct error *err)
{
    bool found = false;
    uint32_t at = position_of(u, name, &found);

    if (!found)
        return no_such_user(name, err);
    user_deinit(&u->list[at]);
    memmove(&u->list[at], &u->list[at + 1], (u->n - at - 1) * sizeof(*u->list));
    u->n--;
    return ST_OK;
}

const struct user *users_group_by_name(const struct users *u, const char *name)
{
    for (uint32_t i = 0; i < u->n_groups; i++) {
        if (strcmp(u->groups[i].name, name) == 0)
            return &u->groups[i];
    }
    return NULL;
}

const struct user *users_group_of(const struct users *u, const struct user *user)
{
    return user != NULL && user->group[0] != '\0' ? users_group_by_name(u, user->group) : NULL;
}

static enum status no_such_group(const char *name, struct error *err)
{
    error_set(err, ERR_NOT_FOUND, "group", "there is no group %.40s", name);
    return ST_NOT_FOUND;
}

enum status users_add_group(struct users *u, const char *name, struct error *err)
{
    if (!user_name_ok(name)) {
        error_set(err, ERR_INVALID_PARAMETER, "group", "the name of a group has to be 1 to %d of a-z 0-9 _ -, and begin with a letter",
                  USER_NAME_BYTES - 1);
        return ST_INVALID;
    }
    if (users_group_by_name(u, name) != NULL) {
        error_set(err, ERR_INVALID_PARAMETER, "group", "there is a group %s already", name);
        return ST_INVALID;
    }
    if (u->n_groups >= GROUPS_MAX) {
        error_set(err, ERR_LIMIT_EXCEEDED, "group", "there are %d groups, which is the most", GROUPS_MAX);
        return ST_LIMIT;
    }
    struct user *grown = realloc(u->groups, (u->n_groups + 1) * sizeof(*grown));
    if (grown == NULL) {
        error_set(err, ERR_INTERNAL, NULL, "out of memory while a group was added");
        return ST_NOMEM;
    }
    u->groups = grown;
    grown[u->n_groups] = (struct user){ .uid = -1 };
    memcpy(grown[u->n_groups++].name, name, strlen(name) + 1);
    return ST_OK;
}

enum status users_remove_group(struct users *u, const char *name, struct error *err)
{
    const struct user *group = users_group_by_name(u, name);

    if (group == NULL)
        return no_such_group(name, err);
    for (uint32_t i = 0; i < u->n; i++) {
        if (strcmp(u->list[i].group, name) != 0)
            continue;
        error_set(err, ERR_INVALID_PARAMETER, "group", "%s is a member of %s", u->list[i].name, name);
        return ST_INVALID;
    }
    uint32_t at = (uint32_t)(group - u->groups);
    memmove(&u->groups[at], &u->groups[at + 1], (u->n_groups - at - 1) * sizeof(*u->groups));
    u->n_groups--;
    return ST_OK;
}

enum status users_set_group(struct users *u, const char *name, const char *group, struct error *err)
{
    bool found = false;
    uint32_t at = position_of(u, name, &found);

    if (!found)
        return no_such_user(name, err);
    if (group[0] != '\0' && users_group_by_name(u, group) == NULL)
        return no_such_group(group, err);
    memcpy(u->list[at].group, group, strlen(group) + 1);
    return ST_OK;
}

void users_deinit(struct users *u)
{
    free(u->groups);
    for (uint32_t i = 0; i < u->n; i++)
        user_deinit(&u->list[i]);
    free(u->list);
    *u = (struct users){ 0 };
}

void users_name_of_uid(const struct users *u, uid_t uid, char ret_name[USER_NAME_BYTES])
{
    const struct user *user = users_by_uid(u, uid);
    struct passwd account, *found = NULL;
    char text[4096];
    const char *name = NULL;

    if (user != NULL)
        name = user->name;
    else if (getpwuid_r(uid, &account, text, sizeof(text), &found) == 0 && found != NULL && user_name_ok(found->pw_name) &&
             !is_reserved(found->pw_name) && users_by_name(u, found->pw_name) == NULL)
        name = found->pw_name;
    if (name != NULL)
        memcpy(ret_name, name, strlen(name) + 1);
    else
        snprintf(ret_name, USER_NAME_BYTES, "uid-%u", (unsigned)uid);
}
