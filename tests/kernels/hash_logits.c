/* hash_logits.c - check the committed hashes of the tiny models without a test library, for processors that are emulated.
 *
 * usage: hash_logits FILE...     names from tests/reference/data/tiny; exit code 1 if any hash differs */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "tests/support/engine_rig.h"

#define DATA "tests/reference/data/tiny/"

/* The same tokens and lengths as test_exactness.c. */
static unsigned long long hash_model(const char *file, enum kv_type kv_type)
{
    const uint32_t n = strstr(file, "F16") != NULL || strstr(file, "Q4_1") != NULL ? 300 : 70;
    char path[256];
    int32_t tokens[300];
    uint32_t blocks[19], seed = 9;
    struct rig r;

    snprintf(path, sizeof(path), DATA "%s", file);
    rig_open(&r, path, &(struct backend_options){ .kv_type = kv_type });
    for (uint32_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        tokens[i] = (int32_t)((seed >> 8) % r.model->n_vocab);
    }
    float *logits = malloc((size_t)n * r.model->n_vocab * sizeof(*logits));
    if (logits == NULL)
        exit(1);
    rig_blocks(blocks, 19, 0);
    rig_feed(&r, tokens, 0, n, 512, blocks, logits);
    const unsigned long long hash = XXH3_64bits(logits, (size_t)n * r.model->n_vocab * sizeof(*logits));
    free(logits);
    rig_close(&r);
    return hash;
}

int main(int argc, char **argv)
{
    char line[128], file[64];
    unsigned kv;
    unsigned long long want;
    int wrong = 0, checked = 0;
    FILE *in = fopen(DATA "logits.hashes", "r");

    if (in == NULL)
        return 1;
    while (fgets(line, sizeof(line), in) != NULL) {
        bool asked = false;
        if (sscanf(line, "%63s %u %llx", file, &kv, &want) != 3)
            return 1;
        for (int i = 1; i < argc; i++)
            asked = asked || strcmp(argv[i], file) == 0;
        if (!asked)
            continue;
        const unsigned long long got = hash_model(file, (enum kv_type)kv);
        printf("  %s kv %u: %s\n", file, kv, got == want ? "equal" : "DIFFERENT");
        wrong += got != want;
        checked++;
    }
    fclose(in);
    return wrong > 0 || checked == 0;
}
