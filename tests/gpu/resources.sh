#!/bin/bash
# What every kernel takes of a multiprocessor, as ptxas said when it was built, against tests/gpu/resources.txt.
#
# usage: resources.sh BUILD_DIR            fails on spills, on local memory, and where a kernel takes more registers than the
#                                          table says or fewer of its blocks fit a multiprocessor; names what changed
#        resources.sh BUILD_DIR --update   write the table anew
#
# Dynamic shared memory depends on the launch and is not in it; blocks are what registers alone allow (65536 of them, in
# units of 256 a warp; 2048 threads and 32 blocks, on sm_86 1536 and 16, on sm_89 1536 and 24).
# The table has all architectures of a release; what was built is looked up in it.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$1
table=${RESOURCES_TABLE:-tests/gpu/resources.txt}

threads_of() { # the launch bounds, by name
    case $1 in
        gemm_* | attend_mma_*) echo 128 ;;
        write_kv | gate_rows | norm_rows) echo 128 ;;
        *) echo 256 ;;
    esac
}

measured() {
    cat "$build"/pic/kernels/cuda/*.ptxas | awk '
        /Compiling entry function/ { match($0, /function .[^'"'"']*/); name = substr($0, RSTART + 10, RLENGTH - 10)
                                     match($0, /sm_[0-9a-z]*/); arch = substr($0, RSTART, RLENGTH) }
        /stack frame/              { stack = $1;
                                     spills = $5 + $9 }
        /Used [0-9]+ registers/    { smem = 0; for (i = 1; i <= NF; i++) { if ($i == "Used") registers = $(i + 1)
                                         if ($i ~ /^smem/) smem = $(i - 2) }
                                     match(name, /^_Z[0-9]+/); letters = substr(name, 3, RLENGTH - 2); name = substr(name, RLENGTH + 1, letters)
                                     print name, arch, registers, stack, spills, smem }' |
    while read -r name arch registers stack spills smem; do
        threads=$(threads_of "$name")
        blocks=$(( 65536 / ((registers * 32 + 255) / 256 * 256 * threads / 32) ))
        case $arch in sm_86) most=16 fit=1536 ;; sm_89) most=24 fit=1536 ;; *) most=32 fit=2048 ;; esac
        [ $((fit / threads)) -lt "$most" ] && most=$((fit / threads))
        [ "$blocks" -gt "$most" ] && blocks=$most
        printf '%-24s %-6s %8s %9s %7s %7s %7s %7s\n' "$name" "$arch" "$threads" "$registers" "$blocks" "$smem" "$stack" "$spills"
    done | sort
}

heading=$(printf '%-24s %-6s %8s %9s %7s %7s %7s %7s' kernel arch threads registers blocks smem stack spills)
now=$(measured)
[ -n "$now" ] || { echo "resources: nothing was built in $build"; exit 1; }
if [ "${2:-}" = --update ]; then
    printf '%s\n%s\n' "$heading" "$now" >"$table"
    echo "resources: $(wc -l <<<"$now") kernels written to $table"
    exit 0
fi
awk -v table="$table" '
    FILENAME == table { if (FNR > 1) { registers[$1 " " $2] = $4; blocks[$1 " " $2] = $5 } next }
    { key = $1 " " $2; n++
      if ($7 > 0 || $8 > 0)        { print key ": local memory (" $7 " bytes of stack, " $8 " of spills)"; bad = 1 }
      if (!(key in registers))     { print key ": not in the table"; bad = 1; next }
      if ($5 < blocks[key])        { print key ": " $5 " blocks fit, the table has " blocks[key]; bad = 1 }
      else if ($4 > registers[key] + 8) { print key ": " $4 " registers, the table has " registers[key]; bad = 1 } }
    END { if (bad) { print "resources: worse than " table " (after a wanted change: resources.sh BUILD_DIR --update)"; exit 1 }
          print "resources: " n " kernels, none worse" }' "$table" <(printf '%s\n' "$now")
