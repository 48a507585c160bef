"""A gateway with its own state folder, a fake broker and the real ssh client, for integration tests.

    with Rig() as rig:
        rig.add_user("alice")
        rig.start()
        out = rig.ssh("whoami")           # subprocess.CompletedProcess with bytes
"""
import glob
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

from patience import PATIENCE, SANITIZED, Failure, wait_until  # noqa: F401
from ports import free_port

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BIN = os.environ.get("WEIR_BIN", os.path.join(ROOT, "build", "bin"))


def check(condition, *what):
    if not condition:
        raise Failure(" ".join(str(w) for w in what))


def check_eq(got, wanted, *what):
    if got != wanted:
        raise Failure("%s: got %r, wanted %r" % (" ".join(str(w) for w in what), got, wanted))


class Rig:
    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="weir-gateway-test.")
        self.state = self.path("state")
        self.endpoint = "ipc://" + self.path("broker.sock")
        self.gateway = self.broker = None
        self.port = free_port()  # of its own, also while the gateway is away
        self.broker_args = []
        self.gateway_args = []
        self.forbidden = ["Sanitizer", "runtime error", "event=conn_broken", "line_done_twice", "event=connection_died"]

    def path(self, name):
        return os.path.join(self.folder, name)

    def __enter__(self):
        return self

    def check_log(self):
        """What must never stand in the log: a crash, a sanitizer's word, a broken rule between our own processes."""
        with open(self.path("gateway.log"), errors="replace") as f:
            for line in f:
                for word in self.forbidden:
                    check(word not in line, "in the log:", line.strip())

    def __exit__(self, kind, value, trace):
        if kind is None and os.path.exists(self.path("gateway.log")):
            self.stop()
            try:
                self.check_log()
            except Failure:
                self.__exit__(Failure, None, None)
                raise
        if kind is not None and os.path.exists(self.path("gateway.log")):
            with open(self.path("gateway.log"), errors="replace") as f:
                sys.stderr.write("--- gateway.log\n" + "".join(f.readlines()[-60:]))
        self.stop()
        self.stop_broker()
        subprocess.run(["rm", "-rf", self.folder], check=False)

    # --- keys and users ---------------------------------------------------------------------------

    def make_key(self, name, kind="ed25519", bits=None):
        args = ["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", name, "-f", self.path(name)]
        subprocess.run(args + (["-b", str(bits)] if bits else []), check=True)
        return self.path(name)

    def user(self, *args):
        return subprocess.run([BIN + "/weir-gateway", "user", *args, "--state-dir", self.state], capture_output=True)

    def add_user(self, name, kind="ed25519", bits=None):
        key = self.make_key(name, kind, bits)
        out = self.user("add", name, "--key", key + ".pub")
        check_eq(out.returncode, 0, "user add", out.stderr)
        return key

    # --- processes --------------------------------------------------------------------------------

    def logged_since(self, offset):
        with open(self.path("gateway.log"), "rb") as f:
            f.seek(offset)
            return f.read()

    def start_broker(self, *args):
        self.broker = subprocess.Popen(["/usr/bin/python3", HERE + "/fake_broker.py", self.endpoint, "--log",
                                        self.path("broker.log"), *self.broker_args, *args], stdout=subprocess.PIPE)
        check_eq(self.broker.stdout.readline(), b"ready\n", "fake broker")

    def stop_broker(self, how=signal.SIGKILL):
        if self.broker:
            self.broker.send_signal(how)
            self.broker.wait()
            self.broker.stdout.close()
            self.broker = None

    def start(self, *args, broker=True):
        if broker and not self.broker:
            self.start_broker()
        self.log = open(self.path("gateway.log"), "ab")
        before = os.path.getsize(self.path("gateway.log"))
        ready, tell = os.pipe()
        self.gateway = subprocess.Popen(
            [BIN + "/weir-gateway", "--ssh-port", str(self.port), "--listen", "127.0.0.1", "--state-dir", self.state,
             "--connect", self.endpoint, "--ready-fd", str(tell), "--log-level", "debug", *self.gateway_args, *args],
            stderr=self.log, pass_fds=[tell])
        os.close(tell)
        line = os.fdopen(ready).readline()
        check(line.startswith("ready ssh_port="), "the gateway is not ready:", repr(line))
        self.port = int(line.split("=")[1])
        if broker:  # jobs wait for the pool, questions are refused until the gateway has found it
            wait_until(lambda: b"event=broker state=up" in self.logged_since(before), 60, "the gateway has found the broker")

    def stop(self, how=signal.SIGTERM):
        if self.gateway:
            self.gateway.send_signal(how)
            try:
                code = self.gateway.wait(20 * PATIENCE)
            except subprocess.TimeoutExpired:
                self.gateway.kill()
                self.gateway.wait()
                raise Failure("the gateway did not stop")
            self.gateway = None
            self.log.close()
            return code
        return None

    def children(self, kind):
        """Pids of the gateway's processes whose second word is kind: "jobs-process" or "connection-process"."""
        pids = []
        for path in glob.glob("/proc/[0-9]*/cmdline"):
            try:
                with open(path, "rb") as f:
                    words = f.read().split(b"\0")
                with open(path.replace("cmdline", "stat")) as f:
                    parent = int(f.read().rsplit(")", 1)[1].split()[1])
            except (OSError, ValueError, IndexError):
                continue
            if parent == self.gateway.pid and len(words) > 1 and words[1] == kind.encode():
                pids.append(int(path.split("/")[2]))
        return pids

    # --- ssh --------------------------------------------------------------------------------------

    def ssh_args(self, user="alice", *options):
        args = ["ssh", "-F", "/dev/null", *options, "-p", str(self.port), "-i", self.path(user), "-o", "IdentitiesOnly=yes", "-o",
                "UserKnownHostsFile=" + self.path("known_hosts"), "-o", "StrictHostKeyChecking=accept-new", "-o",
                "BatchMode=yes", "-o", "LogLevel=ERROR", "-o", "ConnectTimeout=%d" % (10 * PATIENCE), "-l", user]
        return args + ["127.0.0.1"]

    def ssh(self, command="", data=b"", user="alice", options=(), timeout=60):
        words = self.ssh_args(user, *options) + ([command] if command else [])
        env = dict(os.environ)
        env.pop("SSH_AUTH_SOCK", None)
        if isinstance(data, str):
            data = data.encode()
        return subprocess.run(words, input=data, capture_output=True, timeout=timeout * PATIENCE, env=env)

    def ok(self, command, data=b"", **more):
        out = self.ssh(command, data, **more)
        check_eq(out.returncode, 0, command, out.stderr)
        return out.stdout

    def json(self, command, data=b"", **more):
        return json.loads(self.ok(command, data, **more))

    def submit(self, lines, options="", user="alice"):
        data = lines if isinstance(lines, (bytes, str)) else "".join(json.dumps(x) + "\n" for x in lines)
        return self.json("submit --json " + options, data, user=user)["id"]


def lines_of(data):
    return [json.loads(x) for x in data.splitlines()]


def check_once(rig, job, ids, user="alice"):
    """Every id is exactly once in output or errors.  Returns (answers, errors) by custom_id."""
    answers = lines_of(rig.ok("results " + job, user=user))
    errors = lines_of(rig.ok("errors " + job, user=user))
    seen = [x["custom_id"] for x in answers + errors]
    check_eq(len(seen), len(set(seen)), "custom_ids are given once")
    check_eq(set(seen), set(ids), "every line is answered")
    return {x["custom_id"]: x for x in answers}, {x["custom_id"]: x for x in errors}


def run_tests(tests):
    """Run the functions; names given on the command line choose.  Exit code 0 or 1."""
    chosen = sys.argv[1:]
    failed = 0
    for test in tests:
        if chosen and test.__name__ not in chosen:
            continue
        began = time.monotonic()
        try:
            test()
            print("ok   %s (%.1f s)" % (test.__name__, time.monotonic() - began), flush=True)
        except (Failure, subprocess.SubprocessError, ValueError, KeyError, OSError) as e:
            failed += 1
            print("FAIL %s: %s: %s" % (test.__name__, type(e).__name__, e), flush=True)
    sys.exit(1 if failed else 0)
