/* verify_case.c - see verify_case.h. */
#include "verify_case.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "client.h"
#include "json_field.h"

/* --- drawing ----------------------------------------------------------------------------------- */

/* splitmix64 */
static uint64_t next_number(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;

    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

size_t verify_draw_next(struct verify_draw *d)
{
    uint64_t at = d->n_seen++;

    if (at >= d->wanted)
        at = next_number(&d->state) % d->n_seen;
    return at < d->wanted ? (size_t)at : SIZE_MAX;
}

uint64_t verify_draw_seed(void)
{
    uint64_t seed = 0;

    while (getrandom(&seed, sizeof(seed), 0) != sizeof(seed))
        ;
    return seed >> 11;
}

/* --- one answer -------------------------------------------------------------------------------- */

bool verify_case_read(const char *text, size_t bytes, struct verify_case *ret_case, bool *ret_answer)
{
    json_t *record = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    const json_t *response = json_object_get(record, "response"), *body = json_object_get(response, "body");
    const json_t *seed = json_object_get(body, "seed");
    const char *custom_id = json_string_value(json_object_get(record, "custom_id"));

    if (custom_id == NULL || body == NULL) {
        json_decref(record);
        return false;
    }
    *ret_answer = json_integer_value(json_object_get(response, "status_code")) == 200;
    if (*ret_answer)
        *ret_case = (struct verify_case){.record = record,
                                         .custom_id = custom_id,
                                         .body = body,
                                         .has_seed = json_is_integer(seed),
                                         .seed = (uint64_t)json_integer_value(seed)};
    else
        json_decref(record);
    return true;
}

void verify_case_deinit(struct verify_case *c)
{
    json_decref(c->record);
    weir_line_deinit(&c->line);
    *c = (struct verify_case){0};
}

const char *verify_case_class(const struct verify_case *c)
{
    return json_text(c->body, "system_fingerprint");
}

/* A job may have limited the tokens of lines that did not: then an answer that ended by it has as many. */
static uint32_t limit_of(const struct verify_case *c)
{
    const json_t *choices = json_object_get(c->body, "choices");
    json_int_t all = json_integer_value(
                   json_object_get(json_object_get(c->body, "usage"), "completion_tokens")),
               n = 0;
    bool cut = false;

    for (size_t i = 0; i < json_array_size(choices); i++) {
        const json_t *choice = json_array_get(choices, i);
        json_int_t tokens = json_integer_value(json_object_get(choice, "n_tokens"));

        cut = cut || strcmp(json_text(choice, "finish_reason"), "length") == 0;
        n = tokens > n ? tokens : n;
    }
    return !cut ? 0 : n > 0 ? (uint32_t)n : (uint32_t)all;
}

int verify_case_request(const struct verify_case *c, struct weir_request *ret_request, struct weir_error *err)
{
    if (c->line.custom_id == NULL) {
        weir_error_format(err, ERR_NOT_FOUND, NULL, "the input has no such line");
        return WEIR_FAILED;
    }
    if (!c->has_seed) {
        weir_error_format(err, ERR_NOT_FOUND, NULL,
                          "the answer has no seed: it was made by an earlier version");
        return WEIR_FAILED;
    }
    *ret_request = c->line.request;
    ret_request->seed = &c->seed;
    ret_request->model = json_text(c->body, "model");
    ret_request->deadline_ms = 0;
    if (ret_request->max_tokens == 0)
        ret_request->max_tokens = limit_of(c);
    return WEIR_OK;
}

/* --- comparing --------------------------------------------------------------------------------- */

static size_t equal_bytes(const char *a, const char *b)
{
    size_t n = 0;

    while (a[n] != '\0' && a[n] == b[n])
        n++;
    return n;
}

/* Where two choices part, in words. */
static void explain(const json_t *was, const json_t *is, size_t index, char *ret_why, size_t room)
{
    const char *was_text = json_text(was, "text"), *is_text = json_text(is, "text");

    if (json_object_get(was, "message") != NULL) {
        was_text = json_text(json_object_get(was, "message"), "content");
        is_text = json_text(json_object_get(is, "message"), "content");
    }
    if (strcmp(was_text, is_text) != 0)
        snprintf(ret_why, room, "choice %zu: the texts part after %zu bytes", index,
                 equal_bytes(was_text, is_text));
    else if (!json_equal(json_object_get(was, "token_hash"), json_object_get(is, "token_hash")))
        snprintf(ret_why, room, "choice %zu: the same text of other tokens", index);
    else if (!json_equal(json_object_get(was, "finish_reason"), json_object_get(is, "finish_reason")))
        snprintf(ret_why, room, "choice %zu: finish_reason is %s, was %s", index,
                 json_text(is, "finish_reason"), json_text(was, "finish_reason"));
    else
        snprintf(ret_why, room, "choice %zu: log-probabilities differ", index);
}

static bool same(const json_t *a, const json_t *b)
{
    const size_t flags = JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(9);
    char *x = json_dumps(a, flags), *y = json_dumps(b, flags);
    bool equal = x != NULL && y != NULL && strcmp(x, y) == 0;

    free(x);
    free(y);
    return equal;
}

enum verify_result verify_case_compare(const struct verify_case *c, const json_t *again, char *ret_why,
                                       size_t room)
{
    const json_t *body = json_object_get(json_object_get(again, "response"), "body");
    const json_t *was = json_object_get(c->body, "choices"), *is = json_object_get(body, "choices");
    const char *class = verify_case_class(c), *class_now = json_text(body, "system_fingerprint");
    size_t n = json_array_size(was), i = 0;

    if (strcmp(class, class_now) != 0) {
        snprintf(ret_why, room, "made by %.64s, now computed by %.64s", class, class_now);
        return VERIFY_OTHER_CLASS;
    }
    if (n == 0 || json_array_size(is) != n) {
        snprintf(ret_why, room, "the number of choices differs");
        return VERIFY_DIFFERS;
    }
    while (i < n && same(json_array_get(was, i), json_array_get(is, i)))
        i++;
    if (i == n)
        return VERIFY_EQUAL;
    explain(json_array_get(was, i), json_array_get(is, i), i, ret_why, room);
    return VERIFY_DIFFERS;
}

int verify_class_check(const json_t *status, const char *class, struct weir_error *err)
{
    char there[400] = "";
    size_t i, n = 0;
    json_t *w;

    json_array_foreach(json_object_get(status, "workers"), i, w)
    {
        const char *id = json_text(w, "system_fingerprint");

        if (strcmp(id, class) == 0)
            return WEIR_OK;
        if (id[0] != '\0' && strstr(there, id) == NULL && n < sizeof(there))
            n += (size_t)snprintf(there + n, sizeof(there) - n, "%s%s", n > 0 ? ", " : "", id);
    }
    weir_error_format(err, ERR_NO_WORKER, "system_fingerprint",
                      "the answers were made by class %.64s; no worker of it is left here (there is %s): the "
                      "same bits cannot be expected",
                      class, n > 0 ? there : "none that has started");
    return WEIR_FAILED;
}

/* --- the report -------------------------------------------------------------------------------- */

const char *verify_result_name(enum verify_result result)
{
    static const char *const names[VERIFY_RESULTS] = {"equal", "differs", "another class", "not rerun"};

    return names[result];
}

void verify_report_add(struct verify_report *r, const char *custom_id, enum verify_result result,
                       const char *why)
{
    r->n[result]++;
    if (r->lines == NULL)
        r->lines = json_array();
    if (result != VERIFY_EQUAL)
        json_array_append_new(r->lines, json_pack("{s:s, s:s, s:s}", "custom_id", custom_id, "result",
                                                  verify_result_name(result), "why", why));
}

static unsigned sample_of(const struct verify_report *r)
{
    return r->n[VERIFY_EQUAL] + r->n[VERIFY_DIFFERS] + r->n[VERIFY_OTHER_CLASS] + r->n[VERIFY_NOT_RERUN];
}

void verify_report_text(const struct verify_report *r, char *ret_text, size_t room)
{
    snprintf(ret_text, room,
             "%u of %" PRIu64 " answers computed again (--draw %" PRIu64
             "): %u equal, %u differ, %u of another class, %u not rerun\n",
             sample_of(r), r->n_answers, r->draw, r->n[VERIFY_EQUAL], r->n[VERIFY_DIFFERS],
             r->n[VERIFY_OTHER_CLASS], r->n[VERIFY_NOT_RERUN]);
}

json_t *verify_report_json(const struct verify_report *r, const char *class)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:O}", "answers", (json_int_t)r->n_answers,
                     "sample", (json_int_t)sample_of(r), "draw", (json_int_t)r->draw, "equal",
                     (json_int_t)r->n[VERIFY_EQUAL], "differ", (json_int_t)r->n[VERIFY_DIFFERS],
                     "another_class", (json_int_t)r->n[VERIFY_OTHER_CLASS], "not_rerun",
                     (json_int_t)r->n[VERIFY_NOT_RERUN], "system_fingerprint", class, "lines", r->lines);
}

void verify_report_deinit(struct verify_report *r)
{
    json_decref(r->lines);
    *r = (struct verify_report){0};
}
