/* region.c - makes the shared memory of one life of a worker, and checks it on the other side.
 *
 * Memory is allocated in full before anybody maps it: a page that could not be had would be a SIGBUS in
 * the middle of a step.  The size is sealed, so no side can cut the file under the other's feet, which
 * would be the same SIGBUS. The worker believes nothing of the header until it has copied it: the copy is
 * checked and used, the shared one never read again. */
#include "region.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "log.h"

enum { LINE = 64, PAGE = 4096, SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL, N_PARTS = 9 };
enum { BELL_REQUESTS, BELL_EVENTS, N_BELLS };
enum { REGION_RING_SLOTS_MAX = 1 << 20 };
static const uint64_t region_bytes_max = UINT64_C(1) << 32;

static uint64_t round_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

/* Give `bytes` at the next free line of the region; returns their offset. */
static uint64_t place(uint64_t *end, uint64_t bytes)
{
    uint64_t at = *end;

    *end = round_up(at + bytes, LINE);
    return at;
}

static struct region_header lay_out(uint32_t worker_slot, uint32_t life, uint64_t boot_id)
{
    struct region_header h = {.magic = REGION_MAGIC,
                              .version = REGION_VERSION,
                              .worker_slot = worker_slot,
                              .life = life,
                              .boot_id = boot_id,
                              .n_request_slots = REQUEST_RING_SLOTS,
                              .n_event_slots = EVENT_RING_SLOTS,
                              .arena_bytes = ARENA_BYTES};
    uint64_t end = 0;

    place(&end, sizeof(struct region_header));
    h.card_at = place(&end, sizeof(struct region_card));
    h.stats_at = place(&end, sizeof(struct region_stats));
    h.flags_at = place(&end, sizeof(struct region_slot) * REGION_SLOTS);
    h.traces_at = place(&end, sizeof(struct region_trace) * REGION_SLOTS);
    h.bells_at = place(&end, sizeof(struct doorbell_shared) * N_BELLS);
    h.requests_at = place(&end, ring_bytes(REQUEST_RING_SLOTS));
    h.events_at = place(&end, ring_bytes(EVENT_RING_SLOTS));
    end = round_up(end, PAGE);
    h.arena_at = place(&end, ARENA_BYTES);
    h.bytes = round_up(end, PAGE);
    return h;
}

static bool ring_slots_ok(uint32_t n, uint32_t at_least)
{
    return n >= at_least && n <= REGION_RING_SLOTS_MAX && (n & (n - 1)) == 0;
}

/* Every part lies aligned within the region and touches no other. */
static bool geometry_ok(const struct region_header *h)
{
    if (!ring_slots_ok(h->n_request_slots, REGION_SLOTS) ||
        !ring_slots_ok(h->n_event_slots, 2 * EVENT_SLOTS_MAX))
        return false;
    if (h->arena_bytes < 2 * (uint64_t)RECORD_BYTES_MAX || h->arena_bytes > h->bytes ||
        h->arena_bytes % LINE != 0)
        return false;

    const struct {
        uint64_t at, bytes;
    } parts[N_PARTS] = {
        {0, sizeof(struct region_header)},
        {h->card_at, sizeof(struct region_card)},
        {h->stats_at, sizeof(struct region_stats)},
        {h->flags_at, sizeof(struct region_slot) * REGION_SLOTS},
        {h->traces_at, sizeof(struct region_trace) * REGION_SLOTS},
        {h->bells_at, sizeof(struct doorbell_shared) * N_BELLS},
        {h->requests_at, ring_bytes(h->n_request_slots)},
        {h->events_at, ring_bytes(h->n_event_slots)},
        {h->arena_at, h->arena_bytes},
    };
    for (int i = 0; i < N_PARTS; i++) {
        if (parts[i].at % LINE != 0 || parts[i].at > h->bytes || parts[i].bytes > h->bytes - parts[i].at)
            return false;
        for (int k = 0; k < i; k++)
            if (parts[i].at < parts[k].at + parts[k].bytes && parts[k].at < parts[i].at + parts[i].bytes)
                return false;
    }
    return true;
}

static enum status map_memory(int fd, uint64_t bytes, uint8_t **ret_at)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (at == MAP_FAILED) {
        log_error("region_map_failed", "bytes=%llu errno=%d", (unsigned long long)bytes, errno);
        return errno == ENOMEM ? ST_NOMEM : ST_SYSTEM;
    }
    *ret_at = at;
    return ST_OK;
}

/* Fill the handle from a header that is our own or has been checked.  The rings are left to the caller:
 * who produces differs. */
static void set_parts(struct region *r, uint8_t *at, const struct region_header *h, int request_bell,
                      int event_bell)
{
    struct doorbell_shared *bells = (struct doorbell_shared *)(at + h->bells_at);

    *r = (struct region){
        .at = at,
        .bytes = h->bytes,
        .worker_slot = h->worker_slot,
        .life = h->life,
        .boot_id = h->boot_id,
        .card = (struct region_card *)(at + h->card_at),
        .stats = (struct region_stats *)(at + h->stats_at),
        .slots = (struct region_slot *)(at + h->flags_at),
        .traces = (struct region_trace *)(at + h->traces_at),
        .request_bell = {&bells[BELL_REQUESTS], request_bell},
        .event_bell = {&bells[BELL_EVENTS], event_bell},
        .arena = at + h->arena_at,
        .arena_bytes = h->arena_bytes,
    };
}

/* A memfd of `bytes`, allocated and sealed. */
static enum status make_memory(uint64_t bytes, int *ret_fd)
{
    enum status st = ST_SYSTEM;
    int fd = memfd_create("weir-region", MFD_CLOEXEC | MFD_ALLOW_SEALING), rc;

    if (fd < 0) {
        log_error("region_memfd_failed", "errno=%d", errno);
        return errno == ENOMEM ? ST_NOMEM : ST_SYSTEM;
    }
    do
        rc = fallocate(fd, 0, 0, (off_t)bytes);
    while (rc < 0 && errno == EINTR);
    if (rc < 0) {
        log_error("region_allocate_failed", "bytes=%llu errno=%d", (unsigned long long)bytes, errno);
        st = errno == ENOSPC || errno == ENOMEM ? ST_NOMEM : ST_SYSTEM;
        goto out;
    }
    if (fcntl(fd, F_ADD_SEALS, SEALS) < 0) {
        log_error("region_seal_failed", "errno=%d", errno);
        goto out;
    }
    *ret_fd = fd;
    fd = -1;
    st = ST_OK;
out:
    if (fd >= 0)
        close(fd);
    return st;
}

enum status region_create(uint32_t worker_slot, uint32_t life, uint64_t boot_id, struct region *ret_region,
                          int *ret_fd, int ret_bells[2])
{
    struct region_header h = lay_out(worker_slot, life, boot_id);
    struct region r = {0};
    int fd = -1, bells[N_BELLS] = {-1, -1};
    uint8_t *at = NULL;
    enum status st = make_memory(h.bytes, &fd);

    assert(geometry_ok(&h));
    if (st != ST_OK)
        goto out;
    for (int i = 0; i < N_BELLS; i++) {
        bells[i] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (bells[i] < 0) {
            log_error("region_eventfd_failed", "errno=%d", errno);
            st = ST_SYSTEM;
            goto out;
        }
    }
    st = map_memory(fd, h.bytes, &at);
    if (st != ST_OK)
        goto out;
    memcpy(at, &h, sizeof(h));
    set_parts(&r, at, &h, bells[BELL_REQUESTS], bells[BELL_EVENTS]);
    st = ring_attach_producer(&r.requests, (struct ring_shared *)(at + h.requests_at), h.n_request_slots);
    if (st != ST_OK)
        goto out;
    st = ring_attach_consumer(&r.events, (struct ring_shared *)(at + h.events_at), h.n_event_slots);
    if (st != ST_OK)
        goto out;

    *ret_region = r;
    *ret_fd = fd;
    memcpy(ret_bells, bells, sizeof(bells));
    fd = bells[0] = bells[1] = -1;
    at = NULL;
out:
    if (at != NULL)
        munmap(at, h.bytes);
    for (int i = 0; i < N_BELLS; i++)
        if (bells[i] >= 0)
            close(bells[i]);
    if (fd >= 0)
        close(fd);
    return st;
}

/* Size and seals of the descriptor, then a checked private copy of the header. */
static enum status read_header(int fd, struct region_header *ret_h)
{
    struct region_header h;
    struct stat file;
    int seals = fcntl(fd, F_GET_SEALS);

    if (seals < 0 || fstat(fd, &file) < 0) {
        log_error("region_not_a_memfd", "errno=%d", errno);
        return errno == EINVAL ? ST_CORRUPT : ST_SYSTEM;
    }
    if ((seals & SEALS) != SEALS || file.st_size < (off_t)sizeof(h) ||
        (uint64_t)file.st_size > region_bytes_max) {
        log_error("region_refused", "reason=seals_or_size seals=%d bytes=%lld", seals,
                  (long long)file.st_size);
        return ST_CORRUPT;
    }
    ssize_t n = pread(fd, &h, sizeof(h), 0);
    if (n != (ssize_t)sizeof(h)) {
        log_error("region_read_failed", "errno=%d", errno);
        return ST_SYSTEM;
    }
    if (h.magic != REGION_MAGIC || h.version != REGION_VERSION || h.bytes != (uint64_t)file.st_size ||
        !geometry_ok(&h)) {
        log_error("region_refused", "reason=header magic=%08x version=%u bytes=%llu", h.magic, h.version,
                  (unsigned long long)h.bytes);
        return ST_CORRUPT;
    }
    *ret_h = h;
    return ST_OK;
}

enum status region_attach(int fd, int request_bell, int event_bell, struct region *ret_region)
{
    struct region_header h = {0};
    struct region r = {0};
    uint8_t *at = NULL;
    enum status st = read_header(fd, &h);

    if (st != ST_OK)
        goto out;
    st = map_memory(fd, h.bytes, &at);
    if (st != ST_OK)
        goto out;
    set_parts(&r, at, &h, request_bell, event_bell);
    st = ring_attach_consumer(&r.requests, (struct ring_shared *)(at + h.requests_at), h.n_request_slots);
    if (st != ST_OK)
        goto out;
    st = ring_attach_producer(&r.events, (struct ring_shared *)(at + h.events_at), h.n_event_slots);
    if (st != ST_OK)
        goto out;

    *ret_region = r;
    at = NULL;
out:
    if (at != NULL)
        munmap(at, h.bytes);
    return st;
}

void region_unmap(struct region *r)
{
    if (r->at != NULL)
        munmap(r->at, r->bytes);
    *r = (struct region){0};
}
