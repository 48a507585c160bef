/* cmd_trace.c - `weir trace`: where the time of a request went, as a small timeline.
 *
 * The bars are of the whole, so a look shows what was slow; the numbers beside them are exact and add up to the total. */
#include "commands.h"

#include <stdlib.h>
#include <string.h>

#include "json_field.h"
#include "terminal.h"

static struct {
    const char *connect;
    bool json;
} options;

enum { BAR = 30 };

size_t trace_flags(struct flag *ret_flags)
{
    ret_flags[0] =
        (struct flag){"json", 0, FLAG_SWITCH, &options.json, NULL, "print the broker's answer as JSON", 0, 0};
    return 1 + command_connect_flags(ret_flags + 1, &options.connect);
}

static void put_text(const char *text)
{
    terminal_text(stdout, text, strlen(text));
}

/* The columns of a bar that [start, start + ms) of the total covers; at least one. */
static void put_bar(double start, double ms, double total)
{
    double scale = total > 0 ? BAR / total : 0;
    int from = (int)(start * scale), to = (int)((start + ms) * scale + 0.5);

    from = from >= BAR ? BAR - 1 : from < 0 ? 0 : from;
    to = to > BAR ? BAR : to <= from ? from + 1 : to;
    putchar('|');
    for (int i = 0; i < BAR; i++)
        putchar(i < from || i >= to ? ' ' : ms > 0 ? '#' : '.');
    putchar('|');
}

static void put_note(const char *name, const json_t *r)
{
    if (strcmp(name, "tokenize") == 0)
        printf(" %.2f computing", json_number(r, "tokenize_ms"));
    else if (strcmp(name, "prefill") == 0)
        printf(" %.0f chunks, %.2f", json_number(r, "chunks_total"), json_number(r, "chunks_ms"));
    else if (strcmp(name, "steps") == 0)
        printf(" %.0f steps, %.2f", json_number(r, "steps"), json_number(r, "steps_ms"));
}

static void print_phases(const json_t *r)
{
    double total = json_number(r, "total_ms");
    json_t *p, *c;
    size_t i, k;

    json_array_foreach(json_object_get(r, "phases"), i, p)
    {
        const char *name = json_text(p, "name");

        printf("%-10.10s%10.2f ms %3.0f%% ", name, json_number(p, "ms"),
               total > 0 ? 100 * json_number(p, "ms") / total : 0);
        put_bar(json_number(p, "start_ms"), json_number(p, "ms"), total);
        put_note(name, r);
        putchar('\n');
        if (strcmp(name, "prefill") != 0 || json_array_size(json_object_get(r, "chunks")) < 2)
            continue;
        json_array_foreach(json_object_get(r, "chunks"), k, c)
        {
            printf("  chunk %-2zu%10.2f ms      ", k + 1, json_number(c, "ms"));
            put_bar(json_number(c, "start_ms"), json_number(c, "ms"), total);
            printf(" %.0f rows\n", json_number(c, "rows"));
        }
        if (json_number(r, "chunks_total") > (double)json_array_size(json_object_get(r, "chunks")))
            printf("  (the last of these sums up the rest)\n");
    }
    printf("%-10.10s%10.2f ms\n", "total", total);
}

static void print_request(const json_t *r)
{
    printf("request   ");
    put_text(json_text(r, "request"));
    printf("  %s %s", json_text(r, "class"), json_text(r, "kind"));
    printf("  user ");
    put_text(json_text(r, "user"));
    printf("  model ");
    put_text(json_text(r, "model"));
    printf("\nstate     %s", json_text(r, "state"));
    if (json_text(r, "error")[0] != '\0')
        printf(": %s", json_text(r, "error"));
    if (json_object_get(r, "worker") != NULL)
        printf("  worker %.0f", json_number(r, "worker"));
    if (json_number(r, "takeovers") > 0)
        printf("  taken over %.0f times", json_number(r, "takeovers"));
    if (json_number(r, "preemptions") > 0)
        printf("  made room %.0f times", json_number(r, "preemptions"));
    printf("\ntokens    prompt %.0f, of them cached %.0f; generated %.0f\n\n", json_number(r, "prompt_tokens"),
           json_number(r, "cached_tokens"), json_number(r, "completion_tokens"));
    print_phases(r);
}

static void print_list(const json_t *requests)
{
    json_t *r;
    size_t i;

    printf("%-24s %-8s %10s %7s %7s  %s\n", "request", "state", "total ms", "prompt", "answer",
           "user, model");
    json_array_foreach(requests, i, r)
    {
        printf("%-24s %-8s %10.1f %7.0f %7.0f  ", json_text(r, "request"), json_text(r, "state"),
               json_number(r, "total_ms"), json_number(r, "prompt_tokens"), json_number(r, "completion_tokens"));
        put_text(json_text(r, "user"));
        printf(", ");
        put_text(json_text(r, "model"));
        if (json_text(r, "error")[0] != '\0')
            printf("  %s", json_text(r, "error"));
        putchar('\n');
    }
}

int cmd_trace(int argc, char **argv)
{
    struct flag flags[FLAGS_MAX];
    struct weir_client *c = NULL;
    struct weir_error err;
    char *text = NULL;
    int n_args = flags_parse(flags, trace_flags(flags), "trace", argc, argv);

    if (n_args == FLAGS_HELP)
        return command_help("trace");
    if (n_args < 0)
        return EXIT_USAGE;
    if (n_args > 1)
        return command_usage("trace", "it takes one request, but there is \"%s\", too", argv[1]);
    enum exit_code code = command_open("trace", options.connect, &c);
    if (code != EXIT_DONE)
        return code;
    if (weir_trace_wait(c, n_args == 1 ? argv[0] : NULL, &text, &err) != WEIR_OK) {
        code = command_error("trace", &err);
        goto out;
    }
    json_t *root = json_loads(text, 0, NULL), *requests = json_object_get(root, "requests");
    if (options.json) {
        code = command_print_json(json_incref(root));
    } else {
        if (n_args == 1)
            print_request(json_array_get(requests, 0));
        else
            print_list(requests);
        code = command_flush("trace") ? EXIT_DONE : EXIT_FAILED;
    }
    json_decref(root);
out:
    free(text);
    weir_close(c);
    return code;
}
