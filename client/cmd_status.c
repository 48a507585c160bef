/* cmd_status.c - `weir status`: how the pool is, or wait until it can work.
 *
 * Ready means: the broker runs and at least one worker is ready.  --wait-ready is what scripts call after they have started a
 * pool, so it also waits for a broker that is not there yet. */
#include "commands.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "clock.h"
#include "json_field.h"
#include "terminal.h"

static struct {
    const char *connect;
    bool json;
    uint32_t wait_ms;
} options;

enum { RETRY_MS = 100 };

size_t status_flags(struct flag *ret_flags)
{
    size_t n = 0;

    ret_flags[n++] =
        (struct flag){"json", 0, FLAG_SWITCH, &options.json, NULL, "print the broker's answer as JSON", 0, 0};
    ret_flags[n++] =
        (struct flag){"wait-ready",
                      0,
                      FLAG_MS,
                      &options.wait_ms,
                      "SECONDS",
                      "wait until a worker is ready, at most so long; exit code 3 or 4 if none is",
                      0,
                      0};
    return n + command_connect_flags(ret_flags + n, &options.connect);
}

/* --- asking ------------------------------------------------------------------------------------ */

static bool is_ready(const json_t *status)
{
    json_t *worker;
    size_t i;

    if (strcmp(json_text(status, "state"), "running") != 0)
        return false;
    json_array_foreach(json_object_get(status, "workers"), i,
                       worker) if (strcmp(json_text(worker, "state"), "ready") == 0 ||
                                   strcmp(json_text(worker, "state"), "released") == 0) return true;
    return false;
}

/* Until ready or the time is over.  Gives the last status, or NULL with *err. */
static json_t *ask_until_ready(struct weir_error *err)
{
    uint64_t until = clock_now_ns() + options.wait_ms * 1000000ull;

    for (;;) {
        json_t *status = command_status(options.connect, err);
        bool again = status == NULL ? command_exit_code(err) == EXIT_UNREACHABLE : !is_ready(status);
        if (!again || clock_now_ns() >= until)
            return status;
        json_decref(status);
        nanosleep(&(struct timespec){.tv_nsec = RETRY_MS * 1000000L}, NULL);
    }
}

/* --- telling ----------------------------------------------------------------------------------- */

/* A line of fields.  On a terminal one that would pass the right edge begins a new, indented line; elsewhere all is one line. */
static struct {
    unsigned column, indent, columns; /* columns 0: no edge */
} line;

static void begin_line(unsigned indent)
{
    line.indent = indent;
    line.column = 0;
    line.columns = terminal_is(stdout) ? terminal_columns(stdout) : 0;
}

static void put_word(const char *text, size_t bytes, unsigned gap)
{
    unsigned width = 0;

    for (size_t i = 0; i < bytes; i++)
        width += ((unsigned char)text[i] & 0xC0) != 0x80; /* a character begins */
    if (line.columns != 0 && line.column > line.indent && line.column + gap + width > line.columns) {
        printf("\n%*s", (int)line.indent, "");
        line.column = line.indent;
        gap = 0;
    }
    printf("%*s", (int)gap, "");
    terminal_text(stdout, text, bytes);
    line.column += gap + width;
}

/* Kept together if it is short; a sentence goes on in the next line between its words. */
__attribute__((format(printf, 1, 2))) static void put(const char *format, ...)
{
    char text[1024];
    va_list args;
    unsigned gap = line.column > line.indent ? 2 : 0;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (strlen(text) <= 40) {
        put_word(text, strlen(text), gap);
        return;
    }
    for (const char *word = text; *word != '\0'; gap = 1) {
        size_t n = strcspn(word, " ");

        put_word(word, n, gap);
        word += n + strspn(word + n, " ");
    }
}

static void print_duration(char text[32], double s)
{
    if (s >= 86400)
        snprintf(text, 32, "%ldd %ldh", (long)s / 86400, (long)s % 86400 / 3600);
    else if (s >= 3600)
        snprintf(text, 32, "%ldh %ldm", (long)s / 3600, (long)s % 3600 / 60);
    else if (s >= 60)
        snprintf(text, 32, "%ldm %lds", (long)s / 60, (long)s % 60);
    else
        snprintf(text, 32, "%.0fs", s);
}

static void print_worker(const json_t *w)
{
    double total = json_number(w, "blocks_total") + 1e-9;

    begin_line(5);
    line.column = (unsigned)printf("  %-3.0f", json_number(w, "slot"));
    put("%-8s", json_text(w, "state"));
    if (json_text(w, "order")[0] != '\0' && strcmp(json_text(w, "order"), "run") != 0)
        put("%s", json_text(w, "order"));
    if (json_object_get(w, "blocks_total") != NULL) {
        put("%4.0f run %4.0f wait", json_number(w, "running"), json_number(w, "waiting"));
        put("KV %3.0f%% pinned %3.0f%% cached", 100 * json_number(w, "blocks_pinned") / total,
            100 * json_number(w, "blocks_cached") / total);
        if (json_number(w, "store_blocks_max") > 0)
            put("store %3.0f%% full %.0f read", 100 * json_number(w, "store_blocks") / json_number(w, "store_blocks_max"),
                json_number(w, "store_hits") + json_number(w, "store_hits_other"));
        put("%.0f tokens", json_number(w, "tokens_generated"));
        put("%.0f reused (%.0f%%)", json_number(w, "tokens_cached"), 100 * json_number(w, "hit_rate"));
        if (json_number(w, "evictions") > 0)
            put("%.0f evicted at %.0f s", json_number(w, "evictions"), json_number(w, "eviction_age_ms_mean") / 1e3);
        if (json_number(w, "preemptions") > 0)
            put("%.0f preempted", json_number(w, "preemptions"));
    }
    put("%s", json_text(w, "model"));
    put("%s", json_text(w, "device"));
    if (json_number(w, "restarts") > 0)
        put("%.0f restarts", json_number(w, "restarts"));
    if (json_text(w, "error")[0] != '\0')
        put("%s", json_text(w, "error"));
    putchar('\n');
}

/* Queued requests and what they wait for. */
static void print_queue(const json_t *q)
{
    begin_line(5);
    line.column = (unsigned)printf("  %-3.0f", json_number(q, "queued"));
    put("queued for %s", json_text(q, "model"));
    put("wait for %s", json_text(q, "waits_for"));
    putchar('\n');
}

static void print_user(const json_t *u)
{
    double prompt = json_number(u, "prompt_tokens");

    begin_line(5);
    line.column = (unsigned)printf("  ");
    put("%-18s", json_text(u, "name"));
    put("%4.0f running %4.0f queued", json_number(u, "running"), json_number(u, "queued"));
    put("%.0f requests", json_number(u, "requests"));
    put("%.0f prompt tokens", prompt);
    put("%.0f reused (%.0f%%)", json_number(u, "cached_tokens"), 100 * json_number(u, "hit_rate"));
    put("%.0f generated", json_number(u, "completion_tokens"));
    put("%.1f ms in queue", json_number(u, "queue_ms_mean"));
    if (json_number(u, "preemptions") > 0)
        put("%.0f preempted", json_number(u, "preemptions"));
    putchar('\n');
}

static void print_status(const json_t *s)
{
    const json_t *pool = json_object_get(s, "pool"), *totals = json_object_get(s, "totals");
    json_t *item;
    size_t i;
    char up[32];

    print_duration(up, json_number(s, "up_s"));
    begin_line(2);
    put("weir-broker %s", json_text(s, "version"));
    put("%s for %s", json_text(s, "state"), up);
    put("%.0f running", json_number(pool, "running"));
    put("%.0f + %.0f queued (interactive + batch)", json_number(pool, "queued_interactive"), json_number(pool, "queued_batch"));
    put("%.0f clients", json_number(pool, "clients"));
    putchar('\n');
    begin_line(2);
    put("so far: %.0f done", json_number(totals, "done"));
    put("%.0f failed", json_number(totals, "failed"));
    put("%.0f cancelled", json_number(totals, "cancelled"));
    put("%.0f takeovers", json_number(totals, "takeovers"));
    put("%.0f tokens", json_number(totals, "tokens"));
    putchar('\n');
    printf("workers:\n");
    json_array_foreach(json_object_get(s, "workers"), i, item) print_worker(item);
    json_array_foreach(json_object_get(s, "queues"), i, item) print_queue(item);
    if (json_array_size(json_object_get(s, "users")) > 0)
        printf("users:\n");
    json_array_foreach(json_object_get(s, "users"), i, item) print_user(item);
}

int cmd_status(int argc, char **argv)
{
    struct flag flags[FLAGS_MAX];
    struct weir_error err;
    int n_args = flags_parse(flags, status_flags(flags), "status", argc, argv);

    if (n_args == FLAGS_HELP)
        return command_help("status");
    if (n_args < 0)
        return EXIT_USAGE;
    if (n_args > 0)
        return command_usage("status", "it takes no argument, but there is \"%s\"", argv[0]);
    json_t *status = options.wait_ms > 0 ? ask_until_ready(&err) : command_status(options.connect, &err);
    if (status == NULL)
        return command_error("status", &err);
    enum exit_code code = EXIT_DONE;
    if (options.json) {
        code = command_print_json(json_incref(status));
    } else {
        print_status(status);
        code = command_flush("status") ? EXIT_DONE : EXIT_FAILED;
    }
    if (options.wait_ms > 0 && !is_ready(status)) {
        fprintf(stderr, "weir status: no worker was ready within %u ms\n", options.wait_ms);
        code = EXIT_REFUSED;
    }
    json_decref(status);
    return code;
}
