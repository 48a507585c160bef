/* devices.c - see devices.h.  The few functions of NVML, by their names in its reference manual; a call that a device does not support leaves
 * its number untold. */
#include "devices.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "log.h"

typedef void *nvml_device;
struct nvml_utilization {
    unsigned gpu, memory;
}; /* percent */
struct nvml_memory {
    unsigned long long total, free, used;
};
enum { NVML_SUCCESS = 0, NVML_TEMPERATURE_GPU = 0 };

struct nvml {
    int (*init)(void);
    int (*shutdown)(void);
    int (*count)(unsigned *n);
    int (*handle)(unsigned index, nvml_device *device);
    int (*name)(nvml_device device, char *name, unsigned bytes);
    int (*utilization)(nvml_device device, struct nvml_utilization *u);
    int (*memory)(nvml_device device, struct nvml_memory *m);
    int (*temperature)(nvml_device device, int sensor, unsigned *celsius);
    int (*power)(nvml_device device, unsigned *milliwatts);
};

struct devices {
    void *library;
    struct nvml nvml;
    uint32_t n;
    nvml_device handles[DEVICES_MAX];
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t stopped;
    bool stop; /* under lock, as the numbers */
    struct device_numbers numbers[DEVICES_MAX];
};

static bool find_functions(void *library, struct nvml *f)
{
    const struct {
        const char *name;
        void *to;
    } functions[] = {
        {"nvmlInit_v2", &f->init},
        {"nvmlShutdown", &f->shutdown},
        {"nvmlDeviceGetCount_v2", &f->count},
        {"nvmlDeviceGetHandleByIndex_v2", &f->handle},
        {"nvmlDeviceGetName", &f->name},
        {"nvmlDeviceGetUtilizationRates", &f->utilization},
        {"nvmlDeviceGetMemoryInfo", &f->memory},
        {"nvmlDeviceGetTemperature", &f->temperature},
        {"nvmlDeviceGetPowerUsage", &f->power},
    };

    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        void *at = dlsym(library, functions[i].name);
        if (at == NULL)
            return false;
        memcpy(
            functions[i].to, &at,
            sizeof(at)); /* an object pointer that is a function's: POSIX allows it, C has no cast for it */
    }
    return true;
}

/* A name from outside goes into labels. */
static void take_name(const char *from, char *to, size_t bytes)
{
    size_t n = 0;

    for (; *from != '\0' && n + 1 < bytes; from++)
        if (*from >= ' ' && *from <= '~' && *from != '"' && *from != '\\')
            to[n++] = *from;
    to[n] = '\0';
}

static struct device_numbers ask(const struct nvml *f, nvml_device device)
{
    struct device_numbers d = {.utilization = -1, .temperature_celsius = -1, .power_watts = -1};
    struct nvml_utilization u;
    struct nvml_memory m;
    unsigned value;
    char name[96] = "";

    if (f->name(device, name, sizeof(name) - 1) == NVML_SUCCESS)
        take_name(name, d.name, sizeof(d.name));
    if (f->utilization(device, &u) == NVML_SUCCESS && u.gpu <= 100)
        d.utilization = u.gpu / 100.0;
    if (f->memory(device, &m) == NVML_SUCCESS) {
        d.memory_used = m.used;
        d.memory_size = m.total;
    }
    if (f->temperature(device, NVML_TEMPERATURE_GPU, &value) == NVML_SUCCESS)
        d.temperature_celsius = value;
    if (f->power(device, &value) == NVML_SUCCESS)
        d.power_watts = value / 1000.0;
    return d;
}

static void *run(void *arg)
{
    struct devices *d = arg;
    struct timespec until;

    pthread_mutex_lock(&d->lock);
    while (!d->stop) {
        for (uint32_t i = 0; i < d->n; i++) {
            pthread_mutex_unlock(&d->lock);
            struct device_numbers now = ask(&d->nvml, d->handles[i]);
            pthread_mutex_lock(&d->lock);
            d->numbers[i] = now;
        }
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += DEVICES_PERIOD_MS / 1000;
        if (!d->stop)
            pthread_cond_timedwait(&d->stopped, &d->lock, &until);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

/* The library and the handles of its devices.  false: there are none. */
static bool open_library(struct devices *d)
{
    unsigned n = 0;

    d->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (d->library == NULL || !find_functions(d->library, &d->nvml) || d->nvml.init() != NVML_SUCCESS)
        return false;
    if (d->nvml.count(&n) != NVML_SUCCESS)
        n = 0;
    for (unsigned i = 0; i < n && d->n < DEVICES_MAX; i++)
        if (d->nvml.handle(i, &d->handles[d->n]) == NVML_SUCCESS)
            d->n++;
    if (n > DEVICES_MAX)
        log_warn("devices_not_told", "devices=%u told=%d", n, DEVICES_MAX);
    if (d->n == 0)
        d->nvml.shutdown();
    return d->n > 0;
}

struct devices *devices_new(void)
{
    struct devices *d = calloc(1, sizeof(*d));
    pthread_condattr_t by_steady_clock;

    if (d == NULL)
        return NULL;
    if (!open_library(d)) {
        if (d->library != NULL)
            dlclose(d->library);
        free(d);
        return NULL;
    }
    for (uint32_t i = 0; i < d->n; i++)
        d->numbers[i] = ask(&d->nvml, d->handles[i]);
    pthread_mutex_init(&d->lock, NULL);
    pthread_condattr_init(&by_steady_clock);
    pthread_condattr_setclock(&by_steady_clock, CLOCK_MONOTONIC);
    pthread_cond_init(&d->stopped, &by_steady_clock);
    pthread_condattr_destroy(&by_steady_clock);
    if (pthread_create(&d->thread, NULL, run, d) != 0) {
        d->nvml.shutdown();
        dlclose(d->library);
        free(d);
        return NULL;
    }
    log_info("devices", "n=%u", d->n);
    return d;
}

void devices_free(struct devices *d)
{
    struct timespec until;

    if (d == NULL)
        return;
    pthread_mutex_lock(&d->lock);
    d->stop = true;
    pthread_cond_signal(&d->stopped);
    pthread_mutex_unlock(&d->lock);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 2;
    if (pthread_timedjoin_np(d->thread, NULL, &until) != 0)
        return;
    d->nvml.shutdown();
    dlclose(d->library);
    pthread_cond_destroy(&d->stopped);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

uint32_t devices_look(struct devices *d, struct device_numbers ret_numbers[DEVICES_MAX])
{
    if (d == NULL)
        return 0;
    pthread_mutex_lock(&d->lock);
    memcpy(ret_numbers, d->numbers, d->n * sizeof(ret_numbers[0]));
    pthread_mutex_unlock(&d->lock);
    return d->n;
}
