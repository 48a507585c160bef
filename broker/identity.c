/* identity.c - see identity.h. */
#include "identity.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"

static int compare(const void *a, const void *b)
{
    return memcmp(((const struct curve_name *)a)->key, ((const struct curve_name *)b)->key, CURVE_KEY_BYTES);
}

static enum status sort_keys(const struct users *u, struct curve_name **ret_keys, uint32_t *ret_n)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < u->n; i++)
        n += u->list[i].n_curve;
    struct curve_name *keys = calloc(n > 0 ? n : 1, sizeof(*keys));
    if (keys == NULL)
        return ST_NOMEM;
    n = 0;
    for (uint32_t i = 0; i < u->n; i++)
        for (uint32_t k = 0; k < u->list[i].n_curve; k++) {
            memcpy(keys[n].key, u->list[i].curve[k].key, CURVE_KEY_BYTES);
            keys[n++].user = i;
        }
    qsort(keys, n, sizeof(*keys), compare);
    *ret_keys = keys;
    *ret_n = n;
    return ST_OK;
}

/* users and keys of the file, in place of those there were. */
static enum status load(struct identity *id, struct error *err)
{
    struct users fresh = {0};
    struct curve_name *keys = NULL;
    uint32_t n = 0;

    if (stat(id->path, &id->seen) != 0)
        id->seen = (struct stat){0};
    enum status st = users_load(id->path, &fresh, err);
    if (st == ST_OK && (st = sort_keys(&fresh, &keys, &n)) != ST_OK)
        error_set(err, ERR_INTERNAL, "users-file", "out of memory");
    if (st != ST_OK) {
        users_deinit(&fresh);
        return st;
    }
    users_deinit(&id->users);
    free(id->keys);
    id->users = fresh;
    id->keys = keys;
    id->n_keys = n;
    memset(id->uid_names, 0, sizeof(id->uid_names));
    return ST_OK;
}

enum status identity_open(const char *path, struct identity *ret_identity, struct error *err)
{
    struct identity id = {.path = path};
    enum status st = path != NULL ? load(&id, err) : ST_OK;

    if (st == ST_OK)
        *ret_identity = id;
    return st;
}

void identity_close(struct identity *id)
{
    users_deinit(&id->users);
    free(id->keys);
    *id = (struct identity){0};
}

static bool is_another(const struct identity *id)
{
    struct stat s = {0};
    const struct stat *old = &id->seen;

    if (stat(id->path, &s) != 0)
        s = (struct stat){0};
    return s.st_ino != old->st_ino || s.st_dev != old->st_dev || s.st_size != old->st_size ||
           s.st_mode != old->st_mode || s.st_mtim.tv_sec != old->st_mtim.tv_sec ||
           s.st_mtim.tv_nsec != old->st_mtim.tv_nsec;
}

bool identity_look(struct identity *id, uint64_t now_ns, bool must)
{
    struct error err;
    char reason[2 * ERROR_MESSAGE_BYTES];

    if (id->path == NULL || (!must && now_ns < id->look_due_ns))
        return false;
    id->look_due_ns = now_ns + IDENTITY_LOOK_MS * UINT64_C(1000000);
    if (!must && !is_another(id))
        return false;
    const bool told = id->unread && !must;
    enum status st = load(id, &err);
    id->unread = st != ST_OK && st != ST_INVALID;
    if (id->unread)
        id->seen = (struct stat){0}; /* not the file's fault: the next look reads it again, and says nothing if it is no better */
    if (st != ST_OK) {
        if (!id->unread || !told)
            log_error("users_not_reloaded", "reason=%s", log_quote(reason, sizeof(reason), err.message));
        return false;
    }
    log_info("users_reloaded", "n=%" PRIu32 " curve_keys=%" PRIu32, id->users.n, id->n_keys);
    return true;
}

/* Asking the system for an account's name may read files: remembered until the users file is read again. */
void identity_of_uid(struct identity *id, uid_t uid, char ret_name[USER_NAME_BYTES])
{
    struct uid_name *known = &id->uid_names[uid % UID_NAMES];

    if (known->name[0] == '\0' || known->uid != uid) {
        users_name_of_uid(&id->users, uid, known->name);
        known->uid = uid;
    }
    memcpy(ret_name, known->name, USER_NAME_BYTES);
}

const struct user *identity_of_key(const struct identity *id, const uint8_t key[CURVE_KEY_BYTES])
{
    struct curve_name wanted = {.user = 0};

    memcpy(wanted.key, key, CURVE_KEY_BYTES);
    const struct curve_name *found =
        id->n_keys > 0 ? bsearch(&wanted, id->keys, id->n_keys, sizeof(wanted), compare) : NULL;
    return found != NULL ? &id->users.list[found->user] : NULL;
}
