/* xxhash.h - a stand-in with the names our sources use, for machines that lend a GPU and have no libxxhash.  Another hash:
 * fingerprints and numerics ids made with it are not those of a real build.  Only tests/gpu/run.sh puts it on the path. */
#ifndef STAND_IN_XXHASH_H
#define STAND_IN_XXHASH_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

typedef uint64_t XXH64_hash_t;
typedef struct {
    uint64_t low64, high64;
} XXH128_hash_t;
typedef struct {
    uint64_t a, b;
} XXH3_state_t;
typedef enum { XXH_OK, XXH_ERROR } XXH_errorcode;

static inline XXH_errorcode XXH3_128bits_reset(XXH3_state_t *s)
{
    s->a = 0xcbf29ce484222325u;
    s->b = 0x9e3779b97f4a7c15u;
    return XXH_OK;
}
static inline XXH_errorcode XXH3_128bits_update(XXH3_state_t *s, const void *at, size_t n)
{
    const uint8_t *p = (const uint8_t *)at;

    for (size_t i = 0; i < n; i++) {
        s->a = (s->a ^ p[i]) * 0x100000001b3u;
        s->b = (s->b + s->a) * 0xff51afd7ed558ccdu ^ s->b >> 31;
    }
    return XXH_OK;
}
static inline XXH128_hash_t XXH3_128bits_digest(const XXH3_state_t *s)
{
    const XXH128_hash_t h = { s->a, s->b };

    return h;
}
static inline XXH128_hash_t XXH3_128bits(const void *at, size_t n)
{
    XXH3_state_t s;

    XXH3_128bits_reset(&s);
    XXH3_128bits_update(&s, at, n);
    return XXH3_128bits_digest(&s);
}
static inline XXH64_hash_t XXH3_64bits(const void *at, size_t n)
{
    return XXH3_128bits(at, n).high64;
}
static inline XXH3_state_t *XXH3_createState(void)
{
    return (XXH3_state_t *)malloc(sizeof(XXH3_state_t));
}
static inline XXH_errorcode XXH3_freeState(XXH3_state_t *s)
{
    free(s);
    return XXH_OK;
}

#endif
