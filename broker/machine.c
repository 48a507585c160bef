/* machine.c - see machine.h.  A file that is not there or cannot be read sets no limit. */
#include "machine.h"

#include <inttypes.h>
#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LINE_BYTES = 512, PATH_BYTES = 1024, CPUS_MAX = 4096 };

/* The first line of folder/name.  false when there is none. */
static bool first_line(const char *folder, const char *name, char line[LINE_BYTES])
{
    char path[PATH_BYTES + 64];
    bool ok;

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *f = fopen(path, "re");
    if (f == NULL)
        return false;
    ok = fgets(line, LINE_BYTES, f) != NULL;
    fclose(f);
    return ok;
}

/* The folder of our control group for a controller: version 2 ("" as its name), or version 1. */
static bool group_folder(const char *controller, const char *mount, char folder[PATH_BYTES])
{
    char line[LINE_BYTES];
    bool found = false;
    FILE *f = fopen("/proc/self/cgroup", "re");

    if (f == NULL)
        return false;
    while (!found && fgets(line, sizeof(line), f) != NULL) { /* "4:memory:/a/b" */
        char *names = strchr(line, ':'), *path = names != NULL ? strchr(names + 1, ':') : NULL;

        if (path == NULL)
            continue;
        *path++ = '\0';
        path[strcspn(path, "\n")] = '\0';
        names++;
        for (char *save, *name = strtok_r(names, ",", &save); name != NULL && !found; name = strtok_r(NULL, ",", &save))
            found = strcmp(name, controller) == 0;
        found = found || (controller[0] == '\0' && names[0] == '\0');
        if (found && snprintf(folder, PATH_BYTES, "%s%s", mount, path) >= PATH_BYTES)
            found = false;
    }
    fclose(f);
    return found;
}

/* Go up from the group's folder to the mount.  false when the top has been reached. */
static bool go_up(char folder[PATH_BYTES], const char *mount)
{
    char *slash = strrchr(folder, '/');

    if (slash == NULL || (size_t)(slash - folder) < strlen(mount))
        return false;
    *slash = '\0';
    return true;
}

static double group_cpus(void)
{
    char folder[PATH_BYTES], line[LINE_BYTES];
    double least = CPUS_MAX, quota, period;

    if (group_folder("", "/sys/fs/cgroup", folder))
        do {
            if (first_line(folder, "cpu.max", line) && sscanf(line, "%lf %lf", &quota, &period) == 2 && period > 0 &&
                quota / period < least)
                least = quota / period;
        } while (go_up(folder, "/sys/fs/cgroup"));
    if (group_folder("cpu", "/sys/fs/cgroup/cpu", folder))
        do {
            if (first_line(folder, "cpu.cfs_quota_us", line) && sscanf(line, "%lf", &quota) == 1 && quota > 0 &&
                first_line(folder, "cpu.cfs_period_us", line) && sscanf(line, "%lf", &period) == 1 && period > 0 &&
                quota / period < least)
                least = quota / period;
        } while (go_up(folder, "/sys/fs/cgroup/cpu"));
    return least;
}

uint32_t machine_cpus(void)
{
    uint32_t n = 1;
    cpu_set_t *set = CPU_ALLOC(CPUS_MAX);

    if (set != NULL) {
        CPU_ZERO_S(CPU_ALLOC_SIZE(CPUS_MAX), set);
        if (sched_getaffinity(0, CPU_ALLOC_SIZE(CPUS_MAX), set) == 0)
            n = (uint32_t)CPU_COUNT_S(CPU_ALLOC_SIZE(CPUS_MAX), set);
        CPU_FREE(set);
    }
    double groups = group_cpus();
    if (groups < n)
        n = (uint32_t)groups + (groups > (uint32_t)groups);
    return n > 0 ? n : 1;
}

static uint64_t group_memory(const char *controller, const char *mount, const char *limit_name, const char *used_name)
{
    char folder[PATH_BYTES], line[LINE_BYTES];
    uint64_t least = UINT64_MAX, limit, used;

    if (!group_folder(controller, mount, folder))
        return least;
    do {
        if (!first_line(folder, limit_name, line) || sscanf(line, "%" SCNu64, &limit) != 1)
            continue;
        if (!first_line(folder, used_name, line) || sscanf(line, "%" SCNu64, &used) != 1)
            used = 0;
        uint64_t left = used < limit ? limit - used : 0;
        if (left < least)
            least = left;
    } while (go_up(folder, mount));
    return least;
}

uint64_t machine_memory_available(void)
{
    char line[LINE_BYTES];
    uint64_t kib = 0, least;
    FILE *f = fopen("/proc/meminfo", "re");

    if (f != NULL) {
        while (fgets(line, sizeof(line), f) != NULL)
            if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1)
                break;
        fclose(f);
    }
    least = kib * 1024;
    uint64_t two = group_memory("", "/sys/fs/cgroup", "memory.max", "memory.current");
    uint64_t one = group_memory("memory", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes");
    if (two < least)
        least = two;
    return one < least ? one : least;
}

/* --- turns -------------------------------------------------------------------------------------- */

/* struct sched_attr of the kernel, its first version (sched_setattr(2)); the C library has none. */
struct turn {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns, deadline_ns, period_ns;
};
_Static_assert(sizeof(struct turn) == 48, "as the kernel has it");
enum { SHORT_TURN_NS = 100000, RESET_ON_FORK = 1 };

void machine_short_turns(bool last)
{
    struct turn t = { 0 };

    if (syscall(SYS_sched_getattr, 0, &t, sizeof(t), 0) != 0 || t.policy != SCHED_OTHER)
        return; /* somebody chose another way for us */
    t.size = sizeof(t);
    t.runtime_ns = SHORT_TURN_NS;
    t.flags = last ? RESET_ON_FORK : 0;
    (void)!syscall(SYS_sched_setattr, 0, &t, 0); /* not allowed: then not */
}
