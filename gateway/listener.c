/* listener.c - (a): accepts connections and starts a process for each; starts (b) again when it dies.
 *
 * It never reads a byte from the network and knows no user.  It holds the host keys in a sealed memfd that every
 * connection process reads once.  A connection that has not logged in is in `startups`; (b), which alone knows who has, says so
 * over the control socket.  Its own copy of a socket is kept until then, to ask the kernel how much has come (TCP_INFO) when one
 * has to make room.  A process is started when the first byte has come, or a moment later (a few clients wait for the server's
 * first word); while many have not logged in only the first byte counts, so a crowd of silent ones costs descriptors, not processes.
 * Children are known by pid and reaped from a signalfd; nothing is done in a signal handler. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <linux/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "board.h"
#include "clock.h"
#include "gateway.h"
#include "hooks.h"
#include "host_keys.h"
#include "listening.h"
#include "log.h"
#include "metrics.h"
#include "notify.h"
#include "sandbox.h"
#include "spawn.h"
#include "startups.h"
#include "tally.h"

enum { STOP_MS_MAX = 15000, RESTART_MS_MAX = 10000, FIRST_BYTE_MS = 200, PAGE_MS = 1000, ACCEPT_PAUSE_MS = 100 };

struct child {
    uint64_t number; /* of the connection; 0: free slot */
    pid_t pid;       /* 0: accepted, but it has said nothing yet, so no process was started for it */
    int sock;        /* our copy of its TCP socket while it has not logged in; -1 */
    bool exempt;     /* its source is not limited: it is not in startups, and nobody makes room for it */
    uint64_t since_ns;
    char peer[PEER_BYTES];
};

struct listener {
    struct listening listening;
    int signals, control, kit;
    pid_t jobs;
    uint64_t jobs_restart_ns, jobs_restart_ms; /* when to start it again; the pause doubles */
    bool jobs_ready, announced, stopping;
    uint64_t stop_ns;
    int ready_fd;
    uint64_t next_number;
    struct startups startups;
    const char *const *exempt; /* [n_exempt]: sources that are not limited */
    size_t n_exempt;
    struct hooks hooks;
    struct child children[CONNECTIONS_MAX];
    size_t n_children;
    int board_fd, board_read_fd, metrics_fd; /* metrics_fd: listening socket for (d); -1: no metrics */
    struct board *board;
    pid_t metrics;
    uint64_t metrics_restart_ns, page_ns;
    uint64_t watchdog_ms, watchdog_ns; /* of systemd; 0: none.  When it was told last */
    uint64_t n_accepted, n_jobs_restarts, n_died;
    struct tally refused, dropped;
    int argc;
    char *const *argv;
};

/* --- starting children ------------------------------------------------------------------------- */

static enum status start_jobs(struct listener *l)
{
    int pair[2];
    char **argv = calloc((size_t)l->argc + 2, sizeof *argv);

    if (argv == NULL || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
        free(argv);
        return ST_SYSTEM;
    }
    argv[0] = l->argv[0];
    argv[1] = (char *)(uintptr_t) "jobs-process";
    for (int i = 1; i < l->argc; i++)
        argv[i + 1] = l->argv[i];
    pid_t pid = fork();
    if (pid == 0)
        spawn_become((int[]){ pair[1], l->board_fd }, 2, argv);
    free(argv);
    close(pair[1]);
    if (pid < 0 || fcntl(pair[0], F_SETFL, O_NONBLOCK) != 0) {
        close(pair[0]); /* a process that is there sees it, and ends */
        return ST_SYSTEM;
    }
    l->jobs = pid;
    l->control = pair[0];
    l->jobs_ready = false;
    return ST_OK;
}

/* It needs nothing of us but what it finds open, and is started again when it ends. */
static void start_metrics(struct listener *l)
{
    pid_t pid = fork();

    if (pid == 0)
        spawn_become((int[]){ l->metrics_fd, l->board_read_fd }, 2,
               (char *[]){ (char[]){ "weir-gateway: metrics" }, (char[]){ "metrics-process" }, NULL });
    l->metrics = pid > 0 ? pid : 0;
    l->metrics_restart_ns = clock_now_ns() + RESTART_MS_MAX * 1000000ull;
}

/* --- connections ------------------------------------------------------------------------------- */

static struct child *child_by_number(struct listener *l, uint64_t number)
{
    for (size_t i = 0; i < CONNECTIONS_MAX; i++) {
        if (l->children[i].number == number)
            return &l->children[i];
    }
    return NULL;
}

static void free_slot(struct listener *l, struct child *c)
{
    c->number = 0;
    l->n_children--;
}

static void drop_socket(struct child *c)
{
    if (c->sock >= 0)
        close(c->sock);
    c->sock = -1;
}

/* Kill a connection that has not logged in.  Its slot is free when it has been reaped. */
static void drop_startup(struct listener *l, uint64_t number, const char *reason)
{
    struct child *c = child_by_number(l, number);

    startups_remove(&l->startups, number);
    if (c == NULL)
        return;
    tally_add(&l->dropped, reason);
    log_info("drop", "connection=%" PRIu64 " peer=%s reason=%s", number, c->peer, reason);
    drop_socket(c);
    if (c->pid > 0)
        kill(c->pid, SIGKILL);
    else
        free_slot(l, c);
}

static void count_received(struct listener *l)
{
    for (size_t i = 0; i < l->startups.max; i++) {
        struct startup *s = &l->startups.list[i];
        struct child *c = s->number != 0 ? child_by_number(l, s->number) : NULL;
        struct tcp_info info = { 0 };
        socklen_t bytes = sizeof info;
        if (c != NULL && c->sock >= 0 && getsockopt(c->sock, IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0)
            s->bytes_received = info.tcpi_bytes_received;
    }
}

static void make_room(struct listener *l, const uint8_t source[16])
{
    uint32_t dice = 0;

    count_received(l);
    if (getrandom(&dice, sizeof dice, 0) != sizeof dice)
        dice = 0;
    int victim = startups_victim(&l->startups, source, dice, clock_now_ns());
    if (victim >= 0)
        drop_startup(l, l->startups.list[victim].number, "room");
}

/* Announce a connection to (b), which gets its end of the door.  ST_OK, or anything: (b) is not there. */
static enum status announce(struct listener *l, uint64_t number, const char *peer, int door)
{
    uint8_t buffer[256];
    struct byte_writer w = { .at = buffer, .capacity = sizeof buffer };

    if (l->control < 0)
        return ST_GONE;
    door_put_u64(&w, number);
    door_put_str(&w, span_str(peer));
    return door_send(l->control,
                     &(struct door_message){ .type = DOOR_CONNECTION, .body = byte_writer_written(&w), .fd = door });
}

/* Start the process of a connection.  If that fails the connection is dropped. */
static void start_child(struct listener *l, struct child *c)
{
    int pair[2] = { -1, -1 };
    bool started = false;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
        log_error("door", "error=%d", errno);
    } else if (announce(l, c->number, c->peer, pair[0]) != ST_OK) {
        log_warn("refused", "peer=%s reason=jobs_process", c->peer);
        tally_add(&l->refused, "jobs_process");
    } else {
        c->pid = spawn_connection(c->sock, pair[1], l->kit, c->peer);
        started = c->pid > 0;
        if (!started)
            log_error("fork", "error=%d", errno);
    }
    if (pair[0] >= 0) {
        close(pair[0]);
        close(pair[1]);
    }
    if (!started) {
        c->pid = 0;
        drop_startup(l, c->number, "not_started");
        return;
    }
    log_debug("connection", "connection=%" PRIu64 " peer=%s pid=%d", c->number, c->peer, (int)c->pid);
}

/* Bytes that have come and wait to be read. */
static int bytes_waiting(int sock)
{
    int n = 0;

    return ioctl(sock, FIONREAD, &n) == 0 ? n : 0;
}

static void on_accepted(struct listener *l, int sock, const struct sockaddr_storage *from)
{
    char peer[PEER_BYTES];
    uint8_t source[16];
    struct child *slot;

    l->n_accepted++;
    listening_peer(from, peer, sizeof peer, source);
    bool exempt = listening_is_from(peer, l->exempt, l->n_exempt);
    if (!exempt)
        make_room(l, source);
    slot = child_by_number(l, 0);
    if (slot == NULL) {
        log_warn("refused", "peer=%s reason=connections limit=%d", peer, CONNECTIONS_MAX);
        tally_add(&l->refused, "connections");
        close(sock);
        return;
    }
    listening_tune(sock);
    *slot = (struct child){ .number = l->next_number++, .sock = sock, .exempt = exempt, .since_ns = clock_now_ns() };
    memcpy(slot->peer, peer, sizeof peer);
    l->n_children++;
    if (!exempt)
        startups_add(&l->startups, slot->number, source, slot->since_ns);
    if (bytes_waiting(sock) > 0)
        start_child(l, slot);
}

static bool is_waiting(const struct child *c)
{
    return c->number != 0 && c->pid == 0;
}

/* Something has happened on the socket of a connection that waits. */
static void on_first_byte(struct listener *l, struct child *c)
{
    if (bytes_waiting(c->sock) > 0)
        start_child(l, c);
    else
        drop_startup(l, c->number, "closed");
}

static void accept_some(struct listener *l, int listening)
{
    for (int i = 0; i < 64; i++) { /* then the other descriptors have a turn */
        struct sockaddr_storage from = { 0 };
        socklen_t bytes = sizeof from;
        int sock = accept4(listening, (struct sockaddr *)&from, &bytes, SOCK_CLOEXEC);
        if (sock < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
                log_error("accept", "error=%d pause_ms=%d", errno, ACCEPT_PAUSE_MS);
                nanosleep(&(struct timespec){ .tv_nsec = ACCEPT_PAUSE_MS * 1000000L }, NULL); /* or poll() would come back at once */
            }
            return;
        }
        on_accepted(l, sock, &from);
    }
}

/* --- children and signals ---------------------------------------------------------------------- */

static void on_jobs_ended(struct listener *l, int status)
{
    l->jobs = 0;
    l->n_jobs_restarts++;
    if (l->control >= 0)
        close(l->control);
    l->control = -1;
    if (l->stopping)
        return;
    /* its connection processes see their doors close and end by themselves */
    l->jobs_restart_ms = l->jobs_ready                             ? 100
                         : l->jobs_restart_ms * 2 > RESTART_MS_MAX ? RESTART_MS_MAX
                                                                   : l->jobs_restart_ms * 2;
    l->jobs_restart_ns = clock_now_ns() + l->jobs_restart_ms * 1000000;
    log_error("jobs_ended", "signal=%d exit=%d restart_ms=%" PRIu64,
              WIFSIGNALED(status) ? WTERMSIG(status) : 0, WIFEXITED(status) ? WEXITSTATUS(status) : 0,
              l->jobs_restart_ms);
    if (!l->announced) { /* it never worked: the reason is in the log, and trying again will not help */
        l->stopping = true;
        l->stop_ns = clock_now_ns();
    }
}

static void reap(struct listener *l)
{
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        if (pid == l->jobs) {
            on_jobs_ended(l, status);
            continue;
        }
        if (pid == l->metrics) {
            l->metrics = 0;
            if (!l->stopping)
                log_warn("metrics_ended", "status=%d", status);
            continue;
        }
        if (hooks_reaped(&l->hooks, pid, status))
            continue;
        for (size_t i = 0; i < CONNECTIONS_MAX; i++) {
            struct child *c = &l->children[i];
            if (c->number == 0 || c->pid != pid)
                continue;
            if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL && WTERMSIG(status) != SIGTERM) {
                l->n_died++;
                log_warn("connection_died", "connection=%" PRIu64 " signal=%d", c->number, WTERMSIG(status));
            }
            startups_remove(&l->startups, c->number);
            drop_socket(c);
            free_slot(l, c);
        }
    }
}

static void begin_stop(struct listener *l)
{
    if (l->stopping) { /* told again: at once */
        l->stop_ns = 0;
        return;
    }
    log_info("stop", "connections=%zu", l->n_children);
    (void)notify_send("STOPPING=1");
    l->stopping = true;
    l->stop_ns = clock_now_ns();
    for (size_t i = 0; i < l->listening.n; i++)
        close(l->listening.sockets[i]);
    l->listening.n = 0;
    for (size_t i = 0; i < CONNECTIONS_MAX; i++) { /* nobody else would end those that have no process */
        if (is_waiting(&l->children[i]))
            drop_startup(l, l->children[i].number, "stopping");
    }
    if (l->metrics > 0)
        kill(l->metrics, SIGTERM);
    if (l->jobs > 0)
        kill(l->jobs,
             SIGTERM); /* it commits what has come and closes the doors; connection processes follow */
}

static void on_signals(struct listener *l)
{
    struct signalfd_siginfo info;

    while (read(l->signals, &info, sizeof info) == sizeof info) {
        if (info.ssi_signo == SIGCHLD)
            reap(l);
        else if (info.ssi_signo == SIGHUP && l->jobs > 0)
            kill(l->jobs, SIGHUP);
        else if (info.ssi_signo == SIGTERM || info.ssi_signo == SIGINT)
            begin_stop(l);
    }
}

static void say_ready(struct listener *l)
{
    char line[64];
    int n = snprintf(line, sizeof line, "ready ssh_port=%u\n", l->listening.port);

    l->announced = true;
    (void)notify_send("READY=1");
    if (l->ready_fd < 0) {
        if (write(STDERR_FILENO, line, (size_t)n) != n)
            log_warn("ready", "stderr=closed");
    } else {
        if (write(l->ready_fd, line, (size_t)n) != n)
            log_warn("ready", "ready_fd=closed");
        close(l->ready_fd);
        l->ready_fd = -1;
    }
}

static void on_control(struct listener *l)
{
    uint8_t buffer[DOOR_PACKET_BYTES];
    struct door_message m;

    while (door_receive(l->control, buffer, &m) == ST_OK) {
        struct door_reader r = { .left = m.body };
        if (m.fd >= 0)
            close(m.fd);
        if (m.type == DOOR_READY) {
            l->jobs_ready = true;
            l->jobs_restart_ms = 100;
            l->watchdog_ms = notify_watchdog_ms();
            if (!l->announced)
                say_ready(l);
        } else if (m.type == DOOR_JOB_ENDED) {
            hooks_add(&l->hooks, &r);
        } else if (m.type == DOOR_LOGGED_IN) {
            uint64_t number = door_get_u64(&r);
            struct child *c = door_read_all(&r) && number != 0 ? child_by_number(l, number) : NULL;
            if (c != NULL) {
                startups_remove(&l->startups, number);
                drop_socket(c);
            }
        }
    }
}

/* --- numbers ----------------------------------------------------------------------------------- */

static void write_page(struct listener *l, uint64_t now)
{
    static char text[16 << 10];
    FILE *f = fmemopen(text, sizeof text, "w");

    if (f == NULL)
        return;
    l->page_ns = now;
    metrics_head(f, "weir_ssh_connections_total", "counter", "TCP connections accepted.");
    fprintf(f, "weir_ssh_connections_total %" PRIu64 "\n", l->n_accepted);
    metrics_head(f, "weir_ssh_connections", "gauge", "TCP connections open, logged in or not.");
    fprintf(f, "weir_ssh_connections %zu\n", l->n_children);
    tally_print(&l->refused, f, "weir_ssh_connections_refused_total", "reason", "Connections closed at once.");
    tally_print(&l->dropped, f, "weir_ssh_connections_dropped_total", "reason", "Connections ended before they had logged in.");
    metrics_head(f, "weir_gateway_connection_crashes_total", "counter", "Connection processes that died of a signal.");
    fprintf(f, "weir_gateway_connection_crashes_total %" PRIu64 "\n", l->n_died);
    metrics_head(f, "weir_gateway_jobs_restarts_total", "counter", "Times the jobs process ended and was started again.");
    fprintf(f, "weir_gateway_jobs_restarts_total %" PRIu64 "\n", l->n_jobs_restarts);
    if (l->hooks.program != NULL) {
        metrics_head(f, "weir_gateway_job_hooks_total", "counter", "Times the program of --job-hook was run.");
        fprintf(f, "weir_gateway_job_hooks_total %" PRIu64 "\n", l->hooks.n_run);
        metrics_head(f, "weir_gateway_job_hooks_failed_total", "counter", "Times it failed, was killed or was not run.");
        fprintf(f, "weir_gateway_job_hooks_failed_total %" PRIu64 "\n", l->hooks.n_failed + l->hooks.n_dropped);
    }
    long n = ftell(f);
    if (fclose(f) == 0 && n > 0 && board_write(&l->board->pages[BOARD_LISTENER], text, (size_t)n, true, "", now) != ST_OK)
        log_error("metrics", "what=page bytes=%ld", n);
}

static void see_to_metrics(struct listener *l, uint64_t now)
{
    if (l->metrics_fd < 0 || l->stopping)
        return;
    if (now - l->page_ns >= PAGE_MS * 1000000ull)
        write_page(l, now);
    if (l->metrics == 0 && now >= l->metrics_restart_ns)
        start_metrics(l);
}

/* The jobs process turns, as far as one can see: it writes its page every second.  One that is being started counts, too. */
static bool jobs_turn(const struct listener *l, uint64_t now)
{
    uint64_t at_ns = *(const volatile uint64_t *)&l->board->pages[BOARD_JOBS].at_ns;

    return l->jobs == 0 || !l->jobs_ready || at_ns == 0 || at_ns > now || now - at_ns < METRICS_STALE_S * UINT64_C(1000000000);
}

/* Systemd starts a gateway anew that does not tell it: so it is told while both loops turn. */
static void see_to_watchdog(struct listener *l, uint64_t now)
{
    if (l->watchdog_ms == 0 || now - l->watchdog_ns < l->watchdog_ms * 1000000ull)
        return;
    l->watchdog_ns = now;
    if (jobs_turn(l, now))
        (void)notify_send("WATCHDOG=1");
    else
        log_warn("watchdog", "jobs process shows no sign of life");
}

/* --- the loop ---------------------------------------------------------------------------------- */

static int next_timeout_ms(const struct listener *l, uint64_t now)
{
    uint64_t next = startups_next_ns(&l->startups);

    for (size_t i = 0; i < CONNECTIONS_MAX && l->startups.n <= l->startups.free; i++) {
        const struct child *c = &l->children[i];
        if (is_waiting(c) && c->since_ns + FIRST_BYTE_MS * 1000000ull < next)
            next = c->since_ns + FIRST_BYTE_MS * 1000000ull;
    }
    for (size_t i = 0; i < CONNECTIONS_MAX && l->n_exempt > 0; i++) {
        const struct child *c = &l->children[i];
        if (c->number != 0 && c->exempt && c->sock >= 0 && c->since_ns + l->startups.grace_ns < next)
            next = c->since_ns + l->startups.grace_ns;
    }
    if (hooks_next_ns(&l->hooks) < next)
        next = hooks_next_ns(&l->hooks);
    if (l->jobs == 0 && !l->stopping && l->jobs_restart_ns < next)
        next = l->jobs_restart_ns;
    if (l->metrics_fd >= 0 && !l->stopping && l->page_ns + PAGE_MS * 1000000ull < next)
        next = l->page_ns + PAGE_MS * 1000000ull;
    if (l->watchdog_ms > 0 && l->watchdog_ns + l->watchdog_ms * 1000000ull < next)
        next = l->watchdog_ns + l->watchdog_ms * 1000000ull;
    if (l->stopping && l->stop_ns + STOP_MS_MAX * 1000000ull < next)
        next = l->stop_ns + STOP_MS_MAX * 1000000ull;
    if (next == UINT64_MAX)
        return -1;
    if (next <= now)
        return 0;
    return next - now > 60000000000 ? 60000 : (int)((next - now) / 1000000) + 1;
}

static void on_time(struct listener *l)
{
    uint64_t now = clock_now_ns(), number;

    see_to_metrics(l, now);
    see_to_watchdog(l, now);
    while ((number = startups_overdue(&l->startups, now)) != 0)
        drop_startup(l, number, "login_grace");
    for (size_t i = 0; i < CONNECTIONS_MAX && l->n_exempt > 0; i++) { /* the grace is for all */
        struct child *c = &l->children[i];
        if (c->number != 0 && c->exempt && c->sock >= 0 && now - c->since_ns >= l->startups.grace_ns)
            drop_startup(l, c->number, "login_grace");
    }
    hooks_step(&l->hooks, now);
    for (size_t i = 0; i < CONNECTIONS_MAX && l->startups.n <= l->startups.free && !l->stopping; i++) {
        struct child *c = &l->children[i];
        if (is_waiting(c) && now - c->since_ns >= FIRST_BYTE_MS * 1000000ull)
            start_child(l, c);
    }
    if (l->jobs == 0 && !l->stopping && now >= l->jobs_restart_ns && start_jobs(l) != ST_OK)
        l->jobs_restart_ns = now + RESTART_MS_MAX * 1000000ull;
    if (l->stopping && now - l->stop_ns >= STOP_MS_MAX * 1000000ull) {
        log_error("stop", "overdue=%zu", l->n_children);
        hooks_kill(&l->hooks);
        if (l->jobs > 0)
            kill(l->jobs, SIGKILL);
        if (l->metrics > 0)
            kill(l->metrics, SIGKILL);
        for (size_t i = 0; i < CONNECTIONS_MAX; i++) {
            if (l->children[i].number != 0 && l->children[i].pid > 0)
                kill(l->children[i].pid, SIGKILL);
        }
        l->stop_ns = now;
    }
}

/* Wait for something to happen, and see to it. */
static bool turn(struct listener *l)
{
    struct pollfd fds[2 + LISTEN_SOCKETS_MAX + CONNECTIONS_MAX];
    struct child *waiting[CONNECTIONS_MAX];
    size_t n = 0, n_listening = l->listening.n, n_waiting = 0;

    fds[n++] = (struct pollfd){ .fd = l->signals, .events = POLLIN };
    fds[n++] = (struct pollfd){ .fd = l->control, .events = POLLIN }; /* -1 is skipped */
    for (size_t i = 0; i < n_listening; i++)
        fds[n++] = (struct pollfd){ .fd = l->listening.sockets[i], .events = POLLIN };
    for (size_t i = 0; i < CONNECTIONS_MAX; i++) {
        if (!is_waiting(&l->children[i]))
            continue;
        waiting[n_waiting++] = &l->children[i];
        fds[n++] = (struct pollfd){ .fd = l->children[i].sock, .events = POLLIN };
    }
    if (poll(fds, n, next_timeout_ms(l, clock_now_ns())) < 0 && errno != EINTR) {
        log_error("poll", "error=%d", errno);
        return false;
    }
    for (size_t i = 0; i < n_waiting; i++) { /* first: a slot may be used anew by what is accepted below */
        if (fds[2 + n_listening + i].revents)
            on_first_byte(l, waiting[i]);
    }
    if (fds[1].revents && l->control >= 0)
        on_control(l);
    for (size_t i = 0; i < n_listening; i++) {
        if (fds[2 + i].revents)
            accept_some(l, fds[2 + i].fd);
    }
    if (fds[0].revents)
        on_signals(l);
    on_time(l);
    return true;
}

static void loop(struct listener *l)
{
    while (!l->stopping || l->jobs > 0 || l->metrics > 0 || l->n_children > 0 || hooks_busy(&l->hooks)) {
        if (!turn(l))
            return;
    }
}

static enum status prepare(struct listener *l, const struct config *c, const struct gateway_places *places,
                           struct error *err)
{
    struct host_keys keys;
    sigset_t set;

    enum status st = gateway_check_options(c, err);
    if (st == ST_OK)
        st = paths_make_private(places->state_dir, 0750, err);
    if (st != ST_OK)
        return st;
    st = host_keys_load(places->state_dir, &keys, err);
    if (st != ST_OK)
        return st;
    st = host_keys_kit(&keys, c, &l->kit);
    host_keys_deinit(&keys);
    if (st != ST_OK) {
        error_set(err, ERR_INTERNAL, NULL, "cannot make the memfd of the host keys: %s", strerror(errno));
        return st;
    }
    st = listening_open(&l->listening, c, err);
    if (st == ST_OK && config_u64(c, "metrics-port") != 0)
        st = metrics_listen(config_string(c, "metrics-address"), (uint16_t)config_u64(c, "metrics-port"), &l->metrics_fd, err);
    if (st != ST_OK)
        return st;
    if (board_create(&l->board_fd, &l->board_read_fd) != ST_OK || board_map(l->board_fd, true, &l->board) != ST_OK) {
        error_set(err, ERR_INTERNAL, NULL, "cannot make the memory of the metrics: %s", strerror(errno));
        return ST_SYSTEM;
    }
    sigemptyset(&set);
    for (size_t i = 0; i < 4; i++)
        sigaddset(&set, (int[]){ SIGCHLD, SIGTERM, SIGINT, SIGHUP }[i]);
    signal(SIGCHLD, SIG_DFL); /* inherited as ignored, it would hide the ends of our children */
    if (sigprocmask(SIG_BLOCK, &set, NULL) == 0)
        l->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    st = l->signals >= 0 ? start_jobs(l) : ST_SYSTEM;
    if (st != ST_OK)
        error_set(err, ERR_INTERNAL, NULL, "cannot start the jobs process: %s", strerror(errno));
    return st;
}

int listener_run(const struct config *c, const struct gateway_places *places, int argc, char *const *argv)
{
    struct error err;
    struct listener *l = calloc(1, sizeof *l);

    if (l == NULL) {
        fprintf(stderr, "weir-gateway: out of memory\n");
        return EXIT_FAILURE;
    }
    l->argc = argc;
    l->argv = argv;
    l->control = l->kit = l->signals = l->board_fd = l->board_read_fd = l->metrics_fd = -1;
    l->next_number = 1;
    l->jobs_restart_ms = 100;
    l->ready_fd = config_is_set(c, "ready-fd") ? (int)config_u64(c, "ready-fd") : -1;
    if (l->ready_fd >= 0)
        fcntl(l->ready_fd, F_SETFD, FD_CLOEXEC);
    l->startups.free = (uint32_t)config_u64(c, "startups-free");
    l->startups.percent = (uint32_t)config_u64(c, "startups-percent");
    l->startups.max = (uint32_t)config_u64(c, "startups-max");
    l->startups.per_source = (uint32_t)config_u64(c, "startups-per-source");
    l->startups.grace_ns = config_u64(c, "login-grace") * 1000000;
    l->n_exempt = config_list(c, "exempt-source", &l->exempt);
    l->hooks.program = config_string(c, "job-hook");
    l->hooks.timeout_ns = config_u64(c, "job-hook-timeout") * 1000000;
    for (size_t i = 0; i < CONNECTIONS_MAX; i++)
        l->children[i].sock = -1;
    sandbox_undumpable();
    if (prepare(l, c, places, &err) != ST_OK) {
        log_error("start", "%s", err.message);
        fprintf(stderr, "weir-gateway: %s\n", err.message);
        free(l);
        return EXIT_FAILURE;
    }
    loop(l);
    bool ok = l->announced;
    log_info("stopped", "clean=%d", ok);
    free(l);
    return ok ? EXIT_SUCCESS : EXIT_FAILURE;
}
