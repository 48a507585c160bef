/* convert.c - see convert.h.  A state machine finds the ends of records; a whole record is then parsed at once.
 *
 * Quotes follow RFC 4180: one that opens a field opens it, one inside a field that was not opened by it is a character.  A quote that is
 * never closed would swallow the rest of the file: the whole input is refused, and the line where it opened is named. */
#include "convert.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "limits.h"
#include "template.h"
#include "utf8.h"

enum { CSV_COLUMNS_MAX = 1024 };
enum quoting { FIELD_START, FIELD_PLAIN, FIELD_QUOTED, QUOTE_IN_QUOTED };
enum kind { KIND_UNKNOWN, KIND_TEXT, KIND_JSON, KIND_CSV };

struct csv_field {
    char *text;
    size_t bytes;
};

struct convert {
    enum convert_mode mode;
    enum kind kind;
    bool chat;
    unpack_sink *sink;
    void *arg;
    struct template template;
    uint8_t first[2]; /* of the input, for UTF-16 */
    unsigned n_first;
    char *record;
    size_t n, capacity;
    bool too_long;     /* the record is; its bytes are dropped */
    uint64_t line;     /* number of the record's first line */
    uint64_t newlines; /* inside the record */
    enum quoting quoting;
    char delimiter; /* of CSV; 0: the header has not ended */
    char *header;   /* memory of the names */
    struct csv_field columns[CSV_COLUMNS_MAX], fields[CSV_COLUMNS_MAX];
    size_t n_columns;
};

enum status convert_new(enum convert_mode mode, const char *template, bool chat, unpack_sink *sink, void *arg,
                        struct convert **ret_convert, struct error *err)
{
    struct convert *c = calloc(1, sizeof *c);
    enum status st = ST_OK;

    if (c == NULL) {
        error_set(err, ERR_INTERNAL, NULL, "out of memory");
        return ST_NOMEM;
    }
    c->mode = mode;
    c->kind = mode == CONVERT_TEXT ? KIND_TEXT : KIND_UNKNOWN;
    c->chat = chat;
    c->sink = sink;
    c->arg = arg;
    c->line = 1;
    if (mode == CONVERT_TEMPLATE)
        st = template_compile(template, &c->template, err);
    if (st != ST_OK) {
        convert_free(c);
        return st;
    }
    *ret_convert = c;
    return ST_OK;
}

void convert_free(struct convert *c)
{
    if (c == NULL)
        return;
    template_deinit(&c->template);
    free(c->header);
    free(c->record);
    free(c);
}

static enum status no_memory(struct error *err)
{
    error_set(err, ERR_INTERNAL, NULL, "out of memory");
    return ST_NOMEM;
}

/* --- CSV ---------------------------------------------------------------------------------------- */

/* A quoted field that begins at *at (the quote).  Its text is moved together in place. */
static enum status quoted_field(char *text, size_t bytes, size_t *at, struct csv_field *ret_field,
                                struct error *err)
{
    char *to = text + *at, *begin = to;
    size_t i = *at + 1;

    for (;; i++) {
        if (i >= bytes) {
            error_set(err, ERR_INVALID_REQUEST, NULL, "a quote is not closed");
            return ST_INVALID;
        }
        if (text[i] != '"') {
            *to++ = text[i];
        } else if (i + 1 < bytes && text[i + 1] == '"') {
            *to++ = '"';
            i++;
        } else {
            break;
        }
    }
    *ret_field = (struct csv_field){begin, (size_t)(to - begin)};
    *at = i + 1;
    return ST_OK;
}

/* One CSV record into its fields.  text is changed in place, fields [max] point into it, NUL-terminated.
 * ST_OK; ST_INVALID (text behind a closing quote, a quote that is open), ST_LIMIT (more than max): *err says which. */
static enum status csv_split(char *text, size_t bytes, char delimiter, struct csv_field *ret_fields, size_t max, size_t *ret_n,
                             struct error *err)
{
    size_t at = 0, n = 0;

    for (;;) {
        if (n == max) {
            error_set(err, ERR_LIMIT_EXCEEDED, NULL, "the record has over %zu fields", max);
            return ST_LIMIT;
        }
        struct csv_field *f = &ret_fields[n++];
        if (at < bytes && text[at] == '"') {
            enum status st = quoted_field(text, bytes, &at, f, err);
            if (st != ST_OK)
                return st;
            if (at < bytes && text[at] != delimiter) {
                error_set(err, ERR_INVALID_REQUEST, NULL, "field %zu has text behind its closing quote", n);
                return ST_INVALID;
            }
        } else {
            const char *end = memchr(text + at, delimiter, bytes - at);
            f->text = text + at;
            f->bytes = end != NULL ? (size_t)(end - f->text) : bytes - at;
            at += f->bytes;
        }
        bool more = at < bytes; /* at a delimiter; read before the NUL goes there */
        f->text[f->bytes] = '\0';
        if (!more)
            break;
        at++;
    }
    *ret_n = n;
    return ST_OK;
}

/* What separates the fields: the first of , ; and tab outside quotes. */
static char find_delimiter(const char *text, size_t bytes)
{
    bool quoted = false;

    for (size_t i = 0; i < bytes; i++) {
        if (text[i] == '"')
            quoted = !quoted;
        else if (!quoted && (text[i] == ',' || text[i] == ';' || text[i] == '\t'))
            return text[i];
    }
    return ',';
}

static const struct csv_field *find_column(const struct convert *c, const char *name)
{
    for (size_t i = 0; i < c->n_columns; i++) {
        if (strcmp(c->columns[i].text, name) == 0)
            return &c->columns[i];
    }
    return NULL;
}

/* Does the header have every column that the template names, each once? */
static enum status check_header(const struct convert *c, struct error *err)
{
    char names[300] = "";

    for (size_t i = 0, n = 0; i < c->n_columns && n < sizeof names - 1; i++) {
        if (!utf8_valid(span_of(c->columns[i].text, c->columns[i].bytes))) {
            error_set(err, ERR_INVALID_REQUEST, "line 1", "the header is not UTF-8");
            return ST_INVALID;
        }
        if (find_column(c, c->columns[i].text) != &c->columns[i]) {
            error_set(err, ERR_INVALID_REQUEST, "line 1", "the header has the column \"%.60s\" twice",
                      c->columns[i].text);
            return ST_INVALID;
        }
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%.40s", i > 0 ? ", " : "", c->columns[i].text);
    }
    for (size_t i = 0; i < c->template.n; i++) {
        const struct template_part *part = &c->template.parts[i];
        if (part->column && find_column(c, part->text) == NULL) {
            error_set(err, ERR_INVALID_PARAMETER, "template",
                      "the template names {%.60s}, the columns of the input are: %.120s", part->text, names);
            return ST_INVALID;
        }
    }
    return ST_OK;
}

static enum status take_header(struct convert *c, struct error *err)
{
    c->header = malloc(c->n + 1);
    if (c->header == NULL)
        return no_memory(err);
    memcpy(c->header, c->record, c->n + 1);
    c->delimiter = find_delimiter(c->header, c->n);
    enum status st =
        csv_split(c->header, c->n, c->delimiter, c->columns, CSV_COLUMNS_MAX, &c->n_columns, err);
    if (st != ST_OK)
        return ST_INVALID;
    return check_header(c, err);
}

/* --- records ------------------------------------------------------------------------------------- */

/* Takes object; a newline for each line that the record took. */
static enum status emit(struct convert *c, json_t *object, struct error *err)
{
    static const char newlines[64] = {[0 ... 63] = '\n'};
    char *text = object != NULL ? json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    uint64_t left = c->newlines + 1;
    enum status st = text != NULL ? c->sink(c->arg, span_str(text), err) : no_memory(err);

    free(text);
    json_decref(object);
    while (st == ST_OK && left > 0) {
        size_t n = left < sizeof newlines ? (size_t)left : sizeof newlines;
        st = c->sink(c->arg, span_of(newlines, n), err);
        left -= n;
    }
    return st;
}

static enum status emit_blank(struct convert *c, struct error *err)
{
    for (uint64_t i = 0; i <= c->newlines; i++) {
        enum status st = c->sink(c->arg, span_str("\n"), err);
        if (st != ST_OK)
            return st;
    }
    return ST_OK;
}

static void put_id(json_t *object, const json_t *columns)
{
    json_t *id = json_object_get(columns, "custom_id");

    if (id == NULL)
        id = json_object_get(columns, "id");
    if (json_is_string(id)) {
        json_object_set(object, "id", id);
    } else if (json_is_integer(id)) {
        char text[32];
        snprintf(text, sizeof text, "%" JSON_INTEGER_FORMAT, json_integer_value(id));
        json_object_set_new(object, "id", json_string(text));
    }
}

static enum status emit_refused(struct convert *c, const json_t *columns, const char *why, struct error *err)
{
    json_t *object = json_object();

    put_id(object, columns);
    json_object_set_new(object, "x_refused", json_string(why));
    return emit(c, object, err);
}

static enum status emit_prompt(struct convert *c, const char *prompt, size_t bytes, const json_t *columns,
                               struct error *err)
{
    json_t *text = json_stringn(prompt, bytes), *object = json_object();

    if (text == NULL) {
        json_decref(object);
        return emit_refused(c, columns, "the line is not valid UTF-8", err);
    }
    put_id(object, columns);
    if (c->chat)
        json_object_set_new(object, "messages", json_pack("[{ssso}]", "role", "user", "content", text));
    else
        json_object_set_new(object, "prompt", text);
    if (columns != NULL)
        json_object_set_new(object, "metadata", json_deep_copy(columns));
    return emit(c, object, err);
}

/* Columns that are known: fill the template with them. */
static enum status emit_filled(struct convert *c, const json_t *columns, struct error *err)
{
    char *prompt = NULL;
    size_t bytes = 0;
    struct error wrong;
    enum status st = template_fill(&c->template, columns, LINE_BYTES_MAX, &prompt, &bytes, &wrong);

    if (st == ST_NOMEM)
        return no_memory(err);
    if (st != ST_OK)
        return emit_refused(c, columns, wrong.message, err);
    st = emit_prompt(c, prompt, bytes, columns, err);
    free(prompt);
    return st;
}

static enum status convert_json(struct convert *c, struct error *err)
{
    json_error_t where;
    char why[300];
    json_t *columns = json_loadb(c->record, c->n, JSON_REJECT_DUPLICATES, &where);

    if (columns == NULL || !json_is_object(columns)) {
        snprintf(why, sizeof why,
                 columns == NULL ? "the line is not JSON: %s" : "the line is not a JSON object", where.text);
        json_decref(columns);
        return emit_refused(c, NULL, why, err);
    }
    enum status st = emit_filled(c, columns, err);
    json_decref(columns);
    return st;
}

static enum status convert_csv(struct convert *c, struct error *err)
{
    size_t n = 0;
    struct error wrong;
    char why[200];

    if (c->header == NULL) {
        enum status st = take_header(c, err);
        return st == ST_OK ? emit_blank(c, err) : st;
    }
    if (!utf8_valid(span_of(c->record, c->n)))
        return emit_refused(c, NULL, "the line is not valid UTF-8", err);
    if (csv_split(c->record, c->n, c->delimiter, c->fields, CSV_COLUMNS_MAX, &n, &wrong) != ST_OK)
        return emit_refused(c, NULL, wrong.message, err);
    if (n != c->n_columns) {
        snprintf(why, sizeof why, "the line has %zu fields, the header has %zu", n, c->n_columns);
        return emit_refused(c, NULL, why, err);
    }
    json_t *columns = json_object();
    for (size_t i = 0; i < n; i++)
        json_object_set_new(columns, c->columns[i].text, json_stringn(c->fields[i].text, c->fields[i].bytes));
    enum status st = emit_filled(c, columns, err);
    json_decref(columns);
    return st;
}

/* What is in the record, without the CR at its end and the byte order mark of line 1. */
static void trim(struct convert *c)
{
    if (c->line == 1 && c->n >= 3 && memcmp(c->record, "\xef\xbb\xbf", 3) == 0) {
        memmove(c->record, c->record + 3, c->n - 3);
        c->n -= 3;
    }
    if (c->n > 0 && c->record[c->n - 1] == '\r')
        c->n--;
    if (c->record != NULL)
        c->record[c->n] = '\0';
}

static enum status convert_record(struct convert *c, struct error *err)
{
    trim(c);
    size_t blank = c->record != NULL ? strspn(c->record, " \t\r") : 0;
    if (c->too_long) {
        char why[100];
        snprintf(why, sizeof why, "the line is over the limit of %d bytes", LINE_BYTES_MAX);
        return emit_refused(c, NULL, why, err);
    }
    if (c->n == 0 || blank == c->n)
        return emit_blank(c, err);
    if (c->kind == KIND_UNKNOWN)
        c->kind = c->record[blank] == '{' ? KIND_JSON : KIND_CSV;
    if (c->kind == KIND_TEXT)
        return emit_prompt(c, c->record, c->n, NULL, err);
    return c->kind == KIND_JSON ? convert_json(c, err) : convert_csv(c, err);
}

static enum status end_record(struct convert *c, struct error *err)
{
    enum status st = convert_record(c, err);

    c->line += c->newlines + 1;
    c->newlines = 0;
    c->n = 0;
    c->too_long = false;
    c->quoting = FIELD_START;
    return st;
}

/* --- finding the ends ------------------------------------------------------------------------------ */

static enum status keep(struct convert *c, const uint8_t *at, size_t n, struct error *err)
{
    if (c->too_long || n > LINE_BYTES_MAX - c->n) {
        c->too_long = true;
        c->n = 0;
        return ST_OK;
    }
    if (c->n + n + 1 > c->capacity) {
        size_t capacity = 2 * (c->n + n) + 256;
        char *bigger = realloc(c->record, capacity);
        if (bigger == NULL)
            return no_memory(err);
        c->record = bigger;
        c->capacity = capacity;
    }
    memcpy(c->record + c->n, at, n);
    c->n += n;
    c->record[c->n] = '\0';
    return ST_OK;
}

static void follow_quotes(struct convert *c, uint8_t b)
{
    bool separator = c->delimiter != 0 ? b == (uint8_t)c->delimiter : b == ',' || b == ';' || b == '\t';

    switch (c->quoting) {
    case FIELD_START:
        c->quoting = b == '"' ? FIELD_QUOTED : separator ? FIELD_START : FIELD_PLAIN;
        break;
    case FIELD_PLAIN:
        c->quoting = separator ? FIELD_START : FIELD_PLAIN;
        break;
    case FIELD_QUOTED:
        c->quoting = b == '"' ? QUOTE_IN_QUOTED : FIELD_QUOTED;
        break;
    case QUOTE_IN_QUOTED:
        c->quoting = b == '"' ? FIELD_QUOTED : separator ? FIELD_START : FIELD_PLAIN;
        break;
    }
}

static bool is_bom(uint8_t b)
{
    return b == 0xef || b == 0xbb || b == 0xbf;
}

/* JSON or CSV?  Known from the first character that is not blank.  Looks at one record only: a stream of blank lines is asked
 * about line by line. */
static void find_kind(struct convert *c, struct span bytes)
{
    for (size_t i = 0; i < bytes.n && bytes.at[i] != '\n' && c->kind == KIND_UNKNOWN; i++) {
        uint8_t b = bytes.at[i];
        if (b != ' ' && b != '\t' && b != '\r' && !is_bom(b))
            c->kind = b == '{' ? KIND_JSON : KIND_CSV;
    }
    for (size_t i = 0; i < c->n && c->kind == KIND_CSV; i++) { /* blanks that came before it was known */
        if (!is_bom((uint8_t)c->record[i]))
            follow_quotes(c, (uint8_t)c->record[i]);
    }
}

static enum status open_quote(const struct convert *c, const char *what, struct error *err)
{
    error_set(err, ERR_INVALID_REQUEST, NULL,
              "the record that begins in line %" PRIu64 " has a quote that %s", c->line, what);
    return ST_INVALID;
}

static enum status put_csv(struct convert *c, const uint8_t *at, size_t n, size_t *ret_used,
                           struct error *err)
{
    size_t i = 0;

    for (; i < n; i++) {
        if (at[i] == '\n' && c->quoting != FIELD_QUOTED)
            break;
        c->newlines += at[i] == '\n';
        if (!(c->line == 1 && c->n + i < 3 && is_bom(at[i])))
            follow_quotes(c, at[i]);
    }
    *ret_used = i;
    enum status st = keep(c, at, i, err);
    if (st == ST_OK && c->too_long && c->quoting == FIELD_QUOTED)
        return open_quote(c, "is still open after the longest line there may be", err);
    return st;
}

static enum status refuse_utf16(struct convert *c, struct span bytes, struct error *err)
{
    for (size_t i = 0; i < bytes.n && c->n_first < 2; i++)
        c->first[c->n_first++] = bytes.at[i];
    const uint8_t *f = c->first;
    if (c->n_first < 2 ||
        !((f[0] == 0xff && f[1] == 0xfe) || (f[0] == 0xfe && f[1] == 0xff) || f[0] == 0 || f[1] == 0))
        return ST_OK;
    error_set(err, ERR_INVALID_REQUEST, "line 1",
              "the input is UTF-16, it must be UTF-8 (PowerShell: `Get-Content -Raw FILE | Out-File "
              "-Encoding utf8 NEW`)");
    return ST_INVALID;
}

enum status convert_put(struct convert *c, struct span bytes, struct error *err)
{
    enum status st = c->n_first < 2 ? refuse_utf16(c, bytes, err) : ST_OK;

    if (st == ST_OK && c->mode == CONVERT_NONE)
        return bytes.n > 0 ? c->sink(c->arg, bytes, err) : ST_OK;
    for (size_t at = 0; at < bytes.n && st == ST_OK;) {
        size_t used = 0;
        if (c->kind == KIND_UNKNOWN)
            find_kind(c, span_of(bytes.at + at, bytes.n - at));
        if (c->kind == KIND_CSV) {
            st = put_csv(c, bytes.at + at, bytes.n - at, &used, err);
        } else {
            const uint8_t *newline = memchr(bytes.at + at, '\n', bytes.n - at);
            used = newline != NULL ? (size_t)(newline - (bytes.at + at)) : bytes.n - at;
            st = keep(c, bytes.at + at, used, err);
        }
        at += used;
        if (st == ST_OK && at < bytes.n) { /* at a newline that ends a record */
            st = end_record(c, err);
            at++;
        }
    }
    return st;
}

enum status convert_end(struct convert *c, struct error *err)
{
    if (c->mode == CONVERT_NONE || (c->n == 0 && !c->too_long))
        return ST_OK;
    if (c->kind == KIND_CSV && c->quoting == FIELD_QUOTED)
        return open_quote(c, "is never closed", err);
    return end_record(c, err);
}
