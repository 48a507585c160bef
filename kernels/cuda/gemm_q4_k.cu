/* gemm_q4_k.cu - products with Q4_K weights. */
#define PRODUCT_TYPE Q4_K
#include "gemm_type.cuh"
