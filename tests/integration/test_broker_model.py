"""The broker with real workers and a real model: answers are the same whatever happens to the workers."""
import os, random, signal, sys, tempfile, threading, time

from broker_pool import Answer, Client, Pool, SIGNATURE, run

MODEL = os.environ.get("WEIR_TEST_MODEL") or os.path.expanduser("~/.cache/weir/SmolLM2-135M-Instruct.Q4_1.gguf")
MODEL_2 = os.environ.get("WEIR_TEST_MODEL_2") or os.path.expanduser("~/.cache/weir/gemma-3-270m-q4_k_m.gguf")

SYSTEM = "You are a careful librarian. Answer in the language of the question, in whole sentences. " * 8
QUESTIONS = ["What is a mill?", "Wie hei\u00dft die Hauptstadt von \u00d6sterreich?", "Name three rivers.", "Quelle heure est-il ?",
             "Write a line with emoji \U0001F600.", "Why is the sky blue?", "Count to ten.", "\u65e5\u672c\u306e\u9996\u90fd\u306f\uff1f"]


def requests(max_tokens):
    """Greedy and sampled, one choice and several, whole and streamed, with stop strings, penalties, log-probabilities."""
    r = {}
    for i in range(16):
        f = dict(messages=[{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTIONS[i % 8]}],
                 max_tokens=max_tokens, seed=i, temperature=0.0 if i % 2 == 0 else 1.2, stream=i % 5 != 4, ignore_eos=i % 3 == 0)
        if i % 4 == 1:
            f.update(n=3, top_p=0.9)
        if i % 4 == 2:
            f.update(logprobs=True, top_logprobs=2)
        if i % 4 == 3:
            f.update(stop=["the ", ". "], repetition_penalty=1.1, presence_penalty=0.5)
        r["r%d" % i] = f
    return r


def same(a, b, id):
    assert a.end["type"] == b.end["type"] == "done", (a.end, b.end)
    assert a.ids == b.ids, "%s: tokens differ: %r %r" % (id, a.ids, b.ids)
    assert a.text == b.text, "%s: text differs: %r %r" % (id, a.text, b.text)
    assert a.logprobs == b.logprobs, id
    assert a.end["choices"] == b.end["choices"] and a.end["system_fingerprint"] == b.end["system_fingerprint"]


def killed_workers_change_no_answer():
    with Pool(workers=2, models=["m=" + MODEL], real=True) as pool:
        c = pool.client()
        want = {id: c.generate(id=id, seconds=120, **f) for id, f in requests(100).items()}
        for id, f in requests(100).items():
            c.send({"type": "generate", "id": id, **f})
        got, n_killed, due = {id: Answer() for id in want}, 0, time.time() + 0.3
        control = pool.client()
        while any(a.end is None for a in got.values()):
            m = c.receive(120)
            if m.get("id") in got:
                got[m["id"]].take(m)
            if n_killed < 5 and time.time() > due:
                status = control.ask({"type": "status", "id": "s"}, "status")
                busy = [w for w in status["workers"] if w["state"] == "ready" and w["held"] > 0]
                if busy:
                    os.kill(busy[n_killed % len(busy)]["pid"], signal.SIGKILL)
                    n_killed += 1
                due = time.time() + 0.5
        assert n_killed >= 2, n_killed
        for id in want:
            same(want[id], got[id], id)
        assert sum(a.end["takeovers"] for a in got.values()) > 0
        pool.wait_empty()


def a_user_whose_scope_is_the_pool_shares_and_may_say_otherwise():
    with tempfile.TemporaryDirectory(prefix="weir-users-") as folder:
        users = os.path.join(folder, "users")
        with open(users, "w", encoding="utf-8") as f:
            f.write("[carl]\ncache-scope = pool\n[dora]\ncache-scope = pool\n[emil]\n")
        with Pool(models=["m=" + MODEL], real=True, args=["--users-file", users]) as pool:
            def cached(user, **fields):
                a = pool.client().generate(prompt=SYSTEM + QUESTIONS[0], max_tokens=2, temperature=0.0, on_behalf_of=user, **fields)
                return a.end["usage"]["cached_tokens"]
            assert cached("carl") == 0 and cached("dora") > 0, "two who share"
            assert cached("emil") == 0 and cached("dora", scope="user") == 0, "one who does not, and one who does not this time"
            assert cached("emil", scope="pool") > 0 and cached("carl", salt="mine") == 0, "by request"


def an_equal_prompt_is_computed_once_and_answered_alike():
    with Pool(workers=2, models=["m=" + MODEL], real=True) as pool:
        c = pool.client()
        f = dict(prompt=SYSTEM + QUESTIONS[0], max_tokens=30, temperature=0.0, logprobs=True)
        a, b = c.generate(**f), c.generate(**f)
        same(a, b, "twice")
        usage = b.end["usage"]
        assert a.end["usage"]["cached_tokens"] == 0 and usage["cached_tokens"] >= usage["prompt_tokens"] - 1, usage
        off = c.generate(cache="off", **f)
        same(a, off, "without cache")
        assert off.end["usage"]["cached_tokens"] == 0
        other = c.generate(on_behalf_of="somebody-else", **f)
        assert other.end["usage"]["cached_tokens"] == 0, "another user's cache was met"
        assert pool.client().generate(scope="pool", **f).end["usage"]["cached_tokens"] == 0
        assert pool.client().generate(scope="pool", on_behalf_of="eve", **f).end["usage"]["cached_tokens"] > 0


def two_models_serve_side_by_side():
    if not os.path.exists(MODEL_2):
        return
    with Pool(workers=2, models=["small=" + MODEL, "other=" + MODEL_2], real=True) as pool:
        c = pool.client()
        a = c.generate(prompt="The capital of France is", max_tokens=8, temperature=0.0)
        b = c.generate(prompt="The capital of France is", max_tokens=8, temperature=0.0, model="other")
        assert a.end["model"] == "small" and b.end["model"] == "other"
        assert a.end["system_fingerprint"] != b.end["system_fingerprint"] and a.end["worker"] != b.end["worker"]
        assert "Paris" in a.text[0] and "France" in b.text[0], (a.text, b.text)


def sixty_four_clients_leave_in_every_way():
    """To the end, by cancel, killed, with a broken message: then nothing runs and no block is pinned."""
    with Pool(workers=2, models=["m=" + MODEL], real=True) as pool:
        failures, count = [], {"finish": 0, "cancel": 0, "leave": 0, "broken": 0}
        lock = threading.Lock()

        def churn(k):
            rng = random.Random(k)
            try:
                while True:
                    with lock:
                        left = [way for way in count if count[way] < 200]
                        if not left:
                            return
                        way = rng.choice(left)
                        count[way] += 1
                    c = Client(pool.endpoint)
                    c.send({"type": "generate", "id": "x", "prompt": QUESTIONS[rng.randrange(8)], "max_tokens": rng.randrange(1, 12),
                            "class": rng.choice(["batch", "interactive"])})
                    if way == "finish":
                        assert c.receive_type("done", "error", seconds=150)["type"] == "done"
                    elif way == "cancel":
                        if rng.random() < 0.5:
                            c.receive_type("token", "done", seconds=150)
                        c.send({"type": "cancel", "id": "x"})
                        time.sleep(0.01)
                    elif way == "leave":
                        time.sleep(rng.random() * 0.1)
                    else:
                        c.send_raw(SIGNATURE, bytes(rng.randrange(256) for _ in range(rng.randrange(60))))
                        c.receive_type("error", "done", seconds=150)
                    c.close()
            except Exception as e:
                failures.append((k, repr(e)))

        threads = [threading.Thread(target=churn, args=(k,)) for k in range(64)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert not failures, failures[:3]
        status = pool.wait_empty(20)
        assert status["pool"]["bytes"] == 0 and all(w["life"] == 1 for w in status["workers"]), status


if __name__ == "__main__":
    if not os.path.exists(MODEL):
        print("no model at " + MODEL)
        sys.exit(77)
    run([an_equal_prompt_is_computed_once_and_answered_alike, a_user_whose_scope_is_the_pool_shares_and_may_say_otherwise, killed_workers_change_no_answer, two_models_serve_side_by_side,
         sixty_four_clients_leave_in_every_way])
