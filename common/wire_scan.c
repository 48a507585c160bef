/* wire_scan.c - the structure check that stands before msgpack-c.
 *
 * msgpack-c allocates what a header announces: the five bytes `dd ff ff ff ff` ask it for some 100 GB.  So every header is read
 * here first, and a count is believed only as far as there are bytes left for it: one for each element, two for each entry of
 * a map.  The walk keeps a small stack of what is still to come instead of recursing, and needs no other memory.
 *
 * Text is checked on the same walk.  That error is kept, not returned at once: the rest of the message may be sound, and then the
 * answer can carry the id of the request it is about. */
#include "wire_scan.h"

#include "limits.h"
#include "utf8.h"

enum kind { SCALAR, STR, BIN, EXTENSION, ARRAY, MAP };

struct item {
    enum kind kind;
    size_t head;    /* bytes before the contents, type byte of an extension included */
    uint64_t count; /* bytes of contents, elements, or entries */
};

struct walk {
    struct span frame;
    size_t at;
    uint32_t n_items, depth; /* open[1 .. depth] are containers; open[0] stands for the frame: one object */
    struct {
        uint64_t left; /* objects still to come */
        bool map;
    } open[FRAME_NESTING_MAX + 1];
    struct span field; /* the last key of the outermost map */
    size_t ext_at;
    struct wire_scan *scan;
    struct error *err;
};

static uint64_t big_endian(const uint8_t *p, unsigned n)
{
    uint64_t value = 0;

    for (unsigned i = 0; i < n; i++)
        value = value << 8 | p[i];
    return value;
}

/* An item whose count of `width` bytes follows the first byte.  False when they are not there. */
static bool counted(const uint8_t *p, size_t n, enum kind kind, unsigned width, struct item *ret_item)
{
    if (n < 1u + width)
        return false;
    *ret_item = (struct item){ kind, 1u + width + (kind == EXTENSION), big_endian(p + 1, width) };
    return true;
}

/* The header at p, of which n > 0 bytes are there.  False when it is cut short or the byte is never used. */
static bool read_item(const uint8_t *p, size_t n, struct item *ret_item)
{
    uint8_t b = p[0];

    if (b < 0x80 || b >= 0xE0)
        *ret_item = (struct item){ SCALAR, 1, 0 };
    else if (b < 0x90)
        *ret_item = (struct item){ MAP, 1, b & 0x0F };
    else if (b < 0xA0)
        *ret_item = (struct item){ ARRAY, 1, b & 0x0F };
    else if (b < 0xC0)
        *ret_item = (struct item){ STR, 1, b & 0x1F };
    else if (b == 0xC1)
        return false;
    else if (b < 0xC4)
        *ret_item = (struct item){ SCALAR, 1, 0 };
    else if (b < 0xC7)
        return counted(p, n, BIN, 1u << (b - 0xC4), ret_item);
    else if (b < 0xCA)
        return counted(p, n, EXTENSION, 1u << (b - 0xC7), ret_item);
    else if (b < 0xCC)
        *ret_item = (struct item){ SCALAR, 1, b == 0xCA ? 4 : 8 };
    else if (b < 0xD4)
        *ret_item = (struct item){ SCALAR, 1, 1u << ((b - 0xCC) & 3) };
    else if (b < 0xD9)
        *ret_item = (struct item){ EXTENSION, 2, 1u << (b - 0xD4) };
    else if (b < 0xDC)
        return counted(p, n, STR, 1u << (b - 0xD9), ret_item);
    else if (b < 0xDE)
        return counted(p, n, ARRAY, b == 0xDC ? 2 : 4, ret_item);
    else
        return counted(p, n, MAP, b == 0xDE ? 2 : 4, ret_item);
    return true;
}

static enum status malformed(struct walk *w, const char *what)
{
    error_set(w->err, ERR_MALFORMED_MESSAGE, NULL, "%s at byte %zu of %zu", what, w->at, w->frame.n);
    return ST_INVALID;
}

static void check_text(struct walk *w, struct span text, bool is_field)
{
    size_t valid = utf8_valid_prefix(text);

    if (valid == text.n || w->scan->bad_utf8)
        return;
    w->scan->bad_utf8 = true;
    w->scan->bad_field = is_field ? (struct span){ 0 } : w->field;
    w->scan->bad_byte = valid;
}

static enum status enter(struct walk *w, const struct item *item)
{
    uint64_t n_objects = item->kind == MAP ? 2 * item->count : item->count;

    if (n_objects > w->frame.n - w->at)
        return malformed(w, "a list or map announces more elements than there are bytes");
    if (w->depth == FRAME_NESTING_MAX) {
        error_set(w->err, ERR_LIMIT_EXCEEDED, NULL, "lists and maps are nested more than %d deep", FRAME_NESTING_MAX);
        return ST_LIMIT;
    }
    w->depth++;
    w->open[w->depth].left = n_objects;
    w->open[w->depth].map = item->kind == MAP;
    return ST_OK;
}

/* One object: its header, and its contents unless it is a container, whose elements follow as objects of their own. */
static enum status step(struct walk *w)
{
    bool is_key = w->open[w->depth].map && w->open[w->depth].left % 2 == 0;
    bool is_field = is_key && w->depth == 1;
    struct item item;

    if (w->at == w->frame.n)
        return malformed(w, "the message ends too early");
    if (!read_item(w->frame.at + w->at, w->frame.n - w->at, &item))
        return malformed(w, "the message ends too early or has a byte that begins nothing");
    if (++w->n_items > FRAME_ITEMS_MAX) {
        error_set(w->err, ERR_LIMIT_EXCEEDED, NULL, "the message has more than %d objects", FRAME_ITEMS_MAX);
        return ST_LIMIT;
    }
    if (w->depth == 0 && item.kind != MAP)
        return malformed(w, "the message is not a map");
    if (is_key && item.kind != STR && !(item.kind == SCALAR && w->depth > 1))
        return malformed(w, "a key is not a string");
    if (item.head > w->frame.n - w->at)
        return malformed(w, "the message ends too early");
    w->open[w->depth].left--;
    w->at += item.head;
    if (item.kind == ARRAY || item.kind == MAP)
        return enter(w, &item);
    if (item.count > w->frame.n - w->at)
        return malformed(w, "a value announces more bytes than there are");

    struct span contents = span_of(w->frame.at + w->at, item.count);
    if (item.kind == STR)
        check_text(w, contents, is_field);
    if (is_field)
        w->field = contents;
    w->at += item.count;
    return ST_OK;
}

enum status wire_scan(struct span frame, struct wire_scan *ret_scan, struct error *err)
{
    struct wire_scan scan = { 0 };
    struct walk w = { .frame = frame, .scan = &scan, .err = err };

    if (frame.n > FRAME_BYTES_MAX) {
        error_set(err, ERR_LIMIT_EXCEEDED, NULL, "the message has %zu bytes, at most %d are taken", frame.n, FRAME_BYTES_MAX);
        return ST_LIMIT;
    }
    w.open[0].left = 1;
    for (;;) {
        size_t began = w.at;
        bool ext_begins = w.depth == 1 && w.open[1].left % 2 == 1 && span_is(w.field, "ext");
        enum status st = step(&w);

        if (st != ST_OK)
            return st;
        if (ext_begins)
            scan.ext = span_of(frame.at + began, 0);
        while (w.depth > 0 && w.open[w.depth].left == 0)
            w.depth--;
        /* Back at the outermost map with a value complete: that is where ext ends. */
        if (scan.ext.at != NULL && scan.ext.n == 0 && w.depth <= 1 && w.open[1].left % 2 == 0)
            scan.ext.n = (size_t)(frame.at + w.at - scan.ext.at);
        if (w.depth == 0)
            break;
    }
    if (w.at != frame.n)
        return malformed(&w, "bytes follow the message");
    *ret_scan = scan;
    return ST_OK;
}
