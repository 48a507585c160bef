/* kernels_avx2.c - the kernels for AVX2, FMA and F16C (2013 and later); int8 products by vpmaddubsw. */
#if defined(__x86_64__)
#define VEC_AVX2
#define KERNELS_TABLE kernels_avx2
#define KERNELS_NAME  "avx2"
#include "kernels_body.h"
#else
typedef int kernels_avx2_absent;
#endif
