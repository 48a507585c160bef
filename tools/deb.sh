#!/bin/bash
# Debian packages weir and, where the plug-in was built, weir-cuda, in BUILD_DIR/deb.  Needs dpkg-dev only.
#
# usage: deb.sh BUILD_DIR VERSION
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1 version=$2
out=$build/deb
root=$out/weir
arch=$(dpkg --print-architecture)
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
maintainer=${DEBEMAIL:-"Weir developers <weir@example.org>"}

rm -rf "$out"
mkdir -p "$root/DEBIAN"
tools/stage.sh "$build" "$root" /usr
rm -rf "$root/usr/include" "$root/usr/lib"    # libweir.a and its headers are for `make install`
install -D -m 644 docker/systemd/weir-broker.service "$root/lib/systemd/system/weir-broker.service"
install -D -m 644 docker/systemd/weir-gateway.service "$root/lib/systemd/system/weir-gateway.service"
install -D -m 644 docker/systemd/weir.sysusers "$root/usr/lib/sysusers.d/weir.conf"
install -D -m 644 docker/systemd/weir.tmpfiles "$root/usr/lib/tmpfiles.d/weir.conf"
install -D -m 644 docker/systemd/weir.conf "$root/etc/weir/weir.conf"
install -m 755 docker/deb/postinst docker/deb/prerm docker/deb/postrm "$root/DEBIAN"
echo /etc/weir/weir.conf >"$root/DEBIAN/conffiles"

find "$root/usr/share/man" -type f -exec gzip -9n {} +

copyright_and_changes() {  # copyright_and_changes ROOT PACKAGE
    local doc=$1/usr/share/doc/$2
    install -d "$doc"
    { printf 'Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\nFiles: *\n'
      printf 'Copyright: 2026 the Weir authors\nLicense: Apache-2.0\n On Debian systems the text of this license is in\n'
      printf ' /usr/share/common-licenses/Apache-2.0\n'; } >"$doc/copyright"
    printf 'weir (%s) unstable; urgency=medium\n\n  * This build.\n\n -- %s  %s\n' "$version" "$maintainer" \
        "$(date -R -u -d "@$SOURCE_DATE_EPOCH")" | gzip -9n >"$doc/changelog.gz"
}

# Which packages of the libraries a program was linked with; dpkg-shlibdeps wants a debian/control to read.
depends() {  # depends PROGRAM...
    local work=$out/shlibs
    mkdir -p "$work/debian"
    printf 'Source: weir\n\nPackage: weir\nArchitecture: any\n' >"$work/debian/control"
    (cd "$work" && dpkg-shlibdeps -O --ignore-missing-info "$@" 2>/dev/null) | sed -n 's/^shlibs:Depends=//p'
}

control() {  # control PACKAGE DEPENDS SUMMARY LONG_TEXT >control
    printf 'Package: %s\nVersion: %s\nArchitecture: %s\nMaintainer: %s\nInstalled-Size: %s\nDepends: %s\n' \
        "$1" "$version" "$arch" "$maintainer" "$(du -sk --exclude=DEBIAN "$out/$1" | cut -f1)" "$2"
    printf 'Section: science\nPriority: optional\nDescription: %s\n%s\n' "$3" "$4"
}

pack() {  # pack PACKAGE
    (cd "$out/$1" && find . -type f ! -path './DEBIAN/*' -printf '%P\n' | LC_ALL=C sort | xargs -d '\n' md5sum >DEBIAN/md5sums)
    find "$out/$1" -type d -exec chmod 755 {} +
    dpkg-deb --root-owner-group --build "$out/$1" "$out/$1_${version}_$arch.deb" >/dev/null
    echo "$out/$1_${version}_$arch.deb"
}

plugin=$root/usr/bin/libweir_cuda.so
if [ -e "$plugin" ]; then
    mkdir -p "$out/weir-cuda/DEBIAN" "$out/weir-cuda/usr/bin"
    mv "$plugin" "$out/weir-cuda/usr/bin"
    chmod 644 "$out/weir-cuda/usr/bin/libweir_cuda.so"
    copyright_and_changes "$out/weir-cuda" weir-cuda
    control weir-cuda "weir (= $version), $(depends "$(realpath "$out/weir-cuda/usr/bin/libweir_cuda.so")")" "NVIDIA GPUs for Weir" \
        " The plug-in that lets workers of Weir compute on NVIDIA GPUs.  It needs
 NVIDIA's driver and CUDA runtime libraries, which are not in Debian." >"$out/weir-cuda/DEBIAN/control"
    pack weir-cuda
fi
copyright_and_changes "$root" weir
programs=$(for p in "$root"/usr/bin/weir*; do realpath "$p"; done)
# shellcheck disable=SC2086   # words are wanted
control weir "$(depends $programs)" "pool of LLM inference workers that people reach over SSH" \
    " A broker shares inference workers on this machine's CPUs and GPUs among its
 users; an ssh gateway takes questions and batch jobs and answers every line
 exactly once." >"$root/DEBIAN/control"
pack weir
