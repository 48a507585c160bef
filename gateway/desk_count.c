/* desk_count.c - submit --check: what would become of an upload, without running it.
 *
 * The upload has been checked like any other and its lines are in the store, under a job that nobody learns of and that is dropped at the end. Each
 * line is parsed as it would be for running, and its text is sent to the pool to be counted; the model's context says whether it fits.
 * Of a chat the texts of its messages are counted: the template adds some tokens a message, so that is the least it takes.
 *
 * Requests of libweir outlive the op: `op` is NULL when nobody waits any more, and the last answer frees it all. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "desk.h"
#include "outlook.h"

enum { COUNT_WINDOW = 32, COUNT_PAGE = 64, NAMED_MAX = 1000, STEP_LINES = 64 };

struct probe { /* one line on its way */
    struct count *count;
    uint32_t line;
    uint64_t context, most; /* positions of the model; tokens of all its answers at most, 0: it does not say */
    bool used;
};

struct count {
    struct count *next, **at; /* in the desk's list */
    struct desk *desk;
    struct op *op;
    struct job_row row;
    int input;
    struct line_ref page[COUNT_PAGE];
    size_t page_n, page_at;
    uint32_t cursor;
    bool asked_models, exhausted;
    unsigned n_open; /* requests that libweir has */
    json_t *models;
    json_t *bad, *overflow;
    uint64_t n_bad, n_overflow, n_counted, prompt_tokens, longest;
    uint64_t most_tokens; /* of all answers, by max_tokens */
    bool open_ended;      /* a line names no max_tokens */
    json_t *status;       /* of the pool, for its speed; NULL: not had */
    bool asked_status, has_status;
    struct error error; /* the whole check failed */
    struct probe probes[COUNT_WINDOW];
};

static void count_free(struct count *n)
{
    *n->at = n->next;
    if (n->next != NULL)
        n->next->at = n->at;
    if (n->input >= 0)
        close(n->input);
    json_decref(n->models);
    json_decref(n->status);
    json_decref(n->bad);
    json_decref(n->overflow);
    free(n);
}

void desk_free_counts(struct desk *d)
{
    while (d->counts != NULL)
        count_free(d->counts);
}

void desk_drop_count(struct op *op)
{
    struct count *n = op->count;

    op->count = NULL;
    if (n == NULL)
        return;
    n->op = NULL;
    if (n->n_open == 0)
        count_free(n);
}

void desk_begin_count(struct desk *d, struct conn *c, struct op *op, const struct job_row *row)
{
    struct count *n = calloc(1, sizeof *n);

    if (n != NULL) {
        *n = (struct count){ .desk = d, .op = op, .row = *row, .input = -1 };
        n->bad = json_array();
        n->overflow = json_array();
        n->next = d->counts;
        n->at = &d->counts;
        if (n->next != NULL)
            n->next->at = &n->next;
        d->counts = n;
        op->count = n;
    }
    if (n == NULL || job_files_job(d->files, row, JOB_FILE_INPUT, false, &n->input) != ST_OK) {
        desk_fail_internal(d, c, op, "the input cannot be read");
        desk_stop_op(d, c, op);
        return;
    }
    d->work_left = true;
}

static void name_line(json_t *list, uint64_t *n, json_t *line)
{
    if ((*n)++ < NAMED_MAX)
        json_array_append(list, line);
    json_decref(line);
}

static void name_bad(struct count *n, uint32_t line, const char *code, const char *message, const char *param)
{
    name_line(n->bad, &n->n_bad,
              json_pack("{sI ss ss ss}", "line", (json_int_t)line, "code", code, "message", message, "param", param));
}

static void take_tokens(struct count *n, const struct probe *p, uint64_t tokens)
{
    uint64_t context = p->context;

    n->n_counted++;
    n->most_tokens += p->most;
    n->open_ended = n->open_ended || p->most == 0;
    n->prompt_tokens += tokens;
    n->longest = tokens > n->longest ? tokens : n->longest;
    if (context != 0 && tokens > context)
        name_line(n->overflow, &n->n_overflow,
                  json_pack("{sI sI sI}", "line", (json_int_t)p->line, "prompt_tokens", (json_int_t)tokens,
                            "context_tokens", (json_int_t)context));
}

/* Would the error go away by itself?  Then it is no line's fault, and nothing can be said now. */
static bool is_ours(enum error_code code)
{
    return code == ERR_UNREACHABLE || code == ERR_SHUTTING_DOWN || code == ERR_NO_WORKER || code == ERR_BUSY ||
           code == ERR_INTERNAL;
}

static void take_error(struct count *n, const struct weir_error *e, const struct probe *p)
{
    enum error_code code = error_code_from_name(e->code, strlen(e->code));

    if (p == NULL || is_ours(code))
        error_set(&n->error, code, e->param, "%s", e->message);
    else
        name_bad(n, p->line, e->code, e->message, e->param);
}

/* A request has ended; the desk's next step goes on. */
static void closed(struct count *n)
{
    n->n_open--;
    if (n->op == NULL && n->n_open == 0)
        count_free(n);
}

static void on_models(const struct weir_event *event, void *arg)
{
    struct count *n = arg;

    if (event->type == WEIR_JSON)
        n->models = json_loadb(event->text, event->text_bytes, 0, NULL);
    else if (event->type == WEIR_ERROR)
        take_error(n, event->error, NULL);
    else
        return;
    closed(n);
}

/* Without it there is no estimate, and nothing else is wrong. */
static void on_status(const struct weir_event *event, void *arg)
{
    struct count *n = arg;

    if (event->type == WEIR_JSON)
        n->status = json_loadb(event->text, event->text_bytes, 0, NULL);
    else if (event->type != WEIR_ERROR)
        return;
    n->has_status = true;
    closed(n);
}

static void on_ids(const struct weir_event *event, void *arg)
{
    struct probe *p = arg;
    struct count *n = p->count;

    if (event->type == WEIR_IDS)
        take_tokens(n, p, event->n_ids);
    else if (event->type == WEIR_ERROR)
        take_error(n, event->error, p);
    else
        return;
    p->used = false;
    closed(n);
}

/* Positions the model has; 0: it is not listed.  Without a name: the only one there is. */
static uint64_t context_of(const struct count *n, const char *model)
{
    json_t *models = json_object_get(n->models, "models"), *m;
    size_t i;

    json_array_foreach(models, i, m)
    {
        const char *name = json_string_value(json_object_get(m, "name"));
        if (model == NULL ? json_array_size(models) == 1 : name != NULL && strcmp(name, model) == 0)
            return (uint64_t)json_integer_value(json_object_get(m, "context_tokens"));
    }
    return 0;
}

/* All texts of a request in one; free() it. */
static char *texts_of(const struct weir_request *q, size_t *ret_bytes)
{
    char *text = NULL;
    FILE *to = open_memstream(&text, ret_bytes);

    if (to == NULL)
        return NULL;
    for (size_t i = 0; i < q->n_messages; i++) {
        const struct weir_message *m = &q->messages[i];
        fwrite(m->content, 1, m->content_bytes != 0 ? m->content_bytes : strlen(m->content), to);
        fputc('\n', to);
    }
    if (q->prompt != NULL)
        fwrite(q->prompt, 1, q->prompt_bytes != 0 ? q->prompt_bytes : strlen(q->prompt), to);
    if (fclose(to) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

static enum status send_text(struct count *n, const struct weir_line *parsed, struct probe *p)
{
    const struct weir_request *q = &parsed->request;
    const char *model = n->row.model[0] != '\0' ? n->row.model : q->model;
    uint64_t most = q->max_tokens != 0 ? q->max_tokens : n->row.max_tokens;
    struct weir_error error = { 0 };
    size_t bytes = 0;

    p->context = context_of(n, model);
    p->most = most * (q->n != 0 ? q->n : 1);
    if (q->prompt_ids != NULL) {
        take_tokens(n, p, q->n_prompt_ids);
        return ST_OK;
    }
    char *text = texts_of(q, &bytes);
    if (text == NULL)
        return ST_NOMEM;
    p->used = true;
    n->n_open++;
    int rc = weir_tokenize_async(n->desk->link->client, model, text, bytes, false, on_ids, p, &error);
    free(text);
    if (rc != WEIR_OK) {
        p->used = false;
        n->n_open--;
    }
    if (rc == WEIR_FAILED)
        take_error(n, &error, p);
    return rc == WEIR_AGAIN ? ST_AGAIN : ST_OK;
}

/* One line.  ST_OK, ST_AGAIN: the client takes no more now. */
static enum status count_line(struct count *n, const struct line_ref *line, struct probe *p)
{
    struct weir_line parsed = { 0 };
    struct weir_error error = { 0 };
    char message[80];

    *p = (struct probe){ .count = n, .line = line->number };
    if (line->bytes > LINE_BYTES_MAX) {
        snprintf(message, sizeof message, "the line has %" PRIu32 " bytes, the limit is %d", line->bytes, LINE_BYTES_MAX);
        name_bad(n, line->number, "limit_exceeded", message, "");
        return ST_OK;
    }
    char *text = malloc((size_t)line->bytes + 1);
    enum status st = text != NULL ? ST_OK : ST_NOMEM;
    if (st == ST_OK && pread(n->input, text, line->bytes, (off_t)line->offset) != (ssize_t)line->bytes)
        st = ST_SYSTEM;
    if (st == ST_OK && weir_line_parse(text, line->bytes, line->number, &parsed, &error) != WEIR_OK) {
        runner_refusal_of(text, line->bytes, &error);
        name_bad(n, line->number, error.code, error.message, error.param);
    } else if (st == ST_OK) {
        st = send_text(n, &parsed, p);
    }
    weir_line_deinit(&parsed);
    free(text);
    return st;
}

static struct probe *free_probe(struct count *n)
{
    for (size_t i = 0; i < COUNT_WINDOW; i++) {
        if (!n->probes[i].used)
            return &n->probes[i];
    }
    return NULL;
}

static enum status next_page(struct count *n)
{
    if (n->page_at < n->page_n || n->exhausted)
        return ST_OK;
    enum status st =
        job_store_open_lines(n->desk->store, n->row.seq, n->cursor, n->page, COUNT_PAGE, &n->page_n);
    if (st != ST_OK) {
        n->page_n = n->page_at = 0;
        return st;
    }
    n->page_at = 0;
    n->exhausted = n->page_n == 0;
    if (n->page_n > 0)
        n->cursor = n->page[n->page_n - 1].number;
    return ST_OK;
}

static enum status count_lines(struct count *n)
{
    for (int i = 0; i < STEP_LINES; i++) {
        struct probe *p = free_probe(n);
        enum status st = p != NULL ? next_page(n) : ST_AGAIN;
        if (st == ST_OK && n->exhausted)
            return ST_OK;
        if (st == ST_OK)
            st = count_line(n, &n->page[n->page_at], p);
        if (st != ST_OK)
            return st;
        n->page_at++;
    }
    n->desk->work_left = true;
    return ST_OK;
}

static enum status ask_models(struct count *n)
{
    struct weir_error error = { 0 };

    n->asked_models = true;
    n->n_open++;
    int rc = weir_query(n->desk->link->client, WEIR_QUERY_MODELS, on_models, n, &error);
    if (rc == WEIR_OK)
        return ST_OK;
    n->n_open--;
    if (rc == WEIR_FAILED)
        take_error(n, &error, NULL);
    else
        n->asked_models = false;
    return rc == WEIR_AGAIN ? ST_AGAIN : ST_OK;
}

static enum status ask_status(struct count *n)
{
    struct weir_error error = { 0 };

    n->asked_status = true;
    n->n_open++;
    int rc = weir_query(n->desk->link->client, WEIR_QUERY_STATUS, on_status, n, &error);
    if (rc == WEIR_OK)
        return ST_OK;
    n->n_open--;
    n->asked_status = rc != WEIR_AGAIN;
    n->has_status = n->asked_status;
    return rc == WEIR_AGAIN ? ST_AGAIN : ST_OK;
}

/* Tokens a second that all workers made and read while they computed; 0: nothing is known. */
static double speed_of(const json_t *status)
{
    json_t *w;
    size_t i;
    double sum = 0;

    json_array_foreach(json_object_get(status, "workers"), i, w)
    {
        double tokens = json_number_value(json_object_get(w, "tokens_generated")) +
                        json_number_value(json_object_get(w, "tokens_prefilled"));
        double ms = json_number_value(json_object_get(w, "steps")) * json_number_value(json_object_get(w, "step_ms_mean"));
        sum += ms > 0 ? tokens / ms * 1000 : 0;
    }
    return sum;
}

/* About how long it would take: by the lines answered lately; else at most, if every answer were as long as it may. */
static json_t *put_estimate(const struct count *n, json_t *report)
{
    uint64_t runs = n->row.n_lines - n->n_bad - n->n_overflow;
    struct outlook o = outlook_of_new(n->desk->runner, n->row.user, n->row.priority, runs);
    double speed = speed_of(n->status), tokens = (double)(n->prompt_tokens + n->most_tokens) * (double)o.users;
    const char *basis = o.seconds > 0 ? "lines" : speed > 0 && !n->open_ended && n->n_counted > 0 ? "tokens" : NULL;
    double s = o.seconds > 0 ? (double)o.seconds : basis != NULL ? ceil(tokens / speed) : 0;

    json_object_set_new(report, "lines_ahead", json_integer((json_int_t)o.lines_ahead));
    json_object_set_new(report, "estimated_s", basis != NULL ? json_integer((json_int_t)s) : json_null());
    json_object_set_new(report, "estimated_from", basis != NULL ? json_string(basis) : json_null());
    return report;
}

static json_t *report(const struct count *n)
{
    return json_pack("{sI sI sI sI sI sI sO sO}", "lines", (json_int_t)n->row.n_lines, "counted",
                     (json_int_t)n->n_counted, "prompt_tokens", (json_int_t)n->prompt_tokens, "longest_prompt_tokens",
                     (json_int_t)n->longest, "n_bad", (json_int_t)n->n_bad, "n_overflow", (json_int_t)n->n_overflow,
                     "bad", n->bad, "overflow", n->overflow);
}

void desk_step_count(struct desk *d, struct conn *c, struct op *op)
{
    struct count *n = op->count;
    enum status st = ST_OK;

    if (!d->link->up && n->error.code == ERR_NONE)
        error_set(&n->error, ERR_UNREACHABLE, NULL, "the pool does not answer, so tokens cannot be counted");
    if (n->error.code == ERR_NONE && !n->asked_models)
        st = ask_models(n);
    if (st == ST_OK && n->error.code == ERR_NONE && !n->asked_status)
        st = ask_status(n);
    if (st == ST_OK && n->error.code == ERR_NONE && n->models != NULL && n->has_status)
        st = count_lines(n);
    if (st != ST_OK && st != ST_AGAIN)
        error_set(&n->error, ERR_INTERNAL, NULL, "the input cannot be read");
    if (n->error.code != ERR_NONE) {
        struct error err = n->error;
        desk_error(d, c, op, &err);
    } else if (n->exhausted && n->n_open == 0) {
        desk_reply_json(d, c, op, NULL, put_estimate(n, report(n)));
    } else {
        d->work_left = d->work_left || (st == ST_AGAIN && n->n_open == 0);
        return;
    }
    desk_stop_op(d, c, op);
}
