/* device.cu - device.h on the CUDA runtime. */
#include "cuda.cuh"
#include "device.h"
#include "status.cuh"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int device_has_dependent_launch; /* of the device that was opened; cuda.cuh's launch() reads it */

static char last_error[256];

static enum status check(const char *what, cudaError_t error)
{
    if (error == cudaSuccess)
        return ST_OK;
    snprintf(last_error, sizeof(last_error), "%s: %s", what, cudaGetErrorString(error));
    return ST_SYSTEM;
}
#define CHECK(call) check(#call, call)

enum status device_failed(const char *what, int error)
{
    return check(what, (cudaError_t)error);
}

enum status device_failed_text(const char *text)
{
    snprintf(last_error, sizeof(last_error), "%s", text);
    return ST_SYSTEM;
}

const char *device_error(void)
{
    return last_error;
}

/* Stream and event types are opaque to C: the same pointers under other names. */
static cudaStream_t stream_of(device_stream s)
{
    return reinterpret_cast<cudaStream_t>(s);
}
static cudaEvent_t event_of(device_event e)
{
    return reinterpret_cast<cudaEvent_t>(e);
}
static cudaGraphExec_t graph_of(device_graph g)
{
    return reinterpret_cast<cudaGraphExec_t>(g);
}

static enum status no_device(struct error *err, uint32_t ordinal, int n, cudaError_t error)
{
    int driver = 0, runtime = 0;

    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    if (driver == 0)
        error_set(err, ERR_INVALID_PARAMETER, "--device", "there is no CUDA driver here");
    else if (driver / 1000 < runtime / 1000)
        error_set(err, ERR_INVALID_PARAMETER, "--device", "the CUDA driver is too old: it serves CUDA %d.%d, this needs %d.%d",
                  driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    else if (error != cudaSuccess && error != cudaErrorNoDevice)
        error_set(err, ERR_INVALID_PARAMETER, "--device", "the CUDA driver does not work: %s", cudaGetErrorString(error));
    else if (n <= 0)
        error_set(err, ERR_INVALID_PARAMETER, "--device", "the CUDA driver finds no device");
    else
        error_set(err, ERR_INVALID_PARAMETER, "--device", "there is no CUDA device %u; devices are 0 to %d", ordinal, n - 1);
    return driver != 0 && driver / 1000 < runtime / 1000 ? ST_UNSUPPORTED : ST_NOT_FOUND;
}

enum status device_open(uint32_t ordinal, bool with_libraries, struct device_properties *ret_properties, struct error *err)
{
    struct device_properties p = {};
    cudaDeviceProp properties;
    size_t available = 0, total = 0;
    int n = 0;

    /* All kernels now, not at their first launch (of a library that has thousands: only those that are used); and nothing
     * compiled here, so no cache of it on disk. */
    setenv("CUDA_MODULE_LOADING", with_libraries ? "LAZY" : "EAGER", 0);
    setenv("CUDA_CACHE_DISABLE", "1", 0);
    const cudaError_t error = cudaGetDeviceCount(&n);
    if (error != cudaSuccess || ordinal >= (uint32_t)n)
        return no_device(err, ordinal, n, error);
    enum status st = CHECK(cudaSetDevice((int)ordinal));
    if (st == ST_OK)
        st = CHECK(cudaGetDeviceProperties(&properties, (int)ordinal));
    if (st == ST_OK)
        st = CHECK(cudaMemGetInfo(&available, &total));
    if (st != ST_OK) {
        error_set(err, ERR_INTERNAL, "--device", "CUDA device %u: %s", ordinal, last_error);
        return st;
    }
    if (properties.major < 8) {
        error_set(err, ERR_INVALID_PARAMETER, "--device", "CUDA device %u (%.40s) is of compute capability %d.%d, 8.0 is needed",
                  ordinal, properties.name, properties.major, properties.minor);
        return ST_UNSUPPORTED;
    }
    snprintf(p.name, sizeof(p.name), "%.63s", properties.name);
    p.major = properties.major;
    p.minor = properties.minor;
    p.n_multiprocessors = properties.multiProcessorCount;
    p.available = available;
    p.total = total;
    device_has_dependent_launch = p.major >= 9;
    *ret_properties = p;
    return ST_OK;
}

void *device_take(size_t bytes)
{
    void *at = nullptr;

    return CHECK(cudaMalloc(&at, bytes)) == ST_OK ? at : nullptr;
}

void device_drop(void *at)
{
    cudaFree(at);
}

void *device_take_host(size_t bytes)
{
    void *at = nullptr;

    return CHECK(cudaMallocHost(&at, bytes)) == ST_OK ? at : nullptr;
}

void device_drop_host(void *at)
{
    cudaFreeHost(at);
}

enum status device_register_host(void *at, size_t bytes)
{
    const cudaError_t error = cudaHostRegister(at, bytes, cudaHostRegisterDefault);

    if (error != cudaSuccess)
        cudaGetLastError(); /* no step failed */
    return check("cudaHostRegister", error) == ST_OK ? ST_OK : ST_UNSUPPORTED;
}

void device_unregister_host(void *at)
{
    cudaHostUnregister(at);
}

void device_guard(void *, size_t)
{
}

enum status device_stream_new(device_stream *ret_stream)
{
    cudaStream_t s;
    const enum status st = CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));

    if (st == ST_OK)
        *ret_stream = reinterpret_cast<device_stream>(s);
    return st;
}

void device_stream_free(device_stream s)
{
    if (s != nullptr)
        cudaStreamDestroy(stream_of(s));
}

enum status device_event_new(device_event *ret_event)
{
    cudaEvent_t e;
    const enum status st = CHECK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));

    if (st == ST_OK)
        *ret_event = reinterpret_cast<device_event>(e);
    return st;
}

void device_event_free(device_event e)
{
    if (e != nullptr)
        cudaEventDestroy(event_of(e));
}

enum status device_event_record(device_event e, device_stream s)
{
    return CHECK(cudaEventRecord(event_of(e), stream_of(s)));
}

enum status device_event_poll(device_event e)
{
    const cudaError_t error = cudaEventQuery(event_of(e));

    return error == cudaErrorNotReady ? ST_AGAIN : check("cudaEventQuery", error);
}

enum status device_event_wait(device_event e)
{
    return CHECK(cudaEventSynchronize(event_of(e)));
}

enum status device_stream_wait(device_stream s, device_event e)
{
    return CHECK(cudaStreamWaitEvent(stream_of(s), event_of(e), 0));
}

enum status device_copy(void *to, const void *from, size_t bytes, enum device_direction direction, device_stream s)
{
    const cudaMemcpyKind kind = direction == TO_DEVICE ? cudaMemcpyHostToDevice
                                : direction == TO_HOST ? cudaMemcpyDeviceToHost
                                                       : cudaMemcpyDeviceToDevice;

    return CHECK(cudaMemcpyAsync(to, from, bytes, kind, stream_of(s)));
}

enum status device_zero(void *at, size_t bytes, device_stream s)
{
    return CHECK(cudaMemsetAsync(at, 0, bytes, stream_of(s)));
}

bool device_has_graphs(void)
{
    return true;
}

enum status device_capture_begin(device_stream s)
{
    return CHECK(cudaStreamBeginCapture(stream_of(s), cudaStreamCaptureModeThreadLocal));
}

enum status device_capture_end(device_stream s, device_graph *ret_graph)
{
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    enum status st = CHECK(cudaStreamEndCapture(stream_of(s), &graph));

    if (st == ST_OK)
        st = CHECK(cudaGraphInstantiate(&exec, graph, 0));
    if (graph != nullptr)
        cudaGraphDestroy(graph);
    if (st == ST_OK)
        st = CHECK(cudaGraphUpload(exec, stream_of(s)));
    if (st == ST_OK)
        *ret_graph = reinterpret_cast<device_graph>(exec);
    return st;
}

enum status device_graph_launch(device_graph g, device_stream s)
{
    return CHECK(cudaGraphLaunch(graph_of(g), stream_of(s)));
}

void device_graph_free(device_graph g)
{
    if (g != nullptr)
        cudaGraphExecDestroy(graph_of(g));
}
