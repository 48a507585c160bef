#!/bin/sh
# Build llama.cpp, the peer that bench/compare.sh measures: from the source inside the Python package llama-cpp-python, for this
# very processor, into $WEIR_PEER_DIR.  Ten minutes on two cores.  Needs cmake, ninja, a C++ compiler, pip.
set -eu
version=0.3.36
cd "$(mkdir -p "${WEIR_PEER_DIR:?}" && echo "$WEIR_PEER_DIR")"
[ -d "llama_cpp_python-$version" ] || {
    python3 -m pip download -q --no-deps --no-binary :all: -d . "llama-cpp-python==$version"
    tar xzf "llama_cpp_python-$version.tar.gz"
}
cmake -S "llama_cpp_python-$version/vendor/llama.cpp" -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
    -DBUILD_SHARED_LIBS=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_WEBUI=OFF >/dev/null
ninja -C build llama-bench llama-batched-bench
