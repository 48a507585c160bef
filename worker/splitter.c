/* splitter.c - the scanners.  Each takes the piece [at, end) and returns where its first part ends.
 *
 * "\s+(?!\S)" of the regular expressions reads: a run of spaces keeps all but its last one when a word follows, so that
 * the last blank can open the word.  With only one space before the word it is a piece alone. */
#include "splitter.h"

#include <assert.h>

#include "unicode.h"

static const struct splitter_name names[] = {
    {"smollm", SPLITTER_SMOLLM, false, false},     {"starcoder", SPLITTER_SMOLLM, false, false},
    {"refact", SPLITTER_SMOLLM, false, false},     {"command-r", SPLITTER_SMOLLM, false, false},
    {"codeshell", SPLITTER_SMOLLM, false, false},  {"exaone", SPLITTER_SMOLLM, false, false},
    {"minerva-7b", SPLITTER_SMOLLM, false, false}, {"gpt-2", SPLITTER_GPT2, false, false},
    {"phi-2", SPLITTER_GPT2, false, false},        {"mpt", SPLITTER_GPT2, false, false},
    {"olmo", SPLITTER_GPT2, false, false},         {"jais", SPLITTER_GPT2, false, false},
    {"llama-bpe", SPLITTER_LLAMA3, true, true},    {"llama3", SPLITTER_LLAMA3, true, true},
    {"llama-v3", SPLITTER_LLAMA3, true, true},     {"falcon3", SPLITTER_LLAMA3, true, true},
    {"pixtral", SPLITTER_LLAMA3, true, true},      {"lfm2", SPLITTER_LLAMA3, true, true},
    {"smaug-bpe", SPLITTER_LLAMA3, false, false},  {"dbrx", SPLITTER_LLAMA3, false, false},
    {"qwen2", SPLITTER_QWEN2, false, false},       {"deepseek-r1-qwen", SPLITTER_QWEN2, false, false},
    {"stablelm2", SPLITTER_QWEN2, false, false},   {"default", SPLITTER_DEFAULT, false, false},
};

const struct splitter_name *splitter_find(struct span name)
{
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (span_is(name, names[i].name))
            return &names[i];
    return NULL;
}

struct character {
    uint32_t code;
    enum unicode_class class;
    size_t end; /* where the next one begins */
};

/* The character at `at`; at the end of the piece its code is UINT32_MAX and its class UNICODE_SPACE. */
static struct character look(struct span text, size_t at, size_t end)
{
    struct character c = {UINT32_MAX, UNICODE_SPACE, at};

    if (at < end) {
        c.end = at + unicode_decode(span_of(text.at + at, end - at), &c.code);
        c.class = unicode_class_of(c.code);
    }
    return c;
}

static bool is_mark(enum unicode_class class) /* neither space nor letter nor number */
{
    return class == UNICODE_OTHER || class == UNICODE_PUNCTUATION;
}

static bool is_line_end(uint32_t code)
{
    return code == '\r' || code == '\n';
}

/* From at on, over characters of one class; punctuation and other are one class here. */
static size_t run_of(struct span text, size_t at, size_t end, enum unicode_class class)
{
    while (at < end) {
        struct character c = look(text, at, end);

        if (is_mark(class) ? !is_mark(c.class) : c.class != class)
            break;
        at = c.end;
    }
    return at;
}

/* The end of 's 't 're 've 'm 'll 'd at `at`, where a ' stands; 0 when there is none. */
static size_t contraction(struct span text, size_t at, size_t end, bool any_case)
{
    char two[2] = {0, 0};

    for (size_t i = 0; i < 2 && at + 1 + i < end; i++) {
        uint8_t b = text.at[at + 1 + i];

        two[i] = (char)(any_case && b >= 'A' && b <= 'Z' ? b + 32 : b);
    }
    if (two[0] == 's' || two[0] == 't' || two[0] == 'm' || two[0] == 'd')
        return at + 2;
    if ((two[0] == 'r' && two[1] == 'e') || (two[0] == 'v' && two[1] == 'e') ||
        (two[0] == 'l' && two[1] == 'l'))
        return at + 3;
    return 0;
}

/* A run of spaces at `at`, less its last one when a word follows and it is not alone. */
static size_t spaces(struct span text, size_t at, size_t end)
{
    size_t last = at, e = at;

    while (e < end) {
        struct character c = look(text, e, end);

        if (c.class != UNICODE_SPACE)
            break;
        last = e;
        e = c.end;
    }
    return e < end && last > at ? last : e;
}

static size_t scan_gpt2(struct span text, size_t at, size_t end)
{
    struct character c = look(text, at, end);
    size_t e = c.code == '\'' ? contraction(text, at, end, false) : 0;

    if (e > 0)
        return e;
    if (c.code == ' ') { /* a blank may open a word of any kind */
        struct character d = look(text, c.end, end);

        return d.class != UNICODE_SPACE ? run_of(text, c.end, end, d.class) : spaces(text, at, end);
    }
    return c.class != UNICODE_SPACE ? run_of(text, at, end, c.class) : spaces(text, at, end);
}

/* Spaces up to and with the last line end among them; 0 when none of them is one. */
static size_t spaces_to_line_end(struct span text, size_t at, size_t end)
{
    size_t found = 0;

    while (at < end) {
        struct character c = look(text, at, end);

        if (c.class != UNICODE_SPACE)
            break;
        at = c.end;
        if (is_line_end(c.code))
            found = at;
    }
    return found;
}

static size_t scan_llama3(struct span text, size_t at, size_t end, unsigned digits_max)
{
    struct character c = look(text, at, end);
    struct character d = look(text, c.end, end);
    size_t e = c.code == '\'' ? contraction(text, at, end, true) : 0;

    if (e > 0)
        return e;
    if (c.class == UNICODE_LETTER)
        return run_of(text, at, end, UNICODE_LETTER);
    if (c.class == UNICODE_NUMBER) {
        for (unsigned n = 1; n < digits_max && d.class == UNICODE_NUMBER; n++) {
            c = d;
            d = look(text, c.end, end);
        }
        return c.end;
    }
    if (!is_line_end(c.code) && d.class == UNICODE_LETTER) /* any one mark or space opens a word */
        return run_of(text, c.end, end, UNICODE_LETTER);
    if (is_mark(c.class) || (c.code == ' ' && is_mark(d.class))) {
        e = run_of(text, is_mark(c.class) ? at : c.end, end, UNICODE_OTHER);
        while (e < end && is_line_end(text.at[e]))
            e++;
        return e;
    }
    e = spaces_to_line_end(text, at, end);
    return e > 0 ? e : spaces(text, at, end);
}

static size_t scan_llama3_three_digits(struct span text, size_t at, size_t end)
{
    return scan_llama3(text, at, end, 3);
}

static size_t scan_llama3_one_digit(struct span text, size_t at, size_t end)
{
    return scan_llama3(text, at, end, 1);
}

static size_t scan_each_number(struct span text, size_t at, size_t end)
{
    struct character c = look(text, at, end);

    if (c.class == UNICODE_NUMBER)
        return c.end;
    while (at < end) {
        c = look(text, at, end);
        if (c.class == UNICODE_NUMBER)
            break;
        at = c.end;
    }
    return at;
}

/* Does the character belong to the runs that this level cuts out? */
typedef bool belongs_fn(const struct character *c);

static size_t scan_runs(struct span text, size_t at, size_t end, belongs_fn *belongs)
{
    struct character c = look(text, at, end);
    bool inside = belongs(&c);

    for (at = c.end; at < end; at = c.end) {
        c = look(text, at, end);
        if (belongs(&c) != inside)
            break;
    }
    return at;
}

static bool is_punctuation(const struct character *c)
{
    return c->class == UNICODE_PUNCTUATION || c->code == '$' || c->code == '+' ||
           (c->code >= '<' && c->code <= '>') || c->code == '^' || c->code == '~' || c->code == '|';
}

static bool is_number(const struct character *c)
{
    return c->class == UNICODE_NUMBER;
}

static size_t scan_punctuation(struct span text, size_t at, size_t end)
{
    return scan_runs(text, at, end, is_punctuation);
}

static size_t scan_numbers(struct span text, size_t at, size_t end)
{
    return scan_runs(text, at, end, is_number);
}

static bool three_digits(struct span text, size_t at, size_t end)
{
    for (size_t i = 0; i < 3; i++)
        if (at + i >= end || text.at[at + i] < '0' || text.at[at + i] > '9')
            return false;
    return true;
}

static size_t scan_three_digits(struct span text, size_t at, size_t end)
{
    if (three_digits(text, at, end))
        return at + 3;
    do
        at++;
    while (at < end && !three_digits(text, at, end));
    return at;
}

typedef size_t scan_fn(struct span text, size_t at, size_t end);

static scan_fn *const levels[][SPLITTER_LEVELS_MAX] = {
    [SPLITTER_GPT2] = {scan_gpt2},
    [SPLITTER_SMOLLM] = {scan_each_number, scan_gpt2},
    [SPLITTER_LLAMA3] = {scan_llama3_three_digits},
    [SPLITTER_QWEN2] = {scan_llama3_one_digit},
    [SPLITTER_DEFAULT] = {scan_punctuation, scan_gpt2, scan_numbers, scan_three_digits},
};

void splitter_begin(struct splitter *s, enum splitter_kind kind)
{
    *s = (struct splitter){.kind = kind};
}

size_t splitter_next(struct splitter *s, struct span text, size_t at)
{
    size_t end = text.n;

    assert(at < text.n);
    for (unsigned l = 0; l < SPLITTER_LEVELS_MAX && levels[s->kind][l] != NULL; l++) {
        if (s->ends[l] <= at)
            s->ends[l] = levels[s->kind][l](text, at, end);
        end = s->ends[l];
        assert(end > at);
    }
    return end;
}
