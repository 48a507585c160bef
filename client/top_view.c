/* top_view.c - see top_view.h.  Every line is made in a buffer of the screen's width, so nothing can run over the edge. */
#include "top_view.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "json_field.h"
#include "terminal.h"

enum { USERS_SHOWN_MAX = 1024, BAR = 14 };

struct page {
    const struct top_view *v;
    FILE *out;
    unsigned line; /* written so far */
};

enum style { PLAIN, HEAD, ALARM };

/* Bytes of text that take at most so many columns.  Names are ASCII by the broker's rules; an error's text may not be. */
static size_t fitting(const char *text, unsigned columns)
{
    size_t n = 0;

    for (unsigned width = 0; text[n] != '\0'; n++) {
        if (((unsigned char)text[n] & 0xC0) == 0x80)
            continue;
        if (width == columns)
            break;
        width++;
    }
    return n;
}

__attribute__((format(printf, 3, 4))) static void put(struct page *p, enum style style, const char *format, ...)
{
    static const char *const on[] = {[PLAIN] = "", [HEAD] = "\033[7m", [ALARM] = "\033[31m"};
    char text[1024], *shown = NULL;
    size_t n = 0;
    va_list args;

    if (p->line >= p->v->lines)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    for (char *c = text; (c = strpbrk(c, "\n\t")) != NULL;) /* terminal_show() lets them pass; here a line is one line */
        *c = ' ';
    for (n = strlen(text); !p->v->on_screen && n > 0 && text[n - 1] == ' ';) /* the last column is filled up too */
        text[--n] = '\0';
    FILE *f = open_memstream(&shown, &n);
    if (f == NULL)
        return;
    terminal_show(f, text, strlen(text));
    fclose(f);
    bool colored = p->v->color && style != PLAIN;
    n = fitting(shown, p->v->columns);
    fprintf(p->out, "%s%.*s%s%s", colored ? on[style] : "", (int)n, shown, colored ? "\033[0m" : "", p->v->on_screen ? "\033[K" : "");
    p->line++;
    if (p->line < p->v->lines || !p->v->on_screen) /* a newline in the last line would scroll */
        fputs(p->v->on_screen ? "\r\n" : "\n", p->out);
    free(shown);
}

/* --- numbers ------------------------------------------------------------------------------------ */

/* 7 characters at most: 12345, 123k, 12.3M */
static const char *brief(double x, char text[16])
{
    if (x < 99999.5)
        snprintf(text, 16, "%.0f", x);
    else if (x < 999.5e3)
        snprintf(text, 16, "%.0fk", x / 1e3);
    else if (x < 999.5e6)
        snprintf(text, 16, "%.1fM", x / 1e6);
    else
        snprintf(text, 16, "%.1fG", x / 1e9);
    return text;
}

static const char *duration(double s, char text[48])
{
    if (s >= 86400)
        snprintf(text, 48, "%ldd %ldh", (long)s / 86400, (long)s % 86400 / 3600);
    else if (s >= 3600)
        snprintf(text, 48, "%ldh %ldm", (long)s / 3600, (long)s % 3600 / 60);
    else
        snprintf(text, 48, "%ldm %lds", (long)s / 60, (long)s % 60);
    return text;
}

/* The item of a list of the status before that has the same value under key. */
static const json_t *earlier(const struct top_view *v, const char *list, const json_t *item, const char *key)
{
    json_t *old;
    size_t i;

    if (v->before == NULL)
        return NULL;
    json_array_foreach(json_object_get(v->before, list), i, old)
        if (json_equal(json_object_get(old, key), json_object_get(item, key)))
            return old;
    return NULL;
}

/* What a counter grew by in a second; 0 when it is not known or began anew. */
static double rate(const struct top_view *v, const json_t *now, const json_t *before, const char *key)
{
    double grown = before != NULL ? json_number(now, key) - json_number(before, key) : 0;

    return grown > 0 && v->seconds > 0 ? grown / v->seconds : 0;
}

/* --- the pool ------------------------------------------------------------------------------------ */

static void put_pool(struct page *p)
{
    const struct top_view *v = p->v;
    const json_t *pool = json_object_get(v->now, "pool"), *totals = json_object_get(v->now, "totals");
    const json_t *before = json_object_get(v->before, "totals");
    char up[48], held[16], most[16], tokens[16];
    unsigned n_ready = 0;
    json_t *w;
    size_t i;

    json_array_foreach(json_object_get(v->now, "workers"), i, w)
        n_ready += strcmp(json_text(w, "state"), "ready") == 0;
    put(p, PLAIN, "weir %s  %s for %s  %u of %zu workers ready%s", json_text(v->now, "version"), json_text(v->now, "state"),
        duration(json_number(v->now, "up_s"), up), n_ready, json_array_size(json_object_get(v->now, "workers")),
        v->paused ? "  PAUSED" : "");
    put(p, PLAIN, "running %.0f  queue: %.0f interactive %.0f batch %.0f resumed  clients %.0f  held %s/%s",
        json_number(pool, "running"), json_number(pool, "queued_interactive"), json_number(pool, "queued_batch"),
        json_number(pool, "queued_resumed"), json_number(pool, "clients"), brief(json_number(pool, "bytes"), held),
        brief(json_number(pool, "bytes_max"), most));
    put(p, PLAIN, "%.1f tokens/s  %.1f requests/s  done %.0f  failed %.0f  cancelled %.0f  takeovers %.0f  tokens %s",
        rate(v, totals, before, "tokens"), rate(v, totals, before, "done"), json_number(totals, "done"), json_number(totals, "failed"),
        json_number(totals, "cancelled"), json_number(totals, "takeovers"), brief(json_number(totals, "tokens"), tokens));
}

/* --- workers ------------------------------------------------------------------------------------- */

/* Blocks as a bar: # in use, = kept for reuse, . free */
static void draw_bar(const json_t *w, char bar[BAR + 1])
{
    double total = json_number(w, "blocks_total");
    int pinned = total > 0 ? (int)(BAR * json_number(w, "blocks_pinned") / total + 0.5) : 0;
    int cached = total > 0 ? (int)(BAR * json_number(w, "blocks_cached") / total + 0.5) : 0;

    for (int i = 0; i < BAR; i++)
        bar[i] = i < pinned ? '#' : i < pinned + cached ? '=' : '.';
    bar[BAR] = '\0';
}

static void put_worker(struct page *p, const json_t *w)
{
    const json_t *before = earlier(p->v, "workers", w, "slot");
    char bar[BAR + 1], out[16], in[16];
    bool ready = strcmp(json_text(w, "state"), "ready") == 0;

    if (before != NULL && json_number(before, "life") != json_number(w, "life"))
        before = NULL; /* another process: its counters began anew */
    if (json_object_get(w, "blocks_total") == NULL) {
        put(p, ALARM, "%4.0f %-8s  %s  restarts %.0f  %s", json_number(w, "slot"), json_text(w, "state"), json_text(w, "model"),
            json_number(w, "restarts"), json_text(w, "error"));
        return;
    }
    draw_bar(w, bar);
    double steps = rate(p->v, w, before, "steps");
    double rows = rate(p->v, w, before, "tokens_generated") + rate(p->v, w, before, "tokens_prefilled");
    put(p, ready ? PLAIN : ALARM, "%4.0f %-8s %4.0f %4.0f %s %6s %7s %6.1f %6.1f %4.0f %s", json_number(w, "slot"), json_text(w, "state"),
        json_number(w, "running"), json_number(w, "waiting"), bar, brief(rate(p->v, w, before, "tokens_generated"), out),
        brief(rate(p->v, w, before, "tokens_prefilled"), in), steps > 0 ? rows / steps : 0.0, json_number(w, "step_ms_mean"),
        json_number(w, "restarts"), json_text(w, "model"));
}

static void put_workers(struct page *p, unsigned most)
{
    const json_t *workers = json_object_get(p->v->now, "workers");
    json_t *w;
    size_t i;

    put(p, HEAD, "%-*s", (int)p->v->columns, "SLOT STATE     RUN WAIT #used =cached.  TOK/S PREFILL  BATCH STEPms REST MODEL");
    json_array_foreach(workers, i, w)
    {
        if (i + 1 == most && json_array_size(workers) > most) {
            put(p, PLAIN, "     ... %zu more", json_array_size(workers) - i);
            return;
        }
        put_worker(p, w);
    }
}

/* --- GPUs ---------------------------------------------------------------------------------------- */

/* One line; those that do not fit into it are not shown. */
static void put_devices(struct page *p, const json_t *devices)
{
    char line[512] = "";
    size_t i, n = 0;
    json_t *d;

    json_array_foreach(devices, i, d)
    {
        double size = json_number(d, "memory_size");
        int more = snprintf(line + n, sizeof(line) - n, "%s%.0f %s %.0f%% memory %.0f%%", i > 0 ? "  " : "GPU ", json_number(d, "index"),
                            json_text(d, "name"), 100 * json_number(d, "utilization"),
                            size > 0 ? 100 * json_number(d, "memory_used") / size : 0.0);
        if (more < 0 || (size_t)more >= sizeof(line) - n) {
            line[n] = '\0';
            break;
        }
        n += (size_t)more;
    }
    put(p, PLAIN, "%s", line);
}

/* --- users --------------------------------------------------------------------------------------- */

struct user_line {
    const json_t *u;
    double rate;
};

static enum top_sort order; /* of compare(): qsort takes no argument for it */

static double weight(const struct user_line *l)
{
    switch (order) {
    case TOP_BY_RATE:
        return l->rate;
    case TOP_BY_RUNNING:
        return json_number(l->u, "running");
    case TOP_BY_QUEUED:
        return json_number(l->u, "queued");
    case TOP_BY_TOKENS:
        return json_number(l->u, "completion_tokens");
    default:
        return 0;
    }
}

static int compare(const void *a, const void *b)
{
    double x = weight(a), y = weight(b);

    if (x != y)
        return x > y ? -1 : 1;
    return strcmp(json_text(((const struct user_line *)a)->u, "name"), json_text(((const struct user_line *)b)->u, "name"));
}

static void put_users(struct page *p, unsigned most)
{
    static struct user_line lines[USERS_SHOWN_MAX];
    const json_t *users = json_object_get(p->v->now, "users");
    size_t n = 0, i;
    json_t *u;

    json_array_foreach(users, i, u)
        if (n < USERS_SHOWN_MAX)
            lines[n++] = (struct user_line){u, rate(p->v, u, earlier(p->v, "users", u, "name"), "completion_tokens")};
    order = p->v->sort;
    qsort(lines, n, sizeof(lines[0]), compare);
    put(p, HEAD, "%-*s", (int)p->v->columns, "USER                  RUN QUEUED REQUESTS   PROMPT CACHED  ANSWERS  TOK/S");
    for (i = 0; i < n; i++) {
        char prompt[16], answers[16], requests[16];
        double tokens = json_number(lines[i].u, "prompt_tokens");

        if (i + 1 == most && n > most) {
            put(p, PLAIN, "... %zu more", n - i);
            return;
        }
        put(p, PLAIN, "%-20s %4.0f %6.0f %8s %8s  %4.0f%% %8s %6.0f", json_text(lines[i].u, "name"), json_number(lines[i].u, "running"),
            json_number(lines[i].u, "queued"), brief(json_number(lines[i].u, "requests"), requests), brief(tokens, prompt),
            tokens > 0 ? 100 * json_number(lines[i].u, "cached_tokens") / tokens : 0.0,
            brief(json_number(lines[i].u, "completion_tokens"), answers), lines[i].rate);
    }
}

/* --- all ----------------------------------------------------------------------------------------- */

static const char *sort_name(enum top_sort s)
{
    static const char *const names[TOP_SORTS] = {"rate", "running", "queued", "tokens", "name"};

    return names[s];
}

void top_view_print(const struct top_view *v, FILE *out)
{
    struct page p = {.v = v, .out = out};
    size_t n_workers = json_array_size(json_object_get(v->now, "workers"));
    const json_t *devices = json_object_get(v->now, "devices");
    unsigned above = 8 + (json_array_size(devices) > 0); /* 3 of the pool, 1 of GPUs, 2 empty, 2 heads, 1 of keys */
    unsigned left = v->lines > above ? v->lines - above : 2;
    unsigned for_workers = n_workers < left / 2 ? (unsigned)n_workers : left / 2 > 0 ? left / 2 : 1;

    if (v->now != NULL) {
        put_pool(&p);
        if (json_array_size(devices) > 0)
            put_devices(&p, devices);
        put(&p, PLAIN, "%s", "");
        put_workers(&p, for_workers);
        put(&p, PLAIN, "%s", "");
        put_users(&p, left - for_workers);
    }
    if (v->problem != NULL)
        put(&p, ALARM, "%s", v->problem);
    if (!v->on_screen)
        return;
    fputs("\033[J", out);
    if (v->problem == NULL || p.line < v->lines) {
        p.line = v->lines - 1;
        fprintf(out, "\033[%u;1H", v->lines);
        put(&p, PLAIN, "q leave  s users by %s  space %s", sort_name(v->sort), v->paused ? "go on" : "pause");
    }
}

void top_looks_add(struct top_looks *l, json_t *status, uint64_t now_ns, struct top_view *v)
{
    json_decref(l->before);
    l->before = l->now;
    l->now = status;
    const char *boot = json_string_value(json_object_get(l->now, "boot"));
    const char *old = json_string_value(json_object_get(l->before, "boot"));
    bool same = boot != NULL && old != NULL && strcmp(boot, old) == 0; /* another broker counts from 0 */
    v->now = l->now;
    v->before = same ? l->before : NULL;
    v->seconds = (double)(now_ns - l->now_ns) / 1e9;
    l->now_ns = now_ns;
}

void top_looks_deinit(struct top_looks *l)
{
    json_decref(l->now);
    json_decref(l->before);
    *l = (struct top_looks){ 0 };
}
