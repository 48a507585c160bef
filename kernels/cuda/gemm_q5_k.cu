/* gemm_q5_k.cu - products with Q5_K weights. */
#define PRODUCT_TYPE Q5_K
#include "gemm_type.cuh"
