#!/usr/bin/python3
"""People of every kind and a whole pool, for a long time, while workers are killed: nothing lost, doubled or wrong, and nothing grows.

usage: soak.py MINUTES [SEED]        WEIR_SOAK_MODEL=FILE: another model than the tiny one of the tests

The pool is `weir serve` with two workers and its ssh gateway, in a folder of its own.  Against it run, all at once and each from the seed:

    short, long, n > 1, sampled    the answer must be the undisturbed one, token by token
    cancel, deadline, leave        one end at most, of the right kind; nothing afterwards
    keys                           a connection breaks, the request is sent again: one answer, the same
    sessions                       conversations of three turns, some ended, some left to their time-out
    slow                           reads a long stream in small sips
    malformed                      bytes that are no message
    commands                       `weir generate`, some of them killed
    jobs                           batches over ssh; each line once, each answer right; some cancelled
    administrator                  pauses, drains and resumes workers
    killer                         SIGKILL, SIGTERM, SIGSTOP, SIGSEGV, SIGABRT to a random worker

In the last third of the time nobody is killed or drained, so that the memory of workers can be seen, too.

A check point a few times a minute: everybody finishes what they do, the pool must become empty, then memory, descriptors and blocks
are read.  At the end their slopes are printed.  Exit code 1 if an answer was wrong, lost or double, or if something grew."""
import json, os, random, signal, subprocess, sys, threading, time

sys.path[:0] = [os.path.join(os.path.dirname(os.path.abspath(__file__)), d) for d in ("support", "integration")]
from broker_pool import Answer, Client, SIGNATURE  # noqa: E402
from serve_rig import TINY, WEIR, Serve  # noqa: E402

minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 1
seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(1 << 30)
MODEL = os.environ.get("WEIR_SOAK_MODEL") or TINY
GRACE_S = 120          # an answer may take so long: restarts after own faults wait up to 30 s
RSS_SLACK_KIB = 6144   # a process may be so much larger at the end than after the warm-up
POISON_MS = 60_000     # within it, two deaths by own fault may put the blame on a request

counts, failures, lock = {}, [], threading.Lock()
stop, own_faults = threading.Event(), []


def count(what, n=1):
    with lock:
        counts[what] = counts.get(what, 0) + n


def check(condition, *what):
    if not condition:
        raise AssertionError(" ".join(str(w) for w in what))


# --- what is asked ------------------------------------------------------------------------------

def questions():
    """Each is asked once before anything is killed; what comes back is what must come back ever after."""
    for i in range(40):
        n = 1 if i % 8 else 3
        yield dict(prompt="Once upon a time, in town %d, there was" % i * (1 + i % 3), max_tokens=[2, 5, 30, 120][i % 4], seed=i,
                   temperature=[0.0, 0.0, 0.9][i % 3], n=n, ignore_eos=True, logprobs=i % 5 == 0)


def turns(k):
    """The prompts of a conversation."""
    text = "Conversation %d. " % k * 4
    return [text + "".join("Question %d? Answer. " % t for t in range(1, n + 1)) for n in (1, 2, 3)]


def same(a, b):
    return a.ids == b.ids and a.text == b.text and a.logprobs == b.logprobs


class Person(threading.Thread):
    """One thread that does one kind of thing until the end, with pauses at the check points."""

    def __init__(self, soak, kind, k):
        super().__init__(daemon=True, name="%s-%d" % (kind, k))
        self.soak, self.kind, self.k = soak, kind, k
        self.dice = random.Random("%d %s %d" % (seed, kind, k))
        self.n = 0

    def run(self):
        try:
            while not stop.is_set():
                if self.soak.gate.enter():
                    try:
                        getattr(self, self.kind)()
                    finally:
                        self.soak.gate.leave()
        except Exception as e:  # noqa: BLE001   # told at the end
            failures.append("%s, action %d: %r" % (self.name, self.n, e))
            stop.set()

    # --- one request, watched to its end ----------------------------------------------------------

    def client(self, **kw):
        return Client(self.soak.pool.endpoint, **kw)

    def begin(self, c, fields):
        self.n += 1
        id = "%s/%d" % (self.name, self.n)
        c.send({"type": "generate", "id": id, **fields})
        count("requests")
        return id

    def watch(self, c, id, act=None):
        """Its messages until its end.  act(answer) after each."""
        a = Answer()
        while a.end is None:
            m = c.receive(GRACE_S)
            if m.get("id") != id:
                check(str(m.get("id", "")) not in self.soak.ended, "heard of a request after its end:", m)
                continue
            a.take(m)
            if act and a.end is None:
                act(a)
        self.soak.ended.add(id)
        if a.end["type"] == "done" and a.end["takeovers"]:
            count("taken over")
        return a

    def judge(self, a, want, codes=()):
        if a.code is None:
            check(same(a, want), "another answer than undisturbed:", a.ids, want.ids, a.end)
            count("right answers")
        elif a.code == "request_killed_worker":
            recent = [t for t in own_faults if t > time.time() - POISON_MS / 1000]
            check(len(recent) >= 2, "blamed without a reason", a.end)
            count("blamed for our kills")
        else:
            check(a.code in codes, "an error that cannot be:", a.end)
            count(a.code)

    def plain(self, fields, want):
        c = self.client()
        for _ in range(self.dice.randrange(1, 4)):
            self.judge(self.watch(c, self.begin(c, fields)), want)
        c.close()

    def short(self):
        self.plain(*self.dice.choice([q for q in self.soak.asked if q[0]["max_tokens"] < 10]))

    def long(self):
        self.plain(*self.dice.choice([q for q in self.soak.asked if q[0]["max_tokens"] >= 10]))

    def cancel(self):
        fields, want = self.dice.choice(self.soak.asked)
        c, after, sent = self.client(), self.dice.randrange(0, 6), []

        def act(a):
            if a.n_messages >= after and not sent:
                sent.append(1)
                c.send({"type": "cancel", "id": id})

        id = self.begin(c, fields)
        self.judge(self.watch(c, id, act), want, ("cancelled",))
        c.close()

    def deadline(self):
        fields, want = self.dice.choice(self.soak.asked)
        c = self.client()
        self.judge(self.watch(c, self.begin(c, {**fields, "deadline_ms": self.dice.randrange(1, 300)})), want, ("deadline_exceeded",))
        c.close()

    def leave(self):
        c = self.client()
        self.begin(c, self.dice.choice(self.soak.asked)[0])
        time.sleep(self.dice.random() * 0.1)
        c.close()
        count("left")

    def keys(self):
        fields, want = self.dice.choice(self.soak.asked)
        fields = {**fields, "idempotency_key": "%s-%d-%d" % (self.name, seed, self.n)}
        for _ in range(self.dice.randrange(1, 3)):
            c = self.client()
            self.begin(c, fields)
            time.sleep(self.dice.random() * 0.1)
            c.close()
        c, a = self.client(), None
        while a is None or (a.code == "cancelled" and a.end.get("param") == "idempotency_key"):
            a = self.watch(c, self.begin(c, fields))  # one sent before, on another connection, may have come later and taken it
        self.judge(a, want)
        c.close()

    def sessions(self):
        k = self.dice.randrange(len(self.soak.talks))
        name, c = "s%d-%d" % (self.k, k), self.client()
        for fields, want in self.soak.talks[k]:
            self.judge(self.watch(c, self.begin(c, {**fields, "session": name, "session_ttl_ms": self.dice.randrange(1, 2000)})), want)
        if self.dice.random() < 0.5:
            c.send({"type": "session_end", "id": "e", "session": name})
        c.close()

    def slow(self):
        fields, want = self.dice.choice([q for q in self.soak.asked if q[0]["max_tokens"] >= 100])
        c = self.client(receive_hwm=1)
        self.judge(self.watch(c, self.begin(c, fields), lambda a: time.sleep(self.dice.random() * 0.01)), want)
        c.close()

    def malformed(self):
        c = self.client()
        for _ in range(self.dice.randrange(1, 20)):
            body = bytes(self.dice.randrange(256) for _ in range(self.dice.randrange(80)))
            way = self.dice.randrange(4)
            if way == 0:
                c.send_raw(body)
            elif way == 1:
                c.send_raw(SIGNATURE, body)
            elif way == 2:
                c.send_raw(SIGNATURE, b"\x81\xa4type" + body)
            else:
                c.send({"type": "generate", "id": "m", "prompt": "p", self.dice.choice(["n", "stop", "seed", "max_tokens"]): "x" * self.dice.randrange(9)})
            count("malformed messages")
        c.close()
        time.sleep(0.05)

    def commands(self):
        fields, want = self.dice.choice([q for q in self.soak.asked if q[0]["n"] == 1 and not q[0]["logprobs"]])
        p = subprocess.Popen([WEIR, "generate", "--json", "--ignore-eos", "--max-tokens", str(fields["max_tokens"]), "--seed", str(fields["seed"]),
                              "--temperature", str(fields["temperature"]), fields["prompt"]],
                             env=self.soak.pool.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        count("commands")
        if self.dice.random() < 0.4:
            time.sleep(self.dice.random() * 0.2)
            p.kill()
            p.communicate()
            return
        out, err = p.communicate(timeout=GRACE_S)
        if p.returncode == 1 and "request_killed_worker" in out + err:
            return
        check(p.returncode == 0, "weir generate:", p.returncode, err)
        check(json.loads(out)["token_ids"] == want.ids[0], "weir generate: another answer")
        count("right answers")

    def jobs(self):
        ask = [q for q in self.soak.asked if q[0]["temperature"] == 0 and q[0]["n"] == 1 and not q[0]["logprobs"]]
        n, wanted, lines = self.dice.randrange(1, 40), {}, []
        for i in range(n):
            fields, want = self.dice.choice(ask)
            lines.append(json.dumps({"id": "l%d" % i, **{k: fields[k] for k in ("prompt", "max_tokens", "temperature", "ignore_eos", "seed")}}))
            wanted["l%d" % i] = want.text[0]
        ssh = self.soak.pool.ssh
        job = json.loads(ssh("soak", "submit --json", input="\n".join(lines) + "\n").stdout)["id"]
        count("job lines", n)
        cancelled = self.dice.random() < 0.2
        if cancelled:
            time.sleep(self.dice.random() * 0.5)
            ssh("soak", "cancel " + job, code=None)
        ssh("soak", "wait " + job, code=None)
        answers = [json.loads(x) for x in ssh("soak", "results " + job).stdout.split("\n")[:-1]]
        errors = [json.loads(x) for x in ssh("soak", "errors " + job).stdout.split("\n")[:-1]]
        check(sorted(x["custom_id"] for x in answers + errors) == sorted(wanted), "not every line once:", answers, errors)
        for x in answers:
            check(x["response"]["body"]["choices"][0]["text"] == wanted[x["custom_id"]], "another answer of a line:", x)
        for x in errors:
            check(x["error"]["code"] in (("cancelled", "request_killed_worker") if cancelled else ("request_killed_worker",)), "a line failed:", x)
        ssh("soak", "delete " + job)
        count("jobs")

    # --- who makes it hard ------------------------------------------------------------------------

    def killer(self):
        time.sleep(self.dice.random() * 2)
        if self.soak.is_calm():
            return
        workers = [w for w in self.soak.status()["workers"] if w.get("pid")]
        sig = self.dice.choices([signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP, signal.SIGSEGV, signal.SIGABRT], [30, 3, 2, 2, 2])[0]
        if sig in (signal.SIGSEGV, signal.SIGABRT, signal.SIGSTOP):
            own_faults.append(time.time())
        try:
            os.kill(self.dice.choice(workers)["pid"], sig)
            count(sig.name)
        except (ProcessLookupError, IndexError):
            pass

    def administrator(self):
        time.sleep(self.dice.random() * 3)
        if self.soak.is_calm():
            return
        slot = self.dice.randrange(2)
        self.soak.order(self.dice.choice(["pause", "drain"]), slot)
        time.sleep(self.dice.random() * 1)
        self.soak.order("resume", slot)
        count("orders", 2)


PEOPLE = dict(short=3, long=4, cancel=2, deadline=1, leave=2, keys=1, sessions=2, slow=1, malformed=1, commands=1, jobs=2, killer=1, administrator=1)


class Gate:
    """Everybody goes through it before each act; when it is shut they wait, and whoever shut it waits until all are back."""

    def __init__(self):
        self.condition, self.n_inside, self.is_open = threading.Condition(), 0, True

    def enter(self):
        with self.condition:
            while not self.is_open and not stop.is_set():
                self.condition.wait(1)
            if stop.is_set():
                return False
            self.n_inside += 1
            return True

    def leave(self):
        with self.condition:
            self.n_inside -= 1
            self.condition.notify_all()

    def shut(self):
        with self.condition:
            self.is_open = False
            end = time.monotonic() + 3 * GRACE_S
            while self.n_inside > 0:
                self.condition.wait(1)
                check(time.monotonic() < end, "somebody does not come to an end")

    def open(self):
        with self.condition:
            self.is_open = True
            self.condition.notify_all()


# --- the pool -----------------------------------------------------------------------------------

def family(pid):
    """{name: pid} of the processes that live as long as the pool, and of the workers there are; connections come and go."""
    found, parents = {}, {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/stat" % entry) as f:
                parents[int(entry)] = int(f.read().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
    mine = {pid}
    for _ in range(4):
        mine |= {p for p, parent in parents.items() if parent in mine}
    for p in mine:
        try:
            with open("/proc/%d/cmdline" % p, "rb") as f:
                words = f.read().split(b"\0")
        except OSError:
            continue
        name = os.path.basename(words[0]).decode()
        if name == "weir-broker" or (name == "weir-gateway" and not words[1].startswith(b"connection")):
            kind = words[1].decode() if words[1:] and words[1].endswith(b"-process") else ""
            found[name + (" " + kind if kind else "")] = p
        elif name == "weir-worker":
            found["weir-worker %d" % p] = p
    return found


def wake_stopped(pid):
    """A worker that was stopped while it had no work is not missed before it is given some; it still says what it held then."""
    try:
        with open("/proc/%d/stat" % pid) as f:
            if f.read().rsplit(")", 1)[1].split()[0] == "T":
                os.kill(pid, signal.SIGCONT)
                count("woken")
    except (TypeError, FileNotFoundError, ProcessLookupError):
        pass


def read_process(pid):
    with open("/proc/%d/status" % pid) as f:
        own = int(f.read().split("RssAnon:")[1].split()[0])  # what is shared has its size from the start
    return own, len(os.listdir("/proc/%d/fd" % pid))


def slope(points):
    """Least squares, per minute."""
    n = len(points)
    mx, my = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    below = sum((x - mx) ** 2 for x, _ in points)
    return 60 * sum((x - mx) * (y - my) for x, y in points) / below if below else 0.0


class Soak:
    def __init__(self, pool):
        self.pool, self.gate, self.ended, self.samples = pool, Gate(), set(), []
        self.began = time.monotonic()
        self.admin, self.admin_lock = Client(pool.endpoint), threading.Lock()

    def is_calm(self):
        """The last third: nobody is killed, so that a worker grows old enough to be seen to grow."""
        return time.monotonic() > self.began + minutes * 40

    def ask(self, message, type):
        with self.admin_lock:
            return self.admin.ask(message, type, seconds=60)

    def status(self):
        return self.ask({"type": "status", "id": "s"}, "status")

    def order(self, verb, slot):
        with self.admin_lock:
            self.admin.send({"type": "admin", "id": "a", "verb": verb, "worker": slot})
            m = self.admin.receive_type("admin", "error", seconds=60)
        check(m["type"] == "admin", m)

    def prepare(self):
        c = Client(self.pool.endpoint)
        self.asked = [(f, c.generate(id="q", seconds=GRACE_S, **f)) for f in questions()]
        fields = dict(max_tokens=12, temperature=0.0, ignore_eos=True)
        self.talks = [[({"prompt": p, **fields}, c.generate(id="q", seconds=GRACE_S, prompt=p, **fields)) for p in turns(k)] for k in range(6)]
        check(all(a.end["type"] == "done" for talk in [self.asked] + self.talks for _, a in talk), "the pool does not work")
        c.close()

    def check_point(self):
        """Nobody does anything: the pool must be empty, and is measured."""
        self.gate.shut()
        if stop.is_set():
            return
        for slot in range(2):
            self.order("resume", slot)  # forgets how often it failed: the next second is not spent in back-off
        end = time.monotonic() + GRACE_S
        while True:
            s = self.status()
            for w in s["workers"]:
                wake_stopped(w.get("pid"))
            if s["pool"]["requests"] == 0 and s["pool"]["sessions"] == 0 and all(
                    w["state"] == "ready" and w["held"] == 0 and w.get("blocks_pinned", 0) == 0 for w in s["workers"]):
                break
            check(time.monotonic() < end, "never empty:", s)
            time.sleep(0.1)
        time.sleep(0.5)  # connections are being closed
        t = s["totals"]
        check(t["accepted"] == t["done"] + t["failed"] + t["cancelled"], "requests without one end:", t)
        processes = {name: read_process(pid) for name, pid in family(self.pool.process.pid).items()}
        check(set(processes) >= {"weir-broker"}, processes)
        blocks = sum(w["blocks_total"] - w["blocks_free"] - w["blocks_cached"] for w in s["workers"])
        self.samples.append((time.monotonic(), processes, blocks, s["pool"]["bytes"]))
        self.gate.open()

    def run(self):
        self.began = time.monotonic()
        people = [Person(self, kind, k) for kind, n in PEOPLE.items() for k in range(n)]
        for p in people:
            p.start()
        end = time.monotonic() + minutes * 60
        pause = max(5.0, min(60.0, minutes * 60 / 12))
        try:
            while not stop.is_set() and time.monotonic() < end:
                stop.wait(min(pause, max(0.1, end - time.monotonic())))
                self.check_point()
        except Exception as e:  # noqa: BLE001
            failures.append("check point: %r" % e)
        stop.set()
        self.gate.open()
        for p in people:
            p.join(3 * GRACE_S)

    def report(self):
        print("  ".join("%s %d" % x for x in sorted(counts.items())))
        settled = self.samples[max(1, len(self.samples) // 4):]  # after the warm-up: caches and heaps have their size
        if len(settled) < 3:
            return
        for name in sorted(settled[0][1]) + sorted(n for n in settled[-1][1] if n not in settled[0][1]):
            for i, what in enumerate(("KiB of memory", "descriptors")):
                points = [(at, processes[name][i]) for at, processes, _, _ in settled if name in processes]
                if name.startswith("weir-worker"):
                    points = points[len(points) // 3:]  # its cache fills first
                if len(points) < 3 or (name not in settled[-1][1]):
                    continue
                first, last = points[0][1], points[-1][1]
                print("%-28s %-14s %8d at first, %8d at last, %8d at most, slope %+.2f a minute" % (
                    name, what, first, last, max(y for _, y in points), slope(points)))
                slack = RSS_SLACK_KIB if i == 0 else 4
                if last > first + slack:
                    failures.append("%s: %s grew from %d to %d" % (name, what, first, last))
        for what, i in (("blocks in use", 2), ("bytes of requests", 3)):
            print("%-43s %8d at most" % (what + " while idle", max(x[i] for x in settled)))
            check(all(x[i] == 0 for x in settled), what, "are left over")


def main():
    print("seed %d, %g minutes, %s" % (seed, minutes, os.path.basename(MODEL)), flush=True)
    env = {"WEIR_HANG_SECONDS": "8s", "WEIR_LOG_LEVEL": "warn"}
    with Serve(workers=2, model="m=" + MODEL, env=env, args=["--host-store-bytes", "8M"], metrics=False) as pool:
        pool.add_user("soak")
        soak = Soak(pool)
        soak.prepare()
        soak.run()
        soak.report()
        totals = soak.status()["totals"]
        print("totals: " + "  ".join("%s %s" % (k, v) for k, v in totals.items() if isinstance(v, int)))
        log = pool.said()
        for word in ("Sanitizer", "runtime error", "Assertion", "line_done_twice"):
            if word in log:
                failures.append("in the log: " + word)
        if failures:
            print("FAILED:\n  " + "\n  ".join(failures[:5]))
            print(log)
        code = pool.stop()
        if code != 0:
            failures.append("weir serve ended with %r" % code)
    print("soak: %s" % ("%d failures" % len(failures) if failures else "all held"))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
