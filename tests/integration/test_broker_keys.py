"""Idempotency keys: a request that is sent twice is done once, whatever happens to the connections."""
import os, time

from broker_pool import Pool, run

ASK = dict(prompt="p", max_tokens=120, ignore_eos=True)


def generated(pool):
    return pool.status()["totals"]["tokens"]


def an_answer_is_told_again():
    with Pool() as pool:
        c, other = pool.client(), pool.client()
        assert "idempotency" in c.ask({"type": "hello"}, "hello")["features"]
        ask = dict(prompt="p", max_tokens=300, ignore_eos=True, n=3, logprobs=True, stop=["never"], idempotency_key=b"\x00k")
        first = c.generate(**ask)
        n = generated(pool)
        assert first.end["type"] == "done" and n == 900
        for client, stream in ((c, True), (other, True), (other, False)):
            again = client.generate(id="again", stream=stream, **ask)
            assert again.ids == first.ids and again.text == first.text and again.logprobs == first.logprobs
            assert again.accepted["seed"] == first.accepted["seed"] and again.accepted["request"] == first.accepted["request"]
            for key in ("choices", "usage", "worker", "takeovers", "system_fingerprint", "model"):
                assert again.end[key] == first.end[key], key
        status = pool.wait_empty()
        assert status["totals"]["tokens"] == n and status["totals"]["done"] == 1 and status["totals"]["accepted"] == 1
        assert status["pool"]["kept_answers"] == 1 and status["pool"]["kept_bytes"] > 900 * 4 and status["pool"]["bytes"] == 0


def another_request_with_the_key_is_refused():
    with Pool(env={"WEIR_FAKE_STEP_MS": "3"}) as pool:
        c = pool.client()
        c.send({"type": "generate", "id": "r", "idempotency_key": "k", **ASK})
        c.receive_type("accepted")
        other = pool.client()
        for state in ("running", "kept"):
            for change in (dict(prompt="q"), dict(max_tokens=121), dict(seed=1), dict(temperature=0.5), dict(cache="off"), dict(takeover="any"),
                           dict(salt="s"), dict(n=2), dict(stop="x"), {"class": "batch"}):
                m = other.generate(idempotency_key="k", **{**ASK, **change}).end
                assert m["code"] == "key_conflict" and m["param"] == "idempotency_key", (state, change, m)
            if state == "running":
                assert c.finish(["r"])["r"].end["type"] == "done"
        m = other.generate(idempotency_key="k", seed=1, resume=[{"choice": 0, "ids": [], "released_bytes": 0}], **ASK).end
        assert m["code"] == "invalid_request", m
        assert other.generate(idempotency_key="k", deadline_ms=5000, **ASK).end["type"] == "done"
        assert other.generate(idempotency_key="k2", **{**ASK, "prompt": "q"}).end["type"] == "done"


def the_request_goes_on_for_who_asks_last():
    with Pool(env={"WEIR_FAKE_STEP_MS": "15"}) as pool:
        c, other = pool.client(), pool.client()
        want = c.generate(seed=9, **ASK)
        c.send({"type": "generate", "id": "a", "idempotency_key": "k", "seed": 9, **ASK})
        c.receive_type("token")
        c.send({"type": "generate", "id": "a", "idempotency_key": "k", "seed": 9, **ASK})
        assert c.receive_type("error")["code"] == "duplicate_id"  # of this connection's own
        for client, id in ((other, "b"), (c, "c")):
            client.send({"type": "generate", "id": id, "idempotency_key": "k", "seed": 9, **ASK})
            if client is other:
                m = c.receive_type("error")
                assert m["id"] == "a" and m["code"] == "cancelled", m
                other.receive_type("token")
            else:
                while True:
                    m = other.receive_type("error")
                    if m["id"] == "b":
                        break
        answer = c.finish(["c"])["c"]
        assert answer.ids == want.ids and answer.text == want.text and answer.end["type"] == "done"
        assert generated(pool) == 240
        pool.wait_empty()


def a_client_that_left_finds_its_request_again():
    with Pool(workers=2, env={"WEIR_FAKE_STEP_MS": "5"}) as pool:
        want = pool.client().generate(seed=9, **ASK)
        for when in ("queued", "running", "done"):
            c = pool.client()
            before = generated(pool)
            c.send({"type": "generate", "id": "a", "idempotency_key": when, "seed": 9, **ASK})
            if when != "queued":
                c.receive_type("token")
            c.close()
            if when == "done":
                pool.wait_for("done", lambda s: s["pool"]["requests"] == 0 and s["pool"]["kept_answers"] == 3)
            again = pool.client().generate(idempotency_key=when, seed=9, **ASK)
            assert again.ids == want.ids and again.text == want.text, when
            assert generated(pool) - before == 120, when
        pool.wait_empty()


def a_failed_request_is_a_new_one_the_next_time():
    with Pool(env={"WEIR_FAKE_STEP_MS": "15"}) as pool:
        c = pool.client()
        assert c.generate(prompt="!error", idempotency_key="e").code == "context_overflow"
        assert c.generate(prompt="p", max_tokens=3, idempotency_key="e").end["type"] == "done"
        c.send({"type": "generate", "id": "a", "idempotency_key": "k", **ASK})
        c.receive_type("token")
        c.send({"type": "cancel", "id": "a"})
        c.send({"type": "generate", "id": "b", "idempotency_key": "k", **ASK})
        answers = c.finish(["a", "b"])
        assert answers["a"].code == "cancelled" and answers["b"].end["type"] == "done"
        assert c.generate(idempotency_key="d", deadline_ms=50, **ASK).code == "deadline_exceeded"
        assert c.generate(idempotency_key="d", **ASK).end["type"] == "done"
        pool.wait_empty()


def keys_are_each_users_own():
    with Pool() as pool:
        c = pool.client()
        for user in ("ann", "bob"):
            a = c.generate(prompt="p of " + user, max_tokens=5, on_behalf_of=user, idempotency_key="k")
            assert a.end["type"] == "done", a.end
        assert c.generate(prompt="p of bob", max_tokens=5, on_behalf_of="ann", idempotency_key="k").code == "key_conflict"


def keys_hold_while_clients_come_and_go_and_workers_die():
    import random, signal
    rng = random.Random(3)
    with Pool(workers=2, env={"WEIR_FAKE_STEP_MS": "2"}) as pool:
        c = pool.client()
        requests = {"k%d" % i: dict(prompt="p%d" % i, max_tokens=60 + i, ignore_eos=True, seed=i, n=1 + i % 3, logprobs=i % 2 == 0) for i in range(24)}
        want = {k: c.generate(**f) for k, f in requests.items()}
        done, due = {}, time.time() + 0.3
        while len(done) < len(requests):
            client = pool.client()
            keys = rng.sample([k for k in requests if k not in done], min(6, len(requests) - len(done)))
            for k in keys:
                client.send({"type": "generate", "id": k, "idempotency_key": k, **requests[k]})
            if rng.random() < 0.5:
                for k, a in client.finish(keys).items():
                    assert a.end["type"] == "done", a.end
                    done[k] = a
            else:
                time.sleep(rng.random() * 0.2)
            client.close()
            if time.time() > due:
                due = time.time() + 0.3
                w = rng.choice(pool.status()["workers"])
                if "pid" in w:
                    os.kill(w["pid"], signal.SIGKILL)
        for k, a in done.items():
            assert a.ids == want[k].ids and a.text == want[k].text and a.logprobs == want[k].logprobs, k
        total = sum(sum(len(ids) for ids in a.ids.values()) for a in want.values())
        assert generated(pool) == 2 * total, (generated(pool), total)
        pool.wait_empty()


if __name__ == "__main__":
    run([an_answer_is_told_again, another_request_with_the_key_is_refused, the_request_goes_on_for_who_asks_last,
         a_client_that_left_finds_its_request_again, a_failed_request_is_a_new_one_the_next_time, keys_are_each_users_own,
         keys_hold_while_clients_come_and_go_and_workers_die])
