/* batch_output.c - see batch_output.h. */
#include "batch_output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <jansson.h>
#include <xxhash.h>

#include "client.h"
#include "limits.h"
#include "terminal.h"

enum { SYNC_EVERY_MS = 2000 };

uint64_t batch_line_hash(const char *text, size_t bytes)
{
    while (bytes > 0 && strchr(" \t\r\n", text[bytes - 1]) != NULL)
        bytes--;
    while (bytes > 0 && strchr(" \t", text[0]) != NULL) {
        text++;
        bytes--;
    }
    uint64_t hash = XXH64(text, bytes, 0);
    return hash != 0 ? hash : 1;
}

void batch_line_id(uint64_t hash, uint64_t number, char ret_id[48])
{
    snprintf(ret_id, 48, "%016llx-%llu", (unsigned long long)hash, (unsigned long long)number);
}

static int cannot_open(struct weir_error *err, const char *flag, const char *path)
{
    weir_error_format(err, ERR_INVALID_PARAMETER, flag, "cannot open %s: %s", path, strerror(errno));
    return WEIR_FAILED;
}

static int failed(struct weir_error *err, const char *what, const char *path)
{
    weir_error_format(err, ERR_INTERNAL, "", "cannot %s %s: %s", what, path, strerror(errno));
    return WEIR_FAILED;
}

/* --- what is there already --------------------------------------------------------------------- */

/* One line of an earlier run.  False: it is none. */
static bool note_line(struct batch_ids *ids, const char *text, size_t bytes)
{
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    const char *id = json_string_value(json_object_get(root, "id")),
               *custom = json_string_value(json_object_get(root, "custom_id"));
    unsigned long long hash = 0, number = 0;
    int end = 0;

    bool ok = id != NULL && custom != NULL && json_is_object(json_object_get(root, "response")) &&
              sscanf(id, "batch_req_%16llx-%20llu%n", &hash, &number, &end) == 2 && id[end] == '\0' &&
              hash != 0;
    struct batch_id *entry = ok ? batch_ids_get(ids, custom) : NULL;
    if (entry != NULL)
        entry->answered = hash;
    json_decref(root);
    return entry != NULL;
}

/* Read every whole line; what is behind the last newline is cut off. */
static int read_earlier(struct batch_output *out, struct batch_ids *ids, struct weir_error *err)
{
    FILE *f = fdopen(dup(out->fd), "r");
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    uint64_t number = 0;
    int result = WEIR_OK;

    if (f == NULL)
        return failed(err, "read", out->path);
    while (result == WEIR_OK && (n = getline(&line, &room, f)) > 0 && line[n - 1] == '\n') {
        number++;
        if (note_line(ids, line, (size_t)n)) {
            out->bytes += (uint64_t)n;
        } else {
            weir_error_format(err, ERR_KEY_CONFLICT, "",
                              "%s, line %llu, was not written by weir batch; choose another output file",
                              out->path, (unsigned long long)number);
            result = WEIR_FAILED;
        }
    }
    if (result == WEIR_OK && ferror(f))
        result = failed(err, "read", out->path);
    free(line);
    fclose(f);
    if (result == WEIR_OK && ftruncate(out->fd, (off_t)out->bytes) != 0)
        result = failed(err, "cut the torn end of", out->path);
    return result;
}

static int open_file(struct batch_output *out, struct batch_ids *ids, struct weir_error *err)
{
    struct stat s;

    out->fd = open(out->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (out->fd < 0 || fstat(out->fd, &s) != 0)
        return cannot_open(err, "output", out->path);
    out->own_fd = true;
    if (!S_ISREG(s.st_mode)) {
        weir_error_format(err, ERR_INVALID_REQUEST, "",
                          "%s is not a file; without -o the answers go to standard output", out->path);
        return WEIR_FAILED;
    }
    if (flock(out->fd, LOCK_EX | LOCK_NB) != 0) {
        weir_error_format(err, ERR_KEY_CONFLICT, "", "another run writes %s", out->path);
        return WEIR_FAILED;
    }
    return read_earlier(out, ids, err);
}

int batch_output_open(struct batch_output *out, const char *path, const char *errors_path,
                      struct batch_ids *ids, struct weir_error *err)
{
    *out = (struct batch_output){.fd = STDOUT_FILENO, .errors_fd = -1, .path = path};
    int n = errors_path != NULL ? snprintf(out->errors_path, sizeof(out->errors_path), "%s", errors_path)
            : path != NULL      ? snprintf(out->errors_path, sizeof(out->errors_path), "%s.errors", path)
                                : 0;
    if (n >= (int)sizeof(out->errors_path)) {
        weir_error_format(err, ERR_LIMIT_EXCEEDED, "",
                          "the path of the errors file has %d bytes, the limit is %zu", n,
                          sizeof(out->errors_path) - 1);
        return WEIR_FAILED;
    }
    return path != NULL ? open_file(out, ids, err) : WEIR_OK;
}

/* --- writing ----------------------------------------------------------------------------------- */

static int open_errors(struct batch_output *out, struct weir_error *err)
{
    if (out->errors_path[0] == '\0') {
        out->errors_fd = STDERR_FILENO;
        return WEIR_OK;
    }
    out->errors_fd = open(out->errors_path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
    return out->errors_fd >= 0 ? WEIR_OK : cannot_open(err, "errors", out->errors_path);
}

/* All of text and a newline; how many bytes got out before an error goes to *ret_written. */
static bool write_line(int fd, const char *text, size_t bytes, size_t *ret_written)
{
    size_t done = 0;

    while (done < bytes + 1) {
        struct iovec parts[2] = {{(char *)(uintptr_t)text + done, bytes - done},
                                 {(char *)(uintptr_t) "\n", 1}};
        ssize_t n = done < bytes ? writev(fd, parts, 2) : write(fd, "\n", 1);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        done += (size_t)n;
    }
    *ret_written = done;
    return done == bytes + 1;
}

int batch_output_put(struct batch_output *out, bool is_error, const char *text, size_t bytes,
                     struct weir_error *err)
{
    size_t written = 0;

    if (is_error && out->errors_fd < 0 && open_errors(out, err) != WEIR_OK)
        return WEIR_FAILED;
    int fd = is_error ? out->errors_fd : out->fd;
    if (!out->own_fd && fd <= STDERR_FILENO &&
        isatty(fd)) { /* to somebody's eyes: JSON leaves DEL and C1 as they are */
        terminal_show(is_error ? stderr : stdout, text, bytes);
        fputc('\n', is_error ? stderr : stdout);
        fflush(is_error ? stderr : stdout);
        return WEIR_OK;
    }
    if (!write_line(fd, text, bytes, &written)) {
        failed(err, "write to",
               is_error && out->errors_path[0] ? out->errors_path
               : out->path != NULL             ? out->path
                                               : "standard output");
        if (written > 0 && !is_error && out->own_fd && ftruncate(fd, (off_t)out->bytes) != 0)
            return WEIR_FAILED; /* the torn line is cut by the next run */
        return WEIR_FAILED;
    }
    if (!is_error)
        out->bytes += bytes + 1;
    out->dirty = true;
    return WEIR_OK;
}

int batch_output_sync(struct batch_output *out, uint64_t now_ns, bool force, struct weir_error *err)
{
    if (!out->own_fd || !out->dirty || (!force && now_ns - out->synced_ns < SYNC_EVERY_MS * 1000000ull))
        return WEIR_OK;
    out->synced_ns = now_ns;
    out->dirty = false;
    if (fdatasync(out->fd) != 0)
        return failed(err, "sync", out->path);
    if (out->errors_fd > STDERR_FILENO && fdatasync(out->errors_fd) != 0)
        return failed(err, "sync", out->errors_path);
    return WEIR_OK;
}

void batch_output_close(struct batch_output *out, bool finished)
{
    if (finished && out->own_fd && out->errors_fd < 0)
        unlink(out->errors_path);
    if (out->own_fd)
        close(out->fd);
    if (out->errors_fd > STDERR_FILENO)
        close(out->errors_fd);
}
