/* key_options.c - one pass over the list; every option is known or the key is refused. */
#include "key_options.h"

#include <arpa/inet.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

enum { OPTION_BYTES_MAX = 1024 };

static bool prefix_matches(const char *pattern, const char *address)
{
    char network[64];
    uint8_t a[16] = { 0 }, b[16] = { 0 };
    const char *slash = strchr(pattern, '/');
    int family = strchr(address, ':') != NULL ? AF_INET6 : AF_INET;
    char *end;

    if (slash == NULL || (size_t)(slash - pattern) >= sizeof network || slash[1] < '0' || slash[1] > '9')
        return false;
    memcpy(network, pattern, (size_t)(slash - pattern));
    network[slash - pattern] = '\0';
    unsigned long bits = strtoul(slash + 1, &end, 10);
    if (*end != '\0' || bits > (family == AF_INET6 ? 128u : 32u))
        return false;
    if (inet_pton(family, network, a) != 1 || inet_pton(family, address, b) != 1)
        return false;
    for (unsigned long i = 0; i < bits; i++) {
        if ((a[i / 8] ^ b[i / 8]) & (0x80 >> (i % 8)))
            return false;
    }
    return true;
}

bool key_options_address_matches(const char *pattern, const char *address)
{
    return prefix_matches(pattern, address) || fnmatch(pattern, address, 0) == 0;
}

/* Comma-separated patterns; a negated one that matches refuses whatever else does. */
static bool from_matches(char *patterns, const char *address)
{
    bool matched = false;
    char *rest = patterns, *pattern;

    while ((pattern = strsep(&rest, ",")) != NULL) {
        bool negated = pattern[0] == '!';
        pattern += negated;
        if (!key_options_address_matches(pattern, address))
            continue;
        if (negated)
            return false;
        matched = true;
    }
    return matched;
}

/* false: malformed, which counts as expired. */
static bool still_valid(const char *text, int64_t real_ms)
{
    struct tm tm = { 0 };
    size_t n = strlen(text);
    char stamp[32];

    if ((n != 8 && n != 12 && n != 14) || strspn(text, "0123456789") != n)
        return false;
    snprintf(stamp, sizeof stamp, "%.14s000000", text);
    if (sscanf(stamp, "%4d%2d%2d%2d%2d%2d", &tm.tm_year, &tm.tm_mon, &tm.tm_mday, &tm.tm_hour, &tm.tm_min,
               &tm.tm_sec) != 6)
        return false;
    if (tm.tm_mon < 1 || tm.tm_mon > 12 || tm.tm_mday < 1 || tm.tm_mday > 31)
        return false;
    tm.tm_year -= 1900;
    tm.tm_mon -= 1;
    return real_ms / 1000 < (int64_t)timegm(&tm);
}

/* Take one option off the list: its name, and its value without quotes (NULL: none).  false: malformed. */
static bool next_option(const char **at, char *name, char *value, bool *ret_has_value)
{
    size_t n = strcspn(*at, "=,");

    if (n == 0 || n >= OPTION_BYTES_MAX)
        return false;
    memcpy(name, *at, n);
    name[n] = '\0';
    *at += n;
    *ret_has_value = **at == '=';
    if (*ret_has_value) {
        const char *begin = *at + 2, *end = (*at)[1] == '"' ? strchr(begin, '"') : NULL;
        if (end == NULL || end - begin >= OPTION_BYTES_MAX)
            return false;
        memcpy(value, begin, (size_t)(end - begin));
        value[end - begin] = '\0';
        *at = end + 1;
    }
    if (**at == ',')
        (*at)++;
    else if (**at != '\0')
        return false;
    return true;
}

bool key_options_allow(const char *options, const char *address, int64_t real_ms, const char **ret_reason)
{
    static const char *const harmless[] = { "restrict",           "no-pty",
                                            "no-port-forwarding", "no-agent-forwarding",
                                            "no-X11-forwarding",  "no-user-rc" };
    char name[OPTION_BYTES_MAX], value[OPTION_BYTES_MAX];
    const char *at = options;

    while (*at != '\0') {
        bool has_value, known = false;
        if (!next_option(&at, name, value, &has_value)) {
            *ret_reason = "options_malformed";
            return false;
        }
        if (has_value && strcasecmp(name, "from") == 0) {
            if (!from_matches(value, address)) {
                *ret_reason = "from";
                return false;
            }
            continue;
        }
        if (has_value && strcasecmp(name, "expiry-time") == 0) {
            if (!still_valid(value, real_ms)) {
                *ret_reason = "expired";
                return false;
            }
            continue;
        }
        for (size_t i = 0; i < sizeof harmless / sizeof harmless[0]; i++)
            known = known || (!has_value && strcasecmp(name, harmless[i]) == 0);
        if (!known) {
            *ret_reason = "option_unknown";
            return false;
        }
    }
    return true;
}
