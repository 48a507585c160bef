#!/bin/bash
# Build the cpu target of docker/Dockerfile with buildah, on a base made by debootstrap, and run a batch over ssh inside it, with a
# /dev/shm of one megabyte.  Root only; needs buildah and debootstrap.  KEEP_BASE=FILE: a tar of a bare Debian 12, as in clean_root.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(id -u)" -eq 0 ] || { echo "needs root"; exit 77; }
for p in buildah debootstrap; do command -v "$p" >/dev/null || { echo "needs $p"; exit 77; }; done
work=$(mktemp -d "${TMPDIR:-/tmp}/weir-container.XXXXXX")
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot CONTAINERS_STORAGE_CONF=$work/storage.conf
printf '[storage]\ndriver = "vfs"\ngraphroot = "%s/graph"\nrunroot = "%s/run"\n' "$work" "$work" >"$work/storage.conf"
server=
cleanup() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    buildah rm --all >/dev/null 2>&1 || true
    rm -rf --one-file-system "$work"
}
trap cleanup EXIT

base=${KEEP_BASE-}
if [ -z "$base" ] || [ ! -f "$base" ]; then
    base=$work/base.tar
    KEEP_BASE=$base tests/clean_root.sh true
fi
c=$(buildah from scratch)
buildah add "$c" "$base" / >/dev/null
buildah commit --rm "$c" localhost/debian:bookworm >/dev/null
buildah bud --pull-never --build-arg BASE=localhost/debian:bookworm --target cpu -t localhost/weir -f docker/Dockerfile . >"$work/bud.log" 2>&1 ||
    { tail -n 30 "$work/bud.log"; exit 1; }

ssh-keygen -q -t ed25519 -N '' -f "$work/key"
mkdir "$work/models"
cp tests/reference/data/tiny/tiny-llama-Q8_0.gguf "$work/models/m.gguf"
c=$(buildah from --pull-never localhost/weir)
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
# 22 is inside the container; with buildah's chroot isolation there is one network, so another port is given
buildah run --user weir -v "$work/models:/models:ro" -e WEIR_MODEL=/models/m.gguf -e WEIR_FIRST_USER_KEY="$(cat "$work/key.pub")" \
    -e WEIR_SSH_PORT="$port" -e WEIR_METRICS_PORT=$((port + 1)) -e WEIR_GATEWAY_METRICS_PORT=$((port + 2)) "$c" \
    weir-entrypoint --workers 2 --threads 1 --kv-bytes 8M >"$work/serve.out" 2>"$work/serve.log" &
server=$!
for _ in $(seq 300); do
    grep -q '^ready' "$work/serve.out" && break
    kill -0 "$server" 2>/dev/null || { cat "$work/serve.log"; exit 1; }
    sleep 0.2
done
box() { ssh -F none -i "$work/key" -p "$port" -o UserKnownHostsFile="$work/known" -o StrictHostKeyChecking=accept-new -o LogLevel=ERROR user@127.0.0.1 "$@"; }
for i in $(seq 20); do echo "{\"prompt\": \"line $i\", \"max_tokens\": 5}"; done | box submit --name j
box wait j
[ "$(box results j | wc -l)" -eq 20 ]
buildah run --user weir "$c" weir status | head -n 3
echo "20 lines answered in a container"
