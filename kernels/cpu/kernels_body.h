/* kernels_body.h - all kernels and their table, KERNELS_TABLE, for the instruction set that the including file chose. */
#include "kernels.h"
#include "vec.h"

#include "gemm_body.h"
#include "rows_body.h"
#include "attention_body.h"
#include "kv_body.h"

const struct kernels KERNELS_TABLE = {
    .isa = KERNELS_NAME,
    .gemm = {
        [TENSOR_F32] = gemm_F32,
        [TENSOR_F16] = gemm_F16,
        [TENSOR_BF16] = gemm_BF16,
        [TENSOR_Q4_0] = gemm_Q4_0,
        [TENSOR_Q4_1] = gemm_Q4_1,
        [TENSOR_Q5_0] = gemm_Q5_0,
        [TENSOR_Q5_1] = gemm_Q5_1,
        [TENSOR_Q8_0] = gemm_Q8_0,
        [TENSOR_Q4_K] = gemm_Q4_K,
        [TENSOR_Q5_K] = gemm_Q5_K,
        [TENSOR_Q6_K] = gemm_Q6_K,
    },
    .rms_norm = rms_norm,
    .add = add,
    .quantise = quantise,
    .gate = gate,
    .rope = rope,
    .store_k = store_k,
    .store_v = store_v,
    .maximum = maximum,
    .sum_exp = sum_exp,
    .panels_from = panels_from,
    .attention_begin = attention_begin,
    .attention_splits = attention_splits,
    .attention_merge = attention_merge,
    .attention_end = attention_end,
};
