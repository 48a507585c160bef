/* cuda_emu.cc - fibers, meetings and barriers of cuda_emu.h.
 *
 * One block at a time, one fiber at a time, all on the caller's thread.  A fiber's stack comes from one mapping with a page
 * without access below each; switching saves the six registers that calls preserve (ucontext on other machines than
 * x86-64), and tells AddressSanitizer. */
#include "cuda_emu.h"
#include "emu_seed.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define ASAN 1
#else
#define ASAN 0
#endif

namespace emu
{

enum { THREADS_MAX = 1024, STACK_BYTES = ASAN ? 256 << 10 : 64 << 10, PAGE = 4096, MEETINGS_MAX = 4, MEET_BYTES_MAX = 64 };
enum state { READY, AT_BARRIER, MEETING, DONE };

struct pending_copy {
    void *to;
    const void *from;
    size_t bytes;
};

struct fiber {
    place at;
    enum state state;
    const char *file; /* of the barrier */
    int line;
    const char *what; /* it meets in */
    std::vector<std::vector<pending_copy>> copies; /* committed groups, oldest first */
    std::vector<pending_copy> open;
    bool has_waited; /* for the launch before */
#if defined(__x86_64__)
    void *sp;
#else
    ucontext_t context;
#endif
    void *fake_stack;
};

/* Lanes of one mask on their way to an operation. */
struct meeting {
    bool used, done;
    const char *what;
    uint32_t mask, arrived, left;
    size_t in_bytes, out_bytes;
    alignas(16) uint8_t in[32][MEET_BYTES_MAX], out[32][MEET_BYTES_MAX];
};

struct warp {
    meeting meetings[MEETINGS_MAX];
};

struct static_object {
    const char *file;
    int line;
    void *at;
};

const place *here;

static struct {
    uint64_t rng = 0x9e3779b97f4a7c15, seed = 1;
    bool expecting, failed;
    std::string failure;
    char *stacks;
    fiber fibers[THREADS_MAX];
    warp warps[THREADS_MAX / 32];
    bool follows;
    unsigned n_threads, n_ready;
    unsigned ready[THREADS_MAX];
    fiber *now;
    const std::function<void()> *body;
    uint8_t *shared;
    std::vector<static_object> statics;
    bool late_copies;
    unsigned behind; /* a warp that goes on where others do not; as many as there are: none */
#if defined(__x86_64__)
    void *scheduler_sp;
#else
    ucontext_t scheduler;
#endif
    void *scheduler_fake;
    const void *scheduler_stack;
    size_t scheduler_stack_bytes;
} e;

static uint64_t draw()
{
    uint64_t z = e.rng += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

void set_seed(uint64_t seed)
{
    e.seed = e.rng = seed;
}

uint64_t random()
{
    return draw();
}

uint64_t seed()
{
    return e.seed;
}

void expect_failure(bool on)
{
    e.expecting = on;
    e.failure.clear();
}

const std::string &failure()
{
    return e.failure;
}

/* ------------------------------------------------------------------ switching */

#if defined(__x86_64__)
extern "C" void emu_switch(void **save, void *load);
__asm__(".text\n"
        ".globl emu_switch\n"
        ".type emu_switch,@function\n"
        "emu_switch:\n"
        "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
        "  movq %rsp, (%rdi)\n"
        "  movq %rsi, %rsp\n"
        "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
        "  ret\n"
        ".size emu_switch,.-emu_switch\n");
#endif

static char *stack_of(const fiber *f)
{
    return e.stacks + (size_t)(f - e.fibers) * (STACK_BYTES + PAGE) + PAGE;
}

/* From a fiber back to the scheduler; `last` when it will not run again. */
static void leave(bool last)
{
    fiber *f = e.now;
#if ASAN
    __sanitizer_start_switch_fiber(last ? nullptr : &f->fake_stack, e.scheduler_stack, e.scheduler_stack_bytes);
#endif
#if defined(__x86_64__)
    emu_switch(&f->sp, e.scheduler_sp);
#else
    swapcontext(&f->context, &e.scheduler);
#endif
    (void)last;
#if ASAN
    __sanitizer_finish_switch_fiber(f->fake_stack, &e.scheduler_stack, &e.scheduler_stack_bytes);
#endif
}

static void resume(fiber *f)
{
    e.now = f;
    here = &f->at;
#if ASAN
    __sanitizer_start_switch_fiber(&e.scheduler_fake, stack_of(f), STACK_BYTES);
#endif
#if defined(__x86_64__)
    emu_switch(&e.scheduler_sp, f->sp);
#else
    swapcontext(&e.scheduler, &f->context);
#endif
#if ASAN
    __sanitizer_finish_switch_fiber(e.scheduler_fake, nullptr, nullptr);
#endif
    e.now = nullptr;
    here = nullptr;
}

static void fiber_main()
{
#if ASAN
    __sanitizer_finish_switch_fiber(nullptr, &e.scheduler_stack, &e.scheduler_stack_bytes);
#endif
    (*e.body)();
    if (!e.now->open.empty() || !e.now->copies.empty())
        fail("a thread ended with copies it has not waited for");
    if (e.follows && !e.now->has_waited)
        fail("a thread ended and has not waited for the launch before it");
    e.now->state = DONE;
    leave(true);
    abort();
}

static void fiber_start(fiber *f)
{
    char *stack = stack_of(f);
#if ASAN
    __asan_unpoison_memory_region(stack, STACK_BYTES);
#endif
#if defined(__x86_64__)
    void **sp = reinterpret_cast<void **>(stack + STACK_BYTES);
    *--sp = nullptr; /* as if called: the stack is 16-aligned before the return address */
    *--sp = reinterpret_cast<void *>(&fiber_main);
    for (int i = 0; i < 6; i++)
        *--sp = nullptr;
    f->sp = sp;
#else
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = stack;
    f->context.uc_stack.ss_size = STACK_BYTES;
    f->context.uc_link = nullptr;
    makecontext(&f->context, &fiber_main, 0);
#endif
    f->fake_stack = nullptr;
    f->state = READY;
    f->copies.clear();
    f->open.clear();
    f->has_waited = false;
}

static void make_ready(fiber *f)
{
    f->state = READY;
    e.ready[e.n_ready++] = (unsigned)(f - e.fibers);
}

/* ------------------------------------------------------------------ broken rules */

static void record(const char *text)
{
    if (!e.expecting) {
        fprintf(stderr, "emulation (seed %llu): %s\n", (unsigned long long)e.seed, text);
        abort();
    }
    if (e.failure.empty())
        e.failure = text;
    e.failed = true;
}

void fail(const char *format, ...)
{
    char text[400], whole[600];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (e.now == nullptr)
        snprintf(whole, sizeof(whole), "%s", text);
    else
        snprintf(whole, sizeof(whole), "block %u,%u,%u thread %u,%u,%u: %s", here->block.x, here->block.y, here->block.z,
                 here->thread.x, here->thread.y, here->thread.z, text);
    record(whole);
    if (e.now != nullptr) {
        e.now->state = DONE;
        leave(true); /* the launch is given up: nobody comes back */
    }
    abort();
}

/* Nobody can go on: say who waits where. */
static void report_stuck()
{
    char text[600];
    const fiber *barrier = nullptr, *meets = nullptr;
    unsigned n_barrier = 0, n_meets = 0, n_done = 0;

    for (unsigned i = 0; i < e.n_threads; i++) {
        const fiber *f = &e.fibers[i];
        n_done += f->state == DONE;
        if (f->state == AT_BARRIER)
            n_barrier++, barrier = f;
        if (f->state == MEETING)
            n_meets++, meets = f;
    }
    snprintf(text, sizeof(text), "divergent: %u threads wait at a barrier (%s:%d), %u in a warp (%s), %u have ended", n_barrier,
             barrier ? barrier->file : "-", barrier ? barrier->line : 0, n_meets, meets ? meets->what : "-", n_done);
    record(text);
}

/* ------------------------------------------------------------------ blocks */

uint8_t *dynamic_shared()
{
    return e.shared;
}

/* Bytes that are a NaN as float, half and bfloat16, and a number no index should be. */
static void poison(void *at, size_t bytes)
{
    memset(at, 0xff, bytes);
}

void *static_shared(const char *file, int line, size_t bytes, size_t align)
{
    for (const static_object &o : e.statics)
        if (o.line == line && strcmp(o.file, file) == 0)
            return o.at;
    void *at = nullptr;
    if (posix_memalign(&at, align < 16 ? 16 : align, bytes) != 0)
        abort();
    poison(at, bytes);
    e.statics.push_back({ file, line, at });
    return at;
}

/* All threads wait at a barrier: the same one?  Then they go on. */
static bool release_barrier()
{
    const fiber *first = &e.fibers[0];

    for (unsigned i = 0; i < e.n_threads; i++)
        if (e.fibers[i].state != AT_BARRIER)
            return false;
    for (unsigned i = 0; i < e.n_threads; i++) {
        const fiber *f = &e.fibers[i];
        if (f->line != first->line || strcmp(f->file, first->file) != 0) {
            char text[600];
            snprintf(text, sizeof(text), "divergent: threads of a block wait at different barriers (%s:%d and %s:%d)",
                     first->file, first->line, f->file, f->line);
            record(text);
            return false;
        }
    }
    for (unsigned i = 0; i < e.n_threads; i++)
        make_ready(&e.fibers[i]);
    return true;
}

static void run_block(dim3 grid, dim3 block, dim3 index)
{
    e.n_threads = block.x * block.y * block.z;
    e.n_ready = 0;
    memset(e.warps, 0, sizeof(warp) * ((e.n_threads + 31) / 32));
    for (unsigned i = 0; i < e.n_threads; i++) {
        fiber *f = &e.fibers[i];
        f->at.thread = dim3(i % block.x, i / block.x % block.y, i / block.x / block.y);
        f->at.block = index;
        f->at.block_dim = block;
        f->at.grid_dim = grid;
        f->at.lane = i % 32;
        f->at.warp = i / 32;
        fiber_start(f);
        make_ready(f);
    }
    while (!e.failed) {
        if (e.n_ready == 0) {
            unsigned n_done = 0;
            for (unsigned i = 0; i < e.n_threads; i++)
                n_done += e.fibers[i].state == DONE;
            if (n_done == e.n_threads)
                return;
            if (release_barrier() || e.failed)
                continue;
            report_stuck();
            return;
        }
        unsigned pick = (unsigned)(draw() % e.n_ready);
        for (unsigned tries = 0; tries < 8 && e.fibers[e.ready[pick]].at.warp == e.behind; tries++)
            pick = (unsigned)(draw() % e.n_ready);
        fiber *f = &e.fibers[e.ready[pick]];
        e.ready[pick] = e.ready[--e.n_ready];
        resume(f);
    }
}

void run(dim3 grid, dim3 block, size_t shared_bytes, bool follows, const std::function<void()> &thread)
{
    const size_t n_blocks = (size_t)grid.x * grid.y * grid.z, n_threads = (size_t)block.x * block.y * block.z;

    if (e.now != nullptr)
        fail("a launch inside a kernel");
    e.failed = false;
    if (n_threads == 0 || n_threads > THREADS_MAX || n_blocks == 0 || grid.y > 65535 || grid.z > 65535 ||
        shared_bytes > 227 << 10) {
        record("a launch that no device takes");
        return;
    }
    if (e.stacks == nullptr) {
        void *at = mmap(nullptr, (size_t)THREADS_MAX * (STACK_BYTES + PAGE), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED)
            abort();
        e.stacks = static_cast<char *>(at);
        for (unsigned i = 0; i < THREADS_MAX; i++)
            mprotect(e.stacks + (size_t)i * (STACK_BYTES + PAGE), PAGE, PROT_NONE);
    }
    std::vector<size_t> order(n_blocks);
    for (size_t i = 0; i < n_blocks; i++)
        order[i] = i;
    for (size_t i = n_blocks; i > 1; i--)
        std::swap(order[i - 1], order[draw() % i]);
    e.body = &thread;
    e.follows = follows;
    for (size_t i = 0; i < n_blocks && !e.failed; i++) {
        void *shared = nullptr;
        if (posix_memalign(&shared, 128, shared_bytes > 0 ? shared_bytes : 1) != 0)
            abort();
        poison(shared, shared_bytes);
        e.shared = static_cast<uint8_t *>(shared);
        e.late_copies = draw() & 1;
        e.behind = (unsigned)(draw() % (2 * ((n_threads + 31) / 32)));
        run_block(grid, block,
                  dim3((unsigned)(order[i] % grid.x), (unsigned)(order[i] / grid.x % grid.y),
                       (unsigned)(order[i] / grid.x / grid.y)));
        free(shared);
        for (const static_object &o : e.statics)
            free(o.at);
        e.statics.clear();
    }
}

void barrier(const char *file, int line)
{
    e.now->state = AT_BARRIER;
    e.now->file = file;
    e.now->line = line;
    leave(false);
}

void wait_for_grid()
{
    e.now->has_waited = true;
}

void launch_next_grid()
{
    if (!e.now->has_waited)
        fail("a thread lets the next launch begin and has not waited for the one before it");
}

/* ------------------------------------------------------------------ meetings */

static meeting *find_meeting(warp *w, uint32_t mask)
{
    meeting *unused = nullptr;

    for (meeting &m : w->meetings) {
        if (m.used && !m.done && m.mask == mask)
            return &m;
        if (!m.used)
            unused = &m;
    }
    return unused;
}

static void hold_meeting(meeting *m, compute_fn *compute)
{
    const void *in[32];
    void *out[32];
    fiber *first = e.now - here->lane;

    for (unsigned l = 0; l < 32; l++) {
        in[l] = m->in[l];
        out[l] = m->out[l];
    }
    compute(m->mask, in, out);
    m->done = true;
    for (unsigned l = 0; l < 32; l++)
        if (m->mask >> l & 1 && first + l != e.now)
            make_ready(first + l);
}

void meet(const char *what, uint32_t mask, const void *in, size_t in_bytes, void *out, size_t out_bytes, compute_fn *compute)
{
    const unsigned lane = here->lane;
    meeting *m = find_meeting(&e.warps[here->warp], mask);

    if (!(mask >> lane & 1))
        fail("%s: lane %u is not in mask %08x", what, lane, mask);
    if (in_bytes > MEET_BYTES_MAX || out_bytes > MEET_BYTES_MAX || m == nullptr)
        abort();
    if (!m->used) {
        m->used = true;
        m->done = false;
        m->what = what;
        m->mask = mask;
        m->arrived = m->left = 0;
    }
    if (strcmp(m->what, what) != 0)
        fail("lanes of one warp meet in different operations: %s and %s", m->what, what);
    if (m->arrived >> lane & 1)
        fail("%s: lane %u came twice", what, lane);
    if (in_bytes > 0)
        memcpy(m->in[lane], in, in_bytes);
    m->arrived |= 1u << lane;
    if (m->arrived == mask) {
        hold_meeting(m, compute);
    } else {
        e.now->state = MEETING;
        e.now->what = what;
        leave(false);
    }
    if (out_bytes > 0)
        memcpy(out, m->out[lane], out_bytes);
    m->left |= 1u << lane;
    if (m->left == mask)
        m->used = false;
}

void compute_nothing(uint32_t, const void *const[32], void *const[32])
{
}

void compute_shuffle(uint32_t mask, const void *const in[32], void *const out[32])
{
    for (unsigned l = 0; l < 32; l++) {
        if (!(mask >> l & 1))
            continue;
        const shuffle_in *mine = static_cast<const shuffle_in *>(in[l]);
        if (!(mask >> mine->from & 1))
            fail("a shuffle reads lane %u, which is not in mask %08x", mine->from, mask);
        memcpy(out[l], &static_cast<const shuffle_in *>(in[mine->from])->value, 8);
    }
}

void compute_ballot(uint32_t mask, const void *const in[32], void *const out[32])
{
    uint32_t votes = 0;

    for (unsigned l = 0; l < 32; l++)
        if (mask >> l & 1)
            votes |= *static_cast<const uint32_t *>(in[l]) << l;
    for (unsigned l = 0; l < 32; l++)
        memcpy(out[l], &votes, 4);
}

void compute_add(uint32_t mask, const void *const in[32], void *const out[32])
{
    uint32_t sum = 0;

    for (unsigned l = 0; l < 32; l++)
        if (mask >> l & 1)
            sum += *static_cast<const uint32_t *>(in[l]);
    for (unsigned l = 0; l < 32; l++)
        memcpy(out[l], &sum, 4);
}

void compute_max(uint32_t mask, const void *const in[32], void *const out[32])
{
    uint32_t max = 0;

    for (unsigned l = 0; l < 32; l++)
        if (mask >> l & 1 && *static_cast<const uint32_t *>(in[l]) > max)
            max = *static_cast<const uint32_t *>(in[l]);
    for (unsigned l = 0; l < 32; l++)
        memcpy(out[l], &max, 4);
}

/* Fragments as the PTX ISA draws them, g = lane / 4, j = lane % 4.
 *   A 16 x 32 bytes   a0 row g, k 4j..4j+3    a1 row g+8    a2 row g, k 16+4j..    a3 row g+8, k 16+4j..
 *   B 32 x 8 bytes    b0 column g, k 4j..4j+3      b1 column g, k 16+4j..
 *   C 16 x 8          c0 row g, column 2j   c1 column 2j+1   c2 row g+8, column 2j   c3 column 2j+1 */
struct mma_int_in {
    uint32_t a[4], b[2];
    int c[4];
};

static void mma_int(bool signed_a, const void *const in[32], void *const out[32])
{
    alignas(32) int16_t a[16][32], b[8][32];

    for (unsigned l = 0; l < 32; l++) {
        const mma_int_in *x = static_cast<const mma_int_in *>(in[l]);
        const unsigned g = l / 4, k = l % 4 * 4;
        for (unsigned i = 0; i < 4; i++)
            for (unsigned t = 0; t < 4; t++)
                a[g + i % 2 * 8][k + t + i / 2 * 16] = signed_a ? (int8_t)(x->a[i] >> (8 * t)) : (uint8_t)(x->a[i] >> (8 * t));
        for (unsigned i = 0; i < 2; i++)
            for (unsigned t = 0; t < 4; t++)
                b[g][k + t + i * 16] = (int8_t)(x->b[i] >> (8 * t));
    }
    for (unsigned l = 0; l < 32; l++) {
        const mma_int_in *x = static_cast<const mma_int_in *>(in[l]);
        int d[4];
        for (unsigned i = 0; i < 4; i++) {
            const int16_t *row = a[l / 4 + i / 2 * 8], *column = b[l % 4 * 2 + i % 2];
            int32_t sum = 0;
            for (unsigned k = 0; k < 32; k++)
                sum += row[k] * column[k];
            d[i] = (int)((uint32_t)x->c[i] + (uint32_t)sum);
        }
        memcpy(out[l], d, sizeof(d));
    }
}

void compute_mma_u8s8(uint32_t, const void *const in[32], void *const out[32])
{
    mma_int(false, in, out);
}

void compute_mma_s8s8(uint32_t, const void *const in[32], void *const out[32])
{
    mma_int(true, in, out);
}

/* Lane 8m + r has the address of row r of matrix m; lane 4g + j gets rows 2j, 2j+1 of column g of each. */
void compute_load_transposed(uint32_t, const void *const in[32], void *const out[32])
{
    uint16_t rows[32][8];

    for (unsigned l = 0; l < 32; l++) {
        const void *at = *static_cast<const void *const *>(in[l]);
        if ((uintptr_t)at % 16 != 0)
            fail("ldmatrix of an address that is not a multiple of 16");
        memcpy(rows[l], at, sizeof(rows[l]));
    }
    for (unsigned l = 0; l < 32; l++) {
        uint32_t x[4];
        for (unsigned m = 0; m < 4; m++)
            x[m] = rows[8 * m + l % 4 * 2][l / 4] | (uint32_t)rows[8 * m + l % 4 * 2 + 1][l / 4] << 16;
        memcpy(out[l], x, sizeof(x));
    }
}

/*   A 16 x 16 halves   a0 row g, k 2j, 2j+1   a1 row g+8   a2 row g, k 8+2j..   a3 row g+8, k 8+2j..
 *   B 16 x 8           b0 column g, k 2j, 2j+1   b1 k 8+2j..                     C as above */
struct mma_float_in {
    uint32_t a[4], b[2];
    float c[4];
};

static float bf16(uint16_t h)
{
    return __uint_as_float((uint32_t)h << 16);
}

static void mma_float(float (*number)(uint16_t), const void *const in[32], void *const out[32])
{
    float a[16][16], b[8][16];

    for (unsigned l = 0; l < 32; l++) {
        const mma_float_in *x = static_cast<const mma_float_in *>(in[l]);
        const unsigned g = l / 4, k = l % 4 * 2;
        for (unsigned i = 0; i < 4; i++)
            for (unsigned t = 0; t < 2; t++)
                a[g + i % 2 * 8][k + t + i / 2 * 8] = number((uint16_t)(x->a[i] >> (16 * t)));
        for (unsigned i = 0; i < 2; i++)
            for (unsigned t = 0; t < 2; t++)
                b[g][k + t + i * 8] = number((uint16_t)(x->b[i] >> (16 * t)));
    }
    for (unsigned l = 0; l < 32; l++) {
        const mma_float_in *x = static_cast<const mma_float_in *>(in[l]);
        float d[4];
        for (unsigned i = 0; i < 4; i++) {
            double sum = (double)x->c[i];
            for (unsigned k = 0; k < 16; k++)
                sum += (double)a[l / 4 + i / 2 * 8][k] * (double)b[l % 4 * 2 + i % 2][k];
            d[i] = (float)sum;
        }
        memcpy(out[l], d, sizeof(d));
    }
}

void compute_mma_f16(uint32_t, const void *const in[32], void *const out[32])
{
    mma_float(emu_half_to_float, in, out);
}

void compute_mma_bf16(uint32_t, const void *const in[32], void *const out[32])
{
    mma_float(bf16, in, out);
}

/* ------------------------------------------------------------------ asynchronous copies */

void copy_async(void *to, const void *from, size_t bytes)
{
    if ((uintptr_t)to % 16 != 0 || (uintptr_t)from % 16 != 0)
        fail("cp.async of an address that is not a multiple of 16");
    if (!e.late_copies) {
        memcpy(to, from, bytes);
        to = nullptr;
    }
    e.now->open.push_back({ to, from, bytes });
}

void copy_commit()
{
    e.now->copies.push_back(e.now->open);
    e.now->open.clear();
}

void copy_wait(int groups_left)
{
    std::vector<std::vector<pending_copy>> &groups = e.now->copies;

    while (groups.size() > (size_t)groups_left) {
        for (const pending_copy &c : groups.front())
            if (c.to != nullptr)
                memcpy(c.to, c.from, c.bytes);
        groups.erase(groups.begin());
    }
}

} // namespace emu

void emu_seed(uint64_t seed)
{
    emu::set_seed(seed);
}

/* ------------------------------------------------------------------ halves */

float emu_half_to_float(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 0x3ff;

    if (exponent == 31)
        return __uint_as_float(sign | 0x7f800000 | fraction << 13 | (fraction ? 0x400000 : 0));
    if (exponent != 0)
        return __uint_as_float(sign | (exponent + 112) << 23 | fraction << 13);
    return ldexpf(sign ? -(float)fraction : (float)fraction, -24);
}

/* Round to nearest even by the definition: scaled to units of the last place, rounded by the machine. */
uint16_t emu_float_to_half(float x)
{
    const uint16_t sign = (uint16_t)(__float_as_uint(x) >> 16 & 0x8000);
    const float a = fabsf(x);

    if (a != a)
        return (uint16_t)(sign | 0x7fff);
    if (a == 0)
        return sign;
    if (a >= 65520.0f)
        return (uint16_t)(sign | 0x7c00);
    int exponent = 0;
    frexpf(a, &exponent);
    if (exponent < -13)
        exponent = -13; /* subnormal: units of 2^-24 */
    const long units = lrintf(ldexpf(a, 11 - exponent)); /* 1024 .. 2048 unless subnormal */
    return (uint16_t)(sign | (uint16_t)(((exponent + 13) << 10) + units));
}
