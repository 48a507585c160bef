#!/bin/bash
# tests/gpu/run.sh does on the emulation what it will do on a GPU: builds, compares, measures, reports.
build=$(dirname "${WEIR_BIN:-build/bin}")
[ -x "$build/gpu_check" ] || { echo "no gpu_check in $build"; exit 77; }
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
WEIR_GPU_DRY=1 WEIR_GPU_BUILD=$build "$(dirname "$0")/run.sh" "$out" 150 || exit 1
grep -q ' checks passed$' "$out/results.txt" && grep -q '^tiny *decode' "$out/results.txt" || { echo "no report"; exit 1; }
