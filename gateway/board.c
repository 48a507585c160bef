/* board.c - see board.h. */
#include "board.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum status board_create(int *ret_fd, int *ret_read_fd)
{
    char path[40];
    int fd = memfd_create("weir-board", MFD_CLOEXEC);

    if (fd < 0)
        return ST_SYSTEM;
    if (ftruncate(fd, sizeof(struct board)) != 0) {
        close(fd);
        return ST_SYSTEM;
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd); /* another opening of the same file, with rights of its own */
    *ret_read_fd = open(path, O_RDONLY | O_CLOEXEC);
    if (*ret_read_fd < 0) {
        close(fd);
        return ST_SYSTEM;
    }
    *ret_fd = fd;
    return ST_OK;
}

enum status board_map(int fd, bool to_write, struct board **ret_board)
{
    void *at = mmap(NULL, sizeof(struct board), PROT_READ | (to_write ? PROT_WRITE : 0), MAP_SHARED, fd, 0);

    if (at == MAP_FAILED)
        return ST_SYSTEM;
    *ret_board = at;
    return ST_OK;
}

enum status board_write(struct board_page *p, const char *text, size_t n, bool ready, const char *why, uint64_t now_ns)
{
    uint64_t odd = atomic_load_explicit(&p->sequence, memory_order_relaxed) | 1;

    if (n > BOARD_TEXT_BYTES)
        return ST_LIMIT;
    atomic_store_explicit(&p->sequence, odd, memory_order_relaxed);
    atomic_thread_fence(memory_order_release); /* who sees any of the new text sees the odd number: partner of the fence in board_read */
    memcpy(p->text, text, n);
    p->n = (uint32_t)n;
    p->ready = ready;
    p->at_ns = now_ns;
    memset(p->why, 0, sizeof p->why);
    memcpy(p->why, why, strnlen(why, sizeof p->why - 1));
    atomic_store_explicit(&p->sequence, odd + 1, memory_order_release); /* partner: the first load of board_read */
    return ST_OK;
}

enum status board_read(const struct board_page *p, struct board_page *ret_page)
{
    uint64_t before = atomic_load_explicit(&p->sequence, memory_order_acquire);

    if (before == 0)
        return ST_NOT_FOUND;
    if (before % 2 != 0)
        return ST_AGAIN;
    ret_page->n = p->n;
    ret_page->ready = p->ready;
    ret_page->at_ns = p->at_ns;
    memcpy(ret_page->why, p->why, sizeof p->why);
    memcpy(ret_page->text, p->text, sizeof p->text);
    atomic_thread_fence(memory_order_acquire);
    if (atomic_load_explicit(&p->sequence, memory_order_relaxed) != before || ret_page->n > BOARD_TEXT_BYTES)
        return ST_AGAIN;
    ret_page->why[BOARD_WHY_BYTES - 1] = '\0';
    return ST_OK;
}
