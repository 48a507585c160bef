/* gguf.c - parse a GGUF file in one pass over its header, and answer questions about it.
 *
 * Why our own reader: the file is the largest foreign input of the program, and everything after it (kernels that read
 * rows by pointer, a tokenizer that walks strings) trusts sizes found here.  So a cursor moves through the mapping, and
 * each read says how many bytes it needs before it touches them.  Pairs and tensors are kept as views into the mapping,
 * found through two open-addressing tables; nothing is copied but numbers.
 *
 * The data section is checked as ggml does it: tensors lie in file order without gaps, each padded to the alignment.
 * That alone excludes overlapping tensors.  The last one must end inside the file; its padding may be missing. */
#include "gguf_internal.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "limits.h"

enum { ALIGNMENT_DEFAULT = 32, ALIGNMENT_MIN = 8, ALIGNMENT_MAX = 1 << 16 };

static const struct tensor_type_info {
    const char *name;
    uint32_t id, elements, bytes;
} tensor_types[] = {
#define X(type_name, type_id, type_elements, type_bytes) {#type_name, type_id, type_elements, type_bytes},
    TENSOR_TYPE_LIST(X)
#undef X
};

/* Types that other programs write; for the message only. */
static const struct {
    uint32_t id;
    const char *name;
} foreign_types[] = {
    {9, "Q8_1"},     {10, "Q2_K"},  {11, "Q3_K"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"},
    {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"}, {22, "IQ2_S"},   {23, "IQ4_XS"},
    {24, "I8"},      {25, "I16"},   {26, "I32"},    {27, "I64"},   {28, "F64"},     {29, "IQ1_M"},
    {34, "TQ1_0"},   {35, "TQ2_0"}, {39, "MXFP4"},
};

static const char types_taken[] = "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K";

static const struct tensor_type_info *tensor_type_find(uint32_t id)
{
    for (size_t i = 0; i < sizeof(tensor_types) / sizeof(tensor_types[0]); i++)
        if (tensor_types[i].id == id)
            return &tensor_types[i];
    return NULL;
}

const char *tensor_type_name(enum tensor_type type)
{
    const struct tensor_type_info *info = tensor_type_find(type);

    return info != NULL ? info->name : "unknown";
}

const char *gguf_printable(struct span s, char buf[GGUF_PRINTED_BYTES])
{
    size_t n = s.n < GGUF_PRINTED_BYTES - 4 ? s.n : GGUF_PRINTED_BYTES - 4;

    for (size_t i = 0; i < n; i++)
        buf[i] = s.at[i] >= 0x20 && s.at[i] < 0x7F ? (char)s.at[i] : '?';
    memcpy(buf + n, s.n > n ? "..." : "", s.n > n ? 4 : 1);
    return buf;
}

void gguf_fail_text(const struct gguf *g, struct error *err, const char *format, ...)
{
    char text[ERROR_MESSAGE_BYTES];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    error_set(err, ERR_INVALID_PARAMETER, "model", "%s: %s", g->name, text);
}

/* --- reading ------------------------------------------------------------------------------------------------------- */

static bool take(struct cursor *c, void *out, size_t n)
{
    if ((size_t)(c->end - c->at) < n)
        return false;
    memcpy(out, c->at, n);
    c->at += n;
    return true;
}

bool gguf_take_string(struct cursor *c, struct span *out)
{
    uint64_t n;

    if (!take(c, &n, sizeof(n)) || n > (uint64_t)(c->end - c->at))
        return false;
    *out = span_of(c->at, (size_t)n);
    c->at += n;
    return true;
}

/* Room for n names at most half full; the file cannot hold more than its own size of them. */
static bool table_init(struct name_table *t, uint32_t n)
{
    uint32_t n_slots = 16;

    while (n_slots < 2 * n)
        n_slots *= 2;
    t->mask = n_slots - 1;
    t->slots = calloc(n_slots, sizeof(*t->slots));
    return t->slots != NULL;
}

/* The slot where name is or would be.  Both arrays hold the name as their first member's span. */
uint32_t *gguf_table_slot(const struct name_table *t, const void *items, size_t item_bytes, struct span name)
{
    uint32_t i = (uint32_t)XXH3_64bits(name.at, name.n) & t->mask;

    while (t->slots[i] != 0) {
        struct span other;

        memcpy(&other, (const char *)items + (t->slots[i] - 1) * item_bytes, sizeof(other));
        if (span_equal(other, name))
            break;
        i = (i + 1) & t->mask;
    }
    return &t->slots[i];
}
_Static_assert(offsetof(struct pair, key) == 0, "table_slot reads the name there");
_Static_assert(offsetof(struct gguf_tensor, name) == 0, "table_slot reads the name there");

static enum status parse_array(struct gguf *g, struct cursor *c, struct pair *p, struct error *err)
{
    char key[GGUF_PRINTED_BYTES];
    uint32_t type;
    uint64_t n;

    if (!take(c, &type, sizeof(type)) || !take(c, &n, sizeof(n)))
        return gguf_fail(g, err, ST_INVALID, "ends inside the array \"%s\"", gguf_printable(p->key, key));
    if (type == GGUF_ARRAY)
        return gguf_fail(g, err, ST_INVALID, "\"%s\" is an array of arrays", gguf_printable(p->key, key));
    if (type >= GGUF_TYPE_COUNT)
        return gguf_fail(g, err, ST_INVALID, "\"%s\" has elements of the unknown type %u",
                         gguf_printable(p->key, key), type);

    uint64_t left = (uint64_t)(c->end - c->at);
    uint64_t smallest = type == GGUF_STRING ? sizeof(uint64_t) : gguf_type_bytes(type);

    if (n > left / smallest)
        return gguf_fail(g, err, ST_INVALID, "\"%s\" claims %llu elements, %llu bytes are left",
                         gguf_printable(p->key, key), (unsigned long long)n, (unsigned long long)left);
    p->array = (struct gguf_array){.type = (enum gguf_type)type, .n = n, .at = c->at};
    if (type == GGUF_STRING) {
        struct span s;

        for (uint64_t i = 0; i < n; i++)
            if (!gguf_take_string(c, &s))
                return gguf_fail(g, err, ST_INVALID, "string %llu of \"%s\" ends past the file",
                                 (unsigned long long)i, gguf_printable(p->key, key));
    } else {
        c->at += n * gguf_type_bytes(type);
    }
    p->array.end = c->at;
    return ST_OK;
}

static enum status parse_pair(struct gguf *g, struct cursor *c, struct pair *p, struct error *err)
{
    char key[GGUF_PRINTED_BYTES];
    uint32_t type;

    if (!gguf_take_string(c, &p->key) || !take(c, &type, sizeof(type)))
        return gguf_fail(g, err, ST_INVALID, "ends inside key %u", g->n_pairs);
    if (p->key.n == 0)
        return gguf_fail(g, err, ST_INVALID, "key %u is empty", g->n_pairs);
    if (p->key.n > GGUF_KEY_BYTES_MAX)
        return gguf_fail(g, err, ST_LIMIT, "key %u has %zu bytes, limit %d (GGUF_KEY_BYTES_MAX)", g->n_pairs,
                         p->key.n, GGUF_KEY_BYTES_MAX);
    if (type >= GGUF_TYPE_COUNT)
        return gguf_fail(g, err, ST_INVALID, "\"%s\" has the unknown type %u", gguf_printable(p->key, key),
                         type);
    p->type = (enum gguf_type)type;
    if (p->type == GGUF_ARRAY)
        return parse_array(g, c, p, err);
    if (p->type == GGUF_STRING) {
        struct span s;

        if (!gguf_take_string(c, &s))
            return gguf_fail(g, err, ST_INVALID, "the string \"%s\" ends past the file",
                             gguf_printable(p->key, key));
        p->at = s.at;
        p->n = s.n;
        return ST_OK;
    }
    if ((size_t)(c->end - c->at) < gguf_type_bytes(type))
        return gguf_fail(g, err, ST_INVALID, "ends inside the value of \"%s\"", gguf_printable(p->key, key));
    p->at = c->at;
    c->at += gguf_type_bytes(type);
    if (p->type == GGUF_BOOL && *p->at > 1)
        return gguf_fail(g, err, ST_INVALID, "\"%s\" is a bool with the value %u",
                         gguf_printable(p->key, key), *p->at);
    return ST_OK;
}

static enum status parse_pairs(struct gguf *g, struct cursor *c, uint64_t n, struct error *err)
{
    char key[GGUF_PRINTED_BYTES];

    if (n > GGUF_KVS_MAX)
        return gguf_fail(g, err, ST_LIMIT, "claims %llu keys, limit %d (GGUF_KVS_MAX)", (unsigned long long)n,
                         GGUF_KVS_MAX);
    g->pairs = calloc(n + 1, sizeof(*g->pairs));
    if (g->pairs == NULL || !table_init(&g->pair_table, (uint32_t)n))
        return gguf_fail(g, err, ST_NOMEM, "no memory for %llu keys", (unsigned long long)n);
    for (; g->n_pairs < n; g->n_pairs++) {
        struct pair *p = &g->pairs[g->n_pairs];
        enum status st = parse_pair(g, c, p, err);

        if (st != ST_OK)
            return st;
        uint32_t *slot = gguf_table_slot(&g->pair_table, g->pairs, sizeof(*p), p->key);

        if (*slot != 0)
            return gguf_fail(g, err, ST_INVALID, "has the key \"%s\" twice", gguf_printable(p->key, key));
        *slot = g->n_pairs + 1;
    }
    return ST_OK;
}

/* Type and size of a tensor whose dimensions are known; offset is where its data must start. */
static enum status tensor_size(struct gguf *g, struct gguf_tensor *t, uint32_t type, struct error *err)
{
    const struct tensor_type_info *info = tensor_type_find(type);
    char name[GGUF_PRINTED_BYTES];
    uint64_t blocks;

    gguf_printable(t->name, name);
    if (info == NULL) {
        for (size_t i = 0; i < sizeof(foreign_types) / sizeof(foreign_types[0]); i++)
            if (foreign_types[i].id == type)
                return gguf_fail(g, err, ST_UNSUPPORTED, "tensor \"%s\" has type %s; taken are %s", name,
                                 foreign_types[i].name, types_taken);
        return gguf_fail(g, err, ST_INVALID, "tensor \"%s\" has the unknown type %u", name, type);
    }
    if (t->ne[0] % info->elements != 0)
        return gguf_fail(g, err, ST_INVALID,
                         "tensor \"%s\" has rows of %llu elements, %s needs a multiple of %u", name,
                         (unsigned long long)t->ne[0], info->name, info->elements);
    blocks = t->ne[0] / info->elements;
    for (uint32_t d = 1; d < GGUF_DIMS_MAX; d++)
        if (__builtin_mul_overflow(blocks, t->ne[d], &blocks))
            return gguf_fail(g, err, ST_INVALID, "the dimensions of tensor \"%s\" overflow", name);
    if (blocks > g->bytes.n / info->bytes)
        return gguf_fail(g, err, ST_INVALID, "tensor \"%s\" has more bytes than the file's %zu", name,
                         g->bytes.n);
    t->type = (enum tensor_type)type;
    t->bytes = (size_t)blocks * info->bytes;
    return ST_OK;
}

static enum status parse_tensor(struct gguf *g, struct cursor *c, struct gguf_tensor *t, uint64_t *data_bytes,
                                struct error *err)
{
    char name[GGUF_PRINTED_BYTES];
    uint32_t type;
    uint64_t offset;

    if (!gguf_take_string(c, &t->name) || !take(c, &t->n_dims, sizeof(t->n_dims)))
        return gguf_fail(g, err, ST_INVALID, "ends inside tensor %u", g->n_tensors);
    if (t->name.n == 0 || t->name.n > GGUF_NAME_BYTES_MAX)
        return gguf_fail(g, err, ST_INVALID, "the name of tensor %u has %zu bytes, allowed are 1 to %d",
                         g->n_tensors, t->name.n, GGUF_NAME_BYTES_MAX);
    gguf_printable(t->name, name);
    if (t->n_dims < 1 || t->n_dims > GGUF_DIMS_MAX)
        return gguf_fail(g, err, ST_INVALID, "tensor \"%s\" has %u dimensions, allowed are 1 to %d", name,
                         t->n_dims, GGUF_DIMS_MAX);
    for (uint32_t d = 0; d < GGUF_DIMS_MAX; d++) {
        t->ne[d] = 1;
        if (d < t->n_dims && !take(c, &t->ne[d], sizeof(t->ne[d])))
            return gguf_fail(g, err, ST_INVALID, "ends inside tensor \"%s\"", name);
        if (t->ne[d] == 0 || t->ne[d] > INT64_MAX)
            return gguf_fail(g, err, ST_INVALID, "dimension %u of tensor \"%s\" is %lld", d, name,
                             (long long)t->ne[d]);
    }
    if (!take(c, &type, sizeof(type)) || !take(c, &offset, sizeof(offset)))
        return gguf_fail(g, err, ST_INVALID, "ends inside tensor \"%s\"", name);

    enum status st = tensor_size(g, t, type, err);

    if (st != ST_OK)
        return st;
    if (offset != *data_bytes)
        return gguf_fail(g, err, ST_INVALID, "tensor \"%s\" is at offset %llu, expected at %llu", name,
                         (unsigned long long)offset, (unsigned long long)*data_bytes);
    /* Both terms are at most the file's size and some padding: no overflow. */
    *data_bytes += (t->bytes + g->alignment - 1) / g->alignment * g->alignment;
    if (*data_bytes - g->alignment > g->bytes.n)
        return gguf_fail(g, err, ST_INVALID, "tensor \"%s\" ends past the file's %zu bytes", name,
                         g->bytes.n);
    return ST_OK;
}

static enum status parse_tensors(struct gguf *g, struct cursor *c, uint64_t n, struct error *err)
{
    char name[GGUF_PRINTED_BYTES];
    uint64_t data_bytes = 0;

    if (n > GGUF_TENSORS_MAX)
        return gguf_fail(g, err, ST_LIMIT, "claims %llu tensors, limit %d (GGUF_TENSORS_MAX)",
                         (unsigned long long)n, GGUF_TENSORS_MAX);
    if (n > (uint64_t)(c->end - c->at) / 32) /* the shortest tensor info takes more */
        return gguf_fail(g, err, ST_INVALID, "claims %llu tensors, %zu bytes are left", (unsigned long long)n,
                         (size_t)(c->end - c->at));
    g->tensors = calloc(n + 1, sizeof(*g->tensors));
    if (g->tensors == NULL || !table_init(&g->tensor_table, (uint32_t)n))
        return gguf_fail(g, err, ST_NOMEM, "no memory for %llu tensors", (unsigned long long)n);
    for (; g->n_tensors < n; g->n_tensors++) {
        struct gguf_tensor *t = &g->tensors[g->n_tensors];

        t->data = (const void *)(uintptr_t)data_bytes; /* made a pointer once the data section is found */

        enum status st = parse_tensor(g, c, t, &data_bytes, err);

        if (st != ST_OK)
            return st;
        uint32_t *slot = gguf_table_slot(&g->tensor_table, g->tensors, sizeof(*t), t->name);

        if (*slot != 0)
            return gguf_fail(g, err, ST_INVALID, "has tensor \"%s\" twice", gguf_printable(t->name, name));
        *slot = g->n_tensors + 1;
    }
    return ST_OK;
}

/* Turn offsets into pointers, now that the header's end and so the start of the data is known. */
static enum status place_tensors(struct gguf *g, const struct cursor *c, struct error *err)
{
    size_t header = (size_t)(c->at - g->bytes.at);
    uint64_t start = (header + g->alignment - 1) / g->alignment * g->alignment;
    char name[GGUF_PRINTED_BYTES];

    for (uint32_t i = 0; i < g->n_tensors; i++) {
        struct gguf_tensor *t = &g->tensors[i];
        uint64_t at = start + (uintptr_t)t->data;

        t->data = NULL;
        if (at > g->bytes.n || t->bytes > g->bytes.n - at)
            return gguf_fail(g, err, ST_INVALID,
                             "tensor \"%s\" ends past the file: needs %llu bytes, the file has %zu",
                             gguf_printable(t->name, name), (unsigned long long)(at + t->bytes), g->bytes.n);
        t->data = g->bytes.at + at;
    }
    return ST_OK;
}

static enum status refuse_split(const struct gguf *g, struct error *err)
{
    uint32_t count = 1;
    enum status st = gguf_u32_if(g, "split.count", &count, err);

    if (st == ST_OK && count > 1)
        return gguf_fail(g, err, ST_UNSUPPORTED,
                         "is one of %u parts of a split model; join them first (split.count)", count);
    return st;
}

static enum status parse(struct gguf *g, struct error *err)
{
    struct cursor c = {g->bytes.at, g->bytes.at + g->bytes.n};
    uint32_t magic = 0, alignment = ALIGNMENT_DEFAULT;
    uint64_t n_tensors, n_pairs;
    enum status st;

    if (!take(&c, &magic, sizeof(magic)) || memcmp(&magic, "GGUF", 4) != 0)
        return gguf_fail(g, err, ST_INVALID, "is not a GGUF file");
    if (!take(&c, &g->version, sizeof(g->version)))
        return gguf_fail(g, err, ST_INVALID, "ends inside the header");
    if ((g->version & 0xFFFF) == 0)
        return gguf_fail(g, err, ST_UNSUPPORTED,
                         "is a big-endian GGUF file; only little-endian ones are taken");
    if (g->version != 2 && g->version != 3)
        return gguf_fail(g, err, ST_UNSUPPORTED, "has GGUF version %u; taken are 2 and 3", g->version);
    if (!take(&c, &n_tensors, sizeof(n_tensors)) || !take(&c, &n_pairs, sizeof(n_pairs)))
        return gguf_fail(g, err, ST_INVALID, "ends inside the header");
    st = parse_pairs(g, &c, n_pairs, err);
    if (st == ST_OK)
        st = refuse_split(g, err);
    if (st == ST_OK)
        st = gguf_u32_if(g, "general.alignment", &alignment, err);
    if (st != ST_OK)
        return st;
    if (alignment < ALIGNMENT_MIN || alignment > ALIGNMENT_MAX || (alignment & (alignment - 1)) != 0)
        return gguf_fail(g, err, ST_INVALID, "general.alignment is %u, must be a power of two from %d to %d",
                         alignment, ALIGNMENT_MIN, ALIGNMENT_MAX);
    g->alignment = alignment;
    st = parse_tensors(g, &c, n_tensors, err);
    if (st == ST_OK)
        st = place_tensors(g, &c, err);
    return st;
}

/* --- life ---------------------------------------------------------------------------------------------------------- */

void gguf_close(struct gguf *g)
{
    if (g == NULL)
        return;
    if (g->mapped)
        munmap((void *)(uintptr_t)g->bytes.at, g->bytes.n);
    free(g->pairs);
    free(g->tensors);
    free(g->pair_table.slots);
    free(g->tensor_table.slots);
    free(g);
}

static struct gguf *gguf_alloc(const char *path, struct error *err)
{
    struct gguf *g = calloc(1, sizeof(*g));
    const char *slash = strrchr(path, '/');

    if (g == NULL) {
        error_set(err, ERR_INTERNAL, "model", "no memory to open %s", path);
        return NULL;
    }
    snprintf(g->name, sizeof(g->name), "%s", slash != NULL ? slash + 1 : path);
    return g;
}

/* ST_OK with the mapping in g->bytes, or ST_SYSTEM, ST_INVALID. */
static enum status map_file(struct gguf *g, const char *path, struct error *err)
{
    enum status st = ST_OK;
    struct stat info;
    void *map = MAP_FAILED;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0 || fstat(fd, &info) != 0)
        st = gguf_fail(g, err, ST_SYSTEM, "cannot open: %s", strerror(errno));
    else if (!S_ISREG(info.st_mode))
        st = gguf_fail(g, err, ST_INVALID, "is not a regular file");
    else if (info.st_size <= 0)
        st = gguf_fail(g, err, ST_INVALID, "is empty");
    if (st == ST_OK)
        map = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (st == ST_OK && map == MAP_FAILED)
        st = gguf_fail(g, err, ST_SYSTEM, "cannot map: %s", strerror(errno));
    if (fd >= 0)
        close(fd);
    if (st == ST_OK) {
        g->bytes = span_of(map, (size_t)info.st_size);
        g->mapped = true;
    }
    return st;
}

enum status gguf_open(const char *path, struct gguf **ret_gguf, struct error *err)
{
    struct gguf *g = gguf_alloc(path, err);
    enum status st = g == NULL ? ST_NOMEM : map_file(g, path, err);

    if (st == ST_OK)
        st = parse(g, err);
    if (st == ST_OK) {
        *ret_gguf = g;
        g = NULL;
    }
    gguf_close(g);
    return st;
}

enum status gguf_open_memory(struct span bytes, const char *name, struct gguf **ret_gguf, struct error *err)
{
    struct gguf *g = gguf_alloc(name, err);
    enum status st = ST_NOMEM;

    if (g != NULL) {
        g->bytes = bytes;
        st = parse(g, err);
    }
    if (st == ST_OK) {
        *ret_gguf = g;
        g = NULL;
    }
    gguf_close(g);
    return st;
}
