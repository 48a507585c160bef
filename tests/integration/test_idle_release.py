#!/usr/bin/python3
"""A worker that is idle for long gives its memory back and returns when it is wanted.  Off unless asked for; nothing is lost."""
import glob, json, os, signal, sys, threading, time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from broker_pool import Pool, run
from serve_rig import Serve, wait_until

IDLE = ["--idle-release", "300ms"]


def states(status):
    return [w["state"] for w in status["workers"]]


def an_idle_worker_leaves_and_returns_on_demand():
    with Pool(workers=2, args=IDLE, wait=False) as pool:
        pool.wait_ready(0)
        status = pool.wait_for("released", lambda s: states(s) == ["released"] * 2)
        assert all("pid" not in w and w["order"] == "run" and "error" not in w for w in status["workers"]), status["workers"]
        c = pool.client()
        assert c.generate(prompt="x", max_tokens=4).end["type"] == "done"
        # one was enough: the other one stays where it is
        lives = [w["life"] for w in pool.status()["workers"]]
        assert sorted(lives) == [1, 2], lives
        pool.wait_for("released again", lambda s: states(s) == ["released"] * 2)
        for i in range(5):
            assert c.generate(id="r%d" % i, prompt="x", max_tokens=4).end["type"] == "done"
            time.sleep(0.35)
        # more than one holds at a time: both come
        many = ["m%d" % i for i in range(200)]
        for id in many:
            c.send({"type": "generate", "id": id, "prompt": "x", "max_tokens": 20, "ignore_eos": True})
        assert all(a.end["type"] == "done" for a in c.finish(many).values())
        assert all(w["restarts"] >= 1 for w in pool.status()["workers"])


def requests_wait_and_status_says_for_what():
    with Pool(workers=1, args=IDLE, env={"WEIR_FAKE_START": "slow"}, wait=False) as pool:
        pool.wait_ready(0)
        pool.wait_for("released", lambda s: states(s) == ["released"])
        c = pool.client()
        c.send({"type": "generate", "id": "r", "prompt": "x", "max_tokens": 4})
        c.receive_type("accepted")
        status = pool.wait_for("waiting", lambda s: s["queues"] or s["pool"]["requests"] == 0)
        assert not status["queues"] or "worker 0, which" in status["queues"][0]["waits_for"], status["queues"]
        assert c.receive_type("done", "error")["type"] == "done"
        # orders by hand go before: a drained one is not woken
        pool.wait_for("released", lambda s: states(s) == ["released"])
        assert c.ask({"type": "admin", "id": "o", "verb": "drain", "worker": 0}, "admin")["state"] == "stopped"
        c.send({"type": "generate", "id": "q", "prompt": "x", "max_tokens": 4})
        status = pool.wait_for("waiting", lambda s: s["queues"])
        assert "drained" in status["queues"][0]["waits_for"], status["queues"]
        c.ask({"type": "admin", "id": "o", "verb": "resume", "worker": 0}, "admin")
        assert c.receive_type("done")["id"] == "q"


def a_suspect_wakes_a_worker_that_left_while_another_is_busy():
    with Pool(workers=3, args=IDLE, env={"WEIR_FAKE_STEP_MS": "20"}, wait=False) as pool:
        busy, dies, left = 0, 1, 2
        pool.wait_for("released", lambda s: states(s) == ["released"] * 3)
        c, admin = pool.client(), pool.client()

        def order(verb, worker):
            admin.ask({"type": "admin", "id": "o", "verb": verb, "worker": worker}, "admin")

        def give(worker, id, **fields):
            order("resume", worker)  # a worker with an order by hand does not leave
            c.send({"type": "generate", "id": id, "prompt": "x", "ignore_eos": True, **fields})
            pool.wait_for("held", lambda s: s["workers"][worker]["held"] == 1)
            order("pause", worker)

        for worker in (busy, dies, left):
            order("pause", worker)
        for worker, id in ((busy, "long"), (dies, "suspect")):  # each longer than all this takes
            give(worker, id, max_tokens=10000)
        order("resume", left)
        status = pool.wait_for("released", lambda s: states(s)[left] == "released")
        order("resume", busy)
        os.kill(status["workers"][dies]["pid"], signal.SIGSEGV)
        status = pool.wait_for("taken over", lambda s: s["workers"][left].get("held") == 1)
        assert states(status)[busy] == "ready" and status["workers"][busy]["held"] == 1, status["workers"]
        for id in ("long", "suspect"):
            c.send({"type": "cancel", "id": id})
        assert {c.receive_type("done", "error")["id"] for _ in range(2)} == {"long", "suspect"}


def it_is_off_by_default():
    with Pool(workers=1) as pool:
        time.sleep(1)
        assert states(pool.status()) == ["ready"] and pool.status()["workers"][0]["life"] == 1


class Most:
    """The most memory that a process and all below it had, looked at all the time."""

    def __init__(self, pid):
        self.pid, self.kib, self.over = pid, 0, threading.Event()
        self.thread = threading.Thread(target=self.look)

    def look(self):
        while not self.over.wait(0.02):
            self.kib = max(self.kib, memory_of(self.pid))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


def memory_of(pid):
    """Of a process and all below it, in KiB."""
    total = 0
    for p in [pid] + [int(c) for t in glob.glob("/proc/%d/task/*/children" % pid) for c in open(t).read().split()]:
        try:
            with open("/proc/%d/status" % p) as f:
                total += next((int(l.split()[1]) for l in f if l.startswith("VmRSS:")), 0)
        except OSError:
            pass
    return total


def a_job_goes_on_and_the_memory_falls():
    with Serve(workers=1, metrics=False, args=["--idle-release", "1s"]) as pool:
        pool.add_user("alice")
        lines = "".join(json.dumps({"id": str(i), "prompt": "p %d" % i, "temperature": 0, "max_tokens": 4}) + "\n" for i in range(8))

        def worker():
            return json.loads(pool.weir("worker", "list", "--json").stdout)[0]

        parent = [int(c) for t in glob.glob("/proc/%d/task/*/children" % pool.process.pid) for c in open(t).read().split()]
        broker = next(p for p in parent if os.readlink("/proc/%d/exe" % p).endswith("weir-broker"))
        answers = []
        for _ in range(2):
            with Most(broker) as most:  # on a slow machine the worker has left before one has heard that the job is done
                job = pool.ssh("alice", "submit", input=lines).stdout.split()[0]
                pool.ssh("alice", "wait", job, code=None)
            full = most.kib
            out = pool.ssh("alice", "results", job).stdout.split("\n")[:-1]
            answers.append(sorted((json.loads(l)["custom_id"], json.loads(l)["response"]["body"]["choices"][0]["text"]) for l in out))
            wait_until(lambda: worker()["state"] == "released", 60, "released")
            low = memory_of(broker)
            assert low < full, (full, low)
            print("resident KiB of broker and worker: %d with the worker, %d without" % (full, low))
        assert answers[0] == answers[1] and len(answers[0]) == 8
        assert worker()["life"] >= 2  # more, where the machine is slow


if __name__ == "__main__":
    run([an_idle_worker_leaves_and_returns_on_demand, requests_wait_and_status_says_for_what,
         a_suspect_wakes_a_worker_that_left_while_another_is_busy, it_is_off_by_default, a_job_goes_on_and_the_memory_falls])
