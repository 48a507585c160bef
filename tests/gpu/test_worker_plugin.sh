#!/bin/bash
# The worker loads a CUDA plug-in that lies beside it and answers through it as on the CPU.  (The plug-in is the emulated one.)
build=$(dirname "${WEIR_BIN:-build/bin}")
plugin=$build/emulation/libweir_cuda.so
model=${WEIR_TEST_MODEL:-$HOME/.cache/weir/SmolLM2-135M-Instruct.Q4_1.gguf}
[ -f "$plugin" ] && [ -x "$build/bin/weir-worker" ] && [ -f "$model" ] || { echo "no emulated plug-in, worker or model"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp "$build/bin/weir-worker" "$plugin" "$folder"

answer() { # answer DEVICE
    "$folder/weir-worker" -m "$model" --device "$1" --context 128 --kv-blocks 16 --max-rows 16 --max-seqs 2 --greedy --max-tokens 4 \
        --generate "1, 2, 3, 4, 5," 2>"$folder/$1.log"
}
cpu=$(answer cpu) || { tail -n 5 "$folder/cpu.log"; exit 1; }
cuda=$(answer cuda) || { tail -n 5 "$folder/cuda.log"; exit 1; }
echo "cpu: '$cpu' cuda: '$cuda'"
[ -n "$cuda" ] && [ "$cpu" = "$cuda" ]
