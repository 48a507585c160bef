"""Clients of every kind against workers that are killed at random; each answer must be the undisturbed one.

usage: soak_broker.py [SECONDS [SEED]]      (60 seconds with fake workers; WEIR_SOAK_MODEL=FILE takes real ones)
Prints what was done; the exit code is 1 if an answer was wrong, lost or double, or if anything was left over.
"""
import os, random, signal, sys, threading, time

from broker_pool import Answer, Client, Pool, SIGNATURE

seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60
seed = int(sys.argv[2]) if len(sys.argv) > 2 else int(time.time())
model = os.environ.get("WEIR_SOAK_MODEL")
print("seed", seed)


def kinds():
    for i in range(24):
        f = dict(prompt="Once upon a time number %d" % i, max_tokens=[3, 20, 60, 150][i % 4], seed=i, ignore_eos=i % 2 == 0,
                 temperature=[0.0, 1.0][i // 2 % 2], n=[1, 1, 4][i % 3], stream=i % 5 != 0, logprobs=i % 7 == 0)
        f["class"] = ["interactive", "batch"][i % 2]
        yield f


def rss(pid):
    with open("/proc/%d/status" % pid) as f:
        return int(f.read().split("VmRSS:")[1].split()[0])


def n_fds(pid):
    return len(os.listdir("/proc/%d/fd" % pid))


counts, failures, lock, stop_at = {}, [], threading.Lock(), None


def count(what):
    with lock:
        counts[what] = counts.get(what, 0) + 1


def one_request(c, rng, k, want):
    way = rng.choices(["finish", "cancel", "leave", "broken", "status"], [12, 3, 3, 1, 1])[0]
    kind = rng.randrange(len(want))
    if way == "status":
        c.ask({"type": "status", "id": "s"}, "status", seconds=60)
        return True
    if way == "broken":
        c.send_raw(SIGNATURE, bytes(rng.randrange(256) for _ in range(rng.randrange(50))))
        return False
    c.send({"type": "generate", "id": k, "on_behalf_of": "user%d" % (k % 5), **want[kind][0]})
    if way == "leave":
        time.sleep(rng.random() * 0.2)
        count("left")
        return False
    a, cancelled = Answer(), False
    while a.end is None:
        m = c.receive(120)
        if m.get("id") != str(k):
            continue
        a.take(m)
        if way == "cancel" and not cancelled and rng.random() < 0.3:
            c.send({"type": "cancel", "id": k})
            cancelled = True
    if a.code is not None:
        count(a.code)
        assert a.code in ("cancelled", "busy") or (a.code == "request_killed_worker" and counts.get("SIGSEGV", 0) > 1), a.end
        return True
    count("done")
    if a.end["takeovers"]:
        count("taken over")
    b = want[kind][1]
    assert a.ids == b.ids and a.text == b.text and a.logprobs == b.logprobs, "answer %d differs: %r %r" % (kind, a.ids, b.ids)
    return True


def client(pool, k, want):
    rng = random.Random(seed * 1000 + k)
    try:
        while time.time() < stop_at and not failures:
            c = Client(pool.endpoint)
            n = rng.randrange(1, 8)
            while n > 0 and time.time() < stop_at and one_request(c, rng, k, want):
                n -= 1
            c.close()
    except Exception as e:
        failures.append("client %d: %r" % (k, e))


def killer(pool):
    rng = random.Random(seed)
    c = Client(pool.endpoint)
    while time.time() < stop_at and not failures:
        time.sleep(rng.random() * (2 if model else 0.6))
        workers = [w for w in c.ask({"type": "status", "id": "s"}, "status", seconds=60)["workers"] if w.get("pid")]
        if workers:
            sig = rng.choices([signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGSTOP], [20, 2, 1, 1])[0]
            try:
                os.kill(rng.choice(workers)["pid"], sig)
                count(sig.name)
            except ProcessLookupError:
                pass
    c.close()


def main():
    global stop_at
    models = ["m=" + model] if model else ["fake=/dev/null"]
    with Pool(workers=2, models=models, real=bool(model), env={"WEIR_FAKE_STEP_MS": "2"}, args=["--hang-seconds", "3"]) as pool:
        c = pool.client()
        want = [(f, c.generate(id="w", seconds=120, **f)) for f in kinds()]
        stop_at = time.time() + seconds
        threads = [threading.Thread(target=client, args=(pool, k, want)) for k in range(24)]
        threads.append(threading.Thread(target=killer, args=(pool,)))
        for t in threads:
            t.start()
        time.sleep(min(5, seconds / 2))
        memory, fds = rss(pool.process.pid), n_fds(pool.process.pid)
        for t in threads:
            t.join()
        status = pool.wait_empty(30)
        print("rss KiB %d -> %d, descriptors %d -> %d" % (memory, rss(pool.process.pid), fds, n_fds(pool.process.pid)))
        print(counts, status["totals"])
        assert not failures, failures[:3]
        assert status["pool"]["bytes"] == 0 and status["pool"]["clients"] == 0, status["pool"]


main()
