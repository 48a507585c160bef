/* trace_view.c - see trace_view.h.
 *
 * The bars are of the whole, so a look shows what was slow; the numbers beside them are exact and add up to the total. */
#include "trace_view.h"

#include <string.h>

#include "json_field.h"
#include "terminal.h"

enum { BAR = 30 };

static void put_text(FILE *out, const char *text)
{
    terminal_show(out, text, strlen(text));
}

/* The columns of a bar that [start, start + ms) of the total covers; at least one. */
static void put_bar(FILE *out, double start, double ms, double total)
{
    double scale = total > 0 ? BAR / total : 0;
    int from = (int)(start * scale), to = (int)((start + ms) * scale + 0.5);

    from = from >= BAR ? BAR - 1 : from < 0 ? 0 : from;
    to = to > BAR ? BAR : to <= from ? from + 1 : to;
    putc('|', out);
    for (int i = 0; i < BAR; i++)
        putc(i < from || i >= to ? ' ' : ms > 0 ? '#' : '.', out);
    putc('|', out);
}

static void put_note(FILE *out, const char *name, const json_t *r)
{
    if (strcmp(name, "tokenize") == 0)
        fprintf(out, " %.2f computing", json_number(r, "tokenize_ms"));
    else if (strcmp(name, "prefill") == 0)
        fprintf(out, " %.0f chunks, %.2f", json_number(r, "chunks_total"), json_number(r, "chunks_ms"));
    else if (strcmp(name, "steps") == 0)
        fprintf(out, " %.0f steps, %.2f", json_number(r, "steps"), json_number(r, "steps_ms"));
}

static void print_phases(FILE *out, const json_t *r)
{
    double total = json_number(r, "total_ms");
    json_t *p, *c;
    size_t i, k;

    json_array_foreach(json_object_get(r, "phases"), i, p)
    {
        const char *name = json_text(p, "name");

        fprintf(out, "%-10.10s%10.2f ms %3.0f%% ", name, json_number(p, "ms"),
               total > 0 ? 100 * json_number(p, "ms") / total : 0);
        put_bar(out, json_number(p, "start_ms"), json_number(p, "ms"), total);
        put_note(out, name, r);
        putc('\n', out);
        if (strcmp(name, "prefill") != 0 || json_array_size(json_object_get(r, "chunks")) < 2)
            continue;
        json_array_foreach(json_object_get(r, "chunks"), k, c)
        {
            fprintf(out, "  chunk %-2zu%10.2f ms      ", k + 1, json_number(c, "ms"));
            put_bar(out, json_number(c, "start_ms"), json_number(c, "ms"), total);
            fprintf(out, " %.0f rows\n", json_number(c, "rows"));
        }
        if (json_number(r, "chunks_total") > (double)json_array_size(json_object_get(r, "chunks")))
            fprintf(out, "  (the last of these sums up the rest)\n");
    }
    fprintf(out, "%-10.10s%10.2f ms\n", "total", total);
}

void trace_view_request(const json_t *r, FILE *out)
{
    fprintf(out, "request   ");
    put_text(out, json_text(r, "request"));
    fprintf(out, "  %s %s", json_text(r, "class"), json_text(r, "kind"));
    fprintf(out, "  user ");
    put_text(out, json_text(r, "user"));
    fprintf(out, "  model ");
    put_text(out, json_text(r, "model"));
    fprintf(out, "\nstate     %s", json_text(r, "state"));
    if (json_text(r, "error")[0] != '\0')
        fprintf(out, ": %s", json_text(r, "error"));
    if (json_object_get(r, "worker") != NULL)
        fprintf(out, "  worker %.0f", json_number(r, "worker"));
    if (json_number(r, "takeovers") > 0)
        fprintf(out, "  taken over %.0f times", json_number(r, "takeovers"));
    if (json_number(r, "preemptions") > 0)
        fprintf(out, "  made room %.0f times", json_number(r, "preemptions"));
    fprintf(out, "\ntokens    prompt %.0f, of them cached %.0f; generated %.0f\n\n", json_number(r, "prompt_tokens"),
           json_number(r, "cached_tokens"), json_number(r, "completion_tokens"));
    print_phases(out, r);
}

void trace_view_list(const json_t *requests, FILE *out)
{
    json_t *r;
    size_t i;

    fprintf(out, "%-24s %-8s %10s %7s %7s  %s\n", "request", "state", "total ms", "prompt", "answer",
           "user, model");
    json_array_foreach(requests, i, r)
    {
        fprintf(out, "%-24s %-8s %10.1f %7.0f %7.0f  ", json_text(r, "request"), json_text(r, "state"),
               json_number(r, "total_ms"), json_number(r, "prompt_tokens"), json_number(r, "completion_tokens"));
        put_text(out, json_text(r, "user"));
        fprintf(out, ", ");
        put_text(out, json_text(r, "model"));
        if (json_text(r, "error")[0] != '\0')
            fprintf(out, "  %s", json_text(r, "error"));
        putc('\n', out);
    }
}
