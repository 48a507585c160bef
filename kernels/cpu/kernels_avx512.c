/* kernels_avx512.c - the kernels for AVX-512 with VNNI: one vector is one register, and there are 32 of them. */
#if defined(__x86_64__)
#define VEC_AVX512
#define KERNELS_TABLE kernels_avx512
#define KERNELS_NAME  "avx512vnni"
#include "kernels_body.h"
#else
typedef int kernels_avx512_absent;
#endif
