#!/bin/bash
# A pool on this machine, used over real ssh, from nothing.
#
# usage: demo.sh demo|try MODEL.gguf
#   demo   submit a batch, kill a worker in the middle of it, print the answers and what the pool did, stop all
#   try    the same pool, left up: a chat here, ssh from any other terminal, `stop` to end it
# Everything it makes lies in one temporary folder, keys and state included, and is removed at the end.
set -euo pipefail

mode=$1 model=$2
here=$(cd "$(dirname "$0")/.." && pwd)
bin=$here/build/bin
dir=$(mktemp -d "${TMPDIR:-/tmp}/weir-$mode.XXXXXX")
pool=

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }

cleanup() {
    trap - EXIT INT TERM
    if [ -n "$pool" ] && kill -0 "$pool" 2>/dev/null; then
        kill -TERM "$pool" 2>/dev/null || true
        for _ in $(seq 100); do kill -0 "$pool" 2>/dev/null || break; sleep 0.1; done
        kill -KILL "$pool" 2>/dev/null || true
        wait "$pool" 2>/dev/null || true
    fi
    rm -rf "$dir"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

start_pool() {
    ssh-keygen -q -t ed25519 -N '' -C demo -f "$dir/key"
    "$bin/weir" user add demo --key "$dir/key.pub" --state-dir "$dir/state" >/dev/null
    "$bin/weir" serve --model "$model" --workers 2 --ssh-port 0 --state-dir "$dir/state" --runtime-dir "$dir/run" \
        >"$dir/serve.out" 2>"$dir/serve.log" &
    pool=$!
    for _ in $(seq 600); do
        grep -q 'ssh_port=' "$dir/serve.out" && break
        kill -0 "$pool" 2>/dev/null || { cat "$dir/serve.log" >&2; echo "the pool did not start" >&2; exit 1; }
        sleep 0.1
    done
    port=$(sed -n 's/.*ssh_port=\([0-9]*\).*/\1/p' "$dir/serve.out" | head -n 1)
    [ -n "$port" ] || { cat "$dir/serve.log" >&2; echo "the pool was not ready within a minute" >&2; exit 1; }
    cat >"$dir/ssh_config" <<-CONF
	Host box
	    HostName 127.0.0.1
	    Port $port
	    User demo
	    IdentityFile $dir/key
	    IdentitiesOnly yes
	    UserKnownHostsFile $dir/known_hosts
	    StrictHostKeyChecking accept-new
	    LogLevel ERROR
	CONF
    export WEIR_CONNECT="ipc://$dir/run/broker.sock"
}

box() { ssh -F "$dir/ssh_config" box "$@"; }

# One line of the status, by a Python expression over s.
status() { "$bin/weir" status --json | python3 -c 'import json,sys; s=json.load(sys.stdin); print(eval(sys.argv[1]))' "($1)"; }

run_demo() {
    say "1. A pool of two CPU workers behind a broker and an ssh gateway (port $port)"
    "$bin/weir" status

    say "2. \$ ssh box submit --name demo < prompts.jsonl     24 questions that share one long system prompt"
    python3 "$here/tools/demo_prompts.py" >"$dir/prompts.jsonl"
    box submit --name demo <"$dir/prompts.jsonl"

    say "3. \$ ssh box watch demo     and kill -9 of a worker in the middle of it"
    box watch demo >"$dir/watch.out" 2>&1 &
    watch=$!
    for _ in $(seq 600); do    # until a good part of the tokens is there and both workers are at it
        read -r tokens victim < <(status '"%d %d" % (s["totals"]["tokens"],
            max((w.get("running", 0), w.get("pid", 0)) for w in s["workers"])[1])')
        [ "$tokens" -lt 400 ] || break
        sleep 0.02
    done
    kill -KILL "$victim"
    echo "killed worker process $victim when the pool had generated $tokens tokens"
    code=0
    box wait demo || code=$?
    wait "$watch" || true
    tail -n 3 "$dir/watch.out"
    echo "the job's exit code: $code"

    say "4. \$ ssh box results demo     all answers"
    box results demo --ordered >"$dir/results.jsonl"
    python3 "$here/tools/demo_report.py" answers "$dir/prompts.jsonl" "$dir/results.jsonl"

    say "5. What the pool did"
    "$bin/weir" status --json >"$dir/status.json"
    box status demo --json >"$dir/job.json"
    python3 "$here/tools/demo_report.py" figures "$dir/results.jsonl" "$dir/status.json" "$dir/job.json"
    [ "$code" -eq 0 ]
}

run_try() {
    "$bin/weir" status
    cat <<-TEXT

	The pool is up.  From another terminal:
	    ssh -F $dir/ssh_config box                      who you are, your jobs, examples
	    ssh -F $dir/ssh_config box ask 'Why is the sky blue?'
	    $bin/weir --connect $WEIR_CONNECT status
	It stops, and its folder $dir is removed, when you leave this chat with /quit or ^D.

	TEXT
    "$bin/weir" chat
}

start_pool
"run_$mode"
say "Stopping the pool"
