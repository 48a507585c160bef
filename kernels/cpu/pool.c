/* pool.c - persistent threads, a barrier, a work counter.
 *
 * Both waits (for the next run, at a barrier) are on a number that only grows.  A waiter spins on it for SPIN_ROUNDS, yielding
 * now and then, then announces itself and sleeps on its futex:
 *
 *     waiter    W1  sleepers += 1               waker     R1  number += 1
 *               W2  sleep while number == old             R2  if sleepers > 0: wake all
 *
 * All are seq_cst.  If R2 misses the sleeper, W1 comes after R2 and so after R1, and the kernel's check in W2 sees the new
 * number and does not sleep.  (The futex call compares the number again under its lock, so no wake-up is lost between.) */
#include "pool.h"

#include <assert.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A wait on a quiet machine is over within a few microseconds.  One that is not may be for a thread that wants this very processor, so
 * from then on it is offered now and then; without that a machine with other work on it gives a fifth of the speed. */
enum {
    SPIN_ROUNDS = 4000, /* pauses: about 50 microseconds */
    SPIN_ALONE = 256,   /* of them before the first offer, */
    OFFER_EVERY = 32,   /* and from one offer to the next */
};

struct gate {
    _Alignas(64) atomic_uint number;
    _Alignas(64) atomic_uint sleepers;
};

struct pool {
    struct gate run, barrier;
    _Alignas(64) atomic_uint arrived;
    _Alignas(64) pool_fn *fn;
    void *arg;
    bool stop;
    uint32_t n_threads, n_started, spin_rounds;
    pthread_t threads[THREADS_MAX];
    struct {
        _Alignas(64) atomic_uint taken; /* of this thread's share, since the last barrier */
    } shares[THREADS_MAX];
};

struct start {
    struct pool *pool;
    uint32_t thread;
};

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void wait_change(struct gate *g, unsigned old, uint32_t spin_rounds)
{
    for (uint32_t i = 0; i < spin_rounds; i++) {
        if (atomic_load_explicit(&g->number, memory_order_acquire) != old)
            return;
        if (i >= SPIN_ALONE && i % OFFER_EVERY == 0)
            sched_yield();
        else
            relax();
    }
    atomic_fetch_add(&g->sleepers, 1);
    while (atomic_load(&g->number) == old)
        syscall(SYS_futex, &g->number, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
    atomic_fetch_sub(&g->sleepers, 1);
}

static void advance(struct gate *g)
{
    atomic_fetch_add(&g->number, 1);
    if (atomic_load(&g->sleepers) > 0)
        syscall(SYS_futex, &g->number, FUTEX_WAKE_PRIVATE, THREADS_MAX, NULL, NULL, 0);
}

static void reset_shares(struct pool *p)
{
    for (uint32_t i = 0; i < p->n_threads; i++)
        atomic_store_explicit(&p->shares[i].taken, 0, memory_order_relaxed);
}

void pool_barrier(struct pool *p)
{
    if (p->n_threads == 1) {
        reset_shares(p);
        return;
    }
    const unsigned old = atomic_load(&p->barrier.number);
    if (atomic_fetch_add(&p->arrived, 1) + 1 == p->n_threads) {
        atomic_store(&p->arrived, 0);
        reset_shares(p);
        advance(&p->barrier);
    } else {
        wait_change(&p->barrier, old, p->spin_rounds);
    }
}

uint32_t pool_take(struct pool *p, uint32_t thread, uint32_t n)
{
    for (uint32_t i = 0; i < p->n_threads; i++) {
        const uint32_t owner = thread + i < p->n_threads ? thread + i : thread + i - p->n_threads;
        const uint32_t first = (uint32_t)((uint64_t)n * owner / p->n_threads), last = (uint32_t)((uint64_t)n * (owner + 1) / p->n_threads);
        atomic_uint *taken = &p->shares[owner].taken;
        /* looked at first, so that shares known to be empty are not written again and again */
        if (atomic_load_explicit(taken, memory_order_relaxed) >= last - first)
            continue;
        const uint32_t unit = first + atomic_fetch_add_explicit(taken, 1, memory_order_relaxed);
        if (unit < last)
            return unit;
    }
    return POOL_NONE;
}

static void *thread_main(void *start)
{
    struct pool *p = ((struct start *)start)->pool;
    const uint32_t thread = ((struct start *)start)->thread;
    unsigned seen = 0;

    free(start);
    for (;;) {
        wait_change(&p->run, seen, p->spin_rounds);
        seen++;
        if (p->stop)
            return NULL;
        p->fn(p->arg, thread);
        pool_barrier(p);
    }
}

void pool_run(struct pool *p, pool_fn *fn, void *arg)
{
    reset_shares(p);
    if (p->n_threads > 1) {
        p->fn = fn;
        p->arg = arg;
        advance(&p->run);
    }
    fn(arg, 0);
    pool_barrier(p);
}

/* "MAX PERIOD" of cgroup v2's cpu.max as whole processors; 0 when there is no quota. */
static uint32_t cgroup_processors(void)
{
    FILE *f = fopen("/sys/fs/cgroup/cpu.max", "re");
    unsigned long quota = 0, period = 0;

    if (f == NULL)
        return 0;
    int n = fscanf(f, "%lu %lu", &quota, &period);
    fclose(f);
    return n == 2 && period > 0 ? (uint32_t)((quota + period - 1) / period) : 0;
}

uint32_t usable_processors(void)
{
    cpu_set_t set;
    uint32_t n = sched_getaffinity(0, sizeof(set), &set) == 0 ? (uint32_t)CPU_COUNT(&set) : 1;
    const uint32_t quota = cgroup_processors();

    if (quota > 0 && quota < n)
        n = quota;
    return n < 1 ? 1 : n > THREADS_MAX ? THREADS_MAX : n;
}

/* Thread i on the i-th processor of the set; a failure only costs speed. */
static void pin_to(pthread_t thread, uint32_t i, const cpu_set_t *usable)
{
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, usable) || i-- > 0)
            continue;
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        (void)pthread_setaffinity_np(thread, sizeof(one), &one);
        return;
    }
}

enum status pool_new(uint32_t n_threads, bool pin, struct pool **ret_pool)
{
    enum status st = ST_NOMEM;
    struct pool *p = aligned_alloc(64, sizeof(*p));
    cpu_set_t usable;

    assert(n_threads >= 1 && n_threads <= THREADS_MAX);
    if (p == NULL)
        return ST_NOMEM;
    *p = (struct pool){ .n_threads = n_threads, .n_started = 1 };
    /* Spinning for a thread that cannot run takes its processor away. */
    p->spin_rounds = n_threads <= usable_processors() ? SPIN_ROUNDS : 0;
    pin = pin && sched_getaffinity(0, sizeof(usable), &usable) == 0;
    for (uint32_t i = 1; i < n_threads; i++) {
        struct start *start = malloc(sizeof(*start));
        if (start == NULL)
            goto out;
        *start = (struct start){ p, i };
        if (pthread_create(&p->threads[i], NULL, thread_main, start) != 0) {
            free(start);
            st = ST_SYSTEM;
            goto out;
        }
        p->n_started++;
        if (pin)
            pin_to(p->threads[i], i, &usable);
    }
    if (pin)
        pin_to(pthread_self(), 0, &usable);
    *ret_pool = p;
    p = NULL;
    st = ST_OK;
out:
    pool_free(p);
    return st;
}

void pool_free(struct pool *p)
{
    if (p == NULL)
        return;
    p->stop = true;
    advance(&p->run);
    for (uint32_t i = 1; i < p->n_started; i++)
        pthread_join(p->threads[i], NULL);
    free(p);
}
