/* span.h - bytes somebody else owns.  Not NUL-terminated; at may be NULL only when n is 0. */
#ifndef SPAN_H
#define SPAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct span {
    const uint8_t *at;
    size_t n;
};

static inline struct span span_of(const void *at, size_t n)
{
    return (struct span){ at, n };
}

static inline struct span span_str(const char *s)
{
    return (struct span){ (const uint8_t *)s, strlen(s) };
}

static inline bool span_equal(struct span a, struct span b)
{
    return a.n == b.n && (a.n == 0 || memcmp(a.at, b.at, a.n) == 0);
}

static inline bool span_is(struct span a, const char *s)
{
    return span_equal(a, span_str(s));
}

#endif
