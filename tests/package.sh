#!/bin/bash
# Build the Debian packages, hold them against lintian, and go through their life in a fresh root.  Root only; needs debootstrap.
# KEEP_BASE=FILE: as in clean_root.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
make CUDA=0 B="${B:-build}" deb
deb=$(ls "${B:-build}"/deb/weir_*.deb)
if command -v lintian >/dev/null; then
    lintian --allow-root --fail-on error "$deb" >"$deb.lintian" || { cat "$deb.lintian"; exit 1; }
fi
CARRY="$deb tests/reference/data/tiny/tiny-llama-Q8_0.gguf" \
    exec tests/clean_root.sh "cd /root && bash weir/tests/package_inside.sh /root/carried/$(basename "$deb") /root/carried/tiny-llama-Q8_0.gguf"
