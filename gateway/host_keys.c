/* host_keys.c - a key is written to a temporary name, synced, then renamed: a crash leaves no half key behind.
 *
 * ssh_pki_export_privkey_file() opens the file itself, so its mode comes from the umask, which is set for the moment. */
#include "host_keys.h"

#include <errno.h>
#include <fcntl.h>
#include <libssh/libssh.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "door.h"
#include "log.h"
#include "paths.h"

enum { KEY_FILE_BYTES_MAX = 16 << 10 };

static enum status fail(struct error *err, enum status st, const char *what, const char *path)
{
    error_set(err, ERR_INTERNAL, "state-dir", "%s %s: %s", what, path, strerror(errno));
    return st;
}

static enum status sync_path(const char *path, int flags)
{
    int fd = open(path, flags | O_CLOEXEC);

    if (fd < 0)
        return ST_SYSTEM;
    int rc = fsync(fd);
    close(fd);
    return rc == 0 ? ST_OK : ST_SYSTEM;
}

static enum status make_key(const char *folder, const char *path, enum ssh_keytypes_e type, int bits,
                            struct error *err)
{
    char temporary[PATHS_BYTES + 32];
    ssh_key key = NULL;
    enum status st = ST_SYSTEM;

    snprintf(temporary, sizeof temporary, "%s.%d", path, (int)getpid());
    if (ssh_pki_generate(type, bits, &key) != SSH_OK) {
        error_set(err, ERR_INTERNAL, NULL, "cannot make a host key");
        return ST_SYSTEM;
    }
    mode_t old = umask(077);
    int rc = ssh_pki_export_privkey_file(key, NULL, NULL, NULL, temporary);
    umask(old);
    if (rc != SSH_OK || sync_path(temporary, O_RDONLY) != ST_OK || rename(temporary, path) != 0 ||
        sync_path(folder, O_RDONLY | O_DIRECTORY) != ST_OK) {
        fail(err, st, "cannot write", path);
        unlink(temporary);
        goto out;
    }
    st = ST_OK;
out:
    ssh_key_free(key);
    return st;
}

static enum status read_key(const char *path, char **ret_text, struct error *err)
{
    struct stat s;
    char *text = NULL;
    enum status st = ST_INVALID;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);

    if (fd < 0)
        return fail(err, errno == ENOENT ? ST_NOT_FOUND : ST_INVALID, "cannot open", path);
    if (fstat(fd, &s) != 0 || !S_ISREG(s.st_mode) || s.st_uid != geteuid() || (s.st_mode & 077) != 0 ||
        s.st_size > KEY_FILE_BYTES_MAX) {
        error_set(err, ERR_PERMISSION_DENIED, "state-dir", "%s must be a file of ours with mode 0600", path);
        goto out;
    }
    text = calloc(1, (size_t)s.st_size + 1);
    if (text == NULL || read(fd, text, (size_t)s.st_size) != s.st_size) {
        fail(err, st, "cannot read", path);
        goto out;
    }
    *ret_text = text;
    text = NULL;
    st = ST_OK;
out:
    free(text);
    close(fd);
    return st;
}

static enum status log_fingerprint(const char *path, const char *text, struct error *err)
{
    ssh_key key = NULL, public = NULL;
    unsigned char *hash = NULL;
    size_t hash_bytes = 0;
    enum status st = ST_INVALID;

    if (ssh_pki_import_privkey_base64(text, NULL, NULL, NULL, &key) != SSH_OK ||
        ssh_pki_export_privkey_to_pubkey(key, &public) != SSH_OK ||
        ssh_get_publickey_hash(public, SSH_PUBLICKEY_HASH_SHA256, &hash, &hash_bytes) != 0) {
        error_set(err, ERR_INVALID_PARAMETER, "state-dir", "%s is not a private key", path);
        goto out;
    }
    char *fingerprint = ssh_get_fingerprint_hash(SSH_PUBLICKEY_HASH_SHA256, hash, hash_bytes);
    log_info("host_key", "type=%s fingerprint=%s", ssh_key_type_to_char(ssh_key_type(public)),
             fingerprint != NULL ? fingerprint : "?");
    ssh_string_free_char(fingerprint);
    st = ST_OK;
out:
    ssh_clean_pubkey_hash(&hash);
    ssh_key_free(public);
    ssh_key_free(key);
    return st;
}

static enum status load_one(const char *state_dir, const char *name, enum ssh_keytypes_e type, int bits,
                            char **ret_text, struct error *err)
{
    char path[PATHS_BYTES + 16];
    char *text = NULL;

    snprintf(path, sizeof path, "%s/%s", state_dir, name);
    enum status st = read_key(path, &text, err);
    if (st == ST_NOT_FOUND) {
        st = make_key(state_dir, path, type, bits, err);
        if (st == ST_OK)
            st = read_key(path, &text, err);
    }
    if (st == ST_OK)
        st = log_fingerprint(path, text, err);
    if (st == ST_OK)
        *ret_text = text;
    else
        free(text);
    return st == ST_NOT_FOUND ? ST_SYSTEM : st;
}

enum status host_keys_load(const char *state_dir, struct host_keys *ret_keys, struct error *err)
{
    struct host_keys keys = { 0 };
    enum status st = load_one(state_dir, "host_ed25519_key", SSH_KEYTYPE_ED25519, 0, &keys.ed25519, err);

    if (st == ST_OK)
        st = load_one(state_dir, "host_rsa_key", SSH_KEYTYPE_RSA, 3072, &keys.rsa, err);
    if (st == ST_OK)
        *ret_keys = keys;
    else
        host_keys_deinit(&keys);
    return st;
}

bool host_keys_exist(const char *state_dir)
{
    static const char *const names[] = { "host_ed25519_key", "host_rsa_key" };
    char path[PATHS_BYTES + 32];

    for (size_t i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", state_dir, names[i]);
        if (access(path, F_OK) != 0)
            return false;
    }
    return true;
}

static void wipe(char *text)
{
    if (text != NULL)
        explicit_bzero(text, strlen(text));
    free(text);
}

void host_keys_deinit(struct host_keys *k)
{
    wipe(k->ed25519);
    wipe(k->rsa);
    *k = (struct host_keys){ 0 };
}

enum status host_keys_kit(const struct host_keys *keys, const struct config *c, int *ret_fd)
{
    uint8_t buffer[64 << 10];
    struct byte_writer w = { .at = buffer, .capacity = sizeof buffer };
    int fd = memfd_create("weir-kit", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    door_put_str(&w, span_str(keys->ed25519));
    door_put_str(&w, span_str(keys->rsa));
    door_put_u32(&w, (uint32_t)(config_u64(c, "login-grace") / 1000));
    door_put_u32(&w, (uint32_t)log_level_from_name(config_string(c, "log-level")));
    bool ok = fd >= 0 && !w.failed && write(fd, w.at, w.n) == (ssize_t)w.n &&
              fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) == 0;
    explicit_bzero(buffer, sizeof buffer);
    if (!ok) {
        if (fd >= 0)
            close(fd);
        return ST_SYSTEM;
    }
    *ret_fd = fd;
    return ST_OK;
}
