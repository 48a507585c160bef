/* gguf.h - a GGUF file, mapped read-only and checked from end to end.
 *
 * The file:  "GGUF" | u32 version (2 or 3) | u64 tensors | u64 pairs | pairs | tensor infos | padding | tensor data
 *   string  u64 length, bytes          array  u32 element type, u64 count, elements          bool  one byte, 0 or 1
 *   pair    string key, u32 type, value
 *   tensor  string name, u32 dimensions, u64 ne[dimensions], u32 type, u64 offset from the start of the data
 * All little-endian, nothing aligned but the data.  ne[0] runs fastest: a weight [ne0 = K, ne1 = N] is N rows of K.
 * Format: the "GGUF" page of the ggml project.
 *
 * gguf_open() believes nothing: each count, length, product and offset is held against the bytes that are there, with
 * overflow checks, before it is used.  What it returns is safe to read within its bounds as long as nobody truncates the
 * file under the mapping.  Only tensor types in TENSOR_TYPE_LIST (model.h) are taken.
 *
 * Threads: read-only after gguf_open(), so any number may read.  Ownership: spans and pointers handed out point into the
 * mapping and live until gguf_close().
 *
 * Errors: ST_INVALID the file is broken; ST_UNSUPPORTED it is sound but not for us; ST_LIMIT a limit of limits.h;
 * ST_NOT_FOUND no such key; ST_NOMEM; ST_SYSTEM open or mmap failed.  *err is filled whenever the result is not ST_OK, except where it says
 * otherwise; its param is "model". */
#ifndef GGUF_H
#define GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "error.h"
#include "model.h"
#include "span.h"
#include "status.h"

enum { GGUF_DIMS_MAX = 4, GGUF_PRINTED_BYTES = 96 };

enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_TYPE_COUNT
};

struct gguf_array {
    enum gguf_type type; /* of the elements; never GGUF_ARRAY */
    uint64_t n;
    const uint8_t *at; /* first element, unaligned; strings lie one after another */
    const uint8_t *end;
};

struct gguf_tensor {
    struct span name;           /* at most GGUF_NAME_BYTES_MAX bytes */
    uint32_t n_dims;            /* 1 .. GGUF_DIMS_MAX */
    uint64_t ne[GGUF_DIMS_MAX]; /* 1 past n_dims; never 0 */
    enum tensor_type type;
    const void *data;
    size_t bytes;
};

struct gguf; /* opaque */

MUST_CHECK enum status gguf_open(const char *path, struct gguf **ret_gguf, struct error *err);

/* The same for a file that is in memory already.  Borrows bytes until gguf_close(); name is for error messages, copied. */
MUST_CHECK enum status gguf_open_memory(struct span bytes, const char *name, struct gguf **ret_gguf,
                                        struct error *err);

void gguf_close(struct gguf *g); /* NULL is fine */

struct span gguf_bytes(const struct gguf *g); /* the whole file */
bool gguf_is_mapped(const struct gguf *g);    /* false: gguf_open_memory() */
const char *gguf_name(const struct gguf *g);  /* the file's name without folders, for messages */

uint32_t gguf_n_tensors(const struct gguf *g);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, uint32_t i); /* i < gguf_n_tensors() */
const struct gguf_tensor *gguf_tensor_find(const struct gguf *g,
                                           const char *name); /* NULL when there is none */
uint32_t gguf_tensor_index(const struct gguf *g, const struct gguf_tensor *t);

bool gguf_has(const struct gguf *g, const char *key);

/* The value of a key.  ST_NOT_FOUND: no such key; ST_INVALID: another type, or outside what the output holds.  Integers
 * of every width are taken for u32, f32 and f64 for f32 (finite only). */
MUST_CHECK enum status gguf_u32(const struct gguf *g, const char *key, uint32_t *ret_value,
                                struct error *err);
MUST_CHECK enum status gguf_f32(const struct gguf *g, const char *key, float *ret_value, struct error *err);
MUST_CHECK enum status gguf_bool(const struct gguf *g, const char *key, bool *ret_value, struct error *err);
MUST_CHECK enum status gguf_string(const struct gguf *g, const char *key, struct span *ret_value,
                                   struct error *err);
MUST_CHECK enum status gguf_array(const struct gguf *g, const char *key, enum gguf_type type,
                                  struct gguf_array *ret_array, struct error *err);
/* Any element type. */
MUST_CHECK enum status gguf_array_any(const struct gguf *g, const char *key, struct gguf_array *ret_array,
                                      struct error *err);

/* For optional keys: an absent key leaves *value as it is and gives ST_OK. */
MUST_CHECK enum status gguf_u32_if(const struct gguf *g, const char *key, uint32_t *value, struct error *err);
MUST_CHECK enum status gguf_f32_if(const struct gguf *g, const char *key, float *value, struct error *err);
MUST_CHECK enum status gguf_bool_if(const struct gguf *g, const char *key, bool *value, struct error *err);

/* Is the key's value an array? */
bool gguf_is_array(const struct gguf *g, const char *key);

/* Take the next element off the front of an array; n must be > 0 and the type must fit (asserted). */
struct span gguf_array_next_string(struct gguf_array *a);
int64_t gguf_array_next_int(struct gguf_array *a); /* integer types and bool; u64 above INT64_MAX saturates */
float gguf_array_next_f32(struct gguf_array *a);   /* GGUF_F32 */

/* Text from a file made fit for a message: printable ASCII, cut with "..."; returns buf. */
const char *gguf_printable(struct span s, char buf[GGUF_PRINTED_BYTES]);

const char *gguf_type_name(enum gguf_type type);     /* "u32" */
const char *tensor_type_name(enum tensor_type type); /* "Q4_K" */

#endif
