/* What a worker takes for a partition, and what the broker's epoch does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "partition.h"

static const uint64_t secret[2] = { 11, 22 };

static struct partition make(void)
{
    struct partition p;
    assert_int_equal(partition_create(PARTITION_BYTES_MIN, 3, 99, secret, &p), ST_OK);
    return p;
}

static void both_descriptors_show_what_it_is(void **state)
{
    (void)state;
    struct partition p = make();
    struct partition_birth a = { 0 }, b = { 0 };
    assert_int_equal(partition_read_birth(p.owner_fd, &a), ST_OK);
    assert_int_equal(partition_read_birth(p.reader_fd, &b), ST_OK);
    assert_memory_equal(&a, &b, sizeof(a));
    assert_true(a.bytes == PARTITION_BYTES_MIN && a.worker_slot == 3 && a.boot_id == 99 && a.secret[1] == 22 && a.epoch == 1);
    partition_discard(&p);
    assert_int_equal(partition_read_birth(p.reader_fd, &b), ST_OK);
    assert_true(b.epoch == 2);
    partition_close(&p);
    partition_close(&p);
    partition_discard(&p); /* nothing happens to one that is not there */
    assert_true(p.owner_fd == -1 && p.reader_fd == -1);
}

static void a_reader_cannot_write_and_nobody_can_resize(void **state)
{
    (void)state;
    struct partition p = make();
    uint8_t byte = 1;
    assert_true(pwrite(p.reader_fd, &byte, 1, 8192) < 0);
    assert_true(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, p.reader_fd, 0) == MAP_FAILED);
    assert_true(ftruncate(p.owner_fd, PARTITION_BYTES_MIN / 2) < 0);
    assert_true(ftruncate(p.owner_fd, PARTITION_BYTES_MIN * 2) < 0);
    assert_true((fcntl(p.owner_fd, F_GETFD) & FD_CLOEXEC) != 0 && (fcntl(p.reader_fd, F_GETFD) & FD_CLOEXEC) != 0);
    partition_close(&p);
}

static void refuses(int fd)
{
    struct partition_birth b = { .magic = 7 };
    assert_int_equal(partition_read_birth(fd, &b), ST_CORRUPT);
    assert_int_equal(b.magic, 7); /* untouched */
}

static void refuses_what_is_no_partition(void **state)
{
    (void)state;
    int pipe_fds[2], unsealed = memfd_create("test", MFD_ALLOW_SEALING);
    assert_int_equal(pipe(pipe_fds), 0);
    refuses(pipe_fds[0]);
    assert_int_equal(ftruncate(unsealed, PARTITION_BYTES_MIN), 0);
    refuses(unsealed);
    assert_int_equal(fcntl(unsealed, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
    refuses(unsealed); /* sealed now, and empty */
    close(unsealed);
    close(pipe_fds[0]);
    close(pipe_fds[1]);
}

static void refuses_every_broken_number_of_the_birth_page(void **state)
{
    (void)state;
    struct partition p = make();
    const struct partition_birth good = *p.birth;
    p.birth->magic++;
    refuses(p.owner_fd);
    *p.birth = good;
    p.birth->version++;
    refuses(p.owner_fd);
    *p.birth = good;
    p.birth->bytes += 4096;
    refuses(p.owner_fd);
    *p.birth = good;
    p.birth->worker_slot = WORKERS_MAX;
    refuses(p.owner_fd);
    *p.birth = good;
    p.birth->epoch = 0;
    refuses(p.owner_fd);
    partition_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_descriptors_show_what_it_is),
        cmocka_unit_test(a_reader_cannot_write_and_nobody_can_resize),
        cmocka_unit_test(refuses_what_is_no_partition),
        cmocka_unit_test(refuses_every_broken_number_of_the_birth_page),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
