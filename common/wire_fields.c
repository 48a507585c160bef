/* wire_fields.c - one reader for each kind of value, and the loop that runs a table of them over a map.
 *
 * A decoder that is a table cannot forget a check in one place: type, range and name of the field at fault come from the same row.
 * Ranges are checked on the value as it will be used: a top_p of 1e-60 is 0 as a 32-bit float, and refused as 0 is. */
#include "wire_fields.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "parameters.h"
#include "utf8.h"

enum { TEXT_BYTES = 160 };

static enum status status_of(enum error_code code)
{
    switch (code) {
    case ERR_UNSUPPORTED_PARAMETER:
        return ST_UNSUPPORTED;
    case ERR_LIMIT_EXCEEDED:
        return ST_LIMIT;
    default:
        return ST_INVALID;
    }
}

enum status field_refuse(struct decoder *d, enum error_code code, const char *key, const char *format, ...)
{
    char param[ERROR_PARAM_BYTES], what[ERROR_MESSAGE_BYTES];
    va_list args;

    snprintf(param, sizeof(param), "%s%s", d->prefix, key);
    va_start(args, format);
    vsnprintf(what, sizeof(what), format, args);
    va_end(args);
    error_set(d->err, code, param, "%s %s", param, what);
    return status_of(code);
}

/* Copy text that is UTF-8 for a message: what does not fit is left out as whole characters, control bytes become '?'. */
static void copy_clean(char *to, size_t to_bytes, struct span text)
{
    if (text.n >= to_bytes)
        text.n = utf8_valid_prefix(span_of(text.at, to_bytes - 1));
    for (size_t i = 0; i < text.n; i++)
        to[i] = text.at[i] < 0x20 || text.at[i] == 0x7F ? '?' : (char)text.at[i];
    to[text.n] = '\0';
}

/* The value as a person would name it: numbers in full, the rest by kind. */
static void describe(const msgpack_object *v, char text[TEXT_BYTES])
{
    char clean[41];

    switch (v->type) {
    case MSGPACK_OBJECT_NIL:
        snprintf(text, TEXT_BYTES, "null");
        break;
    case MSGPACK_OBJECT_BOOLEAN:
        snprintf(text, TEXT_BYTES, "%s", v->via.boolean ? "true" : "false");
        break;
    case MSGPACK_OBJECT_POSITIVE_INTEGER:
        snprintf(text, TEXT_BYTES, "%" PRIu64, v->via.u64);
        break;
    case MSGPACK_OBJECT_NEGATIVE_INTEGER:
        snprintf(text, TEXT_BYTES, "%" PRId64, v->via.i64);
        break;
    case MSGPACK_OBJECT_FLOAT32:
    case MSGPACK_OBJECT_FLOAT64:
        snprintf(text, TEXT_BYTES, "%.9g", v->via.f64);
        break;
    case MSGPACK_OBJECT_STR:
        if (v->via.str.size < sizeof(clean)) {
            copy_clean(clean, sizeof(clean), span_of(v->via.str.ptr, v->via.str.size));
            snprintf(text, TEXT_BYTES, "\"%s\"", clean);
        } else {
            snprintf(text, TEXT_BYTES, "a string of %" PRIu32 " bytes", v->via.str.size);
        }
        break;
    case MSGPACK_OBJECT_ARRAY:
        snprintf(text, TEXT_BYTES, "a list");
        break;
    case MSGPACK_OBJECT_MAP:
        snprintf(text, TEXT_BYTES, "a map");
        break;
    default:
        snprintf(text, TEXT_BYTES, "binary data");
    }
}

enum status field_refuse_value(struct decoder *d, const struct field *f, const msgpack_object *v, const char *must_be)
{
    char text[TEXT_BYTES];

    describe(v, text);
    return field_refuse(d, ERR_INVALID_PARAMETER, f->key, "is %s, must be %s", text, must_be);
}

/* "0 to 100", "over 0 and at most 1", "at least 0" */
static void describe_range(const struct field *f, char text[TEXT_BYTES])
{
    if ((f->flags & FIELD_OVER_MIN) != 0)
        snprintf(text, TEXT_BYTES, "over %.10g and at most %.10g", f->min, f->max);
    else if (f->max != 0)
        snprintf(text, TEXT_BYTES, "%.10g to %.10g", f->min, f->max);
    else
        snprintf(text, TEXT_BYTES, "at least %.10g", f->min);
}

static enum status refuse_number(struct decoder *d, const struct field *f, const msgpack_object *v, bool type_is_right,
                                 const char *noun)
{
    char range[TEXT_BYTES], must_be[2 * TEXT_BYTES];

    describe_range(f, range);
    snprintf(must_be, sizeof(must_be), "%s%s%s", type_is_right ? "" : noun, type_is_right ? "" : " ", range);
    return field_refuse_value(d, f, v, must_be);
}

/* --- strings --------------------------------------------------------------------------------- */

static enum status read_bytes(struct decoder *d, const struct field *f, struct span text, struct span *to)
{
    if (text.n < f->min)
        return field_refuse(d, ERR_INVALID_PARAMETER, f->key, "is empty");
    if (f->max != 0 && text.n > f->max)
        return field_refuse(d, ERR_LIMIT_EXCEEDED, f->key, "has %zu bytes, at most %.0f are taken", text.n, f->max);
    *to = text;
    return ST_OK;
}

enum status field_text(struct decoder *d, const struct field *f, const msgpack_object *v, void *to)
{
    if (v->type != MSGPACK_OBJECT_STR)
        return field_refuse_value(d, f, v, "a string");
    return read_bytes(d, f, span_of(v->via.str.ptr, v->via.str.size), to);
}

enum status field_bytes(struct decoder *d, const struct field *f, const msgpack_object *v, void *to)
{
    if (v->type == MSGPACK_OBJECT_BIN)
        return read_bytes(d, f, span_of(v->via.bin.ptr, v->via.bin.size), to);
    if (v->type != MSGPACK_OBJECT_STR)
        return field_refuse_value(d, f, v, "a string or binary");
    return field_text(d, f, v, to);
}

enum status field_id(struct decoder *d, const struct field *f, const msgpack_object *v, void *to)
{
    const struct field as_bytes = { .key = f->key, .min = 1, .max = CLIENT_ID_BYTES_MAX };
    enum { DIGITS = 24 };
    void *text = NULL;
    int n;

    if (v->type == MSGPACK_OBJECT_STR || v->type == MSGPACK_OBJECT_BIN)
        return field_bytes(d, &as_bytes, v, to);
    if (v->type != MSGPACK_OBJECT_POSITIVE_INTEGER && v->type != MSGPACK_OBJECT_NEGATIVE_INTEGER)
        return field_refuse_value(d, f, v, "a string, binary or an integer");
    if (decoder_alloc(d, DIGITS, &text) != ST_OK)
        return ST_NOMEM;
    if (v->type == MSGPACK_OBJECT_POSITIVE_INTEGER)
        n = snprintf(text, DIGITS, "%" PRIu64, v->via.u64);
    else
        n = snprintf(text, DIGITS, "%" PRId64, v->via.i64);
    *(struct span *)to = span_of(text, (size_t)n);
    return ST_OK;
}

/* --- booleans and words ---------------------------------------------------------------------- */

enum status field_bool(struct decoder *d, const struct field *f, const msgpack_object *v, void *to)
{
    if (v->type != MSGPACK_OBJECT_BOOLEAN)
        return field_refuse_value(d, f, v, "true or false");
    *(bool *)to = v->via.boolean;
    return ST_OK;
}

enum status field_choice(struct decoder *d, const struct field *f, const msgpack_object *v, void *to)
{
    char must_be[TEXT_BYTES];

    for (int i = 0; i < 2 && v->type == MSGPACK_OBJECT_STR; i++)
        if (span_is(span_of(v->via.str.ptr, v->via.str.size), f->words[i])) {
            *(bool *)to = i == 1;
            return ST_OK;
        }
    snprintf(must_be, sizeof(must_be), "\"%s\" or \"%s\"", f->words[0], f->words[1]);
    return field_refuse_value(d, f, v, must_be);
}

/* --- numbers --------------------------------------------------------------------------------- */

static bool is_integer(const msgpack_object *v)
{
    return v->type == MSGPACK_OBJECT_POSITIVE_INTEGER || v->type == MSGPACK_OBJECT_NEGATIVE_INTEGER;
}

/* An integer within the field's range and within [low, high] of its C type; non-negative ones come back as they are. */
static enum status read_integer(struct decoder *d, const struct field *f, const msgpack_object *v, int64_t low, uint64_t high,
                                uint64_t *ret_bits)
{
    int64_t min = f->min > (double)low ? (int64_t)f->min : low;
    uint64_t max = f->max != 0 && f->max < (double)high ? (uint64_t)f->max : high;
    struct field range = *f;

    range.min = (double)min;
    range.max = (double)max;
    if (!is_integer(v))
        return refuse_number(d, &range, v, false, "an integer,");
    if (v->type == MSGPACK_OBJECT_POSITIVE_INTEGER) {
        if (v->via.u64 > max || (min > 0 && v->via.u64 < (uint64_t)min))
            return refuse_number(d, &range, v, true, "");
        *ret_bits = v->via.u64;
    } else {
        if (v->via.i64 < min)
            return refuse_number(d, &range, v, true, "");
        *ret_bits = (uint64_t)v->via.i64;
    }
    return ST_OK;
}

enum status field_u32(struct decoder *d, const struct field *f, const msgpack_object *v, void *to)
{
    uint64_t bits = 0;
    enum status st = read_integer(d, f, v, 0, UINT32_MAX, &bits);

    if (st == ST_OK)
        *(uint32_t *)to = (uint32_t)bits;
    return st;
}

enum status field_i32(struct decoder *d, const struct field *f, const msgpack_object *v, void *to)
{
    uint64_t bits = 0;
    enum status st = read_integer(d, f, v, INT32_MIN, INT32_MAX, &bits);

    if (st == ST_OK)
        *(int32_t *)to = (int32_t)(int64_t)bits;
    return st;
}

enum status field_u64(struct decoder *d, const struct field *f, const msgpack_object *v, void *to)
{
    uint64_t bits = 0;
    enum status st;

    /* The range's end is no double, so it has words of its own. */
    if (f->max == 0 && v->type != MSGPACK_OBJECT_POSITIVE_INTEGER)
        return field_refuse_value(d, f, v, "an integer, 0 to 18446744073709551615");
    st = read_integer(d, f, v, 0, UINT64_MAX, &bits);
    if (st == ST_OK)
        *(uint64_t *)to = bits;
    return st;
}

/* The value as a double; false when it is no number. */
static bool number_of(const msgpack_object *v, double *ret_number)
{
    if (v->type == MSGPACK_OBJECT_POSITIVE_INTEGER)
        *ret_number = (double)v->via.u64;
    else if (v->type == MSGPACK_OBJECT_NEGATIVE_INTEGER)
        *ret_number = (double)v->via.i64;
    else if (v->type == MSGPACK_OBJECT_FLOAT32 || v->type == MSGPACK_OBJECT_FLOAT64)
        *ret_number = v->via.f64;
    else
        return false;
    return true;
}

static bool in_range(const struct field *f, double number)
{
    if (!isfinite(number) || number < f->min || (f->max != 0 && number > f->max))
        return false;
    return (f->flags & FIELD_OVER_MIN) == 0 || number > f->min;
}

enum status field_f32(struct decoder *d, const struct field *f, const msgpack_object *v, void *to)
{
    double number = 0;

    if (!number_of(v, &number))
        return refuse_number(d, f, v, false, "a number,");
    if (!in_range(f, number) || !in_range(f, (float)number))
        return refuse_number(d, f, v, true, "");
    *(float *)to = (float)number;
    return ST_OK;
}

enum status field_f64(struct decoder *d, const struct field *f, const msgpack_object *v, void *to)
{
    double number = 0;

    if (!number_of(v, &number))
        return refuse_number(d, f, v, false, "a number,");
    if (!in_range(f, number))
        return refuse_number(d, f, v, true, "");
    *(double *)to = number;
    return ST_OK;
}

enum status field_logprob(struct decoder *d, const struct field *f, const msgpack_object *v, void *to)
{
    double number = 0;

    if (!number_of(v, &number) || isnan(number) || number > 1e-3)
        return field_refuse_value(d, f, v, "a number, at most 0");
    *(float *)to = (float)number;
    return ST_OK;
}

enum status field_ids(struct decoder *d, const struct field *f, const msgpack_object *v, void *to)
{
    void *at = NULL;

    if (v->type != MSGPACK_OBJECT_ARRAY)
        return field_refuse_value(d, f, v, "a list of token ids");

    uint32_t n = v->via.array.size;
    if (n < f->min)
        return field_refuse(d, ERR_INVALID_PARAMETER, f->key, "is an empty list");
    if (f->max != 0 && n > f->max)
        return field_refuse(d, ERR_LIMIT_EXCEEDED, f->key, "has %" PRIu32 " ids, at most %.0f are taken", n, f->max);
    if (decoder_alloc(d, (size_t)n * sizeof(int32_t), &at) != ST_OK)
        return ST_NOMEM;
    for (uint32_t i = 0; i < n; i++) {
        const msgpack_object *id = &v->via.array.ptr[i];
        char text[TEXT_BYTES];

        if (id->type != MSGPACK_OBJECT_POSITIVE_INTEGER || id->via.u64 > INT32_MAX) {
            describe(id, text);
            return field_refuse(d, ERR_INVALID_PARAMETER, f->key, "holds %s at index %" PRIu32
                                ", must hold integers from 0 to %d", text, i, INT32_MAX);
        }
        ((int32_t *)at)[i] = (int32_t)id->via.u64;
    }
    *(struct field_ids *)to = (struct field_ids){ at, n };
    return ST_OK;
}

/* --- maps ------------------------------------------------------------------------------------ */

enum status decoder_alloc(struct decoder *d, size_t n_bytes, void **ret_at)
{
    void *at = msgpack_zone_malloc(d->zone, n_bytes > 0 ? n_bytes : 1);

    if (at == NULL) {
        error_set(d->err, ERR_INTERNAL, NULL, "out of memory while a message was decoded");
        return ST_NOMEM;
    }
    *ret_at = at;
    return ST_OK;
}

static const struct field *find(const struct field *fields, size_t n_fields, struct span key)
{
    for (size_t i = 0; i < n_fields; i++)
        if (span_is(key, fields[i].key))
            return &fields[i];
    return NULL;
}

static enum status refuse_unknown(struct decoder *d, struct span key, const msgpack_object *v)
{
    char name[ERROR_PARAM_BYTES];

    if (!d->strict)
        return ST_OK;
    copy_clean(name, sizeof(name), key);
    if (!wire_is_unsupported_parameter(key))
        return field_refuse(d, ERR_UNKNOWN_FIELD, name, "is not a field of %s", d->type_name);
    if (v->type == MSGPACK_OBJECT_NIL)
        return ST_OK; /* asked for nothing */
    return field_refuse(d, ERR_UNSUPPORTED_PARAMETER, name, "is not implemented");
}

enum status fields_read(struct decoder *d, const struct field *fields, size_t n_fields, const msgpack_object *v, void *base,
                        uint64_t *ret_given)
{
    uint64_t seen = 0, given = 0;

    assert(n_fields <= 64);
    assert(v->type == MSGPACK_OBJECT_MAP);
    for (uint32_t i = 0; i < v->via.map.size; i++) {
        const msgpack_object_kv *entry = &v->via.map.ptr[i];
        enum status st = ST_OK;

        if (entry->key.type != MSGPACK_OBJECT_STR)
            return field_refuse_value(d, &(struct field){ .key = "a key" }, &entry->key, "a string");
        struct span key = span_of(entry->key.via.str.ptr, entry->key.via.str.size);
        const struct field *f = find(fields, n_fields, key);
        if (f == NULL) {
            st = refuse_unknown(d, key, &entry->val);
            if (st != ST_OK)
                return st;
            continue;
        }
        uint64_t bit = UINT64_C(1) << (f - fields);
        if ((seen & bit) != 0)
            return field_refuse(d, ERR_INVALID_REQUEST, f->key, "is given twice");
        seen |= bit;
        if (entry->val.type == MSGPACK_OBJECT_NIL)
            continue; /* the same as absent */
        st = f->read(d, f, &entry->val, (uint8_t *)base + f->at);
        if (st != ST_OK)
            return st;
        given |= bit;
    }
    for (size_t i = 0; i < n_fields; i++)
        if ((fields[i].flags & FIELD_REQUIRED) != 0 && (given & UINT64_C(1) << i) == 0)
            return field_refuse(d, ERR_INVALID_REQUEST, fields[i].key, "is missing");
    *ret_given = given;
    return ST_OK;
}

bool field_given(const struct field *fields, size_t n_fields, uint64_t given, const char *key)
{
    const struct field *f = find(fields, n_fields, span_str(key));

    assert(f != NULL);
    return (given & UINT64_C(1) << (f - fields)) != 0;
}

enum status list_read(struct decoder *d, const struct field *f, const msgpack_object *v, const struct field *fields,
                      size_t n_fields, size_t size, void **ret_at)
{
    uint32_t n = v->via.array.size;
    char outer[sizeof(d->prefix)];
    enum status st = ST_OK;
    void *at = NULL;

    if (decoder_alloc(d, size * n, &at) != ST_OK)
        return ST_NOMEM;
    memset(at, 0, size * n);
    memcpy(outer, d->prefix, sizeof(outer));
    for (uint32_t i = 0; i < n && st == ST_OK; i++) {
        const msgpack_object *element = &v->via.array.ptr[i];
        uint64_t given = 0;
        char key[32];

        snprintf(key, sizeof(key), "%s[%" PRIu32 "]", f->key, i);
        if (element->type != MSGPACK_OBJECT_MAP)
            return field_refuse_value(d, &(struct field){ .key = key }, element, "a map");
        snprintf(d->prefix, sizeof(d->prefix), "%.14s%s.", outer, key);
        st = fields_read(d, fields, n_fields, element, (uint8_t *)at + size * i, &given);
        memcpy(d->prefix, outer, sizeof(outer));
    }
    if (st == ST_OK)
        *ret_at = at;
    return st;
}

enum status field_skip(struct decoder *d, const struct field *f, const msgpack_object *v, void *to)
{
    (void)d, (void)f, (void)v, (void)to;
    return ST_OK;
}

/* --- whole messages -------------------------------------------------------------------------- */

enum status decoder_open(struct decoder *d, struct span frame, msgpack_object *ret_root)
{
    msgpack_unpacked unpacked;
    size_t end = 0;
    enum status st = ST_INVALID;

    msgpack_unpacked_init(&unpacked);
    msgpack_unpack_return rc = msgpack_unpack_next(&unpacked, (const char *)frame.at, frame.n, &end);
    if (rc == MSGPACK_UNPACK_NOMEM_ERROR) {
        error_set(d->err, ERR_INTERNAL, NULL, "out of memory while a message was decoded");
        st = ST_NOMEM;
    } else if (rc != MSGPACK_UNPACK_SUCCESS || end != frame.n || unpacked.data.type != MSGPACK_OBJECT_MAP) {
        error_set(d->err, ERR_MALFORMED_MESSAGE, NULL, "the message is not one msgpack map");
    } else {
        *ret_root = unpacked.data;
        d->zone = msgpack_unpacked_release_zone(&unpacked);
        st = ST_OK;
    }
    msgpack_unpacked_destroy(&unpacked);
    return st;
}

/* After an error: free the zone and leave only the id in *ret_message, copied if it lay in the zone. */
static void decoder_fail(struct decoder *d, struct span frame, struct span id, struct wire_message *ret_message)
{
    bool in_frame = id.n > 0 && id.at >= frame.at && id.at < frame.at + frame.n;

    if (id.n > 0 && !in_frame) { /* an integer's digits, in the zone */
        assert(id.n <= sizeof(ret_message->id_digits));
        memcpy(ret_message->id_digits, id.at, id.n);
        id.at = (const uint8_t *)ret_message->id_digits;
    }
    ret_message->id = id;
    msgpack_zone_free(d->zone);
    d->zone = NULL;
}

enum status decoder_run(struct span frame, bool strict, const char *type_name, frame_reader *read,
                        struct wire_message *ret_message, struct error *err)
{
    struct decoder d = { .err = err, .strict = strict, .type_name = type_name };
    struct wire_message m = { 0 };
    struct wire_scan scan = { 0 };
    msgpack_object root;
    enum status st;

    memset(ret_message, 0, sizeof(*ret_message));
    st = wire_scan(frame, &scan, err);
    if (st != ST_OK)
        return st;
    st = decoder_open(&d, frame, &root);
    if (st != ST_OK)
        return st;
    st = read(&d, frame, &scan, &root, &m);
    if (st == ST_OK) {
        m.arena = d.zone;
        *ret_message = m;
        return ST_OK;
    }
    decoder_fail(&d, frame, m.id, ret_message);
    return st;
}

enum status decoder_refuse_utf8(struct decoder *d, const struct wire_scan *scan)
{
    char name[ERROR_PARAM_BYTES];

    if (scan->bad_field.n == 0) {
        error_set(d->err, ERR_MALFORMED_MESSAGE, NULL, "a key is not valid UTF-8");
        return ST_INVALID;
    }
    copy_clean(name, sizeof(name), scan->bad_field);
    return field_refuse(d, ERR_INVALID_PARAMETER, name, "is not valid UTF-8 at byte %zu", scan->bad_byte);
}

const msgpack_object *map_value(const msgpack_object *map, const char *key)
{
    for (uint32_t i = 0; i < map->via.map.size; i++) {
        const msgpack_object *k = &map->via.map.ptr[i].key;
        if (k->type == MSGPACK_OBJECT_STR && span_is(span_of(k->via.str.ptr, k->via.str.size), key))
            return &map->via.map.ptr[i].val;
    }
    return NULL;
}
