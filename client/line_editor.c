/* line_editor.c - see line_editor.h.
 *
 * The line stands on one row of the terminal and scrolls sideways when it is longer: no guessing where a terminal wraps.  After all keys
 * that are there have been taken, the row is drawn again from its beginning; that is enough at the speed of fingers, and of a paste.
 * The terminal is raw only while a line is being edited: while an answer streams, ^C is a signal again. */
#include "line_editor.h"

#include <errno.h>
#include <locale.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>
#include <wchar.h>

#include "terminal.h"

struct line_editor {
    int input, signals;
    bool terminal, pasting;
    struct termios cooked;
    char text[EDITOR_BYTES_MAX + 1]; /* the line [n], the cursor before byte `at` */
    size_t n, at;
    char *history[EDITOR_HISTORY]; /* oldest first */
    size_t n_history, looking_at;  /* n_history: at the line being written */
    char pending[4096];            /* read, not yet taken */
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
    if (e->terminal)
        setlocale(LC_CTYPE, "C.UTF-8"); /* for wcwidth() */
    return e;
}

void line_editor_free(struct line_editor *e)
{
    if (e == NULL)
        return;
    for (size_t i = 0; i < e->n_history; i++)
        free(e->history[i]);
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

static bool continues(char c)
{
    return ((unsigned char)c & 0xC0) == 0x80;
}

static size_t before(const struct line_editor *e, size_t at)
{
    if (at > 0)
        at--;
    while (at > 0 && continues(e->text[at]))
        at--;
    return at;
}

static size_t behind(const struct line_editor *e, size_t at)
{
    if (at < e->n)
        at++;
    while (at < e->n && continues(e->text[at]))
        at++;
    return at;
}

static void insert(struct line_editor *e, char c)
{
    if (e->n == EDITOR_BYTES_MAX) {
        fputc('\a', stdout);
        return;
    }
    memmove(e->text + e->at + 1, e->text + e->at, e->n - e->at);
    e->text[e->at++] = c;
    e->n++;
}

static void erase(struct line_editor *e, size_t from, size_t to)
{
    memmove(e->text + from, e->text + to, e->n - to);
    e->n -= to - from;
    e->at = from;
}

/* --- drawing ----------------------------------------------------------------------------------- */

/* Columns of the character at text[at]. */
static unsigned columns_of(const struct line_editor *e, size_t at)
{
    static const unsigned char lead_mask[] = {0x7F, 0x1F, 0x0F, 0x07};
    size_t n = behind(e, at) - at;
    uint32_t c = (unsigned char)e->text[at];

    if (c < 0x20 || c == 0x7F)
        return c == '\n' ? 1 : 2; /* drawn as a mark, or as ^X */
    if (n > 4)
        return 1;
    c &= lead_mask[n - 1];
    for (size_t i = 1; i < n; i++)
        c = c << 6 | ((unsigned char)e->text[at + i] & 0x3F);
    int columns = wcwidth((wchar_t)c);
    return columns < 0 ? 1 : (unsigned)columns;
}

static unsigned columns_between(const struct line_editor *e, size_t from, size_t to)
{
    unsigned sum = 0;

    for (size_t at = from; at < to; at = behind(e, at))
        sum += columns_of(e, at);
    return sum;
}

static void draw(const struct line_editor *e, const char *prompt)
{
    unsigned room = terminal_columns(stdout), left = (unsigned)strlen(prompt);
    size_t from = 0, to;

    room = room > left + 8 ? room - left - 1 : 8;
    while (columns_between(e, from, e->at) >= room) /* the cursor stays in sight */
        from = behind(e, from);
    unsigned used = 0, cursor = left + columns_between(e, from, e->at);
    printf("\r%s", prompt);
    for (to = from; to < e->n && used + columns_of(e, to) <= room; to = behind(e, to)) {
        used += columns_of(e, to);
        if (e->text[to] == '\n')
            fputc('|', stdout);
        else
            terminal_show(stdout, e->text + to, behind(e, to) - to);
    }
    printf("\x1b[K\r\x1b[%uC", cursor);
    fflush(stdout);
}

/* --- keys -------------------------------------------------------------------------------------- */

static void show_history(struct line_editor *e, size_t which)
{
    if (which > e->n_history)
        return;
    e->looking_at = which;
    e->n = 0;
    if (which < e->n_history) {
        e->n = strlen(e->history[which]);
        memcpy(e->text, e->history[which], e->n);
    }
    e->at = e->n;
}

/* Behind ESC: [ or O, numbers, a final letter or ~. */
static void escape_sequence(struct line_editor *e)
{
    int c = next_byte(e, 50), number = 0;

    if (c != '[' && c != 'O')
        return;
    do {
        c = next_byte(e, 50);
        if (c >= '0' && c <= '9' && number < 1000)
            number = number * 10 + c - '0';
    } while ((c >= '0' && c <= '9') || c == ';');
    if (c == '~')
        c = number == 1 || number == 7   ? 'H'
            : number == 4 || number == 8 ? 'F'
            : number == 3                ? 'x'
            : number == 200              ? 'p'
            : number == 201              ? 'q'
                                         : 0;
    switch (c) {
    case 'A':
        show_history(e, e->looking_at > 0 ? e->looking_at - 1 : 0);
        break;
    case 'B':
        show_history(e, e->looking_at + 1);
        break;
    case 'C':
        e->at = behind(e, e->at);
        break;
    case 'D':
        e->at = before(e, e->at);
        break;
    case 'H':
        e->at = 0;
        break;
    case 'F':
        e->at = e->n;
        break;
    case 'x':
        erase(e, e->at, behind(e, e->at));
        break;
    case 'p':
    case 'q':
        e->pasting = c == 'p';
        break;
    default:
        break;
    }
}

static void erase_word(struct line_editor *e)
{
    size_t from = e->at;

    while (from > 0 && e->text[from - 1] == ' ')
        from--;
    while (from > 0 && e->text[from - 1] != ' ')
        from--;
    erase(e, from, e->at);
}

enum { KEY_GOES_ON = -1 };

static int control_key(struct line_editor *e, int c)
{
    switch (c) {
    case 1: /* ^A */
        e->at = 0;
        break;
    case 2: /* ^B */
        e->at = before(e, e->at);
        break;
    case 3: /* ^C */
        return EDITOR_INTERRUPTED;
    case 4: /* ^D */
        if (e->n == 0)
            return EDITOR_END;
        erase(e, e->at, behind(e, e->at));
        break;
    case 5: /* ^E */
        e->at = e->n;
        break;
    case 6: /* ^F */
        e->at = behind(e, e->at);
        break;
    case 8:   /* ^H */
    case 127: /* Backspace */
        erase(e, before(e, e->at), e->at);
        break;
    case 10:
    case 13: /* Enter */
        return EDITOR_LINE;
    case 11: /* ^K */
        e->n = e->at;
        break;
    case 12: /* ^L */
        printf("\x1b[H\x1b[2J");
        break;
    case 14: /* ^N */
        show_history(e, e->looking_at + 1);
        break;
    case 16: /* ^P */
        show_history(e, e->looking_at > 0 ? e->looking_at - 1 : 0);
        break;
    case 21: /* ^U */
        erase(e, 0, e->at);
        break;
    case 23: /* ^W */
        erase_word(e);
        break;
    case 27:
        escape_sequence(e);
        break;
    default:
        break;
    }
    return KEY_GOES_ON;
}

/* One byte of input.  enum editor_end, or KEY_GOES_ON. */
static int key(struct line_editor *e, int c)
{
    if (e->pasting && c != 27) {
        if (c == '\r')
            c = '\n';
        if (c >= 0x20 || c == '\n' || c == '\t')
            insert(e, (char)c);
        return KEY_GOES_ON;
    }
    if (c == '\t' || (c >= 0x20 && c != 127)) {
        insert(e, (char)c);
        return KEY_GOES_ON;
    }
    return control_key(e, c);
}

static enum editor_end edit(struct line_editor *e, const char *prompt)
{
    for (;;) {
        int c = next_byte(e, 0);
        if (c == BYTE_NONE) {
            draw(e, prompt);
            c = next_byte(e, -1);
        }
        if (c == BYTE_END)
            return e->n > 0 ? EDITOR_LINE : EDITOR_END;
        if (c == BYTE_SIGNAL)
            return EDITOR_SIGNAL;
        int end = key(e, c);
        if (end != KEY_GOES_ON) {
            draw(e, prompt);
            return (enum editor_end)end;
        }
    }
}

static void remember(struct line_editor *e)
{
    char *copy = memchr(e->text, '\0', e->n) == NULL && e->n > 0 ? strdup(e->text) : NULL;

    if (copy == NULL)
        return;
    if (e->n_history == EDITOR_HISTORY) {
        free(e->history[0]);
        memmove(e->history, e->history + 1, (EDITOR_HISTORY - 1) * sizeof(e->history[0]));
        e->n_history--;
    }
    e->history[e->n_history++] = copy;
}

/* --- reading ----------------------------------------------------------------------------------- */

static enum editor_end read_terminal(struct line_editor *e, const char *prompt)
{
    struct termios raw = e->cooked;

    raw.c_lflag &= ~(tcflag_t)(ECHO | ICANON | ISIG | IEXTEN);
    raw.c_iflag &= ~(tcflag_t)(IXON | ICRNL | INLCR);
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    e->pasting = false;
    tcsetattr(e->input, TCSADRAIN, &raw);
    fputs("\x1b[?2004h", stdout); /* mark pasted text */
    enum editor_end end = edit(e, prompt);
    fputs(end == EDITOR_INTERRUPTED ? "^C\x1b[?2004l\n" : "\x1b[?2004l\n", stdout);
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
    e->n = e->at = 0;
    e->looking_at = e->n_history;
    enum editor_end end = e->terminal ? read_terminal(e, prompt) : read_plain(e);
    if (end != EDITOR_LINE)
        return end;
    e->text[e->n] = '\0';
    if (e->terminal)
        remember(e);
    *ret_line = e->text;
    *ret_bytes = e->n;
    return EDITOR_LINE;
}
