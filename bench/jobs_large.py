#!/usr/bin/python3
"""The largest job there may be, over the real ssh client and a broker that answers at once: pace of submit, `status`, memory.

usage: jobs_large.py [LINES]      250000; WEIR_BIN: folder of the programs (build/bin)

Prints one line a figure.  `status` is timed as a person sees it: an ssh process over a connection that is open (ControlMaster)."""
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "support"))
from gateway_rig import Rig, check_eq, wait_until  # noqa: E402


def memory_mib(rig, kind, field="VmHWM"):
    most = 0
    for pid in rig.children(kind):
        with open("/proc/%d/status" % pid) as f:
            most = max(most, int(f.read().split(field + ":")[1].split()[0]) / 1024)
    return most


def times_of(rig, options, command, seconds, until=lambda: False):
    times = []
    end = time.monotonic() + seconds
    while time.monotonic() < end and not until():
        began = time.monotonic()
        rig.ok(command, options=options)
        times.append((time.monotonic() - began) * 1000)
        time.sleep(0.1)
    times.sort()
    return "median %.0f ms, 95 of 100 under %.0f ms, longest %.0f ms (%d times)" % (
        times[len(times) // 2], times[len(times) * 95 // 100], times[-1], len(times)) if times else "not asked"


def ended(rig, job):
    return rig.json("status --json " + job)["status"] not in ("validating", "in_progress", "finalizing", "cancelling")


def main():
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 250000
    with Rig() as rig:
        rig.add_user("alice")
        rig.start()
        control = ("-S", rig.path("control"))
        master = subprocess.Popen(rig.ssh_args("alice", "-M", "-N", *control))
        wait_until(lambda: os.path.exists(rig.path("control")), 10, "a master connection")
        rig.ok("submit", b'{"prompt": "x"}\n', options=control)
        print("memory before     jobs %.1f MiB, connection %.1f MiB" % (memory_mib(rig, "jobs-process"), memory_mib(rig, "connection-process")))
        print("status, idle      " + times_of(rig, control, "status", 3))
        data = b"".join(b'{"id": "line number %07d", "prompt": "Summarise in one sentence: %s %d"}\n' % (i, b"some words of text " * 8, i) for i in range(n))
        path = rig.path("input.jsonl")
        with open(path, "wb") as f:
            f.write(data)
        began = time.monotonic()
        with open(path, "rb") as f:
            p = subprocess.Popen(rig.ssh_args("alice", *control) + ["submit"], stdin=f, stdout=subprocess.PIPE)
            during = times_of(rig, control, "version", 600, until=lambda: p.poll() is not None)
            job = p.stdout.read().decode().strip()
        took = time.monotonic() - began
        print("submit            %d lines, %.0f MB: %.1f s, %.0f lines/s, %.1f MB/s" % (n, len(data) / 1e6, took, n / took, len(data) / 1e6 / took))
        print("version, during   " + during)
        print("status, running   " + times_of(rig, control, "status " + job, 15, until=lambda: ended(rig, job)))
        status = rig.json("status --json " + job)
        done = status["request_counts"]["completed"]
        print("answered          %d lines in %.1f s: %.0f lines/s committed (the broker is a Python script)" % (
            done, status["elapsed_s"], done / status["elapsed_s"]))
        print("memory then       jobs %.1f MiB, connection %.1f MiB" % (memory_mib(rig, "jobs-process"), memory_mib(rig, "connection-process")))
        rig.ssh("wait " + job, options=control, timeout=600)
        rig.stop_broker()  # so that nothing of the second job can be answered before it is cancelled, however fast the pool is
        with open(path, "rb") as f:
            second = subprocess.run(rig.ssh_args("alice", *control) + ["submit"], stdin=f, stdout=subprocess.PIPE, check=True).stdout.decode().strip()
        began = time.monotonic()
        rig.ok("cancel " + second, options=control)
        rig.ssh("wait " + second, options=control, timeout=300)
        took = time.monotonic() - began
        counts = rig.json("status --json " + second)["request_counts"]
        check_eq(counts["completed"], 0, "nothing answers the second job")
        check_eq(counts["failed"], n, "every line of it is an error")
        print("cancel            %d lines are errors after %.1f s" % (n, took))
        print("memory at the end jobs %.1f MiB" % memory_mib(rig, "jobs-process"))
        master.kill()
        master.wait()


if __name__ == "__main__":
    main()
