#!/bin/bash
# Every unit, kernel, reference and integration test against one build.
#
# usage: all.sh BUILD_DIR [plain | SCRIPT...]      plain: only the programs that need no pool and no emulation; scripts: those
# programs, and of the scripts these
# Tests find the programs by WEIR_BIN and the models by WEIR_TEST_MODEL and WEIR_TEST_MODEL_2.
cd "$(dirname "$0")/.." || exit 1
build=$1
export WEIR_BIN=$PWD/$build/bin
: "${WEIR_TEST_MODEL:=$(tools/fetch-model.sh smollm2)}"
: "${WEIR_TEST_MODEL_2:=$(tools/fetch-model.sh gemma3)}"
export WEIR_TEST_MODEL WEIR_TEST_MODEL_2

programs=()
for source in tests/unit/test_*.c tests/kernels/test_*.c tests/reference/test_*.c; do
    [ -f "$source" ] && programs+=("$build/${source%.c}")
done
export WEIR_BUILD=$build
shift
[ "${1-}" = plain ] && shift && exec tests/run.sh "$build/log" "${programs[@]}"
[ $# -gt 0 ] && exec tests/run.sh "$build/log" "${programs[@]}" "$@"
for source in tests/emu/test_*.c tests/emu/test_*.cc; do # the CUDA backend, on an emulation
    program=$build/${source%.*}
    [ -x "$program" ] && programs+=("$program")
done
scripts=()
for script in tests/integration/test_*.sh tests/integration/test_*.py tests/gpu/test_*.sh; do
    [ -f "$script" ] && scripts+=("$script")
done
TEST_BUDGET_S=$(sed -n 's/^tests  *\([0-9]*\)$/\1/p' tests/budgets)
export TEST_BUDGET_S
exec tests/run.sh "$build/log" "${programs[@]}" tests/sim/run "${scripts[@]}"
