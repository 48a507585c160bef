/* gguf_internal.h - what gguf.c (parsing) and gguf_value.c (questions) share.  Nobody else includes it. */
#ifndef GGUF_INTERNAL_H
#define GGUF_INTERNAL_H

#include "gguf.h"

struct pair {
    struct span key;
    enum gguf_type type;
    struct gguf_array array; /* GGUF_ARRAY only */
    const uint8_t *at;       /* a scalar's bytes, or a string's first byte */
    uint64_t n;              /* a string's length */
};

struct name_table {
    uint32_t *slots; /* index + 1, 0 = empty */
    uint32_t mask;
};

struct gguf {
    struct span bytes;
    bool mapped;
    char name[256];
    uint32_t version;
    uint64_t alignment;
    uint32_t n_pairs, n_tensors;
    struct pair *pairs;
    struct gguf_tensor *tensors;
    struct name_table pair_table, tensor_table;
};

struct cursor {
    const uint8_t *at, *end;
};

/* Bytes of a value of this type; 0 for strings and arrays. */
unsigned gguf_type_bytes(enum gguf_type type);

/* Take a length and as many bytes; false, and nothing taken, when they are not there. */
bool gguf_take_string(struct cursor *c, struct span *out);

/* The slot where name is (index + 1) or would be (0).  Items begin with the span of their name. */
uint32_t *gguf_table_slot(const struct name_table *t, const void *items, size_t item_bytes, struct span name);

/* Fill *err with "FILE: text"; gguf_fail() has the value of status. */
__attribute__((format(printf, 3, 4))) void gguf_fail_text(const struct gguf *g, struct error *err,
                                                          const char *format, ...);
#define gguf_fail(g, err, status, ...) (gguf_fail_text(g, err, __VA_ARGS__), (status))

#endif
