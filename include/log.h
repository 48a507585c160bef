/* log.h - one event per line on standard error: `2026-01-31T12:00:00.123Z info worker event=restart slot=2 reason=sigkill`.
 *
 * `event` is a short constant word; the format that follows yields key=value pairs with units in the keys.  Values that
 * may hold spaces or quotes go through log_quote, which writes "..." with escapes.  Never log prompts, answers or keys.
 * Any thread may log; a line is one write(2) and never waits: lines for which standard error has no room are counted and lost
 * (event=log_lines_lost n=).  Under systemd it begins with its priority, which the journal keeps and takes off. */
#ifndef LOG_H
#define LOG_H

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

/* program: "broker", "worker/3"; copied, at most 31 bytes.  Call once before threads start. */
void log_init(const char *program, enum log_level level);

/* "error", "warn", "info", "debug"; -1 when it is none of them. */
int log_level_from_name(const char *name);

__attribute__((format(printf, 3, 4))) void log_event(enum log_level level, const char *event, const char *format, ...);

#define log_error(event, ...) log_event(LOG_LEVEL_ERROR, event, __VA_ARGS__)
#define log_warn(event, ...)  log_event(LOG_LEVEL_WARN, event, __VA_ARGS__)
#define log_info(event, ...)  log_event(LOG_LEVEL_INFO, event, __VA_ARGS__)
#define log_debug(event, ...) log_event(LOG_LEVEL_DEBUG, event, __VA_ARGS__)

/* Quote text for a value into buf; returns buf.  Control bytes become \xNN; a longer text is cut and ends in "...". */
const char *log_quote(char *buf, unsigned long buf_bytes, const char *text);

#endif
