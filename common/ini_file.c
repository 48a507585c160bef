/* ini_file.c - inih behind a reader of ours.
 *
 * inih knows neither where a line is too long (it cuts it in two) nor the line number in its handler, and an empty section it
 * does not report.  So lines are read here, counted and checked, and handed to inih one by one.  Comments inside a line are
 * switched off: a value with " ;" in it would be cut without a word.  Only programs' starts read files, so inih's settings, which
 * are global, may be set each time. */
#include "ini_file.h"

#include <ini.h>
#include <string.h>

#include "span.h"
#include "utf8.h"

struct ini_reader_state {
    FILE *file;
    const char *name; /* without its folder */
    ini_taker *take;
    void *user;
    struct error *err;
    enum status st;   /* of the first failure */
    unsigned line;
    char section[64];
};

static void fill_where(const struct ini_reader_state *r, struct ini_entry *e)
{
    snprintf(e->where, sizeof(e->where), "%.70s:%u", r->name, r->line);
}

static void refuse_line(struct ini_reader_state *r, const char *what)
{
    struct ini_entry e;

    if (r->st != ST_OK)
        return;
    fill_where(r, &e);
    error_set(r->err, ERR_INVALID_PARAMETER, e.where, "%s", what);
    r->st = ST_INVALID;
}

static void give(struct ini_reader_state *r, const char *section, const char *key, const char *value)
{
    struct ini_entry e = { .section = section, .key = key, .value = value };

    if (r->st != ST_OK)
        return;
    fill_where(r, &e);
    r->st = r->take(r->user, &e, r->err);
}

/* A line "[name]": remember the name whole, for inih cuts it, and report it. */
static void begin_section(struct ini_reader_state *r, const char *line)
{
    const char *end = strchr(line, ']');

    if (end == NULL || end - line - 1 >= (ptrdiff_t)sizeof(r->section) || end == line + 1 ||
        end[1 + strspn(end + 1, " \t\r\n")] != '\0') {
        refuse_line(r, "the line is no section: [name], at most 63 bytes, and nothing behind it");
        return;
    }
    size_t n = (size_t)(end - line - 1);
    memcpy(r->section, line + 1, n);
    r->section[n] = '\0';
    give(r, r->section, NULL, NULL);
}

/* What inih calls for a line; like fgets. */
static char *next_line(char *line, int line_bytes, void *user)
{
    struct ini_reader_state *r = user;
    size_t n = 0;
    int c = EOF;

    if (r->st != ST_OK)
        return NULL;
    while (n + 1 < (size_t)line_bytes && (c = getc(r->file)) != EOF) {
        if (c == '\0') {
            r->line++;
            refuse_line(r, "the line holds a NUL byte");
            return NULL;
        }
        line[n++] = (char)c;
        if (c == '\n')
            break;
    }
    if (n == 0)
        return NULL;
    line[n] = '\0';
    r->line++;
    if (c != '\n' && c != EOF) {
        refuse_line(r, "the line is too long");
        return NULL;
    }
    if (!utf8_valid(span_of(line, n))) {
        refuse_line(r, "the line is not UTF-8");
        return NULL;
    }
    const char *text = r->line == 1 && n >= 3 && memcmp(line, "\xEF\xBB\xBF", 3) == 0 ? line + 3 : line;
    text += strspn(text, " \t");
    if (*text == '[')
        begin_section(r, text);
    return r->st == ST_OK ? line : NULL;
}

static int on_entry(void *user, const char *section, const char *key, const char *value)
{
    struct ini_reader_state *r = user;

    (void)section; /* ours is not cut */
    give(r, r->section, key, value);
    return r->st == ST_OK;
}

enum status ini_file_read(FILE *file, const char *name, ini_taker *take, void *user, struct error *err)
{
    const char *slash = strrchr(name, '/');
    struct ini_reader_state r = { .file = file, .name = slash != NULL ? slash + 1 : name, .take = take, .user = user,
                                  .err = err, .st = ST_OK };

    ini_use_stack = false;
    ini_allow_realloc = false;
    ini_initial_alloc = INI_LINE_BYTES_MAX;
    ini_max_line = INI_LINE_BYTES_MAX;
    ini_allow_multiline = false;
    ini_allow_inline_comments = false;
    ini_stop_on_first_error = true;

    int rc = ini_parse_stream(next_line, &r, on_entry, &r);
    if (r.st != ST_OK)
        return r.st;
    if (rc == -2) {
        error_set(err, ERR_INTERNAL, r.name, "out of memory");
        return ST_NOMEM;
    }
    if (ferror(file)) {
        error_set(err, ERR_INTERNAL, r.name, "cannot be read to its end");
        return ST_SYSTEM;
    }
    if (rc != 0)
        refuse_line(&r, "the line is neither a [section] nor key = value");
    return r.st;
}
