/* block_name.c - SipHash-2-4-128 over whole words; see block_name.h.
 *
 * Messages here are 16 bytes (a scope) or 80 (a key and the tokens of a block): never a rest of less than a word, so the last
 * word holds the length alone.  The two lengths differ, so a root is never taken for a block. */
#include "block_name.h"

#include <string.h>

struct sip {
    uint64_t v0, v1, v2, v3;
};

static uint64_t rotate(uint64_t x, int by)
{
    return x << by | x >> (64 - by);
}

static void sip_rounds(struct sip *s, int n)
{
    while (n-- > 0) {
        s->v0 += s->v1;
        s->v2 += s->v3;
        s->v1 = rotate(s->v1, 13) ^ s->v0;
        s->v3 = rotate(s->v3, 16) ^ s->v2;
        s->v0 = rotate(s->v0, 32);
        s->v2 += s->v1;
        s->v0 += s->v3;
        s->v1 = rotate(s->v1, 17) ^ s->v2;
        s->v3 = rotate(s->v3, 21) ^ s->v0;
        s->v2 = rotate(s->v2, 32);
    }
}

static void sip_word(struct sip *s, uint64_t word)
{
    s->v3 ^= word;
    sip_rounds(s, 2);
    s->v0 ^= word;
}

static struct block_key sip_hash(const struct block_secret *k, const uint64_t *words, uint32_t n)
{
    struct sip s = { k->k[0] ^ 0x736f6d6570736575u, k->k[1] ^ 0x646f72616e646f6du ^ 0xee, k->k[0] ^ 0x6c7967656e657261u,
                     k->k[1] ^ 0x7465646279746573u };
    struct block_key out;

    for (uint32_t i = 0; i < n; i++)
        sip_word(&s, words[i]);
    sip_word(&s, (uint64_t)n * 8 << 56);
    s.v2 ^= 0xee;
    sip_rounds(&s, 4);
    out.h[0] = s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
    s.v1 ^= 0xdd;
    sip_rounds(&s, 4);
    out.h[1] = s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
    return out;
}

struct block_key block_key_root(const struct block_secret *s, struct prefix_scope scope)
{
    return sip_hash(s, scope.id, 2);
}

struct block_key block_key_next(const struct block_secret *s, struct block_key parent, const int32_t tokens[BLOCK_TOKENS])
{
    uint64_t words[2 + BLOCK_TOKENS / 2] = { parent.h[0], parent.h[1] };

    memcpy(words + 2, tokens, BLOCK_TOKENS * sizeof(*tokens));
    return sip_hash(s, words, 2 + BLOCK_TOKENS / 2);
}
