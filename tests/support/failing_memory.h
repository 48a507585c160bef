/* failing_memory.h - memory that fails when a test says so, under the C library's names, for the whole program.
 *
 * Definitions, not declarations: included by one file of a program, the test itself, after cmocka.h.  Under a sanitizer, which brings its own, there is none
 * (INTERPOSES is 0), and the test is to skip. */
#ifndef FAILING_MEMORY_H
#define FAILING_MEMORY_H

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define INTERPOSES 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define INTERPOSES 0
#endif
#endif
#ifndef INTERPOSES
#define INTERPOSES 1
#endif

static atomic_int until_failure = -1; /* allocations that still succeed; -1: all */
static atomic_long n_live;
static atomic_long n_calls __attribute__((unused)); /* under a sanitizer nobody counts, and not every test asks */

#if INTERPOSES
/* The C library's own, under the names it gives them for this purpose. */
extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t m);
extern void *__libc_realloc(void *at, size_t n);
extern void *__libc_memalign(size_t alignment, size_t n);
extern void __libc_free(void *at);

static int fails(void)
{
    atomic_fetch_add(&n_calls, 1);
    int left = atomic_load(&until_failure);
    if (left < 0)
        return 0;
    if (left == 0) {
        errno = ENOMEM;
        return 1;
    }
    atomic_store(&until_failure, left - 1);
    return 0;
}

static void *counted(void *at)
{
    if (at != NULL)
        atomic_fetch_add(&n_live, 1);
    return at;
}

void *malloc(size_t n)
{
    return fails() ? NULL : counted(__libc_malloc(n));
}

void *calloc(size_t n, size_t m)
{
    return fails() ? NULL : counted(__libc_calloc(n, m));
}

void *aligned_alloc(size_t alignment, size_t n)
{
    return fails() ? NULL : counted(__libc_memalign(alignment, n));
}

void *realloc(void *at, size_t n)
{
    if (fails())
        return NULL;
    return at == NULL ? counted(__libc_malloc(n)) : __libc_realloc(at, n);
}

void free(void *at)
{
    if (at != NULL)
        atomic_fetch_sub(&n_live, 1);
    __libc_free(at);
}
#endif

/* Call make() with the n-th allocation failing, for all n, until it succeeds; it cleans up after itself. */
static void torture(bool (*make)(void *), void *arg, int n_at_least)
{
    int n = 0;
    assert_true(make(arg)); /* what the C library keeps for later calls (thread stacks, for one) it takes now */
    for (;; n++) {
        long before = atomic_load(&n_live);
        atomic_store(&until_failure, n);
        bool made = make(arg);
        atomic_store(&until_failure, -1);
        assert_int_equal(atomic_load(&n_live), before);
        if (made)
            break;
        assert_true(n < 1000);
    }
    assert_true(n >= n_at_least);
}

#endif
