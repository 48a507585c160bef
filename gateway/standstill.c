/* standstill.c - see standstill.h.  Answers are the sign of life: while lines end, nothing is asked and nothing is said. */
#include "standstill.h"

#include <stdio.h>
#include <string.h>

#include "json_field.h"

enum { LOOK_MS = 2000 };

/* Take what is known now; whoever watches a job sees it. */
static void learn(struct runner *r, json_t *queues)
{
    if (json_array_size(r->standstill.queues) + json_array_size(queues) > 0 ||
        r->standstill.up != r->link->up)
        for (struct job *j = r->jobs; j != NULL; j = j->next)
            j->version++;
    json_decref(r->standstill.queues);
    r->standstill.queues = queues;
}

/* Would a worker of this model take something new, if not now then when it has room? */
static bool somebody_takes(const json_t *workers, const char *model)
{
    const json_t *w;
    size_t i;

    json_array_foreach(workers, i, w)
    {
        if (strcmp(json_text(w, "model"), model) == 0 && strcmp(json_text(w, "state"), "ready") == 0 &&
            strcmp(json_text(w, "order"), "run") == 0)
            return true;
    }
    return false;
}

static void on_status(const struct weir_event *event, void *arg)
{
    struct runner *r = arg;
    json_t *q;
    size_t i;

    if (event->type != WEIR_JSON && event->type != WEIR_ERROR)
        return;
    r->standstill.asking = false;
    json_t *status = event->type == WEIR_JSON ? json_loadb(event->text, event->text_bytes, 0, NULL) : NULL;
    json_t *queues = json_array();
    json_array_foreach(json_object_get(status, "queues"), i, q)
    {
        if (!somebody_takes(json_object_get(status, "workers"), json_text(q, "model")))
            json_array_append(queues, q);
    }
    learn(r, queues);
    json_decref(status);
}

void standstill_step(struct runner *r, uint64_t now_ns)
{
    struct standstill *s = &r->standstill;
    uint64_t ended = r->n_answered + r->n_failed;
    struct weir_error err;

    if (s->up != r->link->up || s->ended != ended || r->n_flying == 0) {
        s->ended = ended;
        s->look_ns = now_ns + LOOK_MS * UINT64_C(1000000);
        learn(r, NULL);
        s->up = r->link->up;
    } else if (s->up && !s->asking && now_ns >= s->look_ns) {
        s->look_ns = now_ns + LOOK_MS * UINT64_C(1000000);
        s->asking = weir_query(r->link->client, WEIR_QUERY_STATUS, on_status, r, &err) == WEIR_OK;
    }
}

int standstill_timeout_ms(const struct runner *r, uint64_t now_ns)
{
    const struct standstill *s = &r->standstill;

    if (s->asking || r->n_flying == 0 || !r->link->up)
        return -1;
    return s->look_ns > now_ns ? (int)((s->look_ns - now_ns) / 1000000) + 1 : 0;
}

void standstill_note(const struct runner *r, const struct job *job, char ret_note[JOB_NOTE_BYTES])
{
    const json_t *q;
    size_t i;

    ret_note[0] = '\0';
    if (job->row.state != JOB_IN_PROGRESS)
        return;
    if (!r->link->up) {
        snprintf(ret_note, JOB_NOTE_BYTES, "waiting for the broker");
        return;
    }
    json_array_foreach(r->standstill.queues, i, q)
    {
        if (job->row.model[0] == '\0' || strcmp(job->row.model, json_text(q, "model")) == 0) {
            snprintf(ret_note, JOB_NOTE_BYTES, "%s waits for %s", json_text(q, "model"),
                     json_text(q, "waits_for"));
            return;
        }
    }
    if (job->n_flying == 0 && job->n_retries > 0 && job->goes_again[0] != '\0')
        snprintf(ret_note, JOB_NOTE_BYTES, "waiting: %.240s", job->goes_again);
}
