/* curve_pair.c - the file of a key pair.
 *
 * It is made with O_EXCL: a key that is in use is never overwritten.  On reading, mode and owner are looked at on the open
 * descriptor, and the public key is computed again from the secret one: a file whose halves do not fit would only show
 * as handshakes that fail for no visible reason. */
#include "curve_key.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <zmq.h>

#include "ini_file.h"

enum { HAS_NAME = 1, HAS_PUBLIC = 2, HAS_SECRET = 4, HAS_SERVER = 8, Z85_TEXT_BYTES = 41 };

struct reader {
    struct curve_pair pair;
    unsigned seen;
};

static enum status system_error(const char *what, const char *path, struct error *err)
{
    error_set(err, errno == EACCES || errno == EPERM ? ERR_PERMISSION_DENIED : ERR_INTERNAL, "key",
              "%s %.200s: %s", what, path, strerror(errno));
    return ST_SYSTEM;
}

static enum status take_entry(void *state, const struct ini_entry *e, struct error *err)
{
    struct reader *r = state;
    static const struct {
        const char *name;
        unsigned bit;
    } names[] = {{"name", HAS_NAME},
                 {"public-key", HAS_PUBLIC},
                 {"secret-key", HAS_SECRET},
                 {"server-key", HAS_SERVER}};
    uint8_t *to[] = {NULL, r->pair.public_key, r->pair.secret_key, r->pair.server_key};

    for (size_t i = 0; e->key != NULL && i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(e->key, names[i].name) != 0)
            continue;
        if ((r->seen & names[i].bit) != 0) {
            error_set(err, ERR_INVALID_PARAMETER, e->where, "%s is given twice", e->key);
            return ST_INVALID;
        }
        r->seen |= names[i].bit;
        if (to[i] != NULL && curve_key_parse(span_str(e->value), to[i]) != ST_OK) {
            error_set(err, ERR_INVALID_PARAMETER, e->where,
                      "%s is neither 64 hexadecimal digits nor 40 of Z85", e->key);
            return ST_INVALID;
        }
        return ST_OK;
    }
    error_set(err, ERR_INVALID_PARAMETER, e->where, "a key file has no %s",
              e->key != NULL ? e->key : "sections");
    return ST_INVALID;
}

static enum status check_file(FILE *file, const char *path, struct error *err)
{
    struct stat s;

    if (fstat(fileno(file), &s) < 0)
        return system_error("cannot look at", path, err);
    if (!S_ISREG(s.st_mode)) {
        error_set(err, ERR_PERMISSION_DENIED, "key", "%.200s is no file", path);
        return ST_INVALID;
    }
    if ((s.st_mode & 077) != 0) {
        error_set(err, ERR_PERMISSION_DENIED, "key",
                  "%.200s has mode %04o: others may read the secret; chmod 600 it, or make a new key", path,
                  (unsigned)s.st_mode & 07777);
        return ST_INVALID;
    }
    if (s.st_uid != geteuid() && s.st_uid != 0) {
        error_set(err, ERR_PERMISSION_DENIED, "key", "%.200s belongs to uid %u, not to us", path,
                  (unsigned)s.st_uid);
        return ST_INVALID;
    }
    return ST_OK;
}

/* A Z85 text that libzmq made, without its end. */
static bool decode(const char text[Z85_TEXT_BYTES], uint8_t ret_key[CURVE_KEY_BYTES])
{
    return curve_key_parse(span_of(text, Z85_TEXT_BYTES - 1), ret_key) == ST_OK;
}

static bool halves_fit(const struct curve_pair *p)
{
    char secret[Z85_TEXT_BYTES], public[Z85_TEXT_BYTES];
    uint8_t key[CURVE_KEY_BYTES];
    bool fit = zmq_z85_encode(secret, p->secret_key, CURVE_KEY_BYTES) != NULL &&
               zmq_curve_public(public, secret) == 0 && decode(public, key) &&
               memcmp(key, p->public_key, sizeof(key)) == 0;

    explicit_bzero(secret, sizeof(secret));
    return fit;
}

enum status curve_pair_load(const char *path, struct curve_pair *ret_pair, struct error *err)
{
    struct reader r = {.seen = 0};
    FILE *file = fopen(path, "re");

    if (file == NULL && errno == ENOENT) {
        error_set(err, ERR_NOT_FOUND, "key", "there is no key file %.200s", path);
        return ST_NOT_FOUND;
    }
    if (file == NULL)
        return system_error("cannot open", path, err);
    setvbuf(file, NULL, _IONBF, 0); /* no copy of the secret stays in a buffer */
    enum status st = check_file(file, path, err);
    if (st == ST_OK)
        st = ini_file_read(file, path, take_entry, &r, err);
    fclose(file);
    if (st == ST_OK && (r.seen & (HAS_PUBLIC | HAS_SECRET)) != (HAS_PUBLIC | HAS_SECRET)) {
        error_set(err, ERR_INVALID_PARAMETER, "key", "%.200s has no %s", path,
                  r.seen & HAS_SECRET ? "public-key" : "secret-key");
        st = ST_INVALID;
    }
    if (st == ST_OK && !halves_fit(&r.pair)) {
        error_set(err, ERR_INVALID_PARAMETER, "key", "%.200s: public-key is not that of secret-key", path);
        st = ST_INVALID;
    }
    r.pair.has_server_key = (r.seen & HAS_SERVER) != 0;
    if (st == ST_OK)
        *ret_pair = r.pair;
    curve_pair_forget(&r.pair);
    return st;
}

static enum status draw(struct curve_pair *p, struct error *err)
{
    char public[Z85_TEXT_BYTES], secret[Z85_TEXT_BYTES];

    if (zmq_has("curve") == 0 || zmq_curve_keypair(public, secret) != 0) {
        error_set(err, ERR_UNSUPPORTED_PARAMETER, "key", "this libzmq was built without CURVE");
        return ST_UNSUPPORTED;
    }
    bool ok = decode(public, p->public_key) && decode(secret, p->secret_key);
    explicit_bzero(secret, sizeof(secret));
    if (!ok)
        error_set(err, ERR_INTERNAL, "key", "libzmq made a key that is none");
    return ok ? ST_OK : ST_SYSTEM;
}

static bool write_pair(int fd, const char *name, const uint8_t *server_key, const struct curve_pair *p)
{
    char public[CURVE_TEXT_BYTES], secret[CURVE_TEXT_BYTES], server[CURVE_TEXT_BYTES], text[1024];

    curve_key_format(p->public_key, public);
    curve_key_format(p->secret_key, secret);
    if (server_key != NULL)
        curve_key_format(server_key, server);
    int n = snprintf(
        text, sizeof(text),
        "# A CURVE key of a Weir pool.  Keep it: whoever has this file is %s.\n%s%s%spublic-key = %s\n"
        "secret-key = %s\n%s%s%s",
        name != NULL ? name : "the broker", name != NULL ? "name = " : "", name != NULL ? name : "",
        name != NULL ? "\n" : "", public, secret, server_key != NULL ? "server-key = " : "",
        server_key != NULL ? server : "", server_key != NULL ? "\n" : "");
    bool ok = n > 0 && n < (int)sizeof(text) && write(fd, text, (size_t)n) == n && fsync(fd) == 0;

    explicit_bzero(text, sizeof(text));
    explicit_bzero(secret, sizeof(secret));
    return ok;
}

enum status curve_pair_make(const char *path, const char *name, const uint8_t *server_key,
                            struct curve_pair *ret_pair, struct error *err)
{
    struct curve_pair p = {.has_server_key = server_key != NULL};
    enum status st = draw(&p, err);

    if (st != ST_OK)
        return st;
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 && errno == EEXIST) {
        error_set(err, ERR_INVALID_PARAMETER, "key",
                  "there is a file %.200s already; a key is never overwritten", path);
        st = ST_INVALID;
        goto out;
    }
    if (fd < 0) {
        st = system_error("cannot make", path, err);
        goto out;
    }
    if (fchmod(fd, 0600) != 0 || !write_pair(fd, name, server_key, &p)) {
        st = system_error("cannot write", path, err);
        unlink(path);
    }
    close(fd);
    if (st == ST_OK) {
        if (server_key != NULL)
            memcpy(p.server_key, server_key, CURVE_KEY_BYTES);
        *ret_pair = p;
    }
out:
    curve_pair_forget(&p);
    return st;
}

void curve_pair_forget(struct curve_pair *p)
{
    explicit_bzero(p, sizeof(*p));
}
