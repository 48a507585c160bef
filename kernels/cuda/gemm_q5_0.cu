/* gemm_q5_0.cu - products with Q5_0 weights. */
#define PRODUCT_TYPE Q5_0
#include "gemm_type.cuh"
