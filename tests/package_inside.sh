#!/bin/bash
# Inside a fresh root: the package installs, serves its user, is upgraded over itself, removed and purged.  Run by tests/package.sh.
#
# usage: package_inside.sh PACKAGE.deb MODEL.gguf
set -euo pipefail
deb=$1 model=$2
say() { echo "-- $*"; }

say "install"
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$deb" openssh-client procps >/dev/null 2>&1 ||
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$deb" openssh-client procps
getent passwd weir
[ "$(stat -c '%U %a' /var/lib/weir)" = "weir 750" ]
weir version

say "what the units start, as their user"
install -d -m 755 /srv/models
install -m 644 "$model" /srv/models/m.gguf
sed -i 's|^# model = .*|model = m=/srv/models/m.gguf|; s|^# kv-bytes = .*|kv-bytes = 8M|' /etc/weir/weir.conf
port=$((20000 + RANDOM % 20000))    # the root has the machine's network
sed -i "s|^ssh-port = .*|ssh-port = $port|; s|^metrics-port = 9464|metrics-port = $((port + 1))|; s|^metrics-port = 9465|metrics-port = $((port + 2))|" \
    /etc/weir/weir.conf
install -d -m 750 -o weir -g weir /run/weir
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
as_weir() { exec setpriv --reuid=weir --regid=weir --clear-groups env -i WEIR_CONFIG=/etc/weir/weir.conf PATH=/usr/bin:/bin "$@"; }
start() {
    # shellcheck disable=SC2046   # words are wanted
    as_weir $(sed -n 's/^ExecStart=//p' /lib/systemd/system/weir-broker.service) 2>>/tmp/broker.log &
    broker=$!
    # shellcheck disable=SC2046
    as_weir $(sed -n 's/^ExecStart=//p' /lib/systemd/system/weir-gateway.service) 2>>/tmp/gateway.log &
    gateway=$!
    weir status --wait-ready 60 || { cat /tmp/broker.log; exit 1; }
}
stop() {
    kill -TERM "$gateway" "$broker"
    wait "$gateway" "$broker"
}
start

say "a user of the machine's root, and one who comes by ssh"
weir generate --max-tokens 4 'The sea is'; echo
ssh-keygen -q -t ed25519 -N '' -f /root/key
weir user add ann --key /root/key.pub
[ "$(stat -c '%U' /var/lib/weir/users)" = weir ]
box() { ssh -F none -i /root/key -p "$port" -o StrictHostKeyChecking=accept-new -o LogLevel=ERROR ann@127.0.0.1 "$@"; }
for _ in $(seq 50); do box whoami >/dev/null 2>&1 && break; sleep 0.2; done
printf '{"prompt": "one", "max_tokens": 3}\n{"prompt": "two", "max_tokens": 3}\n' | box submit --name j
box wait j
[ "$(box results j | wc -l)" = 2 ]

say "upgrade: the same state goes on"
stop
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --reinstall "$deb" >/dev/null 2>&1
grep -q '^model = m=' /etc/weir/weir.conf
start
for _ in $(seq 50); do box whoami >/dev/null 2>&1 && break; sleep 0.2; done
[ "$(box results j | wc -l)" = 2 ]
stop

say "remove, then purge"
apt-get remove -y -qq weir >/dev/null 2>&1
[ ! -e /usr/bin/weir ] && [ -e /var/lib/weir/jobs.db ] && [ -e /etc/weir/weir.conf ]
apt-get purge -y -qq weir >/dev/null 2>&1
[ ! -e /var/lib/weir ] && [ ! -e /etc/weir/weir.conf ]
say "done"
