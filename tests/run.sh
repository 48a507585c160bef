#!/bin/bash
# Run test programs and scripts, each with a time limit, and count.  Exit code 77 of a test means "skipped".
#
# usage: run.sh LOG_DIR TEST...        TEST_TIMEOUT_S: seconds a test may take (420: what takes a minute alone may take four beside others); TEST_JOBS: how many
# run at once (the CPUs).  Scripts start whole pools, but mostly wait for them: one beside another halves the time.
# TEST_BUDGET_S: what they may take all together.  The last line is "N passed, N failed, N skipped"; the exit code is 1 if any failed.
logs=$1
shift
mkdir -p "$logs"
passed=0 failed=0 skipped=0

run_one() {  # run_one TEST: log and exit code end up beside each other
    local log
    log=$logs/$(basename "$1").log
    local began=$SECONDS
    case $1 in
    *.py) timeout -k 5 "${TEST_TIMEOUT_S:-420}" /usr/bin/python3 "$1" >"$log" 2>&1 ;;
    *)    timeout -k 5 "${TEST_TIMEOUT_S:-420}" "$1" >"$log" 2>&1 ;;
    esac
    echo "$? $((SECONDS - began))" >"$log.rc"
}

for t in "$@"; do
    while [ "$(jobs -rp | wc -l)" -ge "${TEST_JOBS:-$(nproc)}" ]; do wait -n; done
    run_one "$t" &
done
wait

for t in "$@"; do
    log=$logs/$(basename "$t").log
    read -r rc seconds <"$log.rc"
    case $rc in
    0)  passed=$((passed + 1)) ;;
    77) skipped=$((skipped + 1)); echo "SKIP $t: $(tail -n 1 "$log")" ;;
    *)  failed=$((failed + 1)); echo "FAIL $t (exit $rc after $seconds s)"
        { grep -aE '^FAIL|^\[  FAILED|^(Assertion|[A-Za-z]*Error)|Sanitizer:|runtime error' "$log" | head -n 8; echo ...; tail -n 25 "$log"; } | sed 's/^/    /' ;;
    esac
done
[ "$SECONDS" -le "${TEST_BUDGET_S:-$SECONDS}" ] || { failed=$((failed + 1)); echo "FAIL all together: $SECONDS s, $TEST_BUDGET_S are allowed (tests/budgets)"; }
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
