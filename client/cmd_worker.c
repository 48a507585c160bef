/* cmd_worker.c - `weir worker`: workers by hand.
 *
 * `list` is part of what the status says.  The other words are orders: the broker takes one at once and answers how the worker is now; with
 * --wait the command stays until the order is carried out, so that a script can go on to whatever needed the device, or until it cannot be. */
#include "commands.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "json_field.h"
#include "terminal.h"

static struct {
    const char *connect, *model, *device;
    bool json, wait;
} options;

enum { LOOK_AGAIN_MS = 50, STARTS_MAX = 3 /* as many as make the broker give a slot up, supervisor.h */ };

size_t worker_flags(struct flag *ret_flags)
{
    const struct flag own[] = {
        {"model", 0, FLAG_TEXT, &options.model, "NAME", "add: of this model (default: the first)", 0, 0},
        {"device", 0, FLAG_TEXT, &options.device, "DEVICE", "add: auto, cpu, cuda or cuda:K (default: auto)", 0, 0},
        {"wait", 'w', FLAG_SWITCH, &options.wait, NULL, "until the order is carried out", 0, 0},
        {"json", 0, FLAG_SWITCH, &options.json, NULL, "print JSON", 0, 0},
    };
    size_t n = sizeof(own) / sizeof(own[0]);

    memcpy(ret_flags, own, sizeof(own));
    return n + command_connect_flags(ret_flags + n, &options.connect);
}

/* --- what there is ----------------------------------------------------------------------------- */

/* The workers of the status; NULL with *err. */
static json_t *ask_workers(struct weir_client *c, struct weir_error *err)
{
    char *text = NULL;

    if (weir_query_wait(c, WEIR_QUERY_STATUS, &text, err) != WEIR_OK)
        return NULL;
    json_t *status = json_loads(text, 0, NULL), *workers = json_incref(json_object_get(status, "workers"));
    json_decref(status);
    free(text);
    if (workers == NULL) {
        memset(err, 0, sizeof(*err));
        snprintf(err->code, sizeof(err->code), "internal_error");
        snprintf(err->message, sizeof(err->message), "the broker's status lists no workers");
    }
    return workers;
}

static void print_column(const char *text, int width)
{
    terminal_text(stdout, text, strlen(text));
    printf("%*s", width > (int)strlen(text) ? width - (int)strlen(text) : 1, "");
}

static enum exit_code list(struct weir_client *c)
{
    struct weir_error err;
    json_t *workers = ask_workers(c, &err), *w;
    size_t i;

    if (workers == NULL)
        return command_error("worker", &err);
    if (options.json)
        return command_print_json(workers);
    json_array_foreach(workers, i, w)
    {
        printf("%2.0f  ", json_number_value(json_object_get(w, "slot")));
        print_column(json_text(w, "order"), 8);
        print_column(json_text(w, "state"), 10);
        print_column(json_text(w, "model"), 28);
        print_column(json_text(w, "device"), 22);
        printf("%4.0f held  ", json_number_value(json_object_get(w, "held")));
        terminal_text(stdout, json_text(w, "error"), strlen(json_text(w, "error")));
        putchar('\n');
    }
    json_decref(workers);
    return command_flush("worker") ? EXIT_DONE : EXIT_FAILED;
}

/* --- orders ------------------------------------------------------------------------------------ */

enum progress { UNDER_WAY, CARRIED_OUT, OVERRULED, CANNOT_START };

/* How far the order about this worker is (NULL: it is gone).  *n_failed counts its starts that failed, each by its life. */
static enum progress progress_of(const char *verb, const json_t *w, double *failed_life, uint32_t *n_failed)
{
    bool is_start = strcmp(verb, "add") == 0 || strcmp(verb, "resume") == 0;

    if (w == NULL)
        return strcmp(verb, "remove") == 0 ? CARRIED_OUT : OVERRULED;
    if (strcmp(json_text(w, "order"), is_start ? "run" : verb) != 0)
        return OVERRULED;
    const char *state = json_text(w, "state");
    if (strcmp(verb, "drain") == 0)
        return strcmp(state, "stopped") == 0 ? CARRIED_OUT : UNDER_WAY;
    if (strcmp(verb, "pause") == 0)
        return json_number_value(json_object_get(w, "held")) == 0 ? CARRIED_OUT : UNDER_WAY;
    if (!is_start)
        return UNDER_WAY;
    if (strcmp(state, "ready") == 0)
        return CARRIED_OUT;
    double life = json_number_value(json_object_get(w, "life"));
    if (strcmp(state, "waiting") == 0 && json_text(w, "error")[0] != '\0' && life != *failed_life) {
        *failed_life = life;
        ++*n_failed;
    }
    return *n_failed >= STARTS_MAX ? CANNOT_START : UNDER_WAY;
}

static enum exit_code wait_for(struct weir_client *c, const char *verb, uint32_t slot)
{
    struct weir_error err;
    double failed_life = -1;
    uint32_t n_failed = 0;
    size_t i;

    for (;;) {
        json_t *workers = ask_workers(c, &err), *w, *mine = NULL;
        if (workers == NULL)
            return command_error("worker", &err);
        json_array_foreach(workers, i, w) if (json_number_value(json_object_get(w, "slot")) == slot) mine = w;
        enum progress p = progress_of(verb, mine, &failed_life, &n_failed);
        if (p == OVERRULED)
            fprintf(stderr, "weir worker: worker %u got another order meanwhile: %s\n", slot,
                    mine != NULL ? json_text(mine, "order") : "remove");
        if (p == CANNOT_START) {
            fprintf(stderr, "weir worker: worker %u cannot start, and is tried again now and then: ", slot);
            terminal_text(stderr, json_text(mine, "error"), strlen(json_text(mine, "error")));
            putc('\n', stderr);
        }
        json_decref(workers);
        if (p != UNDER_WAY)
            return p == CARRIED_OUT ? EXIT_DONE : EXIT_FAILED;
        nanosleep(&(struct timespec){.tv_nsec = LOOK_AGAIN_MS * 1000000L}, NULL);
    }
}

static enum exit_code give_order(struct weir_client *c, const struct weir_worker_order *order)
{
    struct weir_error err;
    char *text = NULL;

    if (weir_worker_order_wait(c, order, &text, &err) != WEIR_OK)
        return command_error("worker", &err);
    json_t *reply = json_loads(text, 0, NULL);
    uint32_t slot = (uint32_t)json_integer_value(json_object_get(reply, "worker"));
    enum exit_code code = options.wait ? wait_for(c, order->verb, slot) : EXIT_DONE;

    if (code == EXIT_DONE && options.json)
        code = command_print_json(json_incref(reply));
    else if (code == EXIT_DONE && strcmp(order->verb, "add") == 0)
        printf("%u\n", slot); /* for scripts: which one it is */
    json_decref(reply);
    free(text);
    return command_flush("worker") ? code : EXIT_FAILED;
}

/* The slot that argv names.  False when it is no number. */
static bool read_slot(const char *text, uint32_t *ret_slot)
{
    char *end;
    unsigned long n = strtoul(text, &end, 10);

    *ret_slot = (uint32_t)n;
    return text[0] >= '0' && text[0] <= '9' && *end == '\0' && n < 1000;
}

int cmd_worker(int argc, char **argv)
{
    struct flag flags[FLAGS_MAX];
    struct weir_worker_order order = {0};
    struct weir_client *c = NULL;
    int n_args = flags_parse(flags, worker_flags(flags), "worker", argc, argv);

    if (n_args == FLAGS_HELP)
        return command_help("worker");
    if (n_args < 0)
        return EXIT_USAGE;
    if (n_args == 0)
        return command_usage("worker", "what shall be done: list, pause, resume, drain, add or remove?");
    order.verb = argv[0];
    bool is_list = strcmp(order.verb, "list") == 0, is_add = strcmp(order.verb, "add") == 0;
    if (!is_list && !is_add && strcmp(order.verb, "pause") != 0 && strcmp(order.verb, "resume") != 0 &&
        strcmp(order.verb, "drain") != 0 && strcmp(order.verb, "remove") != 0)
        return command_usage("worker", "\"%s\" is none of list, pause, resume, drain, add and remove", order.verb);
    if (n_args != (is_list || is_add ? 1 : 2))
        return command_usage("worker", is_list || is_add ? "%s takes no argument" : "%s takes one argument, a worker's slot",
                             order.verb);
    if (n_args == 2 && !read_slot(argv[1], &order.worker))
        return command_usage("worker", "\"%s\" is no slot; `weir worker list` shows them", argv[1]);
    if (!is_add && (options.model != NULL || options.device != NULL))
        return command_usage("worker", "--model and --device go with add");
    order.model = options.model;
    order.device = options.device;
    enum exit_code code = command_open("worker", options.connect, &c);
    if (code == EXIT_DONE)
        code = is_list ? list(c) : give_order(c, &order);
    weir_close(c);
    return code;
}
