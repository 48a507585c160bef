/* devices.h - how busy the GPUs of this machine are and how full, as their driver's library (NVML, libnvidia-ml.so.1) tells it.
 *
 * The library is loaded when it is there; without it there are no devices.  Its calls may take long or hang with the driver, so a thread
 * of its own asks every DEVICES_PERIOD_MS and the broker's loop reads what it found last. */
#ifndef DEVICES_H
#define DEVICES_H

#include <stdint.h>

enum { DEVICES_MAX = 32, DEVICES_PERIOD_MS = 1000 };

struct device_numbers {
    char name[96];              /* printable ASCII without '"' and '\\' */
    double utilization;         /* 0 to 1: share of the last second in which a kernel ran; negative: not told */
    uint64_t memory_used, memory_size; /* bytes; size 0: not told */
    double temperature_celsius; /* negative: not told */
    double power_watts;         /* negative: not told */
};

struct devices; /* opaque */

/* NULL when there is no library, no device or no thread: that is no error. */
struct devices *devices_new(void);
void devices_free(struct devices *d); /* NULL is fine; a thread that hangs in the driver is left behind */

/* How many there are, and their numbers.  d may be NULL: none. */
uint32_t devices_look(struct devices *d, struct device_numbers ret_numbers[DEVICES_MAX]);

#endif
