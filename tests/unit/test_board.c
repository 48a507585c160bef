/* test_board.c - the gateway's board: what is read was written as a whole, whoever writes and dies. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gateway/board.h"

struct rig {
    int fd, read_fd;
    struct board *to_write, *to_read;
};

static struct rig open_rig(void)
{
    struct rig r;

    assert_int_equal(board_create(&r.fd, &r.read_fd), ST_OK);
    assert_int_equal(board_map(r.fd, true, &r.to_write), ST_OK);
    assert_int_equal(board_map(r.read_fd, false, &r.to_read), ST_OK);
    return r;
}

static void close_rig(struct rig *r)
{
    munmap(r->to_write, sizeof(struct board));
    munmap(r->to_read, sizeof(struct board));
    close(r->fd);
    close(r->read_fd);
}

static void what_was_written_is_read(void **state)
{
    static struct board_page page;
    struct rig r = open_rig();

    (void)state;
    assert_int_equal(board_read(&r.to_read->pages[BOARD_JOBS], &page), ST_NOT_FOUND);
    assert_int_equal(board_write(&r.to_write->pages[BOARD_JOBS], "abc", 3, false, "no broker", 7), ST_OK);
    assert_int_equal(board_read(&r.to_read->pages[BOARD_JOBS], &page), ST_OK);
    assert_int_equal(page.n, 3);
    assert_memory_equal(page.text, "abc", 3);
    assert_string_equal(page.why, "no broker");
    assert_int_equal(page.at_ns, 7);
    assert_false(page.ready);
    assert_int_equal(board_read(&r.to_read->pages[BOARD_LISTENER], &page), ST_NOT_FOUND);
    close_rig(&r);
}

static void a_text_too_long_is_refused_and_the_old_one_stays(void **state)
{
    static char text[BOARD_TEXT_BYTES + 1];
    static struct board_page page;
    struct rig r = open_rig();
    struct board_page *p = &r.to_write->pages[0];

    (void)state;
    assert_int_equal(board_write(p, "abc", 3, true, "", 1), ST_OK);
    assert_int_equal(board_write(p, text, sizeof text, true, "", 2), ST_LIMIT);
    assert_int_equal(board_read(p, &page), ST_OK);
    assert_int_equal(page.n, 3);
    assert_int_equal(board_write(p, text, BOARD_TEXT_BYTES, true, "", 3), ST_OK);
    close_rig(&r);
}

static void a_writer_that_died_is_noticed_and_mended_by_the_next(void **state)
{
    static struct board_page page;
    struct rig r = open_rig();
    struct board_page *p = &r.to_write->pages[0];

    (void)state;
    assert_int_equal(board_write(p, "abc", 3, true, "", 1), ST_OK);
    p->sequence++; /* it died while it wrote */
    assert_int_equal(board_read(p, &page), ST_AGAIN);
    assert_int_equal(board_write(p, "de", 2, true, "", 2), ST_OK);
    assert_int_equal(board_read(p, &page), ST_OK);
    assert_int_equal(page.n, 2);
    close_rig(&r);
}

static void the_reader_cannot_write(void **state)
{
    struct rig r = open_rig();

    (void)state;
    assert_true(mmap(NULL, sizeof(struct board), PROT_WRITE, MAP_SHARED, r.read_fd, 0) == MAP_FAILED);
    assert_int_equal(pwrite(r.read_fd, "x", 1, 0), -1);
    close_rig(&r);
}

enum { ROUNDS = 2000 };
static _Atomic bool written;
static _Atomic unsigned taken;

static void *write_rounds(void *arg)
{
    static char text[4096];

    for (int i = 0; i < ROUNDS || (taken == 0 && i < 1000 * ROUNDS); i++) { /* on until the reader had its turn */
        size_t n = 64 + (size_t)(i * 37) % 4000;
        memset(text, 'a' + i % 26, n);
        if (board_write(arg, text, n, true, "", (uint64_t)i + 1) != ST_OK)
            abort();
        if (i % 2 == 0) /* the reader copies more than is written: without a pause it never gets a whole one */
            usleep(50);
    }
    written = true;
    return NULL;
}

/* Every copy that is taken is of one letter, as long as the letter's page was. */
static void a_copy_is_never_of_two_pages(void **state)
{
    static struct board_page page;
    struct rig r = open_rig();
    pthread_t writer;

    (void)state;
    pthread_create(&writer, NULL, write_rounds, &r.to_write->pages[0]);
    while (!written) {
        if (board_read(&r.to_read->pages[0], &page) != ST_OK)
            continue;
        uint64_t round = page.at_ns - 1;
        assert_int_equal(page.n, 64 + (round * 37) % 4000);
        for (uint32_t k = 0; k < page.n; k++)
            assert_int_equal(page.text[k], 'a' + round % 26);
        taken++;
    }
    pthread_join(writer, NULL);
    assert_true(taken > 0);
    close_rig(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_written_is_read),
        cmocka_unit_test(a_text_too_long_is_refused_and_the_old_one_stays),
        cmocka_unit_test(a_writer_that_died_is_noticed_and_mended_by_the_next),
        cmocka_unit_test(the_reader_cannot_write),
        cmocka_unit_test(a_copy_is_never_of_two_pages),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
