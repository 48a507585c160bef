/* curve_key.c - the text of CURVE keys.  Z85 is five characters for four bytes, most significant first (ZeroMQ RFC 32). */
#include "curve_key.h"

#include <string.h>

enum { Z85_CHARS = CURVE_KEY_BYTES * 5 / 4 };

static const char z85_digits[] =
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";
static const char hex_digits[] = "0123456789abcdef";

static int digit(const char *digits, uint8_t c)
{
    const char *at = c != '\0' ? strchr(digits, c) : NULL;

    return at != NULL ? (int)(at - digits) : -1;
}

static uint8_t lower(uint8_t c)
{
    return c >= 'A' && c <= 'F' ? (uint8_t)(c + 'a' - 'A') : c;
}

static enum status parse_hex(const uint8_t *text, uint8_t key[CURVE_KEY_BYTES])
{
    for (size_t i = 0; i < CURVE_KEY_BYTES; i++) {
        int high = digit(hex_digits, lower(text[2 * i])), low = digit(hex_digits, lower(text[2 * i + 1]));

        if (high < 0 || low < 0)
            return ST_INVALID;
        key[i] = (uint8_t)(high << 4 | low);
    }
    return ST_OK;
}

static enum status parse_z85(const uint8_t *text, uint8_t key[CURVE_KEY_BYTES])
{
    for (size_t i = 0; i < CURVE_KEY_BYTES; i += 4, text += 5) {
        uint64_t word = 0;

        for (size_t k = 0; k < 5; k++) {
            int d = digit(z85_digits, text[k]);
            if (d < 0)
                return ST_INVALID;
            word = word * 85 + (uint64_t)d;
        }
        if (word > UINT32_MAX)
            return ST_INVALID;
        for (size_t k = 0; k < 4; k++)
            key[i + k] = (uint8_t)(word >> (24 - 8 * k));
    }
    return ST_OK;
}

enum status curve_key_parse(struct span text, uint8_t ret_key[CURVE_KEY_BYTES])
{
    uint8_t key[CURVE_KEY_BYTES];
    enum status st = ST_INVALID;

    if (text.n == 2 * CURVE_KEY_BYTES)
        st = parse_hex(text.at, key);
    else if (text.n == Z85_CHARS)
        st = parse_z85(text.at, key);
    if (st == ST_OK)
        memcpy(ret_key, key, sizeof(key));
    return st;
}

void curve_key_format(const uint8_t key[CURVE_KEY_BYTES], char ret_text[CURVE_TEXT_BYTES])
{
    for (size_t i = 0; i < CURVE_KEY_BYTES; i++) {
        ret_text[2 * i] = hex_digits[key[i] >> 4];
        ret_text[2 * i + 1] = hex_digits[key[i] & 15];
    }
    ret_text[2 * CURVE_KEY_BYTES] = '\0';
}
