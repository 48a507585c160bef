/* backend_choice.c - see backend_choice.h.
 *
 * A plug-in is believed only after its table's first two fields, which never move, and its build id are those of this
 * program: a table of another layout would be called through the wrong pointers. */
#include "backend_choice.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "version.h"

/* "<folder of the program>/<name>" */
static bool beside_program(const char *name, char *buf, size_t buf_bytes)
{
    ssize_t n = readlink("/proc/self/exe", buf, buf_bytes - 1);
    if (n <= 0)
        return false;
    buf[n] = '\0';
    char *slash = strrchr(buf, '/');
    if (slash == NULL)
        return false;
    size_t left = buf_bytes - (size_t)(slash + 1 - buf);
    int m = snprintf(slash + 1, left, "%s", name);
    return m > 0 && (size_t)m < left;
}

static const struct backend_api *check_api(const struct backend_api *api, char *ret_why)
{
    if (api == NULL || api->abi != BACKEND_ABI || api->bytes != sizeof(*api)) {
        snprintf(ret_why, BACKEND_REASON_BYTES, "libweir_cuda.so is of another version");
        return NULL;
    }
    if (strcmp(api->build_id, version_build_id()) != 0) {
        snprintf(ret_why, BACKEND_REASON_BYTES, "libweir_cuda.so is of another build (%.64s, this is %.64s)", api->build_id,
                 version_build_id());
        return NULL;
    }
    return api;
}

/* The CUDA backend, or NULL and why not. */
static const struct backend_api *load_cuda(char ret_why[BACKEND_REASON_BYTES])
{
    static const char *const places[] = { "libweir_cuda.so", "../lib/weir/libweir_cuda.so" };
    char path[4096];
    void *handle = NULL;
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]) && handle == NULL; i++)
        if (beside_program(places[i], path, sizeof(path)) && access(path, R_OK) == 0)
            handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        const char *why = dlerror();
        snprintf(ret_why, BACKEND_REASON_BYTES, "no GPU backend: %.200s",
                 why != NULL ? why : "libweir_cuda.so is not beside this program");
        return NULL;
    }
    const struct backend_api *(*entry)(void) = NULL;
    void *symbol = dlsym(handle, "backend_cuda");
    memcpy(&entry, &symbol, sizeof(entry)); /* ISO C has no conversion from void * to a function */
    if (entry == NULL) {
        snprintf(ret_why, BACKEND_REASON_BYTES, "libweir_cuda.so has no backend_cuda()");
        return NULL;
    }
    return check_api(entry(), ret_why);
}

static bool parse_ordinal(const char *text, uint32_t *ret_ordinal)
{
    char *end = NULL;
    if (text[0] < '0' || text[0] > '9')
        return false;
    unsigned long v = strtoul(text, &end, 10);
    if (*end != '\0' || v > 255)
        return false;
    *ret_ordinal = (uint32_t)v;
    return true;
}

enum status backend_choose(const char *device, struct backend_choice *ret_choice, struct error *err)
{
    struct backend_choice c = { 0 };
    char why[BACKEND_REASON_BYTES] = "";
    bool is_auto = strcmp(device, "auto") == 0, is_cpu = strcmp(device, "cpu") == 0;

    if (!is_auto && !is_cpu && strcmp(device, "cuda") != 0 &&
        (strncmp(device, "cuda:", 5) != 0 || !parse_ordinal(device + 5, &c.ordinal))) {
        error_set(err, ERR_INVALID_PARAMETER, "--device", "device is auto, cpu, cuda or cuda:NUMBER, not %.64s", device);
        return ST_INVALID;
    }
    if (!is_cpu)
        c.api = load_cuda(why);
    if (c.api == NULL && !is_auto && !is_cpu) {
        error_set(err, ERR_INVALID_PARAMETER, "--device", "%s", why);
        return ST_UNSUPPORTED;
    }
    c.may_fall_back = is_auto && c.api != NULL;
    if (c.api == NULL)
        c.api = backend_cpu();
    snprintf(c.reason, sizeof(c.reason), "%s", !is_auto ? "asked for" : why[0] != '\0' ? why : "a GPU backend is here");
    *ret_choice = c;
    return ST_OK;
}
