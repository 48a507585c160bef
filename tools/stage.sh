#!/bin/bash
# What an installed Weir consists of, in a folder: programs, manuals, units, dashboards.  Used by `make deb` and `make dist`.
#
# usage: stage.sh BUILD_DIR TARGET PREFIX      PREFIX as the programs will see it: /usr for the package, "" for the tarball
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1 target=$2 prefix=$3
cuda=${CUDA:-0}

make --no-print-directory -s install B="$build" CUDA=$cuda DESTDIR="$target" PREFIX="$prefix"
for f in "$target$prefix"/bin/*; do strip --strip-unneeded "$f"; done
doc=$target$prefix/share/doc/weir
install -d "$doc" "$doc/examples/prometheus" "$doc/examples/grafana"
install -m 644 docs/*.md README.md "$doc"
install -m 644 docker/prometheus/prometheus.yml docker/prometheus/rules.yml "$doc/examples/prometheus"
install -m 644 docker/grafana/dashboard.json "$doc/examples/grafana"
install -m 755 docker/slurm/* "$doc/examples"
install -m 644 docker/systemd/weir-broker-cuda.conf "$doc/examples"
