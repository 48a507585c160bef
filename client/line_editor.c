/* line_editor.c - see line_editor.h.  What the keys do is line_edit.c; here are the terminal and the waiting.
 *
 * The terminal is raw only while a line is being edited: while an answer streams, ^C is a signal again. */
#include "line_editor.h"

#include <errno.h>
#include <locale.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <termios.h>
#include <unistd.h>

#include "line_edit.h"
#include "terminal.h"

enum { ESCAPE_MS = 50 };

struct line_editor {
    int input, signals;
    bool terminal;
    struct termios cooked;
    struct line_edit *edit;            /* on a terminal */
    char text[EDITOR_BYTES_MAX + 1];   /* elsewhere: the line [n] */
    size_t n;
    char pending[4096];                /* read, not yet taken */
    size_t n_pending, taken;
};

struct line_editor *line_editor_new(int input_fd, int signals_fd)
{
    struct line_editor *e = calloc(1, sizeof(*e));

    if (e == NULL)
        return NULL;
    e->input = input_fd;
    e->signals = signals_fd;
    e->terminal = isatty(input_fd) && isatty(STDOUT_FILENO) && tcgetattr(input_fd, &e->cooked) == 0;
    if (!e->terminal)
        return e;
    setlocale(LC_CTYPE, "C.UTF-8"); /* for wcwidth() */
    e->edit = line_edit_new();
    if (e->edit == NULL) {
        free(e);
        return NULL;
    }
    return e;
}

void line_editor_free(struct line_editor *e)
{
    if (e == NULL)
        return;
    line_edit_free(e->edit);
    free(e);
}

bool line_editor_on_terminal(const struct line_editor *e)
{
    return e->terminal;
}

/* --- bytes ------------------------------------------------------------------------------------- */

enum { BYTE_END = -1, BYTE_SIGNAL = -2, BYTE_NONE = -3 };

/* The next byte of the input, 0 .. 255, or BYTE_*.  wait_ms -1: until there is one. */
static int next_byte(struct line_editor *e, int wait_ms)
{
    while (e->taken == e->n_pending) {
        struct pollfd p[2] = {{.fd = e->input, .events = POLLIN}, {.fd = e->signals, .events = POLLIN}};
        int ready = poll(p, 2, wait_ms);
        if (ready < 0 && errno == EINTR)
            continue;
        if (p[1].revents != 0)
            return BYTE_SIGNAL;
        if (ready == 0)
            return BYTE_NONE;
        ssize_t got = read(e->input, e->pending, sizeof(e->pending));
        if (got < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (got <= 0)
            return BYTE_END;
        e->n_pending = (size_t)got;
        e->taken = 0;
    }
    return (unsigned char)e->pending[e->taken++];
}

/* --- a line ------------------------------------------------------------------------------------ */

static enum editor_end edit(struct line_editor *e, const char *prompt)
{
    static const enum editor_end ends[] = {
        [LINE_EDIT_LINE] = EDITOR_LINE, [LINE_EDIT_END] = EDITOR_END, [LINE_EDIT_INTERRUPTED] = EDITOR_INTERRUPTED};
    enum line_edit_end end = LINE_EDIT_MORE;
    size_t n;

    line_edit_begin(e->edit, prompt);
    while (end == LINE_EDIT_MORE) {
        int c = next_byte(e, 0);
        if (c == BYTE_NONE) {
            line_edit_draw(e->edit, terminal_columns(stdout), stdout);
            fflush(stdout);
            c = next_byte(e, ESCAPE_MS);
        }
        if (c == BYTE_NONE) {
            line_edit_pause(e->edit);
            c = next_byte(e, -1);
        }
        if (c == BYTE_END)
            return line_edit_text(e->edit, &n)[0] != '\0' ? EDITOR_LINE : EDITOR_END;
        if (c == BYTE_SIGNAL)
            return EDITOR_SIGNAL;
        end = line_edit_byte(e->edit, (unsigned char)c, stdout);
    }
    line_edit_draw(e->edit, terminal_columns(stdout), stdout);
    return ends[end];
}

static enum editor_end read_terminal(struct line_editor *e, const char *prompt)
{
    struct termios raw = e->cooked;

    raw.c_lflag &= ~(tcflag_t)(ECHO | ICANON | ISIG | IEXTEN);
    raw.c_iflag &= ~(tcflag_t)(IXON | ICRNL | INLCR);
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    tcsetattr(e->input, TCSADRAIN, &raw);
    fputs(LINE_EDIT_ON, stdout);
    enum editor_end end = edit(e, prompt);
    fputs(end == EDITOR_INTERRUPTED ? "^C" LINE_EDIT_OFF "\n" : LINE_EDIT_OFF "\n", stdout);
    fflush(stdout);
    tcsetattr(e->input, TCSADRAIN, &e->cooked);
    return end;
}

/* A line of a file; one that is over the limit ends there and goes on as the next. */
static enum editor_end read_plain(struct line_editor *e)
{
    while (e->n < EDITOR_BYTES_MAX) {
        int c = next_byte(e, -1);
        if (c == BYTE_SIGNAL)
            return EDITOR_SIGNAL;
        if (c == BYTE_END)
            return e->n > 0 ? EDITOR_LINE : EDITOR_END;
        if (c == '\n')
            return EDITOR_LINE;
        e->text[e->n++] = (char)c;
    }
    return EDITOR_LINE;
}

enum editor_end line_editor_read(struct line_editor *e, const char *prompt, const char **ret_line,
                                 size_t *ret_bytes)
{
    e->n = 0;
    enum editor_end end = e->terminal ? read_terminal(e, prompt) : read_plain(e);
    if (end != EDITOR_LINE)
        return end;
    if (e->terminal) {
        *ret_line = line_edit_text(e->edit, ret_bytes);
        return EDITOR_LINE;
    }
    e->text[e->n] = '\0';
    *ret_line = e->text;
    *ret_bytes = e->n;
    return EDITOR_LINE;
}
