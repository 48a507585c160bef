/* verb_top.c - `ssh -t box top`: the pool, drawn anew every second; the page is that of `weir top` (top_view.h).
 *
 * (b) leaves of the users only the one who asks, so nobody sees who else is there.  On a terminal it takes the alternate screen, and gives it back
 * however it ends.  Elsewhere it prints one page, made of two looks a second apart; with --json the first look, as it is. */
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "top_view.h"
#include "verb_job.h"

enum { LOOK_NS = 1000000000 };

struct top {
    struct top_view view;
    struct top_looks looks;
    uint64_t due_ns;
    char problem[ERROR_MESSAGE_BYTES + 64];
};

static void start_top(struct talk *t)
{
    struct top *v = calloc(1, sizeof *v);

    t->own = v;
    if (v == NULL) {
        talk_finish(t, EXIT_INTERNAL);
        return;
    }
    v->view.on_screen = v->view.color = t->pty && !t->call.has[OPT_JSON];
    if (v->view.on_screen)
        talk_print(t, "\x1b[?1049h\x1b[?25l\x1b[2J"); /* the alternate screen, no cursor */
    pool_ask(t, DOOR_POOL_STATUS);
}

static void draw(struct talk *t)
{
    struct top *v = t->own;
    char *page = NULL;
    size_t n = 0;
    FILE *to = open_memstream(&page, &n);

    if (to == NULL) {
        talk_finish(t, EXIT_INTERNAL);
        return;
    }
    t->resized = false;
    v->view.columns = v->view.on_screen ? (unsigned)t->columns : 132;
    v->view.lines = v->view.on_screen ? (unsigned)t->rows : 4096;
    if (v->view.on_screen)
        fputs("\x1b[H", to);
    top_view_print(&v->view, to);
    if (fclose(to) == 0)
        talk_write(t, span_of(page, n));
    free(page);
}

static void on_status(struct talk *t, json_t *status)
{
    struct top *v = t->own;
    uint64_t ns = clock_now_ns();

    v->view.problem = NULL;
    v->due_ns = ns + LOOK_NS;
    top_looks_add(&v->looks, status, ns, &v->view);
}

static void top_reply(struct talk *t, struct door_reader *r, int fd)
{
    struct top *v = t->own;
    json_t *status = job_reply_json(t, r, fd);

    if (status == NULL)
        return;
    on_status(t, status);
    if (t->call.has[OPT_JSON]) {
        talk_print_json(t, status);
        talk_finish(t, EXIT_OK);
    } else if (v->view.on_screen) {
        draw(t);
    } else if (v->looks.before != NULL) {
        draw(t);
        talk_finish(t, EXIT_OK);
    }
}

/* On a screen the last page stays, with the reason below it: the pool may come back. */
static void top_failed(struct talk *t, const struct error *err)
{
    struct top *v = t->own;

    if (!v->view.on_screen) {
        talk_fail(t, err);
        return;
    }
    snprintf(v->problem, sizeof v->problem, "%s: %s", error_code_name(err->code), err->message);
    v->view.problem = v->problem;
    v->due_ns = clock_now_ns() + LOOK_NS;
    draw(t);
}

static void top_tick(struct talk *t, uint64_t now_ns)
{
    const struct top *v = t->own;

    if (!t->asking && !v->view.paused && now_ns >= v->due_ns && t->out.n == 0) /* a slow reader gets fewer pages, not a queue of them */
        pool_ask(t, DOOR_POOL_STATUS);
    else if (t->resized && v->view.on_screen && t->out.n == 0)
        draw(t);
}

static void top_keys(struct talk *t, struct span data)
{
    struct top *v = t->own;

    for (size_t i = 0; i < data.n && !t->finished; i++) {
        if (data.at[i] == 'q' || data.at[i] == 'Q' || data.at[i] == 4)
            talk_finish(t, EXIT_OK);
        else if (data.at[i] == 3)
            talk_finish(t, EXIT_INTERRUPTED);
        else if (data.at[i] == ' ')
            v->view.paused = !v->view.paused;
        else if (data.at[i] == 's')
            v->view.sort = (v->view.sort + 1) % TOP_SORTS;
    }
    if (!t->finished && v->view.on_screen && t->out.n == 0)
        draw(t);
}

static void leave_top(struct talk *t)
{
    const struct top *v = t->own;

    if (v != NULL && v->view.on_screen)
        talk_print(t, "\x1b[?25h\x1b[?1049l");
}

static void stop_top(struct talk *t)
{
    struct top *v = t->own;

    if (v == NULL)
        return;
    top_looks_deinit(&v->looks);
    free(v);
    t->own = NULL;
}

const struct verb_handler verb_top_handler = { .start = start_top,
                                               .reply = top_reply,
                                               .failed = top_failed,
                                               .tick = top_tick,
                                               .keys = top_keys,
                                               .leave = leave_top,
                                               .stop = stop_top };
