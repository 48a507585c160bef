/* template.c - see template.h. */
#include "template.h"

#include <stdlib.h>
#include <string.h>

#include "span.h"

void template_deinit(struct template *t)
{
    for (size_t i = 0; i < t->n; i++)
        free(t->parts[i].text);
    free(t->parts);
    *t = (struct template){0};
}

static enum status bad(struct error *err, const char *what)
{
    error_set(err, ERR_INVALID_PARAMETER, "template",
              "--template: %s; {NAME} is a column, {{ and }} are braces", what);
    return ST_INVALID;
}

static enum status add_part(struct template *t, const char *text, size_t bytes, bool column,
                            struct error *err)
{
    if (bytes == 0 && !column)
        return ST_OK;
    if (t->n == TEMPLATE_PARTS_MAX) {
        error_set(err, ERR_LIMIT_EXCEEDED, "template", "--template has over %d parts", TEMPLATE_PARTS_MAX);
        return ST_LIMIT;
    }
    char *copy = strndup(text, bytes);
    if (copy == NULL)
        return ST_NOMEM;
    t->parts[t->n++] = (struct template_part){.text = copy, .bytes = bytes, .column = column};
    return ST_OK;
}

/* One brace at s: a part of its own.  *ret_end: behind it. */
static enum status add_brace(struct template *t, const char *s, const char **ret_end, struct error *err)
{
    if (s[1] == s[0]) {
        *ret_end = s + 2;
        return add_part(t, s, 1, false, err);
    }
    if (*s == '}')
        return bad(err, "a } stands alone");
    size_t name = strcspn(s + 1, "{}");
    if (s[1 + name] != '}')
        return bad(err, "a { is not closed");
    if (name == 0)
        return bad(err, "{} names no column");
    *ret_end = s + name + 2;
    return add_part(t, s + 1, name, true, err);
}

enum status template_compile(const char *text, struct template *ret_template, struct error *err)
{
    struct template t = {.parts = calloc(TEMPLATE_PARTS_MAX, sizeof *t.parts)};
    enum status st = t.parts != NULL ? ST_OK : ST_NOMEM;
    size_t n_columns = 0;

    for (const char *s = text; *s != '\0' && st == ST_OK;) {
        size_t literal = strcspn(s, "{}");
        st = add_part(&t, s, literal, false, err);
        s += literal;
        if (st == ST_OK && *s != '\0')
            st = add_brace(&t, s, &s, err);
    }
    for (size_t i = 0; i < t.n; i++)
        n_columns += t.parts[i].column;
    if (st == ST_OK && n_columns == 0)
        st = bad(err, "it names no column");
    if (st == ST_NOMEM)
        error_set(err, ERR_INTERNAL, NULL, "out of memory");
    if (st == ST_OK)
        *ret_template = t;
    else
        template_deinit(&t);
    return st;
}

/* The text of a column.  NULL: *err.  *ret_owned is to be freed. */
static const char *value_of(const json_t *columns, const struct template_part *part, size_t *ret_bytes,
                            char **ret_owned, struct error *err)
{
    const json_t *value = json_object_get(columns, part->text);

    *ret_owned = NULL;
    if (value == NULL || json_is_null(value)) {
        error_set(err, ERR_INVALID_REQUEST, NULL, "the line has no \"%.60s\", which the template names",
                  part->text);
        return NULL;
    }
    if (json_is_string(value)) {
        *ret_bytes = json_string_length(value);
        return json_string_value(value);
    }
    *ret_owned = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    if (*ret_owned == NULL)
        error_set(err, ERR_INTERNAL, NULL, "out of memory");
    else
        *ret_bytes = strlen(*ret_owned);
    return *ret_owned;
}

enum status template_fill(const struct template *t, const json_t *columns, size_t bytes_max, char **ret_text,
                          size_t *ret_bytes, struct error *err)
{
    char *text = NULL;
    size_t n = 0;

    for (size_t i = 0; i < t->n; i++) {
        const struct template_part *part = &t->parts[i];
        const char *bytes = part->text;
        size_t more = part->bytes;
        char *owned = NULL, *bigger;
        if (part->column)
            bytes = value_of(columns, part, &more, &owned, err);
        if (bytes == NULL) {
            free(text);
            return err->code == ERR_INTERNAL ? ST_NOMEM : ST_INVALID;
        }
        bigger = more <= bytes_max - n ? realloc(text, n + more + 1) : NULL;
        if (bigger == NULL) {
            if (more > bytes_max - n)
                error_set(err, ERR_LIMIT_EXCEEDED, NULL, "the filled template is over the limit of %zu bytes",
                          bytes_max);
            else
                error_set(err, ERR_INTERNAL, NULL, "out of memory");
            free(owned);
            free(text);
            return err->code == ERR_INTERNAL ? ST_NOMEM : ST_LIMIT;
        }
        text = bigger;
        memcpy(text + n, bytes, more);
        n += more;
        text[n] = '\0';
        free(owned);
    }
    *ret_text = text;
    *ret_bytes = n;
    return ST_OK;
}
