#!/usr/bin/python3
"""Every named point of failure (include/fault.h) of worker and broker, driven: nothing is lost, doubled or wrong.

usage: faults.py [--seconds S] [--seed N]      WEIR_BUILD: a build with FAULTS=1 (build/faults)

  worker.*   one process of two ends there, by kill, abort, exit or a hang, or its device fails: all requests get the answers of the undisturbed
             run.  Each is asked greedily and sampled, with one choice and with three.
  broker.*   the broker ends there and another takes its place: `weir generate --retry` prints the answer of the undisturbed run.  Where
             something only fails (a region without room, a client that takes nothing), nobody notices."""
import argparse, json, os, random, re, signal, subprocess, sys, tempfile, threading, time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
os.chdir(ROOT)
os.environ["WEIR_BIN"] = BIN = os.path.abspath(os.environ.get("WEIR_BUILD", "build/faults") + "/bin")
sys.path.insert(0, ROOT + "/tests/integration")
from broker_pool import Pool  # noqa: E402

TINY = ROOT + "/tests/reference/data/tiny/tiny-llama-Q8_0.gguf"
REQUESTS = [{"prompt": "a b c", "max_tokens": 24, "temperature": 0, "ignore_eos": True}, {"prompt": "once upon", "max_tokens": 20, "seed": 5, "ignore_eos": True},
            {"prompt": "x", "max_tokens": 12, "seed": 9, "n": 3, "ignore_eos": True, "logprobs": True}, {"prompt": "y z", "max_tokens": 16, "seed": 1, "stop": ["e"]}]
ARGS = ["--threads", "1", "--kv-bytes", "2M", "--hang-seconds", "1500ms", "--host-store-bytes", "0"]


def points():
    """Those that the source names: (name, does it only fail)."""
    found = {}
    for folder in ("worker", "broker"):
        for name in sorted(os.listdir(folder)):
            if name.endswith(".c"):
                for m in re.finditer(r'FAULT(_FAILS)?\("((?:worker|broker)\.\w+)"\)', open(folder + "/" + name).read()):
                    found[m[2]] = m[1] is not None
    return found


def ask_all(pool):
    client = pool.client()
    for i, r in enumerate(REQUESTS):
        client.send({"type": "generate", "id": str(i), **r})
    answers = client.finish([str(i) for i in range(len(REQUESTS))], 60)
    return [(a.end["type"], a.ids, a.text, a.logprobs) for a in answers.values()]


def env_of(folder, fault):
    path = os.path.join(folder, "token")
    os.mkfifo(path)
    token = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    os.write(token, b"!")
    return token, {"WEIR_FAULT": fault, "WEIR_FAULT_TOKEN": path}


def is_gone(token):
    """Has a process taken the byte?"""
    try:
        return os.read(token, 1) == b""
    except BlockingIOError:
        return True
    finally:
        os.close(token)


def try_worker(fault, want):
    folder = tempfile.mkdtemp(prefix="weir-fault-")
    token, env = env_of(folder, fault)
    with Pool(workers=2, models=("m=" + TINY,), real=True, args=ARGS, env=env) as pool:
        got = ask_all(pool)
        assert got == want, "%s: answers differ: %r\n%s" % (fault, [g for g, w in zip(got, want) if g != w][:1], pool.log())
        pool.wait_empty(60)
    return is_gone(token)


def generate(pool, r):
    command = [BIN + "/weir", "generate", "--connect", pool.endpoint, "--retry", "30s", "--json", "-m", str(r["max_tokens"]), "--ignore-eos", "-s", "3", r["prompt"]]
    p = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert p.returncode == 0, p
    return json.loads(p.stdout)["token_ids"]


def try_broker(fault, want, only_fails):
    folder = tempfile.mkdtemp(prefix="weir-fault-")
    token, env = env_of(folder, fault)
    pool = Pool(workers=1, models=("m=" + TINY,), real=True, args=ARGS, env=env)
    over = threading.Event()

    def restart():
        while not over.is_set():
            if pool.process.poll() is not None:
                pool.start()
            time.sleep(0.02)

    thread = threading.Thread(target=restart)
    thread.start()
    try:
        if "taken_over" in fault:  # a worker has to die for it
            pid = pool.status()["workers"][0]["pid"]
            threading.Timer(0.15, lambda: os.path.exists("/proc/%d" % pid) and os.kill(pid, signal.SIGKILL)).start()
        got = generate(pool, REQUESTS[0])
        assert got == want, "%s: %r, not %r\n%s" % (fault, got, want, pool.log())
        time.sleep(0.2 if "taken_over" in fault else 0)
    finally:
        over.set()
        thread.join()
        pool.stop()
        fired = is_gone(token)
    return fired


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--seconds", type=float)
    a.add_argument("--seed", type=int, default=1)
    o = a.parse_args()
    with Pool(workers=2, models=("m=" + TINY,), real=True, args=ARGS) as pool:
        want = ask_all(pool)
        want_one = generate(pool, REQUESTS[0])
        assert want == ask_all(pool) and all(w[0] == "done" for w in want)
    cases = []
    for name, only_fails in points().items():
        for n in (1, 3, 8):
            if only_fails:
                cases.append((name, "fail", n))
            else:
                cases += [(name, action, n) for action in (("kill", "abort", "exit", "hang") if name.startswith("worker.") else ("kill", "abort"))]
    random.Random(o.seed).shuffle(cases)
    until, n_tried, n_fired = time.time() + (o.seconds or 1e9), 0, 0
    for name, action, n in cases:
        if time.time() > until:
            break
        fault = "%s=%s@%d" % (name, action, n)
        fired = try_worker(fault, want) if name.startswith("worker.") else try_broker(fault, want_one, action == "fail")
        n_tried, n_fired = n_tried + 1, n_fired + fired
    assert n_fired > n_tried / 2, "%d of %d points were come by" % (n_fired, n_tried)
    print("%d points, %d of %d cases tried, %d faults came, all answers as without them" % (len(points()), n_tried, len(cases), n_fired))


if __name__ == "__main__":
    main()
