/* kernels_avxvnni.c - the kernels for AVX2 with AVX-VNNI: vpdpbusd on 256 bits. */
#if defined(__x86_64__)
#define VEC_AVX2
#define VEC_VNNI
#define KERNELS_TABLE kernels_avxvnni
#define KERNELS_NAME  "avxvnni"
#include "kernels_body.h"
#else
typedef int kernels_avxvnni_absent;
#endif
