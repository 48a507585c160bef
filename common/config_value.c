/* config_value.c - numbers with units, booleans, and their ranges.
 *
 * Strict: the whole text has to be the value, so "10 apples", "0x10", "nan" and "-1" are errors, not 10, 16, NaN and 2^64 - 1. */
#include "config_value.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct unit {
    const char *name;
    double factor;
};

static const struct unit byte_units[] = {
    { "", 1 }, { "B", 1 }, { "K", 0x1p10 }, { "KB", 0x1p10 }, { "KiB", 0x1p10 }, { "M", 0x1p20 }, { "MB", 0x1p20 },
    { "MiB", 0x1p20 }, { "G", 0x1p30 }, { "GB", 0x1p30 }, { "GiB", 0x1p30 }, { "T", 0x1p40 }, { "TB", 0x1p40 },
    { "TiB", 0x1p40 }, { NULL, 0 },
};

static const struct unit time_units[] = {
    { "", 1000 }, { "ms", 1 }, { "s", 1000 }, { "m", 60e3 }, { "h", 3600e3 }, { "d", 86400e3 }, { NULL, 0 },
};

static const struct {
    const char *noun;
    const char *example;
} kinds[] = {
    [CONFIG_STRING] = { "a string", "" },
    [CONFIG_BOOL] = { "yes or no", "" },
    [CONFIG_U64] = { "a whole number", "" },
    [CONFIG_BYTES] = { "a size", ", like 512, 64K, 1.5G" },
    [CONFIG_MS] = { "a time", ", like 250ms, 5s, 10m, 1h" },
    [CONFIG_F64] = { "a number", "" },
    [CONFIG_LIST] = { "a string", "" },
};

static enum status refuse(const struct config_key *k, const char *text, const char *where, struct error *err)
{
    if (k->min != 0 || k->max != 0)
        error_set(err, ERR_INVALID_PARAMETER, where, "%s is \"%s\", must be %s from %.10g to %.10g%s%s", k->name, text,
                  kinds[k->type].noun, k->min, k->max, k->type == CONFIG_BYTES ? " bytes" : k->type == CONFIG_MS ? " ms" : "",
                  kinds[k->type].example);
    else
        error_set(err, ERR_INVALID_PARAMETER, where, "%s is \"%s\", must be %s%s", k->name, text, kinds[k->type].noun,
                  kinds[k->type].example);
    return ST_INVALID;
}

static bool in_range(const struct config_key *k, double value)
{
    return (k->min == 0 && k->max == 0) || (value >= k->min && value <= k->max);
}

static bool parse_bool(const char *text, uint64_t *ret)
{
    static const char *const words[] = { "no", "yes", "false", "true", "0", "1", "off", "on" };

    for (unsigned i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strcasecmp(text, words[i]) == 0) {
            *ret = i % 2;
            return true;
        }
    return false;
}

static bool parse_u64(const char *text, uint64_t *ret)
{
    uint64_t value = 0;

    if (*text == '\0')
        return false;
    for (; *text != '\0'; text++) {
        if (*text < '0' || *text > '9')
            return false;
        uint64_t digit = (uint64_t)(*text - '0');
        if (value > (UINT64_MAX - digit) / 10)
            return false;
        value = value * 10 + digit;
    }
    *ret = value;
    return true;
}

/* A number, digits and a point and perhaps an exponent, then a unit; no sign.  The product fits 53 bits. */
static bool parse_with_unit(const char *text, const struct unit *units, uint64_t *ret)
{
    size_t n = strspn(text, "0123456789.");
    char digits[32], *end = NULL;

    if (n == 0 || n >= sizeof(digits))
        return false;
    memcpy(digits, text, n);
    digits[n] = '\0';
    double number = strtod(digits, &end);
    if (*end != '\0')
        return false;
    for (const char *name = text + n + strspn(text + n, " "); units->name != NULL; units++) {
        if (strcasecmp(name, units->name) != 0)
            continue;
        double product = round(number * units->factor);
        if (product > (double)CONFIG_UNIT_VALUE_MAX || (product == 0 && number != 0))
            return false;
        *ret = (uint64_t)product;
        return true;
    }
    return false;
}

static bool parse_f64(const char *text, double *ret)
{
    char *end = NULL;

    if (*text == '\0' || text[strspn(text, "0123456789.+-eE")] != '\0')
        return false;
    double value = strtod(text, &end);
    if (*end != '\0' || !isfinite(value))
        return false;
    *ret = value;
    return true;
}

enum status config_value_parse(const struct config_key *k, const char *text, const char *where,
                               struct config_value *ret_value, struct error *err)
{
    struct config_value v = { 0 };
    bool ok = false;

    switch (k->type) {
    case CONFIG_BOOL:
        ok = parse_bool(text, &v.u64);
        break;
    case CONFIG_U64:
        ok = parse_u64(text, &v.u64) && in_range(k, (double)v.u64);
        break;
    case CONFIG_BYTES:
        ok = parse_with_unit(text, byte_units, &v.u64) && in_range(k, (double)v.u64);
        break;
    case CONFIG_MS:
        ok = parse_with_unit(text, time_units, &v.u64) && in_range(k, (double)v.u64);
        break;
    case CONFIG_F64:
        ok = parse_f64(text, &v.f64) && in_range(k, v.f64);
        break;
    case CONFIG_STRING:
    case CONFIG_LIST:
        ok = true;
        break;
    }
    if (!ok)
        return refuse(k, text, where, err);
    *ret_value = v;
    return ST_OK;
}
