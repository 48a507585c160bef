/* test_model_path.c - look for the test models where users have them. */
#include "tests/support/test_model_path.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char *find(const char *variable, const char *name, char *buf, size_t buf_bytes)
{
    const char *path = getenv(variable), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");

    if (path != NULL && path[0] != '\0')
        return access(path, R_OK) == 0 ? path : NULL;
    if (cache != NULL && cache[0] != '\0')
        snprintf(buf, buf_bytes, "%s/weir/%s", cache, name);
    else
        snprintf(buf, buf_bytes, "%s/.cache/weir/%s", home != NULL ? home : "", name);
    return access(buf, R_OK) == 0 ? buf : NULL;
}

const char *test_model_smollm2(void)
{
    static char buf[4096];

    return find("WEIR_TEST_MODEL", "SmolLM2-135M-Instruct.Q4_1.gguf", buf, sizeof(buf));
}

const char *test_model_gemma3(void)
{
    static char buf[4096];

    return find("WEIR_TEST_MODEL_GEMMA3", "gemma-3-270m-q4_k_m.gguf", buf, sizeof(buf));
}
