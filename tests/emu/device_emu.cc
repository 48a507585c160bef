/* device_emu.cc - device.h without a device: memory is the heap, streams are queues.
 *
 * What a stream is given happens as late as it may: when somebody waits for an event, streams go on one operation at a time,
 * in an order drawn from the emulation's seed, until the event has passed.  So a step that forgets to wait for a copy, or a
 * host that uses a buffer again too early, meets it sooner or later.
 *
 * Fresh memory holds bytes that are no number.  The space between parts of an allocation is poisoned for AddressSanitizer. */
#include "cuda_emu.h"

#include "emu_seed.h"
#include "kernels/cuda/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <deque>
#include <map>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

enum status device_failed(const char *what, int error);

/* An operation, or (without one) a wait until `on` has done `until` of its own. */
struct operation {
    std::function<void()> run;
    const struct stream *on;
    uint64_t until;
};

/* Launches, with the arguments they were recorded with. */
struct graph {
    std::vector<std::function<void()>> launches;
};

struct stream {
    std::deque<operation> queue;
    uint64_t given = 0, done = 0;
    graph *recorded = nullptr; /* what is given goes there */
};

struct event {
    const stream *on = nullptr;
    uint64_t at = 0;

    bool passed() const
    {
        return on == nullptr || on->done >= at;
    }
};

static std::vector<stream *> streams;
static uint64_t emulated_memory = 8ull << 30;

uint64_t emu::n_launches, emu::launches_left = UINT64_MAX;

void emu_fail_after(uint64_t launches)
{
    emu::launches_left = launches;
}

/* A failed launch sticks: the device is of no more use to this process. */
static bool is_broken()
{
    return emu::launches_left == 0;
}

uint64_t emu_launches(void)
{
    return emu::n_launches;
}

void emu_memory(uint64_t bytes)
{
    emulated_memory = bytes;
}

static stream *stream_of(device_stream s)
{
    return reinterpret_cast<stream *>(s);
}
static event *event_of(device_event e)
{
    return reinterpret_cast<event *>(e);
}

static void push(stream *s, const operation &o)
{
    s->queue.push_back(o);
    s->given++;
}

bool emu::record(void *to, const std::function<void()> &run)
{
    graph *g = static_cast<stream *>(to)->recorded;

    if (g != nullptr)
        g->launches.push_back(run);
    return g != nullptr;
}

bool emu::may_launch()
{
    n_launches++;
    if (launches_left == 0)
        return false;
    launches_left--;
    return true;
}

void emu::give(void *to, const std::function<void()> &run)
{
    if (static_cast<stream *>(to)->recorded != nullptr) {
        fprintf(stderr, "emulation: only launches are recorded\n");
        abort();
    }
    push(static_cast<stream *>(to), { run, nullptr, 0 });
}

/* One operation of a stream that can go on; false when none can. */
static bool go_on()
{
    std::vector<stream *> ready;

    for (stream *s : streams)
        if (!s->queue.empty() && (s->queue.front().on == nullptr || s->queue.front().on->done >= s->queue.front().until))
            ready.push_back(s);
    if (ready.empty())
        return false;
    stream *s = ready[emu::random() % ready.size()];
    const operation o = s->queue.front();
    s->queue.pop_front();
    if (o.run)
        o.run();
    s->done++;
    return true;
}

static char last_error[128];

const char *device_error(void)
{
    return last_error;
}

enum status device_failed(const char *what, int error)
{
    snprintf(last_error, sizeof(last_error), "%s: unspecified launch failure (%d)", what, error);
    return ST_SYSTEM;
}

static enum status sticky(const char *what)
{
    return is_broken() ? device_failed(what, cudaErrorLaunchFailure) : ST_OK;
}

enum status device_open(uint32_t ordinal, bool, struct device_properties *ret_properties, struct error *err)
{
    struct device_properties p = {};
    const char *launches = getenv("WEIR_EMULATED_LAUNCHES"), *mib = getenv("WEIR_EMULATED_MIB"); /* for programs that a test does not link */

    if (launches != nullptr)
        emu_fail_after(strtoull(launches, nullptr, 10));
    if (mib != nullptr)
        emu_memory(strtoull(mib, nullptr, 10) << 20);
    if (ordinal > 0) {
        error_set(err, ERR_INVALID_PARAMETER, "--device", "there is no CUDA device %u; devices are 0 to 0", ordinal);
        return ST_NOT_FOUND;
    }
    snprintf(p.name, sizeof(p.name), "emulation");
    p.n_multiprocessors = 1;
    p.total = p.available = emulated_memory;
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

/* Host memory that a device reaches by itself. */
static std::map<uintptr_t, size_t> pinned;
static uint64_t n_detours;

uint64_t emu_detours(void)
{
    return n_detours;
}

void *device_take_host(size_t bytes)
{
    void *at = device_take(bytes);

    if (at != nullptr)
        pinned[(uintptr_t)at] = bytes;
    return at;
}

void device_drop_host(void *at)
{
    pinned.erase((uintptr_t)at);
    free(at);
}

enum status device_register_host(void *at, size_t bytes)
{
    return pinned.emplace((uintptr_t)at, bytes).second ? ST_OK : ST_UNSUPPORTED;
}

void device_unregister_host(void *at)
{
    if (pinned.erase((uintptr_t)at) != 1) {
        fprintf(stderr, "emulation: memory that was not registered\n");
        abort();
    }
}

static bool is_pinned(const void *at, size_t bytes)
{
    auto range = pinned.upper_bound((uintptr_t)at);

    if (range == pinned.begin())
        return false;
    --range;
    return (uintptr_t)at + bytes <= range->first + range->second;
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
    stream *s = new stream;

    streams.push_back(s);
    *ret_stream = reinterpret_cast<device_stream>(s);
    return ST_OK;
}

/* What is left of it still happens, as on a device, unless that is broken. */
void device_stream_free(device_stream s)
{
    if (s == nullptr)
        return;
    if (is_broken())
        stream_of(s)->queue.clear();
    while (!stream_of(s)->queue.empty())
        if (!go_on())
            abort();
    for (size_t i = 0; i < streams.size(); i++)
        if (streams[i] == stream_of(s))
            streams.erase(streams.begin() + (long)i--);
    delete stream_of(s);
}

enum status device_event_new(device_event *ret_event)
{
    *ret_event = reinterpret_cast<device_event>(new event);
    return ST_OK;
}

void device_event_free(device_event e)
{
    delete event_of(e);
}

enum status device_event_record(device_event e, device_stream s)
{
    if (is_broken())
        return sticky("cudaEventRecord");
    event_of(e)->on = stream_of(s);
    event_of(e)->at = stream_of(s)->given;
    return ST_OK;
}

/* Time passes between two looks. */
enum status device_event_poll(device_event e)
{
    if (is_broken())
        return sticky("cudaEventQuery");
    for (uint64_t n = emu::random() % 4; n > 0; n--)
        go_on();
    return event_of(e)->passed() ? ST_OK : ST_AGAIN;
}

enum status device_event_wait(device_event e)
{
    if (is_broken())
        return sticky("cudaEventSynchronize");
    while (!event_of(e)->passed()) {
        if (!go_on()) {
            fprintf(stderr, "emulation: streams wait for each other\n");
            abort();
        }
    }
    return ST_OK;
}

static uint64_t n_stream_waits;

uint64_t emu_stream_waits(void)
{
    return n_stream_waits;
}

enum status device_stream_wait(device_stream s, device_event e)
{
    n_stream_waits++;
    if (event_of(e)->on != nullptr)
        push(stream_of(s), { nullptr, event_of(e)->on, event_of(e)->at });
    return ST_OK;
}

/* Between the device and memory it does not reach by itself, the call lasts until the copy has happened. */
enum status device_copy(void *to, const void *from, size_t bytes, enum device_direction direction, device_stream s)
{
    if (is_broken())
        return sticky("cudaMemcpyAsync");
    emu::give(s, [=] { memcpy(to, from, bytes); });
    if (direction == ON_DEVICE || is_pinned(direction == TO_DEVICE ? from : to, bytes))
        return ST_OK;
    n_detours++;
    while (!stream_of(s)->queue.empty())
        if (!go_on())
            abort();
    return ST_OK;
}

enum status device_zero(void *at, size_t bytes, device_stream s)
{
    emu::give(s, [=] { memset(at, 0, bytes); });
    return ST_OK;
}

/* ------------------------------------------------------------------ graphs */

static bool graphs_on;
static uint64_t n_replays;

void emu_graphs(bool on)
{
    graphs_on = on;
}

uint64_t emu_replays(void)
{
    return n_replays;
}

static graph *graph_of(device_graph g)
{
    return reinterpret_cast<graph *>(g);
}

bool device_has_graphs(void)
{
    return graphs_on || getenv("WEIR_EMULATED_GRAPHS") != nullptr;
}

enum status device_capture_begin(device_stream s)
{
    if (stream_of(s)->recorded != nullptr)
        return device_failed("cudaStreamBeginCapture", 900);
    stream_of(s)->recorded = new graph;
    return ST_OK;
}

enum status device_capture_end(device_stream s, device_graph *ret_graph)
{
    if (stream_of(s)->recorded == nullptr)
        return device_failed("cudaStreamEndCapture", 900);
    *ret_graph = reinterpret_cast<device_graph>(stream_of(s)->recorded);
    stream_of(s)->recorded = nullptr;
    return ST_OK;
}

enum status device_graph_launch(device_graph g, device_stream s)
{
    n_replays++;
    for (const std::function<void()> &launch : graph_of(g)->launches) {
        if (!emu::may_launch())
            return sticky("cudaGraphLaunch");
        emu::give(s, launch);
    }
    return ST_OK;
}

void device_graph_free(device_graph g)
{
    delete graph_of(g);
}
