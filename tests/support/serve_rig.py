"""A whole pool of one's own for a test: `weir serve` with a tiny model, ssh and metrics on ports that are free.

    with Serve(workers=2) as pool:
        pool.weir("status")               # subprocess.CompletedProcess with text
        pool.ssh("submit", input="...")
"""
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request

from patience import wait_until  # noqa: F401
from ports import free_port

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BIN = os.environ.get("WEIR_BIN") or os.path.join(ROOT, "build", "bin")
WEIR = os.path.join(BIN, "weir")
TINY = os.path.join(ROOT, "tests/reference/data/tiny/tiny-llama-Q8_0.gguf")


class Serve:
    """args: more options of `weir serve`.  cwd: where it runs; dirs (state, runtime): as given to it."""

    def __init__(self, workers=1, model="tiny=" + TINY, args=(), dirs=None, cwd=None, env=None, metrics=True):
        self.dir = tempfile.mkdtemp(prefix="weir-serve-")
        self.state, self.run = dirs or (self.path("state"), self.path("run"))
        self.cwd = cwd or self.dir
        self.endpoint = "ipc://" + os.path.join(self.cwd, self.run, "broker.sock")
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("WEIR_")}
        self.env.update({"WEIR_CONNECT": self.endpoint, **(env or {})})
        self.metrics_port, self.gateway_metrics_port = (free_port(), free_port()) if metrics else (0, 0)
        self.command = [WEIR, "serve", "--model", model, "--workers", str(workers), "--threads", "1", "--kv-bytes", "4M",
                        "--ssh-port", "0", "--listen", "127.0.0.1", "--state-dir", self.state, "--runtime-dir", self.run]
        if metrics:
            self.command += ["--metrics-port", str(self.metrics_port), "--gateway-metrics-port", str(self.gateway_metrics_port)]
        if "--host-store-bytes" not in args:  # the default is a share of the machine, which takes its time to get
            self.command += ["--host-store-bytes", "64M"]
        self.command += list(args)
        self.process = None
        self.start()

    def path(self, name):
        return os.path.join(self.dir, name)

    def start(self):
        self.log = open(self.path("log"), "ab")
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=self.log, env=self.env, cwd=self.cwd)
        line = self.process.stdout.readline().decode()
        if not line.startswith("ready "):
            raise AssertionError("no ready line but %r\n%s" % (line, self.said()))
        self.facts = dict(w.split("=", 1) for w in line.split()[1:])

    def said(self):
        with open(self.path("log"), errors="replace") as f:
            return f.read()[-6000:]

    def weir(self, *args, code=0, **kw):
        r = subprocess.run([WEIR, *args], capture_output=True, text=True, env=self.env, timeout=60, **kw)
        assert r.returncode == code, (args, r.returncode, r.stdout, r.stderr, self.said())
        return r

    def status(self):
        return json.loads(self.weir("status", "--json").stdout)

    def add_user(self, name):
        key = self.path(name)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        self.weir("user", "add", name, "--key", key + ".pub", "--state-dir", os.path.join(self.cwd, self.state))
        return key

    def ssh(self, user, *words, code=0, **kw):
        r = subprocess.run(["ssh", "-i", self.path(user), "-p", self.facts["ssh_port"], "-o", "IdentitiesOnly=yes",
                            "-o", "UserKnownHostsFile=" + self.path("known_hosts"), "-o", "StrictHostKeyChecking=accept-new",
                            "-o", "LogLevel=ERROR", "-F", "none", user + "@127.0.0.1", *words],
                           capture_output=True, text=True, timeout=120, **kw)
        assert code is None or r.returncode == code, (words, r.returncode, r.stdout, r.stderr, self.said())
        return r

    def get(self, path, port=None):
        """(status, text) of a page of the broker, or of another port."""
        try:
            with urllib.request.urlopen("http://127.0.0.1:%d%s" % (port or self.metrics_port, path), timeout=10) as r:
                return r.status, r.read().decode()
        except urllib.error.HTTPError as e:
            return e.code, e.read().decode()

    def stop(self, sig=signal.SIGTERM):
        if self.process and self.process.poll() is None:
            self.process.send_signal(sig)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise
        if self.process:
            self.process.stdout.close()
            self.log.close()
        return self.process.returncode if self.process else 0

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            print(self.said())
        self.stop()
        shutil.rmtree(self.dir, ignore_errors=True)


def main(tests, wanted):
    """Run the functions one by one, those named in wanted or all."""
    for test in tests:
        if not wanted or test.__name__ in wanted:
            began = time.time()
            test()
            print("ok %s (%.1f s)" % (test.__name__, time.time() - began), flush=True)
