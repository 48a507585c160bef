#!/usr/bin/python3
"""Every system call and every allocation on the path of a request fails once (shim.c says how a failing call is chosen).

usage: torture.py [--seconds S] [--seed N] [--nth N] [--site SITE] [PART...]     parts: client worker broker pool gateway

  client   weir generate against a pool of fake workers
  worker   weir-worker --generate: a model loaded, a prompt answered
  broker   weir-broker: started, a request answered, stopped
  pool     weir-worker in a pool: one call of one worker process fails, once; the next process may not
  gateway  weir-gateway: a user asks, submits, waits and fetches over ssh; one call of the listener, the jobs process or a connection's process fails.
           A command that fails is given again, and a gateway that ended is started again: then every line has its answer, once

A run either gives what the undisturbed run gives, or fails with an error that is said, and within its time; no process ends by a signal; nothing that the program
allocated is left, and no descriptor more than in the undisturbed run.  In the pool the answer must come, the same as ever, or the request must end
in an error and the next one must be answered.

With --seconds the sites are taken in an order drawn from the seed, as many as fit.  WEIR_BUILD: the build that is tried (build)."""
import argparse, collections, json, os, random, shutil, signal, subprocess, sys, tempfile, time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
os.chdir(ROOT)
BUILD = os.environ.get("WEIR_BUILD", "build")
os.environ["WEIR_BIN"] = BIN = os.path.abspath(BUILD + "/bin")
sys.path.insert(0, ROOT + "/tests/integration")
from broker_pool import FAKE_WORKER, Client  # noqa: E402
from gateway_rig import Failure, Rig  # noqa: E402

SHIM = os.path.abspath(BUILD + "/tests/torture/shim.so")
TINY = ROOT + "/tests/reference/data/tiny/tiny-llama-Q8_0.gguf"
PROMPT = {"prompt": "a b c", "max_tokens": 12, "temperature": 0}
Run = collections.namedtuple("Run", "code out err left fds")


class Broken(Exception):
    pass


class Torture:
    def __init__(self, program, folder):
        self.program, self.folder = program, folder
        self.list, self.report, self.token = (os.path.join(folder, n) for n in ("list", "report", "token"))
        os.mkfifo(self.token)
        self.token_fd = os.open(self.token, os.O_RDWR | os.O_NONBLOCK)

    def env(self, site=None, nth=1):
        self.fired()  # takes what is left of the last run
        if os.path.exists(self.report):
            os.unlink(self.report)
        e = {k: v for k, v in os.environ.items() if not k.startswith("WEIR_") or k == "WEIR_BIN"}
        e.update(LD_PRELOAD=SHIM, TORTURE_PROGRAM=self.program, TORTURE_REPORT=self.report, TORTURE_TOKEN=self.token)
        if site is None:
            return {**e, "TORTURE_LIST": self.list}
        os.write(self.token_fd, b"!")
        return {**e, "TORTURE_SITE": site, "TORTURE_NTH": str(nth)}

    def sites(self):
        with open(self.list) as f:
            return sorted(set(f.read().split()))

    def fired(self):
        try:
            return os.read(self.token_fd, 1) == b""
        except BlockingIOError:
            return True

    def left(self):
        """(allocations, descriptors) of the process that ended last, or None if it said nothing."""
        try:
            with open(self.report) as f:
                return tuple(map(int, f.read().split("\n")[-2].split()))
        except (OSError, IndexError):
            return None


def run(torture, command, site, nth, seconds=60):
    try:
        p = subprocess.run(command, capture_output=True, env=torture.env(site, nth), timeout=seconds, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise Broken("it did not end within %d s" % seconds)
    left = torture.left() or (0, 0)
    return Run(p.returncode, p.stdout, p.stderr.decode(errors="replace"), *left)


def judge(got, want, name):
    """One run against the undisturbed one."""
    if got.code < 0 or got.code > 128:
        raise Broken("%s ended by signal %d: %s" % (name, -got.code, got.err[-400:]))
    if got.code == 0 and got.out != want.out:
        raise Broken("%s says it is well, but gave %r" % (name, got.out[:200]))
    if got.code != 0 and not got.err.strip():
        raise Broken("%s ended with %d and no word" % (name, got.code))
    if "\nout of memory\n" in got.err:  # the tool by hand (standalone.c) ends where it stands
        return
    if got.left > want.left:
        raise Broken("%s left %d allocations, %d without the failure: %s" % (name, got.left, want.left, got.err[-300:]))
    if got.fds > want.fds:
        raise Broken("%s left %d descriptors, %d without the failure: %s" % (name, got.fds, want.fds, got.err[-300:]))


# --- the parts: each gives (torture, try_site) after its undisturbed run ----------------------------------------

class Broker:
    def __init__(self, folder, env=None, real=False):
        self.dir = tempfile.mkdtemp(dir=folder)
        self.endpoint = "ipc://" + self.dir + "/broker.sock"
        self.err = open(self.dir + "/log", "w+b")
        command = [BIN + "/weir-broker", "--runtime-dir", self.dir, "--workers", "1", "--threads", "1", "--kv-bytes", "2M", "--host-store-bytes", "0",
                   "--hang-seconds", "5", "--drain-seconds", "2", "--users-file", self.dir + "/users", "--tcp", "tcp://127.0.0.1:0", "--curve-key",
                   self.dir + "/curve.key", "--model", "m=" + (TINY if real else "/dev/null")]
        if not real:
            command += ["--worker-program", FAKE_WORKER]
        self.process = subprocess.Popen(command, stderr=self.err, stdout=self.err, env=env)

    def said(self):
        self.err.seek(0)
        return self.err.read().decode(errors="replace")

    def ask(self, seconds=30):
        """The end of a request, and its tokens; None if the broker is not there."""
        end = time.time() + seconds
        while not os.path.exists(self.endpoint[6:]):
            if self.process.poll() is not None:
                return None
            if time.time() > end:
                raise Broken("the broker neither serves nor ends: " + self.said()[-600:])
            time.sleep(0.005)
        client = Client(self.endpoint)
        try:
            while time.time() < end:
                client.send({"type": "generate", "id": "r", **PROMPT})
                until = time.time() + 20
                while time.time() < until and not client.socket.poll(50):
                    if self.process.poll() is not None:
                        return None
                return client.finish(["r"], 20)["r"]
        except AssertionError as e:
            if self.process.poll() is not None:
                return None
            raise Broken("no end of a request (%s): %s" % (e, self.said()[-600:]))
        finally:
            client.close()
        raise Broken("no answer: " + self.said()[-600:])

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise Broken("the broker does not stop: " + self.said()[-600:])


def part_client(folder):
    pool = Broker(folder)
    pool.ask()
    torture = Torture("weir", folder)
    command = [BIN + "/weir", "generate", "--connect", pool.endpoint, "a b c", "-m", "12", "-t", "0", "--json"]

    def once(site=None, nth=1):
        got = run(torture, command, site, nth)
        text = got.out.split(b'"usage"')[0]  # times differ
        return got._replace(out=text)
    want = once()
    assert want.code == 0, want
    return torture, lambda site, nth: judge(once(site, nth), want, "weir"), pool.stop


def part_worker(folder):
    torture = Torture("weir-worker", folder)
    command = [BIN + "/weir-worker", "--model", TINY, "--generate", "a b c", "--max-tokens", "12", "--greedy", "--threads", "2", "--kv-bytes", "2M"]
    want = run(torture, command, None, 1)
    assert want.code == 0, want
    return torture, lambda site, nth: judge(run(torture, command, site, nth), want, "weir-worker"), lambda: None


def part_broker(folder):
    torture = Torture("weir-broker", folder)

    def once(site=None, nth=1):
        broker = Broker(folder, torture.env(site, nth))
        try:
            answers = [broker.ask()]
            while answers[-1] is not None and len(answers) < 3:
                answers.append(broker.ask())
            ends = [a.end for a in answers if a is not None and a.code is not None]
            if any(e["code"] not in ("internal_error", "busy", "no_worker") for e in ends) or len(ends) > 1:
                raise Broken("requests ended in %r: %s" % (ends, broker.said()[-400:]))
        finally:
            code = broker.stop()
        good = {str(a.ids) for a in answers if a is not None and a.code is None}
        return Run(code, good if code == 0 and good else None, broker.said(), *(torture.left() or (0, 0)))

    want = once()
    assert want.code == 0, want

    def try_site(site, nth):
        got = once(site, nth)
        judge(got._replace(out=want.out if got.out is None else got.out), want, "weir-broker")
    return torture, try_site, lambda: None


def part_pool(folder):
    torture = Torture("weir-worker", folder)

    def once(site=None, nth=1):
        broker = Broker(folder, torture.env(site, nth), real=True)
        try:
            first, second = broker.ask(60), broker.ask(60)
            if first is None or second is None:
                raise Broken("the broker ended: " + broker.said()[-600:])
            if "signal" in broker.said() and "own_fault=1" in broker.said():
                raise Broken("the worker ended by a signal: " + broker.said()[-800:])
        finally:
            code = broker.stop()
        if code != 0:
            raise Broken("the broker ended with %r" % code)
        return first, second, broker.said()

    want = once()[0].ids
    assert want

    def try_site(site, nth):
        first, second, said = once(site, nth)
        failed = [a for a in (first, second) if a.code is not None]
        wrong = any(a.ids != want for a in (first, second) if a.code is None)
        unnamed = any(a.end["code"] not in ("internal_error", "busy", "no_worker") for a in failed)
        # one call failed, so at most one request did: the first, or with a later call the second
        if wrong or unnamed or len(failed) > 1 or nth == 1 and second in failed:
            raise Broken("answers are %r and %r: %s" % (first.end, second.end, said[-600:]))
    return torture, try_site, lambda: None


class Gateway:
    """One gateway after the other, each with a fresh copy of one state folder; the broker is a script."""

    def __init__(self):
        self.rig = Rig()
        self.rig.add_user("alice")
        self.rig.start()
        self.rig.ok("whoami")
        assert self.rig.stop() == 0
        shutil.copytree(self.rig.state, self.rig.path("first"))

    def start(self, env):
        """False: it ended, and said why; or it runs, could not tell so, and was ended."""
        kept = dict(os.environ)
        os.environ.clear()
        os.environ.update(env)
        try:
            self.rig.start()
        except Failure:
            if "ready_fd=closed" in self.said():
                self.rig.gateway.terminate()
            code = self.rig.gateway.wait(20)
            self.rig.gateway = None
            if code < 0 or not self.said().strip():
                raise Broken("the gateway ended with %d before it was ready: %s" % (code, self.said()[-400:]))
            return False
        finally:
            os.environ.clear()
            os.environ.update(kept)
        return True

    def said(self):
        with open(self.rig.path("gateway.log"), errors="replace") as f:
            return f.read()

    def command(self, words, data=b"", ends=()):
        """Until it is done, or gives one of these exit codes (None); what fails says so.  A gateway that has ended is started again, without a failure."""
        for _ in range(4):
            if self.rig.gateway.poll() is not None:
                if self.rig.gateway.returncode < 0:
                    raise Broken("the gateway ended by signal %d: %s" % (-self.rig.gateway.returncode, self.said()[-400:]))
                self.rig.gateway = None
                assert self.start(self.calm)
            try:
                out = self.rig.ssh(words, data, timeout=20)
            except subprocess.TimeoutExpired:
                raise Broken("%s: no end of it: %s" % (words, self.said()[-800:]))
            if out.returncode in (0, *ends):
                return out.stdout if out.returncode == 0 else None
            if not out.stderr.strip() and not out.stdout.strip() and out.returncode != 255:  # 255: ssh itself was cut off
                raise Broken("%s: ended with %d and no word: %s" % (words, out.returncode, self.said()[-400:]))
            time.sleep(0.5 if b"broker_unreachable" in out.stderr else 0)  # its link to the broker was given up, and is made again
        raise Broken("%s: %r: %s" % (words, out, self.said()[-800:]))

    def once(self, env):
        rig = self.rig
        shutil.rmtree(rig.state)
        shutil.copytree(rig.path("first"), rig.state)
        open(rig.path("gateway.log"), "w").close()
        self.calm = {k: v for k, v in env.items() if not k.startswith(("LD_PRELOAD", "TORTURE_"))}
        if not self.start(env):
            assert self.start(self.calm)
        lines = "".join('{"id": "%d", "prompt": "line %d"}\n' % (i, i) for i in range(4)).encode()
        asked = self.command("ask hello there")
        for _ in range(2):
            job = self.command("submit", lines).split()[0].decode()
            if self.command("wait " + job, ends=[6]) is not None:
                break
            if b"memory" not in self.command("status " + job):  # it failed as a whole, and says why: once more
                raise Broken("the job failed and does not say why: %r" % self.command("status " + job))
        answers = [json.loads(l) for l in self.command("results " + job).splitlines()]
        code = self.rig.stop()
        if code != 0:
            raise Broken("the gateway ended with %r: %s" % (code, self.said()[-400:]))
        if "event=connection_died" in self.said() or " signal=11" in self.said() or " signal=6" in self.said():
            raise Broken("a process died of a signal: " + self.said()[-800:])
        return asked, sorted((a["custom_id"], a["response"]["body"]["choices"][0]["text"]) for a in answers)


def part_gateway(folder):
    torture, gateway = Torture("weir-gateway", folder), Gateway()
    want = gateway.once(torture.env())
    assert len(want[1]) == 4 and want[0], want

    def try_site(site, nth):
        try:
            got = gateway.once(torture.env(site, nth))
        except (Broken, Failure) as e:
            gateway.rig.stop(signal.SIGKILL)
            raise Broken(str(e))
        if got != want:
            raise Broken("%r, not %r: %s" % (got, want, gateway.said()[-600:]))
    return torture, try_site, lambda: gateway.rig.__exit__(Broken, None, None)


PARTS = {"client": part_client, "worker": part_worker, "broker": part_broker, "pool": part_pool, "gateway": part_gateway}


def main():
    a = argparse.ArgumentParser()
    a.add_argument("parts", nargs="*")
    a.add_argument("--seconds", type=float)
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--nth", type=int, default=0, help="only the Nth call of each site; else the first and the second")
    a.add_argument("--site")
    o = a.parse_args()
    parts = o.parts or list(PARTS)
    failures = 0
    for part in parts:
        until = time.time() + o.seconds / len(parts) if o.seconds else None
        folder = tempfile.mkdtemp(prefix="weir-torture-")
        torture, try_site, end = PARTS[part](folder)
        sites = [o.site] if o.site else torture.sites()
        cases = [(site, nth) for site in sites for nth in ([o.nth] if o.nth else [1, 2])]
        random.Random(o.seed).shuffle(cases)
        n_tried = n_fired = 0
        for site, nth in cases:
            if until and time.time() > until:
                break
            try:
                try_site(site, nth)
            except Broken as e:
                failures += 1
                print("BROKEN %s %s nth=%d (%s): %s" % (part, site, nth, where(torture.program, site), e), flush=True)
            n_tried += 1
            n_fired += torture.fired()
        end()
        print("%-7s %d sites, %d of %d cases tried, %d calls failed" % (part, len(sites), n_tried, len(cases), n_fired), flush=True)
        shutil.rmtree(folder, ignore_errors=True)
    print("%d broken" % failures)
    return failures > 0


def where(program, site):
    p = subprocess.run(["addr2line", "-e", BIN + "/" + program, "-f", hex(int(site.split("+")[1], 16) - 1)], capture_output=True, text=True)
    return " ".join(p.stdout.split()).replace(ROOT + "/", "") if p.returncode == 0 else "?"


if __name__ == "__main__":
    sys.exit(main())
