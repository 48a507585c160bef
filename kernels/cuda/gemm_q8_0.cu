/* gemm_q8_0.cu - products with Q8_0 weights. */
#define PRODUCT_TYPE Q8_0
#include "gemm_type.cuh"
