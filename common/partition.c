/* partition.c - makes the memory of a part of the host store, and checks it on the other side; see partition.h.
 *
 * The descriptor for readers is a second opening of the same memory through /proc, for reading only: a mapping made through it
 * cannot be made writable, so a worker that runs wild cannot reach another's blocks. */
#include "partition.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "log.h"

enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

_Static_assert(sizeof(struct partition_birth) <= PARTITION_BIRTH_BYTES, "the birth page holds it");

static enum status open_memory(uint64_t bytes, int *ret_owner, int *ret_reader)
{
    char path[64];
    int owner = memfd_create("weir-store", MFD_CLOEXEC | MFD_ALLOW_SEALING), reader = -1;

    if (owner < 0 || ftruncate(owner, (off_t)bytes) != 0 || fcntl(owner, F_ADD_SEALS, SEALS) != 0)
        goto out;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", owner);
    reader = open(path, O_RDONLY | O_CLOEXEC);
    if (reader < 0)
        goto out;
    *ret_owner = owner;
    *ret_reader = reader;
    return ST_OK;
out:
    log_error("partition_failed", "bytes=%llu errno=%d", (unsigned long long)bytes, errno);
    if (owner >= 0)
        close(owner);
    return ST_SYSTEM;
}

enum status partition_create(uint64_t bytes, uint32_t worker_slot, uint64_t boot_id, const uint64_t secret[2],
                             struct partition *ret_partition)
{
    assert(bytes % PARTITION_BIRTH_BYTES == 0 && bytes >= PARTITION_BYTES_MIN);
    struct partition p = { .owner_fd = -1, .reader_fd = -1 };

    *ret_partition = p;
    enum status st = open_memory(bytes, &p.owner_fd, &p.reader_fd);
    if (st != ST_OK)
        return st;
    void *at = mmap(NULL, PARTITION_BIRTH_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, p.owner_fd, 0);
    if (at == MAP_FAILED) {
        log_error("partition_map_failed", "errno=%d", errno);
        partition_close(&p);
        return ST_NOMEM;
    }
    p.birth = at;
    *p.birth = (struct partition_birth){ .magic = PARTITION_MAGIC,
                                         .version = PARTITION_VERSION,
                                         .bytes = bytes,
                                         .worker_slot = worker_slot,
                                         .boot_id = boot_id,
                                         .secret = { secret[0], secret[1] },
                                         .epoch = 1 };
    *ret_partition = p;
    return ST_OK;
}

void partition_close(struct partition *p)
{
    if (p->birth != NULL)
        munmap(p->birth, PARTITION_BIRTH_BYTES);
    if (p->owner_fd >= 0)
        close(p->owner_fd);
    if (p->reader_fd >= 0)
        close(p->reader_fd);
    *p = (struct partition){ .owner_fd = -1, .reader_fd = -1 };
}

void partition_discard(struct partition *p)
{
    if (p->birth != NULL)
        atomic_fetch_add(&p->birth->epoch, 1);
}

enum status partition_read_birth(int fd, struct partition_birth *ret_birth)
{
    struct partition_birth b;
    struct stat file;
    int seals = fcntl(fd, F_GET_SEALS);

    if (seals < 0 || fstat(fd, &file) < 0) {
        log_error("partition_not_a_memfd", "errno=%d", errno);
        return errno == EINVAL ? ST_CORRUPT : ST_SYSTEM;
    }
    if ((seals & SEALS) != SEALS || file.st_size < PARTITION_BYTES_MIN ||
        pread(fd, &b, sizeof(b), 0) != (ssize_t)sizeof(b)) {
        log_error("partition_refused", "reason=seals_or_size seals=%d bytes=%lld", seals, (long long)file.st_size);
        return ST_CORRUPT;
    }
    if (b.magic != PARTITION_MAGIC || b.version != PARTITION_VERSION || b.bytes != (uint64_t)file.st_size ||
        b.bytes % PARTITION_BIRTH_BYTES != 0 || b.worker_slot >= WORKERS_MAX || b.epoch == 0) {
        log_error("partition_refused", "reason=birth magic=%08x version=%u bytes=%llu", b.magic, b.version,
                  (unsigned long long)b.bytes);
        return ST_CORRUPT;
    }
    *ret_birth = b;
    return ST_OK;
}
