#!/bin/bash
# docker/slurm as a site would run it, on a cluster of this machine: Debian's slurmctld and two slurmd.  An array of two tasks splits a batch,
# each runs a pool on its node, and the answers are joined; a task that is killed and one that is requeued go on where they were; the result is
# that of one pool.  Root only; needs slurmctld, slurmd, slurm-client and munge.
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(id -u)" -eq 0 ] || { echo "needs root"; exit 77; }
for p in slurmctld slurmd sbatch munged mungekey; do command -v "$p" >/dev/null || { echo "needs $p"; exit 77; }; done
bin=$(cd "${WEIR_BIN:-build/bin}" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/weir-slurm.XXXXXX")
chmod 755 "$work"
pids=()
cleanup() {
    scancel --quiet --user=root 2>/dev/null || true
    [ ${#pids[@]} -eq 0 ] || kill "${pids[@]}" 2>/dev/null || true
    sleep 0.5
    [ ${#pids[@]} -eq 0 ] || kill -KILL "${pids[@]}" 2>/dev/null || true
    rm -rf --one-file-system "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM
fail() { echo "$*"; tail -n 15 "$work"/*.log "$work"/task-* 2>/dev/null; exit 1; }

free_ports() { # N numbers
    python3 -c '
import socket, sys
s = [socket.socket() for _ in range(int(sys.argv[1]))]
for x in s: x.bind(("127.0.0.1", 0))
print(*[x.getsockname()[1] for x in s])' "$1"
}
read -r ctld one two < <(free_ports 3)
host=$(hostname -s)
memory=$(awk '/^MemTotal/ { print int($2 / 1024 / 4) }' /proc/meminfo)
mkdir "$work/state" "$work/spool-n1" "$work/spool-n2" "$work/munge"
cat >"$work/slurm.conf" <<EOF
ClusterName=weir
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmctldPort=$ctld
AuthType=auth/munge
AuthInfo=socket=$work/munge/socket
CredType=cred/munge
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool-%n
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
SlurmdParameters=config_overrides
JobRequeue=1
KillWait=30
ReturnToService=2
MpiDefault=none
NodeName=n1 NodeHostname=$host NodeAddr=127.0.0.1 Port=$one CPUs=1 RealMemory=$memory
NodeName=n2 NodeHostname=$host NodeAddr=127.0.0.1 Port=$two CPUs=1 RealMemory=$memory
PartitionName=all Nodes=n1,n2 Default=YES State=UP
EOF
export SLURM_CONF=$work/slurm.conf
mungekey --create --keyfile="$work/munge/key"
chmod 400 "$work/munge/key"
chown -R munge: "$work/munge" 2>/dev/null || true
setpriv --reuid=munge --regid=munge --clear-groups munged --foreground --key-file="$work/munge/key" --socket="$work/munge/socket" --pid-file="$work/munge/pid" \
    --log-file="$work/munge/log" --seed-file="$work/munge/seed" >"$work/munged.log" 2>&1 &
pids+=($!)
for _ in $(seq 100); do [ -S "$work/munge/socket" ] && break; sleep 0.1; done
slurmctld -D -f "$SLURM_CONF" >"$work/slurmctld.log" 2>&1 &
pids+=($!)
for n in n1 n2; do
    slurmd -D -f "$SLURM_CONF" -N "$n" >"$work/slurmd-$n.log" 2>&1 &
    pids+=($!)
done
for _ in $(seq 300); do
    [ "$(sinfo -h -N -o '%t' 2>/dev/null | grep -c '^idle$')" -eq 2 ] && break
    sleep 0.2
done
[ "$(sinfo -h -N -o '%t' | grep -c '^idle$')" -eq 2 ] || fail "the nodes are not idle"
echo "-- $(sinfo --version): two nodes idle"

# What one pool answers
model=$PWD/tests/reference/data/tiny/tiny-llama-Q8_0.gguf
export PATH=$bin:$PWD/docker/slurm:$PATH
small=(--threads 1 --kv-bytes 8M --host-store-bytes 0)
n=41
for i in $(seq $n); do echo "{\"id\": \"c-$i\", \"prompt\": \"line number $i of the batch\", \"max_tokens\": $((i * 60)), \"seed\": $i, \"ignore_eos\": true}"; done >"$work/in.jsonl"
echo '{"id": "wrong", "prompt": 7}' >>"$work/in.jsonl"
(
    export WEIR_CONNECT=ipc://$work/alone/broker.sock
    weir serve --no-ssh --model "$model" --runtime-dir "$work/alone" --state-dir "$work/alone/state" "${small[@]}" >/dev/null 2>&1 &
    pool=$!
    weir status --wait-ready 60 >/dev/null
    weir batch -q "$work/in.jsonl" -o "$work/want.jsonl" || [ $? -eq 1 ]
    kill -TERM "$pool"
    wait "$pool"
)
answers() { # answers FILE: what was said, by custom id
    python3 -c '
import json, sys
for line in sorted((json.loads(l) for l in open(sys.argv[1])), key=lambda r: r["custom_id"]):
    print(line["custom_id"], json.dumps(line["response"]["body"]["choices"]))' "$1"
}

submit() { sbatch --parsable --array=0-1 --output="$work/task-%a.log" --open-mode=append docker/slurm/weir-array.sbatch "$work/in.jsonl" "$work/out" "$model" "${small[@]}"; }
job_ends() { # job_ends JOB: until none of its tasks is left
    for _ in $(seq 1500); do
        [ -z "$(squeue -h -j "$1" 2>/dev/null)" ] && return
        sleep 0.2
    done
    fail "the job does not end"
}
lines() { cat "$work"/out/answers-"$1".jsonl 2>/dev/null | wc -l; }

job=$(submit)
echo "-- job $job: requeued and killed in the middle"
for _ in $(seq 900); do [ "$(lines 0)" -gt 2 ] && [ "$(lines 1)" -gt 2 ] && break; sleep 0.1; done
before=$(lines 0)
scontrol requeue "${job}_0"               # as a job of higher priority does it: it begins again by itself
scancel --signal=KILL --full "${job}_1"   # task, pool and workers, without a word
for _ in $(seq 300); do squeue -h -t PD -j "$job" | grep -q . && break; sleep 0.1; done
scontrol update JobId="${job}_0" StartTime=now 2>/dev/null || true # and not in two minutes
job_ends "$job"
echo "-- task 0 had $before answers, has $(lines 0); task 1 has $(lines 1)"
again=$(submit)                           # what is left over
job_ends "$again"
[ "$(lines 0)" -ge "$before" ] || fail "answers were lost"

mv "$work/out/done-1" "$work/out/open-1"
weir-join "$work/out" >"$work/early.jsonl" 2>/dev/null && fail "joined although a share is open"
mv "$work/out/open-1" "$work/out/done-1"
weir-join "$work/out" >"$work/got.jsonl" || fail "a share is not finished"
[ "$(wc -l <"$work/got.jsonl")" -eq $n ] && [ "$(wc -l <"$work/out/errors.jsonl")" -eq 1 ] || fail "$(wc -l "$work/got.jsonl" "$work/out/errors.jsonl")"
answers "$work/want.jsonl" >"$work/want.txt"
answers "$work/got.jsonl" >"$work/got.txt"
cmp "$work/want.txt" "$work/got.txt" || fail "other answers than of one pool"
for k in 0 1; do [ -s "$work/out/share-$k.jsonl" ] || fail "share $k is empty"; done
echo "slurm: $n answers and 1 error of two nodes, after a requeue and a kill, are those of one pool"
