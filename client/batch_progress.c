/* batch_progress.c - see batch_progress.h.  Everything goes to standard error: standard output may be the answers. */
#include "batch_progress.h"

#include <stdio.h>
#include <string.h>

#include "terminal.h"

enum { BAR_EVERY_MS = 100, LINE_EVERY_MS = 5000, BAR_COLUMNS = 30 };

void batch_progress_add(struct batch_progress *p, const struct weir_answer *a)
{
    p->n_answered++;
    p->prompt_tokens += a->usage.prompt_tokens;
    p->cached_tokens += a->usage.cached_tokens;
    p->completion_tokens += a->usage.completion_tokens;
    p->takeovers += a->takeovers;
}

static double seconds(const struct batch_progress *p, uint64_t now_ns)
{
    double s = (double)(now_ns - p->started_ns) / 1e9;

    return s > 1e-3 ? s : 1e-3;
}

static void put_time(char *text, size_t room, double s)
{
    if (s >= 3600)
        snprintf(text, room, "%.0fh%02.0fm", (double)((long)s / 3600), (double)((long)s % 3600 / 60));
    else if (s >= 60)
        snprintf(text, room, "%.0fm%02.0fs", (double)((long)s / 60), (double)((long)s % 60));
    else
        snprintf(text, room, "%.0fs", s);
}

/* "123/990, 3 failed, 41.2 tokens/s, 3m20s left" */
static void put_figures(const struct batch_progress *p, uint64_t now_ns, char *text, size_t room)
{
    uint64_t done = p->n_answered + p->n_failed + p->n_skipped, now_done = p->n_answered + p->n_failed;
    char left[32] = "", total[32] = "", failed[48] = "", waiting[96] = "";

    if (p->total > 0)
        snprintf(total, sizeof(total), "/%llu", (unsigned long long)p->total);
    if (p->n_failed > 0)
        snprintf(failed, sizeof(failed), ", %llu failed", (unsigned long long)p->n_failed);
    if (p->waiting != NULL)
        snprintf(waiting, sizeof(waiting), ", waiting: %s", p->waiting);
    if (p->total > done && now_done > 0) {
        char time[24];
        put_time(time, sizeof(time), seconds(p, now_ns) / (double)now_done * (double)(p->total - done));
        snprintf(left, sizeof(left), ", %s left", time);
    }
    snprintf(text, room, "%llu%s%s, %.1f tokens/s%s%s", (unsigned long long)done, total, failed,
             (double)p->completion_tokens / seconds(p, now_ns), left, waiting);
}

static void draw_bar(const struct batch_progress *p, const char *figures)
{
    uint64_t done = p->n_answered + p->n_failed + p->n_skipped;
    unsigned columns = terminal_columns(stderr), room = columns > 2 ? columns - 2 : 0;
    unsigned filled = p->total > 0 ? (unsigned)(done * BAR_COLUMNS / p->total) : 0;
    char bar[BAR_COLUMNS + 4] = "";

    if (p->total > 0 && room > BAR_COLUMNS + 40) {
        bar[0] = '[';
        for (unsigned i = 0; i < BAR_COLUMNS; i++)
            bar[i + 1] = i < filled ? '#' : '.';
        memcpy(bar + BAR_COLUMNS + 1, "] ", 3);
    }
    fprintf(stderr, "\r%s%.*s\x1b[K", bar, (int)(room - strlen(bar)), figures);
    fflush(stderr);
}

int batch_progress_tell(struct batch_progress *p, uint64_t now_ns)
{
    int every = terminal_is(stderr) ? BAR_EVERY_MS : LINE_EVERY_MS,
        since = (int)((now_ns - p->told_ns) / 1000000);
    char figures[256];

    if (p->quiet)
        return -1;
    if (since < every)
        return every - since;
    p->told_ns = now_ns;
    put_figures(p, now_ns, figures, sizeof(figures));
    if (terminal_is(stderr))
        draw_bar(p, figures);
    else
        fprintf(stderr, "weir batch: %s\n", figures);
    return every;
}

static void clear(const struct batch_progress *p)
{
    if (!p->quiet && terminal_is(stderr))
        fprintf(stderr, "\r\x1b[K");
}

void batch_progress_sum(const struct batch_progress *p, uint64_t now_ns, const char *errors_path)
{
    char time[24];

    clear(p);
    if (p->quiet)
        return;
    put_time(time, sizeof(time), seconds(p, now_ns));
    fprintf(stderr, "weir batch: %llu answered, %llu failed", (unsigned long long)p->n_answered,
            (unsigned long long)p->n_failed);
    if (p->n_failed > 0 && errors_path != NULL && errors_path[0] != '\0')
        fprintf(stderr, " (see %s)", errors_path);
    if (p->n_skipped > 0)
        fprintf(stderr, ", %llu answered before", (unsigned long long)p->n_skipped);
    fprintf(stderr, "; %s, %llu tokens, %.1f a second", time, (unsigned long long)p->completion_tokens,
            (double)p->completion_tokens / seconds(p, now_ns));
    if (p->prompt_tokens > 0)
        fprintf(stderr, ", %.0f%% of prompt tokens from the cache",
                100.0 * (double)p->cached_tokens / (double)p->prompt_tokens);
    if (p->takeovers > 0)
        fprintf(stderr, ", %llu takeovers", (unsigned long long)p->takeovers);
    fputs("\n", stderr);
}
