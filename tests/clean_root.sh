#!/bin/bash
# Do the README's two commands work on a fresh Debian 12 that has only git, make and Python 3's pip?
# Makes such a root with debootstrap, clones this repository into it and runs them there.  Root only; needs debootstrap.
#
# usage: clean_root.sh [COMMAND...]      default: make demo && make test
# CARRY="FILE...": copied to /root/carried.
# KEEP_BASE=FILE: keep the bare root as a tar file there, and start from it the next time.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
[ "$(id -u)" -eq 0 ] || { echo "needs root"; exit 77; }
command -v debootstrap >/dev/null || { echo "needs debootstrap"; exit 77; }
root=$(mktemp -d "${TMPDIR:-/tmp}/weir-root.XXXXXX")

cleanup() {
    for m in "$root/dev/shm" "$root/dev/pts" "$root/dev" "$root/proc" "$root/sys"; do
        if mountpoint -q "$m"; then umount -l "$m"; fi
    done
    rm -rf --one-file-system "$root"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# Debian's own sources as this machine has them: "URI release component" a line.
sources=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 'Origin: Debian' | sort -u)
mirror=$(echo "$sources" | sed -n 's/ bookworm main$//p' | sed -n 1p)
if [ -n "${KEEP_BASE-}" ] && [ -f "$KEEP_BASE" ]; then
    tar xf "$KEEP_BASE" -C "$root"
else
    debootstrap --variant=minbase bookworm "$root" "$mirror" >/dev/null
    rm -rf "$root"/etc/apt/sources.list*
    echo "$sources" | sed 's/^/deb /' >"$root/etc/apt/sources.list"
    cp -a /etc/apt/apt.conf.d/. "$root/etc/apt/apt.conf.d/"
    cp -L /etc/resolv.conf "$root/etc/resolv.conf"
    for f in /etc/pip.conf /etc/hosts; do [ ! -e "$f" ] || cp -L "$f" "$root$f"; done
    chroot "$root" sh -c 'apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        git make python3-pip ca-certificates' >"$root/root/base.log" 2>&1 || { tail -n 20 "$root/root/base.log"; exit 1; }
    cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"    # what this machine trusts
    [ -z "${KEEP_BASE-}" ] || tar cf "$KEEP_BASE" -C "$root" .
fi
chmod 755 "$root"    # users of the root have to get in
mount -t proc proc "$root/proc"
mount -t sysfs sys "$root/sys"
mount --bind /dev "$root/dev"
mount -t devpts devpts "$root/dev/pts" -o newinstance,ptmxmode=0666,mode=620
mount -t tmpfs tmpfs "$root/dev/shm"

mkdir "$root/root/carried"
for f in ${CARRY-}; do cp "$f" "$root/root/carried/"; done
git clone -q "$here" "$root/root/weir"
run=${*:-make demo && make test}
echo "in a fresh root: $run"
chroot "$root" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb ${PIP_CERT:+PIP_CERT="$PIP_CERT"} \
    ${PIP_FIND_LINKS:+PIP_FIND_LINKS="$PIP_FIND_LINKS"} ${PIP_DEFAULT_TIMEOUT:+PIP_DEFAULT_TIMEOUT="$PIP_DEFAULT_TIMEOUT"} \
    sh -c "cd /root/weir && $run"
