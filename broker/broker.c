/* broker.c - the loop.
 *
 * zmq_poll waits for the socket, the signals, and per worker its doorbell and its pidfd.  Before it waits, every doorbell is armed in
 * the order doorbell.h proves; a ring that is not empty then makes the wait zero.  What the clock demands is looked at every
 * TICK_MS while anything is going on: deadlines, probes, silent workers, starts that are due.
 *
 * Stopping: the first SIGTERM drains.  Queued requests are sent back (shutting_down), what runs may finish until --drain-seconds
 * have passed; the second signal, or that time, ends it.  Workers are told to drain, then killed. */
#include "broker.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "clock.h"
#include "descriptors.h"
#include "log.h"
#include "notify.h"
#include "tcp_door.h"

enum { POLL_SOCKET, POLL_SIGNALS, POLL_TCP, POLL_ZAP, POLL_MONITOR, POLL_WORKERS, POLL_ITEMS_MAX = POLL_WORKERS + 2 * WORKERS_MAX };
enum { DEFAULT_BYTES_PER_TOKEN = 4, DEFAULT_OUTPUT_TOKENS = 128, FAREWELL_MS = 300, REAP_MS_MAX = 5000, OVERSLEPT_MS = 2000, ASLEEP_US = 50 };
static const uint64_t ms_ns = 1000000;

/* --- making and freeing ----------------------------------------------------------------------- */

static enum status draw_secrets(struct broker *b)
{
    if (getrandom(&b->boot_id, sizeof(b->boot_id), 0) != sizeof(b->boot_id) ||
        getrandom(b->scope_secret, sizeof(b->scope_secret), 0) != sizeof(b->scope_secret) ||
        getrandom(b->store_secret, sizeof(b->store_secret), 0) != sizeof(b->store_secret))
        return ST_SYSTEM;
    snprintf(b->boot, sizeof(b->boot), "%016" PRIx64, b->boot_id);
    return ST_OK;
}

static enum status open_signals(struct broker *b)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    /* Before libzmq makes its threads: they inherit the mask, so the signals come to this descriptor only. */
    if (sigprocmask(SIG_BLOCK, &set, NULL) != 0)
        return ST_SYSTEM;
    signal(SIGPIPE, SIG_IGN);
    signal(SIGCHLD, SIG_DFL); /* inherited as ignored, it would make the kernel reap our workers: no death would ever be seen */
    b->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return b->signals >= 0 ? ST_OK : ST_SYSTEM;
}

static void set_models_and_workers(struct broker *b, const struct options *o)
{
    b->n_models = o->n_models;
    for (uint32_t i = 0; i < o->n_models; i++)
        b->models[i] = (struct served_model){ .name = o->model_names[i],
                                              .path = o->model_paths[i],
                                              .bytes_per_token = DEFAULT_BYTES_PER_TOKEN,
                                              .output_tokens = DEFAULT_OUTPUT_TOKENS };
    b->n_workers = o->n_workers;
    for (uint32_t i = 0; i < o->n_workers; i++)
        supervisor_init_worker(&b->workers[i], i, o->worker_models[i], o->worker_devices[i]);
    for (uint32_t i = 0; i < o->n_workers; i++)
        b->workers[i].device_share = broker_device_share(b, o->worker_devices[i]);
    store_open(b->workers, b->n_workers, o->host_store_bytes, b->boot_id, b->store_secret);
    b->supervision = (struct supervisor_options){ .program = o->worker_program,
                                                  .model_paths = o->model_paths,
                                                  .threads = o->threads,
                                                  .kv_bytes = o->kv_bytes,
                                                  .kv_bytes_given = o->kv_bytes_given,
                                                  .fast_prefill = o->fast_prefill,
                                                  .core_dumps = o->core_dumps,
                                                  .start_ns_max = o->start_ms * ms_ns,
                                                  .hang_ns_max = o->hang_ms * ms_ns,
                                                  .boot_id = b->boot_id,
                                                  .log_level = o->log_level_name };
}

static enum status open_tcp(struct broker *b, const struct options *o, struct error *err)
{
    struct curve_pair pair;
    enum status st = curve_pair_load(o->curve_key, &pair, err);

    if (st == ST_NOT_FOUND) {
        st = curve_pair_make(o->curve_key, NULL, NULL, &pair, err);
        if (st == ST_OK)
            log_info("curve_key_made", "file=%s", o->curve_key);
    }
    if (st != ST_OK)
        return st;
    if (o->tcp_connections_lowered)
        log_warn("tcp_connections_lowered", "tcp_connections_max=%" PRIu32 " reason=limit_of_descriptors", o->tcp_connections_max);
    st = tcp_door_open(b->endpoint.context, o->tcp, &pair, o->tcp_connections_max, &b->endpoint.tcp, err);
    curve_pair_forget(&pair);
    return st;
}

/* "auto" and "cuda" mean the first GPU. */
static const char *device_key(const char *device)
{
    return strcmp(device, "auto") == 0 || strcmp(device, "cuda") == 0 ? "cuda:0" : device;
}

uint32_t broker_device_share(const struct broker *b, const char *device)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < b->n_workers; i++)
        n += b->workers[i].order != ORDER_GONE && strcmp(device_key(b->workers[i].device), device_key(device)) == 0;
    return n > 0 ? n : 1;
}

enum status broker_new(const struct options *options, struct broker **ret_broker, struct error *err)
{
    struct broker *b = calloc(1, sizeof(*b));
    enum status st = ST_NOMEM;

    error_set(err, ERR_INTERNAL, "", "cannot start");
    if (b == NULL)
        return st;
    b->options = options;
    b->watchdog_ms = notify_watchdog_ms();
    b->signals = -1;
    b->endpoint.lock = -1;
    b->now_ns = b->started_ns = b->messages_since_ns = clock_now_ns();
    clients_init(&b->clients);
    st = draw_secrets(b);
    if (st == ST_OK)
        st = open_signals(b);
    if (st == ST_OK)
        st = identity_open(options->users_file, &b->identity, err);
    if (st == ST_OK)
        st = requests_init(&b->requests);
    if (st == ST_OK)
        st = keys_new(&b->keys);
    if (st == ST_OK)
        st = fair_queue_new(REQUESTS_MAX, ACCOUNTS_MAX, options->n_models, &b->queue);
    if (st == ST_OK)
        st = router_new(WORKERS_MAX, &b->router); /* more may be added by hand */
    if (st == ST_OK)
        st = endpoint_open(options->endpoint, options->runtime_dir, &b->endpoint, err);
    if (st == ST_OK && options->tcp != NULL)
        st = open_tcp(b, options, err);
    if (st == ST_OK && options->metrics_port != 0)
        st = metrics_new(options->metrics_address, options->metrics_port, &b->metrics, err);
    if (st == ST_OK) {
        b->devices = devices_new();
        set_models_and_workers(b, options);
        *ret_broker = b;
        b = NULL;
    }
    broker_free(b);
    return st;
}

void broker_free(struct broker *b)
{
    struct supervisor_end end;

    if (b == NULL)
        return;
    for (uint32_t i = 0; i < b->n_workers; i++) {
        struct worker *w = &b->workers[i];

        supervisor_kill(w, KILL_SHUTDOWN);
        for (int ms = 0; w->pidfd >= 0 && !supervisor_reap(w, &end) && ms < REAP_MS_MAX; ms++)
            usleep(1000); /* one that hangs in a device's driver ends when the driver lets it: nobody waits for that */
        worker_link_close(&w->link);
    }
    store_close(b->workers, b->n_workers);
    metrics_free(b->metrics);
    devices_free(b->devices);
    endpoint_close(&b->endpoint);
    for (uint32_t i = 0; i < b->n_late; i++)
        free(b->late[(b->late_first + i) % LATE_REPLIES_MAX].at);
    wire_buffer_deinit(&b->out);
    router_free(b->router);
    fair_queue_free(b->queue);
    requests_deinit(&b->requests);
    keys_free(b->keys);
    identity_close(&b->identity);
    if (b->signals >= 0)
        close(b->signals);
    free(b);
}

void broker_check(const struct broker *b)
{
    uint32_t n_live[ACCOUNTS_MAX] = { 0 }, n_running[ACCOUNTS_MAX] = { 0 };

    fair_queue_check(b->queue);
    requests_check(&b->requests, &b->clients);
    keys_check(b->keys);
    sessions_check(&b->sessions);
    for (uint32_t i = 0; i < b->n_workers; i++)
        if (b->workers[i].link.open)
            worker_link_check(&b->workers[i].link);
    for (uint32_t i = 0; i < REQUESTS_MAX; i++) {
        const struct request *r = &b->requests.list[i];

        if (r->phase == REQUEST_FREE)
            continue;
        n_live[r->account]++;
        n_running[r->account] += request_in_worker(r);
        assert(!r->paused || request_in_worker(r));
        assert(r->key == NO_KEY || keys_request(b->keys, (uint32_t)r->key) == i);
        assert((r->phase == REQUEST_QUEUED) == fair_queue_holds(b->queue, i));
        if (request_in_worker(r))
            assert(b->workers[r->worker].link.slots[r->slot].request == i);
    }
    for (uint32_t i = 0; i < ACCOUNTS_MAX; i++) {
        assert(n_live[i] == b->accounts.list[i].n_live);
        assert(n_running[i] == b->accounts.list[i].n_running);
    }
}

/* --- signals and stopping --------------------------------------------------------------------- */

static void look_at_users(struct broker *b, bool must)
{
    if (identity_look(&b->identity, b->now_ns, must))
        intake_users_changed(b);
}

static void end_all(struct broker *b, bool queued_only)
{
    struct error e;

    error_set(&e, ERR_SHUTTING_DOWN, "", "the broker is stopping");
    for (uint32_t i = 0; i < REQUESTS_MAX; i++) {
        const struct request *r = &b->requests.list[i];

        if (r->phase == REQUEST_FREE || r->end != END_NONE)
            continue;
        if (queued_only && (r->phase != REQUEST_QUEUED || r->takeovers > 0))
            continue; /* one whose worker died is running, as its client sees it */
        ending_error(b, i, &e, 1000);
    }
}

static void on_stop_signal(struct broker *b)
{
    if (b->state == BROKER_RUNNING) {
        b->state = BROKER_DRAINING;
        b->stop_due_ns = b->now_ns + b->options->drain_ms * ms_ns;
        end_all(b, true);
        (void)notify_send("STOPPING=1");
        log_info("drain", "requests=%" PRIu32 " ms=%" PRIu64, b->requests.n_live, b->options->drain_ms);
    } else {
        b->stop_due_ns = b->now_ns;
    }
}

static void take_signals(struct broker *b)
{
    struct signalfd_siginfo info;

    while (read(b->signals, &info, sizeof(info)) == sizeof(info)) {
        if (info.ssi_signo == SIGHUP)
            look_at_users(b, true);
        else
            on_stop_signal(b);
    }
}

/* What is left gets its error and a moment to leave; then the loop ends. */
static bool time_to_leave(struct broker *b)
{
    if (b->state == BROKER_DRAINING && (b->requests.n_live == 0 || b->now_ns >= b->stop_due_ns)) {
        b->state = BROKER_STOPPING;
        b->stop_due_ns = b->now_ns + FAREWELL_MS * ms_ns;
        end_all(b, false);
        delivery_flush(b);
        for (uint32_t i = 0; i < b->n_workers; i++)
            if (b->workers[i].state == WORKER_READY)
                supervisor_drain(&b->workers[i], b->now_ns);
    }
    if (b->state != BROKER_STOPPING)
        return false;
    for (uint32_t i = 0; i < b->n_workers; i++)
        if (b->workers[i].state == WORKER_LEAVING && b->now_ns < b->stop_due_ns)
            return false;
    return b->now_ns >= b->stop_due_ns || b->requests.n_live == 0;
}

/* --- by the clock ----------------------------------------------------------------------------- */

static void check_deadlines(struct broker *b)
{
    for (uint32_t i = 0; b->requests.n_live > 0 && i < REQUESTS_MAX; i++) {
        const struct request *r = &b->requests.list[i];

        if (r->phase != REQUEST_FREE && r->end == END_NONE && r->deadline_ns != 0 && r->deadline_ns <= b->now_ns)
            ending_errorf(b, i, ERR_DEADLINE_EXCEEDED, "deadline_ms", "not done within %" PRIu64 " ms (%s)",
                          (r->deadline_ns - r->arrived_ns) / ms_ns, r->phase == REQUEST_QUEUED ? "queued" : "running");
        else if (r->phase != REQUEST_FREE && r->end == END_NONE && r->orphaned_ns != 0 &&
                 b->now_ns - r->orphaned_ns > KEYS_ORPHAN_MS * ms_ns)
            ending_errorf(b, i, ERR_CANCELLED, "", "the client has left and did not come back with its idempotency key");
    }
}

static uint32_t n_active(const struct broker *b, const struct worker *w)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < REGION_SLOTS; i++)
        if (w->link.slots[i].request != LINK_NO_REQUEST)
            n += !b->requests.list[w->link.slots[i].request].paused;
    return n;
}

static void supervise(struct broker *b, struct worker *w)
{
    struct supervisor_pulse pulse = { 0 };
    char reason[2 * ERROR_MESSAGE_BYTES];

    if (w->state == WORKER_READY) {
        struct worker_stats s;

        worker_link_stats(&w->link, &s);
        pulse = (struct supervisor_pulse){ n_active(b, w), s.heartbeat_ns, s.step_began_ns };
    }
    w->silent_ns = w->state == WORKER_READY ? supervisor_silence_ns(w, &pulse, b->now_ns) : 0;
    switch (supervisor_advise(w, &pulse, &b->supervision, b->now_ns)) {
    case ADVICE_NONE:
        break;
    case ADVICE_START:
        if (b->state != BROKER_STOPPING && supervisor_start(w, &b->supervision, b->now_ns) != ST_OK)
            log_error("worker_not_started", "slot=%" PRIu32 " reason=%s", w->slot, log_quote(reason, sizeof(reason), w->error));
        break;
    case ADVICE_START_TIMEOUT:
        supervisor_kill(w, KILL_START_TIMEOUT);
        break;
    case ADVICE_HANG:
        log_error("worker_hangs", "slot=%" PRIu32 " life=%" PRIu32, w->slot, w->life);
        supervisor_kill(w, KILL_HANG);
        break;
    }
}

/* Requests of a model none of whose workers can start. */
static void fail_hopeless(struct broker *b)
{
    for (uint32_t m = 0; m < b->n_models; m++) {
        const char *why = "";

        if (dispatch_has_hope(b, m, &why))
            continue;
        for (uint32_t i = 0; i < REQUESTS_MAX; i++)
            if (b->requests.list[i].phase == REQUEST_QUEUED && b->requests.list[i].model == m)
                ending_errorf(b, i, ERR_NO_WORKER, "", "no worker of model %s can start: %s", b->models[m].name, why);
    }
}

/* No worker has ever been ready, and none of them can start: there is nothing to serve, and nothing to wait for. */
static bool nothing_to_serve(const struct broker *b)
{
    if (!b->options->give_up || b->said_ready || b->state != BROKER_RUNNING)
        return false;
    for (uint32_t i = 0; i < b->n_workers; i++)
        if (b->workers[i].order != ORDER_RUN || b->workers[i].failed_starts < SUPERVISOR_HOPELESS)
            return false;
    for (uint32_t i = 0; i < b->n_workers; i++)
        fprintf(stderr, "weir-broker: model %s cannot be loaded (%s): %s\n", b->models[b->workers[i].model].name,
                b->models[b->workers[i].model].path, b->workers[i].error);
    return true;
}

static bool quiet(const struct broker *b)
{
    if (b->state != BROKER_RUNNING || b->requests.n_live > 0 || b->n_late > 0)
        return false;
    for (uint32_t i = 0; i < b->n_workers; i++)
        if (b->workers[i].state != WORKER_STOPPED && (b->workers[i].state != WORKER_READY || b->workers[i].order >= ORDER_DRAIN))
            return false;
    return true;
}

static void publish_metrics(struct broker *b)
{
    struct metrics_health health = { .at_ns = b->now_ns };
    char *page;
    size_t n;

    if (b->metrics == NULL || b->now_ns < b->metrics_due_ns)
        return;
    b->metrics_due_ns = b->now_ns + METRICS_MS * ms_ns;
    metrics_page(b, &page, &n);
    health.ready = metrics_ready(b, &health.why);
    metrics_publish(b->metrics, page, n, &health);
}

/* Sessions whose time is over, and workers that keep blocks in vain. */
static void end_sessions(struct broker *b)
{
    int at;

    sessions_expire(&b->sessions, b->now_ns);
    for (uint32_t i = 0; b->sessions.n > 0 && i < b->n_workers; i++) {
        struct worker *w = &b->workers[i];

        while (w->state == WORKER_READY && w->killed == KILL_NONE && (at = sessions_to_tell(&b->sessions, i)) != SESSION_NONE) {
            enum status st = worker_link_session_end(&w->link, b->sessions.list[at].number);
            if (st == ST_CORRUPT)
                supervisor_kill(w, KILL_BROKEN_RULE);
            if (st != ST_OK)
                break; /* the ring is full: in the next tick */
            sessions_told(&b->sessions, at, i);
        }
    }
}

static void tick(struct broker *b)
{
    if (b->now_ns < b->tick_due_ns)
        return;
    for (uint32_t i = 0; i < b->n_workers && b->now_ns - b->tick_due_ns > OVERSLEPT_MS * ms_ns; i++)
        supervisor_excuse(&b->workers[i], b->now_ns);
    b->tick_due_ns = b->now_ns + TICK_MS * ms_ns;
    look_at_users(b, false);
    check_deadlines(b);
    keys_expire(b->keys, b->now_ns);
    end_sessions(b);
    dispatch_wake(b);
    dispatch_release(b);
    for (uint32_t i = 0; i < b->n_workers; i++) {
        supervisor_obey(&b->workers[i], b->now_ns);
        supervise(b, &b->workers[i]);
    }
    fail_hopeless(b);
    delivery_tick(b);
    descriptors_tell(b->now_ns);
    publish_metrics(b);
    if (b->watchdog_ms > 0 && b->now_ns >= b->watchdog_due_ns) {
        b->watchdog_due_ns = b->now_ns + b->watchdog_ms * ms_ns;
        (void)notify_send("WATCHDOG=1");
    }
}

/* --- the loop --------------------------------------------------------------------------------- */

static void take_events(struct broker *b)
{
    for (uint32_t i = 0; i < b->n_workers; i++) {
        struct worker *w = &b->workers[i];

        if (!w->link.open || w->killed == KILL_BROKEN_RULE)
            continue;
        if (events_take(b, w, PASS_EVENTS) == ST_CORRUPT)
            supervisor_kill(w, KILL_BROKEN_RULE);
    }
}

static void say_ready(struct broker *b)
{
    char models[1024] = "", line[2048];
    size_t n = 0;
    bool ready = false;

    for (uint32_t i = 0; i < b->n_workers; i++)
        ready = ready || b->workers[i].state == WORKER_READY;
    if (!ready || b->said_ready)
        return;
    b->said_ready = true;
    (void)notify_send("READY=1");
    for (uint32_t i = 0; i < b->n_models && n < sizeof(models); i++)
        n += (size_t)snprintf(models + n, sizeof(models) - n, "%s%s", i > 0 ? "," : "", b->models[i].name);
    snprintf(line, sizeof(line), "endpoint=%.200s%s%s models=%s workers=%" PRIu32, b->options->endpoint,
             b->endpoint.tcp != NULL ? " tcp=" : "", b->endpoint.tcp != NULL ? tcp_door_uri(b->endpoint.tcp) : "", models, b->n_workers);
    log_info("ready", "%s", line);
    if (b->options->ready_fd >= 0) {
        if (dprintf(b->options->ready_fd, "ready %s\n", line) < 0)
            log_warn("ready_fd", "errno=%d", errno);
        close(b->options->ready_fd);
    }
}

/* Fill the list of what to wait for.  Gives its length; *ret_busy: something is there already. */
static int arm(struct broker *b, zmq_pollitem_t items[POLL_ITEMS_MAX], bool *ret_busy)
{
    uint8_t slot[RING_SLOT_BYTES];
    const struct tcp_door *tcp = b->endpoint.tcp;
    int n = POLL_WORKERS;

    for (int i = POLL_TCP; i < POLL_WORKERS; i++)
        items[i] = (zmq_pollitem_t){ .fd = -1 };
    if (tcp != NULL) {
        items[POLL_TCP] = (zmq_pollitem_t){ .socket = tcp_door_socket(tcp), .events = ZMQ_POLLIN };
        items[POLL_ZAP] = (zmq_pollitem_t){ .socket = tcp_door_zap(tcp), .events = ZMQ_POLLIN };
        items[POLL_MONITOR] = (zmq_pollitem_t){ .socket = tcp_door_monitor(tcp), .events = ZMQ_POLLIN };
    }
    items[POLL_SOCKET] = (zmq_pollitem_t){ .socket = b->endpoint.socket, .events = ZMQ_POLLIN };
    items[POLL_SIGNALS] = (zmq_pollitem_t){ .fd = b->signals, .events = ZMQ_POLLIN };
    *ret_busy = b->requests.dirty_first != NO_REQUEST || b->more_to_dispatch;
    for (uint32_t i = 0; i < b->n_workers; i++) {
        struct worker *w = &b->workers[i];

        if (w->pidfd >= 0)
            items[n++] = (zmq_pollitem_t){ .fd = w->pidfd, .events = ZMQ_POLLIN };
        if (!w->link.open || w->killed == KILL_BROKEN_RULE)
            continue;
        doorbell_sleep_begin(&w->link.region.event_bell);
        if (ring_peek(&w->link.region.events, slot) != ST_AGAIN)
            *ret_busy = true;
        items[n++] = (zmq_pollitem_t){ .fd = w->link.region.event_bell.fd, .events = ZMQ_POLLIN };
    }
    return n;
}

static void wait_for_something(struct broker *b)
{
    zmq_pollitem_t items[POLL_ITEMS_MAX];
    bool busy;
    int n = arm(b, items, &busy);
    uint64_t due_ns = b->tick_due_ns + (quiet(b) ? (TICK_IDLE_MS - TICK_MS) * ms_ns : 0);
    uint64_t now_ns = clock_now_ns();
    bool was_empty = b->messages_since_ns >= b->now_ns; /* else what is left over from the last pass waits on */
    long timeout_ms = busy || due_ns <= now_ns ? 0 : (long)((due_ns - now_ns + ms_ns - 1) / ms_ns);

    if (zmq_poll(items, n, timeout_ms) < 0 && errno != EINTR)
        log_error("poll_failed", "errno=%d", errno);
    for (uint32_t i = 0; i < b->n_workers; i++)
        if (b->workers[i].link.open && b->workers[i].killed != KILL_BROKEN_RULE)
            doorbell_sleep_end(&b->workers[i].link.region.event_bell);
    b->now_ns = clock_now_ns();
    if (was_empty && timeout_ms > 0 && b->now_ns - now_ns > ASLEEP_US * UINT64_C(1000))
        b->messages_since_ns = b->now_ns; /* a message that was there before would have kept it from sleeping */
}

int broker_run(struct broker *b)
{
    log_info("start", "endpoint=%s workers=%" PRIu32 " threads=%" PRIu32 " kv_bytes=%" PRIu64, b->options->endpoint, b->n_workers,
             b->options->threads, b->options->kv_bytes);
    while (!time_to_leave(b)) {
        wait_for_something(b);
        take_signals(b);
        if (b->endpoint.tcp != NULL)
            tcp_door_serve(b->endpoint.tcp, PASS_HANDSHAKES, intake_judge_key, b, b->now_ns);
        intake_receive(b);
        take_events(b);
        for (uint32_t i = 0; i < b->n_workers; i++)
            death_look(b, &b->workers[i]);
        tick(b);
        say_ready(b);
        dispatch_queued(b);
        delivery_flush(b);
        if (b->options->self_check)
            broker_check(b);
        if (nothing_to_serve(b)) {
            log_error("nothing_to_serve", "workers=%" PRIu32, b->n_workers);
            return 1;
        }
    }
    log_info("stop", "accepted=%" PRIu64 " done=%" PRIu64 " failed=%" PRIu64 " cancelled=%" PRIu64, b->totals.accepted,
             b->totals.done, b->totals.failed, b->totals.cancelled);
    return 0;
}
