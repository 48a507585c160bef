/* log.c - one event, one line, one write.
 *
 * A line is built in a buffer on the stack and handed to write(2) at once, so lines of several threads and
 * processes that share standard error do not mix (a pipe takes up to PIPE_BUF bytes as one).  Nothing is
 * buffered: what was logged before a crash is there.  Nor does a line wait for a reader: whoever stops a
 * pager would stop the pool.  A line for which there is no room now is lost, and the next one says how many
 * were.  Values come from users now and then, so control
 * bytes never reach the terminal: what log_quote did not escape is written as '?'. */
#include "log.h"

#include <errno.h>
#include <linux/limits.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { LINE_BYTES = 2048, PROGRAM_BYTES = 32 };
_Static_assert(LINE_BYTES <= PIPE_BUF, "a line is written as one");

static const char *const level_names[] = {"error", "warn", "info", "debug"};
static char program_name[PROGRAM_BYTES] = "weir";
static enum log_level level_max = LOG_LEVEL_INFO;
static _Atomic unsigned n_lost; /* lines, since one could be written last */
static bool to_journal; /* standard error is systemd's: a line begins with its priority, <3> to <7>, which the journal takes off */

/* stream: "DEVICE:INODE" of the pipe that systemd gave; standard error may be another one by now. */
static bool is_journal(const char *stream)
{
    struct stat s;
    char own[48];

    if (stream == NULL || fstat(STDERR_FILENO, &s) != 0)
        return false;
    snprintf(own, sizeof own, "%llu:%llu", (unsigned long long)s.st_dev, (unsigned long long)s.st_ino);
    return strcmp(own, stream) == 0;
}

void log_init(const char *program, enum log_level level)
{
    snprintf(program_name, sizeof(program_name), "%s", program);
    level_max = level;
    to_journal = is_journal(getenv("JOURNAL_STREAM"));
}

int log_level_from_name(const char *name)
{
    for (int i = 0; i < (int)(sizeof(level_names) / sizeof(level_names[0])); i++)
        if (strcmp(name, level_names[i]) == 0)
            return i;
    return -1;
}

/* `2026-01-31T12:00:00.123Z info worker event=restart`; returns its bytes. */
static size_t write_head(char *line, size_t line_bytes, enum log_level level, const char *event)
{
    struct timespec now;
    struct tm utc;

    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    static const char *const priorities[] = {"<3>", "<4>", "<6>", "<7>"};
    size_t n = to_journal ? (size_t)snprintf(line, line_bytes, "%s", priorities[level]) : 0;
    n += strftime(line + n, line_bytes - n, "%Y-%m-%dT%H:%M:%S", &utc);
    int more = snprintf(line + n, line_bytes - n, ".%03ldZ %s %s event=%s", now.tv_nsec / 1000000,
                        level_names[level], program_name, event);
    return more < 0 ? n : n + (size_t)more < line_bytes ? n + (size_t)more : line_bytes - 1;
}

/* A pipe or socket that is ready takes a whole line: it is no longer than PIPE_BUF. */
static bool has_room(void)
{
    struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};

    return poll(&p, 1, 0) != 0; /* an error shows in write() */
}

static void write_all(const char *at, size_t n)
{
    while (n > 0) {
        ssize_t done = write(STDERR_FILENO, at, n);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return; /* nowhere to complain to */
        at += done;
        n -= (size_t)done;
    }
}

static void tell_lost(void)
{
    char line[LINE_BYTES];

    if (atomic_load_explicit(&n_lost, memory_order_relaxed) == 0 || !has_room())
        return;
    unsigned n = atomic_exchange_explicit(&n_lost, 0, memory_order_relaxed);
    size_t bytes = write_head(line, sizeof(line), LOG_LEVEL_WARN, "log_lines_lost");
    bytes += (size_t)snprintf(line + bytes, sizeof(line) - bytes, " n=%u\n", n);
    write_all(line, bytes);
}

void log_event(enum log_level level, const char *event, const char *format, ...)
{
    char line[LINE_BYTES];
    va_list args;
    int saved_errno = errno;

    if (level > level_max)
        return;
    size_t n = write_head(line, sizeof(line) - 1, level, event); /* one byte stays for the newline */
    if (format[0] != '\0' && n + 2 < sizeof(line)) {
        line[n++] = ' ';
        va_start(args, format);
        int more = vsnprintf(line + n, sizeof(line) - 1 - n, format, args);
        va_end(args);
        if (more >= 0 && n + (size_t)more < sizeof(line) - 1) {
            n += (size_t)more;
        } else if (more >= 0) { /* too long: say so */
            n = sizeof(line) - 2;
            memcpy(line + n - 3, "...", 3);
        }
    }
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7F)
            line[i] = '?';
    line[n++] = '\n';
    tell_lost();
    if (has_room())
        write_all(line, n);
    else
        atomic_fetch_add_explicit(&n_lost, 1, memory_order_relaxed);
    errno = saved_errno;
}

/* Write c as it stands between quotes; returns how many of out's 4 bytes are used. */
static size_t quote_byte(unsigned char c, char out[4])
{
    static const char hex[] = "0123456789abcdef";

    if (c == '"' || c == '\\') {
        out[0] = '\\';
        out[1] = (char)c;
        return 2;
    }
    if (c < 0x20 || c == 0x7F) {
        out[0] = '\\';
        out[1] = 'x';
        out[2] = hex[c >> 4];
        out[3] = hex[c & 15];
        return 4;
    }
    out[0] = (char)c;
    return 1;
}

const char *log_quote(char *buf, unsigned long buf_bytes, const char *text)
{
    enum { TAIL = 5 }; /* `..."` and the NUL */
    size_t n = 0, fits = 0;

    if (buf_bytes < 1 + TAIL) {
        if (buf_bytes > 0)
            buf[0] = '\0';
        return buf;
    }
    buf[n++] = '"';
    fits = n;
    for (const char *p = text; *p != '\0'; p++) {
        char out[4];
        size_t out_bytes = quote_byte((unsigned char)*p, out);

        if (n + out_bytes + 2 >
            buf_bytes) { /* go back to where the dots still fit, and not inside a character */
            while (fits > 1 && ((unsigned char)buf[fits] & 0xC0) == 0x80)
                fits--;
            memcpy(buf + fits, "...\"", TAIL);
            return buf;
        }
        memcpy(buf + n, out, out_bytes);
        n += out_bytes;
        if (n + TAIL <= buf_bytes)
            fits = n;
    }
    memcpy(buf + n, "\"", 2);
    return buf;
}
