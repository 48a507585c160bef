/* fuzz_convert.c - uploads: unpacked and made into job lines, in one piece and in pieces, which must come to the same.
 * The first byte chooses the mode; what comes out is bounded by the sink, as in the gateway. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "gateway/convert.h"

enum { OUT_BYTES = 1 << 16 };

struct out {
    char at[OUT_BYTES];
    size_t n;
};

static enum status sink(void *arg, struct span bytes, struct error *err)
{
    struct out *o = arg;

    if (bytes.n > sizeof o->at - o->n) {
        error_set(err, ERR_LIMIT_EXCEEDED, NULL, "full");
        return ST_LIMIT;
    }
    memcpy(o->at + o->n, bytes.at, bytes.n);
    o->n += bytes.n;
    return ST_OK;
}

static enum status unpacked(void *arg, struct span bytes, struct error *err)
{
    return convert_put(arg, bytes, err);
}

static enum status run(enum convert_mode mode, const uint8_t *at, size_t n, size_t piece, struct out *o)
{
    struct error err;
    struct convert *c;
    struct unpack *u;
    enum status st = convert_new(mode, "{a} {b}", false, sink, o, &c, &err);

    assert(st == ST_OK && unpack_new(unpacked, c, &u) == ST_OK);
    for (size_t done = 0; done < n && st == ST_OK; done += piece)
        st = unpack_put(u, span_of(at + done, n - done < piece ? n - done : piece), &err);
    if (st == ST_OK)
        st = unpack_end(u, &err);
    if (st == ST_OK)
        st = convert_end(c, &err);
    unpack_free(u);
    convert_free(c);
    return st;
}

int LLVMFuzzerTestOneInput(const uint8_t *at, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *at, size_t n)
{
    static struct out whole, pieces;

    if (n == 0)
        return 0;
    whole.n = pieces.n = 0;
    enum status a = run(at[0] % 3, at + 1, n - 1, n, &whole), b = run(at[0] % 3, at + 1, n - 1, 1 + at[0] / 3, &pieces);
    /* Whole input shows a damaged stream before the sink is full of what came before the damage; pieces fill it first. */
    assert(a == b || (a == ST_INVALID && b == ST_LIMIT) || (a == ST_LIMIT && b == ST_INVALID));
    if (a == ST_OK)
        assert(whole.n == pieces.n && memcmp(whole.at, pieces.at, whole.n) == 0);
    return 0;
}
