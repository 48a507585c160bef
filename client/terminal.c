/* terminal.c - see terminal.h.
 *
 * Shown: C0 controls except newline and tab, DEL, the C1 controls U+0080..U+009F (some terminals obey them in UTF-8 too), and the
 * characters that turn the direction of text around (U+202A..U+202E, U+2066..U+2069): with them a line can read otherwise than it is. */
#include "terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

size_t terminal_control(const char *text, size_t n, char name[static TERMINAL_NAME_BYTES])
{
    const unsigned char *s = (const unsigned char *)text;

    if (n == 0 || s[0] == '\n' || s[0] == '\t')
        return 0;
    if (s[0] < 0x20 || s[0] == 0x7F) {
        snprintf(name, TERMINAL_NAME_BYTES, "^%c", s[0] ^ 0x40);
        return 1;
    }
    if (n >= 2 && s[0] == 0xC2 && s[1] >= 0x80 && s[1] <= 0x9F) {
        snprintf(name, TERMINAL_NAME_BYTES, "\\u%04X", s[1]);
        return 2;
    }
    if (n >= 3 && s[0] == 0xE2 &&
        ((s[1] == 0x80 && s[2] >= 0xAA && s[2] <= 0xAE) || (s[1] == 0x81 && s[2] >= 0xA6 && s[2] <= 0xA9))) {
        snprintf(name, TERMINAL_NAME_BYTES, "\\u%04X", 0x2000 | (s[1] & 0x3F) << 6 | (s[2] & 0x3F));
        return 3;
    }
    return 0;
}

void terminal_show(FILE *out, const char *text, size_t bytes)
{
    size_t from = 0;
    char name[TERMINAL_NAME_BYTES];

    for (size_t i = 0; i < bytes;) {
        size_t n = terminal_control(text + i, bytes - i, name);
        if (n == 0) {
            i++;
            continue;
        }
        fwrite(text + from, 1, i - from, out);
        fputs(name, out);
        i += n;
        from = i;
    }
    fwrite(text + from, 1, bytes - from, out);
}

bool terminal_is(FILE *out)
{
    static int known[3] = {-1, -1, -1};
    int fd = fileno(out);

    if (fd < 0 || fd > 2)
        return fd >= 0 && isatty(fd);
    if (known[fd] < 0)
        known[fd] = isatty(fd);
    return known[fd];
}

void terminal_text(FILE *out, const char *text, size_t bytes)
{
    if (terminal_is(out))
        terminal_show(out, text, bytes);
    else
        fwrite(text, 1, bytes, out);
}

unsigned terminal_columns(FILE *out)
{
    struct winsize w;

    return ioctl(fileno(out), TIOCGWINSZ, &w) == 0 && w.ws_col > 0 ? w.ws_col : 80;
}
