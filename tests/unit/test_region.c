/* test_region.c - a region arrives whole, fixed in size, and with nothing in it believed unchecked. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "log.h"
#include "region.h"
#include "work.h"

struct made {
    struct region broker;
    int fd, bells[2];
};

static struct made make_region(void)
{
    struct made m = { .fd = -1 };

    assert_int_equal(region_create(3, 7, 0x1122334455667788u, &m.broker, &m.fd, m.bells), ST_OK);
    return m;
}

static void drop(struct made *m)
{
    region_unmap(&m->broker);
    close(m->fd);
    close(m->bells[0]);
    close(m->bells[1]);
}

static void both_sides_see_the_same_parts(void **state)
{
    struct made m = make_region();
    struct region worker;
    struct work_message msg = { .type = WORK_START, .slot = 5 }, got;
    struct work_event event = { .type = EVENT_READY }, seen;

    (void)state;
    assert_int_equal(region_attach(m.fd, m.bells[0], m.bells[1], &worker), ST_OK);
    assert_int_equal(worker.worker_slot, 3);
    assert_int_equal(worker.life, 7);
    assert_true(worker.boot_id == 0x1122334455667788u);
    assert_int_equal(worker.arena_bytes, ARENA_BYTES);

    assert_int_equal(ring_push(&m.broker.requests, &msg, 1), ST_OK);
    assert_int_equal(ring_pop(&worker.requests, &got, 1), ST_OK);
    assert_int_equal(got.slot, 5);
    assert_int_equal(ring_push(&worker.events, &event, 1), ST_OK);
    assert_int_equal(ring_pop(&m.broker.events, &seen, 1), ST_OK);
    assert_int_equal(seen.type, EVENT_READY);
    m.broker.arena[12345] = 99;
    assert_int_equal(worker.arena[12345], 99);
    worker.card->n_vocab = 49152;
    assert_int_equal(m.broker.card->n_vocab, 49152);
    atomic_store(&worker.stats->steps, 4);
    assert_int_equal(atomic_load(&m.broker.stats->steps), 4);
    atomic_store(&m.broker.slots[REGION_SLOTS - 1].word, 8);
    assert_int_equal(atomic_load(&worker.slots[REGION_SLOTS - 1].word), 8);

    uint64_t count = 0;
    doorbell_sleep_begin(&worker.request_bell);
    doorbell_ring(&m.broker.request_bell);
    assert_int_equal(read(m.bells[0], &count, sizeof(count)), sizeof(count));
    assert_true(read(m.bells[1], &count, sizeof(count)) < 0 && errno == EAGAIN);
    doorbell_sleep_begin(&m.broker.event_bell);
    doorbell_ring(&worker.event_bell);
    assert_int_equal(read(m.bells[1], &count, sizeof(count)), sizeof(count));
    region_unmap(&worker);
    drop(&m);
}

static void its_size_is_sealed_and_its_memory_there(void **state)
{
    struct made m = make_region();
    struct stat s;

    (void)state;
    assert_int_equal(ftruncate(m.fd, 0), -1);
    assert_int_equal(errno, EPERM);
    assert_int_equal(ftruncate(m.fd, (off_t)m.broker.bytes * 2), -1);
    assert_int_equal(fcntl(m.fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
    assert_int_equal(fstat(m.fd, &s), 0);
    assert_int_equal(s.st_size, m.broker.bytes);
    assert_true((uint64_t)s.st_blocks * 512 >= m.broker.bytes); /* allocated, not promised */
    assert_int_equal(fcntl(m.fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    assert_int_equal(fcntl(m.bells[0], F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    drop(&m);
}

static void a_killed_worker_leaves_the_broker_a_region_it_can_read(void **state)
{
    struct made m = make_region();
    struct work_event seen;
    int status;

    (void)state;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct region worker;
        struct work_event e[2] = { { .type = EVENT_TOKEN, .slot = 1 } };

        if (region_attach(m.fd, m.bells[0], m.bells[1], &worker) != ST_OK || ring_push(&worker.events, e, 1) != ST_OK)
            _exit(1);
        /* In the middle of the next push: the slot is written, the tail is not moved. */
        memset(worker.events.shared->slots + RING_SLOT_BYTES, 0xEE, RING_SLOT_BYTES);
        kill(getpid(), SIGKILL);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(ring_pop(&m.broker.events, &seen, 1), ST_OK);
    assert_int_equal(seen.type, EVENT_TOKEN);
    assert_int_equal(ring_pop(&m.broker.events, &seen, 1), ST_AGAIN);
    drop(&m);
}

/* --- what is refused -------------------------------------------------------------------------- */

static void refused(struct made *m)
{
    struct region r;

    memset(&r, 0x77, sizeof(r));
    assert_int_equal(region_attach(m->fd, m->bells[0], m->bells[1], &r), ST_CORRUPT);
    assert_int_equal(r.worker_slot, 0x77777777); /* untouched */
}

#define REFUSES(field, value)                                                                                          \
    do {                                                                                                               \
        struct made m_ = make_region();                                                                                \
        struct region_header *h = (struct region_header *)m_.broker.at;                                                \
        h->field = (value);                                                                                            \
        refused(&m_);                                                                                                  \
        drop(&m_);                                                                                                     \
    } while (0)

static void every_broken_number_in_the_header_is_refused(void **state)
{
    (void)state;
    REFUSES(magic, 0);
    REFUSES(version, REGION_VERSION + 1);
    REFUSES(bytes, h->bytes - 4096);
    REFUSES(bytes, h->bytes + 4096);
    REFUSES(bytes, 0);
    REFUSES(bytes, UINT64_MAX);
    REFUSES(card_at, 0);                      /* over the header */
    REFUSES(card_at, h->card_at + 8);         /* not aligned */
    REFUSES(card_at, h->bytes);               /* past the end */
    REFUSES(card_at, h->bytes - 64);          /* reaches past the end */
    REFUSES(card_at, UINT64_MAX - 63);        /* the sum overflows */
    REFUSES(stats_at, h->card_at);            /* over another part */
    REFUSES(flags_at, h->arena_at);
    REFUSES(bells_at, h->flags_at);
    REFUSES(requests_at, h->events_at);
    REFUSES(events_at, h->requests_at + 64);
    REFUSES(arena_at, h->events_at + 128);
    REFUSES(arena_at, UINT64_MAX / 64 * 64);
    REFUSES(n_request_slots, 0);
    REFUSES(n_request_slots, h->n_request_slots + 1);
    REFUSES(n_request_slots, 64);             /* fewer than request slots */
    REFUSES(n_request_slots, 1u << 31);
    REFUSES(n_event_slots, 0);
    REFUSES(n_event_slots, h->n_event_slots * 2);
    REFUSES(n_event_slots, UINT32_MAX);
    REFUSES(arena_bytes, h->arena_bytes + 64);
    REFUSES(arena_bytes, h->arena_bytes - 1);
    REFUSES(arena_bytes, 0);
    REFUSES(arena_bytes, UINT64_MAX);
}

static void positions_that_cannot_be_are_refused(void **state)
{
    struct made m = make_region();

    (void)state;
    atomic_store(&m.broker.requests.shared->tail, REQUEST_RING_SLOTS + 1);
    refused(&m);
    drop(&m);
}

static void a_descriptor_that_could_shrink_is_refused(void **state)
{
    struct made m = make_region(), copy = m;

    (void)state;
    copy.fd = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(copy.fd >= 0);
    assert_int_equal(ftruncate(copy.fd, (off_t)m.broker.bytes), 0);
    assert_int_equal(pwrite(copy.fd, m.broker.at, sizeof(struct region_header), 0), sizeof(struct region_header));
    refused(&copy);
    assert_int_equal(fcntl(copy.fd, F_ADD_SEALS, F_SEAL_SHRINK), 0); /* one seal is not enough */
    refused(&copy);
    close(copy.fd);
    drop(&m);
}

static void what_is_no_region_is_refused(void **state)
{
    struct made m = make_region(), other = m;
    int pipe_fds[2];

    (void)state;
    assert_int_equal(pipe(pipe_fds), 0);
    other.fd = pipe_fds[0];
    refused(&other);
    close(pipe_fds[0]);
    close(pipe_fds[1]);

    other.fd = memfd_create("empty", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(fcntl(other.fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
    refused(&other);
    close(other.fd);
    drop(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_sides_see_the_same_parts),
        cmocka_unit_test(its_size_is_sealed_and_its_memory_there),
        cmocka_unit_test(a_killed_worker_leaves_the_broker_a_region_it_can_read),
        cmocka_unit_test(every_broken_number_in_the_header_is_refused),
        cmocka_unit_test(positions_that_cannot_be_are_refused),
        cmocka_unit_test(a_descriptor_that_could_shrink_is_refused),
        cmocka_unit_test(what_is_no_region_is_refused),
    };

    log_init("test", LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
