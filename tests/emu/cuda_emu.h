/* cuda_emu.h - enough of CUDA to compile the kernels as C++ and run them on a machine without a GPU.
 *
 * A launch runs its blocks one after the other, in an order drawn from a seed.  The threads of a block are fibers; which of
 * the ready ones goes on next is drawn too (in half of the blocks one warp falls behind), and it runs until it waits: at a
 * barrier, or where the lanes of a warp meet (shuffles, ballots, reductions, mma, __syncwarp).  Lanes share nothing but these meetings, so code that counts on lanes
 * running in step gives wrong numbers here as it may there.
 *
 * What is found:
 *   divergent barriers       threads of a block that wait at different __syncthreads(), or have left while others wait
 *   divergent warps          lanes that meet in different operations, are named in no mask, or never come
 *   missing synchronisation  with other orders come other numbers, and shared memory is full of signalling NaN bytes when a
 *                            block begins; the tests run every kernel in many orders
 *   missing waits            what cp.async copies arrives when the thread waits for it, not earlier (or at once: by the seed)
 *   missing grid_wait()      a thread of a launch on a stream that ends without it, or lets the next launch begin before it
 *   memory errors            global and shared memory are heap blocks of exact size: AddressSanitizer sees the rest
 *
 *   arguments in graphs      a graph holds the launches with the arguments they had when it was recorded
 *   missing waits of streams  a stream does what it was given at some later time, in order; which stream goes on is drawn, and
 *                            only events hold one back (device_emu.cc)
 *
 * A broken rule ends the program with the place; a test that plants one asks for emu::expect_failure() first.
 *
 * Not modelled: time, caches, memory order between blocks (a block runs to its end before the next begins, so a grid
 * barrier would hang: there is none in the kernels), and rounding inside tensor cores on floats. */
#ifndef CUDA_EMU_H
#define CUDA_EMU_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <functional>
#include <string>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(16) int4 {
    int x, y, z, w;
};

namespace emu
{

/* ---- tests ---- */

void set_seed(uint64_t seed);       /* orders of blocks and threads, and when cp.async arrives */
uint64_t seed();
void expect_failure(bool on);       /* a broken rule ends the launch, not the program */
const std::string &failure();       /* the first broken rule since expect_failure(true); empty when there was none */

/* ---- launches ---- */

/* follows: another launch may still be under way when this one begins. */
void run(dim3 grid, dim3 block, size_t shared_bytes, bool follows, const std::function<void()> &thread);
extern uint64_t n_launches, launches_left; /* so far; until the device fails */
/* device_emu.cc: to the end of a stream's queue; into the graph that is recorded of it, if one is; one launch more, unless the
 * device fails now */
void give(void *stream, const std::function<void()> &operation);
bool record(void *stream, const std::function<void()> &operation);
bool may_launch();
uint64_t random();                                               /* the next number of the seed */

/* ---- inside a kernel ---- */

struct place {
    dim3 thread, block, block_dim, grid_dim;
    unsigned lane, warp;
};
extern const place *here;

uint8_t *dynamic_shared();
void *static_shared(const char *file, int line, size_t bytes, size_t align);
void barrier(const char *file, int line);
[[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The lanes of mask meet: each brings `in`, compute() makes everyone's `out` once all are there. */
typedef void compute_fn(uint32_t mask, const void *const in[32], void *const out[32]);
void meet(const char *what, uint32_t mask, const void *in, size_t in_bytes, void *out, size_t out_bytes, compute_fn *compute);

void copy_async(void *to, const void *from, size_t bytes);
void copy_commit();
void copy_wait(int groups_left);
void wait_for_grid();
void launch_next_grid();

template <typename T> T &static_shared_object(const char *file, int line)
{
    return *static_cast<T *>(static_shared(file, line, sizeof(T), alignof(T)));
}

/* What a lane brings to a shuffle: its value and the lane it wants. */
struct shuffle_in {
    uint64_t value;
    uint32_t from;
};
void compute_shuffle(uint32_t mask, const void *const in[32], void *const out[32]);

template <typename T> T shuffle(const char *what, uint32_t mask, T value, uint32_t from)
{
    static_assert(sizeof(T) <= 8 && std::is_trivially_copyable<T>::value, "registers only");
    shuffle_in in = { 0, from };
    uint64_t out = 0;
    T r;
    memcpy(&in.value, &value, sizeof(T));
    meet(what, mask, &in, sizeof(in), &out, sizeof(out), compute_shuffle);
    memcpy(&r, &out, sizeof(T));
    return r;
}

void compute_ballot(uint32_t mask, const void *const in[32], void *const out[32]);
void compute_add(uint32_t mask, const void *const in[32], void *const out[32]);
void compute_max(uint32_t mask, const void *const in[32], void *const out[32]);
void compute_nothing(uint32_t mask, const void *const in[32], void *const out[32]);
void compute_mma_u8s8(uint32_t mask, const void *const in[32], void *const out[32]);
void compute_mma_s8s8(uint32_t mask, const void *const in[32], void *const out[32]);
void compute_load_transposed(uint32_t mask, const void *const in[32], void *const out[32]);
void compute_mma_f16(uint32_t mask, const void *const in[32], void *const out[32]);
void compute_mma_bf16(uint32_t mask, const void *const in[32], void *const out[32]);

} // namespace emu

#define threadIdx (emu::here->thread)
#define blockIdx  (emu::here->block)
#define blockDim  (emu::here->block_dim)
#define gridDim   (emu::here->grid_dim)

#define __syncthreads() emu::barrier(__FILE__, __LINE__)

/* Shared memory by macros, which nvcc's side (cuda.cuh) defines with the keyword. */
#define SHARED_BYTES(name)      uint8_t *name = emu::dynamic_shared()
#define SHARED_OBJECT(T, name)  T &name = emu::static_shared_object<T>(__FILE__, __LINE__)

#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
    emu::launch(kernel, grid, block, shared_bytes, stream __VA_OPT__(, ) __VA_ARGS__)

enum cudaError_t { cudaSuccess = 0, cudaErrorLaunchFailure = 719 };
typedef void *cudaStream_t;

namespace emu
{
/* A launch takes copies of its arguments; without a stream it runs at once, else when the stream gets to it.  One that is being
 * recorded counts when it is replayed. */
template <typename... P, typename... A>
cudaError_t launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream, A... args)
{
    const std::function<void()> operation = [=] { run(grid, block, shared_bytes, stream != nullptr, [=] { kernel(args...); }); };

    if (stream != nullptr && record(stream, operation))
        return cudaSuccess;
    if (!may_launch())
        return cudaErrorLaunchFailure;
    if (stream == nullptr)
        operation();
    else
        give(stream, operation);
    return cudaSuccess;
}
} // namespace emu

/* ---- warps ---- */

inline void __syncwarp(uint32_t mask = 0xffffffffu)
{
    emu::meet("__syncwarp", mask, nullptr, 0, nullptr, 0, emu::compute_nothing);
}
template <typename T> T __shfl_sync(uint32_t mask, T v, int from)
{
    return emu::shuffle("__shfl_sync", mask, v, (uint32_t)from & 31);
}
template <typename T> T __shfl_xor_sync(uint32_t mask, T v, int x)
{
    return emu::shuffle("__shfl_xor_sync", mask, v, (emu::here->lane ^ (uint32_t)x) & 31);
}
template <typename T> T __shfl_down_sync(uint32_t mask, T v, unsigned n)
{
    return emu::shuffle("__shfl_down_sync", mask, v, emu::here->lane + n < 32 ? emu::here->lane + n : emu::here->lane);
}
template <typename T> T __shfl_up_sync(uint32_t mask, T v, unsigned n)
{
    return emu::shuffle("__shfl_up_sync", mask, v, emu::here->lane >= n ? emu::here->lane - n : emu::here->lane);
}
inline uint32_t __ballot_sync(uint32_t mask, int predicate)
{
    uint32_t in = predicate != 0, out = 0;
    emu::meet("__ballot_sync", mask, &in, sizeof(in), &out, sizeof(out), emu::compute_ballot);
    return out;
}
inline int __reduce_add_sync(uint32_t mask, int v)
{
    int out = 0;
    emu::meet("__reduce_add_sync", mask, &v, sizeof(v), &out, sizeof(out), emu::compute_add);
    return out;
}
inline unsigned __reduce_max_sync(uint32_t mask, unsigned v)
{
    unsigned out = 0;
    emu::meet("__reduce_max_sync", mask, &v, sizeof(v), &out, sizeof(out), emu::compute_max);
    return out;
}
inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}

/* ---- memory ---- */

template <typename T> T atomicAdd(T *at, T v)
{
    T old = *at;
    *at = old + v;
    return old;
}
inline void __threadfence()
{
}
template <typename T> T __ldg(const T *p)
{
    return *p;
}
template <typename T> T __ldcg(const T *p)
{
    return *p;
}

/* ---- numbers ---- */

inline uint32_t __float_as_uint(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}
inline float __uint_as_float(uint32_t u)
{
    float x;
    memcpy(&x, &u, 4);
    return x;
}
inline int __float_as_int(float x)
{
    return (int)__float_as_uint(x);
}
inline float __int_as_float(int i)
{
    return __uint_as_float((uint32_t)i);
}
inline double __longlong_as_double(long long i)
{
    double x;
    memcpy(&x, &i, 8);
    return x;
}
inline long long __double_as_longlong(double x)
{
    long long i;
    memcpy(&i, &x, 8);
    return i;
}
inline uint32_t __umulhi(uint32_t a, uint32_t b)
{
    return (uint32_t)((uint64_t)a * b >> 32);
}
inline int __dp4a(int a, int b, int c)
{
    int8_t x[4], y[4];
    memcpy(x, &a, 4);
    memcpy(y, &b, 4);
    uint32_t sum = (uint32_t)c;
    for (int i = 0; i < 4; i++)
        sum += (uint32_t)(x[i] * y[i]);
    return (int)sum;
}
float emu_half_to_float(uint16_t h);
uint16_t emu_float_to_half(float x);

/* ---- what cuda.cuh has as PTX ---- */

inline float half_to_float(uint16_t h)
{
    return emu_half_to_float(h);
}
inline uint16_t float_to_half(float x)
{
    return emu_float_to_half(x);
}

inline uint32_t halves_of(float a, float b)
{
    return emu_float_to_half(a) | (uint32_t)emu_float_to_half(b) << 16;
}
inline uint32_t brain_of(float x)
{
    const uint32_t u = __float_as_uint(x);
    return (u & 0x7fffffff) > 0x7f800000 ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16;
}
inline uint32_t brains_of(float a, float b)
{
    return brain_of(a) | brain_of(b) << 16;
}
inline uint32_t brains_of_codes(uint32_t codes)
{
    return brains_of((float)(int8_t)codes, (float)(int8_t)(codes >> 16));
}

namespace emu
{
/* A factor's fragments and a sum's, T being float or int. */
template <typename T>
void mma(const char *what, T (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], compute_fn *compute)
{
    struct {
        uint32_t a[4], b[2];
        T c[4];
    } in;
    memcpy(in.a, a, sizeof(a));
    memcpy(in.b, b, sizeof(b));
    memcpy(in.c, c, sizeof(c));
    meet(what, 0xffffffffu, &in, sizeof(in), c, sizeof(c), compute);
}
} // namespace emu

/* D[16 x 8] += A[16 x 32] B[32 x 8], unsigned by signed bytes: mma.sync.m16n8k32.row.col.s32.u8.s8.s32; and signed by signed */
inline void mma_u8s8(int (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    emu::mma("mma_u8s8", c, a, b, emu::compute_mma_u8s8);
}
inline void mma_s8s8(int (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    emu::mma("mma_s8s8", c, a, b, emu::compute_mma_s8s8);
}

/* D[16 x 8] += A[16 x 16] B[16 x 8]: mma.sync.m16n8k16.row.col.f32.f16.f16.f32, and the same of bf16 */
inline void mma_f16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    emu::mma("mma_f16", c, a, b, emu::compute_mma_f16);
}
inline void mma_bf16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    emu::mma("mma_bf16", c, a, b, emu::compute_mma_bf16);
}

/* ldmatrix.m8n8.x4.trans */
inline void load_transposed(uint32_t (&x)[4], const void *shared)
{
    emu::meet("load_transposed", 0xffffffffu, &shared, sizeof(shared), x, sizeof(x), emu::compute_load_transposed);
}

/* 16 bytes from global to shared memory; there when cp_async_wait() says so. */
inline void cp_async16(void *shared, const void *global)
{
    emu::copy_async(shared, global, 16);
}
inline void cp_async_commit()
{
    emu::copy_commit();
}
template <int GROUPS_LEFT> inline void cp_async_wait()
{
    emu::copy_wait(GROUPS_LEFT);
}

/* Programmatic dependent launch: nothing overlaps here, but every thread must wait, and wait first.  (A launch that began the next
 * one without having waited would let that one run beside the one before both.) */
inline void grid_wait()
{
    emu::wait_for_grid();
}
inline void grid_launch()
{
    emu::launch_next_grid();
}

#endif
