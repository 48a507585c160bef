/* pending.c - see pending.h. */
#include "pending.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "log.h"

static bool is_word(const char *s, size_t bytes)
{
    size_t n = strnlen(s, bytes);

    if (n == 0 || n == bytes)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (s[i] <= ' ' || s[i] > '~')
            return false;
    }
    return true;
}

/* Which one makes room: the same key, else the oldest of its address if these are too many, else the oldest of all if it is full. */
static unsigned place_for(const struct pending *p, const char *address, const char *type, const char *blob)
{
    unsigned oldest = 0, oldest_here = PENDING_MAX, n_here = 0;

    for (unsigned i = 0; i < p->n; i++) {
        const struct pending_key *k = &p->keys[i];
        if (strcmp(k->type, type) == 0 && strcmp(k->blob, blob) == 0)
            return i;
        if (k->real_ms < p->keys[oldest].real_ms)
            oldest = i;
        if (strcmp(k->address, address) != 0)
            continue;
        n_here++;
        if (oldest_here == PENDING_MAX || k->real_ms < p->keys[oldest_here].real_ms)
            oldest_here = i;
    }
    if (n_here >= PENDING_OF_ADDRESS_MAX)
        return oldest_here;
    return p->n < PENDING_MAX ? p->n : oldest;
}

void pending_add(struct pending *p, const char *address, const char *type, const char *blob, int64_t real_ms)
{
    struct pending_key *k;

    if (!is_word(address, sizeof k->address) || !is_word(type, sizeof k->type) || !is_word(blob, sizeof k->blob))
        return;
    unsigned i = place_for(p, address, type, blob);
    k = &p->keys[i];
    *k = (struct pending_key){ .real_ms = real_ms };
    snprintf(k->address, sizeof k->address, "%s", address);
    snprintf(k->type, sizeof k->type, "%s", type);
    snprintf(k->blob, sizeof k->blob, "%s", blob);
    if (i == p->n)
        p->n++;
    p->changed = true;
}

void pending_write(struct pending *p, const char *path, int64_t real_ms)
{
    char fresh[4200];

    if (!p->changed || (real_ms >= p->written_ms && real_ms - p->written_ms < 1000))
        return;
    p->written_ms = real_ms;
    snprintf(fresh, sizeof fresh, "%s.new", path);
    int fd = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    FILE *out = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (out == NULL) {
        log_error("pending", "what=open error=%d", errno);
        if (fd >= 0)
            close(fd);
        return;
    }
    for (unsigned i = 0; i < p->n; i++)
        fprintf(out, "%" PRId64 " %s %s %s\n", p->keys[i].real_ms, p->keys[i].address, p->keys[i].type, p->keys[i].blob);
    bool ok = ferror(out) == 0;
    ok = fclose(out) == 0 && ok && rename(fresh, path) == 0;
    if (ok)
        p->changed = false;
    else
        log_error("pending", "what=write error=%d", errno);
}

enum status pending_read(const char *path, struct pending *ret_pending)
{
    char line[PENDING_BLOB_BYTES + 300];
    FILE *in = fopen(path, "re");

    *ret_pending = (struct pending){ .n = 0 };
    if (in == NULL)
        return errno == ENOENT ? ST_OK : ST_SYSTEM;
    while (fgets(line, sizeof line, in) != NULL) {
        struct pending_key k;
        if (sscanf(line, "%" SCNd64 " %63s %63s %2047s", &k.real_ms, k.address, k.type, k.blob) == 4)
            pending_add(ret_pending, k.address, k.type, k.blob, k.real_ms);
    }
    fclose(in);
    return ST_OK;
}
