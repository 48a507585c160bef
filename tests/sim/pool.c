/* pool.c - worker processes: the worker's own loop on the fake backend, born by fork() and ended by faults.
 *
 * A process dies between two events: after a number of pushes into its event ring everything it still does in that pass is
 * lost, as after kill -9.  (Its own code runs to the end of the pass; nobody sees what it writes.)  A process that hangs never
 * comes back from its step.  The tokenizer thread is a list of requests with the moments at which they are done. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sim.h"
#include "tests/support/fake_backend.h"
#include "tests/support/worker_rig.h"
#include "worker/outbox.h"
#include "worker/preparer.h"
#include "worker/worker_internal.h"

enum { UNLIMITED = UINT32_MAX, FIRST_PID = 1000 };
static const uint64_t ms = 1000000;

enum { HUNG_MS_MAX = 15000 }; /* of a leaving one the broker is more patient (SUPERVISOR_LEAVE_MS) than of others */
enum life { NO_LIFE, STARTING, SERVING, HANGING, DEAD }; /* DEAD: not reaped yet */

struct process {
    enum life life;
    pid_t pid;
    int pidfd; /* a descriptor the broker closes; kept as a number */
    int wait_code, wait_status;
    uint64_t due_ns;
    struct engine engine; /* shares all but the backend with the template */
    struct region region;
    struct worker *worker;
    struct host_store *store; /* NULL: none */
    uint32_t pushes_left; /* then nothing it writes is seen */
    bool fails_to_start, hangs, writes_rubbish, step_fails, idle, stalled;
    uint64_t hung_since_ns;  /* HANGING */
    int dies_of;             /* signal at the end of this pass; 0: none */
    uint64_t tight_until_ns; /* its ring is nearly full */
};

struct preparer {
    const struct request_limits *limits;
    struct encoder *encoder;
    struct {
        struct request *request;
        uint64_t ready_ns;
    } inside[REGION_SLOTS];
    uint32_t n;
};

static struct engine template;
static struct backend_api api; /* the fake backend's, with copies reported to blocks.c */
static bool have_template;
static struct process processes[SIM_WORKERS_MAX];
static struct process *current; /* in its code */
static pid_t last_pid;

const struct tokenizer *pool_tokenizer(void)
{
    return template.tokenizer;
}

bool pool_current(uint32_t *ret_slot)
{
    if (current != NULL)
        *ret_slot = (uint32_t)(current - processes);
    return current != NULL;
}

static enum status copy_submit(struct backend *b, const struct block_copy *c, backend_ticket *ret_ticket)
{
    if (current != NULL && c->kind != BLOCK_TO_BLOCK)
        blocks_moved((uint32_t)(current - processes), c->kind == BLOCK_TO_HOST, c->block);
    return fake_backend()->copy_submit(b, c, ret_ticket);
}

void pool_open(void)
{
    struct engine_options eo = {.model_path = worker_rig_model(),
                                .device = "cpu",
                                .n_threads = 1,
                                .kv_blocks = 64,
                                .max_seqs = 4,
                                .max_rows = 64};
    struct error err;
    if (!have_template) {
        enum status st = engine_plan(&eo, &template, &err);
        sim_demand(st == ST_OK, "no model: %s", err.message);
        api = *fake_backend();
        api.copy_submit = copy_submit;
        template.choice.api = &api;
        have_template = true;
    }
    assert(template.model->n_vocab == SIM_VOCAB);
    template.sizes.n_blocks = sim.plan.n_blocks;
    template.sizes.max_seqs = sim.plan.max_seqs;
    template.sizes.max_rows = sim.plan.max_rows;
    template.sizes.context_tokens = sim.plan.context_tokens;
    template.limits.context_tokens = sim.plan.context_tokens;
    template.memory.block_bytes = sim.plan.store_block_bytes;
    memset(processes, 0, sizeof(processes));
    last_pid = FIRST_PID;
}

static void free_life(struct process *p)
{
    current = p;
    worker_free(p->worker);
    current = NULL;
    if (p->engine.backend != NULL)
        fake_backend()->close(p->engine.backend);
    region_unmap(&p->region);
    if (p->store != NULL)
        sim.seen.tried[FAULT_BIT_STORE] += host_store_counts(p->store).evictions;
    host_store_free(p->store);
    p->store = NULL;
    p->worker = NULL;
    p->engine.backend = NULL;
}

void pool_close(void)
{
    for (uint32_t i = 0; i < SIM_WORKERS_MAX; i++)
        if (processes[i].life != NO_LIFE)
            free_life(&processes[i]);
}

/* --- birth and death: what the supervisor calls -------------------------------------------------- */

pid_t __wrap_fork(void);
int __wrap_pidfd_open(pid_t pid, unsigned flags);
int __wrap_pidfd_send_signal(int pidfd, int sig, siginfo_t *info, unsigned flags);
int __wrap_waitid(idtype_t type, id_t id, siginfo_t *info, int options);
int __wrap_fallocate(int fd, int mode, off_t offset, off_t length);

/* Regions are many and mostly untouched: their pages come as they are needed. */
int __wrap_fallocate(int fd, int mode, off_t offset, off_t length)
{
    (void)mode;
    return ftruncate(fd, offset + length);
}

/* The process's view of the host store, as weir-worker opens it. */
static struct host_store *open_store(uint32_t slot)
{
    struct host_store *store = NULL;
    int fds[SIM_WORKERS_MAX];
    uint32_t n = side_store(slot, fds);
    if (n == 0)
        return NULL;
    struct host_store_options o = {.own_fd = fds[0],
                                   .other_fds = fds + 1,
                                   .n_others = n - 1,
                                   .block_bytes = sim.plan.store_block_bytes,
                                   .numerics_id = "fake-1"};
    enum status st = host_store_new(&o, &store);
    sim_demand(st == ST_OK, "worker %u cannot open its host store", slot);
    return store;
}

pid_t __wrap_fork(void)
{
    uint32_t slot = 0;
    int fds[3];
    bool found = side_starting(&slot, fds);
    assert(found);
    struct process *p = &processes[slot];
    assert(p->life == NO_LIFE);
    *p = (struct process){
        .life = STARTING, .pid = ++last_pid, .pidfd = -1, .pushes_left = UNLIMITED, .engine = template};
    enum status st = region_attach(fds[0], fds[1], fds[2], &p->region);
    assert(st == ST_OK);
    bool slow = fault_is_on(FAULT_START) && chance(&sim.faults, 5);
    p->fails_to_start = fault_is_on(FAULT_START) && sim.loading && chance(&sim.faults, 5);
    sim.seen.tried[FAULT_BIT_START] += slow || p->fails_to_start;
    p->store = open_store(slot);
    p->due_ns = sim.now_ns + random_ns(&sim.timing, 30 * ms) + (slow ? random_ns(&sim.faults, 1500 * ms) : 0);
    return p->pid;
}

int __wrap_pidfd_open(pid_t pid, unsigned flags)
{
    (void)flags;
    for (uint32_t i = 0; i < SIM_WORKERS_MAX; i++)
        if (processes[i].life != NO_LIFE && processes[i].pid == pid)
            return processes[i].pidfd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    errno = ESRCH;
    return -1;
}

static struct process *of_pidfd(int pidfd)
{
    for (uint32_t i = 0; i < SIM_WORKERS_MAX; i++)
        if (processes[i].life != NO_LIFE && processes[i].pidfd == pidfd)
            return &processes[i];
    return NULL;
}

static void die(struct process *p, int code, int status)
{
    if (p->life == DEAD)
        return;
    trace("worker %u dies: %s %d", (uint32_t)(p - processes), code == CLD_EXITED ? "exit" : "signal", status);
    p->life = DEAD;
    p->wait_code = code;
    p->wait_status = status;
    sim.seen.deaths++;
}

int __wrap_pidfd_send_signal(int pidfd, int sig, siginfo_t *info, unsigned flags)
{
    (void)info, (void)flags;
    struct process *p = of_pidfd(pidfd);
    if (p == NULL) {
        errno = ESRCH;
        return -1;
    }
    die(p, CLD_KILLED, sig);
    return 0;
}

int __wrap_waitid(idtype_t type, id_t id, siginfo_t *info, int options)
{
    (void)type, (void)options;
    struct process *p = of_pidfd((int)id);
    if (p == NULL || p->life != DEAD)
        return 0; /* si_pid stays 0: nobody has ended */
    info->si_pid = p->pid;
    info->si_code = p->wait_code;
    info->si_status = p->wait_status;
    plans_forget((uint32_t)(p - processes));
    free_life(p);
    p->life = NO_LIFE;
    return 0;
}

bool pool_is_dead(uint32_t slot)
{
    return processes[slot].life == DEAD;
}

/* --- the tokenizer thread ------------------------------------------------------------------------ */

enum status __wrap_preparer_new(const struct request_limits *limits, struct preparer **ret_preparer);
void __wrap_preparer_free(struct preparer *p);
void __wrap_preparer_give(struct preparer *p, struct request *r);
struct request *__wrap_preparer_take(struct preparer *p);
void __wrap_preparer_wait_short(struct preparer *p, uint64_t max_ns);

enum status __wrap_preparer_new(const struct request_limits *limits, struct preparer **ret_preparer)
{
    struct preparer *p = calloc(1, sizeof(*p));
    assert(p != NULL);
    p->limits = limits;
    enum status st = encoder_new(limits->tokenizer, &p->encoder);
    assert(st == ST_OK);
    *ret_preparer = p;
    return ST_OK;
}

void __wrap_preparer_free(struct preparer *p)
{
    if (p == NULL)
        return;
    for (uint32_t i = 0; i < p->n; i++)
        request_free(p->inside[i].request);
    encoder_free(p->encoder);
    free(p);
}

void __wrap_preparer_give(struct preparer *p, struct request *r)
{
    assert(p->n < REGION_SLOTS);
    if (request_needs_encoder(r))
        request_encode(r, p->encoder);
    if (request_needs_encoder(r)) {
        enum status st = encoder_step(p->encoder, UINT64_MAX);
        assert(st == ST_OK);
        request_build(r, p->encoder);
    } else {
        request_build(r, NULL);
    }
    p->inside[p->n].request = r;
    r->tokenized_ns = sim.now_ns + random_ns(&sim.timing, chance(&sim.timing, 10) ? 10 * ms : 100000);
    p->inside[p->n++].ready_ns = r->tokenized_ns;
}

struct request *__wrap_preparer_take(struct preparer *p)
{
    for (uint32_t i = 0; i < p->n; i++)
        if (p->inside[i].ready_ns <= sim.now_ns) {
            struct request *r = p->inside[i].request;
            p->n--;
            memmove(&p->inside[i], &p->inside[i + 1], (p->n - i) * sizeof(p->inside[0]));
            return r;
        }
    return NULL;
}

/* Time does not pass within a pass: the tokenizer is late for this plan. */
void __wrap_preparer_wait_short(struct preparer *p, uint64_t max_ns)
{
    (void)p, (void)max_ns;
}

static uint64_t prepared_ns(const struct preparer *p)
{
    uint64_t at = UINT64_MAX;
    for (uint32_t i = 0; i < p->n; i++)
        at = p->inside[i].ready_ns < at ? p->inside[i].ready_ns : at;
    return at;
}

/* --- inside a pass -------------------------------------------------------------------------------- */

enum status __real_ring_push(struct ring_end *e, const void *msg, uint32_t n_slots);
enum status __wrap_ring_push(struct ring_end *e, const void *msg, uint32_t n_slots);
uint32_t __real_outbox_room(struct outbox *o);
uint32_t __wrap_outbox_room(struct outbox *o);
void __real_worker_report(struct worker *w, uint64_t now_ns);
void __wrap_worker_report(struct worker *w, uint64_t now_ns);
enum status __real_engine_step(struct engine *e, const struct scheduler_plan *plan,
                               struct step_result *ret_results);
enum status __wrap_engine_step(struct engine *e, const struct scheduler_plan *plan,
                               struct step_result *ret_results);

enum status __wrap_ring_push(struct ring_end *e, const void *msg, uint32_t n_slots)
{
    if (current == NULL || e != &current->region.events)
        return __real_ring_push(e, msg, n_slots);
    if (current->pushes_left == 0)
        return ST_OK;
    if (current->pushes_left != UNLIMITED)
        current->pushes_left--;
    return __real_ring_push(e, msg, n_slots);
}

uint32_t __wrap_outbox_room(struct outbox *o)
{
    uint32_t room = __real_outbox_room(o), most = (uint32_t)random_below(&sim.timing, 2000);
    if (current == NULL || current->tight_until_ns <= sim.now_ns || room < most)
        return room;
    return most;
}

void __wrap_worker_report(struct worker *w, uint64_t now_ns)
{
    if (current == NULL || current->pushes_left != 0)
        __real_worker_report(w, now_ns);
}

static bool runs_poison(const struct scheduler_plan *plan)
{
    for (uint32_t i = 0; i < plan->plan.n_entries; i++)
        if (plan->plan.entries[i].sampling->seed >> 12 == POISON_SEED >> 12)
            return true;
    return false;
}

static uint32_t some_pushes(void)
{
    return chance(&sim.faults, 3) ? 0 : random_below(&sim.faults, 40);
}

enum status __wrap_engine_step(struct engine *e, const struct scheduler_plan *plan,
                               struct step_result *ret_results)
{
    uint32_t slot = (uint32_t)(current - processes), n = plan->plan.n_entries;
    blocks_check_plan(slot, plan);
    plans_check(slot, worker_scheduler(current->worker), plan);
    if (n > 0) {
        sim.seen.plans++;
        sim.seen.rows += plan->plan.n_rows;
        sim.in_step_ns = sim.plan.step_ns + plan->plan.n_rows * sim.plan.row_ns;
        trace("worker %u step entries=%u rows=%u copies=%u", slot, n, plan->plan.n_rows, plan->n_copies);
    }
    if (runs_poison(plan)) {
        note_fault(FAULT_BIT_POISON);
        current->dies_of = SIGSEGV;
        current->pushes_left = current->pushes_left == UNLIMITED ? some_pushes() : current->pushes_left;
    }
    if (current->hangs && n > 0)
        current->pushes_left = 0;
    else
        current->hangs = false;
    if (current->step_fails && n > 0)
        return ST_SYSTEM;
    return __real_engine_step(e, plan, ret_results);
}

/* --- passes --------------------------------------------------------------------------------------- */

static void be_born(struct process *p)
{
    struct worker_options wo = {.step_ns_max = sim.plan.step_ns_max,
                                .age_ns = sim.plan.age_ns,
                                .prefix_wait_ns = sim.plan.prefix_wait_ns,
                                .secret = sim.opt.seed,
                                .store = p->store};
    struct error err;
    if (p->fails_to_start) {
        error_set(&err, ERR_INTERNAL, "", "no luck");
        worker_announce_failure(&p->region, &err);
        die(p, CLD_EXITED, 1);
        return;
    }
    enum status st = fake_backend()->open(template.model, &p->engine.sizes, &p->engine.backend, &err);
    assert(st == ST_OK);
    fake_backend()->describe(p->engine.backend, &p->engine.info);
    st = worker_new(&p->engine, &p->region, &wo, &p->worker);
    assert(st == ST_OK);
    worker_announce(p->worker, "simulated");
    p->life = SERVING;
    p->due_ns = sim.now_ns;
}

static uint64_t next_deadline_ns(const struct worker *w)
{
    uint64_t at = UINT64_MAX;
    for (uint32_t i = 0; i < REGION_SLOTS; i++)
        if (w->slots[i].request != NULL && w->slots[i].deadline_ns != 0 && w->slots[i].deadline_ns < at)
            at = w->slots[i].deadline_ns;
    return at;
}

static void write_rubbish(struct process *p)
{
    uint8_t slots[4 * RING_SLOT_BYTES];
    for (size_t i = 0; i < sizeof(slots); i++)
        slots[i] = (uint8_t)random_next(&sim.faults);
    if (chance(&sim.faults, 2))
        slots[0] = (uint8_t)(random_below(&sim.faults, 12));
    trace("worker %u writes rubbish", (uint32_t)(p - processes));
    enum status st = __real_ring_push(&p->region.events, slots, 1 + random_below(&sim.faults, 3));
    (void)!st;
    p->writes_rubbish = false;
}

static void hang(struct process *p)
{
    p->life = HANGING;
    p->hung_since_ns = sim.now_ns;
    trace("worker %u hangs", (uint32_t)(p - processes));
}

static void end_pass(struct process *p, enum worker_state state)
{
    uint64_t now = sim.now_ns + sim.in_step_ns;
    sim.in_step_ns = 0;
    if (p->hangs) {
        hang(p);
        return;
    }
    if (p->dies_of != 0 || p->pushes_left == 0) {
        die(p, CLD_KILLED, p->dies_of != 0 ? p->dies_of : SIGKILL);
        return;
    }
    if (state == WORKER_BROKEN || state == WORKER_DRAINED) {
        die(p, CLD_EXITED, state == WORKER_BROKEN ? 70 : 0);
        return;
    }
    p->idle = state == WORKER_IDLE;
    p->due_ns = state == WORKER_BUSY ? now : now + (state == WORKER_STALLED ? 2 : 100) * ms;
    if (state == WORKER_BUSY)
        return;
    uint64_t at = next_deadline_ns(p->worker), prepared = prepared_ns(p->worker->preparer);
    p->due_ns = at < p->due_ns ? at : p->due_ns;
    p->due_ns = prepared < p->due_ns ? prepared : p->due_ns;
    if (p->due_ns <= sim.now_ns)
        p->due_ns = sim.now_ns + 1000;
}

/* What was to happen to it would be blamed on a request that is innocent; only poison may. */
static void spare_suspect(struct process *p)
{
    if (p->dies_of != 0)
        p->pushes_left = UNLIMITED;
    p->dies_of = 0;
    p->hangs = p->writes_rubbish = p->step_fails = false;
}

void pool_act(uint32_t slot)
{
    struct process *p = &processes[slot];
    if (side_worker(slot).alone)
        spare_suspect(p);
    current = p;
    p->stalled = false;
    if (p->life == STARTING) {
        be_born(p);
    } else {
        if (p->writes_rubbish)
            write_rubbish(p);
        enum worker_state state = worker_pass(p->worker);
        if (p->pushes_left != 0 && sim.n_steps % 4 == 0)
            scheduler_check(worker_scheduler(p->worker));
        end_pass(p, state);
    }
    current = NULL;
}

uint64_t pool_due_ns(uint32_t *ret_slot)
{
    uint64_t due = UINT64_MAX;
    for (uint32_t i = 0; i < side_n_workers(); i++)
        if ((processes[i].life == STARTING || processes[i].life == SERVING) && processes[i].due_ns < due) {
            due = processes[i].due_ns;
            *ret_slot = i;
        }
    return due;
}

void pool_hear_bells(void)
{
    for (uint32_t i = 0; i < side_n_workers(); i++) {
        struct process *p = &processes[i];
        uint64_t rings;
        if (p->life != SERVING || !p->idle || p->stalled)
            continue;
        uint8_t slot[RING_SLOT_BYTES];
        bool rung = read(p->region.request_bell.fd, &rings, sizeof(rings)) > 0;
        if (rung || ring_peek(&p->region.requests, slot) == ST_OK) {
            uint64_t at = sim.now_ns + random_ns(&sim.timing, 20000);
            p->due_ns = at < p->due_ns ? at : p->due_ns;
            p->idle = false;
        }
    }
}

bool pool_is_quiet(void)
{
    for (uint32_t i = 0; i < side_n_workers(); i++) {
        const struct process *p = &processes[i];
        if (p->life == HANGING)
            return false; /* it is yet to be noticed */
        if (p->life != SERVING)
            continue;
        struct scheduler_levels l = scheduler_levels(worker_scheduler(p->worker));
        if (worker_n_requests(p->worker) > 0 || side_n_sessions() > 0)
            return false;
        sim_demand(l.n_running == 0 && l.n_waiting == 0, "worker %u has no request, and %u sequences", i,
                   l.n_running + l.n_waiting);
        uint32_t n_pinned = scheduler_kv_counts(worker_scheduler(p->worker)).n_pinned;
        if (n_pinned > 0 && fault_is_on(FAULT_SESSIONS))
            return false; /* it is yet to hear that a session has ended */
        sim_demand(n_pinned == 0, "worker %u has no request, and pinned blocks", i);
    }
    return true;
}

/* --- faults --------------------------------------------------------------------------------------- */

static bool strikes(uint32_t bit, uint32_t in)
{
    if (!fault_is_on(1u << bit) || !chance(&sim.faults, in))
        return false;
    note_fault(bit);
    return true;
}

/* Whether it had work or not: the broker sees within its limits that it does nothing any more. */
static void check_hung(void)
{
    for (uint32_t i = 0; i < side_n_workers(); i++)
        sim_demand(processes[i].life != HANGING || sim.now_ns - processes[i].hung_since_ns < HUNG_MS_MAX * ms,
                   "worker %u has been hanging for %u ms", i, HUNG_MS_MAX);
}

void pool_inject(void)
{
    uint32_t slot = random_below(&sim.faults, side_n_workers());
    check_hung();
    struct process *p = &processes[slot];
    if (strikes(FAULT_BIT_JUMP, 50))
        sim.real_offset_ms += (int64_t)random_below(&sim.faults, 400000000) - 200000000;
    if (p->life != SERVING)
        return;
    bool alone = side_worker(slot).alone; /* a suspect that is innocent must not be blamed for what we do */
    if (strikes(FAULT_BIT_DIE, 150)) {
        if (chance(&sim.faults, 3))
            die(p, CLD_KILLED, SIGKILL);
        else
            p->pushes_left = some_pushes();
    }
    if (p->life != SERVING)
        return;
    if (!alone && strikes(FAULT_BIT_CRASH, 200)) {
        p->pushes_left = p->pushes_left == UNLIMITED ? some_pushes() : p->pushes_left;
        p->dies_of = chance(&sim.faults, 2) ? SIGSEGV : SIGABRT;
        p->step_fails = chance(&sim.faults, 4);
    }
    if (!alone && strikes(FAULT_BIT_HANG, 400)) {
        p->hangs = true; /* in its next step, or, without work, at once */
        if (p->idle)
            hang(p);
    }
    if (!alone && strikes(FAULT_BIT_GARBAGE, 300))
        p->writes_rubbish = true;
    if (!p->stalled && strikes(FAULT_BIT_STALL, 60)) {
        p->due_ns += random_ns(&sim.faults, 300 * ms);
        p->stalled = true; /* once: together they would be a hang */
    }
    if (strikes(FAULT_BIT_RING, 40))
        p->tight_until_ns = sim.now_ns + random_ns(&sim.faults, 200 * ms);
}
