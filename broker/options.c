/* options.c - see options.h.  Numbers that are not given are chosen here, once, from the machine; the log says which. */
#include "options.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "machine.h"
#include "partition.h"
#include "tcp_door.h"

const struct config_key options_keys[] = {
    { .name = "model", .type = CONFIG_LIST, .value = "[NAME=]FILE",
      .help = "serve this GGUF file under NAME (default: the file's name); repeats, the first is the default" },
    { .name = "workers", .type = CONFIG_U64, .value = "N", .min = 1, .max = WORKERS_MAX,
      .help = "worker processes in all, shared out to the models in turn; default: one a model" },
    { .name = "device", .type = CONFIG_LIST, .value = "DEVICE",
      .help = "auto, cpu, cuda or cuda:K; repeated, the workers take them in turn; default: auto" },
    { .name = "threads", .type = CONFIG_U64, .value = "N", .min = 1, .max = 1024,
      .help = "threads of one worker; default: usable CPUs / workers" },
    { .name = "kv-bytes", .type = CONFIG_BYTES, .value = "BYTES", .min = 1 << 20, .max = 1e15,
      .help = "KV cache of one worker; default: on CPUs a quarter of the available memory, at most 1 GiB, shared out to the workers; on a "
              "GPU most of what is free there, shared out to the workers on it" },
    { .name = "fast-prefill", .type = CONFIG_BOOL,
      .help = "workers on GPUs read prompts by cuBLASLt: faster, an arithmetic (system_fingerprint) of its own; a CPU worker refuses" },
    { .name = "core-dumps", .type = CONFIG_BOOL, .help = "a worker that crashes leaves a core dump; the prompts it had are in it" },
    { .name = "host-store-bytes", .type = CONFIG_BYTES, .value = "BYTES", .max = 1e15,
      .help = "shared memory for KV blocks that left the cache, of all workers; 0: none; default: an eighth of the available "
              "memory, at most 2 GiB" },
    { .name = "runtime-dir", .type = CONFIG_STRING, .value = "DIR", .help = "folder of the socket and its lock" },
    { .name = "endpoint", .type = CONFIG_STRING, .value = "ENDPOINT", .help = "default: ipc://RUNTIME-DIR/broker.sock" },
    { .name = "tcp", .type = CONFIG_STRING, .value = "ENDPOINT",
      .help = "also serve clients of other machines, at tcp://ADDRESS:PORT, with CURVE; `weir key` makes their keys" },
    { .name = "curve-key", .type = CONFIG_STRING, .value = "FILE", .help = "key pair of this broker for --tcp; made when it is missing" },
    { .name = "tcp-connections-max", .type = CONFIG_U64, .fallback = "1024", .value = "N", .min = 1, .max = 65536,
      .help = "tcp connections at once, handshakes included; 512 descriptors stay for all else: a number for which the hard limit of descriptors "
              "has no room is refused, the default is lowered to what has room, with a line in the log" },
    { .name = "user-connections-max", .type = CONFIG_U64, .value = "N", .min = 1, .max = 65536,
      .help = "of them, of one user; default: a quarter" },
    { .name = "worker-program", .type = CONFIG_STRING, .value = "FILE", .help = "default: weir-worker beside this program" },
    { .name = "users-file", .type = CONFIG_STRING, .value = "FILE", .help = "who is who; read again on SIGHUP" },
    { .name = "front-end-uid", .type = CONFIG_LIST, .value = "UID",
      .help = "may speak for other users; repeats; default: the broker's own uid" },
    { .name = "pool-bytes", .type = CONFIG_BYTES, .fallback = "512M", .value = "BYTES", .min = 8 << 20, .max = 1e13,
      .help = "no new request is taken while prompts and undelivered output of all that are there hold so much" },
    { .name = "user-running-max", .type = CONFIG_U64, .value = "N", .max = REQUESTS_MAX,
      .help = "requests of one user that run at once; 0: no limit of its own" },
    { .name = "drain-seconds", .type = CONFIG_MS, .fallback = "30s", .value = "TIME", .max = 86400e3,
      .help = "after SIGTERM, what runs may take so long to finish" },
    { .name = "hang-seconds", .type = CONFIG_MS, .fallback = "120s", .value = "TIME", .min = 100, .max = 86400e3,
      .help = "a worker with work that shows no life for so long is killed" },
    { .name = "idle-release", .type = CONFIG_MS, .fallback = "0", .value = "TIME", .max = 365 * 86400e3,
      .help = "a worker that had no request for so long ends and gives back its device's memory; the next request starts it; 0: never" },
    { .name = "start-seconds", .type = CONFIG_MS, .fallback = "10m", .value = "TIME", .min = 100, .max = 86400e3,
      .help = "a worker that is not ready after so long is killed" },
    { .name = "slow-reader-seconds", .type = CONFIG_MS, .fallback = "60s", .value = "TIME", .min = 100, .max = 86400e3,
      .help = "a client that takes nothing of a full backlog for so long loses the request" },
    { .name = "metrics-port", .type = CONFIG_U64, .fallback = "0", .value = "PORT", .max = 65535,
      .help = "serve numbers for Prometheus at http://METRICS-ADDRESS:PORT/metrics, and /healthz, /readyz; 0: do not" },
    { .name = "metrics-address", .type = CONFIG_STRING, .fallback = "127.0.0.1", .value = "ADDRESS",
      .help = "IPv4 or IPv6 address for it" },
    { .name = "give-up", .type = CONFIG_BOOL,
      .help = "end with code 1 and the reasons when no worker has ever been ready and none can start; otherwise they are tried for ever" },
    { .name = "ready-fd", .type = CONFIG_U64, .value = "FD", .min = 3, .max = 1 << 20,
      .help = "descriptor that gets the ready line, then is closed" },
    { .name = "self-check", .type = CONFIG_BOOL, .help = "verify every table in every pass of the loop, and abort when one is wrong; slow" },
    { .name = "log-level", .type = CONFIG_STRING, .fallback = "info", .value = "LEVEL", .help = "error, warn, info or debug" },
};
const size_t options_n_keys = sizeof(options_keys) / sizeof(options_keys[0]);

static enum status invalid(struct error *err, const char *param, const char *message, const char *value)
{
    error_set(err, ERR_INVALID_PARAMETER, param, message, value);
    return ST_INVALID;
}

static bool name_ok(const char *name, size_t n)
{
    if (n == 0 || n >= NAME_BYTES_MAX)
        return false;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)name[i]) && strchr("._-:/+@", name[i]) == NULL)
            return false;
    return true;
}

/* "NAME=FILE" or "FILE", whose name without folder and .gguf is the model's. */
static enum status add_model(struct options *o, const char *item, struct error *err)
{
    const char *equals = strchr(item, '='), *slash = strchr(item, '/');
    const char *name = item, *path = item;
    size_t n;

    if (o->n_models == MODELS_MAX)
        return invalid(err, "model", "too many models at \"%s\": the limit is 16", item);
    if (equals != NULL && (slash == NULL || equals < slash)) {
        n = (size_t)(equals - item);
        path = equals + 1;
    } else {
        slash = strrchr(item, '/');
        name = slash != NULL ? slash + 1 : item;
        n = strlen(name);
        if (n > 5 && strcmp(name + n - 5, ".gguf") == 0)
            n -= 5;
    }
    if (!name_ok(name, n))
        return invalid(err, "model", "\"%s\" gives no name of 1 to 63 letters, digits or ._-:/+@; write NAME=FILE", item);
    if (path[0] == '\0' || access(path, R_OK) != 0) {
        error_set(err, ERR_INVALID_PARAMETER, "model", "cannot read \"%s\": %s", path, path[0] ? strerror(errno) : "no file");
        return ST_INVALID;
    }
    char *to = o->model_names[o->n_models];
    memcpy(to, name, n);
    to[n] = '\0';
    for (uint32_t i = 0; i < o->n_models; i++)
        if (strcmp(o->model_names[i], to) == 0)
            return invalid(err, "model", "two models are called \"%s\"; write NAME=FILE", to);
    o->model_paths[o->n_models++] = path;
    return ST_OK;
}

static enum status read_models(struct options *o, struct error *err)
{
    const char *const *items;
    size_t n = config_list(o->config, "model", &items);

    if (n == 0)
        return invalid(err, "model", "no model given: --model FILE%s", "");
    for (size_t i = 0; i < n; i++) {
        enum status st = add_model(o, items[i], err);
        if (st != ST_OK)
            return st;
    }
    return ST_OK;
}

bool options_device_ok(const char *device)
{
    if (strcmp(device, "auto") == 0 || strcmp(device, "cpu") == 0 || strcmp(device, "cuda") == 0)
        return true;
    if (strncmp(device, "cuda:", 5) != 0)
        return false;
    size_t digits = strspn(device + 5, "0123456789");
    return digits >= 1 && digits <= 3 && device[5 + digits] == '\0';
}

static enum status read_workers(struct options *o, struct error *err)
{
    const char *const *devices;
    size_t n_devices = config_list(o->config, "device", &devices);
    uint32_t n_cpu = 0;

    o->n_workers = config_is_set(o->config, "workers") ? (uint32_t)config_u64(o->config, "workers") : o->n_models;
    if (o->n_workers < o->n_models) {
        error_set(err, ERR_INVALID_PARAMETER, "workers", "%u models need at least as many workers; there are %u", o->n_models,
                  o->n_workers);
        return ST_INVALID;
    }
    for (size_t i = 0; i < n_devices; i++)
        if (!options_device_ok(devices[i]))
            return invalid(err, "device", "\"%s\" is not auto, cpu, cuda or cuda:K", devices[i]);
    for (uint32_t i = 0; i < o->n_workers; i++) {
        o->worker_models[i] = i % o->n_models;
        o->worker_devices[i] = n_devices > 0 ? devices[i % n_devices] : "auto";
        n_cpu += strncmp(o->worker_devices[i], "cuda", 4) != 0;
    }
    uint32_t cpus = machine_cpus(), share = n_cpu > 0 ? cpus / n_cpu : cpus;
    o->threads = config_is_set(o->config, "threads") ? (uint32_t)config_u64(o->config, "threads") : share > 0 ? share : 1;
    o->fast_prefill = config_bool(o->config, "fast-prefill");
    o->core_dumps = config_bool(o->config, "core-dumps");
    o->kv_bytes_given = config_is_set(o->config, "kv-bytes");
    if (o->kv_bytes_given) {
        o->kv_bytes = config_u64(o->config, "kv-bytes");
    } else {
        uint64_t quarter = machine_memory_available() / 4, most = UINT64_C(1) << 30;

        o->kv_bytes = (quarter < most ? quarter : most) / o->n_workers;
        if (o->kv_bytes < (1 << 20))
            o->kv_bytes = 1 << 20;
    }
    return ST_OK;
}

static enum status read_store(struct options *o, struct error *err)
{
    uint64_t least = (uint64_t)PARTITION_BYTES_MIN * o->n_workers, most = UINT64_C(2) << 30;

    if (!config_is_set(o->config, "host-store-bytes")) {
        uint64_t eighth = machine_memory_available() / 8;

        o->host_store_bytes = eighth < most ? eighth : most;
        if (o->host_store_bytes < least)
            o->host_store_bytes = 0;
        return ST_OK;
    }
    o->host_store_bytes = config_u64(o->config, "host-store-bytes");
    if (o->host_store_bytes > 0 && o->host_store_bytes < least) {
        error_set(err, ERR_INVALID_PARAMETER, "host-store-bytes",
                  "%" PRIu64 " bytes for %" PRIu32 " workers; each needs at least %d, or 0 for no store", o->host_store_bytes,
                  o->n_workers, PARTITION_BYTES_MIN);
        return ST_INVALID;
    }
    return ST_OK;
}

static enum status read_front_ends(struct options *o, struct error *err)
{
    const char *const *items;
    size_t n = config_list(o->config, "front-end-uid", &items);

    if (n > FRONT_ENDS_MAX)
        return invalid(err, "front-end-uid", "too many: the limit is 16%s", "");
    for (size_t i = 0; i < n; i++) {
        char *end;
        errno = 0;
        unsigned long uid = strtoul(items[i], &end, 10);
        if (!isdigit((unsigned char)items[i][0]) || *end != '\0' || errno != 0 || uid >= UINT32_MAX)
            return invalid(err, "front-end-uid", "\"%s\" is not a uid", items[i]);
        o->front_ends[o->n_front_ends++] = (uid_t)uid;
    }
    if (n == 0)
        o->front_ends[o->n_front_ends++] = geteuid();
    return ST_OK;
}

/* The program beside our own. */
static enum status find_worker_program(struct options *o, struct error *err)
{
    const char *given = config_string(o->config, "worker-program");

    if (given != NULL) {
        if (strlen(given) >= sizeof(o->worker_program))
            return invalid(err, "worker-program", "the path is too long: %s", given);
        snprintf(o->worker_program, sizeof(o->worker_program), "%s", given);
    } else {
        static const char name[] = "weir-worker";
        ssize_t n = readlink("/proc/self/exe", o->worker_program, sizeof(o->worker_program) - sizeof(name));
        char *slash = n > 0 ? memrchr(o->worker_program, '/', (size_t)n) : NULL;

        if (slash == NULL || (size_t)n >= sizeof(o->worker_program) - sizeof(name))
            return invalid(err, "worker-program", "cannot tell where this program lies%s", "");
        memcpy(slash + 1, name, sizeof(name));
    }
    if (access(o->worker_program, X_OK) != 0) {
        error_set(err, ERR_INVALID_PARAMETER, "worker-program", "cannot run %s: %s", o->worker_program, strerror(errno));
        return ST_INVALID;
    }
    return ST_OK;
}

static enum status read_endpoint(struct options *o, struct error *err)
{
    const char *dir = config_string(o->config, "runtime-dir"), *endpoint = config_string(o->config, "endpoint");
    size_t n;

    if (dir == NULL) {
        enum status st = paths_runtime_dir(o->runtime_dir, err);
        if (st != ST_OK)
            return st;
    } else {
        enum status st = paths_absolute(dir, o->runtime_dir, err);
        if (st != ST_OK)
            return st;
    }
    if (endpoint == NULL)
        n = (size_t)snprintf(o->endpoint, sizeof(o->endpoint), "ipc://%.3900s/%s", o->runtime_dir, PATHS_BROKER_SOCKET);
    else
        n = (size_t)snprintf(o->endpoint, sizeof(o->endpoint), "%s", endpoint);
    if (strncmp(o->endpoint, "tcp://", 6) == 0)
        return invalid(err, "endpoint", "%s: tcp without CURVE is not served; use --tcp, and ipc:// here", o->endpoint);
    if (strncmp(o->endpoint, "ipc:///", 7) != 0)
        return invalid(err, "endpoint", "\"%s\" is not ipc:// with an absolute path", o->endpoint);
    if (n - 6 > PATHS_SOCKET_BYTES_MAX) {
        error_set(err, ERR_INVALID_PARAMETER, endpoint != NULL ? "endpoint" : "runtime-dir",
                  "the socket's path has %zu bytes, a unix socket takes %d: %.120s", n - 6, PATHS_SOCKET_BYTES_MAX, o->endpoint + 6);
        return ST_INVALID;
    }
    return ST_OK;
}

/* Strangers use one descriptor each, before anybody asks who they are.  What is kept from them: 128 that the kernel accepts beyond the limit,
 * and the rest for workers, files and local clients. */
enum { DESCRIPTORS_KEPT = 512 };

/* endpoint.c raises the soft limit to the hard one, so that one counts. */
static enum status read_tcp_connections(struct options *o, struct error *err)
{
    uint64_t wanted = config_u64(o->config, "tcp-connections-max");
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
        error_set(err, ERR_INTERNAL, "tcp-connections-max", "the limit of descriptors is not known: %s", strerror(errno));
        return ST_SYSTEM;
    }
    uint64_t room = limit.rlim_max > DESCRIPTORS_KEPT ? limit.rlim_max - DESCRIPTORS_KEPT : 0;
    if (wanted > room && (room == 0 || config_is_set(o->config, "tcp-connections-max"))) {
        error_set(err, ERR_INVALID_PARAMETER, "tcp-connections-max",
                  "%" PRIu64 " connections and %d descriptors for all else are more than the hard limit of %" PRIu64
                  " descriptors; raise it (ulimit -Hn, LimitNOFILE=) or ask for fewer",
                  wanted, DESCRIPTORS_KEPT, (uint64_t)limit.rlim_max);
        return ST_INVALID;
    }
    o->tcp_connections_lowered = wanted > room;
    o->tcp_connections_max = (uint32_t)(wanted > room ? room : wanted);
    o->user_connections_max = config_is_set(o->config, "user-connections-max") ? (uint32_t)config_u64(o->config, "user-connections-max")
                                                                               : (o->tcp_connections_max + 3) / 4;
    return ST_OK;
}

static enum status read_tcp(struct options *o, struct error *err)
{
    o->tcp = config_string(o->config, "tcp");
    o->curve_key = config_string(o->config, "curve-key");
    if (o->tcp == NULL)
        return ST_OK;
    if (o->curve_key == NULL)
        return invalid(err, "tcp", "%s: tcp is served with CURVE only, and that needs --curve-key FILE", o->tcp);
    if (o->users_file == NULL)
        return invalid(err, "tcp", "%s: nobody could come in without --users-file FILE, which holds the keys", o->tcp);
    enum status st = tcp_door_check_uri(o->tcp, err);
    return st == ST_OK ? read_tcp_connections(o, err) : st;
}

static enum status read_all(struct options *o, struct error *err)
{
    o->log_level_name = config_string(o->config, "log-level");
    int level = log_level_from_name(o->log_level_name);
    if (level < 0)
        return invalid(err, "log-level", "\"%s\" is not error, warn, info or debug", o->log_level_name);
    o->log_level = (enum log_level)level;
    o->pool_bytes = config_u64(o->config, "pool-bytes");
    o->drain_ms = config_u64(o->config, "drain-seconds");
    o->idle_release_ms = config_u64(o->config, "idle-release");
    o->hang_ms = config_u64(o->config, "hang-seconds");
    o->start_ms = config_u64(o->config, "start-seconds");
    o->slow_reader_ms = config_u64(o->config, "slow-reader-seconds");
    o->user_running_max = config_u64(o->config, "user-running-max");
    o->metrics_address = config_string(o->config, "metrics-address");
    o->metrics_port = (uint16_t)config_u64(o->config, "metrics-port");
    o->give_up = config_bool(o->config, "give-up");
    o->self_check = config_bool(o->config, "self-check");
    o->users_file = config_string(o->config, "users-file");
    o->ready_fd = config_is_set(o->config, "ready-fd") ? (int)config_u64(o->config, "ready-fd") : -1;
    if (config_n_args(o->config) > 0)
        return invalid(err, "", "unexpected argument \"%s\"", config_arg(o->config, 0));
    enum status st = read_models(o, err);
    if (st == ST_OK)
        st = read_workers(o, err);
    if (st == ST_OK)
        st = read_store(o, err);
    if (st == ST_OK)
        st = read_front_ends(o, err);
    if (st == ST_OK)
        st = find_worker_program(o, err);
    if (st == ST_OK)
        st = read_endpoint(o, err);
    if (st == ST_OK)
        st = read_tcp(o, err);
    return st;
}

enum status options_of_config(struct config *config, struct options *ret_options, struct error *err)
{
    static struct options o; /* large, and there is one broker in a process */

    memset(&o, 0, sizeof(o));
    o.config = config;
    enum status st = read_all(&o, err);
    if (st == ST_OK)
        *ret_options = o;
    else
        config_free(config);
    return st;
}

void options_deinit(struct options *o)
{
    config_free(o->config);
    o->config = NULL;
}
