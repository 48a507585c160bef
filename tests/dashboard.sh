#!/bin/bash
# Grafana's dashboard against Grafana's own schema, by its Python package grafana-foundation-sdk, and compose.yml against what it names; without the
# package, and without a way to install it, that is said (77).
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$(mktemp -d "${TMPDIR:-/tmp}/weir-dashboard.XXXXXX")
trap 'rm -rf "$venv"' EXIT
python3 -m venv "$venv" >/dev/null 2>&1 && "$venv/bin/pip" install -q grafana-foundation-sdk pyyaml >"$venv/log" 2>&1 ||
    { echo "grafana-foundation-sdk cannot be installed"; exit 77; }
"$venv/bin/python" tests/dashboard.py
