/* cmd_top.c - `weir top`: the pool as it is now, drawn anew every second.
 *
 * On a terminal it takes the alternate screen and single keys, and gives both back however it ends.  In a pipe, or with --once, it prints
 * two looks a moment apart as one page of text and leaves. */
#include "commands.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "terminal.h"
#include "top_view.h"

static struct {
    const char *connect;
    uint32_t delay_ms;
    bool once, no_color;
} options;

enum { DELAY_MS = 1000, DELAY_MS_MIN = 100, LOOK_MS = 100 };

size_t top_flags(struct flag *ret_flags)
{
    size_t n = 0;

    ret_flags[n++] = (struct flag){
        "delay", 'd', FLAG_MS, &options.delay_ms, "TIME", "between two looks (default 1s, at least 100ms)", 0, 0};
    ret_flags[n++] = (struct flag){
        "once", '1', FLAG_SWITCH, &options.once, NULL, "print one page and leave, as in a pipe", 0, 0};
    ret_flags[n++] =
        (struct flag){"no-color", 0, FLAG_SWITCH, &options.no_color, NULL, "no colours (or set NO_COLOR)", 0, 0};
    return n + command_connect_flags(ret_flags + n, &options.connect);
}

struct top {
    struct top_view view;
    struct top_looks looks;
    char problem[512];
    int signals;
};

/* Look once more.  Without a broker the last page stays, with the reason below it. */
static void look(struct top *t)
{
    struct weir_error err;
    json_t *status = command_status(options.connect, &err);
    uint64_t ns = clock_now_ns();

    t->view.problem = NULL;
    if (status == NULL) {
        snprintf(t->problem, sizeof(t->problem), "%s: %s", err.code, err.message);
        t->view.problem = t->problem;
        return;
    }
    top_looks_add(&t->looks, status, ns, &t->view);
}

static enum exit_code print_once(struct top *t)
{
    look(t);
    if (t->view.problem == NULL) {
        nanosleep(&(struct timespec){options.delay_ms / 1000, options.delay_ms % 1000 * 1000000L}, NULL);
        look(t);
    }
    if (t->view.problem != NULL) {
        fprintf(stderr, "weir top: %s\n", t->view.problem);
        return EXIT_UNREACHABLE;
    }
    t->view.columns = terminal_is(stdout) ? terminal_columns(stdout) : 132;
    t->view.lines = 4096;
    top_view_print(&t->view, stdout);
    return command_flush("top") ? EXIT_DONE : EXIT_FAILED;
}

/* --- on a terminal ------------------------------------------------------------------------------ */

static void draw(struct top *t)
{
    struct winsize w = {0};
    char *page = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&page, &n);

    if (f == NULL)
        return;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) != 0 || w.ws_col == 0 || w.ws_row == 0)
        w = (struct winsize){.ws_col = 80, .ws_row = 24};
    t->view.columns = w.ws_col;
    t->view.lines = w.ws_row;
    fputs("\033[H", f);
    top_view_print(&t->view, f);
    if (fclose(f) == 0)
        fwrite(page, 1, n, stdout); /* in one piece: no flicker */
    fflush(stdout);
    free(page);
}

/* Act on keys.  false: leave. */
static bool take_keys(struct top *t)
{
    char keys[64];
    ssize_t n = read(STDIN_FILENO, keys, sizeof(keys));

    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
        return false; /* the terminal has gone */
    for (ssize_t i = 0; i < n; i++) {
        if (keys[i] == 'q' || keys[i] == 'Q')
            return false;
        if (keys[i] == 's')
            t->view.sort = (t->view.sort + 1) % TOP_SORTS;
        if (keys[i] == ' ')
            t->view.paused = !t->view.paused;
    }
    return true;
}

static enum exit_code follow(struct top *t)
{
    uint64_t due_ns = 0;
    struct pollfd p[2] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.fd = t->signals, .events = POLLIN}};

    for (;;) {
        if (clock_now_ns() >= due_ns && !t->view.paused) {
            look(t);
            due_ns = clock_now_ns() + options.delay_ms * 1000000ull;
        }
        draw(t);
        uint64_t now_ns = clock_now_ns(), wait_ms = t->view.paused || due_ns <= now_ns ? LOOK_MS : (due_ns - now_ns) / 1000000 + 1;
        if (poll(p, 2, wait_ms < LOOK_MS ? (int)wait_ms : LOOK_MS) > 0) { /* LOOK_MS: also to notice another size */
            if (p[1].revents != 0 && command_signal(t->signals) != 0)
                return EXIT_INTERRUPTED;
            if (p[0].revents != 0 && !take_keys(t))
                return EXIT_DONE;
        }
    }
}

static enum exit_code on_terminal(struct top *t)
{
    struct termios before, raw;

    if (tcgetattr(STDIN_FILENO, &before) != 0)
        return print_once(t);
    raw = before;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    fputs("\033[?1049h\033[?25l\033[2J", stdout); /* the alternate screen, no cursor */
    t->view.on_screen = true;
    t->view.color = !options.no_color && getenv("NO_COLOR") == NULL;
    enum exit_code code = follow(t);
    fputs("\033[?25h\033[?1049l", stdout);
    fflush(stdout);
    tcsetattr(STDIN_FILENO, TCSANOW, &before);
    return code;
}

int cmd_top(int argc, char **argv)
{
    struct flag flags[FLAGS_MAX];
    struct top t = {0};

    options.delay_ms = DELAY_MS;
    int n_args = flags_parse(flags, top_flags(flags), "top", argc, argv);
    if (n_args == FLAGS_HELP)
        return command_help("top");
    if (n_args < 0)
        return EXIT_USAGE;
    if (n_args > 0)
        return command_usage("top", "it takes no argument, but there is \"%s\"", argv[0]);
    if (options.delay_ms < DELAY_MS_MIN)
        return command_usage("top", "--delay is %u ms, must be at least %d", options.delay_ms, DELAY_MS_MIN);
    t.signals = command_signals();
    enum exit_code code =
        !options.once && terminal_is(stdin) && terminal_is(stdout) ? on_terminal(&t) : print_once(&t);
    top_looks_deinit(&t.looks);
    return code;
}
