#!/bin/bash
# Build every fuzz target with libFuzzer and both sanitizers and run it over its corpus, as many at once as there are CPUs.  The time is shared: a
# third of the targets, in turn by commit, get nearly all of it, the others a few seconds over what is known.  Ends with a table of executions.
#
# usage: fuzz/run.sh SECONDS             of all targets together, one after another
#        fuzz/run.sh SECONDS TARGET...   of each of these
#        fuzz/run.sh each SECONDS        of each of all
#      FUZZ_SEED: another order of inputs (1).  FUZZ_TURN: whose turn it is (the number of commits)
#      corpus of TARGET: tests/fuzz/corpus/TARGET (new finds stay in build/fuzz)
cd "$(dirname "$0")/../.." || exit 1
equal=0
[ "$1" = each ] && equal=1 && shift
seconds=$1
shift
[ $# -gt 0 ] && equal=1
targets=("$@")
[ ${#targets[@]} -gt 0 ] || for source in tests/fuzz/fuzz_*.c; do t=${source##*/fuzz_}; targets+=("${t%.c}"); done
few=2
turn=$((${FUZZ_TURN:-$(git rev-list --count HEAD 2>/dev/null || echo 0)} % 3))

time_of() {  # time_of NUMBER OF A TARGET
    if [ "$equal" -eq 1 ]; then
        echo "$seconds"
    elif [ $(($1 % 3)) -eq "$turn" ]; then
        echo $(((seconds - few * (${#targets[@]} - n_turn)) / n_turn))
    else
        echo $few
    fi
}

# shellcheck disable=SC2046   # words are wanted
make -j"$(nproc)" CC=clang B=build/fuzz SAN=fuzzer-no-link,address,undefined \
    $(printf 'build/fuzz/tests/fuzz/fuzz_%s ' "${targets[@]}") || exit 1
n_turn=0 failed=0

run_one() {  # run_one TARGET SECONDS: its line of the table, or what it found, in build/fuzz/TARGET.said
    local t=$1 s=$2
    mkdir -p "build/fuzz/corpus/$t" "build/fuzz/found/$t"
    local corpus=("build/fuzz/corpus/$t")
    [ -d "tests/fuzz/corpus/$t" ] && corpus+=("tests/fuzz/corpus/$t")
    if "build/fuzz/tests/fuzz/fuzz_$t" -seed="${FUZZ_SEED:-1}" -max_total_time="$s" -rss_limit_mb=4096 -timeout=10 -print_final_stats=1 \
        -artifact_prefix="build/fuzz/found/$t/" "${corpus[@]}" >"build/fuzz/$t.log" 2>&1; then
        printf 'ok    %-16s %4d s  %12d executions\n' "$t" "$s" "$(sed -n 's/^stat::number_of_executed_units: *//p' "build/fuzz/$t.log")"
    else
        echo "FAIL  $t"
        tail -n 40 "build/fuzz/$t.log"
    fi >"build/fuzz/$t.said"
}

for ((i = 0; i < ${#targets[@]}; i++)); do [ $((i % 3)) -eq "$turn" ] && n_turn=$((n_turn + 1)); done
for ((i = 0; i < ${#targets[@]}; i++)); do
    while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n; done
    run_one "${targets[i]}" "$(time_of "$i")" &
done
wait
for t in "${targets[@]}"; do
    cat "build/fuzz/$t.said"
    head -n 1 "build/fuzz/$t.said" | grep -q '^ok ' || failed=1
done
exit $failed
