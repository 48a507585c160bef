#!/bin/sh
# The engine on another architecture: build it for aarch64 with the scalar kernels and run tiny models under qemu; their logits
# must have the hashes that x86 has.  Exit code 77 (skipped) without a cross compiler or qemu.
cd "$(dirname "$0")/../.." || exit 1
command -v aarch64-linux-gnu-gcc >/dev/null && command -v qemu-aarch64 >/dev/null || { echo "no aarch64 compiler or qemu-user"; exit 77; }
out=build/aarch64
mkdir -p "$out"
# xxHash comes as a header; there is no need for its aarch64 package.
printf '#include "%s"\n' "$(echo '#include <xxhash.h>' | cc -E -M -x c - | tr ' \\' '\n\n' | grep '/xxhash\.h$')" > "$out/xxhash.h"
flags="-std=c11 -O2 -Wall -Wextra -Werror -ffp-contract=off -fno-strict-aliasing -D_GNU_SOURCE -DXXH_INLINE_ALL -iquote include -I. -I$out"
aarch64-linux-gnu-gcc $flags -static -o "$out/hash_logits" tests/kernels/hash_logits.c tests/support/engine_rig.c kernels/cpu/*.c \
    worker/gguf.c worker/gguf_value.c worker/model_file.c worker/model_describe.c common/error.c common/status.c common/version.c \
    -lm -lpthread || exit 1
qemu-aarch64 "$out/hash_logits" tiny-llama-Q4_K_M.gguf tiny-qwen3-Q8_0.gguf
