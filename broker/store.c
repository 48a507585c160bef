/* store.c - see store.h. */
#include "store.h"

#include <inttypes.h>

#include "log.h"

static void hand_out(struct worker *workers, uint32_t n_workers, struct worker *w)
{
    w->store_fds[0] = w->store.owner_fd;
    w->n_store_fds = 1;
    for (uint32_t i = 0; i < n_workers; i++)
        if (&workers[i] != w && workers[i].model == w->model)
            w->store_fds[w->n_store_fds++] = workers[i].store.reader_fd;
}

void store_open(struct worker *workers, uint32_t n_workers, uint64_t bytes, uint64_t boot_id, const uint64_t secret[2])
{
    uint64_t each = bytes / n_workers / PARTITION_BIRTH_BYTES * PARTITION_BIRTH_BYTES;

    if (each < PARTITION_BYTES_MIN)
        return;
    for (uint32_t i = 0; i < n_workers; i++)
        if (partition_create(each, workers[i].slot, boot_id, secret, &workers[i].store) != ST_OK) {
            log_warn("no_host_store", "slot=%" PRIu32 " bytes=%" PRIu64, workers[i].slot, each);
            store_close(workers, n_workers);
            return;
        }
    for (uint32_t i = 0; i < n_workers; i++)
        hand_out(workers, n_workers, &workers[i]);
    log_info("host_store", "partitions=%" PRIu32 " bytes=%" PRIu64, n_workers, each);
}

void store_close(struct worker *workers, uint32_t n_workers)
{
    for (uint32_t i = 0; i < n_workers; i++) {
        workers[i].n_store_fds = 0;
        partition_close(&workers[i].store);
    }
}
