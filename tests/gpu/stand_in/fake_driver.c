/* fake_driver.c - a libcuda.so.1 with a version and an answer to cuInit() of the environment's choosing, and nothing behind it: what a
 * program says on a machine whose driver is old, broken, or without a device. */
#include <stdlib.h>
#include <string.h>

enum { NO_DEVICE = 100, NOT_SUPPORTED = 801 };

static int number_of(const char *name, int otherwise)
{
    const char *text = getenv(name);

    return text != NULL ? atoi(text) : otherwise;
}

int cuDriverGetVersion(int *ret_version)
{
    *ret_version = number_of("FAKE_CUDA_VERSION", 13000);
    return 0;
}

int cuInit(unsigned flags)
{
    (void)flags;
    return number_of("FAKE_CUDA_INIT", NO_DEVICE);
}

static int not_supported(void)
{
    return NOT_SUPPORTED;
}

int cuGetProcAddress_v2(const char *name, void **ret_function, int version, unsigned long long flags, void *ret_found)
{
    static const struct {
        const char *name;
        int (*function)(void);
    } functions[] = {
        { "cuInit", (int (*)(void))cuInit },
        { "cuDriverGetVersion", (int (*)(void))cuDriverGetVersion },
        { "cuGetProcAddress", (int (*)(void))cuGetProcAddress_v2 },
        { "cuGetProcAddress_v2", (int (*)(void))cuGetProcAddress_v2 },
    };
    int (*function)(void) = not_supported;

    (void)version, (void)flags, (void)ret_found;
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++)
        if (strcmp(name, functions[i].name) == 0)
            function = functions[i].function;
    memcpy(ret_function, &function, sizeof(function));
    return 0;
}
