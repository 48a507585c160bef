"""The host store with real workers and a real model: what one worker computed, others and later lives of it read, bit for bit."""
import os, signal, sys, time

from broker_pool import Pool, run

MODEL = os.environ.get("WEIR_TEST_MODEL") or os.path.expanduser("~/.cache/weir/SmolLM2-135M-Instruct.Q4_1.gguf")
STORE = ["--host-store-bytes", "256M"]
BLOCK = 16

TEXT = " ".join("Mill number %d grinds %d sacks of rye, oats and barley a day, and the miller counts them." % (i, i * 7)
                for i in range(14))


def ask(pool, text, **fields):
    f = dict(prompt=text, max_tokens=24, temperature=0.0, logprobs=True, top_logprobs=3)
    f.update(fields)
    return pool.client().generate(seconds=120, **f)


def same(a, b):
    assert a.end["type"] == b.end["type"] == "done", (a.end, b.end)
    assert a.ids == b.ids and a.text == b.text and a.logprobs == b.logprobs, (a.text, b.text)
    assert a.end["system_fingerprint"] == b.end["system_fingerprint"]


def cached(a):
    return a.end["usage"]["cached_tokens"]


def prompt_tokens(a):
    return a.end["usage"]["prompt_tokens"]


def workers(pool):
    return pool.status()["workers"]


def stored(pool, n_blocks):
    """Wait until so many blocks are in the store."""
    pool.wait_for("stored", lambda s: sum(w.get("store_blocks", 0) for w in s["workers"]) >= n_blocks)


def kill(pool, slot, sig=signal.SIGKILL):
    """Kill a worker; returns when the broker knows."""
    before = workers(pool)[slot]
    os.kill(before["pid"], sig)
    pool.wait_for("dead", lambda s: s["workers"][slot]["state"] != "ready" or s["workers"][slot]["life"] > before["life"])


def a_prefix_computed_on_one_worker_is_read_by_the_other():
    with Pool(workers=2, models=["m=" + MODEL], real=True, args=STORE) as pool:
        a = ask(pool, TEXT)
        first = a.end["worker"]
        assert cached(a) == 0 and prompt_tokens(a) > 200
        stored(pool, prompt_tokens(a) // BLOCK)
        off = ask(pool, TEXT, cache="off")
        same(a, off)
        kill(pool, first)
        b = ask(pool, TEXT)
        assert b.end["worker"] != first, "the dead worker answered"
        same(a, b)
        assert cached(b) >= (prompt_tokens(b) - 1) // BLOCK * BLOCK, b.end["usage"]
        w = workers(pool)[b.end["worker"]]
        assert w["store_hits_other"] > 0 and w["store_refused"] == 0, w
        # One token further than a block's border: what is loaded and what is computed meet in the middle of a prompt.
        longer = ask(pool, TEXT + " And then the wind turned.")
        same(longer, ask(pool, TEXT + " And then the wind turned.", cache="off"))
        assert cached(longer) > 0


def a_restarted_worker_answers_from_the_store():
    with Pool(workers=1, models=["m=" + MODEL], real=True, args=STORE) as pool:
        a = ask(pool, TEXT)
        stored(pool, prompt_tokens(a) // BLOCK)
        kill(pool, 0)
        pool.wait_ready(1)
        b = ask(pool, TEXT)
        same(a, b)
        w = workers(pool)[0]
        assert w["life"] == 2 and w["store_hits"] > 0 and cached(b) >= (prompt_tokens(b) - 1) // BLOCK * BLOCK, (w, b.end["usage"])
        assert w["tokens_prefilled"] <= BLOCK + 1, w


def a_worker_that_ends_by_its_own_fault_leaves_nothing():
    with Pool(workers=2, models=["m=" + MODEL], real=True, args=STORE) as pool:
        a = ask(pool, TEXT)
        first = a.end["worker"]
        stored(pool, prompt_tokens(a) // BLOCK)
        kill(pool, first, signal.SIGSEGV)
        b = ask(pool, TEXT)
        same(a, b)
        assert b.end["worker"] != first and cached(b) == 0, b.end
        pool.wait_ready(2)
        assert workers(pool)[first]["store_blocks"] == 0


def evicted_blocks_come_back():
    """A cache of 70 blocks, prompts of more together: each is found again, and the store keeps its limit."""
    args = ["--host-store-bytes", "32M", "--kv-bytes", str(70 * 368640)]
    with Pool(workers=1, models=["m=" + MODEL], real=True, args=args) as pool:
        texts = ["%d. " % i + TEXT for i in range(5)]
        want = [ask(pool, t, max_tokens=4) for t in texts]
        got = [ask(pool, t, max_tokens=4) for t in texts]
        w = workers(pool)[0]
        for a, b in zip(want, got):
            same(a, b)
        assert w["evictions"] > 0 and w["store_hits"] > 0, w
        assert 0 < w["evictions_stored"] <= w["evictions"] and w["eviction_age_ms_mean"] > 0 and 0 < w["hit_rate"] < 1, w
        user = pool.status()["users"][0]
        assert 0 < user["hit_rate"] < 1 and user["queue_ms_mean"] >= 0 and user["preemptions"] == 0, user
        assert sum(cached(b) for b in got) > 0
        assert 0 < w["store_blocks"] <= w["store_blocks_max"] and w["store_blocks_max"] * w["block_bytes"] <= 32 << 20, w


def scopes_never_cross():
    with Pool(workers=2, models=["m=" + MODEL], real=True, args=STORE) as pool:
        secret = "The password of the mill is swordfish. " + TEXT
        a = ask(pool, secret, on_behalf_of="alice")
        salted = ask(pool, secret, on_behalf_of="alice", salt="s")
        stored(pool, 2 * (prompt_tokens(a) // BLOCK))
        assert cached(a) == cached(salted) == 0
        kill(pool, a.end["worker"])
        for fields in dict(on_behalf_of="eve"), dict(on_behalf_of="eve", salt="s"), dict(on_behalf_of="alice", salt="t"), \
                dict(on_behalf_of="eve", scope="pool"):
            b = ask(pool, secret, max_tokens=2, **fields)
            assert cached(b) == 0, (fields, b.end["usage"])
        again = ask(pool, secret, on_behalf_of="alice")
        same(a, again)
        assert cached(again) > 0


def without_a_store_all_works():
    with Pool(workers=2, models=["m=" + MODEL], real=True, args=["--host-store-bytes", "0"]) as pool:
        a = ask(pool, TEXT, max_tokens=4)
        kill(pool, a.end["worker"])
        b = ask(pool, TEXT, max_tokens=4)
        same(a, b)
        assert cached(b) == 0 and all(w.get("store_blocks_max", 0) == 0 for w in workers(pool))


def workers_killed_all_the_time_read_only_what_is_right():
    """Two workers, killed at random moments, also while they write to the store: every answer is the one of the quiet pool."""
    with Pool(workers=2, models=["m=" + MODEL], real=True, args=STORE) as pool:
        texts = ["%d: " % (i % 4) + TEXT[:600 + 97 * i] for i in range(8)]
        want = [ask(pool, t, max_tokens=12, cache="off") for t in texts]
        n_cached = 0
        for k in range(10):
            c = pool.client()
            for i, t in enumerate(texts):
                c.send({"type": "generate", "id": str(i), "prompt": t, "max_tokens": 12, "temperature": 0.0, "logprobs": True,
                        "top_logprobs": 3})
            time.sleep(0.03 + 0.07 * k)
            live = [w for w in workers(pool) if w["state"] == "ready"]
            if live:
                os.kill(live[k % len(live)]["pid"], signal.SIGKILL)
            got = c.finish([str(i) for i in range(len(texts))], 120)
            for i, a in enumerate(want):
                same(a, got[str(i)])
                n_cached += cached(got[str(i)])
        assert n_cached > 0
        assert sum(w["restarts"] for w in workers(pool)) > 0


if __name__ == "__main__":
    if not os.path.exists(MODEL):
        print("no model at " + MODEL)
        sys.exit(77)
    run([a_prefix_computed_on_one_worker_is_read_by_the_other, a_restarted_worker_answers_from_the_store,
         a_worker_that_ends_by_its_own_fault_leaves_nothing, evicted_blocks_come_back, scopes_never_cross, without_a_store_all_works,
         workers_killed_all_the_time_read_only_what_is_right])
