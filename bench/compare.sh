#!/bin/bash
# Our CPU engine beside llama.cpp on the same file and machine, in turn, so that both meet the same neighbours.
#
# usage: compare.sh BUILD_DIR          what `make bench` runs
#   WEIR_BENCH_MODEL    the model (default: the one the demo uses)
#   WEIR_PEER           folder with llama-bench and llama-batched-bench (default: built below the cache directory by bench/peer.sh)
#   WEIR_BENCH_ROUNDS   rounds (5); each runs every test of both once, the table shows medians and medians of the rounds' ratios
#
# Like for like: the same file, threads and KV type (f16); decode of 16 is 128 tokens each after prompts of 128, on both sides.
# Prints tables and writes BUILD_DIR/bench/cpu.json: medians, ratios, start and memory, the limits of the machine, and every kernel
# beside its limit.  Five rounds take about four minutes on a quiet machine.
set -eu
build=$1
cache=${XDG_CACHE_HOME:-$HOME/.cache}/weir
model=${WEIR_BENCH_MODEL:-$cache/SmolLM2-135M-Instruct.Q4_1.gguf}
peer=${WEIR_PEER:-$cache/llama.cpp/build/bin}
rounds=${WEIR_BENCH_ROUNDS:-5}
threads=$(nproc)
here=$(dirname "$0")
raw=$build/bench/cpu.raw

[ -e "$model" ] || { echo "no model at $model: run tools/fetch-model.sh smollm2, or set WEIR_BENCH_MODEL" >&2; exit 1; }
[ -x "$peer/llama-bench" ] || WEIR_PEER_DIR=$cache/llama.cpp "$here/peer.sh"

: > "$raw"
ours() { "$build/bench/cpu_bench" "$model" -t "$threads" -r 1 "$@" 2>/dev/null | sed 's/^/ours /'; }
q8() { "$build/bench/cpu_bench" "$model" -t "$threads" -r 1 -k q8 "$@" 2>/dev/null | sed 's/^/ours q8-/'; }
field() { awk -F'"' -v k="$1" '$2 == k { gsub(/[ :,]/, "", $3); print $3; exit }'; }  # from llama-bench's JSON, a key a line
peer_bench() { printf 'peer %s ' "$1"; shift; "$peer/llama-bench" -m "$model" -t "$threads" -fa 1 -r 1 -o json "$@" 2>/dev/null | field avg_ts; }

for _ in $(seq "$rounds"); do
    ours prefill512 >> "$raw"
    peer_bench prefill512 -p 512 -n 0 >> "$raw"
    ours decode1 >> "$raw"
    peer_bench decode1 -p 0 -n 128 >> "$raw"
    ours decode16 >> "$raw"
    "$peer/llama-batched-bench" -m "$model" -t "$threads" -fa 1 -npp 128 -ntg 128 -npl 16 -c 4352 2>/dev/null |
        awk -F'|' '$4 ~ /^ *16 *$/ { print "peer decode16", $9 + 0 }' >> "$raw"
    ours prefill4096 decode100 decode4000 >> "$raw"
    q8 decode100 decode4000 >> "$raw"
    "$build/bench/roofline" "$threads" >> "$raw"
done
/usr/bin/python3 "$here/start.py" "$model" "$threads" "$build/bin/weir-worker" "$peer/llama-bench" "$rounds" >> "$raw"
"$build/bench/kernels_bench" >> "$raw"
exec /usr/bin/python3 "$here/report.py" "$raw" "$build/bench/cpu.json" "$model" "$threads"
