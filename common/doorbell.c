/* doorbell.c - both halves of the sleep and wake protocol that doorbell.h proves.
 *
 * While the consumer is awake a push costs no system call: the producer loads a flag and finds it clear.
 * An eventfd counts, so a ring that comes between the consumer's look and its poll is not lost, and rings
 * that nobody waits for add up to one wake-up. */
#include "doorbell.h"

#include <errno.h>
#include <unistd.h>

void doorbell_ring(struct doorbell *b)
{
    const uint64_t one = 1;

    if (atomic_load_explicit(&b->shared->sleeping, memory_order_seq_cst) == 0) /* D2 */
        return;
    /* EAGAIN means that the counter is full, so the other side wakes anyhow. */
    while (write(b->fd, &one, sizeof(one)) < 0 && errno == EINTR)
        ;
}

void doorbell_sleep_begin(struct doorbell *b)
{
    atomic_store_explicit(&b->shared->sleeping, 1, memory_order_seq_cst); /* D3 */
}

void doorbell_sleep_end(struct doorbell *b)
{
    uint64_t count;

    atomic_store_explicit(&b->shared->sleeping, 0, memory_order_seq_cst);
    /* Read after the flag: a ring that comes later belongs to a push that the next pop of the caller sees. */
    while (read(b->fd, &count, sizeof(count)) < 0 && errno == EINTR)
        ;
}
