/* gemm.h - the products by type, one function a file (compiling them is slow, so they are many files). */
#ifndef CUDA_GEMM_H
#define CUDA_GEMM_H

#include "launch.h"

#define QUANTISED_TYPES(X) X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q8_0) X(Q4_K) X(Q5_K) X(Q6_K)
#define PRODUCT_TYPES(X)   QUANTISED_TYPES(X) X(F16) X(BF16)

#define X(type) enum status product_##type(const struct product_args *a, uint32_t rows_max, device_stream s);
PRODUCT_TYPES(X)
#undef X
/* Of parts of several quantised types. */
enum status product_any(const struct product_args *a, uint32_t rows_max, device_stream s);

#endif
