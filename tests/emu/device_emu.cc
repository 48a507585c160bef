/* device_emu.cc - device.h without a device: memory is the heap, streams run what they are given at once.
 *
 * Fresh memory holds bytes that are no number.  The space between parts of an allocation is poisoned for AddressSanitizer. */
#include "kernels/cuda/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

enum status device_failed(const char *what, int error);

static char handle; /* what opaque handles point to */

const char *device_error(void)
{
    return "the emulation does not fail";
}

enum status device_failed(const char *, int)
{
    return ST_SYSTEM;
}

enum status device_open(uint32_t ordinal, struct device_properties *ret_properties, struct error *err)
{
    struct device_properties p = {};

    if (ordinal > 0) {
        error_set(err, ERR_INVALID_PARAMETER, "--device", "there is no CUDA device %u; devices are 0 to 0", ordinal);
        return ST_NOT_FOUND;
    }
    snprintf(p.name, sizeof(p.name), "emulation");
    p.n_multiprocessors = 1;
    p.total = p.available = 8ull << 30;
    *ret_properties = p;
    return ST_OK;
}

void *device_take(size_t bytes)
{
    void *at = nullptr;

    if (posix_memalign(&at, 256, bytes) != 0)
        return nullptr;
    return memset(at, 0xff, bytes);
}

/* The guards of an allocation end with it. */
void device_drop(void *at)
{
    free(at);
}

void *device_take_host(size_t bytes)
{
    return device_take(bytes);
}

void device_drop_host(void *at)
{
    free(at);
}

void device_guard(void *at, size_t bytes)
{
#if defined(__SANITIZE_ADDRESS__)
    __asan_poison_memory_region(at, bytes);
#else
    (void)at;
    (void)bytes;
#endif
}

enum status device_stream_new(device_stream *ret_stream)
{
    *ret_stream = reinterpret_cast<device_stream>(&handle);
    return ST_OK;
}

void device_stream_free(device_stream)
{
}

enum status device_event_new(device_event *ret_event)
{
    *ret_event = reinterpret_cast<device_event>(&handle);
    return ST_OK;
}

void device_event_free(device_event)
{
}

enum status device_event_record(device_event, device_stream)
{
    return ST_OK;
}

enum status device_event_poll(device_event)
{
    return ST_OK;
}

enum status device_event_wait(device_event)
{
    return ST_OK;
}

enum status device_stream_wait(device_stream, device_event)
{
    return ST_OK;
}

enum status device_copy(void *to, const void *from, size_t bytes, enum device_direction, device_stream)
{
    memcpy(to, from, bytes);
    return ST_OK;
}

enum status device_zero(void *at, size_t bytes, device_stream)
{
    memset(at, 0, bytes);
    return ST_OK;
}

bool device_has_graphs(void)
{
    return false;
}

enum status device_capture_begin(device_stream)
{
    return ST_SYSTEM;
}

enum status device_capture_end(device_stream, device_graph *)
{
    return ST_SYSTEM;
}

enum status device_graph_launch(device_graph, device_stream)
{
    return ST_SYSTEM;
}

void device_graph_free(device_graph)
{
}
