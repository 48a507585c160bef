/* fake_nvml.c - a libnvidia-ml.so.1 without a device behind it: two made-up GPUs, the second of which does not tell its power.  A test puts it on
 * LD_LIBRARY_PATH and looks for these numbers. */
#include <stdio.h>
#include <string.h>

int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetCount_v2(unsigned *n);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device);
int nvmlDeviceGetName(void *device, char *name, unsigned bytes);
int nvmlDeviceGetUtilizationRates(void *device, unsigned rates[2]);
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long memory[3]);
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius);
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts);

static int gpus[2];

static unsigned index_of(const void *device)
{
    return device == &gpus[1];
}

int nvmlInit_v2(void)
{
    return 0;
}

int nvmlShutdown(void)
{
    return 0;
}

int nvmlDeviceGetCount_v2(unsigned *n)
{
    *n = 2;
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    *device = &gpus[index];
    return index < 2 ? 0 : 2;
}

int nvmlDeviceGetName(void *device, char *name, unsigned bytes)
{
    snprintf(name, bytes, "Fake \"GPU\" %u", index_of(device));
    return 0;
}

int nvmlDeviceGetUtilizationRates(void *device, unsigned rates[2])
{
    rates[0] = index_of(device) == 0 ? 37 : 91; /* of the processors, of the memory's bus */
    rates[1] = 5;
    return 0;
}

int nvmlDeviceGetMemoryInfo(void *device, unsigned long long memory[3])
{
    memory[0] = 80000000000ull;
    memory[2] = index_of(device) == 0 ? 1000000000ull : 70000000000ull;
    memory[1] = memory[0] - memory[2];
    return 0;
}

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius)
{
    (void)device;
    *celsius = sensor == 0 ? 55 : 0;
    return 0;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts)
{
    *milliwatts = 123500;
    return index_of(device) == 0 ? 0 : 3; /* not supported */
}
