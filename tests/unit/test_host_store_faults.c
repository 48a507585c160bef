/* A writer of the host store is killed at every point, a thousand times, while another process reads: nobody is ever handed a wrong
 * byte, and the next life always goes on.  The writer is built into this program once more, with its fault points. */
#define WEIR_FAULTS
#include "worker/host_store.c" /* NOLINT: the library's own copy is then not linked */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>

#include "tests/support/random.h"
#include "tests/support/store_rig.h"

static const char *const points[] = {
    "index.shift", "format.begin", "format.header", "format.index",  "format.entries", "adopt.index",  "adopt.slot", "take_out.unindexed",
    "put.odd",     "put.half_record", "put.record", "payload.half", "put.dropped",    "put.checksum", "put.even",   "put.indexed",
    "drop.cleared",
};
enum { N_POINTS = sizeof(points) / sizeof(points[0]), OPS_A_LIFE = 400 };

static struct random rng;
static const char *die_at;      /* in the writer: which point, */
static uint32_t die_in;         /* and the how manieth time */
static uint32_t *n_died;        /* [N_POINTS + 1], shared with the writers; the last: killed from outside or lived */

void fault_point(const char *name)
{
    if (die_at == NULL || strcmp(name, die_at) != 0 || --die_in > 0)
        return;
    for (uint32_t i = 0; i < N_POINTS; i++)
        if (strcmp(points[i], name) == 0)
            n_died[i]++;
    kill(getpid(), SIGKILL);
}

static void end_put(struct host_store *hs, uint32_t i, uint32_t slot, uint8_t *payload)
{
    store_rig_fill(i, payload, 0);
    FAULT("payload.half");
    store_rig_fill(i, payload, 1);
    host_store_put_end(hs, slot, true);
}

/* One life: open what is there, check it, put and drop until the end. */
static void write_until_dead(int own_fd)
{
    static _Alignas(64) uint8_t copy[STORE_BLOCK_BYTES];
    struct host_store *hs = store_rig_open(own_fd, -1, "id");

    host_store_check(hs);
    for (uint32_t k = 0; k < OPS_A_LIFE; k++) {
        uint32_t i = random_below(&rng, STORE_BLOCKS / 2), op = random_below(&rng, 10), slot[2];
        void *at[2];
        if (op < 1) {
            host_store_drop(hs, &store_rig_block(i)->name);
        } else if (op < 3) {
            if (host_store_get(hs, &store_rig_block(i)->name, copy) == ST_OK && !store_rig_is(i, copy))
                _exit(3);
        } else if (!host_store_has(hs, &store_rig_block(i)->name)) {
            uint32_t n = op == 3 ? 2 : 1; /* two puts of one block under way */
            for (uint32_t j = 0; j < n; j++)
                if (host_store_put_begin(hs, &store_rig_block(i)->name, &slot[j], &at[j]) != ST_OK)
                    _exit(4);
            for (uint32_t j = 0; j < n; j++)
                end_put(hs, i, slot[j], at[j]);
        }
    }
    host_store_check(hs);
    _exit(0);
}

static uint32_t read_some(struct host_store *reader, uint32_t n)
{
    static _Alignas(64) uint8_t copy[STORE_BLOCK_BYTES];
    uint32_t n_hits = 0;
    while (n-- > 0) {
        uint32_t i = random_below(&rng, STORE_BLOCKS);
        if (host_store_get(reader, &store_rig_block(i)->name, copy) != ST_OK)
            continue;
        assert_true(store_rig_is(i, copy));
        assert_true(i < STORE_BLOCKS / 2); /* nobody puts in the others */
        n_hits++;
    }
    return n_hits;
}

/* Fork a writer and read beside it until it is gone; every eighth one is killed at a moment of its own. */
static void one_life(struct partition *p, struct host_store *reader, uint64_t *n_hits)
{
    uint32_t which = random_below(&rng, N_POINTS + N_POINTS / 8);
    const char *point = which < N_POINTS ? points[which] : NULL;
    uint32_t reads = point == NULL ? random_below(&rng, 3000) : UINT32_MAX, nth = 1 + random_below(&rng, 30);
    int status = 0;

    if (point != NULL && strncmp(point, "format", 6) == 0) {
        partition_discard(p);
        nth = 1;
    } else if (point != NULL && strcmp(point, "adopt.index") == 0) {
        nth = 1;
    }
    rng.state++;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        die_at = point;
        die_in = nth;
        write_until_dead(p->owner_fd);
    }
    for (uint32_t n = 0; waitpid(pid, &status, WNOHANG) == 0; n++) {
        *n_hits += read_some(reader, 4);
        if (n >= reads)
            kill(pid, SIGKILL);
    }
    assert_true(WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) == 0);
    *n_hits += read_some(reader, 50);
}

static void a_writer_killed_anywhere_is_never_believed_and_always_followed(void **state)
{
    (void)state;
    struct partition p = store_rig_partition(0);
    struct host_store *reader = store_rig_open(-1, p.reader_fd, "id");
    uint64_t n_hits = 0;

    for (uint64_t life = 0; life < random_ops(); life++)
        one_life(&p, reader, &n_hits);
    printf("%llu blocks read\n", (unsigned long long)n_hits);
    for (uint32_t i = 0; i < N_POINTS; i++) {
        printf("%4u died at %s\n", n_died[i], points[i]);
        assert_true(n_died[i] > 0);
    }
    assert_true(n_hits > random_ops());
    host_store_free(reader);

    struct host_store *last = store_rig_open(p.owner_fd, -1, "id");
    host_store_check(last);
    host_store_free(last);
    partition_close(&p);
}

int main(int argc, char **argv)
{
    rng = random_start(argc, argv, 1000);
    n_died = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert(n_died != MAP_FAILED);
    store_rig_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_writer_killed_anywhere_is_never_believed_and_always_followed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
