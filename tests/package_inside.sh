#!/bin/bash
# Inside a fresh root: the package installs, serves its user, is upgraded while a request and a job run, removed and purged.  Run by
# tests/package.sh.
#
# usage: package_inside.sh OLD.deb NEW.deb MODEL.gguf
set -euo pipefail
deb=$(realpath "$1") new=$(realpath "$2") model=$3
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

say "upgrade under load: what runs is finished, the job goes on, each line is answered once"
long=(weir generate --ignore-eos --max-tokens 3500 --seed 5 'once upon a time')
"${long[@]}" >/root/long.txt &
asking=$!
for i in $(seq 60); do echo "{\"id\": \"l$i\", \"prompt\": \"line $i\", \"max_tokens\": 600, \"ignore_eos\": true}"; done | box submit --name k
for _ in $(seq 100); do weir status --json | grep -q '"running":[1-9]' && break; sleep 0.05; done
stop                       # what systemctl restart does first: SIGTERM to the broker drains, to the gateway ends it
wait "$asking"
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$new" >/dev/null 2>&1
dpkg-query -W -f='${Version}\n' weir
[ "$(dpkg-query -W -f='${Version}' weir)" = 0.1.0 ]
grep -q '^model = m=' /etc/weir/weir.conf
start
for _ in $(seq 50); do box whoami >/dev/null 2>&1 && break; sleep 0.2; done
[ "$(box results j | wc -l)" = 2 ]
box wait k
[ "$(box results k | grep -o '"custom_id":"l[0-9]*"' | sort -u | wc -l)" = 60 ] && [ "$(box results k | wc -l)" = 60 ]
"${long[@]}" | cmp - /root/long.txt    # not a word was lost
stop

say "remove, then purge"
apt-get remove -y -qq weir >/dev/null 2>&1
[ ! -e /usr/bin/weir ] && [ -e /var/lib/weir/jobs.db ] && [ -e /etc/weir/weir.conf ]
apt-get purge -y -qq weir >/dev/null 2>&1
[ ! -e /var/lib/weir ] && [ ! -e /etc/weir/weir.conf ]
left=$(find / -xdev -iname '*weir*' ! -path '/root/*' ! -path '/proc/*' ! -path '/sys/*' ! -path '/tmp/*' ! -path '/srv/*')
[ -z "$left" ] || { echo "left behind: $left"; exit 1; }
say "done"
