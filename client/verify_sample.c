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

static int take_answer(struct verify_sample *s, const char *text, size_t bytes, uint64_t number, struct weir_error *err)
{
    struct verify_case c;
    bool is_answer;

    if (!verify_case_read(text, bytes, &c, &is_answer)) {
        weir_error_format(err, ERR_INVALID_REQUEST, "output", "line %llu is not an answer of a batch", (unsigned long long)number);
        return WEIR_FAILED;
    }
    if (!is_answer)
        return WEIR_OK;
    size_t at = verify_draw_next(&s->draw);
    if (at == SIZE_MAX) {
        verify_case_deinit(&c);
        return WEIR_OK;
    }
    if (at < s->n)
        verify_case_deinit(&s->cases[at]);
    else
        s->n = at + 1;
    s->cases[at] = c;
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
    s->draw = (struct verify_draw){.state = seed, .wanted = n < VERIFY_SAMPLE_MAX ? n : VERIFY_SAMPLE_MAX};
    if (each_line(s, output_path, take_answer, err) != WEIR_OK)
        return WEIR_FAILED;
    qsort(s->cases, s->n, sizeof(s->cases[0]), by_custom_id);
    return each_line(s, input_path, take_request, err);
}

void verify_sample_deinit(struct verify_sample *s)
{
    for (size_t i = 0; i < s->n; i++)
        verify_case_deinit(&s->cases[i]);
    s->n = 0;
}
