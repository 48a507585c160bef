#!/bin/bash
# The kernels of the plug-in that was built take no more registers than tests/gpu/resources.txt says, and spill nothing.  And the
# check finds what it is for: tables in which a kernel took fewer registers, or more of its blocks fit, or one is missing.
build=$(dirname "${WEIR_BIN:-build/bin}")
[ -f "$build/bin/libweir_cuda.so" ] || { echo "no CUDA plug-in in $build"; exit 77; }
here=$(dirname "$0")
"$here/resources.sh" "$build" || exit 1

other=$(mktemp)
trap 'rm -f "$other"' EXIT
planted() { # planted WORDS AWK: with this change of the table the check must fail and say so
    awk "$2" "$here/resources.txt" >"$other"
    RESOURCES_TABLE=$other "$here/resources.sh" "$build" >"$other.out" && { echo "not found: $1"; exit 1; }
    grep -q "$1" "$other.out" || { cat "$other.out"; exit 1; }
    rm -f "$other.out"
}
planted 'gemm_Q8_0 sm_80: [0-9]* registers, the table has' '$1 == "gemm_Q8_0" { $4 -= 20 } { print }'
planted 'write_kv sm_90: [0-9]* blocks fit, the table has' '$1 == "write_kv" { $5 += 1 } { print }'
planted 'embed sm_80: not in the table' '$1 != "embed" { print }'
