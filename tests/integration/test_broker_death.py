"""The broker itself is killed in mid-stream and started again: with --retry the answer is what it would have been."""
import json, os, subprocess, time

from broker_pool import BIN, PATIENCE, Pool, run

WEIR = os.path.join(BIN, "weir")
MODEL = os.environ.get("WEIR_TEST_MODEL") or os.path.expanduser("~/.cache/weir/SmolLM2-135M-Instruct.Q4_1.gguf")


def begin(pool, *args):
    return subprocess.Popen([WEIR, *args, "--connect", pool.endpoint], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def end(p, code=0, timeout=60):
    out, err = p.communicate(timeout=timeout)
    assert p.returncode == code, (p.returncode, out, err)
    return out


def tokens(pool):
    return pool.status()["totals"]["tokens"]


def wait_tokens(pool, n):
    pool.wait_for("under way", lambda s: s["totals"]["tokens"] >= n)


def a_stream_goes_on_over_the_brokers_death():
    args = ["generate", "--ignore-eos", "--max-tokens", "200", "--seed", "5", "p"]
    with Pool(env={"WEIR_FAKE_STEP_MS": "5"}) as pool:
        want = end(begin(pool, *args))
        for n_deaths in (1, 3):
            before = tokens(pool)
            p = begin(pool, "generate", "--retry", "20s", *args[1:])
            for i in range(n_deaths):
                wait_tokens(pool, (before if i == 0 else 0) + 30)
                pool.kill_and_restart(0.2)
                pool.wait_ready(1)
            assert end(p) == want
        # without --retry it is an error
        before = tokens(pool)
        p = begin(pool, *args)
        wait_tokens(pool, before + 20)
        pool.kill_and_restart()
        end(p, 3)
        pool.wait_ready(1)


def several_choices_with_logprobs_too():
    args = ["generate", "--json", "--ignore-eos", "--max-tokens", "150", "--seed", "5", "--n", "3", "--top-logprobs", "2", "p"]
    with Pool(env={"WEIR_FAKE_STEP_MS": "5"}) as pool:
        want = json.loads(end(begin(pool, *args)))
        p = begin(pool, "generate", "--retry", "20s", *args[1:])
        wait_tokens(pool, 3 * 150 + 90)
        pool.kill_and_restart()
        got = json.loads(end(p))
        for key in ("choices", "seed", "system_fingerprint"):
            assert got[key] == want[key], key
        assert got["usage"]["completion_tokens"] == 450
        pool.wait_ready(1)


def one_that_does_not_come_back_is_given_up():
    with Pool(env={"WEIR_FAKE_STEP_MS": "5"}) as pool:
        p = begin(pool, "generate", "--retry", "1s", "--ignore-eos", "--max-tokens", "2000", "p")
        wait_tokens(pool, 20)
        began = time.time()
        pool.process.kill()
        pool.process.wait()
        end(p, 3)
        assert 0.5 < time.time() - began < 5 * PATIENCE
        pool.start()
        pool.wait_ready(1)


def a_batch_goes_on_where_its_lines_were():
    with Pool(env={"WEIR_FAKE_STEP_MS": "5"}) as pool:
        path = os.path.join(pool.dir, "in.jsonl")
        with open(path, "w") as f:
            for i in range(12):
                f.write(json.dumps({"id": "l%d" % i, "prompt": "p%d" % i, "max_tokens": 200, "ignore_eos": True, "seed": i}) + "\n")

        def texts(name):
            with open(os.path.join(pool.dir, name)) as f:
                return {r["custom_id"]: r["response"]["body"]["choices"] for r in map(json.loads, f)}

        end(begin(pool, "batch", "-q", path, "-o", os.path.join(pool.dir, "want.jsonl")))
        p = begin(pool, "batch", "-q", path, "-o", os.path.join(pool.dir, "got.jsonl"))
        wait_tokens(pool, 2400 + 300)
        pool.kill_and_restart(0.1)
        pool.wait_ready(1)
        end(p)
        assert texts("got.jsonl") == texts("want.jsonl") and len(texts("got.jsonl")) == 12
        n = pool.status()["totals"]["tokens"]
        assert n < 2400 - 200, "the second broker made %d of 2400 tokens: nothing was kept" % n


def real_workers_go_on_with_the_same_tokens():
    if not os.path.exists(MODEL):
        print("  (no model: not tried)")
        return
    with Pool(models=["m=" + MODEL], real=True) as pool:
        for extra in (["--temperature", "0"], ["--temperature", "1.1", "--seed", "3", "--stop", "zzz"]):
            args = ["generate", "--json", "--ignore-eos", "--max-tokens", "80", *extra, "The sea is wide, and"]
            want = json.loads(end(begin(pool, *args), timeout=120))
            before = pool.status()["totals"]["tokens"]
            p = begin(pool, "generate", "--retry", "60s", *args[1:])
            wait_tokens(pool, before + 25)
            pool.kill_and_restart()
            got = json.loads(end(p, timeout=120))
            assert got["token_ids"] == want["token_ids"] and got["text"] == want["text"], (want["text"], got["text"])
            pool.wait_ready(1)


if __name__ == "__main__":
    run([a_stream_goes_on_over_the_brokers_death, several_choices_with_logprobs_too, one_that_does_not_come_back_is_given_up,
         a_batch_goes_on_where_its_lines_were, real_workers_go_on_with_the_same_tokens])
