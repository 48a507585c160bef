/* job_json.c - see job_json.h.  Times are seconds since 1970, as in the OpenAI API; null where something has not happened. */
#include "job_json.h"

#include <string.h>

#include "clock.h"
#include "outlook.h"
#include "standstill.h"

static json_t *seconds(int64_t ms)
{
    return ms != 0 ? json_integer(ms / 1000) : json_null();
}

static json_t *string_or_null(const char *s)
{
    return s[0] != '\0' ? json_string(s) : json_null();
}

static const char *status_of(const struct job_row *row, const struct job *live)
{
    if (live != NULL && row->state == JOB_IN_PROGRESS && live->n_pending > 0 &&
        row->n_done + row->n_failed + live->n_pending == row->n_lines)
        return "finalizing";
    return job_state_name(row->state);
}

/* From submit to the end, or to now. */
static double elapsed_s(const struct job_row *row)
{
    int64_t until_ms = row->ended_ms != 0 ? row->ended_ms : clock_real_ms();
    return (double)(until_ms - row->created_ms) / 1000;
}

/* The same moment under the name the OpenAI API has for this state. */
static void put_end(json_t *job, const struct job_row *row)
{
    static const struct {
        enum job_state state;
        const char *name;
    } ends[] = { { JOB_COMPLETED, "completed_at" },
                 { JOB_CANCELLED, "cancelled_at" },
                 { JOB_EXPIRED, "expired_at" },
                 { JOB_FAILED, "failed_at" } };

    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        json_object_set_new(job, ends[i].name, seconds(row->state == ends[i].state ? row->ended_ms : 0));
}

static json_t *count(uint64_t n)
{
    return json_integer((json_int_t)n);
}

static void put_counts(json_t *job, const struct job_row *row)
{
    json_object_set_new(job, "request_counts",
                        json_pack("{so so so}", "total", count(row->n_lines), "completed", count(row->n_done),
                                  "failed", count(row->n_failed)));
    json_object_set_new(job, "finish_reasons",
                        json_pack("{so so so}", "stop", count(row->n_done - row->n_length), "length",
                                  count(row->n_length), "error", count(row->n_failed)));
    json_object_set_new(job, "usage",
                        json_pack("{so so so so}", "prompt_tokens", count(row->prompt_tokens), "cached_tokens",
                                  count(row->cached_tokens), "completion_tokens", count(row->completion_tokens),
                                  "total_tokens", count(row->prompt_tokens + row->completion_tokens)));
    json_object_set_new(job, "bytes",
                        json_pack("{so so so}", "input", count(row->input_bytes), "output",
                                  count(row->output_bytes), "errors", count(row->errors_bytes)));
    json_object_set_new(job, "retries", count(row->n_retries));
    json_object_set_new(job, "held", count(row->n_held));
}

json_t *job_json(const struct job_row *row, struct runner *runner)
{
    static const char *const priorities[] = { "normal", "low", "normal", "high" };
    const struct job *live = runner_find(runner, row->seq);
    struct outlook outlook = { 0 };
    char note[JOB_NOTE_BYTES] = "";
    json_t *job = json_object();

    if (live != NULL && live->row.state == JOB_IN_PROGRESS)
        outlook = outlook_of(runner, live);
    if (live != NULL)
        standstill_note(runner, live, note);
    if (live != NULL && live->note[0] != '\0')
        memcpy(note, live->note, sizeof note);

    json_object_set_new(job, "id", json_string(row->id));
    json_object_set_new(job, "object", json_string("batch"));
    json_object_set_new(job, "name", string_or_null(row->name));
    json_object_set_new(job, "user", json_string(row->user));
    json_object_set_new(job, "status", json_string(status_of(row, live)));
    json_object_set_new(job, "created_at", seconds(row->created_ms));
    json_object_set_new(job, "in_progress_at", seconds(row->started_ms));
    json_object_set_new(job, "expires_at", seconds(row->deadline_ms));
    put_end(job, row);
    json_object_set_new(job, "ended_at", seconds(row->ended_ms));
    json_object_set_new(job, "elapsed_s", json_real(elapsed_s(row)));
    put_counts(job, row);
    json_object_set_new(job, "model", string_or_null(row->model));
    json_object_set_new(job, "priority", json_string(priorities[row->priority <= 3 ? row->priority : 0]));
    json_object_set_new(job, "running", count(live != NULL ? live->n_flying : 0));
    json_object_set_new(job, "lines_ahead", count(outlook.lines_ahead));
    json_object_set_new(job, "eta_s", outlook.seconds > 0 && note[0] == '\0' ? count(outlook.seconds) : json_null());
    json_object_set_new(job, "note", string_or_null(note));
    json_object_set_new(job, "error", string_or_null(row->error));
    return job;
}
