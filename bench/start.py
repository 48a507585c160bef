"""start.py MODEL THREADS WORKER PEER ROUNDS - from the start of a process to the first token, and its largest resident memory.

Runs `weir-worker --generate` for one token and llama.cpp's `llama-bench` for one token, in turn, with the file in the page cache, and
prints lines for bench/compare.sh: the time of the whole process, in milliseconds, and its memory in MiB.  Ours is the process that
people run: it reads the tokenizer too, checks and repacks the weights, and makes a token of a text.
"""
import os
import subprocess
import sys
import time

KV_BLOCKS = 64


def run(command):
    start = time.monotonic()
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    took = time.monotonic() - start
    child.returncode = status
    if status != 0:
        sys.exit(f"start.py: {command[0]} ended with status {status}")
    return took * 1000, usage.ru_maxrss / 1024


def plan_mib(command):
    """Weights and KV in MiB, as the worker's plan says."""
    text = subprocess.run([*command, "--plan"], check=True, capture_output=True, text=True).stdout
    plan = dict(line.split()[:2] for line in text.splitlines() if len(line.split()) > 2 and line.split()[2].startswith("bytes"))
    return (int(plan["weights"]) + int(plan["kv"])) / (1 << 20)


def main():
    model, threads, worker, peer, rounds = sys.argv[1:6]
    base = [worker, "-m", model, "--device", "cpu", "--threads", threads, "--kv-blocks", str(KV_BLOCKS), "--context", str(16 * KV_BLOCKS)]
    ours = [*base, "--generate", "Hello", "--greedy", "--max-tokens", "1"]
    theirs = [peer, "-m", model, "-t", threads, "-fa", "1", "-p", "0", "-n", "1", "-r", "1", "--no-warmup"]
    with open(model, "rb") as f:
        while f.read(1 << 24):
            pass
    print("ours start_plan_mib", round(plan_mib(base), 1))
    for _ in range(int(rounds)):
        for who, command in (("ours", ours), ("peer", theirs)):
            ms, mib = run(command)
            print(who, "start_ms", round(ms, 1))
            print(who, "start_rss_mib", round(mib, 1))


main()
