/* paths.c - default places.  See paths.h for the rules; they are few enough to be read aloud over a telephone. */
#include "paths.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A variable that is set and not empty. */
static const char *variable(const char *name)
{
    const char *value = getenv(name);

    return value != NULL && value[0] != '\0' ? value : NULL;
}

__attribute__((format(printf, 3, 4))) static enum status put(char ret_path[PATHS_BYTES], struct error *err, const char *format, ...)
{
    char path[PATHS_BYTES];
    va_list args;

    va_start(args, format);
    int n = vsnprintf(path, sizeof(path), format, args);
    va_end(args);
    if (n < 0 || n >= (int)sizeof(path)) {
        error_set(err, ERR_LIMIT_EXCEEDED, "path", "a path has %d bytes, the limit is %d", n, PATHS_BYTES - 1);
        return ST_INVALID;
    }
    memcpy(ret_path, path, (size_t)n + 1);
    return ST_OK;
}

enum status paths_runtime_dir(char ret_path[PATHS_BYTES], struct error *err)
{
    const char *value = variable("WEIR_RUNTIME_DIR");

    if (value != NULL)
        return put(ret_path, err, "%s", value);
    if (geteuid() == 0)
        return put(ret_path, err, "/run/weir");
    value = variable("XDG_RUNTIME_DIR");
    if (value != NULL)
        return put(ret_path, err, "%s/weir", value);
    return put(ret_path, err, "/tmp/weir-%u", (unsigned)geteuid());
}

enum status paths_state_dir(char ret_path[PATHS_BYTES], struct error *err)
{
    const char *value = variable("WEIR_STATE_DIR");

    if (value != NULL)
        return put(ret_path, err, "%s", value);
    if (geteuid() == 0)
        return put(ret_path, err, "/var/lib/weir");
    value = variable("XDG_STATE_HOME");
    if (value != NULL)
        return put(ret_path, err, "%s/weir", value);
    value = variable("HOME");
    if (value != NULL)
        return put(ret_path, err, "%s/.local/state/weir", value);
    error_set(err, ERR_INVALID_PARAMETER, "state-dir", "no folder for the state: HOME is not set; give --state-dir");
    return ST_INVALID;
}

/* Is there a socket of this name, in a folder that is root's or ours?  Only root can make anything in /run, so what is there may
 * also be another's: root gave it to him. */
static bool socket_is_there(const char *folder)
{
    bool trusted = strncmp(folder, "/run/weir", sizeof("/run/weir")) == 0;
    char path[PATHS_BYTES + sizeof("/" PATHS_BROKER_SOCKET)];
    struct stat s;

    if (lstat(folder, &s) != 0 || !S_ISDIR(s.st_mode) || (!trusted && s.st_uid != geteuid() && s.st_uid != 0))
        return false;
    snprintf(path, sizeof(path), "%s/%s", folder, PATHS_BROKER_SOCKET);
    return stat(path, &s) == 0 && S_ISSOCK(s.st_mode);
}

enum status paths_endpoint(char ret_endpoint[PATHS_BYTES], struct error *err)
{
    const char *value = variable("WEIR_CONNECT");
    char own[PATHS_BYTES];

    if (value != NULL)
        return put(ret_endpoint, err, "%s", value);
    enum status st = paths_runtime_dir(own, err);
    if (st != ST_OK)
        return st;
    if (variable("WEIR_RUNTIME_DIR") == NULL && !socket_is_there(own) && socket_is_there("/run/weir"))
        return put(ret_endpoint, err, "ipc:///run/weir/%s", PATHS_BROKER_SOCKET);
    return put(ret_endpoint, err, "ipc://%s/%s", own, PATHS_BROKER_SOCKET);
}

enum status paths_absolute(const char *path, char ret_path[PATHS_BYTES], struct error *err)
{
    char here[PATHS_BYTES];

    if (path[0] == '\0') {
        error_set(err, ERR_INVALID_PARAMETER, "path", "the path of a folder is empty");
        return ST_INVALID;
    }
    if (path[0] == '/')
        return put(ret_path, err, "%s", path);
    while (path[0] == '.' && path[1] == '/') {
        path += 2;
        path += strspn(path, "/");
    }
    if (getcwd(here, sizeof(here)) == NULL) {
        error_set(err, ERR_INTERNAL, "path", "\"%s\" is relative, and the working directory is not known: %s", path, strerror(errno));
        return ST_SYSTEM;
    }
    return put(ret_path, err, "%s%s%s", here, strcmp(here, "/") == 0 || path[0] == '\0' ? "" : "/", path);
}

static enum status make_parents(const char *path, struct error *err)
{
    char part[PATHS_BYTES];

    for (const char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        memcpy(part, path, (size_t)(slash - path));
        part[slash - path] = '\0';
        if (mkdir(part, 0755) != 0 && errno != EEXIST) {
            error_set(err, ERR_INTERNAL, "path", "cannot make %s: %s", part, strerror(errno));
            return ST_SYSTEM;
        }
    }
    return ST_OK;
}

enum status paths_make_private(const char *path, unsigned mode, struct error *err)
{
    struct stat s;

    if (path[0] == '\0' || strlen(path) >= PATHS_BYTES) {
        error_set(err, ERR_INVALID_PARAMETER, "path", "a folder's path must have 1 to %d bytes", PATHS_BYTES - 1);
        return ST_INVALID;
    }
    enum status st = make_parents(path, err);
    if (st != ST_OK)
        return st;
    bool made = mkdir(path, mode) == 0;
    if (!made && errno != EEXIST) {
        error_set(err, ERR_INTERNAL, "path", "cannot make %s: %s", path, strerror(errno));
        return ST_SYSTEM;
    }
    if (lstat(path, &s) != 0) {
        error_set(err, ERR_INTERNAL, "path", "cannot look at %s: %s", path, strerror(errno));
        return ST_SYSTEM;
    }
    if (!S_ISDIR(s.st_mode)) {
        error_set(err, ERR_INVALID_PARAMETER, "path", "%s is not a folder (symbolic links are not followed here)", path);
        return ST_INVALID;
    }
    if (s.st_uid != geteuid()) {
        error_set(err, ERR_PERMISSION_DENIED, "path", "%s belongs to uid %u, not to uid %u", path, (unsigned)s.st_uid,
                  (unsigned)geteuid());
        return ST_INVALID;
    }
    if (made && chmod(path, mode) != 0) { /* the umask may have taken bits away */
        error_set(err, ERR_INTERNAL, "path", "cannot set the mode of %s: %s", path, strerror(errno));
        return ST_SYSTEM;
    }
    if (!made && (s.st_mode & 022 & ~mode) != 0) {
        error_set(err, ERR_PERMISSION_DENIED, "path", "%s can be written by others (mode %03o)", path,
                  (unsigned)(s.st_mode & 0777));
        return ST_INVALID;
    }
    return ST_OK;
}
