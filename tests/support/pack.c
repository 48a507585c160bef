/* pack.c - JSON to msgpack with Jansson and msgpack-c's own packer, so that our encoder is not tested with itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <jansson.h>
#include <msgpack.h>

#include "tests/support/pack.h"

static void pack(msgpack_packer *p, json_t *v)
{
    const char *key;
    json_t *value;
    size_t i;

    switch (json_typeof(v)) {
    case JSON_OBJECT:
        msgpack_pack_map(p, json_object_size(v));
        json_object_foreach(v, key, value) {
            msgpack_pack_str_with_body(p, key, strlen(key));
            pack(p, value);
        }
        break;
    case JSON_ARRAY:
        msgpack_pack_array(p, json_array_size(v));
        json_array_foreach(v, i, value)
            pack(p, value);
        break;
    case JSON_STRING:
        msgpack_pack_str_with_body(p, json_string_value(v), json_string_length(v));
        break;
    case JSON_INTEGER:
        msgpack_pack_int64(p, json_integer_value(v));
        break;
    case JSON_REAL:
        msgpack_pack_double(p, json_real_value(v));
        break;
    case JSON_TRUE:
        msgpack_pack_true(p);
        break;
    case JSON_FALSE:
        msgpack_pack_false(p);
        break;
    case JSON_NULL:
        msgpack_pack_nil(p);
    }
}

struct span pack_json(const char *text)
{
    static msgpack_sbuffer buffers[4];
    static unsigned next;
    msgpack_sbuffer *b = &buffers[next++ % 4];
    char *json = strdup(text);
    json_error_t error;
    msgpack_packer p;

    for (char *c = json; *c != '\0'; c++)
        if (*c == '\'')
            *c = '"';
    json_t *v = json_loads(json, JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
    if (v == NULL)
        fail_msg("test text is no JSON: %s: %s", error.text, json);
    msgpack_sbuffer_clear(b);
    msgpack_packer_init(&p, b, msgpack_sbuffer_write);
    pack(&p, v);
    json_decref(v);
    free(json);
    return span_of(b->data, b->size);
}
