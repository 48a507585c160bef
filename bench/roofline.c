/* roofline.c - what the machine could do: gigabytes a second that all threads read from memory, of a buffer as large as a
 * small model's weights and one far beyond the caches.
 *
 * usage: roofline THREADS      prints lines for bench/compare.sh */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { THREADS = 64, ROUNDS = 5 };

struct part {
    const uint64_t *at;
    size_t n;
    uint64_t sum; /* so that the reads are not thrown away */
};

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *read_part(void *arg)
{
    struct part *p = arg;
    uint64_t a = 0, b = 0, c = 0, d = 0;

    for (size_t i = 0; i + 32 <= p->n; i += 32) { /* one word of each line is enough to fetch it */
        a ^= p->at[i];
        b ^= p->at[i + 8];
        c ^= p->at[i + 16];
        d ^= p->at[i + 24];
    }
    p->sum = a ^ b ^ c ^ d;
    return NULL;
}

static double read_rate(const uint64_t *buffer, size_t bytes, uint32_t n_threads)
{
    double best = 0;

    for (int round = 0; round < ROUNDS; round++) {
        struct part parts[THREADS];
        pthread_t threads[THREADS];
        const size_t n = bytes / 8 / n_threads;
        const double start = now();
        for (uint32_t i = 0; i < n_threads; i++) {
            parts[i] = (struct part){ buffer + i * n, n, 0 };
            if (pthread_create(&threads[i], NULL, read_part, &parts[i]) != 0)
                exit(1);
        }
        for (uint32_t i = 0; i < n_threads; i++)
            pthread_join(threads[i], NULL);
        const double rate = (double)bytes / (now() - start) / 1e9;
        best = rate > best ? rate : best;
    }
    return best;
}

int main(int argc, char **argv)
{
    const size_t large = 1u << 30;
    const uint32_t n = argc > 1 ? (uint32_t)atoi(argv[1]) : 1;
    uint64_t *buffer = mmap(NULL, large, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (n < 1 || n > THREADS || buffer == MAP_FAILED)
        return 1;
    (void)madvise(buffer, large, MADV_HUGEPAGE);
    memset(buffer, 1, large);
    printf("limit read_gb_s %.1f\nlimit read_large_gb_s %.1f\n", read_rate(buffer, 97u << 20, n), read_rate(buffer, large, n));
    return 0;
}
