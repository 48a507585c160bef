/* wire_fields.h - reads the fields of a map by a table of {key, reader, place, range}.  Private to the wire_*.c files. */
#ifndef WIRE_FIELDS_H
#define WIRE_FIELDS_H

#include <msgpack.h>
#include <stddef.h>

#include "wire.h"
#include "wire_scan.h"

struct decoder {
    msgpack_zone *zone;     /* what the decoded message keeps: the objects, and the lists made of them */
    struct error *err;
    bool strict;            /* a request: unknown keys are errors.  A reply: they are skipped */
    const char *type_name;  /* "generate", for messages */
    char prefix[48];        /* where a nested map stands: "messages[3]." */
};

enum {
    FIELD_REQUIRED = 1 << 0,
    FIELD_OVER_MIN = 1 << 1, /* min itself is not in the range */
};

struct field;
typedef enum status field_reader(struct decoder *d, const struct field *f, const msgpack_object *v, void *to);

struct field {
    const char *key;
    field_reader *read;
    size_t at;              /* offsetof the output, or of what the reader fills */
    double min, max;        /* of a number; of the bytes of a string; of the elements of a list.  max 0: any */
    unsigned flags;
    const char *words[2];   /* of field_choice */
};

/* Read every entry of the map v into the struct at base.  nil counts as absent.  A key twice, an unknown one (strict), a missing
 * required one, a wrong type or range are errors that name the field.  At most 64 fields a table.
 * *ret_given has bit i set when fields[i] was there.  ST_OK, ST_INVALID, ST_LIMIT, ST_UNSUPPORTED, ST_NOMEM. */
MUST_CHECK enum status fields_read(struct decoder *d, const struct field *fields, size_t n_fields, const msgpack_object *v,
                                   void *base, uint64_t *ret_given);

/* Is the bit of `key` set?  key must be in the table. */
bool field_given(const struct field *fields, size_t n_fields, uint64_t given, const char *key);

/* Set the error: param is prefix + key, the message begins with it.  Returns the status that goes with the code. */
__attribute__((format(printf, 4, 5))) enum status field_refuse(struct decoder *d, enum error_code code, const char *key,
                                                               const char *format, ...);
/* "is 1.5, must be ..." for a value of wrong type or range. */
enum status field_refuse_value(struct decoder *d, const struct field *f, const msgpack_object *v, const char *must_be);

/* Memory that lives as long as the message.  n_bytes is bounded by the frame's limits.  ST_OK or ST_NOMEM (*err set). */
MUST_CHECK enum status decoder_alloc(struct decoder *d, size_t n_bytes, void **ret_at);

/* Build msgpack's objects for a frame that wire_scan has passed; the root is a map.  Takes memory into d->zone.
 * ST_OK, ST_NOMEM, or ST_INVALID (what only msgpack-c refuses); then d->zone is NULL and *err set. */
MUST_CHECK enum status decoder_open(struct decoder *d, struct span frame, msgpack_object *ret_root);

/* What is particular to requests or to replies: from the map at root to the message. */
typedef enum status frame_reader(struct decoder *d, struct span frame, const struct wire_scan *scan, const msgpack_object *root,
                                 struct wire_message *m);
/* Decode a frame: scan, open, read.  ST_OK: *ret_message is whole and owns its memory.  Otherwise *err is set, and of *ret_message only the id,
 * if it was there and readable. */
MUST_CHECK enum status decoder_run(struct span frame, bool strict, const char *type_name, frame_reader *read,
                                   struct wire_message *ret_message, struct error *err);

/* Set the error of a string that is not UTF-8. */
enum status decoder_refuse_utf8(struct decoder *d, const struct wire_scan *scan);

/* The first value of `key` in a map, or NULL. */
const msgpack_object *map_value(const msgpack_object *map, const char *key);

/* Read a list of maps into an array, made here, of structs of `size` bytes each; v is an array.  Errors name "messages[3].role". */
MUST_CHECK enum status list_read(struct decoder *d, const struct field *f, const msgpack_object *v, const struct field *fields,
                                 size_t n_fields, size_t size, void **ret_at);

/* The readers; what `to` points at. */
field_reader field_skip;    /* nothing: the value is of no interest here */
field_reader field_text;    /* struct span: a str of min .. max bytes */
field_reader field_bytes;   /* struct span: str or bin of min .. max bytes */
field_reader field_id;      /* struct span: str, bin or integer, 1 .. CLIENT_ID_BYTES_MAX bytes */
field_reader field_bool;    /* bool */
field_reader field_choice;  /* bool: words[0] is false, words[1] true */
field_reader field_u32;     /* uint32_t */
field_reader field_i32;     /* int32_t */
field_reader field_u64;     /* uint64_t */
field_reader field_f32;     /* float; integers are taken too; finite */
field_reader field_f64;     /* double; likewise */
field_reader field_logprob; /* float; -inf too */
field_reader field_ids;     /* struct field_ids: a list of min .. max token ids */

struct field_ids {
    const int32_t *at;
    uint32_t n;
};

#endif
