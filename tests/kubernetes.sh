#!/bin/bash
# The manifests of docker/kubernetes against the API's own schemas, strictly: an unknown field is an error.  The schemas come from the Python
# package kubernetes-validate; without it, and without a way to install it, that is said (77).
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$(mktemp -d "${TMPDIR:-/tmp}/weir-kubernetes.XXXXXX")
trap 'rm -rf "$venv"' EXIT
python3 -m venv "$venv" >/dev/null 2>&1 && "$venv/bin/pip" install -q kubernetes-validate >"$venv/log" 2>&1 ||
    { echo "kubernetes-validate cannot be installed"; exit 77; }
for version in 1.27 1.37; do
    "$venv/bin/kubernetes-validate" --strict -k "$version" docker/kubernetes/*.yaml
done
sed 's/readinessProbe:/readynessProbe:/' docker/kubernetes/weir.yaml >"$venv/wrong.yaml"
if "$venv/bin/kubernetes-validate" --strict -k 1.37 "$venv/wrong.yaml" >/dev/null 2>&1; then
    echo "a wrong field is not noticed"
    exit 1
fi
echo "manifests: as the API's schemas of 1.27 and 1.37 want them"
