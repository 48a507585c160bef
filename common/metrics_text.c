/* metrics_text.c - the parts of a page that every program's page has.  See metrics.h. */
#include <dirent.h>
#include <inttypes.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "metrics.h"

/* From a step of a small model on a GPU to a batch line that waited for a long time. */
const double histogram_bounds_s[HISTOGRAM_BUCKETS] = { 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60, 600, 3600 };

void histogram_add(struct histogram *h, double seconds)
{
    int i = 0;

    while (i < HISTOGRAM_BUCKETS && seconds > histogram_bounds_s[i])
        i++;
    h->n[i]++;
    h->sum_s += seconds;
}

void metrics_head(FILE *f, const char *name, const char *type, const char *help)
{
    fprintf(f, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

void metrics_histogram(FILE *f, const char *name, const char *labels, const struct histogram *h)
{
    const char *comma = labels[0] != '\0' ? "," : "", *open = labels[0] != '\0' ? "{" : "", *close = labels[0] != '\0' ? "}" : "";
    uint64_t n = 0;

    for (int i = 0; i < HISTOGRAM_BUCKETS; i++) {
        n += h->n[i];
        fprintf(f, "%s_bucket{%s%sle=\"%g\"} %" PRIu64 "\n", name, labels, comma, histogram_bounds_s[i], n);
    }
    n += h->n[HISTOGRAM_BUCKETS];
    fprintf(f, "%s_bucket{%s%sle=\"+Inf\"} %" PRIu64 "\n", name, labels, comma, n);
    fprintf(f, "%s_sum%s%s%s %.6f\n", name, open, labels, close, h->sum_s);
    fprintf(f, "%s_count%s%s%s %" PRIu64 "\n", name, open, labels, close, n);
}

/* --- the process ------------------------------------------------------------------------------------ */

static void put(FILE *f, const char *prefix, const char *name, const char *type, const char *help, double value)
{
    char full[96];

    snprintf(full, sizeof(full), "%s%s", prefix, name);
    metrics_head(f, full, type, help);
    fprintf(f, "%s %.15g\n", full, value);
}

static uint64_t resident_bytes(void)
{
    FILE *f = fopen("/proc/self/statm", "re");
    unsigned long long all, resident = 0;

    if (f == NULL)
        return 0;
    if (fscanf(f, "%llu %llu", &all, &resident) != 2)
        resident = 0;
    fclose(f);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static unsigned open_files(void)
{
    DIR *d = opendir("/proc/self/fd");
    unsigned n = 0;

    while (d != NULL && readdir(d) != NULL)
        n++;
    if (d != NULL)
        closedir(d);
    return n >= 3 ? n - 3 : 0; /* ".", ".." and the folder itself */
}

void metrics_process(FILE *f, const char *prefix)
{
    static double started_s; /* of the first page: a process's first second */
    struct rusage u = { 0 };

    if (started_s == 0)
        started_s = (double)clock_real_ms() / 1e3;
    getrusage(RUSAGE_SELF, &u);
    put(f, prefix, "start_time_seconds", "gauge", "When the process began to count, in seconds since 1970.", started_s);
    put(f, prefix, "resident_memory_bytes", "gauge", "Memory of the process.", (double)resident_bytes());
    put(f, prefix, "open_fds", "gauge", "Open descriptors of the process.", open_files());
    put(f, prefix, "cpu_seconds_total", "counter", "CPU time of the process.",
        (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6);
}
