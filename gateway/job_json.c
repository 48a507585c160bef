/* job_json.c - see job_json.h.  Times are seconds since 1970, as in the OpenAI API; null where something has not happened. */
#include "job_json.h"

#include "clock.h"

static json_t *seconds(int64_t ms)
{
    return ms != 0 ? json_integer(ms / 1000) : json_null();
}

static json_t *string_or_null(const char *s)
{
    return s[0] != '\0' ? json_string(s) : json_null();
}

/* Seconds until the end at the pace since this process took the job up; 0: nothing can be said. */
static uint64_t eta_s(const struct job *live, uint64_t now_ns)
{
    uint64_t done = live->row.n_done + live->row.n_failed, here = done - live->done_before;

    if (here < 3 || now_ns <= live->since_ns)
        return 0;
    double seconds_a_line = (double)(now_ns - live->since_ns) / 1e9 / (double)here;
    return (uint64_t)(seconds_a_line * (double)(live->row.n_lines - done)) + 1;
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

json_t *job_json(const struct job_row *row, const struct job *live, uint64_t now_ns)
{
    static const char *const priorities[] = { "normal", "low", "normal", "high" };

    return json_pack(
        "{ss ss so ss ss sI so so sf so s{sI sI sI} s{sI sI sI sI} sI s{sI sI sI} so sI ss so ss so}", "id",
        row->id, "object", "batch", "name", string_or_null(row->name), "user", row->user, "status",
        status_of(row, live), "created_at", (json_int_t)(row->created_ms / 1000), "in_progress_at",
        seconds(row->started_ms), "ended_at", seconds(row->ended_ms), "elapsed_s", elapsed_s(row), "expires_at", seconds(row->deadline_ms),
        "request_counts", "total", (json_int_t)row->n_lines, "completed", (json_int_t)row->n_done, "failed",
        (json_int_t)row->n_failed, "usage", "prompt_tokens", (json_int_t)row->prompt_tokens, "cached_tokens",
        (json_int_t)row->cached_tokens, "completion_tokens", (json_int_t)row->completion_tokens,
        "total_tokens", (json_int_t)(row->prompt_tokens + row->completion_tokens), "retries",
        (json_int_t)row->n_retries, "bytes", "input", (json_int_t)row->input_bytes, "output",
        (json_int_t)row->output_bytes, "errors", (json_int_t)row->errors_bytes, "model",
        string_or_null(row->model), "running", (json_int_t)(live != NULL ? live->n_flying : 0), "priority",
        priorities[row->priority <= 3 ? row->priority : 0], "eta_s",
        live != NULL && eta_s(live, now_ns) > 0 ? json_integer((json_int_t)eta_s(live, now_ns)) : json_null(),
        "note", live != NULL ? live->note : "", "error", string_or_null(row->error));
}
