#!/bin/bash
# The Debian package under a real systemd: process 1 of namespaces of its own, in a fresh root, with a cgroup tree below one of this machine.
# Root only; needs debootstrap and a cgroup2 that may be written.
#
# usage: systemd.sh OLD.deb NEW.deb MODEL.gguf      run by package.sh
# KEEP_BASE=FILE: as in clean_root.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
old=$(realpath "$1") new=$(realpath "$2") model=$(realpath "$3")
[ "$(id -u)" -eq 0 ] || { echo "needs root"; exit 77; }
for p in debootstrap unshare nsenter; do command -v "$p" >/dev/null || { echo "needs $p"; exit 77; }; done
tree=$(findmnt -n -l -t cgroup2 -o TARGET | head -n 1)
work=$(mktemp -d "${TMPDIR:-/tmp}/weir-systemd.XXXXXX")
group=$tree/$(basename "$work")
[ -n "$tree" ] && mkdir "$group" 2>/dev/null || { rmdir "$work"; echo "needs a cgroup2 that may be written"; exit 77; }
outside=
cleanup() {
    [ -z "$outside" ] || { kill -KILL "$outside" 2>/dev/null && wait "$outside" 2>/dev/null; } || true
    for _ in $(seq 50); do
        find "$group" -depth -type d -exec rmdir {} + 2>/dev/null && break
        sleep 0.2
    done
    rm -rf --one-file-system "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

base=${KEEP_BASE:-$work/base.tar}
[ -f "$base" ] || KEEP_BASE=$base tests/clean_root.sh true
root=$work/root
mkdir "$root"
tar xf "$base" -C "$root"
chmod 755 "$root"
cp "$old" "$root/root/old.deb"
cp "$new" "$root/root/new.deb"
cp tests/systemd_inside.sh "$root/root/"
install -D -m 644 "$model" "$root/srv/models/m.gguf"
mount -t proc proc "$root/proc"    # some packages look; what they need is installed here, where there is a network
# shellcheck disable=SC2016   # the inner shell's
chroot "$root" sh -c 'export DEBIAN_FRONTEND=noninteractive
    apt-get update && apt-get install -y --no-install-recommends systemd-sysv dbus openssh-client procps curl &&
    apt-get install -y --no-install-recommends $(dpkg-deb -f /root/new.deb Depends | sed "s/([^)]*)//g; s/,/ /g")' >"$work/apt.log" 2>&1 ||
    { tail -n 20 "$work/apt.log"; umount "$root/proc"; exit 1; }
umount "$root/proc"

# shellcheck disable=SC2016   # the inner shell's
unshare --fork --kill-child=KILL --pid --mount --uts --ipc --net bash -ec '
    root=$1 group=$2
    echo $$ >"$group/cgroup.procs"
    exec unshare --cgroup bash -ec "
        root=$root
        mount --make-rprivate /
        hostname weir-test
        ip link set lo up
        mount --bind \$root \$root
        mount -t proc proc \$root/proc
        mount -t sysfs -o ro sys \$root/sys
        mount -t tmpfs -o mode=755 dev \$root/dev
        for d in null zero full random urandom tty; do touch \$root/dev/\$d; mount --bind /dev/\$d \$root/dev/\$d; done
        mkdir -p \$root/dev/shm \$root/dev/pts \$root/outside
        mount -t tmpfs shm \$root/dev/shm
        mount -t devpts -o newinstance,ptmxmode=666 devpts \$root/dev/pts
        ln -sf pts/ptmx \$root/dev/ptmx
        mount -t tmpfs run \$root/run
        mount -t cgroup2 none \$root/sys/fs/cgroup
        cd \$root
        pivot_root . outside
        umount -l /outside
        exec env -i container=weir-test /lib/systemd/systemd --system --unit=multi-user.target --show-status=yes"
' - "$root" "$group" >"$work/console.log" 2>&1 </dev/null &
outside=$!
one=
for _ in $(seq 300); do
    one=$(pgrep -P "$outside" || true)
    [ -z "$one" ] || [ "$(cat "/proc/$one/comm" 2>/dev/null)" != systemd ] || [ ! -e "/proc/$one/root/run/systemd/private" ] || break
    kill -0 "$outside" 2>/dev/null || { tail -n 20 "$work/console.log"; outside=; echo "systemd does not start here"; exit 77; }
    sleep 0.2
done
enter() { nsenter -t "$one" -m -u -i -n -p -C env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"; }
enter bash /root/systemd_inside.sh || { tail -n 20 "$work/console.log"; exit 1; }
