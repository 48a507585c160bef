/* prefix_order.c - see prefix_order.h. */
#include "prefix_order.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

/* 64 bytes are about a block of 16 tokens; twice two steps an octave from there. */
static const uint32_t lengths[PREFIX_LEVELS] = { 64,   128,  192,  256,  384,   512,   768,   1024,  1536,  2048, 3072,
                                                 4096, 6144, 8192, 12288, 16384, 24576, 32768, 40960, 49152, 65536 };

/* A chain over pieces: texts that begin alike are cut into the same pieces up to where they differ. */
struct hashing {
    uint64_t state;
    struct prefix_key *key;
    size_t n;      /* bytes taken */
    size_t level;  /* the next length to be reached */
};

static void take(struct hashing *h, const void *bytes, size_t n)
{
    const char *at = bytes;

    while (n > 0 && h->level < PREFIX_LEVELS) {
        size_t part = lengths[h->level] - h->n;
        part = part < n ? part : n;
        h->state = XXH3_64bits_withSeed(at, part, h->state);
        h->n += part;
        at += part;
        n -= part;
        if (h->n == lengths[h->level])
            h->key->hash[h->level++] = h->state != 0 ? h->state : 1;
    }
}

static void take_text(struct hashing *h, const char *text)
{
    if (text != NULL)
        take(h, text, strlen(text) + 1); /* with its NUL: two texts are not one */
}

/* weir.h: 0 means "up to the NUL". */
static size_t length(const char *text, size_t bytes)
{
    return bytes != 0 || text == NULL ? bytes : strlen(text);
}

void prefix_key_make(const struct weir_request *request, struct prefix_key *ret_key)
{
    struct hashing h = { .key = ret_key };

    memset(ret_key, 0, sizeof *ret_key);
    if (request->model != NULL) /* another model is another cache, however short the prompt */
        h.state = XXH3_64bits(request->model, strlen(request->model));
    for (size_t i = 0; i < request->n_messages; i++) {
        take_text(&h, request->messages[i].role);
        take(&h, request->messages[i].content, length(request->messages[i].content, request->messages[i].content_bytes));
        take(&h, "", 1);
    }
    if (request->prompt_ids != NULL)
        take(&h, request->prompt_ids, request->n_prompt_ids * sizeof *request->prompt_ids);
    else if (request->prompt != NULL)
        take(&h, request->prompt, length(request->prompt, request->prompt_bytes));
}

struct entry {
    const struct prefix_key *key;
    struct line_ref line;
};

static int compare(const void *pa, const void *pb)
{
    const struct entry *a = pa, *b = pb;

    for (size_t i = 0; i < PREFIX_LEVELS; i++) {
        if (a->key->hash[i] != b->key->hash[i])
            return a->key->hash[i] < b->key->hash[i] ? -1 : 1;
    }
    return a->line.number < b->line.number ? -1 : a->line.number > b->line.number;
}

void prefix_order(struct line_ref *lines, const struct prefix_key *keys, size_t n)
{
    struct entry entries[PREFIX_LINES_MAX];

    assert(n <= PREFIX_LINES_MAX);
    for (size_t i = 0; i < n; i++)
        entries[i] = (struct entry){ .key = &keys[i], .line = lines[i] };
    qsort(entries, n, sizeof entries[0], compare);
    for (size_t i = 0; i < n; i++)
        lines[i] = entries[i].line;
}
