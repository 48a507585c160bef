/* fuzz_config.c - any bytes as a configuration file.  Target: config_load. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "config.h"

int LLVMFuzzerTestOneInput(const uint8_t *at, size_t n);

static const struct config_key keys[] = {
    { "runtime-dir", CONFIG_STRING, NULL, "DIR", "a", 0, 0, 0 },  { "workers", CONFIG_U64, "2", "N", "b", 1, 16, 0 },
    { "pool-bytes", CONFIG_BYTES, "1M", "SIZE", "c", 0, 0, 0 },   { "grace", CONFIG_MS, "30s", "TIME", "d", 0, 0, 0 },
    { "share", CONFIG_F64, "0.5", "X", "e", -1, 1, 0 },           { "metrics", CONFIG_BOOL, "yes", NULL, "f", 0, 0, 0 },
    { "model", CONFIG_LIST, NULL, "FILE", "g", 0, 0, 0 },
};

int LLVMFuzzerTestOneInput(const uint8_t *at, size_t n)
{
    char path[64];
    struct config *c = NULL;
    struct error err;
    int fd = memfd_create("config", MFD_CLOEXEC);

    if (fd < 0 || write(fd, at, n) != (ssize_t)n)
        abort();
    snprintf(path, sizeof(path), "--config=/proc/self/fd/%d", fd);
    if (config_load(keys, sizeof(keys) / sizeof(keys[0]), "broker", 2, (char *[]){ "x", path }, &c, &err) == ST_OK)
        config_free(c);
    close(fd);
    return 0;
}
