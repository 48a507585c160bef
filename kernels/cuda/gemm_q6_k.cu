/* gemm_q6_k.cu - products with Q6_K weights. */
#define PRODUCT_TYPE Q6_K
#include "gemm_type.cuh"
