#!/bin/bash
# The image of docker/Dockerfile, built with buildah on a base made by debootstrap and slimmed as Debian's own slim image is, and run as people
# run it: as an unprivileged user, its root read-only, /dev/shm of 64 KB, port 22, the state on a volume.  Root only; needs buildah and debootstrap.
#
# KEEP_SLIM=FILE: keep the base as a tar there, and start from it the next time.
# Then in namespaces of its own: a batch over ssh, health check, a clean stop by SIGTERM to process 1, host keys that stay, keys by variable
# and by volume, the target with a model inside, and the cuda target as far as its base can be had here.
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(id -u)" -eq 0 ] || { echo "needs root"; exit 77; }
for p in buildah debootstrap unshare nsenter setpriv; do command -v "$p" >/dev/null || { echo "needs $p"; exit 77; }; done
SIZE_MAX_MB=120
work=$(mktemp -d "${TMPDIR:-/tmp}/weir-container.XXXXXX")
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot CONTAINERS_STORAGE_CONF=$work/storage.conf
printf '[storage]\ndriver = "vfs"\ngraphroot = "%s/graph"\nrunroot = "%s/run"\n' "$work" "$work" >"$work/storage.conf"
inside=
cleanup() {
    [ -z "$inside" ] || kill -KILL "$inside" 2>/dev/null || true
    buildah umount --all >/dev/null 2>&1 || true
    buildah rm --all >/dev/null 2>&1 || true
    rm -rf --one-file-system "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM
say() { echo "-- $*"; }
fail() { echo "$*"; [ ! -f "$work/serve.log" ] || tail -n 30 "$work/serve.log"; exit 1; }

# Debian's minbase without documentation, translations and lists of packages: what Debian's slim image leaves out.
slim_base() { # slim_base FILE.tar
    local root=$work/base sources mirror
    sources=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 'Origin: Debian' | sort -u)
    mirror=$(echo "$sources" | sed -n 's/ bookworm main$//p' | sed -n 1p)
    debootstrap --variant=minbase bookworm "$root" "$mirror" >/dev/null
    rm -rf "$root"/etc/apt/sources.list* "$root"/usr/share/{doc,man,locale,info} "$root"/var/cache/apt "$root"/var/lib/apt/lists "$root"/var/log
    mkdir -p "$root"/var/cache/apt/archives/partial "$root"/var/lib/apt/lists/partial "$root"/var/log
    echo "$sources" | sed 's/^/deb /' >"$root/etc/apt/sources.list"
    cp -a /etc/apt/apt.conf.d/. "$root/etc/apt/apt.conf.d/"
    cp -L /etc/resolv.conf "$root/etc/resolv.conf"
    cp -L /etc/hosts "$root/etc/hosts"
    mkdir -p "$root/etc/ssl/certs"
    cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
    printf 'path-exclude /usr/share/doc/*\npath-exclude /usr/share/man/*\npath-exclude /usr/share/locale/*\n' >"$root/etc/dpkg/dpkg.cfg.d/slim"
    tar cf "$1" -C "$root" .
    rm -rf --one-file-system "$root"
}

bud() { # bud TARGET TAG ARG...
    local target=$1 tag=$2
    shift 2
    buildah bud --pull-never --format docker --layers --build-arg BASE="${runtime_base:-localhost/debian:bookworm-slim}" \
        --build-arg BUILD_BASE=localhost/debian:bookworm-slim --target "$target" -t "localhost/$tag" "$@" \
        -f docker/Dockerfile . >"$work/bud.log" 2>&1 || { tail -n 30 "$work/bud.log"; exit 1; }
}

# Run an image's file system as a container engine does: read-only, with processes, mounts and network of its own, without a capability, in
# which even port 22 is free.  state, models and keys are volumes.  $inside is its process 1 as seen from here.
start() { # start IMAGE VARIABLE=VALUE... -- OPTION OF WEIR SERVE...
    local image=$1 c root env=()
    shift
    mapfile -t env < <(buildah inspect --type image "localhost/$image" | python3 -c 'import json, sys
print("\n".join(json.load(sys.stdin)["Docker"]["config"]["Env"]))')
    while [ "$1" != -- ]; do env+=("$1"); shift; done
    shift
    c=$(buildah from --pull-never "localhost/$image")
    root=$(buildah mount "$c")
    : >"$work/serve.out"
    : >"$work/serve.log"
    # shellcheck disable=SC2016   # the inner shell's variables
    unshare --fork --kill-child=TERM --pid --mount --net --uts --ipc bash -ec '
        root=$1 work=$2
        shift 2
        ip link set lo up
        echo 0 >/proc/sys/net/ipv4/ip_unprivileged_port_start
        mount --bind "$root" "$root"
        mount -o remount,bind,ro "$root"
        mount -t proc proc "$root/proc"
        mount -t tmpfs -o mode=755 dev "$root/dev"
        for d in null zero full random urandom; do touch "$root/dev/$d"; mount --bind "/dev/$d" "$root/dev/$d"; done
        mkdir "$root/dev/shm"
        mount -t tmpfs -o size=64k,mode=1777 shm "$root/dev/shm"
        mount -t tmpfs -o uid=990,gid=990,mode=0750 run "$root/run/weir"
        mount --bind "$work/state" "$root/state"
        [ ! -e "$work/models/m.gguf" ] || mount --bind "$work/models" "$root/models"
        mount --bind "$work/keys" "$root/keys"
        exec chroot "$root" /usr/bin/setpriv --reuid=990 --regid=990 --clear-groups --no-new-privs --bounding-set=-all \
            /usr/bin/env -i "$@"' - "$root" "$work" "${env[@]}" /usr/bin/weir-entrypoint "$@" >"$work/serve.out" 2>"$work/serve.log" &
    unshare_pid=$!
    for _ in $(seq 900); do
        grep -q '^ready' "$work/serve.out" && break
        kill -0 "$unshare_pid" 2>/dev/null || fail "the container ended"
        sleep 0.1
    done
    grep -q '^ready' "$work/serve.out" || fail "the container did not get ready"
    inside=$(pgrep -P "$unshare_pid")
}

enter() { # enter COMMAND...: in the container, as its user
    nsenter -t "$inside" -m -p -n -r -S 990 -G 990 /usr/bin/env WEIR_STATE_DIR=/state WEIR_RUNTIME_DIR=/run/weir "$@"
}

stop() { # SIGTERM to process 1: it has to end with 0
    local code=0
    kill -TERM "$inside"
    wait "$unshare_pid" || code=$?
    inside=
    [ "$code" -eq 0 ] || fail "exit code $code after SIGTERM"
}

box() { # box KEY COMMAND...
    local key=$1
    shift
    nsenter -t "$inside" -n ssh -F none -i "$work/$key" -o IdentitiesOnly=yes -p 22 -o UserKnownHostsFile="$work/known" \
        -o StrictHostKeyChecking="${STRICT:-accept-new}" -o LogLevel=ERROR user@127.0.0.1 "$@"
}

batch() { # batch KEY NAME: 20 lines over ssh
    for i in $(seq 20); do echo "{\"prompt\": \"line $i\", \"max_tokens\": 5}"; done | box "$1" submit --name "$2"
    box "$1" wait "$2"
    [ "$(box "$1" results "$2" | wc -l)" -eq 20 ] || fail "not 20 answers"
}

say "the base"
base=${KEEP_SLIM-}
[ -n "$base" ] || base=$work/base.tar
[ -f "$base" ] || slim_base "$base"
c=$(buildah from scratch)
buildah add "$c" "$base" / >/dev/null
buildah commit --rm "$c" localhost/debian:bookworm-slim >/dev/null

say "the cpu target"
bud cpu weir
c=$(buildah from --pull-never localhost/weir)
mb=$(du -s --apparent-size --block-size=1000000 "$(buildah mount "$c")" | cut -f1)
base_mb=$(tar tvf "$base" | awk '{ n += $3 } END { printf "%d", n / 1e6 }')
echo "image $mb MB, of them base $base_mb MB"
[ "$mb" -lt "$SIZE_MAX_MB" ] || fail "larger than $SIZE_MAX_MB MB"
buildah inspect --type image localhost/weir | python3 -c '
import json, sys
c = json.load(sys.stdin)["Docker"]["config"]
assert c["User"] == "weir" and c["Entrypoint"] == ["/usr/bin/weir-entrypoint"] and c["StopSignal"] in ("SIGTERM", "15"), c
assert c["Healthcheck"]["Test"] == ["CMD", "/usr/bin/weir", "status", "--wait-ready", "1"], c["Healthcheck"]
assert all(c["Labels"]["org.opencontainers.image." + k] for k in ("title", "description", "licenses", "version")), c["Labels"]
assert set(c["ExposedPorts"]) == {"22/tcp", "9464/tcp", "9465/tcp"} and "/state" in c["Volumes"], c'
for k in key ann; do ssh-keygen -q -t ed25519 -N '' -f "$work/$k"; done
mkdir "$work/models" "$work/keys" "$work/state"
chown 990:990 "$work/state"
chmod 755 "$work" "$work/models" "$work/keys"
cp tests/reference/data/tiny/tiny-llama-Q8_0.gguf "$work/models/m.gguf"
cp "$work/ann.pub" "$work/keys/ann.pub"

say "read-only root, /dev/shm of 64 KB, port 22, a key by variable and one by volume"
small=(--workers 2 --threads 1 --kv-bytes 8M --host-store-bytes 32M)
start weir WEIR_MODEL=/models/m.gguf WEIR_FIRST_USER_KEY="$(cat "$work/key.pub")" -- "${small[@]}"
[ "$(nsenter -t "$inside" -m -r /usr/bin/df --output=size /dev/shm 2>/dev/null | tail -n 1)" -eq 64 ] || fail "/dev/shm is not of 64 KB"
! nsenter -t "$inside" -m -r /usr/bin/touch /usr/x 2>/dev/null || fail "the root can be written"
batch key j
[ "$(box ann whoami | head -n 1 | grep -c ann)" -eq 1 ] || fail "the key of the volume does not let in"
enter /usr/bin/weir status --wait-ready 1 >/dev/null || fail "the health check fails"
nsenter -t "$inside" -n curl -sf http://127.0.0.1:9464/readyz >/dev/null || fail "no /readyz"

if command -v prometheus >/dev/null; then
    say "Prometheus beside it, as compose.yml has it: its files as they are, the services by their names"
    mkdir "$work/prometheus"
    echo "127.0.0.1 localhost weir prometheus grafana" >"$work/hosts"
    # shellcheck disable=SC2016   # the inner shell's
    nsenter -t "$inside" -n unshare --mount bash -ec 'mount --bind "$1/hosts" /etc/hosts
        exec prometheus --config.file="$2/prometheus.yml" --storage.tsdb.path="$1/prometheus" --web.listen-address=127.0.0.1:9090' \
        - "$work" "$PWD/docker/prometheus" >"$work/prometheus.log" 2>&1 &
    prometheus=$!
    targets_up() {
        nsenter -t "$inside" -n curl -sf 'http://127.0.0.1:9090/api/v1/query?query=sum(up)' | grep -q '"2"'
    }
    for _ in $(seq 300); do targets_up && break; sleep 0.2; done
    up=0
    targets_up || up=$?
    kill "$prometheus"
    wait "$prometheus" || true
    [ "$up" -eq 0 ] || { tail -n 5 "$work/prometheus.log"; fail "Prometheus does not see both"; }
fi

say "SIGTERM stops it; job, users and host keys stay"
stop
! enter /usr/bin/true 2>/dev/null
start weir WEIR_MODEL=/models/m.gguf WEIR_FIRST_USER_KEY="$(cat "$work/key.pub")" -- "${small[@]}"
[ "$(STRICT=yes box key results j | wc -l)" -eq 20 ] || fail "the job or the host key is another one"
stop

say "a target with a model inside"
rm "$work/models/m.gguf"
bud model weir-model --build-arg MODEL=tests/reference/data/tiny/tiny-llama-Q8_0.gguf
start weir-model -- "${small[@]}"
batch ann inside
stop

say "the cuda target"
args=() # the stages with this base; with the toolkit, the plug-in is built for one device, and the base has CUDA's runtime libraries
if [ -n "${TRY_NVCC-}" ]; then
    toolkit=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")
    args=(--build-arg CUDA=1 --build-arg CUDA_ARCHS=90 --build-arg NVCC="$toolkit/bin/nvcc" --volume "$toolkit:$toolkit:ro")
    runtime_base=localhost/cuda-runtime
    mkdir -p "$work/runtime/usr/local/cuda/lib64" "$work/runtime/etc/ld.so.conf.d"
    cp -L "$toolkit"/lib64/lib{cudart,cublas,cublasLt}.so.[0-9]* "$work/runtime/usr/local/cuda/lib64/"
    echo /usr/local/cuda/lib64 >"$work/runtime/etc/ld.so.conf.d/cuda.conf"
    c=$(buildah from --pull-never localhost/debian:bookworm-slim)
    buildah add "$c" "$work/runtime" / >/dev/null
    buildah run "$c" ldconfig
    buildah commit --rm "$c" "$runtime_base" >/dev/null
    rm -r "$work/runtime"
    no_gpu="there is no CUDA driver here"
else
    args=(--build-arg CUDA=0)
    no_gpu="libweir_cuda.so is not beside this program"
fi
bud cuda weir-cuda "${args[@]}"
buildah inspect --type image localhost/weir-cuda | grep -q 'NVIDIA_VISIBLE_DEVICES=all' || fail "no NVIDIA_VISIBLE_DEVICES"
if [ -n "${TRY_NVCC-}" ]; then
    c=$(buildah from --pull-never localhost/weir-cuda)
    [ -f "$(buildah mount "$c")/usr/bin/libweir_cuda.so" ] || fail "no plug-in in the image"
fi
cp tests/reference/data/tiny/tiny-llama-Q8_0.gguf "$work/models/m.gguf"
! (start weir-cuda WEIR_MODEL=/models/m.gguf -- "${small[@]}" --device cuda) >"$work/no_gpu.log" 2>&1 || fail "a GPU that is not there"
grep -q "$no_gpu" "$work/no_gpu.log" || { cat "$work/no_gpu.log"; fail "it does not say why there is no GPU"; }
grep "$no_gpu" "$work/no_gpu.log" | tail -n 1
start weir-cuda WEIR_MODEL=/models/m.gguf WEIR_DEVICE=cpu -- "${small[@]}"
batch ann cpu
stop
echo "container: all held, image of $mb MB"
