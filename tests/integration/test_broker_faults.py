"""Workers that die, hang, lie and fail to start: no request notices, but the one that did it."""
import fcntl, os, random, resource, signal, socket, subprocess, time

from broker_pool import Answer, Pool, run
from patience import wait_until


def kill_one_worker(pool, sig=signal.SIGKILL):
    busy = [w for w in pool.status()["workers"] if w["state"] == "ready" and w["held"] > 0]
    if busy:
        os.kill(random.choice(busy)["pid"], sig)
    return bool(busy)


def begin_and_kill(pool, client, **fields):
    """Kill the worker of a request in the middle of it: where it was over before that, of another one."""
    while True:
        client.send({"type": "generate", "id": "r", **fields})
        client.receive_type("token")
        if kill_one_worker(pool):
            return
        client.receive_type("done")


def a_killed_worker_is_not_noticed():
    with Pool(workers=2, env={"WEIR_FAKE_STEP_MS": "3"}) as pool:
        c = pool.client()
        requests = {"r%d" % i: dict(prompt="p%d" % i, max_tokens=250, ignore_eos=True, seed=i, n=1 + i % 3, logprobs=i % 2 == 1,
                                    stream=i % 5 != 0, temperature=float(i % 2)) for i in range(30)}
        undisturbed = {}
        for id, fields in requests.items():
            c.send({"type": "generate", "id": id, **fields})
        undisturbed = c.finish(requests)
        for id, fields in requests.items():
            c.send({"type": "generate", "id": id, **fields})
        n_killed = 0
        answers = {id: Answer() for id in requests}
        due = time.time() + 0.2
        while any(a.end is None for a in answers.values()):
            m = c.receive(30)
            if m.get("id") in answers:
                answers[m["id"]].take(m)
            if time.time() > due and n_killed < 12:
                n_killed += kill_one_worker(pool)
                due = time.time() + 0.2
        assert n_killed >= 4
        for id, a in answers.items():
            assert a.end["type"] == "done", a.end
            assert a.ids == undisturbed[id].ids and a.text == undisturbed[id].text and a.logprobs == undisturbed[id].logprobs, id
        assert sum(a.end["takeovers"] for a in answers.values()) > 0
        pool.wait_empty()


def the_only_worker_killed_comes_back():
    with Pool(workers=1, env={"WEIR_FAKE_STEP_MS": "3"}) as pool:
        c = pool.client()
        want = c.generate(prompt="p", max_tokens=200, ignore_eos=True, seed=1)
        begin_and_kill(pool, c, prompt="p", max_tokens=200, ignore_eos=True, seed=1)
        a = Answer()
        a.ids[0], a.text[0] = [], ""
        while a.end is None:  # the first token messages were read above: only the rest is compared
            m = c.receive()
            if m["type"] == "token" and not a.ids[0]:
                a.ids[0] = want.ids[0][:m["index"]]
            a.take(m)
        assert a.ids == want.ids and a.end["takeovers"] == 1 and a.end["worker"] == 0
        assert pool.status()["workers"][0]["restarts"] == 1


def an_exact_takeover_never_changes_kind():
    with Pool(workers=1, env={"WEIR_FAKE_STEP_MS": "3", "WEIR_FAKE_NUMERICS": "life"}) as pool:
        c = pool.client()
        for takeover, life in (("exact", 1), ("any", 2)):
            begin_and_kill(pool, c, prompt="p", max_tokens=200, ignore_eos=True, seed=1, takeover=takeover)
            end = c.receive_type("done", "error")
            if takeover == "exact":
                assert end["code"] == "no_worker" and "fake-life-1" in end["message"], end
            else:
                assert end["takeovers"] == 1 and end["system_fingerprint"] == "fake-life-3", end
            pool.wait_for("back", lambda s: s["workers"][0]["state"] == "ready" and s["workers"][0]["life"] == life + 1)


def a_stopped_worker_is_taken_for_hung():
    with Pool(workers=2, env={"WEIR_FAKE_STEP_MS": "3"}, args=["--hang-seconds", "1"]) as pool:
        c = pool.client()
        want = c.generate(prompt="p", max_tokens=700, ignore_eos=True, seed=1)
        c.send({"type": "generate", "id": "r", "prompt": "p", "max_tokens": 700, "ignore_eos": True, "seed": 1})
        c.receive_type("accepted")
        pool.wait_for("running", lambda s: s["pool"]["running"] == 1)
        kill_one_worker(pool, signal.SIGSTOP)
        a = c.finish(["r"])["r"]
        assert a.ids == want.ids and a.end["takeovers"] == 1


def a_stopped_worker_is_noticed_though_it_is_idle():
    with Pool(workers=2, args=["--hang-seconds", "1"]) as pool:
        stopped = pool.status()["workers"][1]["pid"]
        os.kill(stopped, signal.SIGSTOP)
        pool.wait_for("started again", lambda s: s["workers"][1]["life"] == 2 and s["workers"][1]["state"] == "ready")
        assert pool.status()["workers"][0]["life"] == 1 and not os.path.exists("/proc/%d" % stopped)
    with Pool(workers=2, args=["--hang-seconds", "1000"]) as pool:  # long before its time is over it gets no work, and status says why
        os.kill(pool.status()["workers"][1]["pid"], signal.SIGSTOP)
        status = pool.wait_for("seen", lambda s: "error" in s["workers"][1])
        assert "no sign of life for" in status["workers"][1]["error"], status["workers"]
        c = pool.client()
        assert all(c.generate(prompt="p%d" % i, max_tokens=2).end["worker"] == 0 for i in range(8))
        os.kill(pool.status()["workers"][1]["pid"], signal.SIGCONT)
        pool.wait_for("alive", lambda s: "error" not in s["workers"][1])


def a_stopped_worker_is_noticed_though_requests_keep_coming():
    with Pool(workers=1, args=["--hang-seconds", "1"]) as pool:
        c, n_sent = pool.client(), 0
        os.kill(pool.status()["workers"][0]["pid"], signal.SIGSTOP)
        while pool.status()["workers"][0]["life"] == 1:
            assert n_sent < 12, "each new request puts its end off"  # there is room for many more
            c.send({"type": "generate", "id": "r%d" % n_sent, "prompt": "p", "max_tokens": 2})
            n_sent += 1
            time.sleep(0.5)
        answers = c.finish(["r%d" % i for i in range(n_sent)])
        assert all(a.end["type"] == "done" for a in answers.values()), [a.end for a in answers.values()]


def a_broker_that_is_born_deaf_to_its_childrens_ends_hears_them():
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the broker inherits it, and with it the kernel reaps in its place
    try:
        pool = Pool(workers=1)
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with pool:
        os.kill(pool.status()["workers"][0]["pid"], signal.SIGKILL)
        pool.wait_for("back", lambda s: s["workers"][0]["state"] == "ready" and s["workers"][0]["life"] == 2)


def more_connections_than_descriptors_harm_nobody():
    with Pool(workers=1) as pool:
        c = pool.client()
        assert c.generate(prompt="p", max_tokens=2).end["type"] == "done"
        resource.prlimit(pool.process.pid, resource.RLIMIT_NOFILE, (100, 100))
        crowd = [socket.socket(socket.AF_UNIX) for _ in range(150)]
        for s in crowd:
            s.connect(pool.endpoint[6:])
        wait_until(lambda: "event=connections_closed" in pool.log(), 20, "some were sent away")
        worker = c.ask({"type": "status", "id": "s"}, "status")["workers"][0]
        os.kill(worker["pid"], signal.SIGKILL)  # there are descriptors for its next life
        assert c.generate(prompt="p", max_tokens=2).end["type"] == "done"
        assert c.ask({"type": "status", "id": "s"}, "status")["workers"][0]["life"] == 2
        for s in crowd:
            s.close()
        assert pool.client().generate(prompt="p", max_tokens=2).end["type"] == "done"


class UnreadPool(Pool):
    """Its log is a small pipe that nobody reads."""

    def start(self):
        self.unread, end = os.pipe()
        fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, 4096)
        self.process = subprocess.Popen(self.command, stderr=end, stdout=end, env=self.env)
        os.close(end)

    def log(self):
        return ""


def a_log_that_nobody_reads_stops_nothing():
    with UnreadPool(workers=1) as pool:
        c = pool.client()

        def next_life():
            os.kill(c.ask({"type": "status", "id": "s"}, "status")["workers"][0]["pid"], signal.SIGKILL)
            assert c.generate(prompt="p", max_tokens=2).end["type"] == "done"

        for _ in range(12):  # each says more than 400 bytes
            next_life()
        said = os.read(pool.unread, 4096)
        next_life()
        said += os.read(pool.unread, 4096)
        assert b"event=log_lines_lost" in said, said
        os.close(pool.unread)


def a_request_that_kills_workers_is_refused_and_the_others_are_not():
    for trouble in ["!signal 11 5", "!signal 6 0", "!exit 1 3", "!hang 4", "!lie index 3", "!lie choice 3", "!lie slot 3",
                    "!lie length 3", "!lie type 3", "!lie id 3", "!lie done 3", "!lie finish 3", "!lie text 3", "!noise 7 3"]:
        with Pool(workers=2, env={"WEIR_FAKE_STEP_MS": "2"}, args=["--hang-seconds", "1"]) as pool:
            c = pool.client()
            good = {"g%d" % i: dict(prompt="p%d" % i, max_tokens=80, ignore_eos=True, seed=i) for i in range(6)}
            for id, fields in good.items():
                c.send({"type": "generate", "id": id, **fields})
            c.send({"type": "generate", "id": "bad", "prompt": trouble, "max_tokens": 100, "ignore_eos": True})
            answers = c.finish(list(good) + ["bad"])
            bad = answers.pop("bad")
            assert bad.code == "request_killed_worker", (trouble, bad.end)
            assert all(a.end["type"] == "done" for a in answers.values()), (trouble, [a.end for a in answers.values()])
            undisturbed = {id: c.generate(id=id, **fields) for id, fields in good.items()}
            for id in good:
                assert answers[id].ids == undisturbed[id].ids and answers[id].text == undisturbed[id].text, (trouble, id)
            pool.wait_empty()


def a_suspect_that_ends_is_cleared():
    with Pool(workers=1, env={"WEIR_FAKE_STEP_MS": "2"}) as pool:
        a = pool.client().generate(prompt="!first signal 11 5", max_tokens=50, ignore_eos=True)
        assert a.end["type"] == "done" and a.end["takeovers"] == 1 and len(a.ids[0]) == 50, a.end


def suspects_do_not_keep_a_worker_for_long():
    with Pool(workers=1, env={"WEIR_FAKE_STEP_MS": "5"}) as pool:
        c = pool.client()
        requests = {"r%d" % i: dict(prompt="p%d" % i, max_tokens=400, ignore_eos=True, seed=i) for i in range(8)}
        for id, fields in requests.items():
            c.send({"type": "generate", "id": id, **fields})
        pool.wait_for("running", lambda s: s["pool"]["running"] == 8)
        kill_one_worker(pool, signal.SIGSEGV)
        pool.wait_for("its next life", lambda s: s["workers"][0]["life"] > 1)
        answers = {id: Answer() for id in requests}
        c.read_until(answers, lambda: not c.socket.poll(0))
        at_death = {id: len(a.ids.get(0, [])) for id, a in answers.items()}
        c.read_until(answers, lambda: any(a.end for a in answers.values()))
        gone_on = [id for id, a in answers.items() if a.end is None and len(a.ids[0]) >= at_death[id] + 16]
        assert len(gone_on) >= 2, ("the first ran to its end alone", at_death, {id: len(a.ids[0]) for id, a in answers.items()})
        c.read_until(answers, lambda: all(a.end for a in answers.values()))
        for id, fields in requests.items():
            assert answers[id].end["takeovers"] == 1
        want = c.generate(id="r3", **requests["r3"])
        assert answers["r3"].ids == want.ids and answers["r3"].text == want.text
        # one that kills late is found all the same
        a = c.generate(id="late", prompt="!signal 11 40", max_tokens=200, ignore_eos=True)
        assert a.code == "request_killed_worker", a.end


def noise_in_the_region_harms_nobody_else():
    with Pool(workers=2, env={"WEIR_FAKE_STEP_MS": "2"}, args=["--hang-seconds", "1"]) as pool:
        c = pool.client()
        for seed in range(12):
            c.send({"type": "generate", "id": "n%d" % seed, "prompt": "!first noise %d %d" % (seed, seed % 4), "max_tokens": 20,
                    "ignore_eos": True})
            c.finish(["n%d" % seed])
            assert pool.process.poll() is None
        assert c.generate(prompt="x", max_tokens=20).end["type"] == "done"


def a_worker_that_scribbles_over_its_region_harms_nobody_else():
    with Pool(workers=2, env={"WEIR_FAKE_STEP_MS": "2"}, args=["--hang-seconds", "1"]) as pool:
        c = pool.client()
        want = c.generate(prompt="x", max_tokens=150, ignore_eos=True, seed=1)
        for seed in range(3):
            bad, good = "bad%d" % seed, "good%d" % seed
            c.send({"type": "generate", "id": bad, "prompt": "!scribble %d %d" % (seed, seed % 5), "max_tokens": 20, "ignore_eos": True})
            c.send({"type": "generate", "id": good, "prompt": "x", "max_tokens": 150, "ignore_eos": True, "seed": 1})
            for _ in range(5):
                assert pool.status()["type"] == "status"  # whatever its numbers are, they are numbers
            answers = c.finish([bad, good])
            assert answers[bad].code == "request_killed_worker", answers[bad].end
            assert answers[good].ids == want.ids and answers[good].text == want.text, answers[good].end
            for slot in range(2):  # or each would wait the longer the more often it broke
                c.ask({"type": "admin", "id": "a", "verb": "resume", "worker": slot}, "admin")
        pool.wait_empty()
        assert c.generate(prompt="x", max_tokens=150, ignore_eos=True, seed=1).ids == want.ids


def a_worker_whose_card_is_rubbish_never_gets_work():
    with Pool(workers=1, env={"WEIR_FAKE_START": "card"}, wait=False) as pool:
        while not os.path.exists(pool.endpoint[6:]):
            time.sleep(0.01)
        assert pool.client().generate(prompt="x").code == "no_worker"
        w = pool.status()["workers"][0]
        assert w["restarts"] >= 2 and w["state"] in ("waiting", "starting"), w


def a_worker_that_cannot_start_says_why():
    for start, text in (("fail", "told to fail"), ("exit", "exit-3")):
        with Pool(workers=1, env={"WEIR_FAKE_START": start}, wait=False) as pool:
            while not os.path.exists(pool.endpoint[6:]):
                time.sleep(0.01)
            c = pool.client()
            a = c.generate(prompt="x")
            assert a.code == "no_worker" and text in a.end["message"], a.end
            w = pool.status()["workers"][0]
            assert text in w["error"] and w["state"] in ("waiting", "starting"), w
            assert c.generate(prompt="x").code == "no_worker"


def runs(pid):
    try:
        with open("/proc/%d/stat" % pid) as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def workers_die_with_the_broker():
    pool = Pool(workers=2)
    pids = [w["pid"] for w in pool.status()["workers"]]
    pool.process.kill()
    pool.process.wait()
    wait_until(lambda: not any(runs(p) for p in pids), 5, "its workers are gone")
    pool.stop()


if __name__ == "__main__":
    run([a_killed_worker_is_not_noticed, the_only_worker_killed_comes_back,
         an_exact_takeover_never_changes_kind, a_stopped_worker_is_taken_for_hung,
         a_request_that_kills_workers_is_refused_and_the_others_are_not,
         a_stopped_worker_is_noticed_though_it_is_idle, a_stopped_worker_is_noticed_though_requests_keep_coming,
         a_log_that_nobody_reads_stops_nothing, more_connections_than_descriptors_harm_nobody, a_broker_that_is_born_deaf_to_its_childrens_ends_hears_them, a_suspect_that_ends_is_cleared, suspects_do_not_keep_a_worker_for_long,
         noise_in_the_region_harms_nobody_else, a_worker_that_scribbles_over_its_region_harms_nobody_else,
         a_worker_whose_card_is_rubbish_never_gets_work, a_worker_that_cannot_start_says_why,
         workers_die_with_the_broker])
