#!/usr/bin/python3
"""Jobs in every state, while every process of the gateway and the broker is killed, and while the disk is full: then count.

usage: soak_jobs.py [RUNS [SEED]]       40 runs take about a minute

A run submits a job in some way (plain, packed, text, a try of some lines, with a deadline), does things to it (cancel, retry, release)
and meanwhile kills processes with SIGKILL at random moments.  In the end, always: output lines + error lines = input lines, each id once, each answer
that of its line, the counters of the job the same, and one job for one idempotency key.  Where a tmpfs can be mounted the disk is also
filled up now and then.  Each run prints its seed; `soak_jobs.py 1 SEED` repeats its choices (not the moments at which the kernel runs what)."""
import gzip
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from gateway_rig import Failure, Rig, check, check_eq, lines_of, wait_until  # noqa: E402

UNSURE = (255, 5, 8, -9)  # the connection, the pool or the store had gone: nobody knows whether it was done


def insist(rig, command, data=b""):
    """Say it until the answer is one."""
    end = time.monotonic() + 60
    while True:
        out = rig.ssh(command, data)
        if out.returncode not in UNSURE:
            return out
        check(time.monotonic() < end, "no answer:", command, out.returncode, out.stderr)
        time.sleep(0.05)


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    with open("/proc/%d/stat" % pid) as f:
        return f.read().rsplit(")", 1)[1].split()[0] == "Z"


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


class Killer(threading.Thread):
    """Kills something now and then until it is told to stop; leaves everything running."""

    def __init__(self, rig, dice, tmpfs):
        super().__init__()
        self.rig, self.dice, self.tmpfs = rig, dice, tmpfs
        self.todo = [dice.choice(["jobs", "jobs", "connection", "broker", "everything"] + (["disk"] if tmpfs and dice.random() < 0.3 else []))
                     for _ in range(dice.randrange(1, 4))]
        self.failure = None
        self.done = []

    def run(self):
        try:
            for what in self.todo:
                time.sleep(self.dice.choice([0.005, 0.05, 0.2]) * self.dice.random() * 2)
                getattr(self, "kill_" + what)()
                self.done.append(what)
        except Exception as e:  # noqa: BLE001   # told by the main thread
            self.failure = e

    def kill_jobs(self):
        for pid in self.rig.children("jobs-process"):
            kill(pid)

    def kill_connection(self):
        for pid in self.rig.children("connection-process"):
            kill(pid)

    def kill_broker(self):
        self.rig.stop_broker()
        time.sleep(self.dice.random() * 0.2)
        self.rig.start_broker()

    def kill_everything(self):
        pids = self.rig.children("jobs-process") + self.rig.children("connection-process")
        self.rig.stop(signal.SIGKILL)
        for pid in pids:
            kill(pid)
        wait_until(lambda: all(gone(p) for p in pids), 10, "all are gone")
        self.rig.start()

    def kill_disk(self):
        ballast = os.path.join(self.rig.state, "ballast")
        with open(ballast, "wb", buffering=0) as f:
            try:
                while f.write(b"\0" * 65536) == 65536:
                    pass
            except OSError:
                pass
        time.sleep(self.dice.random())
        os.unlink(ballast)


def make_lines(dice):
    """(lines as text, {id: the text of its answer, or None where it must fail}, options)"""
    n = dice.choice([1, 5, 60, 300, 800])
    if dice.random() < 0.2:
        prompts = ["p%d" % i for i in range(n)]
        return "\n".join(prompts), {"line-%d" % (i + 1): "echo: p%d" % i for i in range(n)}, "--text"
    rows, wanted = [], {}
    for i in range(n):
        key, kind = "n%d" % i, dice.random()
        if kind < 0.03:
            rows.append('{"id": "%s", "prompt": 7}' % key)
            wanted[key] = None
        elif kind < 0.06:
            rows.append(json.dumps({"id": key, "prompt": "!fail invalid_request " + key}))
            wanted[key] = None
        elif kind < 0.08:
            prompt = "!once internal_error " + key
            rows.append(json.dumps({"id": key, "prompt": prompt}))
            wanted[key] = "echo: " + prompt
        else:
            prompt = ("!slow %d " % dice.randrange(300) if dice.random() < 0.1 else "") + key
            rows.append(json.dumps({"id": key, "prompt": prompt}))
            wanted[key] = "echo: " + prompt
    dice.shuffle(rows)
    return "\n".join(rows) + "\n", wanted, ""


def count(rig, job, wanted, ended):
    """The promise.  ended: lines may be errors because the job was cancelled or has expired."""
    answers, errors = lines_of(insist(rig, "results " + job).stdout), lines_of(insist(rig, "errors " + job).stdout)
    seen = [x["custom_id"] for x in answers + errors]
    check_eq(len(seen), len(set(seen)), "each id once")
    check_eq(set(seen), set(wanted), "every id")
    for x in answers:
        check_eq(x["response"]["body"]["choices"][0]["text"], wanted[x["custom_id"]], "the answer of", x["custom_id"])
    for x in errors:
        if x["error"]["code"] not in ended:
            check(wanted[x["custom_id"]] is None, "no error of ours:", x)
    status = json.loads(insist(rig, "status --json " + job).stdout)
    check_eq(status["request_counts"], {"total": len(wanted), "completed": len(answers), "failed": len(errors)}, "counters")
    check_eq(status["held"], 0, "held")
    return status["status"], len(errors)


def wait_end(rig, job):
    return insist(rig, "wait " + job).returncode


def run(rig, seed, tmpfs):
    dice = random.Random(seed)
    text, wanted, options = make_lines(dice)
    data = gzip.compress(text.encode()) if dice.random() < 0.3 else text.encode()
    key = "key-%d" % seed
    trial = dice.random() < 0.2 and len(wanted) > 5
    if trial:
        options += " --try 3"
    elif dice.random() < 0.15:
        options += " --deadline 1s"
    killer = Killer(rig, dice, tmpfs)
    killer.start()
    while True:
        out = insist(rig, "submit --json --key %s %s" % (key, options), data)
        if out.returncode == 0:
            break
        check(tmpfs and out.returncode == 4 and b"disk" in out.stderr, "submit", out.returncode, out.stderr)
        time.sleep(0.1)
    job = json.loads(out.stdout)["id"]
    end = dice.random()
    allowed = ("deadline_exceeded",) if "--deadline" in options else ()
    if trial:
        wait_end(rig, job)
        if end > 0.3:
            insist(rig, "release " + job)
    if end < 0.3:
        time.sleep(dice.random() * 0.2)
        insist(rig, "cancel " + job)
        allowed = ("cancelled", "deadline_exceeded")
    wait_end(rig, job)
    killer.join()
    if killer.failure:
        raise killer.failure
    wait_end(rig, job)
    status, failed = count(rig, job, wanted, allowed)
    if failed and dice.random() < 0.5:  # once more, with a kill in it
        killer = Killer(rig, dice, tmpfs)
        killer.start()
        insist(rig, "retry " + job)
        wait_end(rig, job)
        killer.join()
        if killer.failure:
            raise killer.failure
        wait_end(rig, job)
        status, failed = count(rig, job, wanted, allowed)
    mine = [x for x in json.loads(insist(rig, "list --json --all").stdout)["jobs"]]
    check_eq(len(mine), 1, "one job for one key")
    insist(rig, "delete " + job)
    return "%4d lines %s%s: killed %s; %s, %d errors" % (len(wanted), options or "plain", " packed" if data[:2] == b"\x1f\x8b" else "",
                                                        "+".join(killer.done), status, failed)


def main():
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(1 << 30)
    failed = 0
    with Rig() as rig:
        rig.forbidden.remove("event=connection_died")
        os.makedirs(rig.state)
        tmpfs = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m,mode=0750", "tmpfs", rig.state], capture_output=True).returncode == 0
        try:
            rig.add_user("alice")
            rig.broker_args = ["--delay-ms", "3"]
            rig.start()
            for i in range(runs):
                try:
                    print("ok   seed %d: %s" % (seed + i, run(rig, seed + i, tmpfs)), flush=True)
                except (Failure, ValueError, KeyError, IndexError, OSError, subprocess.SubprocessError) as e:
                    print("FAIL seed %d: %s: %s" % (seed + i, type(e).__name__, e), flush=True)
                    failed += 1
                    break
            if failed:
                raise Failure("a run failed")
            rig.stop()
        finally:
            rig.stop()
            if tmpfs:
                subprocess.run(["umount", rig.state], check=False)
    print("%d runs" % runs)


if __name__ == "__main__":
    main()
