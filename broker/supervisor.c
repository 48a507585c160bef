/* supervisor.c - see supervisor.h.
 *
 * fork and exec, with nothing but system calls between them: the child of a process with threads (libzmq's) may not allocate. */
#include "supervisor.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "log.h"

enum { CLOCK_SLACK_NS = 1000000000 };
enum { ARGUMENT_BYTES = 32, OOM_SCORE_WORKER = 500, N_FDS_MAX = REGION_FD_STORE - REGION_FD_MEMORY + WORKERS_MAX, HIGH_FD = 64 };
_Static_assert(REGION_FD_MEMORY + N_FDS_MAX <= HIGH_FD, "no descriptor is moved onto another");

void supervisor_init_worker(struct worker *w, uint32_t slot, uint32_t model, const char *device)
{
    memset(w, 0, sizeof(*w));
    w->slot = slot;
    w->model = model;
    w->device = device;
    w->device_share = 1;
    w->state = WORKER_WAITING;
    w->pidfd = -1;
    w->alone_request = -1;
    w->store = (struct partition){ .owner_fd = -1, .reader_fd = -1 };
}

uint64_t supervisor_backoff_ms(uint32_t failures)
{
    uint64_t ms = SUPERVISOR_BACKOFF_MS_MIN;

    if (failures == 0)
        return 0;
    for (uint32_t i = 1; i < failures && ms < SUPERVISOR_BACKOFF_MS_MAX; i++)
        ms *= 2;
    return ms < SUPERVISOR_BACKOFF_MS_MAX ? ms : SUPERVISOR_BACKOFF_MS_MAX;
}

bool supervisor_is_silent(const struct worker *w)
{
    return w->silent_ns > SUPERVISOR_SILENT_MS * UINT64_C(1000000);
}

bool supervisor_hopeless(const struct worker *w)
{
    return w->failed_starts >= SUPERVISOR_HOPELESS || w->order >= ORDER_REMOVE ||
           (w->state == WORKER_STOPPED && w->order == ORDER_RUN && !w->released);
}

static void set_state(struct worker *w, enum worker_state state, uint64_t now_ns)
{
    w->state = state;
    w->state_since_ns = now_ns;
}

static void wait_for_restart(struct worker *w, uint64_t now_ns)
{
    set_state(w, WORKER_WAITING, now_ns);
    w->start_due_ns = now_ns + supervisor_backoff_ms(w->failures) * UINT64_C(1000000);
}

/* The child between fork and exec.  fds [n_fds]: memory, request bell, event bell, control, those of the store.  Only system
 * calls. */
static void become_worker(const char *program, char *const argv[], const int *fds, uint32_t n_fds, pid_t parent)
{
    sigset_t none;
    char oom[8];
    int high[N_FDS_MAX], fd;

    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(127); /* the broker died before the line above */

    /* The descriptors may themselves have the numbers they are to get: move them out of the way first. */
    for (uint32_t i = 0; i < n_fds; i++)
        if ((high[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, HIGH_FD)) < 0)
            _exit(127);
    for (uint32_t i = 0; i < n_fds; i++)
        if (dup2(high[i], REGION_FD_MEMORY + (int)i) < 0)
            _exit(127);
    fd = open("/dev/null", O_RDONLY);
    if (fd < 0 || dup2(fd, 0) < 0)
        _exit(127);
    close_range(REGION_FD_MEMORY + n_fds, ~0u, 0);

    fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd >= 0) {
        snprintf(oom, sizeof(oom), "%d", OOM_SCORE_WORKER);
        ssize_t n = write(fd, oom, strlen(oom));
        (void)n; /* it is only a preference */
        close(fd);
    }
    execv(program, argv);
    _exit(127);
}

static enum status spawn(struct worker *w, const struct supervisor_options *o)
{
    char threads[ARGUMENT_BYTES], kv_bytes[ARGUMENT_BYTES], share[ARGUMENT_BYTES];
    char *argv[] = { (char *)"weir-worker", (char *)"--model", (char *)o->model_paths[w->model],
                     (char *)"--device", (char *)w->device, (char *)"--threads", threads,
                     (char *)(o->kv_bytes_given ? "--kv-bytes" : "--cpu-kv-bytes"), kv_bytes,
                     (char *)"--device-share", share, (char *)"--log-level", (char *)o->log_level,
                     (char *)(o->fast_prefill ? "--fast-prefill" : "--no-fast-prefill"),
                     (char *)(o->core_dumps ? "--core-dumps" : "--no-core-dumps"), NULL };
    int fds[N_FDS_MAX] = { w->link.memory, w->link.bells[0], w->link.bells[1], w->link.control[1] };
    uint32_t n_fds = REGION_FD_STORE - REGION_FD_MEMORY;
    pid_t parent = getpid();

    for (uint32_t i = 0; i < w->n_store_fds; i++)
        fds[n_fds++] = w->store_fds[i];
    snprintf(threads, sizeof(threads), "%" PRIu32, o->threads);
    snprintf(share, sizeof(share), "%" PRIu32, w->device_share);
    snprintf(kv_bytes, sizeof(kv_bytes), "%" PRIu64, o->kv_bytes);
    pid_t pid = fork();
    if (pid < 0) {
        snprintf(w->error, sizeof(w->error), "cannot fork: %s", strerror(errno));
        return ST_SYSTEM;
    }
    if (pid == 0)
        become_worker(o->program, argv, fds, n_fds, parent);
    int pidfd = pidfd_open(pid, 0); /* not reaped yet, so the number is still its own */
    if (pidfd < 0) {
        snprintf(w->error, sizeof(w->error), "no pidfd for the worker: %s", strerror(errno));
        kill(pid, SIGKILL);
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            continue;
        return ST_SYSTEM;
    }
    w->pid = pid;
    w->pidfd = pidfd;
    return ST_OK;
}

enum status supervisor_start(struct worker *w, const struct supervisor_options *o, uint64_t now_ns)
{
    assert(w->state == WORKER_WAITING);
    enum status st = worker_link_open(&w->link, w->slot, w->life + 1, o->boot_id);

    if (st != ST_OK) {
        snprintf(w->error, sizeof(w->error), "no region for the worker: %s", status_text(st));
    } else {
        st = spawn(w, o);
    }
    if (st != ST_OK) {
        log_error("worker_start_failed", "slot=%" PRIu32 " life=%" PRIu32, w->slot, w->life + 1);
        worker_link_close(&w->link);
        w->failures++;
        w->failed_starts++;
        wait_for_restart(w, now_ns);
        return st;
    }
    worker_link_started(&w->link);
    w->life++;
    w->restarts = w->life - 1;
    w->killed = KILL_NONE;
    w->n_seqs = w->n_unstarted = 0;
    w->alone_request = -1;
    set_state(w, WORKER_STARTING, now_ns);
    log_info("worker_start", "slot=%" PRIu32 " life=%" PRIu32 " pid=%d", w->slot, w->life, (int)w->pid);
    return ST_OK;
}

void supervisor_ready(struct worker *w, uint64_t now_ns)
{
    assert(w->state == WORKER_STARTING);
    w->has_card = true;
    w->failed_starts = 0;
    w->error[0] = '\0';
    w->patience_from_ns = now_ns;
    set_state(w, WORKER_READY, now_ns);
}

void supervisor_kill(struct worker *w, enum kill_reason reason)
{
    if (w->pidfd < 0)
        return;
    if (w->killed == KILL_NONE)
        w->killed = reason;
    if (pidfd_send_signal(w->pidfd, SIGKILL, NULL, 0) != 0 && errno != ESRCH)
        log_error("worker_kill_failed", "slot=%" PRIu32 " errno=%d", w->slot, errno);
}

bool supervisor_reap(struct worker *w, struct supervisor_end *ret_end)
{
    siginfo_t info = { 0 };
    int rc;

    if (w->pidfd < 0)
        return false;
    do
        rc = waitid(P_PIDFD, (id_t)w->pidfd, &info, WEXITED | WNOHANG);
    while (rc != 0 && errno == EINTR);
    if (rc != 0 || info.si_pid == 0)
        return false;
    close(w->pidfd);
    w->pidfd = -1;
    w->pid = 0;
    ret_end->wait_code = info.si_code;
    ret_end->wait_status = info.si_status;
    ret_end->own_fault = takeover_own_fault(info.si_code, info.si_status, w->killed);
    takeover_cause_text(info.si_code, info.si_status, w->killed, ret_end->cause);
    return true;
}

void supervisor_bury(struct worker *w, const struct supervisor_end *end, bool again, uint64_t now_ns)
{
    bool was_ready = w->state == WORKER_READY || w->state == WORKER_LEAVING;
    bool stable = was_ready && now_ns - w->state_since_ns >= SUPERVISOR_STABLE_MS * UINT64_C(1000000);

    worker_link_close(&w->link);
    w->n_seqs = w->n_unstarted = 0;
    w->alone_request = -1;
    if (stable)
        w->failures = 0;
    if (!was_ready && w->killed == KILL_SHUTDOWN) {
        w->error[0] = '\0'; /* it was not wanted any more */
    } else if (!was_ready) {
        w->failed_starts++;
        w->failures++;
        if (w->error[0] == '\0')
            snprintf(w->error, sizeof(w->error), "the worker ended before it was ready: %s%s", end->cause,
                     end->wait_code == CLD_EXITED && end->wait_status == 127 ? " (its program could not be run)" : "");
    } else if (end->own_fault) {
        w->failures++;
        snprintf(w->error, sizeof(w->error), "the last process ended: %s", end->cause);
    }
    if (again && w->order < ORDER_DRAIN && !w->released)
        wait_for_restart(w, now_ns);
    else
        set_state(w, WORKER_STOPPED, now_ns);
}

uint64_t supervisor_silence_ns(const struct worker *w, const struct supervisor_pulse *p, uint64_t now_ns)
{
    /* The worker's clock values are input: a heartbeat in the future is none, or one lie would be life for ever.  (now_ns was
     * read a little before the heartbeat.) */
    uint64_t heartbeat_ns = p->heartbeat_ns <= now_ns + CLOCK_SLACK_NS ? p->heartbeat_ns : 0;
    uint64_t alive_ns = heartbeat_ns > w->patience_from_ns ? heartbeat_ns : w->patience_from_ns;

    return now_ns > alive_ns ? now_ns - alive_ns : 0;
}

void supervisor_excuse(struct worker *w, uint64_t now_ns)
{
    w->patience_from_ns = w->last_busy_ns = now_ns;
}

static bool hangs(const struct worker *w, const struct supervisor_pulse *p, uint64_t limit_ns, uint64_t now_ns)
{
    uint64_t idle_ns = SUPERVISOR_IDLE_HANG_MS_MIN * UINT64_C(1000000);

    if (p->n_active == 0 && limit_ns < idle_ns)
        limit_ns = idle_ns;
    return supervisor_silence_ns(w, p, now_ns) > limit_ns ||
           (p->step_began_ns != 0 && now_ns > p->step_began_ns && now_ns - p->step_began_ns > limit_ns &&
            now_ns - w->patience_from_ns > limit_ns);
}

enum supervisor_advice supervisor_advise(const struct worker *w, const struct supervisor_pulse *p,
                                         const struct supervisor_options *o, uint64_t now_ns)
{
    switch (w->state) {
    case WORKER_WAITING:
        return now_ns >= w->start_due_ns ? ADVICE_START : ADVICE_NONE;
    case WORKER_STARTING:
        return now_ns - w->state_since_ns > o->start_ns_max && w->killed == KILL_NONE ? ADVICE_START_TIMEOUT : ADVICE_NONE;
    case WORKER_READY:
        return w->killed == KILL_NONE && hangs(w, p, o->hang_ns_max, now_ns) ? ADVICE_HANG : ADVICE_NONE;
    case WORKER_LEAVING:
    case WORKER_STOPPED:
        return ADVICE_NONE;
    }
    return ADVICE_NONE;
}

/* --- orders by hand --------------------------------------------------------------------------- */

void supervisor_order(struct worker *w, enum worker_order order, uint64_t now_ns)
{
    assert(w->order != ORDER_GONE);
    w->order = order;
    w->released = false;
    if (order == ORDER_RUN && (w->state == WORKER_STOPPED || w->state == WORKER_WAITING)) {
        w->failures = w->failed_starts = 0;
        w->error[0] = '\0';
        wait_for_restart(w, now_ns); /* without failures: due at once */
    }
    supervisor_obey(w, now_ns);
}

void supervisor_drain(struct worker *w, uint64_t now_ns)
{
    assert(w->state == WORKER_READY);
    if (w->killed == KILL_NONE && worker_link_drain(&w->link) == ST_OK)
        set_state(w, WORKER_LEAVING, now_ns);
}

void supervisor_obey(struct worker *w, uint64_t now_ns)
{
    /* Who is leaving has its time for that even if it is wanted again meanwhile. */
    if (w->order < ORDER_DRAIN && !w->released && w->state != WORKER_LEAVING)
        return;
    switch (w->state) {
    case WORKER_WAITING:
        set_state(w, WORKER_STOPPED, now_ns);
        break;
    case WORKER_STARTING:
        if (w->killed == KILL_NONE)
            supervisor_kill(w, KILL_SHUTDOWN);
        break;
    case WORKER_READY:
        if (w->link.n_held == 0)
            supervisor_drain(w, now_ns);
        break;
    case WORKER_LEAVING:
        if (now_ns - w->state_since_ns > SUPERVISOR_LEAVE_MS * UINT64_C(1000000) && w->killed == KILL_NONE)
            supervisor_kill(w, KILL_SHUTDOWN);
        break;
    case WORKER_STOPPED:
        if (w->order == ORDER_REMOVE)
            w->order = ORDER_GONE;
        break;
    }
}

void supervisor_release(struct worker *w, uint64_t now_ns)
{
    assert(w->state == WORKER_READY && w->order == ORDER_RUN && w->link.n_held == 0);
    w->released = true;
    supervisor_obey(w, now_ns);
}

void supervisor_wake(struct worker *w, uint64_t now_ns)
{
    assert(w->released);
    w->released = false;
    if (w->state == WORKER_STOPPED)
        wait_for_restart(w, now_ns);
}

const char *worker_order_name(enum worker_order o)
{
    static const char *const names[] = {
        [ORDER_RUN] = "run", [ORDER_PAUSE] = "pause", [ORDER_DRAIN] = "drain", [ORDER_REMOVE] = "remove", [ORDER_GONE] = "gone",
    };
    return names[o];
}

const char *worker_state_name(enum worker_state s)
{
    static const char *const names[] = {
        [WORKER_WAITING] = "waiting",   [WORKER_STARTING] = "starting", [WORKER_READY] = "ready",
        [WORKER_LEAVING] = "leaving",   [WORKER_STOPPED] = "stopped",
    };
    return names[s];
}
