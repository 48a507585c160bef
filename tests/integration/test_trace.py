#!/usr/bin/python3
"""`weir trace`: the phases of a request add up to its whole time, for those that ended, that run, and that were taken over."""
import json, os, subprocess, time

from broker_pool import BIN, Pool, run

MODEL = os.environ.get("WEIR_TEST_MODEL") or os.path.expanduser("~/.cache/weir/SmolLM2-135M-Instruct.Q4_1.gguf")
ORDER = ["queue", "earlier", "routing", "handover", "tokenize", "wait", "prefix", "prefill", "steps", "stream"]


def trace(pool, request):
    """One request's trace; what must hold of every one is checked."""
    r = pool.client().ask({"type": "trace", "id": "t", "request": request}, "trace")["requests"]
    assert len(r) == 1, r
    r = r[0]
    at = 0.0
    for p in r["phases"]:
        assert abs(p["start_ms"] - at) < 0.001 and p["ms"] >= 0, (p, at, r)
        at = p["start_ms"] + p["ms"]
    assert abs(at - r["total_ms"]) < 0.001, (at, r)
    names = [p["name"] for p in r["phases"]]
    assert names == sorted(names, key=ORDER.index), names
    return r, {p["name"]: p["ms"] for p in r["phases"]}


def wait_trace(pool, request, condition):
    end = time.time() + 60
    while True:
        r, phases = trace(pool, request)
        if condition(r, phases):
            return r, phases
        assert time.time() < end, r
        time.sleep(0.005)


def a_real_request_is_told_in_full():
    with Pool(models=["m=" + MODEL], real=True) as pool:
        c = pool.client()
        # the second asks for what the first is computing: it waits for that prefix; unless it comes so late that all is there
        for attempt in range(10):
            prompt = "The mill at river %d turns. " % attempt * 120
            for id in "ab":
                c.send({"type": "generate", "id": id, "prompt": prompt + id, "max_tokens": 8, "temperature": 0, "ignore_eos": True})
            answers = c.finish(["a", "b"])
            traces = [trace(pool, answers[id].accepted["request"]) for id in "ab"]
            if "prefix" in traces[1][1]:
                break
        for r, phases in traces:
            assert r["state"] == "done" and r["user"] and r["class"] == "interactive", r
            assert set(phases) >= {"queue", "routing", "handover", "tokenize", "wait", "prefill", "steps", "stream"}, phases
            assert r["completion_tokens"] == 8 and r["steps"] == 7, r
            assert 0 < r["steps_ms"] <= phases["steps"] + 0.001, (r, phases)
            assert 0 < r["chunks_ms"] <= phases["prefill"] + 0.001, (r, phases)
            assert r["tokenize_ms"] <= phases["tokenize"] + 0.001
            assert len(r["chunks"]) == min(r["chunks_total"], 16) and r["cached_tokens"] + sum(k["rows"] for k in r["chunks"]) == r["prompt_tokens"], r
            assert abs(sum(k["ms"] for k in r["chunks"]) - r["chunks_ms"]) < 0.001
        first, second = traces
        assert len(first[0]["chunks"]) > 1 and "prefix" not in first[1], first
        assert second[1].get("prefix", 0) > 0 and second[0]["cached_tokens"] > 0, second

        done = answers["a"].end["timings"]  # the broker's own account of the same request
        assert abs(done["queue_ms"] - first[1]["queue"]) < 1000 and done["total_ms"] <= first[0]["total_ms"] + 0.001, (done, first)

        weir = [os.path.join(BIN, "weir"), "--connect", pool.endpoint, "trace"]
        text = subprocess.run(weir + [answers["a"].accepted["request"]], capture_output=True, text=True, check=True).stdout
        assert all(word in text for word in ("queue", "tokenize", "chunk 2", "steps", "total")), text
        assert all(len(line) <= 100 for line in text.splitlines()), text
        listed = subprocess.run(weir, capture_output=True, text=True, check=True).stdout
        assert all(answers[id].accepted["request"] in listed for id in "ab"), listed
        asked = json.loads(subprocess.run(weir + ["--json"], capture_output=True, text=True, check=True).stdout)
        assert [r["state"] for r in asked["requests"]] == ["done"] * 2 * (attempt + 1), asked
        # a front end asks for a user: of the others nothing is told
        of_ann = c.generate(prompt="x", max_tokens=1, on_behalf_of="ann").accepted["request"]
        r = c.ask({"type": "trace", "id": "t", "on_behalf_of": "ann"}, "trace")["requests"]
        assert [(x["request"], x["user"]) for x in r] == [(of_ann, "ann")], r
        r = c.ask({"type": "trace", "id": "t", "request": of_ann, "on_behalf_of": "ann"}, "trace")["requests"]
        assert len(r) == 1 and r[0]["phases"], r
        for request, of, code in ((of_ann, "bob", "not_found"), (answers["a"].accepted["request"], "ann", "not_found"), (of_ann, "no such name!", "invalid_parameter")):
            m = c.ask({"type": "trace", "id": "t", "request": request, "on_behalf_of": of}, "error")
            assert m["code"] == code, (request, of, m)
        no = subprocess.run(weir + ["0-99"], capture_output=True, text=True)
        assert no.returncode == 1 and "not_found" in no.stderr, no


def one_that_runs_and_one_that_waits():
    with Pool(env={"WEIR_FAKE_STEP_MS": "20"}, args=["--user-running-max", "1"]) as pool:
        c = pool.client()
        c.send({"type": "generate", "id": "a", "prompt": "x", "max_tokens": 4000, "ignore_eos": True})
        a = c.receive_type("accepted")["request"]
        c.receive_type("token")
        c.send({"type": "generate", "id": "b", "prompt": "y", "max_tokens": 5})
        b = c.receive_type("accepted")["request"]
        r, phases = trace(pool, a)
        assert r["state"] == "running" and "stream" not in phases, r
        r, phases = trace(pool, b)
        assert r["state"] == "queued" and list(phases) == ["queue"], r
        total = r["total_ms"]
        wait_trace(pool, b, lambda r, phases: r["total_ms"] > total)
        c.send({"type": "cancel", "id": "a"})
        c.receive_type("done", "error")
        r, phases = wait_trace(pool, a, lambda r, phases: r["state"] == "error")
        assert r["error"] == "cancelled", r


def time_with_a_worker_that_died_is_told():
    with Pool(workers=2) as pool:
        c = pool.client()
        c.send({"type": "generate", "id": "a", "prompt": "!first signal 9 5", "max_tokens": 12, "ignore_eos": True})
        answer = c.finish(["a"])["a"]
        assert answer.end["type"] == "done" and answer.end["takeovers"] >= 1, answer.end
        r, phases = trace(pool, answer.accepted["request"])
        assert r["takeovers"] == answer.end["takeovers"] and phases["earlier"] > 0, r


if __name__ == "__main__":
    run([a_real_request_is_told_in_full, one_that_runs_and_one_that_waits, time_with_a_worker_that_died_is_told])
