/* wire_json.c - a reply as one line of JSON, the same bytes for the same reply every time.
 *
 * Entries stay in the order they came in.  A number is written with the fewest digits that read back as the same number, 32-bit
 * floats as 32-bit floats.  What JSON has no word for: binary becomes base64, NaN and infinities null, an integer key a
 * string.  Extension types and other keys are refused. */
#include "wire_fields.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct json {
    char *at;
    size_t n, capacity;
    enum status st;
};

static void put(struct json *j, const char *at, size_t n)
{
    if (j->st != ST_OK || n == 0)
        return;
    if (n > j->capacity - j->n) {
        size_t capacity = j->capacity > 0 ? j->capacity : 512;

        while (capacity - j->n < n)
            capacity *= 2;
        char *grown = realloc(j->at, capacity);
        if (grown == NULL) {
            j->st = ST_NOMEM;
            return;
        }
        j->at = grown;
        j->capacity = capacity;
    }
    memcpy(j->at + j->n, at, n);
    j->n += n;
}

static void put_text(struct json *j, const char *text)
{
    put(j, text, strlen(text));
}

static void put_string(struct json *j, const char *at, size_t n)
{
    static const char short_escapes[] = "\b\f\n\r\t\"\\", letters[] = "bfnrt\"\\";
    size_t from = 0;

    put_text(j, "\"");
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)at[i];
        const char *found = c != 0 ? strchr(short_escapes, c) : NULL;
        char escape[8];

        if (c >= 0x20 && found == NULL)
            continue;
        put(j, at + from, i - from);
        from = i + 1;
        if (found != NULL)
            snprintf(escape, sizeof(escape), "\\%c", letters[found - short_escapes]);
        else
            snprintf(escape, sizeof(escape), "\\u%04x", c);
        put_text(j, escape);
    }
    if (n > from) /* an empty string may have no address */
        put(j, at + from, n - from);
    put_text(j, "\"");
}

static void put_base64(struct json *j, const uint8_t *at, size_t n)
{
    static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    put_text(j, "\"");
    for (size_t i = 0; i < n; i += 3) {
        size_t left = n - i;
        uint32_t bits = (uint32_t)at[i] << 16 | (left > 1 ? (uint32_t)at[i + 1] << 8 : 0) | (left > 2 ? at[i + 2] : 0u);
        char four[4] = { alphabet[bits >> 18], alphabet[bits >> 12 & 63], left > 1 ? alphabet[bits >> 6 & 63] : '=',
                         left > 2 ? alphabet[bits & 63] : '=' };
        put(j, four, sizeof(four));
    }
    put_text(j, "\"");
}

static void put_number(struct json *j, double number, bool is_float32)
{
    char text[40] = "null";

    for (int digits = 1; digits <= 17 && isfinite(number); digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, number);
        if (is_float32 ? strtof(text, NULL) == (float)number : strtod(text, NULL) == number)
            break;
    }
    char *comma = strchr(text, ','); /* a program that called setlocale() */
    if (comma != NULL)
        *comma = '.';
    put_text(j, text);
}

static void put_value(struct json *j, const msgpack_object *v);

static void put_key(struct json *j, const msgpack_object *key)
{
    char text[32];

    switch (key->type) {
    case MSGPACK_OBJECT_STR:
        put_string(j, key->via.str.ptr, key->via.str.size);
        return;
    case MSGPACK_OBJECT_POSITIVE_INTEGER:
        snprintf(text, sizeof(text), "\"%" PRIu64 "\"", key->via.u64);
        break;
    case MSGPACK_OBJECT_NEGATIVE_INTEGER:
        snprintf(text, sizeof(text), "\"%" PRId64 "\"", key->via.i64);
        break;
    default:
        j->st = ST_INVALID;
        return;
    }
    put_text(j, text);
}

/* What says which reply it is, and to which request: the wire's own. */
static bool is_envelope(const msgpack_object *key)
{
    if (key->type != MSGPACK_OBJECT_STR)
        return false;
    struct span name = span_of(key->via.str.ptr, key->via.str.size);
    return span_is(name, "type") || span_is(name, "id");
}

static void put_map(struct json *j, const msgpack_object *v, bool outermost)
{
    bool first = true;

    put_text(j, "{");
    for (uint32_t i = 0; i < v->via.map.size && j->st == ST_OK; i++) {
        if (outermost && is_envelope(&v->via.map.ptr[i].key))
            continue;
        put_text(j, first ? "" : ",");
        first = false;
        put_key(j, &v->via.map.ptr[i].key);
        put_text(j, ":");
        put_value(j, &v->via.map.ptr[i].val);
    }
    put_text(j, "}");
}

static void put_array(struct json *j, const msgpack_object *v)
{
    put_text(j, "[");
    for (uint32_t i = 0; i < v->via.array.size && j->st == ST_OK; i++) {
        put_text(j, i > 0 ? "," : "");
        put_value(j, &v->via.array.ptr[i]);
    }
    put_text(j, "]");
}

/* Recurses at most FRAME_NESTING_MAX deep: wire_scan has seen to it. */
static void put_value(struct json *j, const msgpack_object *v)
{
    char text[32];

    switch (v->type) {
    case MSGPACK_OBJECT_NIL:
        put_text(j, "null");
        break;
    case MSGPACK_OBJECT_BOOLEAN:
        put_text(j, v->via.boolean ? "true" : "false");
        break;
    case MSGPACK_OBJECT_POSITIVE_INTEGER:
        snprintf(text, sizeof(text), "%" PRIu64, v->via.u64);
        put_text(j, text);
        break;
    case MSGPACK_OBJECT_NEGATIVE_INTEGER:
        snprintf(text, sizeof(text), "%" PRId64, v->via.i64);
        put_text(j, text);
        break;
    case MSGPACK_OBJECT_FLOAT32:
    case MSGPACK_OBJECT_FLOAT64:
        put_number(j, v->via.f64, v->type == MSGPACK_OBJECT_FLOAT32);
        break;
    case MSGPACK_OBJECT_STR:
        put_string(j, v->via.str.ptr, v->via.str.size);
        break;
    case MSGPACK_OBJECT_BIN:
        put_base64(j, (const uint8_t *)v->via.bin.ptr, v->via.bin.size);
        break;
    case MSGPACK_OBJECT_ARRAY:
        put_array(j, v);
        break;
    case MSGPACK_OBJECT_MAP:
        put_map(j, v, false);
        break;
    default:
        j->st = ST_INVALID;
    }
}

enum status wire_to_json(struct span frame, char **ret_json)
{
    struct error err;
    struct decoder d = { .err = &err };
    struct wire_scan scan = { 0 };
    struct json j = { .st = ST_OK };
    msgpack_object root;
    enum status st = wire_scan(frame, &scan, &err);

    if (st != ST_OK || scan.bad_utf8)
        return ST_INVALID;
    st = decoder_open(&d, frame, &root);
    if (st != ST_OK)
        return st;
    put_map(&j, &root, true);
    put(&j, "", 1);
    msgpack_zone_free(d.zone);
    if (j.st != ST_OK) {
        free(j.at);
        return j.st;
    }
    *ret_json = j.at;
    return ST_OK;
}
