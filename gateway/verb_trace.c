/* verb_trace.c - `ssh box trace [ID]`: where the time of one's own requests went, lines of jobs among them; as `weir trace` shows it (trace_view.h).
 *
 * (b) asks on behalf of the user, so the broker says of others' requests not even that they exist. */
#include <stdlib.h>
#include <string.h>

#include "limits.h"
#include "trace_view.h"
#include "verb_job.h"

static void start_trace(struct talk *t)
{
    uint8_t buffer[NAME_BYTES_MAX + 8];
    struct byte_writer w = { .at = buffer, .capacity = sizeof buffer };
    const char *name = t->call.n_args == 1 ? t->call.args[0] : "";
    struct error err;

    if (strlen(name) >= NAME_BYTES_MAX || (t->call.n_args == 1 && name[0] == '\0')) {
        error_set(&err, ERR_NOT_FOUND, "request", "not the name of a request: those have 1 to %d bytes", NAME_BYTES_MAX - 1);
        talk_fail(t, &err);
        return;
    }
    door_put_str(&w, span_str(name));
    talk_ask(t, DOOR_TRACE, &w, -1);
}

/* false: no memory. */
static bool print_text(struct talk *t, const json_t *requests)
{
    char *text = NULL;
    size_t n = 0;
    FILE *to = open_memstream(&text, &n);

    if (to != NULL && t->call.n_args == 1)
        trace_view_request(json_array_get(requests, 0), to);
    else if (to != NULL)
        trace_view_list(requests, to);
    bool whole = to != NULL && fclose(to) == 0;
    if (whole)
        talk_write(t, span_of(text, n));
    free(text);
    return whole;
}

static void trace_reply(struct talk *t, struct door_reader *r, int fd)
{
    json_t *reply = job_reply_json(t, r, fd);

    if (reply == NULL)
        return;
    bool whole = true;
    if (t->call.has[OPT_JSON])
        talk_print_json(t, reply);
    else
        whole = print_text(t, json_object_get(reply, "requests"));
    json_decref(reply);
    talk_finish(t, whole ? EXIT_OK : EXIT_INTERNAL);
}

const struct verb_handler verb_trace_handler = { .start = start_trace, .reply = trace_reply };
