/* unicode.c - binary search in a table of ranges, with ASCII in front of it: prompts are mostly ASCII, and ten steps for the
 * rest are cheap beside what follows. */
#include "unicode.h"

static enum unicode_class ascii_class(uint32_t c)
{
    if ((c | 0x20) >= 'a' && (c | 0x20) <= 'z')
        return UNICODE_LETTER;
    if (c >= '0' && c <= '9')
        return UNICODE_NUMBER;
    if (c == ' ' || (c >= 0x09 && c <= 0x0D))
        return UNICODE_SPACE;
    if (c <= 0x20 || c == 0x7F || c == '$' || c == '+' || c == '<' || c == '=' || c == '>' || c == '^' || c == '`' ||
        c == '|' || c == '~')
        return UNICODE_OTHER;
    return UNICODE_PUNCTUATION;
}

enum unicode_class unicode_class_of(uint32_t code_point)
{
    uint32_t low = 0, high = unicode_n_ranges;

    if (code_point < 0x80)
        return ascii_class(code_point);
    while (low < high) { /* the first range that does not end before it */
        uint32_t middle = low + (high - low) / 2;

        if (unicode_ranges[middle].last < code_point)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < unicode_n_ranges && unicode_ranges[low].first <= code_point)
        return (enum unicode_class)unicode_ranges[low].class;
    return UNICODE_OTHER;
}

unsigned unicode_decode(struct span text, uint32_t *ret_code_point)
{
    static const uint32_t smallest[5] = {0, 0, 0x80, 0x800, 0x10000};
    uint8_t b = text.at[0];
    unsigned n = b < 0x80 ? 1 : b < 0xC0 ? 0 : b < 0xE0 ? 2 : b < 0xF0 ? 3 : b < 0xF8 ? 4 : 0;
    uint32_t c = n == 1 ? b : n > 0 ? b & (0x7Fu >> n) : 0;

    *ret_code_point = UNICODE_INVALID;
    if (n == 0 || n > text.n)
        return 1;
    for (unsigned i = 1; i < n; i++) {
        if ((text.at[i] & 0xC0) != 0x80)
            return 1;
        c = c << 6 | (text.at[i] & 0x3F);
    }
    if (c < smallest[n] || c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF))
        return 1;
    *ret_code_point = c;
    return n;
}
