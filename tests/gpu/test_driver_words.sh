#!/bin/bash
# What a worker says, and what it does, where the CUDA plug-in finds no driver, an old one, a broken one, or one without a device.
build=$(dirname "${WEIR_BIN:-build/bin}")
model=${WEIR_TEST_MODEL:-$HOME/.cache/weir/SmolLM2-135M-Instruct.Q4_1.gguf}
[ -f "$build/bin/libweir_cuda.so" ] && [ -f "$model" ] || { echo "no CUDA plug-in in $build, or no model"; exit 77; }
ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1' && { echo "a real driver is here"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/driver"
gcc -w -shared -fPIC -o "$folder/driver/libcuda.so.1" "$(dirname "$0")/stand_in/fake_driver.c" -Wl,-soname,libcuda.so.1 || exit 1

plan() { # plan DEVICE
    "$build/bin/weir-worker" -m "$model" --device "$1" --context 128 --kv-blocks 16 --plan >"$folder/out" 2>"$folder/err"
}
says() { # says WORDS [NAME=VALUE...]: with such a driver cuda is refused in these words, and auto takes the CPU
    local words=$1
    shift
    [ $# -gt 0 ] && set -- "LD_LIBRARY_PATH=$folder/driver" "$@"
    (export CUDA_VISIBLE_DEVICES= "$@"; plan cuda) && { echo "opened a device: $words"; exit 1; }
    grep -qF -- "$words" "$folder/err" || { echo "expected: $words"; cat "$folder/err"; exit 1; }
    (export CUDA_VISIBLE_DEVICES= "$@"; plan auto) || { echo "auto did not take the CPU: $words"; cat "$folder/err"; exit 1; }
    grep -q '^weights' "$folder/out" || { cat "$folder/out"; exit 1; }
}
says 'there is no CUDA driver here'
says 'the CUDA driver is too old: it serves CUDA 12.4, this needs' FAKE_CUDA_VERSION=12040
says 'the CUDA driver finds no device' FAKE_CUDA_VERSION=99000 FAKE_CUDA_INIT=100
says 'the CUDA driver does not work: unknown error' FAKE_CUDA_VERSION=99000 FAKE_CUDA_INIT=999
