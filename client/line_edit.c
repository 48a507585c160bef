/* line_edit.c - see line_edit.h.
 *
 * The line stands on one row of the terminal and scrolls sideways when it is longer: no guessing where a terminal wraps.  After all keys
 * that are there have been taken, the row is drawn again from its beginning; that is enough at the speed of fingers, and of a paste.
 * What is drawn is looked for from the cursor outwards, so its cost is that of a row, not of the line. */
#include "line_edit.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

#include "span.h"
#include "terminal.h"
#include "utf8.h"

/* Behind ESC comes [ or O, behind that numbers and a final letter or ~. */
enum escape { ESCAPE_NONE, ESCAPE_BEGUN, ESCAPE_NUMBERS };

enum { CTRL_C = 3, ESC = 27 };

/* What an escape sequence means. */
enum key { KEY_NONE, KEY_UP, KEY_DOWN, KEY_RIGHT, KEY_LEFT, KEY_HOME, KEY_END, KEY_DELETE, KEY_PASTE_BEGIN, KEY_PASTE_END };

struct line_edit {
    const char *prompt;
    char text[LINE_EDIT_BYTES_MAX + 1]; /* the line [n], the cursor before byte `at` */
    size_t n, at;
    unsigned char part[4];              /* of a character that is not complete */
    unsigned n_part;
    enum escape escape;
    int number;                         /* in the escape sequence */
    bool pasting;
    char *history[LINE_EDIT_HISTORY];   /* oldest first */
    size_t n_history, history_bytes;
    size_t looking_at;                  /* n_history: at the line being written */
};

struct line_edit *line_edit_new(void)
{
    struct line_edit *e = calloc(1, sizeof(*e));

    if (e != NULL)
        e->prompt = "";
    return e;
}

static void forget_oldest(struct line_edit *e)
{
    e->history_bytes -= strlen(e->history[0]);
    free(e->history[0]);
    memmove(e->history, e->history + 1, (e->n_history - 1) * sizeof(e->history[0]));
    e->n_history--;
}

void line_edit_free(struct line_edit *e)
{
    if (e == NULL)
        return;
    for (size_t i = 0; i < e->n_history; i++)
        free(e->history[i]);
    free(e);
}

void line_edit_begin(struct line_edit *e, const char *prompt)
{
    e->prompt = prompt;
    e->n = e->at = 0;
    e->n_part = 0;
    e->escape = ESCAPE_NONE;
    e->pasting = false;
    e->looking_at = e->n_history;
}

const char *line_edit_text(struct line_edit *e, size_t *ret_bytes)
{
    e->text[e->n] = '\0';
    *ret_bytes = e->n;
    return e->text;
}

static void remember(struct line_edit *e)
{
    if (e->n == 0 || e->n > LINE_EDIT_HISTORY_BYTES / 2)
        return;
    e->text[e->n] = '\0';
    char *copy = strdup(e->text);
    if (copy == NULL)
        return;
    while (e->n_history == LINE_EDIT_HISTORY ||
           (e->n_history > 0 && e->history_bytes + e->n > LINE_EDIT_HISTORY_BYTES))
        forget_oldest(e);
    e->history[e->n_history++] = copy;
    e->history_bytes += e->n;
}

/* --- characters -------------------------------------------------------------------------------- */

static bool continues(char c)
{
    return ((unsigned char)c & 0xC0) == 0x80;
}

static size_t before(const struct line_edit *e, size_t at)
{
    if (at > 0)
        at--;
    while (at > 0 && continues(e->text[at]))
        at--;
    return at;
}

static size_t behind(const struct line_edit *e, size_t at)
{
    if (at < e->n)
        at++;
    while (at < e->n && continues(e->text[at]))
        at++;
    return at;
}

static void insert(struct line_edit *e, const char *bytes, size_t n, FILE *out)
{
    if (n > LINE_EDIT_BYTES_MAX - e->n) {
        fputc('\a', out);
        return;
    }
    memmove(e->text + e->at + n, e->text + e->at, e->n - e->at);
    memcpy(e->text + e->at, bytes, n);
    e->at += n;
    e->n += n;
}

static void erase(struct line_edit *e, size_t from, size_t to)
{
    memmove(e->text + from, e->text + to, e->n - to);
    e->n -= to - from;
    e->at = from;
}

static void insert_wrong(struct line_edit *e, FILE *out)
{
    insert(e, "\xEF\xBF\xBD", 3, out); /* U+FFFD */
}

/* Bytes of the character that this one begins; 0: it begins none. */
static unsigned length_of(unsigned char c)
{
    return c < 0x80 ? 1 : c >= 0xC2 && c < 0xE0 ? 2 : c >= 0xE0 && c < 0xF0 ? 3 : c >= 0xF0 && c < 0xF5 ? 4 : 0;
}

/* A character that was begun and will not be completed. */
static void end_part(struct line_edit *e, FILE *out)
{
    if (e->n_part > 0)
        insert_wrong(e, out);
    e->n_part = 0;
}

/* A byte of text from 0x80 on. */
static void take_part(struct line_edit *e, unsigned char c, FILE *out)
{
    if (!continues((char)c) || e->n_part == 0) {
        end_part(e, out);
        if (length_of(c) == 0) {
            insert_wrong(e, out);
            return;
        }
    }
    e->part[e->n_part++] = c;
    if (e->n_part < length_of(e->part[0]))
        return;
    if (utf8_valid(span_of(e->part, e->n_part))) {
        insert(e, (const char *)e->part, e->n_part, out);
        e->n_part = 0;
    } else {
        end_part(e, out);
    }
}

/* --- drawing ----------------------------------------------------------------------------------- */

/* What stands for a character that would leave the row or jump along it; '\0': the character itself. */
static char mark_of(char c)
{
    return c == '\n' ? '|' : c == '\t' ? ' ' : '\0';
}

/* Columns of the character at text[at], as it is drawn. */
static unsigned columns_of(const struct line_edit *e, size_t at)
{
    static const unsigned char lead_mask[] = {0x7F, 0x1F, 0x0F, 0x07};
    size_t n = behind(e, at) - at;
    uint32_t c = (unsigned char)e->text[at];
    char name[TERMINAL_NAME_BYTES];

    if (terminal_control(e->text + at, n, name) > 0)
        return (unsigned)strlen(name);
    if (n > 4 || mark_of(e->text[at]) != '\0')
        return 1;
    c &= lead_mask[n - 1];
    for (size_t i = 1; i < n; i++)
        c = c << 6 | ((unsigned char)e->text[at + i] & 0x3F);
    int columns = wcwidth((wchar_t)c);
    return columns < 0 ? 1 : (unsigned)columns; /* not known to the C library: sent as it is */
}

void line_edit_draw(const struct line_edit *e, unsigned columns, FILE *out)
{
    unsigned left = (unsigned)strlen(e->prompt), room = columns > left + 8 ? columns - left - 1 : 8;
    unsigned used = 0;
    size_t from = e->at, to;

    while (from > 0 && used + columns_of(e, before(e, from)) < room) { /* the cursor stays in sight */
        from = before(e, from);
        used += columns_of(e, from);
    }
    unsigned cursor = left + used;
    used = 0;
    fprintf(out, "\r%s", e->prompt);
    for (to = from; to < e->n && used + columns_of(e, to) <= room; to = behind(e, to)) {
        used += columns_of(e, to);
        if (mark_of(e->text[to]) != '\0')
            fputc(mark_of(e->text[to]), out);
        else
            terminal_show(out, e->text + to, behind(e, to) - to);
    }
    fprintf(out, "\x1b[K\r\x1b[%uC", cursor);
}

/* --- keys -------------------------------------------------------------------------------------- */

static void show_history(struct line_edit *e, size_t which)
{
    if (which > e->n_history)
        return;
    e->looking_at = which;
    e->n = 0;
    if (which < e->n_history) {
        e->n = strlen(e->history[which]);
        memcpy(e->text, e->history[which], e->n);
    }
    e->at = e->n;
}

static void older(struct line_edit *e)
{
    show_history(e, e->looking_at > 0 ? e->looking_at - 1 : 0);
}

static void act(struct line_edit *e, enum key key)
{
    switch (key) {
    case KEY_UP:
        older(e);
        break;
    case KEY_DOWN:
        show_history(e, e->looking_at + 1);
        break;
    case KEY_RIGHT:
        e->at = behind(e, e->at);
        break;
    case KEY_LEFT:
        e->at = before(e, e->at);
        break;
    case KEY_HOME:
        e->at = 0;
        break;
    case KEY_END:
        e->at = e->n;
        break;
    case KEY_DELETE:
        erase(e, e->at, behind(e, e->at));
        break;
    case KEY_PASTE_BEGIN:
        e->pasting = true;
        break;
    case KEY_PASTE_END:
        e->pasting = false;
        break;
    case KEY_NONE:
        break;
    }
}

/* Of a sequence that ends in this letter, or in ~ behind this number. */
static enum key key_of(unsigned char end, int number)
{
    static const struct {
        char end;
        int number;
        enum key key;
    } keys[] = {
        {'A', 0, KEY_UP},     {'B', 0, KEY_DOWN},          {'C', 0, KEY_RIGHT},       {'D', 0, KEY_LEFT}, {'H', 0, KEY_HOME},
        {'F', 0, KEY_END},    {'~', 1, KEY_HOME},          {'~', 7, KEY_HOME},        {'~', 4, KEY_END},  {'~', 8, KEY_END},
        {'~', 3, KEY_DELETE}, {'~', 200, KEY_PASTE_BEGIN}, {'~', 201, KEY_PASTE_END},
    };

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        if (keys[i].end == (char)end && (end != '~' || keys[i].number == number))
            return keys[i].key;
    }
    return KEY_NONE;
}

/* A byte behind ESC. */
static void take_escape(struct line_edit *e, unsigned char c)
{
    if (e->escape == ESCAPE_BEGUN) { /* anything else is Alt and that key: none of ours */
        e->escape = c == '[' || c == 'O' ? ESCAPE_NUMBERS : ESCAPE_NONE;
        e->number = 0;
        return;
    }
    if (c >= '0' && c <= '9') {
        e->number = e->number < 1000 ? e->number * 10 + c - '0' : e->number;
        return;
    }
    if (c == ';')
        return;
    e->escape = ESCAPE_NONE;
    enum key key = key_of(c, e->number);
    if (!e->pasting || key == KEY_PASTE_END) /* other keys in a paste are text that was copied with them */
        act(e, key);
}

static void erase_word(struct line_edit *e)
{
    size_t from = e->at;

    while (from > 0 && e->text[from - 1] == ' ')
        from--;
    while (from > 0 && e->text[from - 1] != ' ')
        from--;
    erase(e, from, e->at);
}

static enum line_edit_end control_key(struct line_edit *e, int c, FILE *out)
{
    switch (c) {
    case 1: /* ^A */
        e->at = 0;
        break;
    case 2: /* ^B */
        e->at = before(e, e->at);
        break;
    case CTRL_C:
        return LINE_EDIT_INTERRUPTED;
    case 4: /* ^D */
        if (e->n == 0)
            return LINE_EDIT_END;
        erase(e, e->at, behind(e, e->at));
        break;
    case 5: /* ^E */
        e->at = e->n;
        break;
    case 6: /* ^F */
        e->at = behind(e, e->at);
        break;
    case 8:   /* ^H */
    case 127: /* Backspace */
        erase(e, before(e, e->at), e->at);
        break;
    case 10:
    case 13: /* Enter */
        remember(e);
        return LINE_EDIT_LINE;
    case 11: /* ^K */
        e->n = e->at;
        break;
    case 12: /* ^L */
        fputs("\x1b[H\x1b[2J", out);
        break;
    case 14: /* ^N */
        show_history(e, e->looking_at + 1);
        break;
    case 16: /* ^P */
        older(e);
        break;
    case 21: /* ^U */
        erase(e, 0, e->at);
        break;
    case 23: /* ^W */
        erase_word(e);
        break;
    case ESC:
        e->escape = ESCAPE_BEGUN;
        break;
    default:
        break;
    }
    return LINE_EDIT_MORE;
}

enum line_edit_end line_edit_byte(struct line_edit *e, unsigned char c, FILE *out)
{
    if (c == CTRL_C || c == ESC) /* neither is part of a sequence: the one that was begun ends */
        e->escape = ESCAPE_NONE;
    if (e->escape != ESCAPE_NONE) {
        take_escape(e, c);
        return LINE_EDIT_MORE;
    }
    if (c >= 0x80) {
        take_part(e, c, out);
        return LINE_EDIT_MORE;
    }
    end_part(e, out);
    if (e->pasting && c == '\r')
        c = '\n';
    if ((c >= 0x20 && c != 127) || c == '\t' || (e->pasting && c == '\n')) {
        insert(e, &(char){(char)c}, 1, out);
        return LINE_EDIT_MORE;
    }
    if (e->pasting && c != ESC && c != CTRL_C)
        return LINE_EDIT_MORE;
    return control_key(e, c, out);
}

void line_edit_pause(struct line_edit *e)
{
    if (!e->pasting) /* in a paste nobody presses ESC: the mark of its end comes in parts */
        e->escape = ESCAPE_NONE;
}
