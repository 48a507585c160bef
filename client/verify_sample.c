/* verify_sample.c - see verify_sample.h. */
#include "verify_sample.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "batch_input.h"
#include "client.h"

/* A call for each line of a file, until it gives something else than WEIR_OK. */
typedef int line_taker(struct verify_sample *s, const char *text, size_t bytes, uint64_t number, struct weir_error *err);

static int each_line(struct verify_sample *s, const char *path, line_taker *take, struct weir_error *err)
{
    struct batch_input *in = NULL;
    int result = batch_input_open(path, &in, err);

    while (result == WEIR_OK) {
        const char *text = NULL;
        size_t bytes = 0;
        uint64_t number = 0;
        enum batch_input_result got = batch_input_next(in, &text, &bytes, &number, err);

        if (got == INPUT_END)
            break;
        if (got == INPUT_BROKEN)
            result = WEIR_FAILED;
        else if (got == INPUT_WAIT)
            poll(&(struct pollfd){.fd = batch_input_fd(in), .events = POLLIN}, 1, -1);
        else if (got == INPUT_LINE && !weir_line_blank(text, bytes))
            result = take(s, text, bytes, number, err);
    }
    batch_input_free(in);
    return result;
}

/* --- answers ----------------------------------------------------------------------------------- */

static uint64_t draws; /* state of the generator (splitmix64), set by verify_sample_draw() */
static size_t wanted;

static uint64_t next_draw(void)
{
    uint64_t z = draws += 0x9E3779B97F4A7C15u;

    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static void case_deinit(struct verify_case *c)
{
    json_decref(c->record);
    weir_line_deinit(&c->line);
    *c = (struct verify_case){0};
}

static int take_answer(struct verify_sample *s, const char *text, size_t bytes, uint64_t number, struct weir_error *err)
{
    json_t *record = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    const json_t *response = json_object_get(record, "response"), *body = json_object_get(response, "body");
    const char *custom_id = json_string_value(json_object_get(record, "custom_id"));

    if (custom_id == NULL || body == NULL) {
        weir_error_format(err, ERR_INVALID_REQUEST, "output", "line %llu is not an answer of a batch", (unsigned long long)number);
        json_decref(record);
        return WEIR_FAILED;
    }
    if (json_integer_value(json_object_get(response, "status_code")) != 200) {
        json_decref(record);
        return WEIR_OK; /* an error has no bits */
    }
    uint64_t at = s->n_answers++;
    if (at >= wanted)
        at = next_draw() % s->n_answers;
    if (at >= wanted) {
        json_decref(record);
        return WEIR_OK;
    }
    const json_t *seed = json_object_get(body, "seed");
    case_deinit(&s->cases[at]);
    s->cases[at] = (struct verify_case){.record = record,
                                        .custom_id = custom_id,
                                        .body = body,
                                        .has_seed = json_is_integer(seed),
                                        .seed = (uint64_t)json_integer_value(seed)};
    s->n = s->n_answers < wanted ? s->n_answers : wanted;
    return WEIR_OK;
}

/* --- requests ---------------------------------------------------------------------------------- */

static int by_custom_id(const void *a, const void *b)
{
    return strcmp(((const struct verify_case *)a)->custom_id, ((const struct verify_case *)b)->custom_id);
}

static int take_request(struct verify_sample *s, const char *text, size_t bytes, uint64_t number, struct weir_error *err)
{
    struct weir_line line;
    struct weir_error ignored; /* a line that does not parse was answered by an error */

    if (weir_line_parse(text, bytes, number, &line, &ignored) == WEIR_OK) {
        struct verify_case key = {.custom_id = line.custom_id},
                           *c = bsearch(&key, s->cases, s->n, sizeof(key), by_custom_id);
        if (c != NULL && c->line.custom_id == NULL) {
            c->line = line;
            return WEIR_OK;
        }
    }
    (void)err;
    weir_line_deinit(&line);
    return WEIR_OK;
}

int verify_sample_draw(struct verify_sample *s, size_t n, uint64_t seed, const char *input_path, const char *output_path,
                       struct weir_error *err)
{
    memset(s, 0, sizeof(*s));
    draws = seed;
    wanted = n < VERIFY_SAMPLE_MAX ? n : VERIFY_SAMPLE_MAX;
    if (each_line(s, output_path, take_answer, err) != WEIR_OK)
        return WEIR_FAILED;
    qsort(s->cases, s->n, sizeof(s->cases[0]), by_custom_id);
    return each_line(s, input_path, take_request, err);
}

void verify_sample_deinit(struct verify_sample *s)
{
    for (size_t i = 0; i < s->n; i++)
        case_deinit(&s->cases[i]);
    s->n = 0;
}
