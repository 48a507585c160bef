/* utf8_hold.c - a character's bytes are taken one by one; what may follow the bytes held is decided by table 3-7 of the
 * Unicode standard: the second byte's range depends on the first, all others are 80..BF.  Checking ranges as bytes
 * arrive, and not whole characters, is what makes "maximal subpart" come out by itself: the byte that does not fit ends the
 * held sequence and starts anew. */
#include "utf8_hold.h"

#include <assert.h>
#include <string.h>

/* Bytes of a character that begins with b; 0 when none does. */
static unsigned length_from_lead(uint8_t b)
{
    if (b < 0x80)
        return 1;
    if (b >= 0xC2 && b <= 0xDF)
        return 2;
    if (b >= 0xE0 && b <= 0xEF)
        return 3;
    if (b >= 0xF0 && b <= 0xF4)
        return 4;
    return 0;
}

/* May b follow the n bytes held, of which lead is the first? */
static bool continues(uint8_t lead, unsigned n, uint8_t b)
{
    uint8_t low = 0x80, high = 0xBF;

    if (n == 1 && lead == 0xE0)
        low = 0xA0; /* shorter forms exist */
    if (n == 1 && lead == 0xED)
        high = 0x9F; /* surrogates */
    if (n == 1 && lead == 0xF0)
        low = 0x90; /* shorter forms exist */
    if (n == 1 && lead == 0xF4)
        high = 0x8F; /* above U+10FFFF */
    return b >= low && b <= high;
}

/* What is held becomes no character. */
static size_t give_up(struct utf8_hold *h, uint8_t *out)
{
    size_t n_out = h->n > 0 && !h->is_before ? 3 : 0;

    memcpy(out, "\xEF\xBF\xBD", n_out);
    h->n = 0;
    h->is_before = false;
    return n_out;
}

size_t utf8_hold_push(struct utf8_hold *h, struct span in, uint8_t *out)
{
    size_t n_out = 0;

    for (size_t i = 0; i < in.n; i++) {
        uint8_t b = in.at[i];

        if (h->n > 0 && !continues(h->bytes[0], h->n, b))
            n_out += give_up(h, out + n_out);
        h->bytes[h->n++] = b;
        h->is_before = false;
        if (length_from_lead(h->bytes[0]) == 0) {
            n_out += give_up(h, out + n_out);
        } else if (h->n == length_from_lead(h->bytes[0])) {
            memcpy(out + n_out, h->bytes, h->n);
            n_out += h->n;
            h->n = 0;
        }
    }
    assert(n_out <= UTF8_HOLD_OUT_MAX(in.n));
    return n_out;
}

size_t utf8_hold_finish(struct utf8_hold *h, uint8_t *out)
{
    return give_up(h, out);
}

void utf8_hold_after(struct utf8_hold *h, struct span before)
{
    enum { TAIL = 3 };
    uint8_t dropped[UTF8_HOLD_OUT_MAX(TAIL)];

    *h = (struct utf8_hold){ 0 };
    if (before.n > TAIL)
        before = span_of(before.at + before.n - TAIL, TAIL);
    utf8_hold_push(h, before, dropped);
    h->is_before = h->n > 0;
}
