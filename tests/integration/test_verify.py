#!/usr/bin/python3
"""`weir verify`: answers of a batch and of a job, computed again; what is not the same bits is found and named."""
import glob, json, os, sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from serve_rig import Serve, main, wait_until

LINES = [{"id": "greedy", "prompt": "a b c", "temperature": 0, "max_tokens": 12}, {"id": "seeded", "prompt": "x y", "seed": 77, "max_tokens": 9},
         {"id": "drawn", "prompt": "one two three", "max_tokens": 10, "temperature": 1.3},
         {"id": "many", "prompt": "q", "n": 3, "max_tokens": 7, "logprobs": True, "top_logprobs": 4},
         {"prompt": "no name of its own", "max_tokens": 5, "stop": ["e"]},
         {"custom_id": "o", "method": "POST", "url": "/v1/completions", "body": {"prompt": "open", "max_tokens": 6, "logprobs": 2}},
         {"id": "nul", "prompt": "q", "max_tokens": 4, "logit_bias": {"0": 100}, "temperature": 0},
         {"id": "refused", "prompt": "z", "temperature": 1e9}]


def write(path, lines):
    with open(path, "w") as f:
        f.writelines(json.dumps(line) + "\n" for line in lines)


def read(path):
    with open(path) as f:
        return [json.loads(line) for line in f]


def answers_are_computed_again_bit_by_bit():
    with Serve(workers=1, metrics=False) as pool:
        source, answers = pool.path("in.jsonl"), pool.path("out.jsonl")
        write(source, LINES)
        pool.weir("batch", "-q", source, "-o", answers, code=1)
        records = read(answers)
        assert len(records) == 7
        assert "\0" in next(r for r in records if r["custom_id"] == "nul")["response"]["body"]["choices"][0]["text"]
        for r in records:
            body = r["response"]["body"]
            assert isinstance(body["seed"], int) and body["system_fingerprint"], body
            for c in body["choices"]:
                assert len(c["token_hash"]) == 32 and c["n_tokens"] > 0, c
        assert {r["custom_id"]: r["response"]["body"]["seed"] for r in records}["seeded"] == 77
        said = pool.weir("verify", source, answers).stdout
        assert said.startswith("7 of 7 answers") and "7 equal, 0 differ, 0 of another class, 0 not rerun" in said, said
        some = json.loads(pool.weir("verify", source, answers, "--sample", "2", "--draw", "5", "--json").stdout)
        assert some["sample"] == 2 and some["equal"] == 2 and some["answers"] == 7 and some["draw"] == 5 and some["lines"] == [], some

        # one byte of a text, one token's hash, one log-probability, one seed, a line that the input lacks
        def changed(custom_id, change):
            broken = read(answers)
            body = next(r for r in broken if r["custom_id"] == custom_id)
            change(body["response"]["body"])
            write(pool.path("broken.jsonl"), broken)
            return pool.weir("verify", source, pool.path("broken.jsonl"), code=1).stdout

        def text(body): body["choices"][0]["text"] = body["choices"][0]["text"][:-1] + "#"
        def hash(body): body["choices"][0]["token_hash"] = "0" * 32
        def logprob(body): body["choices"][2]["logprobs"]["token_logprobs"][3] += 1e-6
        def finish(body): body["choices"][0]["finish_reason"] = "error"
        def unseeded(body): del body["seed"]
        for id, change, words in [("greedy", text, "the texts part after"), ("seeded", hash, "other tokens"), ("many", logprob, "choice 2: log-prob"),
                                  ("drawn", finish, "finish_reason is"), ("greedy", unseeded, "has no seed")]:
            said = changed(id, change)
            assert id in said and words in said and "6 equal" in said, said
        write(pool.path("less.jsonl"), [l for l in LINES if l.get("id") != "drawn"])
        assert "no such line" in pool.weir("verify", pool.path("less.jsonl"), answers, code=1).stdout
        # no worker of that class
        broken = read(answers)
        for r in broken:
            r["response"]["body"]["system_fingerprint"] = "cpu-of-yesterday"
        write(pool.path("broken.jsonl"), broken)
        said = pool.weir("verify", source, pool.path("broken.jsonl"), code=4).stderr
        assert "no_worker" in said and "cpu-of-yesterday" in said and "no worker of it is left" in said, said
        assert pool.weir("verify", source, source, code=1).stderr and pool.weir("verify", source, code=2).stderr


def a_job_is_verified_in_its_folder_and_over_ssh():
    with Serve(workers=1, metrics=False) as pool:
        for user in ("alice", "bob"):
            pool.add_user(user)
        lines = LINES + [{"id": str(i), "prompt": "p %d" % i} for i in range(20)]
        job = pool.ssh("alice", "submit", "--max-tokens", "8", input="".join(json.dumps(l) + "\n" for l in lines)).stdout.split()[0]
        pool.ssh("alice", "wait", job, code=1)  # one line is refused
        output = wait_until(lambda: glob.glob(os.path.join(pool.state, "files/alice/jobs/*/output.jsonl")), 60, "an output")[0]
        said = pool.weir("verify", os.path.dirname(output), "--sample", "30").stdout
        assert "27 of 27 answers" in said and "27 equal" in said, said
        said = pool.ssh("alice", "verify", job, "--sample", "30").stdout
        assert said.startswith("27 of 27 answers") and "27 equal, 0 differ, 0 of another class, 0 not rerun" in said, said

        def some():
            return json.loads(pool.ssh("alice", "verify", "--sample", "3", "--draw", "5", "--json").stdout)
        assert (some()["sample"], some()["equal"], some()["answers"], some()["draw"], some()["lines"]) == (3, 3, 27, 5, []), some()
        questions = json.loads(pool.ssh("alice", "usage", "--json").stdout)["today"]["questions"]
        assert questions == 27 + 5 * 3, questions
        # another's job is not there; what is not understood; a job without answers
        assert "no job" in pool.ssh("bob", "verify", job, code=3).stderr
        for words in (["--sample", "0"], ["--sample", "1001"], ["--draw", "x"], [job, job]):
            pool.ssh("alice", "verify", *words, code=2)
        pool.ssh("bob", "submit", input=json.dumps({"prompt": "z", "temperature": 1e9}) + "\n")
        pool.ssh("bob", "wait", code=1)
        assert "has no answers yet" in pool.ssh("bob", "verify", code=4).stderr
        # a text of the same length; a class that is not there
        records = read(output)

        def change(custom_id, old, new):
            line = next(l for l in text.splitlines(True) if '"custom_id":"%s"' % custom_id in l.replace(": ", ":"))
            assert len(old) == len(new) and line.count(old) >= 1, (line, old)
            with open(output, "w") as f:
                f.write(text.replace(line, line.replace(old, new, 1)))
        with open(output) as f:
            text = f.read()
        seeded = next(r for r in records if r["custom_id"] == "seeded")["response"]["body"]
        change("seeded", seeded["choices"][0]["token_hash"], "0" * 32)
        said = pool.ssh("alice", "verify", job, "--sample", "30", code=1).stdout
        assert "seeded: differs: choice 0: the same text of other tokens" in said and "26 equal, 1 differ" in said, said
        change("seeded", seeded["system_fingerprint"], "x" * len(seeded["system_fingerprint"]))
        said = pool.ssh("alice", "verify", job, "--sample", "30", code=4).stdout
        assert "seeded: another class: made by xxx" in said and "26 equal, 0 differ, 1 of another class" in said, said
        with open(output, "w") as f:
            f.write(text.replace(seeded["system_fingerprint"], "x" * len(seeded["system_fingerprint"])))
        said = pool.ssh("alice", "verify", job, code=5)
        assert "no_worker" in said.stderr and "no worker of it is left" in said.stderr and said.stdout == "", said


def a_rerun_keeps_the_limits_of_its_user():
    with Serve(workers=1, metrics=False) as pool:
        pool.add_user("alice")
        pool.ssh("alice", "submit", "--max-tokens", "8", input="".join(json.dumps({"prompt": "p %d" % i}) + "\n" for i in range(4)))
        pool.ssh("alice", "wait")
        pool.weir("user", "limit", "alice", "max-tokens-a-day=1", "--state-dir", pool.state)
        said = pool.ssh("alice", "verify", "--sample", "2", code=1).stdout
        assert said.count("not rerun: limit_exceeded") == 2 and "0 equal, 0 differ, 0 of another class, 2 not rerun" in said, said


if __name__ == "__main__":
    main([answers_are_computed_again_bit_by_bit, a_job_is_verified_in_its_folder_and_over_ssh, a_rerun_keeps_the_limits_of_its_user], sys.argv[1:])
