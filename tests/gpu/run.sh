#!/bin/bash
# Ten minutes on a GPU: does the CUDA backend compute what the CPU backend computes, and how fast?
#
# usage: run.sh OUT_DIR [SECONDS]       SECONDS: for everything, building included (600)
#   WEIR_TEST_MODEL=FILE     SmolLM2-135M in GGUF; without it (and without a copy in the cache) its shape is measured with random
#                            weights, and its answers are not compared
#   WEIR_GPU_DRY=1           the same on the emulation, small, without nvcc or a device: what CI runs
#   WEIR_GPU_BUILD=DIR       where a dry run builds (build)
#
# Needs this repository, nvcc with a driver, gcc and (for the readable table) Python 3; no other library.  Every part has its
# own limit, so what comes first is there even when the time runs out.  Writes OUT_DIR/results.json, results.txt and logs.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
mkdir -p "$1"
out=$(cd "$1" && pwd)
seconds=${2:-600}
dry=${WEIR_GPU_DRY:-}
began=$SECONDS
build=$out/build
[ -n "$dry" ] && build=${WEIR_GPU_BUILD:-build}
lines=$out/lines.jsonl
: >"$lines"
left() { echo $((seconds - (SECONDS - began))); }
note() { echo "$*" | tee -a "$lines"; }

# part NAME LIMIT COMMAND...: its JSON lines are kept, its words go to a log; what is over time is said.
part() {
    local name=$1 limit=$2 rest
    shift 2
    rest=$(left)
    [ "$rest" -lt "$limit" ] && limit=$rest
    [ "$limit" -gt 2 ] || { note "$name: no time left"; return; }
    timeout -k 5 "$limit" "$@" >"$out/$name.out" 2>"$out/$name.log"
    local rc=$?
    grep '^{' "$out/$name.out" >>"$lines"
    case $rc in
        0) ;;
        124 | 137) note "$name: stopped after $limit s" ;;
        *) note "$name: exit $rc: $(tail -n 1 "$out/$name.log")"
           echo "{\"part\": \"${name%%_*}\", \"what\": \"$name\", \"ok\": false}" >>"$lines" ;;
    esac
}

# ---- build: the plug-in, and one program of common, kernels and worker ----
if [ -n "${dry}" ] || printf '#include <xxhash.h>\nint main(void){return 0;}\n' | gcc -x c -o /dev/null - -lxxhash 2>/dev/null; then
    flags=() libs=(COMMON_XXHASH=-lxxhash)
else
    note "no libxxhash here: a stand-in is used (numerics ids are not those of a real build)"
    flags=("CFLAGS=-O2 -g -isystem tests/gpu/stand_in") libs=(COMMON_XXHASH=)
fi
jobs=$(nproc)
if [ -n "$dry" ]; then
    plugin=$build/emulation/libweir_cuda.so
    make -s -j"$jobs" B="$build" CUDA=0 "${flags[@]}" "${libs[@]}" "$build/gpu_check" "$plugin" >"$out/build.log" 2>&1
else
    plugin=$build/bin/libweir_cuda.so
    arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d '. ')
    make -s -j"$jobs" B="$build" CUDA_ARCHS="${arch:-80 90}" "${flags[@]}" "${libs[@]}" "$build/gpu_check" "$plugin" >"$out/build.log" 2>&1
fi || { tail -n 30 "$out/build.log"; echo "build failed"; exit 1; }
check=$build/gpu_check
note "built after $((SECONDS - began)) s"

model=${WEIR_TEST_MODEL:-$HOME/.cache/weir/SmolLM2-135M-Instruct.Q4_1.gguf}
[ -f "$model" ] || model=

# ---- is it right? ----
part device 60 "$check" "$plugin" device
if [ -n "$dry" ]; then
    part exact 120 "$check" "$plugin" exact small
    part fast 60 "$check" "$plugin" fast
    part speed_tiny 60 "$check" "$plugin" speed tiny - 0 0.2
    part speed_tiny_fast 60 "$check" "$plugin" speed tiny - 0 0.2 fast
    exec python3 tests/gpu/report.py "$out"
fi
part exact 120 "$check" "$plugin" exact
part fast 60 "$check" "$plugin" fast
[ -n "$model" ] && part model 90 "$check" "$plugin" model "$model"

# ---- how fast is it? ----
gbps=0
if nvcc -std=c++17 -O3 -arch="sm_${arch:-80}" -o "$build/bandwidth" tests/gpu/bandwidth.cu >>"$out/build.log" 2>&1; then
    gbps=$("$build/bandwidth" 2>>"$out/build.log" || echo 0)
    echo "{\"part\": \"bandwidth\", \"what\": \"read\", \"gb_a_second\": $gbps}" >>"$lines"
fi
if nvcc -std=c++17 -O3 --fmad=false -D_Static_assert=static_assert -Xcompiler -iquote,.,-iquote,include -arch="sm_${arch:-80}" \
    -o "$build/attention_speed" tests/gpu/attention_speed.cu kernels/cuda/attention.cu kernels/cuda/attention_mma.cu >>"$out/build.log" 2>&1; then
    part attention 30 "$build/attention_speed"
else
    note "attention_speed was not built"
fi
part speed_smollm2 60 "$check" "$plugin" speed smollm2 "${model:--}" "$gbps" 2
part speed_8b-q8_0 90 "$check" "$plugin" speed 8b-q8_0 - "$gbps" 2
part transformers_smollm2 40 python3 tests/gpu/transformers_speed.py smollm2 3
part transformers_8b-bf16 60 python3 tests/gpu/transformers_speed.py 8b-bf16 3
part speed_8b-q4_k 90 "$check" "$plugin" speed 8b-q4_k - "$gbps" 2
part speed_8b-bf16 120 "$check" "$plugin" speed 8b-bf16 - "$gbps" 2
part speed_8b-q8_0_fast 90 "$check" "$plugin" speed 8b-q8_0 - "$gbps" 2 fast

# ---- and does it touch what it should not? ----
if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck synccheck; do
        part "sanitizer_$tool" 120 compute-sanitizer --tool "$tool" --error-exitcode 9 "$check" "$plugin" exact small
        [ "$(tail -c 200 "$out/sanitizer_$tool.out" | grep -c 'ERROR SUMMARY: 0 errors')" = 1 ] &&
            echo "{\"part\": \"sanitizer\", \"what\": \"$tool\", \"ok\": true}" >>"$lines"
    done
else
    note "compute-sanitizer is not here"
fi
exec python3 tests/gpu/report.py "$out"
