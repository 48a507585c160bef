#!/bin/sh
# Run each test program with a time limit (TEST_TIMEOUT_S, 120).  Exit code 77 of a test means "skipped".
passed=0 failed=0 skipped=0
for t in "$@"; do
    timeout "${TEST_TIMEOUT_S:-120}" "$t" >"$t.log" 2>&1
    case $? in
        0)  passed=$((passed + 1)) ;;
        77) skipped=$((skipped + 1)); echo "SKIP $t: $(tail -n 1 "$t.log")" ;;
        *)  failed=$((failed + 1)); echo "FAIL $t"; tail -n 40 "$t.log" ;;
    esac
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
