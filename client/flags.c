/* flags.c - see flags.h. */
#include "flags.h"
#include "edit_distance.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- nearest ----------------------------------------------------------------------------------- */


const char *flags_nearest(const char *word, const char *const *candidates, size_t n)
{
    const char *best = NULL;
    size_t best_distance = strlen(word) / 3 + 2; /* further away it would be guessing */

    for (size_t i = 0; i < n; i++) {
        size_t d = edit_distance(span_str(word), span_str(candidates[i]));
        if (strlen(word) >= 3 && strncmp(candidates[i], word, strlen(word)) == 0)
            d = 1; /* a beginning of it */
        if (d < best_distance) {
            best_distance = d;
            best = candidates[i];
        }
    }
    return best;
}

/* --- values ------------------------------------------------------------------------------------ */

static bool wrong_value(const char *verb, const struct flag *f, const char *text, const char *wanted)
{
    fprintf(stderr, "weir %s: --%s wants %s, not \"%s\"\n", verb, f->name, wanted, text);
    return false;
}

static bool read_integer(const char *verb, const struct flag *f, const char *text, uint64_t max,
                         uint64_t *ret_n)
{
    char wanted[96], *end;

    errno = 0;
    unsigned long long n = strtoull(text, &end, 10);
    if (text[0] >= '0' && text[0] <= '9' && *end == '\0' && errno == 0 && n <= max && (double)n >= f->min &&
        (f->max == 0 || (double)n <= f->max)) {
        *ret_n = n;
        return true;
    }
    if (f->max != 0)
        snprintf(wanted, sizeof(wanted), "an integer from %.0f to %.0f", f->min, f->max);
    else
        snprintf(wanted, sizeof(wanted), "an integer from %.0f to %" PRIu64, f->min, max);
    return wrong_value(verb, f, text, wanted);
}

static bool read_number(const char *verb, const struct flag *f, const char *text, struct flag_number *ret)
{
    char wanted[96], *end;
    double x = strtod(text, &end);

    if (text[0] == '\0' || *end != '\0' || !isfinite(x) || x < f->min || x > f->max) {
        snprintf(wanted, sizeof(wanted), "a number from %g to %g", f->min, f->max);
        return wrong_value(verb, f, text, wanted);
    }
    *ret = (struct flag_number){x, true};
    return true;
}

static bool read_ms(const char *verb, const struct flag *f, const char *text, uint32_t *ret_ms)
{
    static const struct {
        const char *unit;
        double ms;
    } units[] = {{"", 1000}, {"ms", 1}, {"s", 1000}, {"m", 60e3}, {"h", 3600e3}, {"d", 86400e3}};
    char *end;
    double x = strtod(text, &end);

    if (end != text && isfinite(x) && x >= 0)
        for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
            if (strcmp(end, units[i].unit) == 0 && x * units[i].ms <= 2e9) {
                *ret_ms = (uint32_t)(x * units[i].ms);
                return true;
            }
    return wrong_value(verb, f, text, "a time such as 250ms, 5s, 10m or 1h");
}

static bool read_list(const char *verb, const struct flag *f, const char *text, struct flag_list *list)
{
    if (list->n == FLAG_LIST_MAX) {
        fprintf(stderr, "weir %s: --%s is given more than %d times\n", verb, f->name, FLAG_LIST_MAX);
        return false;
    }
    list->at[list->n++] = text;
    return true;
}

static bool set_value(const char *verb, const struct flag *f, const char *text)
{
    uint64_t n = 0;

    switch (f->kind) {
    case FLAG_SWITCH:
        *(bool *)f->to = true;
        return true;
    case FLAG_TEXT:
        *(const char **)f->to = text;
        return true;
    case FLAG_LIST:
        return read_list(verb, f, text, f->to);
    case FLAG_NUMBER:
        return read_number(verb, f, text, f->to);
    case FLAG_MS:
        return read_ms(verb, f, text, f->to);
    case FLAG_U32:
        if (!read_integer(verb, f, text, UINT32_MAX, &n))
            return false;
        *(uint32_t *)f->to = (uint32_t)n;
        return true;
    case FLAG_U64:
        if (!read_integer(verb, f, text, INT64_MAX, &n)) /* what --json can print again */
            return false;
        *(struct flag_u64 *)f->to = (struct flag_u64){n, true};
        return true;
    }
    return false;
}

/* --- the line ---------------------------------------------------------------------------------- */

static const struct flag *find(const struct flag *flags, size_t n_flags, const char *name, size_t bytes)
{
    for (size_t i = 0; i < n_flags; i++)
        if (strlen(flags[i].name) == bytes && memcmp(flags[i].name, name, bytes) == 0)
            return &flags[i];
    return NULL;
}

static const struct flag *find_letter(const struct flag *flags, size_t n_flags, char letter)
{
    for (size_t i = 0; i < n_flags; i++)
        if (flags[i].letter == letter)
            return &flags[i];
    return NULL;
}

static int unknown(const struct flag *flags, size_t n_flags, const char *verb, const char *word)
{
    const char *names[FLAGS_MAX];
    char name[64];

    assert(n_flags <= FLAGS_MAX);
    for (size_t i = 0; i < n_flags; i++)
        names[i] = flags[i].name;
    snprintf(name, sizeof(name), "%.*s", (int)strcspn(word, "="), word);
    const char *near = flags_nearest(name + strspn(name, "-"), names, n_flags);
    if (near != NULL)
        fprintf(stderr, "weir %s: there is no %s; did you mean --%s?\n", verb, name, near);
    else
        fprintf(stderr, "weir %s: there is no %s; `weir help %s` lists what there is\n", verb, name, verb);
    return FLAGS_WRONG;
}

/* One flag at argv[*at]; moves *at behind its value.  0, or FLAGS_*. */
static int read_flag(const struct flag *flags, size_t n_flags, const char *verb, int argc, char **argv,
                     int *at)
{
    const char *word = argv[(*at)++], *value = NULL;
    const struct flag *f;

    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0)
        return FLAGS_HELP;
    if (word[1] == '-') {
        size_t bytes = strcspn(word + 2, "=");
        f = find(flags, n_flags, word + 2, bytes);
        if (word[2 + bytes] == '=')
            value = word + 2 + bytes + 1;
    } else {
        f = find_letter(flags, n_flags, word[1]);
        if (word[2] != '\0')
            value = word + 2;
    }
    if (f == NULL)
        return unknown(flags, n_flags, verb, word);
    if (f->kind == FLAG_SWITCH && value != NULL) {
        fprintf(stderr, "weir %s: --%s takes no value\n", verb, f->name);
        return FLAGS_WRONG;
    }
    if (f->kind != FLAG_SWITCH && value == NULL) {
        if (*at == argc) {
            fprintf(stderr, "weir %s: --%s wants a value (%s)\n", verb, f->name, f->value);
            return FLAGS_WRONG;
        }
        value = argv[(*at)++];
    }
    return set_value(verb, f, value) ? 0 : FLAGS_WRONG;
}

int flags_parse(const struct flag *flags, size_t n_flags, const char *verb, int argc, char **argv)
{
    int n_args = 0, at = 0;

    while (at < argc) {
        if (strcmp(argv[at], "--") == 0) {
            at++;
            break;
        }
        if (argv[at][0] == '-' && argv[at][1] != '\0') {
            int result = read_flag(flags, n_flags, verb, argc, argv, &at);
            if (result != 0)
                return result;
        } else {
            argv[n_args++] = argv[at++];
        }
    }
    while (at < argc)
        argv[n_args++] = argv[at++];
    return n_args;
}

void flags_print(FILE *out, const struct flag *flags, size_t n_flags)
{
    for (size_t i = 0; i < n_flags; i++) {
        char left[64], letter[8] = "    ";
        if (flags[i].letter != 0)
            snprintf(letter, sizeof(letter), "-%c, ", flags[i].letter);
        snprintf(left, sizeof(left), "%s--%s %s", letter, flags[i].name,
                 flags[i].value != NULL ? flags[i].value : "");
        fprintf(out, "  %-32s %s\n", left, flags[i].help);
    }
}
