/* cuda.cuh - what every .cu file includes first: CUDA, or the emulation of it that the tests compile the same files with.
 *
 * Instructions that CUDA C++ has no name for are functions here, once as PTX and once (tests/emu/cuda_emu.h) as C++.  Shared
 * memory and launches go through macros for the same reason:
 *
 *   SHARED_BYTES(name)       the launch's dynamic shared memory, aligned to 128
 *   SHARED_OBJECT(T, name)   one object in static shared memory
 *   LAUNCH(kernel, grid, block, shared_bytes, stream, arguments...)   gives a cudaError_t
 *
 * Numerics: the files are compiled with --fmad=false (here -ffp-contract=off); divisions and roots are IEEE's, nothing is
 * flushed to zero.  So + - * / sqrtf and fmaf have the bits they have on the CPU. */
#ifndef CUDA_CUH
#define CUDA_CUH

#if defined(WEIR_EMULATION)
#include "cuda_emu.h"
#else
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#define SHARED_BYTES(name)     extern __shared__ __align__(128) uint8_t name[]
#define SHARED_OBJECT(T, name) __shared__ T name

/* A kernel may begin while the one before it ends (programmatic dependent launch, sm_90 and up): it says where it needs
 * that one's results (grid_wait), and the one before says from when on it is no loss to begin (grid_launch). */
template <typename... P, typename... A>
static cudaError_t launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream, A... args)
{
    extern int device_has_dependent_launch; /* device.cu */
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t config = {};
    cudaError_t error = cudaSuccess;

    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = device_has_dependent_launch ? 1 : 0;
    if (shared_bytes > 48 << 10)
        error = cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     (int)shared_bytes);
    return error != cudaSuccess ? error : cudaLaunchKernelEx(&config, kernel, static_cast<P>(args)...);
}
#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
    launch(kernel, grid, block, shared_bytes, stream, __VA_ARGS__)

__device__ __forceinline__ void grid_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void grid_launch()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ float half_to_float(uint16_t h)
{
    return __half2float(__ushort_as_half(h));
}
__device__ __forceinline__ uint16_t float_to_half(float x)
{
    return __half_as_ushort(__float2half_rn(x));
}

/* Two numbers to the nearest f16, a in the lower half. */
__device__ __forceinline__ uint32_t halves_of(float a, float b)
{
    const __half2 pair = __floats2half2_rn(a, b);

    return (uint32_t)__half_as_ushort(__high2half(pair)) << 16 | __half_as_ushort(__low2half(pair));
}

/* And to the nearest bf16. */
__device__ __forceinline__ uint32_t brains_of(float a, float b)
{
    uint32_t pair;

    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(b), "f"(a));
    return pair;
}

/* The int8 in the lower byte of each half as bf16: 128 + its lower seven bits, less 128 or (by its sign) 256. */
__device__ __forceinline__ uint32_t brains_of_codes(uint32_t codes)
{
    const uint32_t sum = 0x43004300 | (codes & 0x007f007f), less = 0xc300c300 | (codes & 0x00800080), one = 0x3f803f80;
    uint32_t pair;

    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(pair) : "r"(sum), "r"(one), "r"(less));
    return pair;
}

/* D[16 x 8] += A[16 x 32] B[32 x 8], unsigned by signed bytes.  With g = lane / 4, j = lane % 4:
 *   a0 row g, k 4j..4j+3   a1 row g+8   a2 row g, k 16+4j..   a3 row g+8, k 16+4j..
 *   b0 column g, k 4j..    b1 column g, k 16+4j..
 *   c0 row g, column 2j    c1 column 2j+1    c2 row g+8, column 2j    c3 column 2j+1 */
__device__ __forceinline__ void mma_u8s8(int (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* The same of signed by signed bytes. */
__device__ __forceinline__ void mma_s8s8(int (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* D[16 x 8] += A[16 x 16] B[16 x 8] in float:
 *   a0 row g, k 2j and 2j+1   a1 row g+8   a2 row g, k 2j+8 and 2j+9   a3 row g+8
 *   b0 column g, k 2j and 2j+1   b1 column g, k 2j+8 and 2j+9          c as above */
__device__ __forceinline__ void mma_f16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void mma_bf16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Four matrices of 8 rows of 8 halves in shared memory; lane 8m + r brings the address of row r of matrix m.  Lane 4g + j gets of each
 * rows 2j and 2j+1 of column g: with positions as rows and dimensions as columns the second factor of mma_f16. */
__device__ __forceinline__ void load_transposed(uint32_t (&x)[4], const void *shared)
{
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(shared);

    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(at)
                 : "memory");
}

/* 16 bytes from global to shared memory, past the first-level cache; there when cp_async_wait<N>() says that all but the
 * last N committed groups of this thread have arrived.  Other threads see them after a barrier. */
__device__ __forceinline__ void cp_async16(void *shared, const void *global)
{
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(shared);

    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(global) : "memory");
}
__device__ __forceinline__ void cp_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int GROUPS_LEFT> __device__ __forceinline__ void cp_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS_LEFT) : "memory");
}
#endif

enum { WARP = 32 };
#define ALL_LANES 0xffffffffu

#endif
