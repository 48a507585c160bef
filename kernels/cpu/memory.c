/* memory.c - mappings, and how much memory there is.  Large mappings ask for huge pages: a decode step walks through all
 * the weights, and with 4 KiB pages the page tables are a good part of what it reads. */
#include "engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { HUGE_PAGE = 2 << 20, PATH_BYTES = 4096 };

enum status mapping_take(size_t bytes, struct mapping *ret_mapping)
{
    struct mapping m = { .bytes = (bytes + HUGE_PAGE) & ~(size_t)(HUGE_PAGE - 1) };

    m.at = mmap(NULL, m.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m.at == MAP_FAILED)
        return ST_NOMEM;
    (void)madvise(m.at, m.bytes, MADV_HUGEPAGE); /* a wish: without it everything is only slower */
    *ret_mapping = m;
    return ST_OK;
}

void mapping_drop(struct mapping *m)
{
    if (m->at != NULL)
        munmap(m->at, m->bytes);
    *m = (struct mapping){ 0 };
}

void *arena_take(struct arena *a, size_t bytes)
{
    void *at = a->base == NULL ? NULL : a->base + a->used;

    a->used += (bytes + 63) / 64 * 64;
    return at;
}

/* The number in a file that holds just one, or "max"; UINT64_MAX when there is none. */
static uint64_t number_in(const char *folder, const char *file)
{
    char path[PATH_BYTES], text[64] = "";
    uint64_t n = UINT64_MAX;

    snprintf(path, sizeof(path), "/sys/fs/cgroup%s/%s", folder, file);
    FILE *f = fopen(path, "re");
    if (f == NULL)
        return n;
    if (fgets(text, sizeof(text), f) != NULL && text[0] >= '0' && text[0] <= '9')
        n = strtoull(text, NULL, 10);
    fclose(f);
    return n;
}

/* The least any cgroup above this process leaves it. */
static uint64_t cgroup_available(void)
{
    char line[PATH_BYTES] = "";
    uint64_t least = UINT64_MAX;
    FILE *f = fopen("/proc/self/cgroup", "re");

    if (f == NULL)
        return least;
    while (fgets(line, sizeof(line), f) != NULL && strncmp(line, "0::", 3) != 0)
        ;
    fclose(f);
    if (strncmp(line, "0::/", 4) != 0)
        return least;
    char *folder = line + 3;
    folder[strcspn(folder, "\n")] = '\0';
    for (;;) {
        const uint64_t max = number_in(folder, "memory.max"), used = number_in(folder, "memory.current");
        if (max != UINT64_MAX && used != UINT64_MAX && (max > used ? max - used : 0) < least)
            least = max > used ? max - used : 0;
        char *slash = strrchr(folder, '/');
        if (slash == NULL || folder[0] == '\0')
            return least;
        *slash = '\0';
    }
}

uint64_t memory_available(void)
{
    char line[256];
    uint64_t kib = 0, machine = UINT64_MAX;
    const uint64_t cgroup = cgroup_available();
    FILE *f = fopen("/proc/meminfo", "re");

    while (f != NULL && fgets(line, sizeof(line), f) != NULL)
        if (sscanf(line, "MemAvailable: %lu kB", &kib) == 1)
            machine = kib * 1024;
    if (f != NULL)
        fclose(f);
    return machine < cgroup ? machine : cgroup;
}
