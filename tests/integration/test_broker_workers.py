"""Workers by hand: paused, drained, removed, added and resumed while requests run.  Nothing is lost, and status says what waits for what."""
import json, os, random, signal, subprocess, time

from broker_pool import BIN, Pool, run


def order(c, verb, worker=None, code=None, **fields):
    if worker is not None:
        fields["worker"] = worker
    c.send({"type": "admin", "id": "o", "verb": verb, **fields})
    m = c.receive_type("admin", "error")
    assert m.get("code") == code, m
    return m


def worker_of(status, slot):
    return next((w for w in status["workers"] if w["slot"] == slot), None)


def weir(pool, *args, code=0):
    r = subprocess.run([os.path.join(BIN, "weir"), *args, "--connect", pool.endpoint], capture_output=True, text=True, timeout=60)
    assert r.returncode == code, (args, r.returncode, r.stdout, r.stderr)
    return r


def a_paused_worker_gets_nothing_new():
    with Pool(workers=2, env={"WEIR_FAKE_STEP_MS": "3"}) as pool:
        c, admin = pool.client(), pool.client()
        assert order(admin, "pause", 0) == {"type": "admin", "id": "o", "worker": 0, "state": "ready", "order": "pause"}
        for i in range(12):
            assert c.generate(prompt="p%d" % i, max_tokens=2).end["worker"] == 1
        order(admin, "resume", 0)
        order(admin, "pause", 1)
        assert c.generate(prompt="p", max_tokens=2).end["worker"] == 0


def what_a_paused_worker_holds_goes_on_and_the_rest_waits():
    with Pool(workers=1, env={"WEIR_FAKE_STEP_MS": "3"}) as pool:
        c, admin = pool.client(), pool.client()
        c.send({"type": "generate", "id": "held", "prompt": "x", "max_tokens": 700, "ignore_eos": True})
        pool.wait_for("running", lambda s: s["pool"]["running"] == 1)
        order(admin, "pause", 0)
        c.send({"type": "generate", "id": "queued", "prompt": "y", "max_tokens": 5, "ignore_eos": True})
        assert c.finish(["held"])["held"].end["type"] == "done"
        status = pool.status()
        assert status["pool"]["running"] == 0 and status["queues"] == [
            {"model": "fake", "queued": 1, "waits_for": "worker 0, which is paused: weir worker resume 0"}], status["queues"]
        order(admin, "resume", 0)
        assert c.receive_type("done")["id"] == "queued"
        assert pool.status()["queues"] == []


def a_drained_worker_gives_its_memory_back_and_returns():
    with Pool(workers=1, env={"WEIR_FAKE_STEP_MS": "3"}) as pool:
        c, admin = pool.client(), pool.client()
        pid = pool.status()["workers"][0]["pid"]
        c.send({"type": "generate", "id": "held", "prompt": "x", "max_tokens": 700, "ignore_eos": True})
        pool.wait_for("running", lambda s: s["pool"]["running"] == 1)
        order(admin, "drain", 0)
        assert worker_of(pool.status(), 0)["state"] == "ready"  # it is at work
        assert c.finish(["held"])["held"].end["takeovers"] == 0
        status = pool.wait_for("drained", lambda s: s["workers"][0]["state"] == "stopped")
        assert "pid" not in status["workers"][0] and "error" not in status["workers"][0], status
        assert not os.path.exists("/proc/%d" % pid)
        c.send({"type": "generate", "id": "queued", "prompt": "y", "max_tokens": 5})
        pool.wait_for("explained", lambda s: s["queues"] and "drained" in s["queues"][0]["waits_for"])
        time.sleep(0.3)
        assert pool.status()["pool"]["requests"] == 1
        order(admin, "resume", 0)
        assert c.finish(["queued"])["queued"].end["type"] == "done"
        order(admin, "drain", 0)
        order(admin, "resume", 0)  # before it is gone: it comes back all the same
        pool.wait_ready(1)
        assert c.generate(prompt="x", max_tokens=3).end["type"] == "done"


def a_worker_that_is_not_ready_is_drained_at_once():
    with Pool(workers=1, env={"WEIR_FAKE_START": "fail"}, wait=False) as pool:
        while not os.path.exists(pool.endpoint[6:]):
            time.sleep(0.01)
        admin = pool.client()
        order(admin, "drain", 0)
        pool.wait_for("stopped", lambda s: s["workers"][0]["state"] == "stopped")
        order(admin, "resume", 0)
        pool.wait_for("tried", lambda s: "told to fail" in s["workers"][0].get("error", ""))
        # and who waits for it is told, not kept for ever
        for words in (["resume", "0"], ["add"]):
            said = weir(pool, "worker", *words, "--wait", code=1).stderr
            assert "cannot start" in said and "told to fail" in said, said


def who_waits_for_an_order_hears_of_another():
    with Pool(workers=2, env={"WEIR_FAKE_STEP_MS": "5"}) as pool:
        c, admin = pool.client(), pool.client()
        order(admin, "pause", 1)
        c.send({"type": "generate", "id": "held", "prompt": "x", "max_tokens": 100000, "ignore_eos": True})
        pool.wait_for("running", lambda s: s["pool"]["running"] == 1)
        for verb, other in (("drain", "resume"), ("pause", "drain"), ("remove", "remove")):
            p = subprocess.Popen([os.path.join(BIN, "weir"), "worker", verb, "0", "--wait", "--connect", pool.endpoint], stderr=subprocess.PIPE, text=True)
            pool.wait_for("ordered", lambda s: worker_of(s, 0)["order"] == verb)
            if verb == "remove":
                c.send({"type": "cancel", "id": "held"})
                assert p.communicate(timeout=60)[1] == "" and p.returncode == 0
            else:
                order(admin, other, 0)
                said = p.communicate(timeout=60)[1]
                assert p.returncode == 1 and "another order meanwhile" in said, said


def workers_come_and_go():
    with Pool(workers=1, models=["a=/dev/null", "b=/dev/null"], args=["--workers", "2"], wait=False) as pool:
        pool.wait_ready(2)
        c, admin = pool.client(), pool.client()
        order(admin, "remove", 0, "invalid_request")  # the last one of model a
        assert order(admin, "add", model="a", device="cpu")["worker"] == 2
        pool.wait_ready(3)
        order(admin, "remove", 0)
        pool.wait_for("gone", lambda s: worker_of(s, 0) is None)
        assert c.generate(prompt="x", model="a", max_tokens=3).end["worker"] == 2
        for verb in ("pause", "resume", "drain", "remove"):
            order(admin, verb, 0, "not_found")
        order(admin, "remove", 2, "invalid_request")
        assert order(admin, "add", model="b")["worker"] == 0  # the number is free again
        status = pool.wait_ready(3)
        assert worker_of(status, 0)["model"] == "b" and worker_of(status, 0)["life"] == 2
        order(admin, "add", model="c", code="model_not_found")
        order(admin, "add", device="gpu", code="invalid_parameter")
        for i in range(13):
            order(admin, "add")
        order(admin, "add", code="limit_exceeded")
        pool.wait_ready(16)


def orders_are_checked():
    with Pool() as pool:
        admin = pool.client()
        for fields, code, param in [({"verb": "stop", "worker": 0}, "invalid_parameter", "verb"), ({"verb": "pause"}, "invalid_request", "worker"),
                                    ({"verb": "add", "worker": 0}, "invalid_request", "worker"),
                                    ({"verb": "drain", "worker": 0, "device": "cpu"}, "invalid_request", "device"),
                                    ({"verb": "drain", "worker": 16}, "invalid_parameter", "worker"),
                                    ({"verb": "drain", "worker": 5}, "not_found", "worker"), ({"worker": 0}, "invalid_request", "verb")]:
            admin.send({"type": "admin", "id": "o", **fields})
            m = admin.receive_type("error")
            assert m["code"] == code and m["param"] == param, m


def nothing_is_lost_while_workers_are_drained_killed_added_and_removed():
    rng = random.Random(int(os.environ.get("WEIR_SEED", "5")))
    with Pool(workers=3, env={"WEIR_FAKE_STEP_MS": "2"}) as pool:
        c, admin = pool.client(), pool.client()
        requests = {"r%d" % i: dict(prompt="p%d" % i, max_tokens=120, ignore_eos=True, seed=i, n=1 + i % 2) for i in range(300)}
        for id, fields in requests.items():
            c.send({"type": "generate", "id": id, "class": "batch", **fields})
        answers = {}
        due, n_orders, n_killed = time.time(), 0, 0
        while len(answers) < len(requests):
            m = c.receive(60)
            if m["type"] == "token":
                answers_ids = requests[m["id"]].setdefault("got", {}).setdefault(m["choice"], [])
                assert m["index"] == len(answers_ids), "a gap or a repeat"
                answers_ids += m["ids"]
            elif m["type"] in ("done", "error"):
                assert m["type"] == "done" and m["id"] not in answers, m
                answers[m["id"]] = m
            if time.time() > due:
                due = time.time() + 0.1
                workers = admin.ask({"type": "status", "id": "s"}, "status")["workers"]
                w = rng.choice(workers)
                what = rng.choice(["pause", "drain", "resume", "resume", "resume", "add", "remove", "kill"])
                if what == "kill" and "pid" in w:
                    try:
                        os.kill(w["pid"], signal.SIGKILL)
                        n_killed += 1
                    except ProcessLookupError:
                        pass
                elif what == "add" and len(workers) < 5:
                    order(admin, "add")
                elif what in ("pause", "drain", "resume"):
                    order(admin, what, w["slot"])
                elif what == "remove":
                    admin.send({"type": "admin", "id": "o", "verb": "remove", "worker": w["slot"]})
                    admin.receive_type("admin", "error")
                n_orders += 1
        assert n_orders > 10, n_orders
        for w in pool.status()["workers"]:
            admin.send({"type": "admin", "id": "o", "verb": "resume", "worker": w["slot"]})
            admin.receive_type("admin", "error")
        pool.wait_for("ready", lambda s: any(w["state"] == "ready" and w["order"] == "run" for w in s["workers"]))
        for id in rng.sample(sorted(requests), 30):
            got = requests[id].pop("got")
            again = c.generate(id=id, **requests[id])
            assert again.ids == got, id
        pool.wait_empty()


def the_command_does_it():
    with Pool(workers=1) as pool:
        assert weir(pool, "worker", "add", "--device", "cpu", "--wait").stdout == "1\n"
        weir(pool, "worker", "drain", "0", "--wait")
        rows = [line.split() for line in weir(pool, "worker", "list").stdout.splitlines()]
        assert rows[0][:3] == ["0", "drain", "stopped"] and rows[1][:3] == ["1", "run", "ready"], rows
        assert json.loads(weir(pool, "worker", "resume", "0", "--wait", "--json").stdout)["order"] == "run"
        weir(pool, "worker", "remove", "1", "--wait")
        assert [w["slot"] for w in json.loads(weir(pool, "worker", "list", "--json").stdout)] == [0]
        assert "not_found" in weir(pool, "worker", "pause", "1", code=1).stderr
        assert "last one" in weir(pool, "worker", "remove", "0", code=1).stderr
        for words in (["worker"], ["worker", "stop", "0"], ["worker", "pause"], ["worker", "pause", "x"], ["worker", "pause", "0", "--device", "cpu"]):
            weir(pool, *words, code=2)
        weir(pool, "worker", "pause", "0", "--wait")
        text = weir(pool, "status").stdout
        assert "pause" in text, text


if __name__ == "__main__":
    run([a_paused_worker_gets_nothing_new, what_a_paused_worker_holds_goes_on_and_the_rest_waits,
         a_drained_worker_gives_its_memory_back_and_returns, a_worker_that_is_not_ready_is_drained_at_once,
         who_waits_for_an_order_hears_of_another, workers_come_and_go,
         orders_are_checked, nothing_is_lost_while_workers_are_drained_killed_added_and_removed, the_command_does_it])
