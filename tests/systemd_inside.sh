#!/bin/bash
# Under systemd: install, start, readiness, journal, reload, watchdog, crash, drain on stop, upgrade under load, remove, purge.  Run by
# tests/systemd.sh, whose files old.deb and new.deb lie beside this one; the model is /srv/models/m.gguf.
set -euo pipefail
cd /root
export DEBIAN_FRONTEND=noninteractive SYSTEMD_PAGER=
say() { echo "-- $*"; }
fail() { echo "$*"; systemctl status --no-pager -l weir-broker weir-gateway || true; journalctl --no-pager -n 30 || true; exit 1; }
property() { systemctl show -p "$2" --value "weir-$1"; }
until_true() { # until_true WHAT COMMAND...: a minute at most
    local what=$1
    shift
    for _ in $(seq 300); do
        if "$@" >/dev/null 2>&1; then return; fi
        sleep 0.2
    done
    fail "$what"
}
box() { ssh -F none -i /root/key -p 2222 -o StrictHostKeyChecking=accept-new -o LogLevel=ERROR ann@127.0.0.1 "$@"; }
running() { grep -q '"running":[1-9]' <(weir status --json); }

say "$(systemctl --version | head -n 1), process 1 is $(cat /proc/1/comm)"
timeout 120 systemctl is-system-running --wait >/dev/null 2>&1 || true    # "degraded" will do: a namespace has no hardware

say "install: user, folders, units that are enabled but have no model yet"
apt-get install -y -qq ./old.deb >/dev/null 2>&1 || apt-get install -y ./old.deb
getent passwd weir
[ "$(stat -c '%U %a' /var/lib/weir /run/weir | sort -u)" = "weir 750" ] || fail "folders"
[ "$(systemctl is-enabled weir-broker weir-gateway | sort -u)" = enabled ] || fail "not enabled"
systemctl start weir-broker
[ "$(property broker ActiveState)" = inactive ] || fail "a broker without a model is $(property broker ActiveState)"

say "start: systemctl comes back when the pool can answer"
sed -i 's|^# model = .*|model = m=/srv/models/m.gguf|; s|^# kv-bytes = .*|kv-bytes = 8M|' /etc/weir/weir.conf
systemctl start weir-broker weir-gateway || fail "does not start"
weir status --wait-ready 0
weir generate --max-tokens 4 'The sea is'
echo
[ "$(ps -o user= -p "$(property broker MainPID)")" = weir ] || fail "not its own user"
for port in 9464 9465; do until_true "not ready over HTTP" curl -sf http://127.0.0.1:$port/readyz; done    # the pages are a second behind

say "exposure: 2.5 at most"
for unit in broker gateway; do
    systemd-analyze security --no-pager --threshold=25 "weir-$unit.service" | tail -n 1 || fail "weir-$unit is more exposed than 2.5"
done

say "a user, a job; the journal has their lines, with priorities"
ssh-keygen -q -t ed25519 -N '' -f /root/key
weir user add ann --key /root/key.pub
until_true "ann cannot log in" box whoami
printf '{"prompt": "one", "max_tokens": 3}\n{"prompt": "two", "max_tokens": 3}\n' | box submit --name j
box wait j
[ "$(box results j | wc -l)" = 2 ] || fail "not two answers"
grep -q 'user=ann' <(journalctl -u weir-gateway) || fail "no line of ann in the journal"
grep -q 'event=' <(journalctl -u weir-broker) || fail "no event of the broker in the journal"
grep -q '"PRIORITY":"6".*event=\|event=.*"PRIORITY":"6"' <(journalctl -u weir-gateway -o json) || fail "no line of priority info"
! grep '^<[0-9]>' <(journalctl -u weir-gateway -u weir-broker -o cat) || fail "a priority is in the text"

say "reload: the same processes go on"
broker=$(property broker MainPID) gateway=$(property gateway MainPID)
systemctl reload weir-broker weir-gateway
box whoami >/dev/null && weir status --wait-ready 0 >/dev/null || fail "down after a reload"
[ "$broker $gateway" = "$(property broker MainPID) $(property gateway MainPID)" ] || fail "a reload is a restart"

say "a broker that stands still is found by the watchdog, one that dies is started anew; a job goes on over both"
install -d /etc/systemd/system/weir-broker.service.d
printf '[Service]\nWatchdogSec=4s\n' >/etc/systemd/system/weir-broker.service.d/watchdog.conf
systemctl daemon-reload
systemctl restart weir-broker
for i in $(seq 40); do echo "{\"id\": \"w$i\", \"prompt\": \"line $i\", \"max_tokens\": 600, \"ignore_eos\": true}"; done | box submit --name w
until_true "nothing runs" running
kill -STOP "$(property broker MainPID)"
restarts() { [ "$(property broker NRestarts)" -ge "$1" ]; }
until_true "no restart by the watchdog" restarts 1
grep -qi watchdog <(journalctl -u weir-broker) || fail "no watchdog in the journal"
until_true "not ready again" weir status --wait-ready 5
until_true "nothing runs" running
kill -KILL "$(property broker MainPID)"
until_true "no restart after a crash" restarts 2
until_true "not ready again" weir status --wait-ready 5
[ "$(pgrep -c -x weir-worker)" = 1 ] || fail "a worker was left behind: $(pgrep -a weir-worker)"
box wait w
[ "$(box results w | grep -o '"custom_id":"w[0-9]*"' | sort -u | wc -l)" = 40 ] && [ "$(box results w | wc -l)" = 40 ] || fail "not each line once"
grep -q 'event=' <(journalctl -p warning -u weir-gateway -u weir-broker) || fail "no warning told of this"
! grep ' info ' <(journalctl -p warning -u weir-gateway -u weir-broker) || fail "an info among the warnings"
rm -r /etc/systemd/system/weir-broker.service.d
systemctl daemon-reload
systemctl restart weir-broker

say "stop drains: what runs is finished, what comes is refused"
long=(weir generate --ignore-eos --max-tokens 3500 --seed 5 'once upon a time')
"${long[@]}" >/root/long.txt &
asking=$!
until_true "nothing runs" running
systemctl stop weir-broker
wait "$asking" || fail "what ran was not finished"
[ "$(property broker Result)" = success ] || fail "stop ended in $(property broker Result)"
[ -z "$(pgrep -x weir-worker)" ] || fail "a worker outlives its unit"
! weir generate --max-tokens 1 x 2>/dev/null || fail "a stopped pool answers"
systemctl start weir-broker

say "upgrade under load: what runs is finished, the job goes on, each line is answered once"
"${long[@]}" >/root/long2.txt &
asking=$!
for i in $(seq 60); do echo "{\"id\": \"l$i\", \"prompt\": \"line $i\", \"max_tokens\": 600, \"ignore_eos\": true}"; done | box submit --name k
until_true "nothing runs" running
broker=$(property broker MainPID)
apt-get install -y -qq ./new.deb >/dev/null 2>&1 || fail "the upgrade fails"
wait "$asking" || fail "what ran was not finished"
cmp /root/long.txt /root/long2.txt || fail "not the same answer"
[ "$(property broker MainPID)" != "$broker" ] || fail "the old broker still runs"
[ "$(property broker ActiveState) $(property gateway ActiveState)" = "active active" ] || fail "not up after the upgrade"
grep -q '^model = m=' /etc/weir/weir.conf
until_true "ann cannot log in" box whoami
[ "$(box results j | wc -l)" = 2 ] || fail "the old job is gone"
box wait k
[ "$(box results k | grep -o '"custom_id":"l[0-9]*"' | sort -u | wc -l)" = 60 ] && [ "$(box results k | wc -l)" = 60 ] || fail "not each line once"

say "remove stops and keeps the state, purge removes it"
apt-get remove -y -qq weir >/dev/null 2>&1
[ -z "$(pgrep -f /usr/bin/weir)" ] || fail "still there: $(pgrep -af /usr/bin/weir)"
[ -e /var/lib/weir/jobs.db ] && [ -e /etc/weir/weir.conf ] || fail "remove took the state"
apt-get purge -y -qq weir >/dev/null 2>&1
left=$(find / -xdev -iname '*weir*' ! -path '/root/*' ! -path '/proc/*' ! -path '/sys/*' ! -path '/tmp/*' ! -path '/srv/*')
[ -z "$left" ] || fail "left behind: $left"
say "done"
