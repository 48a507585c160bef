/* block_mover.c - see block_mover.h.
 *
 * A save is submitted and looked at again at the next step (on the CPU backend it is done at once).  A load must have a buffer
 * that stays untouched until the device has read it; there are a few, used in turn, and who finds the next one busy waits: that is
 * a fraction of a millisecond, and the step that follows would wait for the same copies anyway.
 *
 * Buffers and the store's payloads are registered with the device, so that copies run beside steps; where it refuses, they are
 * only slower. */
#include "block_mover.h"

#include <assert.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"

enum { SAVES_MAX = 64, BUFFERS = 8, LINE = 64, PAGE = 4096 };
static const uint64_t save_bytes_default = 8 << 20, load_bytes_default = 64 << 20;

struct save {
    uint32_t slot;
    backend_ticket ticket;
};

struct buffer {
    uint8_t *at;
    backend_ticket ticket;
    bool busy;
};

struct block_mover {
    struct block_mover_options opt;
    struct block_shelf shelf;
    uint64_t save_left, load_left;   /* bytes of this step's budgets */
    struct save saves[SAVES_MAX];    /* under way, oldest first */
    uint32_t n_saves;
    struct buffer buffers[BUFFERS];
    uint32_t next_buffer;
    uint8_t *memory;
    void *registered[2];             /* buffers, store; NULL where it was refused */
    bool failed;
};

static void fail(struct block_mover *m, const char *what)
{
    if (!m->failed)
        log_error("block_copy_failed", "what=%s", what);
    m->failed = true;
}

static void finish_saves(struct block_mover *m)
{
    uint32_t n = 0;
    while (n < m->n_saves && !m->failed) {
        enum status st = m->opt.api->copy_poll(m->opt.backend, m->saves[n].ticket);
        if (st == ST_AGAIN)
            break;
        if (st != ST_OK)
            fail(m, "save");
        else
            host_store_put_end(m->opt.store, m->saves[n++].slot, true);
    }
    m->n_saves -= n;
    memmove(m->saves, m->saves + n, m->n_saves * sizeof(m->saves[0]));
}

static enum shelf_answer find(void *ctx, const struct block_name *name)
{
    const struct block_mover *m = ctx;
    if (m->failed || !host_store_has(m->opt.store, name))
        return SHELF_NO;
    return m->load_left >= m->opt.block_bytes ? SHELF_YES : SHELF_LATER;
}

/* The next buffer, once the device has done with it.  NULL: the device failed. */
static struct buffer *take_buffer(struct block_mover *m)
{
    struct buffer *b = &m->buffers[m->next_buffer];
    while (b->busy) {
        enum status st = m->opt.api->copy_poll(m->opt.backend, b->ticket);
        if (st == ST_AGAIN) {
            sched_yield();
            continue;
        }
        if (st != ST_OK)
            return NULL;
        b->busy = false;
    }
    m->next_buffer = (m->next_buffer + 1) % BUFFERS;
    return b;
}

static bool load(void *ctx, const struct block_name *name, uint32_t block)
{
    struct block_mover *m = ctx;
    struct buffer *b = m->failed ? NULL : take_buffer(m);
    enum status st = ST_SYSTEM;

    if (b != NULL) {
        if (host_store_get(m->opt.store, name, b->at) != ST_OK)
            return false;
        const struct block_copy c = { .kind = HOST_TO_BLOCK, .block = block, .host = b->at };
        while ((st = m->opt.api->copy_submit(m->opt.backend, &c, &b->ticket)) == ST_AGAIN)
            sched_yield();
    }
    if (st != ST_OK) {
        fail(m, "load");
        return false;
    }
    b->busy = true;
    m->load_left -= m->load_left < m->opt.block_bytes ? m->load_left : m->opt.block_bytes;
    return true;
}

static enum shelf_answer save(void *ctx, const struct block_name *name, uint32_t block)
{
    struct block_mover *m = ctx;
    struct block_copy c = { .kind = BLOCK_TO_HOST, .block = block };
    struct save s;

    if (m->failed)
        return SHELF_NO;
    if (host_store_touch(m->opt.store, name) || host_store_has(m->opt.store, name))
        return SHELF_YES;
    if (m->save_left < m->opt.block_bytes || m->n_saves == SAVES_MAX)
        return SHELF_LATER;
    if (host_store_put_begin(m->opt.store, name, &s.slot, &c.host) != ST_OK)
        return SHELF_NO;
    enum status st = m->opt.api->copy_submit(m->opt.backend, &c, &s.ticket);
    if (st != ST_OK) {
        host_store_put_end(m->opt.store, s.slot, false);
        if (st != ST_AGAIN)
            fail(m, "save");
        return st == ST_AGAIN ? SHELF_LATER : SHELF_NO;
    }
    m->save_left -= m->opt.block_bytes;
    m->saves[m->n_saves++] = s;
    finish_saves(m);
    return SHELF_YES;
}

static void *register_memory(const struct block_mover *m, const char *what, void *at, size_t bytes)
{
    if (bytes == 0)
        return NULL;
    if (m->opt.api->register_host(m->opt.backend, at, bytes) == ST_OK)
        return at;
    log_warn("copies_are_slow", "what=%s bytes=%zu reason=not_registered_with_the_device", what, bytes);
    return NULL;
}

enum status block_mover_new(const struct block_mover_options *opt, struct block_mover **ret_mover)
{
    struct block_mover *m = calloc(1, sizeof(*m));
    size_t stride = ((size_t)opt->block_bytes + LINE - 1) / LINE * LINE;

    if (m == NULL)
        return ST_NOMEM;
    m->opt = *opt;
    if (m->opt.save_bytes_max == 0)
        m->opt.save_bytes_max = save_bytes_default;
    if (m->opt.load_bytes_max == 0)
        m->opt.load_bytes_max = load_bytes_default;
    m->memory = aligned_alloc(PAGE, (BUFFERS * stride + PAGE - 1) / PAGE * PAGE); /* no other memory in its pages */
    if (m->memory == NULL) {
        free(m);
        return ST_NOMEM;
    }
    for (uint32_t i = 0; i < BUFFERS; i++)
        m->buffers[i].at = m->memory + i * stride;
    size_t store_bytes;
    void *store = host_store_memory(m->opt.store, &store_bytes);
    m->registered[0] = register_memory(m, "buffers", m->memory, BUFFERS * stride);
    m->registered[1] = register_memory(m, "store", store, store_bytes);
    m->shelf = (struct block_shelf){ .ctx = m, .secret = host_store_secret(opt->store), .find = find, .load = load, .save = save };
    *ret_mover = m;
    return ST_OK;
}

void block_mover_free(struct block_mover *m)
{
    if (m == NULL)
        return;
    for (uint32_t i = 0; i < BUFFERS; i++)
        while (!m->failed && m->buffers[i].busy && m->opt.api->copy_poll(m->opt.backend, m->buffers[i].ticket) == ST_AGAIN)
            sched_yield();
    for (finish_saves(m); m->n_saves > 0 && !m->failed; finish_saves(m))
        sched_yield();
    for (int i = 0; i < 2; i++)
        if (m->registered[i] != NULL)
            m->opt.api->unregister_host(m->opt.backend, m->registered[i]);
    free(m->memory);
    free(m);
}

const struct block_shelf *block_mover_shelf(const struct block_mover *m)
{
    return &m->shelf;
}

static uint64_t at_least(uint64_t bytes, uint64_t least)
{
    return bytes > least ? bytes : least;
}

enum status block_mover_begin_step(struct block_mover *m)
{
    finish_saves(m);
    m->save_left = at_least(m->opt.save_bytes_max, m->opt.block_bytes);
    m->load_left = at_least(m->opt.load_bytes_max, m->opt.block_bytes);
    return m->failed ? ST_SYSTEM : ST_OK;
}
