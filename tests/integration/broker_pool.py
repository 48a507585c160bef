"""A broker of one's own for a test, and a client written from docs/protocol.md with pyzmq and msgpack alone."""
import os, signal, subprocess, sys, tempfile, time, shutil

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from patience import PATIENCE  # noqa: E402

try:
    import msgpack, zmq
except ImportError:
    print("python3-zmq and python3-msgpack are not here")
    sys.exit(77)

BIN = os.environ.get("WEIR_BIN") or os.path.join(os.path.dirname(__file__), "../../build/bin")
FAKE_WORKER = os.path.join(BIN, "../tests/fake_worker")
SIGNATURE = b"WEIR\x01"
SELF_CHECK = ["--self-check"]


class Pool:
    """weir-broker with fake workers, or real ones, in a folder that goes away with it."""

    def __init__(self, workers=1, models=("fake=/dev/null",), real=False, env=None, args=(), wait=True):
        self.dir = tempfile.mkdtemp(prefix="weir-test-")
        self.log_path = os.path.join(self.dir, "log")
        command = [os.path.join(BIN, "weir-broker"), "--runtime-dir", self.dir + "/run", "--workers", str(workers)] + SELF_CHECK
        for m in models:
            command += ["--model", m]
        if not real:
            command += ["--worker-program", FAKE_WORKER]
        if "--host-store-bytes" not in args:  # the default is a share of the machine, which takes its time to get
            command += ["--host-store-bytes", "64M"]
        self.command, self.env, self.workers = command + list(args), {**os.environ, **(env or {})}, workers
        self.start()
        self.endpoint = "ipc://" + self.dir + "/run/broker.sock"
        self.clients = []
        if wait:
            self.wait_ready(workers)

    def start(self):
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(self.command, stderr=log, stdout=log, env=self.env)

    def kill_and_restart(self, away_s=0.0):
        """The broker dies without a word; another takes its place."""
        self.process.kill()
        self.process.wait()
        time.sleep(away_s)
        self.start()

    def client(self):
        c = Client(self.endpoint)
        self.clients.append(c)
        return c

    def status(self):
        return self.client().ask({"type": "status", "id": "s"}, "status")

    def wait_for(self, what, condition, seconds=20):
        """Ask for the status until condition(status) holds."""
        end = time.time() + seconds * PATIENCE
        c = self.client()
        while True:
            status = c.ask({"type": "status", "id": "s"}, "status")
            if condition(status):
                c.close()
                return status
            if time.time() > end:
                raise AssertionError("never %s: %r\n%s" % (what, status, self.log()))
            time.sleep(0.02)

    def wait_ready(self, n, seconds=120):
        end = time.time() + seconds * PATIENCE
        while not os.path.exists(self.endpoint[6:]):
            assert self.process.poll() is None and time.time() < end, self.log()
            time.sleep(0.01)
        return self.wait_for("ready", lambda s: sum(w["state"] == "ready" for w in s["workers"]) >= n, seconds)

    def wait_empty(self, seconds=20):
        """Nothing queued, nothing running, no block pinned."""
        return self.wait_for("empty", lambda s: s["pool"]["requests"] == 0 and all(
            w.get("blocks_pinned", 0) == 0 and w["held"] == 0 for w in s["workers"]), seconds)

    def log(self):
        with open(self.log_path, errors="replace") as f:
            return f.read()[-6000:]

    def stop(self, sig=signal.SIGTERM):
        for c in self.clients:
            c.close()
        if self.process.poll() is None:
            self.process.send_signal(sig)
        code = self.process.wait(60)
        shutil.rmtree(self.dir, ignore_errors=True)
        return code

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if error[0] is not None:
            print(self.log())
        code = self.stop()
        if error[0] is None:
            assert code == 0, "the broker ended with %r" % code


class Client:
    context = zmq.Context.instance()

    def __init__(self, endpoint, receive_hwm=None):
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        if receive_hwm:
            self.socket.rcvhwm = receive_hwm
        self.socket.connect(endpoint)

    def close(self):
        if not self.socket.closed:
            self.socket.close(0)

    def send(self, message, delimiter=False):
        frames = [SIGNATURE, msgpack.packb(message)]
        self.socket.send_multipart(([b""] if delimiter else []) + frames)

    def send_raw(self, *frames):
        self.socket.send_multipart(list(frames))

    def receive(self, seconds=20):
        assert self.socket.poll(int(seconds * 1000)), "no message within %s s" % seconds
        frames = self.socket.recv_multipart()
        if frames[0] == b"":
            frames = frames[1:]
        assert len(frames) == 2 and frames[0] == SIGNATURE, frames
        return msgpack.unpackb(frames[1])

    def ask(self, message, type, seconds=20):
        self.send(message)
        return self.receive_type(type, seconds)

    def receive_type(self, *types, seconds=20):
        end = time.time() + seconds * PATIENCE
        while True:
            m = self.receive(max(0.01, end - time.time()))
            if m["type"] in types:
                return m

    def generate(self, id="r", seconds=60, **fields):
        self.send({"type": "generate", "id": id, **fields})
        return self.finish([id], seconds)[id]

    def finish(self, ids, seconds=60):
        """Read until every id has its end.  {id: Answer}."""
        answers = {id: Answer() for id in ids}
        self.read_until(answers, lambda: all(a.end is not None for a in answers.values()), seconds)
        return answers

    def read_until(self, answers, done, seconds=60):
        """Put what comes into answers, by id, until done()."""
        end = time.time() + seconds * PATIENCE
        while not done():
            m = self.receive(max(0.01, end - time.time()))
            if m.get("id") in answers:
                answers[m["id"]].take(m)


class Answer:
    def __init__(self):
        self.text, self.ids, self.end, self.accepted, self.n_messages, self.progress = {}, {}, None, None, 0, []
        self.logprobs = {}

    def take(self, m):
        assert self.end is None, "a message after the end: %r" % m
        if m["type"] == "accepted":
            assert self.accepted is None and self.n_messages == 0
            self.accepted = m
        elif m["type"] == "token":
            self.n_messages += 1
            ids = self.ids.setdefault(m["choice"], [])
            assert m["index"] == len(ids), "a gap or a repeat at token %d: %r" % (len(ids), m)
            ids += m["ids"]
            self.text[m["choice"]] = self.text.get(m["choice"], "") + m["text"]
            if "logprobs" in m:
                self.logprobs.setdefault(m["choice"], []).extend(m["logprobs"])
        elif m["type"] == "progress":
            self.progress.append(m["state"])
        elif m["type"] in ("done", "error"):
            self.end = m
            if m["type"] == "done":
                for i, c in enumerate(m["choices"]):
                    assert c["n_tokens"] == len(self.ids.get(i, [])), (m, self.ids)

    @property
    def code(self):
        return self.end["code"] if self.end["type"] == "error" else None


def run(tests):
    """Run the functions; a name on the command line picks one."""
    wanted = sys.argv[1:]
    for test in tests:
        if wanted and test.__name__ not in wanted:
            continue
        began = time.time()
        test()
        print("ok %s (%.1f s)" % (test.__name__, time.time() - began), flush=True)
