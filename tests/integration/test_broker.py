"""The broker with workers that need no model: every message, every refusal, every way a client can leave."""
import os, re, random, signal, threading, time

from broker_pool import PATIENCE, Answer, Client, Pool, SIGNATURE, msgpack, run
from patience import wait_until

GREEDY = dict(temperature=0.0)


def says_hello_and_who_you_are():
    with Pool() as pool:
        m = pool.client().ask({"type": "hello", "client": "test"}, "hello")
        assert m["protocol_major"] == 1 and len(m["boot"]) == 16 and m["user"] and "generate" in m["features"], m
        assert m["limits"]["frame_bytes"] == 4 << 20


def generates_the_same_streamed_and_whole():
    with Pool() as pool:
        c = pool.client()
        a = c.generate(prompt="one", max_tokens=40, seed=5, ignore_eos=True)
        b = c.generate(prompt="one", max_tokens=40, seed=5, ignore_eos=True, stream=False)
        other = c.generate(prompt="one", max_tokens=40, seed=6, ignore_eos=True)
        assert a.end["type"] == "done" and a.text == b.text and a.ids == b.ids and a.ids != other.ids
        assert len(a.ids[0]) == 40 and a.end["choices"][0]["finish_reason"] == "length"
        assert b.n_messages == 1 and a.n_messages > 1
        assert a.accepted["seed"] == 5 and a.end["usage"]["completion_tokens"] == 40
        assert a.end["system_fingerprint"] == "fake-1" and a.end["model"] == "fake"
        assert a.end["timings"]["total_ms"] >= a.end["timings"]["first_token_ms"] > 0


def draws_a_seed_and_says_it():
    with Pool() as pool:
        c = pool.client()
        a = c.generate(prompt="one", max_tokens=20)
        b = c.generate(prompt="one", max_tokens=20)
        again = c.generate(prompt="one", max_tokens=20, seed=a.accepted["seed"])
        assert a.accepted["seed"] != b.accepted["seed"] and again.ids == a.ids


def several_choices_and_logprobs():
    with Pool() as pool:
        a = pool.client().generate(prompt="x", n=5, max_tokens=300, logprobs=True, ignore_eos=True, seed=1)
        assert a.end["type"] == "done", a.end
        assert all(len(a.ids[i]) == 300 and len(a.logprobs[i]) == 300 for i in range(5))
        whole = pool.client().generate(prompt="x", n=5, max_tokens=300, logprobs=True, ignore_eos=True, seed=1, stream=False)
        assert whole.ids == a.ids and whole.text == a.text and whole.logprobs == a.logprobs


def tokenizes_and_lists_models():
    with Pool(workers=2, models=["a=/dev/null", "b=/dev/null"]) as pool:
        c = pool.client()
        text = "h\u00e9llo" * 100
        m = c.ask({"type": "tokenize", "id": "t", "model": "b", "text": text}, "ids")
        assert m["ids"] == list(text.encode())
        assert c.ask({"type": "tokenize", "id": "t", "text": ""}, "ids")["ids"] == []
        for n, code in ((800000, None), (800001, "limit_exceeded")):  # an answer that is no frame would cost the connection
            c.send({"type": "tokenize", "id": "t", "text": "x" * n})
            m = c.receive_type("ids", "error")
            assert m.get("code") == code and len(m.get("ids", [])) == (0 if code else n), (n, m.get("message"))
        models = c.ask({"type": "models", "id": "m"}, "models")["models"]
        assert [m["name"] for m in models] == ["a", "b"] and models[0]["default"] and not models[1]["default"]
        assert models[0]["system_fingerprint"] == "fake-1" and models[0]["workers_ready"] == 1
        m = c.generate(prompt="x", model="c").end
        assert m["code"] == "model_not_found" and "a, b" in m["message"] and m["param"] == "model", m


def refuses_what_it_does_not_know():
    with Pool() as pool:
        c = pool.client()
        for fields, code, param in [
            (dict(prompt="x", temprature=1), "unknown_field", "temprature"),
            (dict(prompt="x", tools=[]), "unsupported_parameter", "tools"),
            (dict(prompt="x", response_format={}), "unsupported_parameter", "response_format"),
            (dict(prompt="x", session_ttl_ms=5), "invalid_request", "session_ttl_ms"),
            (dict(prompt="x", max_tokens=0), "invalid_parameter", "max_tokens"),
            (dict(prompt="x", n=17), None, "n"),
            (dict(), "invalid_request", "prompt"),
            (dict(prompt="!error"), "context_overflow", "prompt"),
        ]:
            m = c.generate(**fields).end
            assert m["type"] == "error" and m["param"] == param and (code is None or m["code"] == code), m
        assert c.generate(prompt="x", max_tokens=3, ext={"my": "own"}).end["type"] == "done"
        pool.wait_empty()


def answers_broken_messages():
    with Pool() as pool:
        c = pool.client()
        good = msgpack.packb({"type": "hello"})
        for frames in [[b"WEIR\x01", b""], [b"WEIR\x01", b"\xc1"], [b"WEIR\x01", b"\xdd\xff\xff\xff\xff"], [b"X", good], [good],
                       [b"WEIR\x01", good, b"more"], [b"WEIR\x01", good + b"\x00"], [b"WEIR\x01", b"\x90"], [b"", b"", b"", b"", b"", b"", b""],
                       [b"WEIR\x01", msgpack.packb({"type": "nonsense"})], [b"WEIR\x01", msgpack.packb({"type": "done", "id": "x"})],
                       [b"WEIR\x01", b"\x91" * 40 + b"\x90"]]:
            c.send_raw(*frames)
            m = c.receive()
            assert m["type"] == "error", (frames, m)
        for i in range(len(good)):
            c.send_raw(SIGNATURE, good[:i])
            assert c.receive()["type"] == "error"
        c.send_raw(b"WEIR\x02", good)
        assert c.receive()["code"] == "version_mismatch"
        c.send({"type": "hello"}, delimiter=True)
        assert c.receive()["type"] == "hello"
        assert pool.status()["totals"]["malformed"] >= 20


def a_frame_over_the_limit_costs_the_connection_only():
    with Pool() as pool:
        c, other = pool.client(), pool.client()
        c.send_raw(SIGNATURE, b"x" * (5 << 20))
        assert other.generate(prompt="x", max_tokens=5).end["type"] == "done"
        big = other.generate(prompt="y" * (1 << 20), max_tokens=5)
        assert big.end["type"] == "done", big.end
        assert other.generate(prompt="y" * ((1 << 20) + 1), max_tokens=5).code is not None


def ids_are_unique_on_a_connection():
    with Pool(env={"WEIR_FAKE_STEP_MS": "20"}) as pool:
        c, other = pool.client(), pool.client()
        c.send({"type": "generate", "id": 7, "prompt": "x", "max_tokens": 1000, "ignore_eos": True})
        c.receive_type("accepted")
        c.send({"type": "generate", "id": "7", "prompt": "x"})
        assert c.receive_type("error")["code"] == "duplicate_id"
        assert other.generate(id="7", prompt="x", max_tokens=2).end["type"] == "done"


def cancels_running_and_queued():
    with Pool(env={"WEIR_FAKE_STEP_MS": "5"}) as pool:
        c = pool.client()
        for i in range(60):
            c.send({"type": "generate", "id": "r%d" % i, "prompt": "p%d" % i, "max_tokens": 5000, "ignore_eos": True})
        pool.wait_for("running", lambda s: s["pool"]["running"] >= 8)
        for i in range(60):
            c.send({"type": "cancel", "id": "r%d" % i})
        c.send({"type": "cancel", "id": "unknown"})
        answers = c.finish(["r%d" % i for i in range(60)])
        assert all(a.code == "cancelled" for a in answers.values())
        pool.wait_empty(5)


def deadlines_hold_in_the_queue_and_in_a_run():
    with Pool(env={"WEIR_FAKE_STEP_MS": "5"}) as pool:
        c = pool.client()
        for i in range(50):
            c.send({"type": "generate", "id": "r%d" % i, "prompt": "p", "max_tokens": 50000, "ignore_eos": True, "deadline_ms": 400})
        began = time.time()
        answers = c.finish(["r%d" % i for i in range(50)])
        assert 0.3 < time.time() - began < 3 * PATIENCE
        assert all(a.code == "deadline_exceeded" for a in answers.values()), [a.end for a in answers.values()]
        pool.wait_empty(5)


def a_client_that_left_holds_nothing():
    with Pool(env={"WEIR_FAKE_STEP_MS": "5"}) as pool:
        for how in ("running", "queued"):
            keep = pool.client()
            c = pool.client()
            for i in range(1 if how == "running" else 40):
                c.send({"type": "generate", "id": "r%d" % i, "prompt": "p", "max_tokens": 50000, "ignore_eos": True})
            pool.wait_for("there", lambda s: s["pool"]["requests"] >= (1 if how == "running" else 40) and s["pool"]["running"] > 0)
            c.close()
            began = time.time()
            pool.wait_empty(5)
            assert time.time() - began < 1 * PATIENCE, "took %.1f s" % (time.time() - began)
            keep.close()


def progress_comes_while_nothing_else_does():
    with Pool(env={"WEIR_FAKE_STEP_MS": "5"}) as pool:
        c, d = pool.client(), pool.client()
        for i in range(40):
            c.send({"type": "generate", "id": "r%d" % i, "prompt": "p", "max_tokens": 2000, "ignore_eos": True, "class": "batch"})
        pool.wait_for("full", lambda s: s["pool"]["queued_batch"] > 10)
        began, n = time.time(), 0
        d.send({"type": "generate", "id": "q", "prompt": "p", "max_tokens": 2000, "ignore_eos": True, "class": "batch"})
        while n < 10:  # they come, and not faster than one in 100 ms
            n += d.receive()["type"] == "progress"
        assert time.time() - began > 0.7, time.time() - began


def a_users_own_requests_go_by_priority():
    with Pool(workers=1) as pool:
        admin, c = pool.client(), pool.client()
        admin.send({"type": "admin", "id": "o", "verb": "pause", "worker": 0})
        assert admin.receive_type("admin", "error")["type"] == "admin"
        ahead = {}
        for name in ("normal", "low", "high"):
            c.send({"type": "generate", "id": name, "prompt": "p", "max_tokens": 5, "priority": name})
        while ahead != {"high": 0, "normal": 1, "low": 2}:  # progress says who goes before; all three were there at last
            m = c.receive()
            if m["type"] == "progress":
                ahead[m["id"]] = m["ahead"]
        admin.send({"type": "admin", "id": "o", "verb": "resume", "worker": 0})
        ends = {c.receive_type("done", "error")["type"] for _ in range(3)}
        assert ends == {"done"}, ends
        c.send({"type": "generate", "id": "x", "prompt": "p", "priority": "urgent"})
        refused = c.receive_type("error", "accepted")
        assert refused["type"] == "error" and "priority" in refused["message"] and "high" in refused["message"], refused


def limits_are_named():
    with Pool(env={"WEIR_FAKE_STEP_MS": "50"}, args=["--pool-bytes", "8M"]) as pool:
        c = pool.client()
        for i in range(2100):
            c.send({"type": "generate", "id": i, "prompt": "p", "max_tokens": 50000, "ignore_eos": True})
        busy = [m for m in (c.receive_type("error", "accepted") for _ in range(2100)) if m["type"] == "error"]
        assert len(busy) == 52 and all(m["code"] == "busy" and "2048" in m["message"] and m["retry_after_ms"] > 0 for m in busy), busy[:2]
        c.close()
        pool.wait_empty()
        c = pool.client()
        for i in range(12):
            c.send({"type": "generate", "id": i, "prompt": "p" * (1 << 20), "max_tokens": 50000, "ignore_eos": True})
        ends = [c.receive_type("error", "accepted") for _ in range(12)]
        busy = [m for m in ends if m["type"] == "error"]
        assert 3 <= len(busy) <= 5 and all("bytes" in m["message"] for m in busy), busy


def answers_that_nobody_reads_have_their_limit():
    with Pool(workers=16) as pool:  # its status is long
        deaf, c = Client(pool.endpoint, receive_hwm=1), pool.client()
        for _ in range(3300):  # a thousand fill the queue to the client, 1,800 take 16 MB
            deaf.send({"type": "status", "id": "s"})
        # Several have one line of the log together.
        pool.wait_for("dropped", lambda s: any(int(n) > 1 for n in re.findall(r"event=reply_dropped n=(\d+) ", pool.log())), 60)
        assert c.generate(prompt="p", max_tokens=2).end["type"] == "done"
        deaf.close()


def a_slow_reader_costs_only_itself():
    with Pool(env={"WEIR_FAKE_STEP_MS": "0"}, args=["--slow-reader-seconds", "1"]) as pool:
        slow, c = Client(pool.endpoint, receive_hwm=1), pool.client()
        slow.send({"type": "generate", "id": "r", "prompt": "p", "max_tokens": 100000, "ignore_eos": True, "n": 4})
        for _ in range(5):
            assert c.generate(prompt="x", max_tokens=100).end["type"] == "done"
        status = pool.wait_for("slow reader dropped", lambda s: s["pool"]["requests"] == 0, 60)
        assert status["totals"]["failed"] == 1 and status["totals"]["tokens"] < 400000, status["totals"]
        slow.close()
        pool.wait_empty()


def a_reader_that_pauses_gets_the_same_answer():
    tiny = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../reference/data/tiny/tiny-llama-Q8_0.gguf")
    with Pool(models=["tiny=" + tiny], real=True, args=["--slow-reader-seconds", "1000", "--kv-bytes", "16M", "--threads", "1"]) as pool:
        slow, c = Client(pool.endpoint, receive_hwm=1), pool.client()
        fields = dict(prompt="a", max_tokens=600, ignore_eos=True, n=16, seed=1, logprobs=True, top_logprobs=20)  # 2.5 MB
        slow.send({"type": "generate", "id": "r", **fields})
        before, made = -1, 0
        while made == 0 or made != before:  # until its sequences are paused
            time.sleep(0.3)
            before, made = made, pool.status()["totals"]["tokens"]
        assert made < 16 * 600, "it was computed to its end for nobody"
        late, want = slow.finish(["r"], 120)["r"], c.generate(seconds=120, **fields)
        assert late.ids == want.ids and late.text == want.text and late.logprobs == want.logprobs and late.end["takeovers"] == 0, late.end
        slow.close()


def users_share_by_tokens():
    with Pool(env={"WEIR_FAKE_STEP_MS": "4"}) as pool:
        c = pool.client()
        for i in range(120):
            c.send({"type": "generate", "id": "a%d" % i, "prompt": "p", "max_tokens": 60, "ignore_eos": True, "on_behalf_of": "alice"})
        pool.wait_for("queued", lambda s: s["pool"]["queued_interactive"] > 80)
        for i in range(10):
            c.send({"type": "generate", "id": "b%d" % i, "prompt": "p", "max_tokens": 60, "ignore_eos": True, "on_behalf_of": "bob"})
        order = []
        while len(order) < 130:
            m = c.receive_type("done", "error", seconds=60)
            assert m["type"] == "done"
            order.append(m["id"][0])
        assert "b" not in order[-60:], "bob waited for alice's hundred"
        users = {u["name"]: u for u in pool.status()["users"]}
        assert users["alice"]["completion_tokens"] == 120 * 60 and users["bob"]["completion_tokens"] == 600


def the_users_file_says_who_may_do_what():
    import tempfile
    folder = tempfile.mkdtemp(prefix="weir-test-")
    path = folder + "/users"

    def write(text):
        with open(path + ".new", "w") as f:
            f.write(text)
        os.chmod(path + ".new", 0o640)
        os.rename(path + ".new", path)

    me = "[me]\nuid = %d\n" % os.getuid()
    write(me + "[lazy]\nmax-running = 2\nmax-queued = 3\n[poor]\nmax-tokens-a-day = 25\n[gone]\ndisabled = yes\n[wide]\nmax-queued = 18446744073709551615\n")
    with Pool(env={"WEIR_FAKE_STEP_MS": "10"}, args=["--users-file", path]) as pool:
        c = pool.client()
        assert c.ask({"type": "hello"}, "hello")["user"] == "me"
        fields = dict(prompt="p", max_tokens=20, ignore_eos=True)
        assert c.generate(on_behalf_of="gone", **fields).code == "permission_denied"
        assert c.generate(on_behalf_of="poor", **fields).end["type"] == "done"
        assert c.generate(on_behalf_of="poor", **fields).end["type"] == "done"
        poor = c.generate(on_behalf_of="poor", **fields).end
        assert poor["code"] == "limit_exceeded" and "25" in poor["message"], poor
        ids = ["l%d" % i for i in range(5)]
        for id in ids:
            c.send({"type": "generate", "id": id, "on_behalf_of": "lazy", **fields})
        status = pool.wait_for("two run, or all are over", lambda s: s["pool"]["running"] > 0 or s["pool"]["requests"] == 0)
        assert status["pool"]["running"] <= 2, status["pool"]
        answers = c.finish(ids)
        codes = [a.code for a in answers.values()]
        assert codes.count("busy") in (0, 1, 2) and codes.count(None) >= 3, codes
        for id in ids:  # a limit that has no place for those that run
            c.send({"type": "generate", "id": id, "on_behalf_of": "wide", **fields})
        assert [a.code for a in c.finish(ids).values()] == [None] * 5
        write("[me]\nuid = %d\ndisabled = yes\n" % os.getuid())
        pool.process.send_signal(signal.SIGHUP)
        end = time.time() + 5 * PATIENCE
        while c.generate(**fields).code != "permission_denied":
            assert time.time() < end
        write("[me\n")
        pool.process.send_signal(signal.SIGHUP)  # a broken file changes nothing
        pool.wait_for("noticed", lambda s: "users_not_reloaded" in pool.log())
        assert c.generate(**fields).code == "permission_denied"
    import shutil
    shutil.rmtree(folder)


def the_members_of_a_group_share_its_limits():
    import tempfile
    folder = tempfile.mkdtemp(prefix="weir-test-")
    path = folder + "/users"
    with open(path, "w") as f:
        f.write("[@poor]\nmax-tokens-a-day = 25\n[@few]\nmax-queued = 2\n[me]\nuid = %d\n[ann]\ngroup = poor\n[bob]\ngroup = poor\n[eve]\ngroup = few\n[fay]\ngroup = few\nmax-running = 1\n[gone]\ndisabled = yes\n"
                "max-tokens-a-day = 1\n" % os.getuid())
    os.chmod(path, 0o640)
    with Pool(env={"WEIR_FAKE_STEP_MS": "10"}, args=["--users-file", path, "--user-running-max", "1"]) as pool:
        c = pool.client()
        fields = dict(prompt="p", max_tokens=20, ignore_eos=True)
        for who in ("ann", "bob"):
            assert c.generate(on_behalf_of=who, **fields).end["type"] == "done"
        for who in ("ann", "bob"):
            end = c.generate(on_behalf_of=who, **fields).end
            assert end["code"] == "limit_exceeded" and "poor" in end["message"] and "25" in end["message"], end
        assert c.generate(on_behalf_of="eve", **fields).end["type"] == "done", "another group"
        # a line of a job that was let in is finished, whatever its user's tokens, or whether the user may log in
        for who in ("ann", "gone"):
            for _ in range(2):
                assert c.generate(on_behalf_of=who, **{"class": "batch"}, **fields).end["type"] == "done", who
        assert c.generate(on_behalf_of="gone", **fields).code == "permission_denied"
        # one of each runs, two may wait: what comes then is told to come again
        ids = ["q%d" % i for i in range(8)]
        for i, id in enumerate(ids):
            c.send({"type": "generate", "id": id, "on_behalf_of": ("eve", "fay")[i % 2], "prompt": "p", "max_tokens": 200, "ignore_eos": True})
        answers = c.finish(ids)
        codes = [a.code for a in answers.values()]
        busy = [a.end["message"] for a in answers.values() if a.code == "busy"]
        assert codes.count(None) >= 2 and busy and all("few" in m for m in busy), (codes, busy)
    import shutil
    shutil.rmtree(folder)


def shows_its_numbers_to_prometheus():
    import urllib.request, urllib.error
    from ports import free_port
    port = free_port()
    with Pool(workers=2, args=["--metrics-port", str(port)]) as pool:
        pool.client().generate(prompt="x", max_tokens=20, ignore_eos=True)
        end = time.time() + 5 * PATIENCE
        while True:
            page = urllib.request.urlopen("http://127.0.0.1:%d/metrics" % port, timeout=5).read().decode()
            if 'weir_requests_total{result="done"} 1\n' in page:
                break
            assert time.time() < end, page
            time.sleep(0.1)
        names = [l.split(" ")[2] for l in page.splitlines() if l.startswith("# TYPE")]
        assert len(names) == len(set(names)) and "weir_first_token_seconds" in names
        for line in page.splitlines():
            assert line.startswith("#") or (line.startswith("weir_") and float(line.rsplit(" ", 1)[1]) >= 0), line
        assert 'weir_first_token_seconds_bucket{class="interactive",le="+Inf"} 1\n' in page
        assert 'weir_worker_up{slot="1",model="fake"} 1\n' in page
        try:
            urllib.request.urlopen("http://127.0.0.1:%d/" % port, timeout=5)
            assert False
        except urllib.error.HTTPError as e:
            assert e.code == 404


def goes_on_with_what_an_earlier_broker_began():
    with Pool() as pool:
        c = pool.client()
        want = c.generate(prompt="p", max_tokens=50, ignore_eos=True, seed=3)
        c.send({"type": "generate", "id": "r", "prompt": "p", "max_tokens": 50, "ignore_eos": True, "seed": 3,
                "resume": [{"choice": 0, "ids": want.ids[0][:20], "released_bytes": len(want.text[0][:14].encode())}]})
        a = Answer()
        a.ids[0], a.text[0] = want.ids[0][:20], want.text[0][:14]
        while a.end is None:
            a.take(c.receive())
        assert a.ids == want.ids and a.text == want.text


def drains_on_sigterm():
    pool = Pool(env={"WEIR_FAKE_STEP_MS": "5"})
    c = pool.client()
    for i in range(40):
        c.send({"type": "generate", "id": i, "prompt": "p", "max_tokens": 200, "ignore_eos": True})
    pool.wait_for("running", lambda s: s["pool"]["running"] > 0 and s["pool"]["queued_interactive"] > 0)
    pool.process.send_signal(signal.SIGTERM)
    wait_until(lambda: "event=drain" in pool.log(), 10, "it drains")
    c.send({"type": "generate", "id": 99, "prompt": "p"})
    answers = c.finish([str(i) for i in list(range(40)) + [99]])
    codes = [a.code for a in answers.values()]
    assert None in codes and "shutting_down" in codes and set(codes) <= {None, "shutting_down"}, codes
    assert answers["99"].code == "shutting_down" and answers["99"].end["retry_after_ms"] > 0
    assert pool.process.wait(10) == 0
    pool.stop()

    pool = Pool(env={"WEIR_FAKE_STEP_MS": "5"})
    c = pool.client()
    c.send({"type": "generate", "id": "r", "prompt": "p", "max_tokens": 100000, "ignore_eos": True})
    c.receive_type("token")
    pid = pool.status()["workers"][0]["pid"]
    pool.process.send_signal(signal.SIGTERM)
    wait_until(lambda: "event=drain" in pool.log(), 10, "it drains")  # or the second signal would be one with the first
    pool.process.send_signal(signal.SIGTERM)
    assert c.receive_type("error")["code"] == "shutting_down"
    assert pool.process.wait(5) == 0
    assert not os.path.exists("/proc/%d" % pid)
    pool.stop()


def what_it_is_told_wrong_is_named():
    import shutil, subprocess, tempfile
    from broker_pool import BIN, FAKE_WORKER
    folder = tempfile.mkdtemp(prefix="weir-test-")
    good = ["--model", "x=/dev/null"]
    for args, words in [
        ([], "--model"), (["--model", "/nonexistent.gguf"], "No such file"), (good + good, "called"), (good + ["--workers", "0"], "1 to 16"),
        (good + ["--model", "y=/dev/null", "--workers", "1"], "at least as many"), (good + ["--device", "gpu"], "gpu"),
        (good + ["extra"], "extra"), (good + ["--log-level", "loud"], "loud"), (good + ["--front-end-uid", "abc"], "abc"),
        (["--modle", "x"], "did you mean --model"), (good + ["--runtime-dir", "/tmp/" + "a" * 120], "107"),
        (good + ["--runtime-dir", "/dev/null/x"], "/dev/null"), (good + ["--endpoint", "inproc://x"], "ipc://"),
        (good + ["--metrics-port", "1", "--metrics-address", "localhost"], "localhost"), (["--model", "bad name=/dev/null"], "bad name"),
    ]:
        p = subprocess.run([BIN + "/weir-broker", "--worker-program", FAKE_WORKER] + args, capture_output=True, timeout=20,
                           env={**os.environ, "WEIR_RUNTIME_DIR": folder} if "--runtime-dir" not in args else None)
        assert p.returncode in (1, 2) and words in p.stderr.decode(), (args, p)
    assert b"--model" in subprocess.run([BIN + "/weir-broker", "--help"], capture_output=True, timeout=20).stdout
    shutil.rmtree(folder)


def a_second_broker_of_the_same_folder_is_refused():
    with Pool() as pool:
        import subprocess
        from broker_pool import BIN, FAKE_WORKER
        p = subprocess.run([BIN + "/weir-broker", "--runtime-dir", pool.dir + "/run", "--model", "x=/dev/null", "--worker-program", FAKE_WORKER],
                           capture_output=True, timeout=20)
        assert p.returncode != 0 and b"another broker" in p.stderr, p.stderr
        p = subprocess.run([BIN + "/weir-broker", "--endpoint", "tcp://127.0.0.1:5555", "--model", "x=/dev/null", "--worker-program",
                            FAKE_WORKER], capture_output=True, timeout=20)
        assert p.returncode == 2 and b"CURVE" in p.stderr, p.stderr
        assert pool.client().generate(prompt="x", max_tokens=3).end["type"] == "done"


def sixty_four_clients_come_and_go():
    """Each leaves each way: to the end, by cancel, without a word, with a broken message."""
    with Pool(workers=2, env={"WEIR_FAKE_STEP_MS": "1"}) as pool:
        failures = []

        def churn(k):
            rng = random.Random(k)
            try:
                for i in range(16):
                    c = Client(pool.endpoint)
                    way = rng.choice(["finish", "cancel", "leave", "broken"])
                    id = "%d-%d" % (k, i)
                    c.send({"type": "generate", "id": id, "prompt": "p%d" % rng.randrange(5), "max_tokens": rng.randrange(1, 120),
                            "n": rng.randrange(1, 4), "ignore_eos": True, "class": rng.choice(["batch", "interactive"])})
                    if way == "broken":
                        c.send_raw(SIGNATURE, bytes(rng.randrange(256) for _ in range(rng.randrange(40))))
                    if way == "cancel":
                        c.receive_type("token", "done")
                        c.send({"type": "cancel", "id": id})
                    if way in ("finish", "cancel"):
                        end = c.receive_type("done", "error", seconds=60) if way == "finish" else None
                        assert end is None or end["type"] == "done", end
                    if way == "leave":
                        time.sleep(rng.random() * 0.05)
                    c.close()
            except Exception as e:
                failures.append((k, repr(e)))

        threads = [threading.Thread(target=churn, args=(k,)) for k in range(64)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert not failures, failures[:3]
        status = pool.wait_empty(30)
        assert status["pool"]["bytes"] == 0, status["pool"]


if __name__ == "__main__":
    run([says_hello_and_who_you_are, generates_the_same_streamed_and_whole, draws_a_seed_and_says_it,
         several_choices_and_logprobs, tokenizes_and_lists_models, refuses_what_it_does_not_know,
         answers_broken_messages, a_frame_over_the_limit_costs_the_connection_only, ids_are_unique_on_a_connection,
         cancels_running_and_queued, deadlines_hold_in_the_queue_and_in_a_run, a_client_that_left_holds_nothing,
         progress_comes_while_nothing_else_does, a_users_own_requests_go_by_priority, limits_are_named, answers_that_nobody_reads_have_their_limit, a_slow_reader_costs_only_itself,
         a_reader_that_pauses_gets_the_same_answer,
         users_share_by_tokens, the_users_file_says_who_may_do_what, the_members_of_a_group_share_its_limits, shows_its_numbers_to_prometheus,
         goes_on_with_what_an_earlier_broker_began, drains_on_sigterm, what_it_is_told_wrong_is_named,
         a_second_broker_of_the_same_folder_is_refused, sixty_four_clients_come_and_go])
