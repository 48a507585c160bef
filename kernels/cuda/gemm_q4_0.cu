/* gemm_q4_0.cu - products with Q4_0 weights. */
#define PRODUCT_TYPE Q4_0
#include "gemm_type.cuh"
