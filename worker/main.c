/* main.c - weir-worker: started by the broker with a region as descriptor REGION_FD_MEMORY; by hand it prints the memory plan
 * (--plan) or answers one prompt (--generate).
 *
 * Whether a broker started it is seen by the descriptor: a sealed memfd is nothing a shell leaves open.
 *
 * Once the model is loaded the process gives up what it does not need (confine.h): it is going to work on strangers' bytes. */
#include <inttypes.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "config.h"
#include "confine.h"
#include "log.h"
#include "standalone.h"
#include "version.h"
#include "worker.h"

static const struct config_key keys[] = {
    { .name = "model", .type = CONFIG_STRING, .value = "FILE", .help = "The model, a GGUF file", .short_flag = 'm' },
    { .name = "device", .type = CONFIG_STRING, .fallback = "auto", .value = "DEVICE", .help = "auto, cpu, cuda or cuda:NUMBER" },
    { .name = "threads", .type = CONFIG_U64, .fallback = "0", .value = "N", .help = "CPU threads; 0: the usable CPUs", .max = 1024 },
    { .name = "pin-threads", .type = CONFIG_BOOL, .fallback = "no", .help = "Bind each thread to a CPU" },
    { .name = "kv-bytes", .type = CONFIG_BYTES, .fallback = "0", .value = "BYTES", .help = "Memory for KV blocks; 0: a share of what is free" },
    { .name = "cpu-kv-bytes", .type = CONFIG_BYTES, .fallback = "0", .value = "BYTES",
      .help = "Memory for KV blocks on a CPU where kv-bytes does not say it" },
    { .name = "device-share", .type = CONFIG_U64, .fallback = "1", .value = "N", .min = 1, .max = 64,
      .help = "Workers that share the GPU: without kv-bytes each takes its part" },
    { .name = "kv-blocks", .type = CONFIG_U64, .fallback = "0", .value = "N", .help = "KV blocks to take, instead of kv-bytes", .max = 1 << 30 },
    { .name = "kv-type", .type = CONFIG_STRING, .fallback = "f16", .value = "TYPE", .help = "How keys and values are stored: f16 or q8" },
    { .name = "fast-prefill", .type = CONFIG_BOOL, .fallback = "no",
      .help = "On a GPU: prompts by cuBLASLt on weights in bf16; faster, an arithmetic of its own" },
    { .name = "context", .type = CONFIG_U64, .fallback = "0", .value = "TOKENS", .help = "Longest sequence; 0: the model's", .max = CONTEXT_TOKENS_MAX },
    { .name = "max-seqs", .type = CONFIG_U64, .fallback = "32", .value = "N", .help = "Sequences that run at once", .min = 1, .max = SEQS_MAX },
    { .name = "max-rows", .type = CONFIG_U64, .fallback = "512", .value = "N", .help = "Tokens of one step at most", .min = 2, .max = PLAN_TOKENS_MAX },
    { .name = "step-max", .type = CONFIG_MS, .fallback = "200ms", .value = "TIME", .help = "How long a step should take at most; 0: any" },
    { .name = "age", .type = CONFIG_MS, .fallback = "5s", .value = "TIME", .help = "How long a batch request goes without progress before it is promoted" },
    { .name = "prefix-wait", .type = CONFIG_MS, .fallback = "10s", .value = "TIME", .help = "How long a request waits for a prefix that another computes" },
    { .name = "name", .type = CONFIG_STRING, .value = "NAME", .help = "Name of the model; else the file's own" },
    { .name = "core-dumps", .type = CONFIG_BOOL, .fallback = "no", .help = "Leave a core dump, with the prompts in it, when it crashes" },
    { .name = "log-level", .type = CONFIG_STRING, .fallback = "info", .value = "LEVEL", .help = "error, warn, info or debug" },
    /* From "plan" on for the tools: a worker of a pool neither has these flags nor reads WEIR_SEED and the like. */
    { .name = "plan", .type = CONFIG_BOOL, .help = "Print the model and the memory it would take, and exit" },
    { .name = "generate", .type = CONFIG_STRING, .value = "PROMPT", .help = "Answer one prompt and exit" },
    { .name = "chat", .type = CONFIG_BOOL, .help = "The prompt is a user's message, through the model's template" },
    { .name = "raw", .type = CONFIG_BOOL, .help = "Read special tokens in the prompt" },
    { .name = "greedy", .type = CONFIG_BOOL, .help = "The same as --temperature 0" },
    { .name = "max-tokens", .type = CONFIG_U64, .fallback = "0", .value = "N", .help = "Tokens to generate; 0: to the end", .max = OUTPUT_TOKENS_MAX },
    { .name = "temperature", .type = CONFIG_F64, .fallback = "1", .value = "T", .help = "0 is greedy", .max = 100 },
    { .name = "top-p", .type = CONFIG_F64, .fallback = "1", .value = "P", .help = "Keep the most likely tokens that together have P", .min = 1e-6, .max = 1 },
    { .name = "top-k", .type = CONFIG_U64, .fallback = "0", .value = "K", .help = "Keep the K most likely tokens; 0: all", .max = VOCAB_MAX },
    { .name = "seed", .type = CONFIG_U64, .fallback = "0", .value = "S", .help = "Of the random numbers" },
    { .name = "stop", .type = CONFIG_LIST, .value = "TEXT", .help = "End before this text; may repeat" },
    { .name = "n", .type = CONFIG_U64, .fallback = "1", .value = "N", .help = "Completions", .min = 1, .max = CHOICES_MAX },
    { .name = "ignore-eos", .type = CONFIG_BOOL, .help = "Go on after the model's end token" },
    { .name = "json", .type = CONFIG_BOOL, .help = "Print one JSON object" },
};
enum { N_KEYS = sizeof(keys) / sizeof(keys[0]) };

enum { EXIT_USAGE = 2, EXIT_CANNOT_START = 3, EXIT_BROKEN = 70 };

static size_t n_pool_keys(void)
{
    size_t n = 0;
    while (strcmp(keys[n].name, "plan") != 0)
        n++;
    return n;
}

static bool started_by_broker(void)
{
    return fcntl(REGION_FD_MEMORY, F_GET_SEALS) >= 0;
}

static bool fill_options(const struct config *c, struct engine_options *ret_opt, struct error *err)
{
    const char *kv_type = config_string(c, "kv-type");
    if (config_string(c, "model") == NULL) {
        error_set(err, ERR_INVALID_PARAMETER, "--model", "which model?");
        return false;
    }
    if (strcmp(kv_type, "f16") != 0 && strcmp(kv_type, "q8") != 0) {
        error_set(err, ERR_INVALID_PARAMETER, "--kv-type", "KV type is f16 or q8, not %.32s", kv_type);
        return false;
    }
    *ret_opt = (struct engine_options){
        .model_path = config_string(c, "model"),
        .device = config_string(c, "device"),
        .n_threads = (uint32_t)config_u64(c, "threads"),
        .kv_bytes = config_u64(c, "kv-bytes"),
        .cpu_kv_bytes = config_u64(c, "cpu-kv-bytes"),
        .device_share = (uint32_t)config_u64(c, "device-share"),
        .kv_blocks = (uint32_t)config_u64(c, "kv-blocks"),
        .kv_type = strcmp(kv_type, "q8") == 0 ? KV_Q8 : KV_F16,
        .context_tokens = (uint32_t)config_u64(c, "context"),
        .max_seqs = (uint32_t)config_u64(c, "max-seqs"),
        .max_rows = (uint32_t)config_u64(c, "max-rows"),
        .pin_threads = config_bool(c, "pin-threads"),
        .fast_prefill = config_bool(c, "fast-prefill"),
    };
    return true;
}

static struct worker_options worker_options(const struct config *c)
{
    struct worker_options o = {
        .step_ns_max = config_u64(c, "step-max") * 1000000,
        .age_ns = config_u64(c, "age") * 1000000,
        .prefix_wait_ns = config_u64(c, "prefix-wait") * 1000000,
    };
    if (getrandom(&o.secret, sizeof(o.secret), 0) != (ssize_t)sizeof(o.secret))
        log_warn("no_random_secret", "reason=getrandom_failed");
    return o;
}

static int generate(const struct config *c, struct engine *e)
{
    struct standalone_options o = {
        .prompt = config_string(c, "generate"),
        .chat = config_bool(c, "chat"),
        .raw = config_bool(c, "raw"),
        .json = config_bool(c, "json"),
        .ignore_eos = config_bool(c, "ignore-eos"),
        .max_tokens = (uint32_t)config_u64(c, "max-tokens"),
        .n_choices = (uint32_t)config_u64(c, "n"),
        .sampling = {
            .seed = config_u64(c, "seed"),
            .temperature = config_bool(c, "greedy") ? 0 : (float)config_f64(c, "temperature"),
            .top_p = (float)config_f64(c, "top-p"),
            .top_k = (uint32_t)config_u64(c, "top-k"),
            .repetition_penalty = 1,
        },
        .worker = worker_options(c),
    };
    size_t n = config_list(c, "stop", &o.stops);
    if (n > STOPS_MAX) {
        fprintf(stderr, "weir-worker: at most %d stop strings\n", STOPS_MAX);
        return EXIT_USAGE;
    }
    o.n_stops = (uint32_t)n;
    return standalone_generate(e, &o);
}

/* By hand: one of the two tools. */
static int run_by_hand(const struct config *c)
{
    struct engine_options opt;
    struct engine e = { 0 };
    struct error err = { 0 };
    int code = EXIT_USAGE;

    if (!config_bool(c, "plan") && config_string(c, "generate") == NULL) {
        fprintf(stderr, "weir-worker: it is started by weir-broker; by hand use --plan or --generate PROMPT (see --help)\n");
        return EXIT_USAGE;
    }
    if (fill_options(c, &opt, &err)) {
        bool only_plan = config_bool(c, "plan");
        code = EXIT_CANNOT_START;
        if ((only_plan ? engine_plan(&opt, &e, &err) : engine_start(&opt, &e, &err)) == ST_OK) {
            code = 0;
            if (only_plan)
                standalone_print_plan(&e);
            else
                code = generate(c, &e);
        }
    }
    if (err.code != ERR_NONE && code != 0)
        fprintf(stderr, "weir-worker: %s: %s (%s)\n", error_code_name(err.code), err.message, err.param);
    engine_close(&e);
    return code;
}

static void say_device(const struct engine *e)
{
    char device[160], reason[2 * BACKEND_REASON_BYTES];
    log_info("device", "device=%s reason=%s blocks=%u block_bytes=%u weight_bytes=%" PRIu64 " context_tokens=%u",
             log_quote(device, sizeof(device), e->info.device), log_quote(reason, sizeof(reason), e->choice.reason),
             e->sizes.n_blocks, e->memory.block_bytes, e->memory.weights, e->sizes.context_tokens);
}

/* The host store, if the broker gave us one.  Without it the worker serves all the same. */
static struct host_store *open_store(const struct engine *e)
{
    struct host_store *store = NULL;
    int fds[WORKERS_MAX];
    uint32_t n = 0;

    while (n < WORKERS_MAX && fcntl(REGION_FD_STORE + (int)n, F_GET_SEALS) >= 0) {
        fds[n] = REGION_FD_STORE + (int)n;
        n++;
    }
    if (n == 0)
        return NULL;
    struct host_store_options o = { .own_fd = fds[0],
                                    .other_fds = fds + 1,
                                    .n_others = n - 1,
                                    .block_bytes = e->memory.block_bytes,
                                    .numerics_id = e->info.numerics_id };
    enum status st = host_store_new(&o, &store);
    if (st != ST_OK) {
        log_warn("no_store_of_its_own", "reason=\"%s\"", status_text(st));
        o.own_fd = -1;
        st = o.n_others > 0 ? host_store_new(&o, &store) : st;
    }
    for (uint32_t i = 0; i < n; i++)
        close(fds[i]); /* the mappings stay */
    if (st != ST_OK)
        return NULL;
    struct host_store_counts counts = host_store_counts(store);
    log_info("store", "blocks=%u adopted=%u others=%u", counts.n_slots, counts.n_adopted, n - 1);
    return store;
}

static int serve(const struct config *c, struct region *region, struct engine *e, struct error *err)
{
    struct worker_options wo = worker_options(c);
    wo.store = open_store(e);
    struct worker *w = NULL;
    enum status st = worker_new(e, region, &wo, &w);
    if (st != ST_OK) {
        error_set(err, ERR_INTERNAL, "", "cannot set up the worker: %s", status_text(st));
        host_store_free(wo.store);
        return EXIT_CANNOT_START;
    }
    confine_self(e->choice.api == backend_cpu(), config_bool(c, "core-dumps"));
    worker_announce(w, config_string(c, "name"));
    st = worker_run(w, REGION_FD_CONTROL);
    log_info("worker_end", "reason=%s requests=%u",
             st == ST_OK ? "drained" : st == ST_GONE ? "broker_gone" : "broken", worker_n_requests(w));
    if (st != ST_OK)
        _exit(st == ST_GONE ? 0 : EXIT_BROKEN); /* nobody waits for memory to be given back in order */
    worker_free(w);
    host_store_free(wo.store);
    return 0;
}

static int run_for_broker(const struct config *c)
{
    struct region region = { 0 };
    struct engine_options opt;
    struct engine e = { 0 };
    struct error err = { 0 };
    char name[32];
    int code = EXIT_CANNOT_START;

    if (region_attach(REGION_FD_MEMORY, REGION_FD_REQUEST_BELL, REGION_FD_EVENT_BELL, &region) != ST_OK) {
        log_error("region_refused", "fd=%d", REGION_FD_MEMORY);
        return EXIT_BROKEN;
    }
    snprintf(name, sizeof(name), "worker/%u", region.worker_slot);
    log_init(name, (enum log_level)log_level_from_name(config_string(c, "log-level")));
    /* A Ctrl-C or a closed terminal reaches the whole group; what becomes of a worker is its broker's decision. */
    signal(SIGINT, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    confine_follow_parent();
    if (fill_options(c, &opt, &err) && engine_start(&opt, &e, &err) == ST_OK) {
        say_device(&e);
        code = serve(c, &region, &e, &err);
    }
    if (err.code != ERR_NONE && code != 0) {
        char quoted[2 * ERROR_MESSAGE_BYTES];
        log_error("cannot_start", "code=%s message=%s", error_code_name(err.code), log_quote(quoted, sizeof(quoted), err.message));
        worker_announce_failure(&region, &err);
    }
    engine_close(&e);
    region_unmap(&region);
    return code;
}

int main(int argc, char **argv)
{
    struct config *c = NULL;
    struct error err = { 0 };
    bool for_broker = started_by_broker();

    log_init("worker", LOG_LEVEL_WARN);
    signal(SIGPIPE, SIG_IGN);
    if (config_load(keys, for_broker ? n_pool_keys() : N_KEYS, "worker", argc, argv, &c, &err) != ST_OK) {
        fprintf(stderr, "weir-worker: %s: %s (%s)\n", error_code_name(err.code), err.message, err.param);
        return EXIT_USAGE;
    }
    int code = 0;
    if (config_help_wanted(c))
        config_print_help(stdout, "weir-worker [OPTIONS]", "Runs one model on one device for weir-broker.", keys, N_KEYS);
    else if (config_version_wanted(c))
        printf("weir-worker %s (%s)\n", version_text(), version_build_id());
    else if (log_level_from_name(config_string(c, "log-level")) < 0 || config_n_args(c) > 0) {
        fprintf(stderr, "weir-worker: unknown log level or stray argument (see --help)\n");
        code = EXIT_USAGE;
    } else
        code = for_broker ? run_for_broker(c) : run_by_hand(c);
    config_free(c);
    return code;
}
