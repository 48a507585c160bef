#!/bin/bash
# Another architecture: the CPU engine is cross-compiled for aarch64 (scalar kernels) and run under qemu-user; the logits of
# tiny models must have the committed bits.  Exit code 77: no cross compiler or no qemu here.
#
# usage: aarch64.sh [MODEL...]      names from tests/reference/data/tiny; without any: one of each kind of weight and architecture
set -eu
cd "$(dirname "$0")/.."
cc=${AARCH64_CC:-aarch64-linux-gnu-gcc} out=build/aarch64
command -v "$cc" >/dev/null && command -v qemu-aarch64 >/dev/null || { echo "aarch64: no $cc or no qemu-aarch64"; exit 77; }
mkdir -p $out/include
cp /usr/include/xxhash.h $out/include/    # one file, used as source: there is no library of it for this architecture
[ $# -gt 0 ] || set -- tiny-llama-Q8_0.gguf tiny-llama-Q5_1.gguf tiny-llama-Q4_K_M.gguf tiny-qwen3-Q8_0.gguf
"$cc" -std=c11 -D_GNU_SOURCE -O2 -fno-strict-aliasing -ffp-contract=off -Wall -Wextra -Werror -iquote include -I. -I$out/include \
    -DXXH_INLINE_ALL '-DWEIR_VERSION="aarch64"' '-DWEIR_BUILD_ID="aarch64"' -static -o $out/hash_logits \
    tests/kernels/hash_logits.c tests/support/engine_rig.c kernels/cpu/*.c worker/gguf.c worker/gguf_value.c worker/model_file.c \
    common/error.c common/status.c common/version.c -lpthread -lm
exec qemu-aarch64 $out/hash_logits "$@"
