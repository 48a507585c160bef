/* line_id.c - the custom_id of a batch line, without making a request of it.
 *
 * An upload is read once before it is a job, and all that is wanted of its lines then is their ids.  A JSON library copies every byte
 * of a prompt for that; this walk over the text looks at eight bytes at once and copies nothing.  It knows the plain JSON that programs
 * write.  Whatever is rarer than that (an escape in a key or an id, a surrogate, a number of many digits or with an exponent, deep
 * nesting, many keys, and everything that may be wrong) it leaves to weir_line_parse(), so the two cannot disagree: a test and the
 * fuzz target hold them side by side. */
#include "weir_batch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "limits.h"
#include "utf8.h"

enum {
    DEPTH_MAX = 16,
    KEYS_MAX = 64,    /* of all objects that are open at one place */
    DIGITS_MAX = 15,  /* an integer of so many fits 64 bits, a fraction a double */
};

#define EACH_BYTE(b) (UINT64_C(0x0101010101010101) * (b))

/* Where the walk is.  Every function below returns false for "leave it to the parser". */
struct walk {
    const char *at, *end;
    struct span keys[KEYS_MAX];
    size_t n_keys;
    struct span custom_id, id; /* values of the outermost object, as they stand; at == NULL: not there */
    bool openai;
};

static void skip_space(struct walk *w)
{
    while (w->at < w->end && (*w->at == ' ' || *w->at == '\t' || *w->at == '\r' || *w->at == '\n'))
        w->at++;
}

static bool next_is(struct walk *w, char c)
{
    if (w->at == w->end || *w->at != c)
        return false;
    w->at++;
    return true;
}

/* To the first byte that ends a run of plain text: a quote, a backslash, a control character.  (x - b) & ~x has the top bit of a byte set
 * that is below b, if none before it was; x ^ q has a zero byte where x has q.  That there is one is all that is asked. */
static void skip_plain(struct walk *w)
{
    while (w->end - w->at >= 8) {
        uint64_t x;
        memcpy(&x, w->at, sizeof x);
        uint64_t quote = x ^ EACH_BYTE('"'), backslash = x ^ EACH_BYTE('\\');
        uint64_t found = ((x - EACH_BYTE(0x20)) & ~x) | ((quote - EACH_BYTE(1)) & ~quote) | ((backslash - EACH_BYTE(1)) & ~backslash);
        if ((found & EACH_BYTE(0x80)) != 0)
            break;
        w->at += 8;
    }
    while (w->at < w->end && *w->at != '"' && *w->at != '\\' && (unsigned char)*w->at >= 0x20)
        w->at++;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10 : -1;
}

/* At a backslash.  Half a surrogate pair and NUL are the parser's. */
static bool skip_escape(struct walk *w)
{
    if (w->end - w->at < 2)
        return false;
    char kind = w->at[1];
    w->at += 2;
    if (kind != 'u')
        return memchr("\"\\/bfnrt", kind, 8) != NULL;
    if (w->end - w->at < 4)
        return false;
    unsigned value = 0;
    for (int i = 0; i < 4; i++) {
        int digit = hex_digit(w->at[i]);
        if (digit < 0)
            return false;
        value = value << 4 | (unsigned)digit;
    }
    w->at += 4;
    return value != 0 && (value < 0xd800 || value > 0xdfff);
}

/* A string, the quote at its beginning taken already. */
static bool take_string(struct walk *w, bool plain)
{
    for (;;) {
        skip_plain(w);
        if (w->at == w->end)
            return false;
        if (*w->at == '"') {
            w->at++;
            return true;
        }
        if (plain || *w->at != '\\' || !skip_escape(w))
            return false;
    }
}

static size_t skip_digits(struct walk *w)
{
    const char *from = w->at;

    while (w->at < w->end && *w->at >= '0' && *w->at <= '9')
        w->at++;
    return (size_t)(w->at - from);
}

static bool take_number(struct walk *w)
{
    (void)next_is(w, '-');
    const char *first = w->at;
    size_t whole = skip_digits(w), fraction = 0;

    if (whole == 0 || (whole > 1 && *first == '0'))
        return false;
    if (next_is(w, '.')) {
        fraction = skip_digits(w);
        if (fraction == 0)
            return false;
    }
    return whole + fraction <= DIGITS_MAX && (w->at == w->end || (*w->at | 0x20) != 'e');
}

static bool take_word(struct walk *w, const char *word)
{
    size_t n = strlen(word);

    if ((size_t)(w->end - w->at) < n || memcmp(w->at, word, n) != 0)
        return false;
    w->at += n;
    return true;
}

static bool take_value(struct walk *w, int depth);

/* A key that the object, whose keys are those from first on, has not had. */
static bool take_key(struct walk *w, size_t first, struct span *ret_key)
{
    if (!next_is(w, '"'))
        return false;
    const char *from = w->at;
    if (!take_string(w, true))
        return false;
    struct span key = span_of(from, (size_t)(w->at - 1 - from));
    for (size_t i = first; i < w->n_keys; i++) {
        if (w->keys[i].n == key.n && memcmp(w->keys[i].at, key.at, key.n) == 0)
            return false;
    }
    if (w->n_keys == KEYS_MAX)
        return false;
    w->keys[w->n_keys++] = key;
    *ret_key = key;
    return true;
}

/* What the outermost object says of the line. */
static void note(struct walk *w, struct span key, struct span value)
{
    if (span_is(key, "id"))
        w->id = value;
    if (span_is(key, "custom_id"))
        w->custom_id = value;
    w->openai = w->openai || span_is(key, "custom_id") || span_is(key, "method") || span_is(key, "url") || span_is(key, "body");
}

/* An object, its brace taken already. */
static bool take_object(struct walk *w, int depth)
{
    size_t first = w->n_keys;
    struct span key;

    skip_space(w);
    if (next_is(w, '}'))
        return true;
    do {
        skip_space(w);
        if (!take_key(w, first, &key))
            return false;
        skip_space(w);
        if (!next_is(w, ':'))
            return false;
        skip_space(w);
        const char *from = w->at;
        if (!take_value(w, depth))
            return false;
        if (depth == 0)
            note(w, key, span_of(from, (size_t)(w->at - from)));
        skip_space(w);
    } while (next_is(w, ','));
    w->n_keys = first;
    return next_is(w, '}');
}

static bool take_array(struct walk *w, int depth)
{
    skip_space(w);
    if (next_is(w, ']'))
        return true;
    do {
        skip_space(w);
        if (!take_value(w, depth))
            return false;
        skip_space(w);
    } while (next_is(w, ','));
    return next_is(w, ']');
}

static bool take_value(struct walk *w, int depth)
{
    if (w->at == w->end || depth == DEPTH_MAX)
        return false;
    switch (*w->at) {
    case '"':
        w->at++;
        return take_string(w, false);
    case '{':
        w->at++;
        return take_object(w, depth + 1);
    case '[':
        w->at++;
        return take_array(w, depth + 1);
    case 't':
        return take_word(w, "true");
    case 'f':
        return take_word(w, "false");
    case 'n':
        return take_word(w, "null");
    default:
        return take_number(w);
    }
}

/* The id itself.  Only what needs no decoding; ret_id [CUSTOM_ID_BYTES_MAX + 1]. */
static bool copy_id(struct walk *w, uint64_t number, char *ret_id)
{
    struct span v = w->openai ? w->custom_id : w->id;

    if (v.at == NULL) {
        snprintf(ret_id, CUSTOM_ID_BYTES_MAX + 1, "line-%llu", (unsigned long long)number);
        return true;
    }
    if (v.n >= 3 && v.at[0] == '"' && v.n - 2 <= CUSTOM_ID_BYTES_MAX && memchr(v.at, '\\', v.n) == NULL) {
        v = span_of(v.at + 1, v.n - 2);
    } else if (w->openai || v.n == 0 || v.n > DIGITS_MAX) {
        return false;
    } else {
        for (size_t i = 0; i < v.n; i++) { /* a plain number */
            if (v.at[i] < '0' || v.at[i] > '9')
                return false;
        }
    }
    memcpy(ret_id, v.at, v.n);
    ret_id[v.n] = '\0';
    return true;
}

static bool walk_line(const char *text, size_t bytes, uint64_t number, char *ret_id)
{
    struct walk w = {.at = text, .end = text + bytes};

    if (number == 1 && bytes >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0)
        w.at += 3;
    if (bytes > LINE_BYTES_MAX || !utf8_valid(span_of(text, bytes)))
        return false;
    skip_space(&w);
    if (!next_is(&w, '{') || !take_object(&w, 0))
        return false;
    skip_space(&w);
    return w.at == w.end && copy_id(&w, number, ret_id);
}

int weir_line_custom_id(const char *text, size_t bytes, uint64_t number, char *ret_id)
{
    struct weir_line line = {0};
    struct weir_error ignored;

    if (walk_line(text, bytes, number, ret_id))
        return WEIR_OK;
    (void)weir_line_parse(text, bytes, number, &line, &ignored); /* a wrong line has an id too */
    bool known = line.custom_id != NULL;
    if (known)
        snprintf(ret_id, CUSTOM_ID_BYTES_MAX + 1, "%s", line.custom_id);
    weir_line_deinit(&line);
    return known ? WEIR_OK : WEIR_FAILED;
}
