/* main.c - weir-gateway: one program, four kinds of process, and `user` and `check` for the administrator.
 *
 * (b), (c) and (d) are started by (a) with an argument that nobody types; they are the same file (/proc/self/exe), so that the two ends of
 * a door never differ in version.  See gateway.h for the picture. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "gateway.h"
#include "log.h"
#include "version.h"

const struct config_key gateway_keys[] = {
    { .name = "ssh-port",
      .type = CONFIG_U64,
      .fallback = "2222",
      .value = "PORT",
      .max = 65535,
      .help = "TCP port of the ssh server; 0 takes a free one and says which" },
    { .name = "listen",
      .type = CONFIG_LIST,
      .value = "ADDRESS",
      .help = "address to listen on (default: all, IPv6 and IPv4)" },
    { .name = "state-dir",
      .type = CONFIG_STRING,
      .value = "DIR",
      .help = "folder of jobs, users and host keys" },
    { .name = "runtime-dir", .type = CONFIG_STRING, .value = "DIR", .help = "folder of the broker's socket" },
    { .name = "connect",
      .type = CONFIG_STRING,
      .value = "ENDPOINT",
      .help = "the broker, where it is not in the runtime folder" },
    { .name = "key", .type = CONFIG_STRING, .value = "FILE", .help = "`user add`: a public key file" },
    { .name = "metrics-port",
      .type = CONFIG_U64,
      .fallback = "0",
      .value = "PORT",
      .max = 65535,
      .help = "serve numbers for Prometheus at http://METRICS-ADDRESS:PORT/metrics, and /healthz, /readyz; 0: do not" },
    { .name = "metrics-address",
      .type = CONFIG_STRING,
      .fallback = "127.0.0.1",
      .value = "ADDRESS",
      .help = "IPv4 or IPv6 address for it" },
    { .name = "pending",
      .type = CONFIG_STRING,
      .value = "FINGERPRINT",
      .help = "`user add`: a key that was lately refused, as `user pending` shows it" },
    { .name = "from-authorized-keys",
      .type = CONFIG_BOOL,
      .help = "`user add`: the keys that the account of that name has in ~/.ssh/authorized_keys, and its uid" },
    { .name = "ready-fd",
      .type = CONFIG_U64,
      .value = "FD",
      .min = 3,
      .max = 1023,
      .help = "descriptor to write the ready line to" },
    { .name = "log-level",
      .type = CONFIG_STRING,
      .fallback = "info",
      .value = "LEVEL",
      .help = "error, warn, info or debug" },
    { .name = "login-grace",
      .type = CONFIG_MS,
      .fallback = "120s",
      .value = "TIME",
      .min = 1000,
      .max = 3600000,
      .help = "a connection must have logged in by then" },
    { .name = "startups-free",
      .type = CONFIG_U64,
      .fallback = "100",
      .value = "N",
      .min = 1,
      .max = 1024,
      .help = "connections not logged in before old ones have to make room" },
    { .name = "startups-percent",
      .type = CONFIG_U64,
      .fallback = "30",
      .value = "PERCENT",
      .max = 100,
      .help = "chance of that at startups-free; it rises to 100 at startups-max" },
    { .name = "startups-max",
      .type = CONFIG_U64,
      .fallback = "400",
      .value = "N",
      .min = 1,
      .max = 1024,
      .help = "connections not logged in at most" },
    { .name = "startups-per-source",
      .type = CONFIG_U64,
      .fallback = "50",
      .value = "N",
      .min = 1,
      .max = 1024,
      .help = "of them from one address" },
    { .name = "exempt-source",
      .type = CONFIG_LIST,
      .value = "ADDRESS",
      .help = "an address, ADDRESS/BITS or a pattern with * whose connections are not limited before their login" },
    { .name = "job-hook",
      .type = CONFIG_STRING,
      .value = "FILE",
      .help = "a program to run when a job has ended: FILE JOB USER STATUS" },
    { .name = "job-hook-timeout",
      .type = CONFIG_MS,
      .fallback = "30s",
      .value = "TIME",
      .min = 100,
      .max = 600000,
      .help = "it is killed after this time" },
    { .name = "job-window",
      .type = CONFIG_U64,
      .fallback = "128",
      .value = "N",
      .min = 1,
      .max = 2048,
      .help = "lines of all jobs that the broker has at once" },
    { .name = "job-ttl",
      .type = CONFIG_MS,
      .fallback = "30d",
      .value = "TIME",
      .min = 60000,
      .max = 3.2e11,
      .help = "an ended job is kept so long" },
};
const size_t gateway_n_keys = sizeof gateway_keys / sizeof gateway_keys[0];

/* Copy text behind prefix into path [PATHS_BYTES]. */
static enum status put_path(char *path, const char *prefix, const char *text, const char *suffix,
                            struct error *err)
{
    int n = snprintf(path, PATHS_BYTES, "%s%s%s", prefix, text, suffix);

    if (n >= 0 && n < PATHS_BYTES)
        return ST_OK;
    error_set(err, ERR_LIMIT_EXCEEDED, "path", "a path has %d bytes, the limit is %d", n, PATHS_BYTES - 1);
    return ST_INVALID;
}

/* ST_OK, ST_INVALID with *err set. */
static enum status find_places(const struct config *c, struct gateway_places *ret_places, struct error *err)
{
    struct gateway_places p;
    char runtime_dir[PATHS_BYTES];
    enum status st;

    if (config_string(c, "state-dir") != NULL)
        st = paths_absolute(config_string(c, "state-dir"), p.state_dir, err);
    else
        st = paths_state_dir(p.state_dir, err);
    if (st == ST_OK)
        st = put_path(p.users_file, p.state_dir, "/users", "", err);
    if (st != ST_OK)
        return st;
    if (config_string(c, "connect") != NULL)
        st = put_path(p.endpoint, "", config_string(c, "connect"), "", err);
    else if (config_string(c, "runtime-dir") != NULL) {
        st = paths_absolute(config_string(c, "runtime-dir"), runtime_dir, err);
        if (st == ST_OK)
            st = put_path(p.endpoint, "ipc://", runtime_dir, "/" PATHS_BROKER_SOCKET, err);
    } else
        st = paths_endpoint(p.endpoint, err);
    if (st == ST_OK)
        *ret_places = p;
    return st;
}

static int usage(const char *problem)
{
    fprintf(stderr, "weir-gateway: %s\nTry `weir-gateway --help`.\n", problem);
    return 2;
}

static void print_help(void)
{
    config_print_help(stdout,
                      "weir-gateway [OPTIONS]\n       weir-gateway user add NAME [--key FILE | --pending FINGERPRINT | --from-authorized-keys]\n"
                      "       weir-gateway user remove NAME\n       weir-gateway user list | pending | usage\n       weir-gateway user disable|enable NAME\n"
                      "       weir-gateway user limit NAME|@GROUP [LIMIT=N...]\n       weir-gateway user group add|remove GROUP\n       weir-gateway user join NAME GROUP | leave NAME\n       weir-gateway check [OPTIONS]",
                      "The ssh front end of a Weir pool: logs people in by their public keys, takes their "
                      "jobs, keeps them on disk.",
                      gateway_keys, gateway_n_keys);
}

static int run_process(const char *kind, const struct config *c, const struct gateway_places *places,
                       int argc, char *const *argv)
{
    int level = log_level_from_name(config_string(c, "log-level"));

    if (level < 0)
        return usage("--log-level wants error, warn, info or debug");
    log_init(kind, (enum log_level)level);
    if (strcmp(kind, "gateway/jobs") == 0)
        return jobs_run(c, places);
    return listener_run(c, places, argc, argv);
}

int main(int argc, char **argv)
{
    struct config *c = NULL;
    struct gateway_places places;
    struct error err;
    bool jobs = argc > 1 && strcmp(argv[1], "jobs-process") == 0;
    int code = 2;

    signal(SIGPIPE, SIG_IGN);
    if (argc > 1 && strcmp(argv[1], "connection-process") == 0)
        return connection_run(argc > 2 ? argv[2] : "?");
    if (argc > 1 && strcmp(argv[1], "metrics-process") == 0)
        return metrics_process_run();
    if (config_load(gateway_keys, gateway_n_keys, "gateway", argc - jobs, argv + jobs, &c, &err) != ST_OK)
        return usage(err.message);
    if (config_help_wanted(c) && config_n_args(c) > 0 && strcmp(config_arg(c, 0), "user") == 0) {
        user_command_help(stdout);
        code = 0;
    } else if (config_help_wanted(c)) {
        print_help();
        code = 0;
    } else if (config_version_wanted(c)) {
        printf("weir-gateway %s (%s)\n", version_text(), version_build_id());
        code = 0;
    } else if (find_places(c, &places, &err) != ST_OK) {
        usage(err.message);
    } else if (config_n_args(c) > 0 && strcmp(config_arg(c, 0), "user") == 0) {
        code = user_command_run(c, &places);
    } else if (config_n_args(c) > 0 && strcmp(config_arg(c, 0), "check") == 0) {
        code = check_command_run(c, &places);
    } else if (config_n_args(c) > 0) {
        code = usage("the only commands are `user` and `check`; the server takes options only");
    } else {
        code = run_process(jobs ? "gateway/jobs" : "gateway", c, &places, argc, argv);
    }
    config_free(c);
    return code;
}
