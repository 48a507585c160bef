/* flat.c - see flat.h. */
#include "flat.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char *const answer_columns[] = { "id",            "choice",        "text",
                                              "finish_reason", "prompt_tokens", "completion_tokens" };
enum { ANSWER_COLUMNS = 6 };

void flat_deinit(struct flat *f)
{
    json_decref(f->columns);
    f->columns = NULL;
}

static enum status unreadable(uint32_t line, struct error *err)
{
    error_set(err, ERR_INTERNAL, NULL, "the answer of line %" PRIu32 " cannot be read", line);
    return ST_INVALID;
}

/* The input's columns, to be changed by the caller: a shallow copy. */
static json_t *columns_of(struct span input)
{
    size_t bom = input.n >= 3 && memcmp(input.at, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    json_t *line = json_loadb((const char *)input.at + bom, input.n - bom, 0, NULL);
    json_t *metadata = json_object_get(line, "metadata");
    json_t *copy = json_copy(json_is_object(metadata) ? metadata : line);

    json_decref(line);
    return copy;
}

static json_t *cell(const json_t *output, const json_t *choice, const json_t *usage, int column)
{
    const json_t *text = json_object_get(choice, "text");

    switch (column) {
    case 0:
        return json_object_get(output, "custom_id");
    case 1:
        return json_object_get(choice, "index");
    case 2:
        return (json_t *)(uintptr_t)(text != NULL ? text
                                                  : json_object_get(json_object_get(choice, "message"), "content"));
    case 3:
        return json_object_get(choice, "finish_reason");
    case 4:
        return json_object_get(usage, "prompt_tokens");
    default:
        return json_object_get(usage, "completion_tokens");
    }
}

/* One choice as an object; takes row, which has the input's columns.  NULL: *err. */
static json_t *add_answer(json_t *row, const json_t *output, const json_t *choice, bool joined, uint32_t line,
                          struct error *err)
{
    const json_t *body = json_object_get(json_object_get(output, "response"), "body");

    for (int i = 0; i < ANSWER_COLUMNS; i++) {
        char name[40];
        json_t *value = cell(output, choice, json_object_get(body, "usage"), i);
        snprintf(name, sizeof name, "%s%s", joined ? "answer_" : "", answer_columns[i]);
        if (json_object_get(row, name) != NULL) {
            error_set(err, ERR_INVALID_REQUEST, "join", "the input has a column \"%s\" of its own in line %" PRIu32,
                      name, line);
            json_decref(row);
            return NULL;
        }
        if (value == NULL)
            json_object_set_new(row, name, json_null());
        else
            json_object_set(row, name, value);
    }
    return row;
}

static void write_field(const char *text, size_t bytes, bool first, FILE *to)
{
    bool quoted = bytes > 0 && (text[0] == ' ' || text[bytes - 1] == ' ');

    for (size_t i = 0; i < bytes && !quoted; i++)
        quoted = strchr(",;\t\"\r\n", text[i]) != NULL;
    if (!first)
        fputc(',', to);
    if (quoted)
        fputc('"', to);
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] == '"')
            fputc('"', to);
        fputc(text[i], to);
    }
    if (quoted)
        fputc('"', to);
}

static void write_value(const json_t *value, bool first, FILE *to)
{
    char *text = NULL;

    if (json_is_string(value)) {
        write_field(json_string_value(value), json_string_length(value), first, to);
        return;
    }
    if (value != NULL && !json_is_null(value))
        text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
    write_field(text != NULL ? text : "", text != NULL ? strlen(text) : 0, first, to);
    free(text);
}

static void write_header(struct flat *f, const json_t *row, FILE *to)
{
    const char *key;
    json_t *value;
    bool first = true;

    f->columns = json_array();
    json_object_foreach((json_t *)(uintptr_t)row, key, value)
    {
        json_array_append_new(f->columns, json_string(key));
        write_field(key, strlen(key), first, to);
        first = false;
    }
    fputc('\n', to);
}

static enum status write_csv(struct flat *f, const json_t *row, uint32_t line, FILE *to, struct error *err)
{
    size_t found = 0;

    if (f->columns == NULL)
        write_header(f, row, to);
    for (size_t i = 0; i < json_array_size(f->columns); i++)
        found += json_object_get(row, json_string_value(json_array_get(f->columns, i))) != NULL;
    if (found != json_object_size(row)) {
        error_set(err, ERR_INVALID_REQUEST, "csv",
                  "line %" PRIu32 " has columns that the first line has not; use --flat without --csv", line);
        return ST_INVALID;
    }
    for (size_t i = 0; i < json_array_size(f->columns); i++)
        write_value(json_object_get(row, json_string_value(json_array_get(f->columns, i))), i == 0, to);
    fputc('\n', to);
    return ST_OK;
}

static enum status write_row(struct flat *f, const json_t *row, uint32_t line, FILE *to, struct error *err)
{
    if (f->form == FLAT_CSV)
        return write_csv(f, row, line, to, err);
    char *text = json_dumps(row, JSON_COMPACT | JSON_REAL_PRECISION(17));
    if (text == NULL)
        return unreadable(line, err);
    fprintf(to, "%s\n", text);
    free(text);
    return ST_OK;
}

enum status flat_write(struct flat *f, struct span output, struct span input, uint32_t line, FILE *to,
                       struct error *err)
{
    json_t *answer = json_loadb((const char *)output.at, output.n, 0, NULL);
    json_t *choices =
        json_object_get(json_object_get(json_object_get(answer, "response"), "body"), "choices");
    bool joined = input.n > 0;
    enum status st = json_array_size(choices) > 0 ? ST_OK : unreadable(line, err);

    for (size_t i = 0; i < json_array_size(choices) && st == ST_OK; i++) {
        json_t *row = joined ? columns_of(input) : json_object();
        if (row == NULL) {
            st = unreadable(line, err);
            break;
        }
        row = add_answer(row, answer, json_array_get(choices, i), joined, line, err);
        st = row != NULL ? write_row(f, row, line, to, err) : ST_INVALID;
        json_decref(row);
    }
    json_decref(answer);
    return st;
}
