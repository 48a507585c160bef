/* fuzz_store.c - the host store over partitions whose owner has gone bad: any bytes in birth page, header, index, entries and payloads, of
 * the partition of another worker and of the one that this worker adopts from the life before it.  Targets: host_store_new, and reading.
 *
 * What is promised: no byte outside the partitions is touched, the adopted partition is whole afterwards, and a block that is believed
 * is, to the byte, one that was put under that name.  (The checksum's seed is known to the workers, so a worker that wants to can make a
 * false block with a right checksum: workers of one pool trust each other for contents.  Bytes changed without that are found.) */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/store_rig.h"
#include "worker/host_store_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { OWN, OTHER, N_PARTITIONS, N_PUT = 24 };

static struct partition partitions[N_PARTITIONS];
static uint8_t *maps[N_PARTITIONS], *pristine[N_PARTITIONS];
static struct store_geometry geometry;

static void put(struct host_store *hs, uint32_t block)
{
    uint32_t slot;
    void *payload;

    if (host_store_put_begin(hs, &store_rig_block(block)->name, &slot, &payload) != ST_OK)
        abort();
    store_rig_fill(block, payload, 2);
    host_store_put_end(hs, slot, true);
}

static void set_up(void)
{
    store_rig_init();
    if (!store_geometry(STORE_PARTITION_BYTES, STORE_BLOCK_BYTES, &geometry))
        abort();
    for (uint32_t p = 0; p < N_PARTITIONS; p++) {
        partitions[p] = store_rig_partition(p);
        struct host_store *hs = store_rig_open(partitions[p].owner_fd, -1, "fuzz");
        for (uint32_t i = 0; i < N_PUT; i++)
            put(hs, i + p * N_PUT / 2); /* some of them in both */
        host_store_free(hs);
        maps[p] = mmap(NULL, STORE_PARTITION_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, partitions[p].owner_fd, 0);
        pristine[p] = malloc(STORE_PARTITION_BYTES);
        if (maps[p] == MAP_FAILED || pristine[p] == NULL)
            abort();
        memcpy(pristine[p], maps[p], STORE_PARTITION_BYTES);
    }
}

/* Where the input writes: offsets are small numbers, so that the places that matter are met. */
static size_t place(uint8_t part, uint32_t at)
{
    switch (part % 5) {
    case 0:
        return at % sizeof(struct partition_birth);
    case 1:
        return STORE_HEADER_AT + at % sizeof(struct store_header);
    case 2:
        return STORE_INDEX_AT + at % (geometry.n_buckets * sizeof(store_bucket));
    case 3:
        return geometry.entries_at + at % (geometry.n_slots * sizeof(struct store_entry));
    default:
        return geometry.payload_at + at % (uint32_t)(STORE_PARTITION_BYTES - geometry.payload_at);
    }
}

static void read_all(struct host_store *hs)
{
    static _Alignas(64) uint8_t payload[STORE_BLOCK_BYTES];

    for (uint32_t i = 0; i < 2 * N_PUT; i++)
        if (host_store_get(hs, &store_rig_block(i)->name, payload) == ST_OK && !store_rig_is(i, payload))
            abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct host_store *hs = NULL;

    if (pristine[OWN] == NULL)
        set_up();
    for (uint32_t p = 0; p < N_PARTITIONS; p++)
        memcpy(maps[p], pristine[p], STORE_PARTITION_BYTES);
    while (size >= 5) { /* partition and part, offset, count, bytes */
        uint8_t *map = maps[data[0] >> 7];
        size_t at = place(data[0] & 127, (uint32_t)data[1] << 16 | (uint32_t)data[2] << 8 | data[3]), n = data[4] % 32u + 1;

        data += 5;
        size -= 5;
        n = n < size ? n : size;
        n = n < STORE_PARTITION_BYTES - at ? n : STORE_PARTITION_BYTES - at;
        memcpy(map + at, data, n);
        data += n;
        size -= n;
    }
    struct host_store_options o = { .own_fd = partitions[OWN].owner_fd,
                                    .other_fds = &partitions[OTHER].reader_fd,
                                    .n_others = 1,
                                    .block_bytes = STORE_BLOCK_BYTES,
                                    .numerics_id = "fuzz" };
    if (host_store_new(&o, &hs) != ST_OK)
        return 0;
    host_store_check(hs);
    read_all(hs);
    put(hs, 3 * N_PUT);
    host_store_check(hs);
    host_store_free(hs);
    return 0;
}
