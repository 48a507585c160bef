/* identity.h - who is who: the users file, by uid and by CURVE key.
 *
 * The file is looked at once a second and on SIGHUP, and read again when it is another (inode, size or times); so a user or a key that was
 * added may come, and one that was removed is out, within a second.  A file that cannot be read changes nothing and is logged, once.
 *
 * Keys are kept in an order of their own, so that a question costs a few comparisons however many there are: anybody who
 * reaches the tcp port can ask. */
#ifndef IDENTITY_H
#define IDENTITY_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "users.h"

enum { UID_NAMES = 64, IDENTITY_LOOK_MS = 1000 };

struct uid_name {
    uid_t uid;
    char name[USER_NAME_BYTES]; /* empty: not known */
};

struct curve_name {
    uint8_t key[CURVE_KEY_BYTES];
    uint32_t user;              /* place in users.list */
};

struct identity {
    const char *path;           /* NULL: no users file */
    struct users users;
    struct curve_name *keys;    /* [n_keys], sorted */
    uint32_t n_keys;
    struct uid_name uid_names[UID_NAMES]; /* at uid mod UID_NAMES */
    struct stat seen;           /* of the file that was tried last */
    bool unread;                /* it could not be read, for no fault of its own, and that was said */
    uint64_t look_due_ns;
};

/* path is borrowed, NULL for none.  ST_OK; ST_INVALID, ST_NOMEM, ST_SYSTEM with *err. */
MUST_CHECK enum status identity_open(const char *path, struct identity *ret_identity, struct error *err);
void identity_close(struct identity *id);

/* Read the file again, if it is another or if must.  True: users and keys are new. */
bool identity_look(struct identity *id, uint64_t now_ns, bool must);

void identity_of_uid(struct identity *id, uid_t uid, char ret_name[USER_NAME_BYTES]);
/* The user of a key; NULL: nobody's. */
const struct user *identity_of_key(const struct identity *id, const uint8_t key[CURVE_KEY_BYTES]);

#endif
