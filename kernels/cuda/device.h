/* device.h - the little of the CUDA runtime that the engine needs: memory, streams, events, graphs.  device.cu is one
 * implementation; tests/emu/device_emu.cc is another, without a device.
 *
 * Streams run what they are given in order; different streams only wait for each other through events.  Functions that give
 * ST_SYSTEM have kept the reason for device_error().  Threads: one. */
#ifndef DEVICE_H
#define DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "error.h"
#include "status.h"

struct device_properties {
    char name[64];
    int major, minor;          /* compute capability */
    int n_multiprocessors;
    uint64_t total, available; /* bytes of memory */
};

typedef struct device_stream_tag *device_stream;
typedef struct device_event_tag *device_event;
typedef struct device_graph_tag *device_graph;

/* Take device `ordinal` for this process; with_libraries: others' kernels are going to be loaded too.  ST_OK; ST_NOT_FOUND (no driver, none of that number: *err says which);
 * ST_UNSUPPORTED (a driver or a device too old); ST_SYSTEM. */
MUST_CHECK enum status device_open(uint32_t ordinal, bool with_libraries, struct device_properties *ret_properties, struct error *err);
/* What the last ST_SYSTEM was about, e.g. "cudaMemcpyAsync: an illegal memory access was encountered". */
const char *device_error(void);

void *device_take(size_t bytes);         /* device memory, aligned to 256; NULL when there is none */
void device_drop(void *at);              /* NULL is fine */
void *device_take_host(size_t bytes);    /* host memory that copies go to and from without a detour; NULL */
void device_drop_host(void *at);
/* Memory of the process that copies shall go to and come from without a detour, as if device_take_host had given it.
 * ST_OK or ST_UNSUPPORTED (copies still work). */
MUST_CHECK enum status device_register_host(void *at, size_t bytes);
void device_unregister_host(void *at);
/* Nobody may touch these bytes: space between two parts of one allocation.  Only the emulation looks. */
void device_guard(void *at, size_t bytes);

MUST_CHECK enum status device_stream_new(device_stream *ret_stream);
void device_stream_free(device_stream s);
MUST_CHECK enum status device_event_new(device_event *ret_event);
void device_event_free(device_event e);
MUST_CHECK enum status device_event_record(device_event e, device_stream s);
MUST_CHECK enum status device_event_poll(device_event e);                    /* ST_OK passed, ST_AGAIN, ST_SYSTEM */
MUST_CHECK enum status device_event_wait(device_event e);                    /* the caller waits */
MUST_CHECK enum status device_stream_wait(device_stream s, device_event e);  /* the stream waits */

enum device_direction { TO_DEVICE, TO_HOST, ON_DEVICE };
MUST_CHECK enum status device_copy(void *to, const void *from, size_t bytes, enum device_direction direction, device_stream s);
MUST_CHECK enum status device_zero(void *at, size_t bytes, device_stream s);

/* Everything given to s between begin and end becomes a graph instead of running. */
bool device_has_graphs(void);
MUST_CHECK enum status device_capture_begin(device_stream s);
MUST_CHECK enum status device_capture_end(device_stream s, device_graph *ret_graph);
MUST_CHECK enum status device_graph_launch(device_graph g, device_stream s);
void device_graph_free(device_graph g);

#ifdef __cplusplus
}
#endif

#endif
