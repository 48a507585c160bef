/* gemm_q5_1.cu - products with Q5_1 weights. */
#define PRODUCT_TYPE Q5_1
#include "gemm_type.cuh"
