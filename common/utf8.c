/* utf8.c - the well-formed byte sequences of RFC 3629 (Unicode 15, table 3-7), read off that table.
 *
 * The second byte carries all the special cases (overlong forms after E0 and F0, surrogates after ED,
 * beyond U+10FFFF after F4), so one range for it and 80..BF for the rest say everything.  Prompts are up
 * to a megabyte and mostly ASCII: eight such bytes at a time are skipped with one test. */
#include "utf8.h"

/* Bytes of the character that begins at p, of which n > 0 are there; 0 when it is malformed or cut short. */
static size_t character_bytes(const uint8_t *p, size_t n)
{
    uint8_t lead = p[0], low = 0x80, high = 0xBF;
    size_t want;

    if (lead < 0x80)
        return 1;
    if (lead < 0xC2)
        return 0; /* a continuation, or an overlong form of ASCII */
    if (lead < 0xE0) {
        want = 2;
    } else if (lead < 0xF0) {
        want = 3;
        low = lead == 0xE0 ? 0xA0 : 0x80;  /* else overlong */
        high = lead == 0xED ? 0x9F : 0xBF; /* else a surrogate */
    } else if (lead < 0xF5) {
        want = 4;
        low = lead == 0xF0 ? 0x90 : 0x80;  /* else overlong */
        high = lead == 0xF4 ? 0x8F : 0xBF; /* else above U+10FFFF */
    } else {
        return 0;
    }
    if (n < want || p[1] < low || p[1] > high)
        return 0;
    for (size_t i = 2; i < want; i++)
        if ((p[i] & 0xC0) != 0x80)
            return 0;
    return want;
}

size_t utf8_valid_prefix(struct span text)
{
    size_t i = 0;

    while (i < text.n) {
        uint64_t eight;

        if (text.n - i >= sizeof(eight)) {
            memcpy(&eight, text.at + i, sizeof(eight));
            if ((eight & UINT64_C(0x8080808080808080)) == 0) {
                i += sizeof(eight);
                continue;
            }
        }
        size_t n = character_bytes(text.at + i, text.n - i);
        if (n == 0)
            break;
        i += n;
    }
    return i;
}

bool utf8_valid(struct span text)
{
    return utf8_valid_prefix(text) == text.n;
}
