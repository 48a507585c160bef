#!/bin/bash
# Build the Debian packages, hold them against lintian, and go through their life in a fresh root, then under systemd (systemd.sh).  Root only;
# needs debootstrap.
# KEEP_BASE=FILE: as in clean_root.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${B:-build}
# The same programs as an older version: what is upgraded from.  weir-cuda is built where there is an nvcc.
make ${CUDA:+CUDA=$CUDA} B="$build" all "$build/libweir.a"
CUDA=0 tools/deb.sh "$build" 0.0.9
old=$(mktemp -d "${TMPDIR:-/tmp}/weir-old.XXXXXX")
trap 'rm -rf "$old"' EXIT
cp "$build"/deb/weir_0.0.9_*.deb "$old"
make ${CUDA:+CUDA=$CUDA} B="$build" deb
if command -v lintian >/dev/null; then
    for deb in "$build"/deb/*.deb; do
        lintian --allow-root --fail-on error "$deb" >"$deb.lintian" || { cat "$deb.lintian"; exit 1; }
        echo "lintian: $(basename "$deb"): no error, $(grep -c '^W:' "$deb.lintian") warnings"
    done
fi
deb=$(ls "$build"/deb/weir_*.deb)
old_deb=$(ls "$old"/weir_*.deb)
CARRY="$deb $old_deb tests/reference/data/tiny/tiny-llama-Q8_0.gguf" tests/clean_root.sh \
    "cd /root && bash weir/tests/package_inside.sh carried/$(basename "$old_deb") carried/$(basename "$deb") carried/tiny-llama-Q8_0.gguf"
tests/systemd.sh "$old_deb" "$deb" tests/reference/data/tiny/tiny-llama-Q8_0.gguf || { [ $? -eq 77 ] && echo "package: not tried under systemd"; }
