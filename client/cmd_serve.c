/* cmd_serve.c - `weir serve`: a whole pool in the foreground, for a container or a quick try.
 *
 * It starts weir-broker and weir-gateway and does nothing else: no restarts (systemd or the container's owner do that, and see the exit
 * code), no logs of its own.  If one of the two ends, so does the other.  As process 1 of a container, or as their nearest ancestor that
 * asks for it, it also reaps what its children leave behind. */
#include "commands.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "config.h"
#include "limits.h"
#include "paths.h"
#include "serve_child.h"

enum { GATEWAY_STOP_MS = 15000, BROKER_STOP_MS = 60000, KILL_WAIT_MS = 5000, LIST_MAX = 16 };

static const struct config_key keys[] = {
    {.name = "model",
     .type = CONFIG_LIST,
     .value = "[NAME=]FILE",
     .help = "serve this GGUF file; the first is the default"},
    {.name = "workers",
     .type = CONFIG_U64,
     .value = "N",
     .help = "worker processes (default: one a model)",
     .min = 1,
     .max = WORKERS_MAX},
    {.name = "device", .type = CONFIG_LIST, .value = "DEVICE", .help = "auto, cpu or cuda:K"},
    {.name = "threads",
     .type = CONFIG_U64,
     .value = "N",
     .help = "CPU threads of a worker (default: the usable ones, shared)",
     .min = 1,
     .max = 1024},
    {.name = "kv-bytes",
     .type = CONFIG_BYTES,
     .value = "BYTES",
     .help = "KV cache of a worker (default: see weir-broker --help)",
     .min = 1 << 20,
     .max = 1e15},
    {.name = "fast-prefill",
     .type = CONFIG_BOOL,
     .help = "on GPUs: prompts by cuBLASLt, faster, in an arithmetic of its own"},
    {.name = "core-dumps",
     .type = CONFIG_BOOL,
     .help = "a worker that crashes leaves a core dump; the prompts it had are in it"},
    {.name = "host-store-bytes",
     .type = CONFIG_BYTES,
     .value = "BYTES",
     .help = "shared memory for KV blocks that left a cache, of all workers; 0: none",
     .max = 1e15},
    {.name = "idle-release",
     .type = CONFIG_MS,
     .value = "TIME",
     .help = "a worker without requests for so long gives its memory back until the next one (default: never)",
     .max = 365 * 86400e3},
    {.name = "ssh",
     .type = CONFIG_BOOL,
     .fallback = "yes",
     .help = "start the ssh gateway (--no-ssh: only the broker)"},
    {.name = "ssh-port",
     .type = CONFIG_U64,
     .fallback = "2222",
     .value = "PORT",
     .help = "of the ssh gateway; 0: a free one",
     .max = 65535},
    {.name = "listen",
     .type = CONFIG_LIST,
     .value = "ADDRESS",
     .help = "of the ssh gateway (default: all)"},
    {.name = "tcp",
     .type = CONFIG_STRING,
     .value = "ENDPOINT",
     .help = "also serve clients of other machines at tcp://ADDRESS:PORT, with CURVE (`weir key`)"},
    {.name = "metrics-port",
     .type = CONFIG_U64,
     .value = "PORT",
     .help = "of the broker's /metrics (default: none)",
     .min = 1,
     .max = 65535},
    {.name = "gateway-metrics-port",
     .type = CONFIG_U64,
     .fallback = "0",
     .value = "PORT",
     .help = "of the gateway's /metrics; 0: none",
     .max = 65535},
    {.name = "metrics-address",
     .type = CONFIG_STRING,
     .value = "ADDRESS",
     .help = "of both (default: 127.0.0.1)"},
    {.name = "state-dir", .type = CONFIG_STRING, .value = "DIR", .help = "jobs, users, host keys"},
    {.name = "runtime-dir", .type = CONFIG_STRING, .value = "DIR", .help = "the broker's socket"},
    {.name = "log-level", .type = CONFIG_STRING, .value = "LEVEL", .help = "error, warn, info or debug"},
};
enum { N_KEYS = sizeof(keys) / sizeof(keys[0]) };

struct server {
    struct config *config;
    struct serve_child broker, gateway;
    char state_dir[PATHS_BYTES], runtime_dir[PATHS_BYTES], users_file[PATHS_BYTES + 8],
        curve_key[PATHS_BYTES + 16], idle_release[32];
    int signals;
    bool with_ssh, announced, on_terminal;
    enum exit_code code;
};

/* --- what the children are told ---------------------------------------------------------------- */

static void pass_text(struct serve_child *c, const struct config *config, const char *key, const char *flag)
{
    if (config_string(config, key) != NULL)
        serve_child_add(c, flag, config_string(config, key));
}

static void pass_number(struct serve_child *c, const struct config *config, const char *key, const char *flag)
{
    if (config_is_set(config, key))
        serve_child_add_number(c, flag, config_u64(config, key));
}

static void pass_list(struct serve_child *c, const struct config *config, const char *key, const char *flag)
{
    const char *const *items;
    size_t n = config_list(config, key, &items);

    for (size_t i = 0; i < n; i++)
        serve_child_add(c, flag, items[i]);
}

static void prepare_children(struct server *s)
{
    const struct config *c = s->config;

    serve_child_init(&s->broker, "weir-broker");
    pass_list(&s->broker, c, "model", "--model");
    pass_number(&s->broker, c, "workers", "--workers");
    pass_list(&s->broker, c, "device", "--device");
    pass_number(&s->broker, c, "threads", "--threads");
    pass_number(&s->broker, c, "kv-bytes", "--kv-bytes");
    if (config_bool(c, "core-dumps"))
        serve_child_add(&s->broker, "--core-dumps", NULL);
    if (config_bool(c, "fast-prefill"))
        serve_child_add(&s->broker, "--fast-prefill", NULL);
    pass_number(&s->broker, c, "host-store-bytes", "--host-store-bytes");
    pass_number(&s->broker, c, "metrics-port", "--metrics-port");
    pass_text(&s->broker, c, "metrics-address", "--metrics-address");
    pass_text(&s->broker, c, "log-level", "--log-level");
    serve_child_add(&s->broker, "--give-up", NULL);
    serve_child_add(&s->broker, "--runtime-dir", s->runtime_dir);
    serve_child_add(&s->broker, "--users-file", s->users_file);
    if (config_is_set(c, "idle-release")) {
        snprintf(s->idle_release, sizeof(s->idle_release), "%" PRIu64 "ms", config_u64(c, "idle-release"));
        serve_child_add(&s->broker, "--idle-release", s->idle_release);
    }
    pass_text(&s->broker, c, "tcp", "--tcp");
    serve_child_add(&s->broker, "--curve-key", s->curve_key);

    serve_child_init(&s->gateway, "weir-gateway");
    serve_child_add_number(&s->gateway, "--ssh-port", config_u64(c, "ssh-port"));
    pass_list(&s->gateway, c, "listen", "--listen");
    /* always: WEIR_METRICS_PORT in our environment is the broker's */
    serve_child_add_number(&s->gateway, "--metrics-port", config_u64(c, "gateway-metrics-port"));
    pass_text(&s->gateway, c, "metrics-address", "--metrics-address");
    pass_text(&s->gateway, c, "log-level", "--log-level");
    serve_child_add(&s->gateway, "--runtime-dir", s->runtime_dir);
    serve_child_add(&s->gateway, "--state-dir", s->state_dir);
}

/* The folder that was asked for, made absolute (our children might look from elsewhere), else the usual one. */
static enum status find_place(const char *given, enum status (*usual)(char *, struct error *), char *ret_path,
                              struct error *err)
{
    char path[PATHS_BYTES];

    if (given == NULL) {
        enum status st = usual(path, err);
        if (st != ST_OK)
            return st;
        given = path;
    }
    return paths_absolute(given, ret_path, err);
}

static bool find_places(struct server *s)
{
    struct error err;
    enum status st =
        find_place(config_string(s->config, "state-dir"), paths_state_dir, s->state_dir, &err);

    if (st == ST_OK)
        st = find_place(config_string(s->config, "runtime-dir"), paths_runtime_dir, s->runtime_dir, &err);
    if (st != ST_OK)
        return command_usage("serve", "%s", err.message), false;
    snprintf(s->users_file, sizeof(s->users_file), "%s/users", s->state_dir);
    snprintf(s->curve_key, sizeof(s->curve_key), "%s/curve.key", s->state_dir);
    return true;
}

/* --- before anything is started ---------------------------------------------------------------- */

static void explain_taken_port(unsigned port, int problem)
{
    if (problem == EADDRINUSE)
        fprintf(stderr,
                "weir serve: port %u is taken by another program (perhaps another pool: `ss -ltnp 'sport = "
                ":%u'` tells).\n"
                "Choose another with --ssh-port PORT, let the system choose with --ssh-port 0, or go without "
                "ssh: --no-ssh.\n",
                port, port);
    else
        fprintf(stderr, "weir serve: cannot listen on port %u: %s.%s\n", port, strerror(problem),
                problem == EACCES ? "  Ports below 1024 need root; choose another with --ssh-port." : "");
}

/* Can the port be had?  The gateway would find out too, but only after the broker has begun to load a model. */
static bool port_is_free(const struct config *c)
{
    const char *const *addresses;
    struct sockaddr_in6 any = {.sin6_family = AF_INET6,
                               .sin6_port = htons((uint16_t)config_u64(c, "ssh-port"))};

    if (config_u64(c, "ssh-port") == 0 || config_list(c, "listen", &addresses) > 0)
        return true; /* the gateway judges addresses */
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return true; /* no IPv6 here: the gateway will see */
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    int problem = bind(fd, (struct sockaddr *)&any, sizeof(any)) == 0 && listen(fd, 1) == 0 ? 0 : errno;
    close(fd);
    if (problem == 0)
        return true;
    explain_taken_port((unsigned)config_u64(c, "ssh-port"), problem);
    return false;
}

/* --- ready ------------------------------------------------------------------------------------- */

static void explain_first_steps(const struct server *s)
{
    unsigned port = 0;
    struct error err;
    char usual[PATHS_BYTES] = "";
    bool same = paths_runtime_dir(usual, &err) == ST_OK && strcmp(usual, s->runtime_dir) == 0;

    fprintf(stderr, "Try, on this machine:  weir %s%s%s'The sea is'\n",
            same ? "generate " : "generate --connect ipc://", same ? "" : s->runtime_dir,
            same ? "" : "/" PATHS_BROKER_SOCKET " ");
    if (!s->with_ssh || access(s->users_file, F_OK) == 0 ||
        sscanf(s->gateway.line, "ssh_port=%u", &port) != 1)
        return;
    fprintf(stderr,
            "Nobody may log in by ssh yet:  weir user add NAME --key ~/.ssh/id_ed25519.pub --state-dir %s\n"
            "and then, from anywhere:       ssh -p %u NAME@HOST help\n",
            s->state_dir, port);
}

static void announce(struct server *s)
{
    if (s->announced || !s->broker.ready || (s->with_ssh && !s->gateway.ready))
        return;
    s->announced = true;
    printf("ready %s%s%s\n", s->broker.line, s->with_ssh ? " " : "", s->with_ssh ? s->gateway.line : "");
    fflush(stdout);
    if (s->on_terminal)
        explain_first_steps(s);
}

/* --- the loop ---------------------------------------------------------------------------------- */

static void reap(struct server *s)
{
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        if (!serve_child_reaped(&s->broker, pid, status))
            serve_child_reaped(&s->gateway, pid, status);
}

/* Wait for something, at most timeout_ms.  Gives a signal that asks us to stop, else 0. */
static int wait_for_event(struct server *s, int timeout_ms)
{
    struct signalfd_siginfo info;
    struct pollfd p[3] = {
        {.fd = s->signals, .events = POLLIN},
        {.fd = s->broker.ready_fd, .events = POLLIN},
        {.fd = s->gateway.ready_fd, .events = POLLIN},
    };
    int stop = 0;

    poll(p, 3, timeout_ms);
    while (read(s->signals, &info, sizeof(info)) == sizeof(info)) {
        if (info.ssi_signo == SIGINT || info.ssi_signo == SIGTERM ||
            (info.ssi_signo == SIGHUP && s->on_terminal))
            stop = (int)info.ssi_signo;
        else if (info.ssi_signo == SIGHUP)
            serve_child_signal(&s->broker, SIGHUP); /* it reads the users file again */
    }
    bool heard = serve_child_hear(&s->broker);
    heard = serve_child_hear(&s->gateway) || heard;
    if (heard)
        announce(s);
    reap(s);
    return stop;
}

/* Ask c to end, wait, then insist.  A second signal to us means: now. */
static void stop_child(struct server *s, struct serve_child *c, int limit_ms, bool *insist)
{
    uint64_t until = clock_now_ns() + (uint64_t)limit_ms * 1000000;

    serve_child_signal(c, SIGTERM);
    while (c->pid > 0 && clock_now_ns() < until && !*insist)
        *insist = wait_for_event(s, 200) != 0;
    if (c->pid > 0) {
        fprintf(stderr, "weir serve: %s does not end; killing it\n", c->name);
        serve_child_signal(c, SIGKILL);
        until = clock_now_ns() + KILL_WAIT_MS * 1000000ull;
        while (c->pid > 0 && clock_now_ns() < until)
            (void)wait_for_event(s, 200);
    }
}

static void stop_all(struct server *s)
{
    bool insist = false;

    stop_child(s, &s->gateway, GATEWAY_STOP_MS, &insist); /* first who asks, then who answers */
    stop_child(s, &s->broker, BROKER_STOP_MS, &insist);
}

static void report_end(struct server *s, const struct serve_child *c)
{
    char fate[64];

    if (!c->ended)
        return;
    fprintf(stderr, "weir serve: %s %s; stopping\n", c->name, serve_child_fate(c, fate));
    s->code = EXIT_FAILED;
}

static void run(struct server *s)
{
    if (!serve_child_start(&s->broker) || (s->with_ssh && !serve_child_start(&s->gateway))) {
        s->code = EXIT_FAILED;
    } else {
        while (!s->broker.ended && !s->gateway.ended)
            if (wait_for_event(s, -1) != 0)
                break;
        report_end(s, &s->broker);
        report_end(s, &s->gateway);
    }
    stop_all(s);
}

static int open_signals(void)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGCHLD, SIG_DFL); /* inherited as ignored, it would hide the ends of our children */
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

static enum exit_code serve(struct server *s)
{
    const char *const *models;
    struct error err;
    static const char *const lists[] = { "model", "device", "listen" };

    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
        if (config_list(s->config, lists[i], &models) > LIST_MAX)
            return command_usage("serve", "--%s is given more than %d times", lists[i], LIST_MAX);
    if (config_n_args(s->config) > 0)
        return command_usage("serve", "it takes options only, but there is \"%s\"", config_arg(s->config, 0));
    if (config_list(s->config, "model", &models) == 0)
        return command_usage("serve", "which model?  --model FILE names a GGUF file");
    s->with_ssh = config_bool(s->config, "ssh");
    s->on_terminal = isatty(STDERR_FILENO);
    if (!find_places(s))
        return EXIT_USAGE;
    if (s->with_ssh && !port_is_free(s->config))
        return EXIT_FAILED;
    if (config_string(s->config, "tcp") != NULL && paths_make_private(s->state_dir, 0750, &err) != ST_OK)
        return command_usage("serve", "%s", err.message);
    prepare_children(s);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    s->signals = open_signals();
    run(s);
    close(s->signals);
    return s->code;
}

/* The file of --config has sections for our children and for the workers, too: they find it by the variable. */
static void share_config_file(int argc, char **argv)
{
    for (int i = 0; i < argc; i++) {
        if (strncmp(argv[i], "--config=", 9) == 0)
            setenv("WEIR_CONFIG", argv[i] + 9, 1);
        else if (strcmp(argv[i], "--config") == 0 && i + 1 < argc)
            setenv("WEIR_CONFIG", argv[i + 1], 1);
    }
}

int cmd_serve(int argc, char **argv)
{
    static struct server s = {.broker = {.ready_fd = -1}, .gateway = {.ready_fd = -1}};
    struct error err;

    /* config_load() skips the first word, which is the verb */
    if (config_load(keys, N_KEYS, "serve", argc + 1, argv - 1, &s.config, &err) != ST_OK)
        return command_usage("serve", "%s", err.message);
    if (config_help_wanted(s.config)) {
        config_print_help(stdout, "weir serve [OPTIONS] --model FILE",
                          "Starts weir-broker and weir-gateway in the foreground.", keys, N_KEYS);
        config_free(s.config);
        return EXIT_DONE;
    }
    share_config_file(argc, argv);
    enum exit_code code = serve(&s);
    config_free(s.config);
    return code;
}
