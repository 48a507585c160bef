/* fetch.h - memory asked for before it is needed.
 *
 * In a step of few rows a phase takes 20 to 60 microseconds, and much of what it reads, and nearly all it writes, lies in the
 * cache of the processor that wrote it last.  Asked for all at once, before the product that comes first, it costs nothing;
 * line by line, when the product has come to it, the threads of a decode of 16 wait for some 5 % of their time.
 *
 * Hints only: no value depends on them. */
#ifndef FETCH_H
#define FETCH_H

#include <stddef.h>

enum { CACHE_LINE = 64 };

static inline void fetch(const void *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += CACHE_LINE)
        __builtin_prefetch((const char *)at + i);
}

/* Owned by this processor at once, so that the store does not have to ask for that. */
static inline void fetch_to_write(const void *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += CACHE_LINE)
#if defined(__x86_64__)
        __asm__ volatile("prefetchw %0" : : "m"(*((const char *)at + i))); /* where it is not known it does nothing */
#else
        __builtin_prefetch((const char *)at + i, 1);
#endif
}

#endif
