/* gemm_q4_1.cu - products with Q4_1 weights. */
#define PRODUCT_TYPE Q4_1
#include "gemm_type.cuh"
