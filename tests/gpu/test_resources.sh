#!/bin/bash
# The kernels of the plug-in that was built take no more registers than tests/gpu/resources.txt says, and spill nothing.
build=$(dirname "${WEIR_BIN:-build/bin}")
[ -f "$build/bin/libweir_cuda.so" ] || { echo "no CUDA plug-in in $build"; exit 77; }
exec "$(dirname "$0")/resources.sh" "$build"
