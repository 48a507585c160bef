/* gguf_value.c - typed answers from a parsed GGUF file.  All bounds were checked by gguf.c; what is checked here is that a
 * value has the type and the range that the caller wants. */
#include "gguf_internal.h"

#include <assert.h>
#include <math.h>
#include <string.h>

static const struct {
    const char *name;
    unsigned bytes; /* 0: not of fixed size */
} types[GGUF_TYPE_COUNT] = {
    [GGUF_U8] = {"u8", 1},       [GGUF_I8] = {"i8", 1},     [GGUF_U16] = {"u16", 2},
    [GGUF_I16] = {"i16", 2},     [GGUF_U32] = {"u32", 4},   [GGUF_I32] = {"i32", 4},
    [GGUF_F32] = {"f32", 4},     [GGUF_BOOL] = {"bool", 1}, [GGUF_U64] = {"u64", 8},
    [GGUF_I64] = {"i64", 8},     [GGUF_F64] = {"f64", 8},   [GGUF_STRING] = {"string", 0},
    [GGUF_ARRAY] = {"array", 0},
};

const char *gguf_type_name(enum gguf_type type)
{
    return (unsigned)type < GGUF_TYPE_COUNT ? types[type].name : "unknown";
}

unsigned gguf_type_bytes(enum gguf_type type)
{
    return types[type].bytes;
}

struct span gguf_bytes(const struct gguf *g)
{
    return g->bytes;
}

bool gguf_is_mapped(const struct gguf *g)
{
    return g->mapped;
}

const char *gguf_name(const struct gguf *g)
{
    return g->name;
}

uint32_t gguf_n_tensors(const struct gguf *g)
{
    return g->n_tensors;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, uint32_t i)
{
    assert(i < g->n_tensors);
    return &g->tensors[i];
}

const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, const char *name)
{
    uint32_t i = *gguf_table_slot(&g->tensor_table, g->tensors, sizeof(*g->tensors), span_str(name));

    return i == 0 ? NULL : &g->tensors[i - 1];
}

uint32_t gguf_tensor_index(const struct gguf *g, const struct gguf_tensor *t)
{
    assert(t >= g->tensors && t < g->tensors + g->n_tensors);
    return (uint32_t)(t - g->tensors);
}

static const struct pair *pair_find(const struct gguf *g, const char *key)
{
    uint32_t i = *gguf_table_slot(&g->pair_table, g->pairs, sizeof(*g->pairs), span_str(key));

    return i == 0 ? NULL : &g->pairs[i - 1];
}

bool gguf_has(const struct gguf *g, const char *key)
{
    return pair_find(g, key) != NULL;
}

bool gguf_is_array(const struct gguf *g, const char *key)
{
    const struct pair *p = pair_find(g, key);

    return p != NULL && p->type == GGUF_ARRAY;
}

static bool is_integer(enum gguf_type type)
{
    return type != GGUF_F32 && type != GGUF_F64 && type != GGUF_BOOL && types[type].bytes > 0;
}

/* An integer of any width; u64 above INT64_MAX saturates, which no caller's range holds. */
static int64_t read_int(enum gguf_type type, const uint8_t *at)
{
    union {
        uint8_t u8;
        int8_t i8;
        uint16_t u16;
        int16_t i16;
        uint32_t u32;
        int32_t i32;
        uint64_t u64;
        int64_t i64;
    } v;

    memcpy(&v, at, types[type].bytes);
    switch (type) {
    case GGUF_U8:
    case GGUF_BOOL:
        return v.u8;
    case GGUF_I8:
        return v.i8;
    case GGUF_U16:
        return v.u16;
    case GGUF_I16:
        return v.i16;
    case GGUF_U32:
        return v.u32;
    case GGUF_I32:
        return v.i32;
    case GGUF_I64:
        return v.i64;
    default:
        return v.u64 > INT64_MAX ? INT64_MAX : (int64_t)v.u64;
    }
}

static enum status find_typed(const struct gguf *g, const char *key, const struct pair **ret_pair,
                              struct error *err)
{
    const struct pair *p = pair_find(g, key);

    if (p == NULL)
        return gguf_fail(g, err, ST_NOT_FOUND, "has no key \"%s\"", key);
    *ret_pair = p;
    return ST_OK;
}

static enum status wrong_type(const struct gguf *g, const char *key, const struct pair *p, const char *wanted,
                              struct error *err)
{
    return gguf_fail(g, err, ST_INVALID, "\"%s\" has type %s, expected %s", key, types[p->type].name, wanted);
}

enum status gguf_u32(const struct gguf *g, const char *key, uint32_t *ret_value, struct error *err)
{
    const struct pair *p = NULL;
    enum status st = find_typed(g, key, &p, err);

    if (st != ST_OK)
        return st;
    if (!is_integer(p->type))
        return wrong_type(g, key, p, "an integer", err);

    int64_t v = read_int(p->type, p->at);

    if (v < 0 || v > UINT32_MAX)
        return gguf_fail(g, err, ST_INVALID, "\"%s\" is %lld, must be 0 to %u", key, (long long)v,
                         UINT32_MAX);
    *ret_value = (uint32_t)v;
    return ST_OK;
}

enum status gguf_f32(const struct gguf *g, const char *key, float *ret_value, struct error *err)
{
    const struct pair *p = NULL;
    enum status st = find_typed(g, key, &p, err);
    float f;
    double d;

    if (st != ST_OK)
        return st;
    if (p->type == GGUF_F32) {
        memcpy(&f, p->at, sizeof(f));
    } else if (p->type == GGUF_F64) {
        memcpy(&d, p->at, sizeof(d));
        f = (float)d;
    } else {
        return wrong_type(g, key, p, "f32", err);
    }
    if (!isfinite(f))
        return gguf_fail(g, err, ST_INVALID, "\"%s\" is not a finite number", key);
    *ret_value = f;
    return ST_OK;
}

enum status gguf_bool(const struct gguf *g, const char *key, bool *ret_value, struct error *err)
{
    const struct pair *p = NULL;
    enum status st = find_typed(g, key, &p, err);

    if (st != ST_OK)
        return st;
    if (p->type != GGUF_BOOL)
        return wrong_type(g, key, p, "bool", err);
    *ret_value = *p->at == 1;
    return ST_OK;
}

enum status gguf_string(const struct gguf *g, const char *key, struct span *ret_value, struct error *err)
{
    const struct pair *p = NULL;
    enum status st = find_typed(g, key, &p, err);

    if (st != ST_OK)
        return st;
    if (p->type != GGUF_STRING)
        return wrong_type(g, key, p, "string", err);
    *ret_value = span_of(p->at, (size_t)p->n);
    return ST_OK;
}

enum status gguf_array_any(const struct gguf *g, const char *key, struct gguf_array *ret_array,
                           struct error *err)
{
    const struct pair *p = NULL;
    enum status st = find_typed(g, key, &p, err);

    if (st != ST_OK)
        return st;
    if (p->type != GGUF_ARRAY)
        return wrong_type(g, key, p, "array", err);
    *ret_array = p->array;
    return ST_OK;
}

enum status gguf_array(const struct gguf *g, const char *key, enum gguf_type type,
                       struct gguf_array *ret_array, struct error *err)
{
    struct gguf_array a;
    enum status st = gguf_array_any(g, key, &a, err);

    if (st != ST_OK)
        return st;
    if (a.type != type)
        return gguf_fail(g, err, ST_INVALID, "\"%s\" is an array of %s, expected %s", key, types[a.type].name,
                         types[type].name);
    *ret_array = a;
    return ST_OK;
}

enum status gguf_u32_if(const struct gguf *g, const char *key, uint32_t *value, struct error *err)
{
    return gguf_has(g, key) ? gguf_u32(g, key, value, err) : ST_OK;
}

enum status gguf_f32_if(const struct gguf *g, const char *key, float *value, struct error *err)
{
    return gguf_has(g, key) ? gguf_f32(g, key, value, err) : ST_OK;
}

enum status gguf_bool_if(const struct gguf *g, const char *key, bool *value, struct error *err)
{
    return gguf_has(g, key) ? gguf_bool(g, key, value, err) : ST_OK;
}

struct span gguf_array_next_string(struct gguf_array *a)
{
    struct cursor c = {a->at, a->end};
    struct span s = {NULL, 0};

    assert(a->type == GGUF_STRING);
    assert(a->n > 0);
    bool whole = gguf_take_string(&c, &s);

    assert(whole); /* parse_array walked them all */
    a->at = c.at;
    a->n--;
    return s;
}

int64_t gguf_array_next_int(struct gguf_array *a)
{
    assert(a->n > 0);
    assert(is_integer(a->type) || a->type == GGUF_BOOL);
    int64_t v = read_int(a->type, a->at);

    a->at += types[a->type].bytes;
    a->n--;
    return v;
}

float gguf_array_next_f32(struct gguf_array *a)
{
    float f;

    assert(a->n > 0);
    assert(a->type == GGUF_F32);
    memcpy(&f, a->at, sizeof(f));
    a->at += sizeof(f);
    a->n--;
    return f;
}
