/* main.c - the simulator as a program.
 *
 *   sim --seed N [--steps N] [--faults a,b,...|all|none|seed] [--verbose]     one run; the same line gives the same trace
 *   sim --seeds FIRST COUNT [--seconds S]                                     many; stops at the first that fails
 *   sim --canary [--asks N]                                                   one long run about whose tokens are whose
 *
 * The default of --faults is `seed`: the seed decides which there are.  --replay runs every seed twice and compares the traces. */
#include "sim.h"

#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct sim sim;

static const char *const fault_names[] = {
#define X(name, text) text,
    SIM_FAULTS(X)
#undef X
};

struct command {
    struct sim_options opt;
    uint64_t first, n_seeds;
    uint32_t seconds;
    bool faults_by_seed, replay, quiet;
};

static void print_command(void)
{
    const char *comma = "";
    fprintf(stderr,
            "\nseed %" PRIu64 " at step %u; again: build/tests/sim/sim --seed %" PRIu64 " --steps %u%s",
            sim.opt.seed, sim.n_steps, sim.opt.seed, sim.opt.n_steps, sim.opt.canary ? " --canary" : "");
    if (sim.opt.n_asks != 0)
        fprintf(stderr, " --asks %u", sim.opt.n_asks);
    fprintf(stderr, " --faults %s", sim.opt.faults == 0 ? "none" : "");
    for (uint32_t i = 0; i < N_FAULTS; i++)
        if ((sim.opt.faults >> i & 1) != 0) {
            fprintf(stderr, "%s%s", comma, fault_names[i]);
            comma = ",";
        }
    fprintf(stderr, " --verbose\n");
}

void sim_fail(const char *format, ...)
{
    va_list args;
    fflush(stdout);
    fprintf(stderr, "sim: ");
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "\n");
    abort();
}

/* An assert of the programs, or sim_fail(): the process is of no more use, so stdio is fair game. */
static void on_abort(int signal_number)
{
    signal(signal_number, SIG_DFL);
    print_command();
    raise(signal_number);
}

static void run_once(const struct sim_options *opt)
{
    memset(&sim, 0, sizeof(sim));
    sim.opt = *opt;
    sim.trace_hash = 0xcbf29ce484222325u;
    oracle_forget();
    scenario_draw();
    pool_open();
    clients_open();
    reports_open();
    admin_open();
    side_open();
    side_run();
    uint32_t open = 0;
    sim_demand(clients_all_ended(&open), "%u requests without an end", open);
    if (sim.opt.faults == 0)
        plans_check_work();
    side_close();
    reports_close();
    clients_close();
    pool_close();
    trace("end asks=%u done=%u errors=%u deaths=%u", sim.seen.asks, sim.seen.done, sim.seen.errors,
          sim.seen.deaths);
}

static uint32_t faults_of_seed(uint64_t seed)
{
    struct random r = {seed ^ 0x5eed};
    uint32_t kind = random_below(&r, 8), all = (1u << N_FAULTS) - 1;
    if (kind == 0)
        return 0;
    if (kind == 1)
        return FAULT_TIGHT;
    if (kind == 2)
        return all;
    return (uint32_t)random_next(&r) & (uint32_t)random_next(&r) & all;
}

static uint32_t parse_faults(const char *text)
{
    uint32_t faults = 0;
    if (strcmp(text, "none") == 0)
        return 0;
    if (strcmp(text, "all") == 0)
        return (1u << N_FAULTS) - 1;
    while (*text != '\0') {
        size_t n = strcspn(text, ",");
        uint32_t i = 0;
        while (i < N_FAULTS && (strlen(fault_names[i]) != n || strncmp(fault_names[i], text, n) != 0))
            i++;
        if (i == N_FAULTS) {
            fprintf(stderr, "sim: no fault \"%.*s\"; there are", (int)n, text);
            for (i = 0; i < N_FAULTS; i++)
                fprintf(stderr, " %s", fault_names[i]);
            fprintf(stderr, "\n");
            exit(2);
        }
        faults |= 1u << i;
        text += n + (text[n] == ',');
    }
    return faults;
}

static void usage(void)
{
    fprintf(stderr, "usage: sim [--seed N | --seeds FIRST COUNT] [--steps N] [--faults LIST|all|none|seed] "
                    "[--asks N] [--canary]\n"
                    "           [--seconds S] [--replay] [--quiet] [--verbose]\n");
    exit(2);
}

static void parse(int argc, char **argv, struct command *c)
{
    *c = (struct command){.opt = {.n_steps = 3000}, .first = 1, .n_seeds = 1, .faults_by_seed = true};
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i], *v = i + 1 < argc ? argv[i + 1] : "";
        int n_values = 1;
        if (strcmp(a, "--seed") == 0)
            c->first = strtoull(v, NULL, 0);
        else if (strcmp(a, "--seeds") == 0 && i + 2 < argc) {
            c->first = strtoull(v, NULL, 0);
            c->n_seeds = strtoull(argv[i + 2], NULL, 0);
            n_values = 2;
        } else if (strcmp(a, "--steps") == 0)
            c->opt.n_steps = (uint32_t)strtoul(v, NULL, 0);
        else if (strcmp(a, "--asks") == 0)
            c->opt.n_asks = (uint32_t)strtoul(v, NULL, 0);
        else if (strcmp(a, "--seconds") == 0)
            c->seconds = (uint32_t)strtoul(v, NULL, 0);
        else if (strcmp(a, "--faults") == 0) {
            c->faults_by_seed = strcmp(v, "seed") == 0;
            c->opt.faults = c->faults_by_seed ? 0 : parse_faults(v);
        } else {
            n_values = 0;
            if (strcmp(a, "--verbose") == 0)
                c->opt.verbose = true;
            else if (strcmp(a, "--canary") == 0)
                c->opt.canary = true;
            else if (strcmp(a, "--replay") == 0)
                c->replay = true;
            else if (strcmp(a, "--quiet") == 0)
                c->quiet = true;
            else
                usage();
        }
        if (i + n_values >= argc)
            usage();
        i += n_values;
    }
}

static void print_summary(void)
{
    printf("seed %-6" PRIu64 " faults %06x asks %u done %u errors %u gone %u deaths %u takeovers %u "
                             "preemptions %u plans %u tokens %" PRIu64 " cached %" PRIu64 " fair %" PRIu64
           "/%" PRIu64 " steps %u trace %016" PRIx64 "\n",
           sim.opt.seed, sim.opt.faults, sim.seen.asks, sim.seen.done, sim.seen.errors, sim.seen.gone,
           sim.seen.deaths, sim.seen.takeovers, sim.seen.preemptions, sim.seen.plans, sim.seen.tokens,
           sim.seen.cached, sim.seen.fair_worst, sim.seen.fair_bound, sim.n_steps, sim.trace_hash);
}

int main(int argc, char **argv)
{
    struct command c;
    uint64_t n_done = 0, n_asks = 0, n_deaths = 0, n_reports = 0, n_waits = 0, tried[N_FAULTS] = {0};
    time_t began = time(NULL);

    parse(argc, argv, &c);
    signal(SIGABRT, on_abort);
    signal(SIGSEGV, on_abort);
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (uint64_t i = 0; i < c.n_seeds; i++) {
        if (c.seconds != 0 && time(NULL) - began >= (time_t)c.seconds)
            break;
        c.opt.seed = c.first + i;
        if (c.faults_by_seed)
            c.opt.faults = c.opt.canary ? 0 : faults_of_seed(c.opt.seed);
        run_once(&c.opt);
        uint64_t hash = sim.trace_hash;
        if (c.replay) {
            run_once(&c.opt);
            sim_demand(hash == sim.trace_hash,
                       "the same seed gave another trace: %016" PRIx64 ", then %016" PRIx64, hash,
                       sim.trace_hash);
        }
        if (!c.quiet)
            print_summary();
        n_done++;
        n_asks += sim.seen.asks;
        n_deaths += sim.seen.deaths;
        n_reports += sim.seen.reports;
        n_waits += sim.seen.prefix_waits;
        for (uint32_t k = 0; k < N_FAULTS; k++)
            tried[k] += sim.seen.tried[k];
    }
    printf("tried:");
    for (uint32_t k = 0; k < N_FAULTS; k++)
        printf(" %s %" PRIu64, fault_names[k], tried[k]);
    printf("\n");
    if (n_reports > 0)
        printf("%" PRIu64 " answers about time and cache read, %" PRIu64 " of a wait for a prefix, ", n_reports, n_waits);
    printf("%" PRIu64 " seeds, %" PRIu64 " requests, %" PRIu64
           " deaths of workers, all properties held (%ld s)\n",
           n_done, n_asks, n_deaths, (long)(time(NULL) - began));
    return 0;
}
