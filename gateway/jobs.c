/* jobs.c - (b): the only process that opens the job store, the state folder and a connection to the broker.
 *
 * One loop over epoll: the listener's control socket, the doors, libweir's descriptor, signals.  Each turn: take messages, let libweir
 * run its callbacks, feed and commit (runner), check uploads and serve watches (desk).  It ends when told to (SIGTERM) or when the listener
 * has gone; before it goes it commits what has come. Lines on their way are open again at the next start. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "clock.h"
#include "desk.h"
#include "gateway.h"
#include "jobs_page.h"
#include "log.h"
#include "sandbox.h"

enum { EVENTS = 64, IDLE_MS = 1000, EXPIRE_EVERY_MS = 60000, USERS_LOOK_MS = 1000 };

struct jobs {
    struct job_store *store;
    struct job_files files;
    struct pool_link link;
    struct runner runner;
    struct desk desk;
    int epoll, signals, link_fd; /* link_fd: which one epoll has; -1 */
    struct board *board;         /* NULL: nobody shows our numbers */
    uint64_t ttl_ms, expired_ns, page_ns, users_ns;
    bool stopping;
};

/* What an epoll event points to when it is no conn. */
static char tag_control, tag_signals, tag_link;

static enum status watch_fd(struct jobs *j, int fd, void *tag)
{
    struct epoll_event event = { .events = EPOLLIN, .data.ptr = tag };

    return epoll_ctl(j->epoll, EPOLL_CTL_ADD, fd, &event) == 0 ? ST_OK : ST_SYSTEM;
}

static void on_control(struct jobs *j)
{
    struct door_message m;
    enum status st;

    while ((st = door_receive(FD_CONTROL, j->desk.packet, &m)) == ST_OK || st == ST_CORRUPT) {
        if (st == ST_CORRUPT) { /* we are out of descriptors: its connection sees the door close, and the others go on */
            log_error("refused", "reason=descriptors");
            continue;
        }
        struct door_reader r = { .left = m.body };
        uint64_t number = door_get_u64(&r);
        char peer[80];
        if (m.type == DOOR_CONNECTION && m.fd >= 0 && desk_copy(door_get_str(&r), peer, sizeof peer) &&
            door_read_all(&r)) {
            if (fcntl(m.fd, F_SETFL, O_NONBLOCK) == 0)
                desk_open(&j->desk, number, peer, m.fd);
            else
                close(m.fd); /* one whom we could wait for would stop everybody */
        } else if (m.fd >= 0) {
            close(m.fd);
        }
    }
    if (st != ST_AGAIN) {
        log_info("stop", "reason=listener_gone");
        j->stopping = true;
    }
}

/* The listener runs the administrator's program; if it does not take the message now, the program is not run. */
static void on_job_end(const struct job_row *row, void *arg)
{
    uint8_t buffer[512];
    struct byte_writer w = { .at = buffer, .capacity = sizeof buffer };

    (void)arg;
    door_put_str(&w, span_str(row->id));
    door_put_str(&w, span_str(row->user));
    door_put_str(&w, span_str(job_state_name(row->state)));
    door_put_u64(&w, row->n_lines);
    door_put_u64(&w, row->n_failed);
    if (door_send(FD_CONTROL, &(struct door_message){ .type = DOOR_JOB_ENDED, .body = byte_writer_written(&w), .fd = -1 }) != ST_OK)
        log_error("hook", "job=%s dropped=listener_busy", row->id);
}

static void on_signals(struct jobs *j)
{
    struct signalfd_siginfo info;

    while (read(j->signals, &info, sizeof info) == sizeof info) {
        if (info.ssi_signo == SIGHUP)
            desk_reload_users(&j->desk, true);
        else
            j->stopping = true;
    }
}

static void on_epoll(struct jobs *j, const struct epoll_event *e)
{
    if (e->data.ptr == &tag_control)
        on_control(j);
    else if (e->data.ptr == &tag_signals)
        on_signals(j);
    else if (e->data.ptr != &tag_link) /* the link is stepped in every turn */
        desk_on_event(&j->desk, e->data.ptr, e->events & (EPOLLIN | EPOLLHUP | EPOLLERR),
                      e->events & EPOLLOUT);
}

static void step_link(struct jobs *j)
{
    pool_link_step(&j->link, j->desk.now_ns);
    if (j->link_fd < 0 && pool_link_fd(&j->link) >= 0) {
        j->link_fd = pool_link_fd(&j->link);
        if (watch_fd(j, j->link_fd, &tag_link) != ST_OK)
            log_error("epoll", "what=link error=%d", errno);
    }
}

static void step_upkeep(struct jobs *j)
{
    struct desk *d = &j->desk;

    if (d->now_ns - j->expired_ns < EXPIRE_EVERY_MS * 1000000ull)
        return;
    j->expired_ns = d->now_ns;
    if (job_store_expire(j->store, d->real_ms - (int64_t)j->ttl_ms) == ST_OK)
        d->sweep_left = true; /* the sweep finds out whether there is anything */
}

/* By the clock, and not when there is nothing to do: under load that never comes, and a user who was disabled would stay. */
static void step_users(struct jobs *j)
{
    if (j->desk.now_ns - j->users_ns < USERS_LOOK_MS * 1000000ull)
        return;
    j->users_ns = j->desk.now_ns;
    desk_reload_users(&j->desk, false);
}

static void step_page(struct jobs *j)
{
    if (j->board == NULL || j->desk.now_ns - j->page_ns < JOBS_PAGE_MS * 1000000ull)
        return;
    j->page_ns = j->desk.now_ns;
    jobs_page_write(&j->board->pages[BOARD_JOBS], &j->desk);
}

static int wait_ms(const struct jobs *j)
{
    uint64_t now = clock_now_ns();
    int wait = IDLE_MS;
    const int due[] = { runner_timeout_ms(&j->runner, now), desk_timeout_ms(&j->desk, now),
                        pool_link_timeout_ms(&j->link, now) };

    for (size_t i = 0; i < sizeof due / sizeof due[0]; i++) {
        if (due[i] >= 0 && due[i] < wait)
            wait = due[i];
    }
    return wait;
}

static void loop(struct jobs *j)
{
    struct epoll_event events[EVENTS];

    while (!j->stopping) {
        int n = epoll_wait(j->epoll, events, EVENTS, wait_ms(j));
        if (n < 0 && errno != EINTR) {
            log_error("epoll", "what=wait error=%d", errno);
            return;
        }
        j->desk.now_ns = clock_now_ns();
        j->desk.real_ms = clock_real_ms();
        for (int i = 0; i < n; i++)
            on_epoll(j, &events[i]);
        step_link(j);
        runner_step(&j->runner, j->desk.now_ns, j->desk.real_ms);
        desk_step(&j->desk);
        step_upkeep(j);
        step_page(j);
        step_users(j);
    }
}

static enum status open_signals(struct jobs *j)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    signal(SIGINT, SIG_IGN); /* ^C in a terminal is the listener's to hear; it then says SIGTERM */
    if (sigprocmask(SIG_BLOCK, &set, NULL) != 0)
        return ST_SYSTEM;
    j->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return j->signals >= 0 ? watch_fd(j, j->signals, &tag_signals) : ST_SYSTEM;
}

static void raise_descriptor_limit(void)
{
    struct rlimit r;

    if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur < r.rlim_max) {
        r.rlim_cur = r.rlim_max < 65536 ? r.rlim_max : 65536;
        setrlimit(RLIMIT_NOFILE, &r);
    }
}

static enum status start(struct jobs *j, const struct config *c, const struct gateway_places *places,
                         struct error *err)
{
    char path[PATHS_BYTES + 16];
    enum status st = job_files_open(places->state_dir, &j->files, err);

    if (st != ST_OK)
        return st;
    snprintf(path, sizeof path, "%s/jobs.db", places->state_dir);
    st = job_store_open(path, &j->store, err);
    if (st != ST_OK)
        return st;
    error_set(err, ERR_INTERNAL, NULL, "cannot start: out of memory, or the job store cannot be read");
    pool_link_init(&j->link, places->endpoint);
    st = runner_init(&j->runner, j->store, &j->files, &j->link, (uint32_t)config_u64(c, "job-window"));
    if (config_string(c, "job-hook") != NULL)
        j->runner.on_end = on_job_end;
    if (st == ST_OK)
        st = runner_recover(&j->runner);
    if (st != ST_OK)
        return st;
    j->desk = (struct desk){ .store = j->store,
                             .files = &j->files,
                             .link = &j->link,
                             .runner = &j->runner,
                             .epoll = j->epoll,
                             .control = FD_CONTROL,
                             .now_ns = clock_now_ns(),
                             .real_ms = clock_real_ms(),
                             .sweep_left = true,
                             .users_mtime_ns = -1 };
    snprintf(j->desk.users_path, sizeof j->desk.users_path, "%s", places->users_file);
    snprintf(j->desk.pending_path, sizeof j->desk.pending_path, "%s/pending", places->state_dir);
    if (pending_read(j->desk.pending_path, &j->desk.pending) != ST_OK)
        log_warn("pending", "what=read error=%d", errno);
    desk_reload_users(&j->desk, true);
    desk_inbox_recover(&j->desk);
    j->runner.users = &j->desk.users;
    j->ttl_ms = config_u64(c, "job-ttl");
    fcntl(FD_BOARD, F_SETFD, FD_CLOEXEC);
    if (board_map(FD_BOARD, true, &j->board) != ST_OK)
        log_warn("metrics", "what=board error=%d", errno); /* jobs go on without; its page is also the sign of life that the listener looks for */
    if (fcntl(FD_CONTROL, F_SETFL, O_NONBLOCK) != 0 || fcntl(FD_CONTROL, F_SETFD, FD_CLOEXEC) != 0 ||
        watch_fd(j, FD_CONTROL, &tag_control) != ST_OK || open_signals(j) != ST_OK)
        return ST_SYSTEM;
    return door_send(FD_CONTROL, &(struct door_message){ .type = DOOR_READY, .fd = -1 });
}

int jobs_run(const struct config *c, const struct gateway_places *places)
{
    struct jobs *j = calloc(1, sizeof *j);
    struct error err;
    int code = EXIT_FAILURE;

    if (j == NULL)
        return EXIT_FAILURE;
    sandbox_undumpable();
    raise_descriptor_limit();
    j->link_fd = -1;
    j->files = (struct job_files){ .state_fd = -1, .spool_fd = -1, .files_fd = -1, .lock_fd = -1 };
    j->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (start(j, c, places, &err) == ST_OK) {
        loop(j);
        code = EXIT_SUCCESS;
    } else {
        log_error("start", "%s", err.message);
    }
    desk_deinit(&j->desk);
    runner_deinit(&j->runner, clock_now_ns());
    pool_link_deinit(&j->link);
    desk_free_asks(&j->desk);
    job_store_close(j->store);
    job_files_close(&j->files);
    free(j);
    return code;
}
