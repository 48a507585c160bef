#!/bin/sh
# Install the Debian packages that Weir needs and that are missing.  Does nothing, and needs no rights, when all are there.
#
# usage: deps.sh build|demo|test...      groups add up: "test" includes "build"
set -eu

build="build-essential pkg-config libzmq3-dev libmsgpack-dev libinih-dev libxxhash-dev libjansson-dev libssh-dev
       libsqlite3-dev libmicrohttpd-dev zlib1g-dev libzstd-dev"
demo="python3 openssh-client"
test="$demo procps python3-pip python3-zmq python3-msgpack libcmocka-dev tmux"
long="python3-paramiko python3-asyncssh clang libclang-rt-14-dev valgrind gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user prometheus debootstrap lintian buildah slurmctld slurmd slurm-client munge python3-venv"

wanted=
for group in "$@"; do
    case $group in
    build) wanted="$wanted $build" ;;
    demo)  wanted="$wanted $build $demo" ;;
    test)  wanted="$wanted $build $test" ;;
    long)  wanted="$wanted $build $test $long" ;;
    *)     echo "deps.sh: unknown group '$group' (build, demo, test, long)" >&2; exit 2 ;;
    esac
done

missing=
for p in $wanted; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'install ok installed' || missing="$missing $p"
done
[ -n "$missing" ] || exit 0

if ! command -v apt-get >/dev/null; then
    echo "deps.sh: not a Debian system; please install what matches:$missing" >&2
    exit 1
fi
if [ "$(id -u)" -eq 0 ]; then
    as_root=
elif command -v sudo >/dev/null; then
    as_root=sudo
else
    echo "deps.sh: run this as root, or install sudo:  apt-get install$missing" >&2
    exit 1
fi

echo "installing:$missing"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# shellcheck disable=SC2086   # words are wanted
if ! { $as_root apt-get update && $as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y --no-install-recommends $missing; } >"$log" 2>&1; then
    tail -n 30 "$log" >&2
    echo "deps.sh: installing failed" >&2
    exit 1
fi
