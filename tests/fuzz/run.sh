#!/bin/bash
# Build every fuzz target with libFuzzer and both sanitizers and run each for some seconds over its corpus.
#
# usage: fuzz/run.sh SECONDS [TARGET...]      FUZZ_SEED: another order of inputs (1)
#      corpus of TARGET: tests/fuzz/corpus/TARGET (new finds stay in build/fuzz)
cd "$(dirname "$0")/../.." || exit 1
seconds=$1
shift
targets=("$@")
[ ${#targets[@]} -gt 0 ] || for source in tests/fuzz/fuzz_*.c; do t=${source##*/fuzz_}; targets+=("${t%.c}"); done

# shellcheck disable=SC2046   # words are wanted
make -j"$(nproc)" CC=clang B=build/fuzz SAN=fuzzer-no-link,address,undefined \
    $(printf 'build/fuzz/tests/fuzz/fuzz_%s ' "${targets[@]}") || exit 1
failed=0
for t in "${targets[@]}"; do
    mkdir -p "build/fuzz/corpus/$t" "build/fuzz/found/$t"
    corpus=("build/fuzz/corpus/$t")
    [ -d "tests/fuzz/corpus/$t" ] && corpus+=("tests/fuzz/corpus/$t")
    if "build/fuzz/tests/fuzz/fuzz_$t" -seed="${FUZZ_SEED:-1}" -max_total_time="$seconds" -rss_limit_mb=4096 -timeout=10 -print_final_stats=1 \
        -artifact_prefix="build/fuzz/found/$t/" "${corpus[@]}" >"build/fuzz/$t.log" 2>&1; then
        echo "ok    $t: $(sed -n 's/^stat::number_of_executed_units: *//p' "build/fuzz/$t.log") executions"
    else
        failed=1
        echo "FAIL  $t"
        tail -n 40 "build/fuzz/$t.log"
    fi
done
exit $failed
