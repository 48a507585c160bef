/* command.c - see command.h. */
#include "command.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "answer_json.h"
#include "clock.h"
#include "limits.h"
#include "terminal.h"

enum { RECONNECT_MS = 5000 };

/* Wrong is where to connect, or with which key: no request has such parameters. */
static bool is_of_the_connection(const struct weir_error *e)
{
    return strcmp(e->code, "invalid_parameter") == 0 &&
           (strcmp(e->param, "endpoint") == 0 || strcmp(e->param, "key") == 0 || strcmp(e->param, "server-key") == 0);
}

enum exit_code command_exit_code(const struct weir_error *e)
{
    static const struct {
        const char *code;
        enum exit_code exit;
    } table[] = {
        {"broker_unreachable", EXIT_UNREACHABLE},
        {"version_mismatch", EXIT_UNREACHABLE},
        {"busy", EXIT_REFUSED},
        {"no_worker", EXIT_REFUSED},
        {"shutting_down", EXIT_REFUSED},
        {"permission_denied", EXIT_REFUSED},
    };

    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if (strcmp(table[i].code, e->code) == 0)
            return table[i].exit;
    return is_of_the_connection(e) ? EXIT_USAGE : EXIT_FAILED;
}

enum exit_code command_error(const char *verb, const struct weir_error *e)
{
    fflush(stdout);
    fprintf(stderr, "weir %s: %s: ", verb, e->code);
    terminal_show(stderr, e->message, strlen(e->message));
    if (e->param[0] != '\0') {
        fputs(" (", stderr);
        terminal_show(stderr, e->param, strlen(e->param));
        fputs(")", stderr);
    }
    fputs("\n", stderr);
    return command_exit_code(e);
}

json_t *command_error_json(const struct weir_error *e)
{
    return json_pack("{s:s, s:o, s:o}", "code", e->code, "message",
                     answer_json_text(e->message, strlen(e->message)), "param",
                     answer_json_text(e->param, strlen(e->param)));
}

enum exit_code command_usage(const char *verb, const char *format, ...)
{
    va_list args;

    fprintf(stderr, "weir %s: ", verb);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "\n`weir help %s` says how it is used.\n", verb);
    return EXIT_USAGE;
}

/* --- input and output -------------------------------------------------------------------------- */

bool command_flush(const char *verb)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return true;
    fprintf(stderr, "weir %s: cannot write: %s\n", verb, strerror(errno));
    return false;
}

enum exit_code command_print_json(json_t *v)
{
    char *text = v != NULL ? json_dumps(v, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;

    json_decref(v);
    if (text == NULL) {
        fprintf(stderr, "weir: out of memory\n");
        return EXIT_FAILED;
    }
    terminal_text(stdout, text, strlen(text));
    putchar('\n');
    free(text);
    return command_flush("json") ? EXIT_DONE : EXIT_FAILED;
}

/* All of standard input, at most one byte more than a prompt may have: the broker's error then names the limit. */
static enum exit_code read_input(const char *verb, char **ret_text, size_t *ret_bytes)
{
    size_t room = PROMPT_BYTES_MAX + 1, n = 0;
    char *text = malloc(room + 1);

    if (text == NULL) {
        fprintf(stderr, "weir %s: out of memory\n", verb);
        return EXIT_FAILED;
    }
    while (n < room) {
        ssize_t got = read(STDIN_FILENO, text + n, room - n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            fprintf(stderr, "weir %s: cannot read standard input: %s\n", verb, strerror(errno));
            free(text);
            return EXIT_FAILED;
        }
        if (got == 0)
            break;
        n += (size_t)got;
    }
    text[n] = '\0';
    *ret_text = text;
    *ret_bytes = n;
    return EXIT_DONE;
}

enum exit_code command_text(const char *verb, const char *arg, char **ret_text, size_t *ret_bytes)
{
    if (strcmp(arg, "-") == 0)
        return read_input(verb, ret_text, ret_bytes);
    char *text = strdup(arg);
    if (text == NULL) {
        fprintf(stderr, "weir %s: out of memory\n", verb);
        return EXIT_FAILED;
    }
    *ret_text = text;
    *ret_bytes = strlen(text);
    return EXIT_DONE;
}

/* --- the broker -------------------------------------------------------------------------------- */

static const char *key_file, *server_key;

size_t command_connect_flags(struct flag *ret_flags, const char **connect)
{
    ret_flags[0] =
        (struct flag){"connect", 0,          FLAG_TEXT,
                      connect,   "ENDPOINT", "the broker (default: WEIR_CONNECT, else the local pool)",
                      0,         0};
    ret_flags[1] = (struct flag){
        "key",     0,      FLAG_TEXT,
        &key_file, "FILE", "for tcp://: who you are, a file of `weir key new` (default: WEIR_KEY)",
        0,         0};
    ret_flags[2] = (struct flag){
        "server-key",
        0,
        FLAG_TEXT,
        &server_key,
        "KEY",
        "for tcp://: the broker's public key (default: WEIR_SERVER_KEY, else that in the key file)",
        0,
        0};
    return 3;
}

static int open_pool(struct weir_client **ret_client, const char *connect, const char *name,
                     struct weir_error *err)
{
    return weir_open(ret_client,
                     &(struct weir_options){
                         .endpoint = connect, .name = name, .key_file = key_file, .server_key = server_key},
                     err);
}

enum exit_code command_open(const char *verb, const char *connect, struct weir_client **ret_client)
{
    struct weir_error err;
    char name[48];

    snprintf(name, sizeof(name), "weir %s", verb);
    if (open_pool(ret_client, connect, name, &err) == WEIR_OK)
        return EXIT_DONE;
    return command_error(verb, &err);
}

int command_signals(void)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

int command_signal(int signals_fd)
{
    struct signalfd_siginfo info;

    return read(signals_fd, &info, sizeof(info)) == sizeof(info) ? (int)info.ssi_signo : 0;
}

/* Sleep until the client or a signal has something, at most limit_ms (-1: no limit).  Gives the signal, or 0. */
static int step(struct weir_client *c, int signals_fd, int limit_ms)
{
    struct weir_error ignored; /* every request that it concerns gets it as its own */
    struct pollfd p[2] = {{.fd = weir_fd(c), .events = POLLIN}, {.fd = signals_fd, .events = POLLIN}};
    int timeout = weir_timeout_ms(c);

    if (limit_ms >= 0 && (timeout < 0 || timeout > limit_ms))
        timeout = limit_ms;
    if (poll(p, 2, timeout) < 0 && errno != EINTR)
        return SIGTERM;
    (void)weir_process(c, &ignored);
    return command_signal(signals_fd);
}

int command_run(struct weir_client *c, int signals_fd, const bool *until)
{
    int signal_number = 0;

    while (!*until && signal_number == 0)
        signal_number = step(c, signals_fd, -1);
    return signal_number;
}

int command_reconnect(struct weir_client *c, int signals_fd)
{
    return command_reconnect_until(c, signals_fd, clock_now_ns() + RECONNECT_MS * 1000000ull);
}

int command_reconnect_until(struct weir_client *c, int signals_fd, uint64_t until)
{
    struct weir_error ignored;
    int signal_number = 0;

    (void)weir_process(c, &ignored); /* the loss may not have been noticed yet */
    while (!weir_connected(c) && signal_number == 0 && clock_now_ns() < until)
        signal_number = step(c, signals_fd, 100);
    return signal_number;
}

json_t *command_status(const char *connect, struct weir_error *err)
{
    struct weir_client *c = NULL;
    char *text = NULL;
    json_t *status = NULL;

    if (open_pool(&c, connect, "weir status", err) != WEIR_OK)
        return NULL;
    if (weir_query_wait(c, WEIR_QUERY_STATUS, &text, err) == WEIR_OK) {
        status = json_loads(text, 0, NULL);
        if (status == NULL)
            snprintf(err->code, sizeof(err->code), "internal_error");
    }
    free(text);
    weir_close(c);
    return status;
}

/* --- the flags of a request -------------------------------------------------------------------- */

size_t request_flags_sampling(struct request_flags *f, struct flag *ret_flags)
{
    const struct flag flags[] = {
        {"max-tokens", 'm', FLAG_U32, &f->max_tokens, "N",
         "stop after N tokens (default: at the answer's own end)", 1, OUTPUT_TOKENS_MAX},
        {"temperature", 't', FLAG_NUMBER, &f->temperature, "T",
         "0 always takes the likeliest token (default 1)", 0, 100},
        {"top-p", 0, FLAG_NUMBER, &f->top_p, "P",
         "only the likeliest tokens that together have probability P", 0, 1},
        {"top-k", 0, FLAG_U32, &f->top_k, "K", "only the K likeliest tokens", 0, INT32_MAX},
        {"min-p", 0, FLAG_NUMBER, &f->min_p, "P", "only tokens with P times the probability of the likeliest",
         0, 1},
        {"repetition-penalty", 0, FLAG_NUMBER, &f->repetition_penalty, "R",
         "above 1: tokens that were there become less likely", 0, 100},
        {"presence-penalty", 0, FLAG_NUMBER, &f->presence_penalty, "X",
         "taken once from the logit of a token that was generated", -2, 2},
        {"frequency-penalty", 0, FLAG_NUMBER, &f->frequency_penalty, "X", "taken for every time it was", -2,
         2},
        {"seed", 's', FLAG_U64, &f->seed, "S",
         "the same seed gives the same answer (default: drawn, see --json)", 0, 0},
        {"stop", 0, FLAG_LIST, &f->stop, "TEXT", "end before this text; may repeat", 0, 0},
        {"ignore-eos", 0, FLAG_SWITCH, &f->ignore_eos, NULL,
         "go on after the model's end token, up to --max-tokens", 0, 0},
        {"cache", 0, FLAG_TEXT, &f->cache, "on|off", "reuse and leave computed prompts (default on)", 0, 0},
        {"scope", 0, FLAG_TEXT, &f->scope, "user|pool", "whose computed prompts may be met (default user, or as the users file says)", 0,
         0},
        {"salt", 0, FLAG_TEXT, &f->salt, "TEXT", "narrow that to those who give the same salt", 0, 0},
        {"class", 0, FLAG_TEXT, &f->class_name, "NAME", "interactive or batch", 0, 0},
        {"priority", 0, FLAG_TEXT, &f->priority, "NAME", "low, normal or high, among your own waiting requests", 0, 0},
        {"deadline", 0, FLAG_MS, &f->deadline_ms, "TIME", "give up after this time: 500ms, 20s, 5m", 0, 0},
        {"model", 0, FLAG_TEXT, &f->model, "NAME", "one of `weir models` (default: the first)", 0, 0},
    };

    memcpy(ret_flags, flags, sizeof(flags));
    return sizeof(flags) / sizeof(flags[0]);
}

static bool one_of(const char *verb, const char *flag, const char *value, const char *a, const char *b)
{
    if (value == NULL || strcmp(value, a) == 0 || strcmp(value, b) == 0)
        return true;
    fprintf(stderr, "weir %s: --%s wants %s or %s, not \"%s\"\n", verb, flag, a, b, value);
    return false;
}

static bool priority_of(const char *verb, const char *word, int *ret_priority)
{
    static const char *const words[] = {"low", "normal", "high"};

    for (int i = 0; i < 3; i++)
        if (strcmp(word != NULL ? word : "normal", words[i]) == 0) {
            *ret_priority = i - 1;
            return true;
        }
    fprintf(stderr, "weir %s: --priority wants low, normal or high, not \"%s\"\n", verb, word);
    return false;
}

static const double *given(const struct flag_number *n)
{
    return n->set ? &n->value : NULL;
}

enum exit_code request_flags_apply(const struct request_flags *f, const char *verb, struct weir_request *r)
{
    if (!one_of(verb, "cache", f->cache, "on", "off") || !one_of(verb, "scope", f->scope, "user", "pool") ||
        !one_of(verb, "class", f->class_name, "interactive", "batch"))
        return EXIT_USAGE;
    if (!priority_of(verb, f->priority, &r->priority))
        return EXIT_USAGE;
    r->model = f->model;
    r->raw = f->raw;
    r->batch = f->class_name != NULL && strcmp(f->class_name, "batch") == 0;
    r->cache_off = f->cache != NULL && strcmp(f->cache, "off") == 0;
    r->scope = f->scope;
    r->salt = f->salt;
    r->ignore_eos = f->ignore_eos;
    r->chat_template = f->chat_template;
    r->max_tokens = f->max_tokens;
    r->n = f->n;
    r->deadline_ms = f->deadline_ms;
    r->seed = f->seed.set ? &f->seed.value : NULL;
    r->temperature = given(&f->temperature);
    r->top_p = given(&f->top_p);
    r->min_p = given(&f->min_p);
    r->repetition_penalty = given(&f->repetition_penalty);
    r->presence_penalty = given(&f->presence_penalty);
    r->frequency_penalty = given(&f->frequency_penalty);
    r->top_k = f->top_k;
    r->logprobs = f->logprobs || f->top_logprobs > 0;
    r->n_top_logprobs = f->top_logprobs;
    r->stop = f->stop.at;
    r->n_stop = f->stop.n;
    return EXIT_DONE;
}
