#!/usr/bin/python3
"""Verbs beyond submit and results: retry, try and release, usage, keys, tables of answers, limits; over the real ssh client."""
import csv
import gzip
import io
import json
import os
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from gateway_rig import BIN, Rig, check, check_eq, check_once, lines_of, run_tests, wait_until  # noqa: E402


def test_retry_runs_the_failed_lines_and_no_others():
    with Rig() as rig:
        rig.add_user("alice")
        rig.start()
        ids = ["n%d" % n for n in range(50)]
        lines = [{"id": i, "prompt": ("!fail invalid_request " if n % 10 == 3 else "fine ") + i} for n, i in enumerate(ids)]
        job = rig.submit(lines)
        check_eq(rig.ssh("wait " + job).returncode, 1, "five fail")
        check_eq(rig.ssh("retry nothing").returncode, 3, "no such job")
        asked = sum(1 for _ in open(rig.path("broker.log")))
        again = rig.json("retry --json " + job)
        check_eq((again["status"], again["request_counts"]), ("in_progress", {"total": 50, "completed": 45, "failed": 0}), "reopened")
        check_eq(rig.ssh("wait " + job).returncode, 1, "they fail again")
        answers, errors = check_once(rig, job, ids)
        check_eq((len(answers), len(errors)), (45, 5), "counts")
        check_eq(sum(1 for _ in open(rig.path("broker.log"))) - asked, 5, "only these were asked")
        good = rig.submit([{"prompt": "x"}])
        rig.ok("wait " + good)
        check_eq(rig.ssh("retry " + good).returncode, 4, "nothing to retry")


def test_retry_takes_up_a_cancelled_job():
    with Rig() as rig:
        rig.add_user("alice")
        rig.start()
        ids = ["n%d" % n for n in range(300)]
        job = rig.submit([{"id": i, "prompt": "!slow 400 " + i} for i in ids])
        check_eq(rig.ssh("retry " + job).returncode, 4, "it has not ended")
        rig.ok("cancel " + job)
        check_eq(rig.ssh("wait " + job).returncode, 6, "cancelled")
        check_once(rig, job, ids)
        rig.ok("retry " + job)
        os.kill(rig.children("jobs-process")[0], signal.SIGKILL)
        wait_until(lambda: rig.children("jobs-process") and rig.ssh("version").returncode == 0, 10, "logins work again")
        check_eq(rig.ssh("wait " + job).returncode, 0, "all answered")
        answers, errors = check_once(rig, job, ids)
        check_eq((len(answers), len(errors)), (300, 0), "counts")


def test_try_holds_the_rest_until_release():
    with Rig() as rig:
        rig.add_user("alice")
        rig.start()
        ids = ["n%d" % n for n in range(400)]
        lines = [{"id": i, "prompt": i} for i in ids]
        job = rig.submit(lines, "--try 7")
        check_eq(rig.ssh("wait " + job).returncode, 0, "wait ends when the tried lines are answered")
        status = rig.json("status --json " + job)
        check_eq((status["status"], status["held"], status["request_counts"]["completed"]), ("in_progress", 393, 7), "held")
        check(b"release " + job.encode() in rig.ok("status " + job), "status says how to go on")
        check_eq(len(lines_of(rig.ok("results " + job))), 7, "answers of the try")
        check(sorted(x["custom_id"] for x in lines_of(rig.ok("results " + job))) != ids[:7], "chosen at random")
        rig.stop()
        rig.start()
        check_eq(rig.json("status --json " + job)["held"], 393, "held over a restart")
        rig.ok("release " + job)
        check_eq(rig.ssh("release " + job).returncode, 4, "once")
        check_eq(rig.ssh("wait " + job).returncode, 0, "wait")
        answers, _ = check_once(rig, job, ids)
        check_eq(len(answers), 400, "all of them")
        job = rig.submit(lines, "--try 3")
        rig.ok("wait " + job)
        rig.ok("cancel " + job)
        check_eq(rig.ssh("wait " + job).returncode, 6, "cancel answers held lines too")
        check_once(rig, job, ids)
        job = rig.submit([{"id": i, "prompt": "!slow 300 " + i} for i in ids], "--try 300")
        check_eq(rig.ssh("release " + job).returncode, 4, "not while lines are tried")
        rig.ok("cancel " + job)
        check_eq(rig.ssh("wait " + job).returncode, 6, "cancelled in the middle of the try")
        check_once(rig, job, ids)


def test_reuse_runs_only_what_is_new_changed_or_failed():
    with Rig() as rig:
        rig.add_user("alice")
        rig.add_user("bob")
        rig.start()
        lines = [{"id": "n%04d" % n, "prompt": "p%d" % n} for n in range(1500)]
        lines[7]["prompt"] = "!fail invalid_request"
        lines[8]["prompt"] = "!length 8"
        old = rig.submit(lines)
        check_eq(rig.ssh("wait " + old).returncode, 1, "one failed")
        asked = sum(1 for _ in open(rig.path("broker.log")))
        new = list(reversed(lines[:1200])) + [{"id": "new", "prompt": "new"}]
        new[5]["prompt"] = "changed"
        check_eq(rig.ssh("submit --reuse " + old, "{}\n", user="bob").returncode, 3, "not bob's")
        check_eq(rig.ssh("submit --model fake --reuse " + old, "{}\n").returncode, 4, "other options")
        out = rig.ssh("submit --json --reuse " + old, "".join(json.dumps(x) + "\r\n" for x in new))
        check(b"1198 of 1201 lines were answered before" in out.stderr, out.stderr)
        job = json.loads(out.stdout)["id"]
        rig.ssh("wait " + job)
        check_eq(sum(1 for _ in open(rig.path("broker.log"))) - asked, 3, "three were asked")
        rig.ok("delete " + old)
        answers, errors = check_once(rig, job, [x["id"] for x in new])
        check_eq(list(errors), ["n0007"], "the failed one failed again")
        for x in new:
            if x["id"] != "n0007":
                check_eq(answers[x["id"]]["response"]["body"]["choices"][0]["text"], "echo: " + x["prompt"], "answer of", x["id"])
        check_eq(rig.json("status --json " + job)["finish_reasons"]["length"], 1, "answers cut by their limit are counted")
        whole = [x for x in new if x["id"] != "n0007"]
        out = rig.json("submit --json --reuse last", "".join(json.dumps(x) + "\r\n" for x in whole))
        check_eq((out["status"], out["request_counts"]["completed"]), ("completed", 1200), "nothing left to run")
        check_eq(rig.ssh("wait").returncode, 0, "it has ended")
        check_once(rig, out["id"], [x["id"] for x in whole])


def test_check_names_the_lines_that_would_fail():
    with Rig() as rig:
        rig.add_user("alice")
        rig.start()
        lines = [json.dumps({"id": "n%d" % n, "prompt": "x" * 10}) for n in range(500)]
        lines[3] = "{"
        lines[9] = json.dumps({"prompt": "y" * 9000})   # the test's broker has a token a character, and 8192 of context
        lines[11] = json.dumps({"messages": [{"role": "user", "content": "abc"}, {"role": "user", "content": "de"}]})
        lines[12] = json.dumps({"prompt_ids": [1, 2, 3]})
        text = "\n".join(lines)
        out = rig.ssh("submit --check --json", gzip.compress(text.encode()))
        check_eq(out.returncode, 1, "some would fail", out.stderr)
        report = json.loads(out.stdout)
        check_eq([x["line"] for x in report["bad"]], [4], "wrong")
        check_eq(report["overflow"], [{"line": 10, "prompt_tokens": 9000, "context_tokens": 8192}], "too long")
        check_eq((report["lines"], report["counted"], report["longest_prompt_tokens"]), (500, 499, 9000), "counts")
        check_eq(report["prompt_tokens"], 496 * 10 + 9000 + 7 + 3, "tokens")
        words = rig.ssh("submit --check", text).stdout
        check(b"line 10: the prompt has 9000 tokens" in words and b"nothing was submitted" in words, words)
        check_eq(rig.ssh("submit --check", lines[0]).returncode, 0, "all is well")
        check_eq(rig.ssh("submit --check --template '{a} {b}'", "a,b\n1,2\n3\n").returncode, 1, "a table")
        check_eq(rig.ssh("submit --check", "").returncode, 4, "empty")
        check_eq(rig.ssh("run --check", lines[0]).returncode, 2, "not of run")
        check_eq(rig.json("list --json --all")["jobs"], [], "nothing was submitted")
        check(not os.path.exists(rig.path("broker.log")) or not open(rig.path("broker.log")).read(), "nothing was asked")
        p = subprocess.Popen(rig.ssh_args() + ["submit --check"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        p.stdin.write((lines[0][:-1] + ', "x_n": 1}\n').encode().replace(b"n0", b"m0") * 1)
        p.stdin.write("".join(json.dumps({"prompt": "z%d" % n}) + "\n" for n in range(20000)).encode())
        p.stdin.close()
        p.kill()   # in the middle of the counting, perhaps
        p.wait()
        p.stdout.close()
        p.stderr.close()
        rig.stop_broker()
        wait_until(lambda: rig.ssh("submit --check", lines[0]).returncode == 5, 10, "without a pool tokens cannot be counted")


def test_how_long_it_will_take():
    with Rig() as rig:
        rig.add_user("alice")
        rig.add_user("bob")
        rig.start()
        lines = [{"prompt": "x"} for _ in range(20)]
        text = "".join(json.dumps(x) + "\n" for x in lines)
        report = rig.json("submit --check --json", text)
        check_eq((report["estimated_s"], report["estimated_from"]), (None, None), "nothing is known")
        check(b"cannot be said" in rig.ok("submit --check", text), "said in words")
        rig.broker_args = ["--speed", "10"]   # tokens a second; a prompt of one letter has one
        rig.stop_broker()
        rig.start_broker()
        wait_until(lambda: rig.ssh("models").returncode == 0, 10, "the broker is back")
        limited = "".join(json.dumps({"prompt": "x", "max_tokens": 4, "n": 1}) + "\n" for _ in range(20))
        report = rig.json("submit --check --json", limited)
        check_eq((report["estimated_s"], report["estimated_from"]), (10, "tokens"), "20 lines of at most 5 tokens")
        check_eq(rig.json("submit --check --json", text)["estimated_s"], None, "an answer without a limit")
        check_eq(rig.json("submit --check --json --max-tokens 9", text)["estimated_s"], 20, "the option is one")
        job = rig.submit(lines)
        rig.ok("wait " + job)
        report = rig.json("submit --check --json", text)
        check_eq(report["estimated_from"], "lines", "lines were answered lately")
        held = rig.submit([{"prompt": "!hold"} for _ in range(7)])
        later = rig.submit([{"prompt": "!hold"} for _ in range(5)])
        first = rig.submit([{"prompt": "!hold"} for _ in range(3)], "--priority high")
        of_bob = rig.submit([{"prompt": "!hold"}], user="bob")
        ahead = {j: rig.json("status --json " + j)["lines_ahead"] for j in (held, later, first)}
        check_eq(ahead, {held: 3, later: 10, first: 0}, "lines ahead")
        check_eq(rig.json("status --json " + of_bob, user="bob")["lines_ahead"], 0, "another's lines are not ahead: the pool is shared")
        check(rig.json("status --json " + later)["eta_s"] >= 1, "an estimate")
        check(b"10 lines of your other jobs first" in rig.ok("status " + later), rig.ok("status " + later))
        check_eq(rig.json("submit --check --json", text)["lines_ahead"], 15, "of a new one")
        rig.ok("cancel " + held)
        rig.ssh("wait " + held)
        check_eq(rig.json("status --json " + later)["lines_ahead"], 3, "one job less")
        check_eq(rig.json("status --json " + held)["lines_ahead"], 0, "an ended one waits for nothing")


def test_weir_on_the_box_has_the_verbs_too():
    with Rig() as rig:
        rig.add_user("alice")
        rig.start()
        os.mkdir(rig.path("bin"))
        with open(rig.path("bin/ssh"), "w") as f:  # the user's own configuration: key, known hosts
            words = rig.ssh_args()
            own = [w for i, w in enumerate(words[1:-1], 1) if w != "-p" and words[i - 1] != "-p"]
            f.write("#!/bin/sh\nexec /usr/bin/ssh %s \"$@\"\n" % " ".join("'%s'" % w for w in own))
        os.chmod(rig.path("bin/ssh"), 0o755)
        env = dict(os.environ, PATH=rig.path("bin") + ":" + os.environ["PATH"], WEIR_SSH_HOST="127.0.0.1", WEIR_SSH_PORT=str(rig.port))

        def weir(*words, data=b""):
            return subprocess.run([os.path.join(BIN, "weir"), *words], input=data, capture_output=True, env=env, timeout=60)
        check_eq(weir("whoami").stdout, b"alice\n", "whoami")
        out = weir("submit", "--text", "--name", "a b; 'c'", data=b"one\ntwo\n")
        check_eq(out.returncode, 0, "submit", out.stderr)
        job = out.stdout.decode().strip()
        check_eq(weir("wait", "a b; 'c'").returncode, 0, "found by its name, in one pair of quotes")
        check_eq(weir("status", job, "--json").stdout, rig.ok("status --json " + job), "status JOB")
        check_eq(len(weir("results", job).stdout.splitlines()), 2, "results")
        check_eq(weir("verify", "nothing", "--sample", "2").returncode, 3, "verify JOB")
        check_eq(weir("cancel", "nothing").returncode, 3, "exit codes are those of the gateway")
        check(b"print the answers" in weir("help", "results").stdout, "help")
        check(b'did you mean "submit"' in weir("submt").stderr, "a near verb")
        check(b"release" in weir("help").stdout, "the list")


def test_every_verb_has_json_and_exit_codes_that_say_what_happened():
    with Rig() as rig:
        rig.add_user("alice")
        rig.make_key("spare")
        spare = open(rig.path("spare.pub")).read().strip()
        fingerprint = subprocess.run(["ssh-keygen", "-lf", rig.path("spare.pub")], capture_output=True, text=True).stdout.split()[1]
        rig.start()
        line, bad, hold = '{"prompt": "x"}\n', '{"prompt": "!fail context_overflow"}\n', '{"prompt": "!hold"}\n'
        rig.ssh("run --name good", line)
        rig.ssh("run --name half", line + bad)
        rig.ssh("submit --name stopped", hold)
        rig.ok("cancel stopped")
        rig.ssh("wait stopped")
        rig.ssh("submit --name open", hold)
        # verb: words, standard input, exit code; the codes of docs/jobs.md.  In this order: some change what the next ones see.
        calls = [("help", "", "", 0), ("help", "ask", "", 0), ("help", "nothing", "", 3), ("help", "a b", "", 2),
                 ("ask", "hi", "", 0), ("ask", "'!fail context_overflow'", "", 4), ("ask", "'!fail deadline_exceeded'", "", 7),
                 ("ask", "'!fail no_worker'", "", 5), ("ask", "'!fail internal_error'", "", 8), ("ask", "--model no hi", "", 4), ("ask", "--top-p 2 hi", "", 2),
                 ("ask", "-", "", 4),
                 ("chat", "hi", "", 0), ("chat", "", "hi\nyou\n", 0), ("chat", "'!fail no_worker'", "", 5), ("chat", "", "!fail no_worker\nhi\n", 5),
                 ("chat", "--seed x", "", 2),
                 ("submit", "", line, 0), ("submit", "", "", 4), ("submit", "", '{"id":"a","prompt":"x"}\n' * 2, 4), ("submit", "more", line, 2),
                 ("submit", "--check", line, 0), ("submit", "--check", "{\n", 1), ("submit", "--reuse nothing", line, 3),
                 ("run", "", line, 0), ("run", "", bad, 1), ("run", "", "", 4), ("run", "--prio high", line, 2), ("run", "--chat", line, 2), ("submit", "--text --template {a}", line, 2),
                 ("status", "good", "", 0), ("status", "half", "", 0), ("status", "nothing", "", 3), ("status", "a b", "", 2),
                 ("list", "", "", 0), ("list", "--state completed", "", 0), ("list", "--state done", "", 2), ("list", "good", "", 2),
                 ("watch", "good", "", 0), ("watch", "half", "", 1), ("watch", "stopped", "", 6), ("watch", "nothing", "", 3), ("watch", "--all", "", 2),
                 ("wait", "good", "", 0), ("wait", "half", "", 1), ("wait", "stopped", "", 6), ("wait", "nothing", "", 3), ("wait", "--follow", "", 2),
                 ("results", "good", "", 0), ("results", "half", "", 0), ("results", "--follow half", "", 1), ("results", "--follow stopped", "", 6),
                 ("results", "--ordered good", "", 0), ("results", "--flat good", "", 0), ("results", "nothing", "", 3), ("results", "--join good", "", 2), ("results", "--flat --csv good", "", 2),
                 ("errors", "half", "", 0), ("errors", "good", "", 0), ("errors", "--follow half", "", 1), ("errors", "nothing", "", 3), ("errors", "--csv", "", 2),
                 ("verify", "good", "", 5), ("verify", "stopped", "", 4), ("verify", "nothing", "", 3), ("verify", "--draw x", "", 2),
                 ("release", "open", "", 4), ("release", "nothing", "", 3), ("release", "", "", 2),
                 ("cancel", "nothing", "", 3), ("cancel", "", "", 2), ("delete", "open", "", 4), ("delete", "nothing", "", 3), ("delete", "", "", 2),
                 ("cancel", "open", "", 0), ("wait", "open", "", 6),
                 ("retry", "good", "", 4), ("retry", "nothing", "", 3), ("retry", "", "", 2), ("retry", "half", "", 0), ("wait", "half", "", 1),
                 ("delete", "stopped", "", 0), ("usage", "", "", 0), ("usage", "now", "", 2),
                 ("keys", "", "", 0), ("keys", "list", "", 0), ("keys", "add '%s'" % spare, "", 0), ("keys", "add '%s'" % spare, "", 4),
                 ("keys", "remove " + fingerprint, "", 0), ("keys", "remove " + fingerprint, "", 3), ("keys", "burn", "", 2),
                 ("models", "", "", 0), ("models", "all", "", 2), ("pool", "", "", 0), ("pool", "all", "", 2), ("top", "", "", 0), ("top", "all", "", 2),
                 ("trace", "", "", 0), ("trace", "r1", "", 0), ("trace", "nothing", "", 3), ("trace", "x" * 100, "", 3), ("trace", "''", "", 3), ("trace", "r1 r2", "", 2),
                 ("tokenize", "hi", "", 0), ("tokenize", "", "hi", 0), ("tokenize", "--seed 1 hi", "", 2),
                 ("whoami", "", "", 0), ("whoami", "now", "", 2), ("version", "", "", 0), ("version", "now", "", 2)]
        listed = [x.split()[0] for x in rig.ok("help").decode().splitlines() if x.startswith("  ") and x[2] != " "]
        check_eq(sorted(set(c[0] for c in calls)), sorted(listed), "every verb of `help` is tried")
        options = ("-o", "ControlMaster=auto", "-o", "ControlPath=" + rig.path("mux"), "-o", "ControlPersist=60")
        try:
            for verb, words, data, code in calls:
                what = "%s --json %s" % (verb, words)
                out = rig.ssh(what, data, options=options)
                check_eq(out.returncode, code, what, out.stdout, out.stderr)
                for text in out.stdout.splitlines():
                    check(isinstance(json.loads(text), dict), what, "prints objects:", text)
                    check(verb not in ("models", "pool", "top", "trace") or not {"type", "id"} & set(json.loads(text)), what, "no word of the wire:", text)
                check(out.stdout or verb in ("results", "errors", "run", "watch", "wait"), what, "prints something")
                if code > 1 and code != 6:
                    check(b'"error"' in out.stdout and out.stderr.startswith(b"weir: "), what, "names the error on both:", out.stdout, out.stderr)
                check((code == 0 and verb != "run") <= (out.stderr == b""), what, "is silent when all is well:", out.stderr)
        finally:
            subprocess.run(rig.ssh_args("alice", "-O", "exit", *options), capture_output=True)
        rig.stop_broker()
        wait_until(lambda: rig.ssh("models").returncode == 5, 10, "without a broker")
        for verb, words in (("ask", "hi"), ("models", ""), ("pool", ""), ("top", ""), ("trace", ""), ("tokenize", "hi"), ("chat", "hi"), ("verify", "good")):
            check_eq(rig.ssh("%s %s" % (verb, words)).returncode, 5, verb, "without a broker")


def test_verify_asks_as_the_user_and_for_one_answer_at_a_time():
    with Rig() as rig:
        rig.broker_args = ["--speed", "1000"]  # a pool with a worker
        rig.add_user("alice")
        rig.start()
        job = rig.submit([{"id": "a", "prompt": "!turns a", "seed": 5}, {"id": "b", "prompt": "b", "deadline_ms": 600000}], "--max-tokens 9")
        rig.ok("wait " + job)

        def asked():
            return [json.loads(x) for x in open(rig.path("broker.log"))]
        check_eq(len(asked()), 2, "the job")
        seeds = {x["custom_id"]: x["response"]["body"]["seed"] for x in lines_of(rig.ok("results " + job))}
        p = subprocess.Popen(rig.ssh_args() + ["verify " + job], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda: len(asked()) == 3, 10, "the first is asked for again")
        again = asked()[2]
        check_eq((again["prompt"], again["user"], again["class"], again["model"], again["parameters"]["seed"]),
                 ("!turns a", "alice", "batch", "fake", seeds["a"]), "as it was")
        p.kill()
        p.wait()
        wait_until(lambda: os.path.exists(rig.path("broker.log.cancelled")), 10, "it is cancelled when the client has gone")
        check_eq(len(asked()), 3, "and the second was not asked for")
        out = rig.ssh("verify " + job)
        check_eq((out.returncode, out.stdout.startswith(b"2 of 2 answers computed again")), (0, True), "a whole one", out.stdout, out.stderr)
        check_eq([(x["prompt"], x["parameters"].get("deadline_ms")) for x in asked()[3:]], [("!turns a", None), ("b", None)], "in the order of the input")


def test_trace_tells_of_the_own_requests_and_lines_only():
    with Rig() as rig:
        rig.add_user("alice")
        rig.add_user("bob")
        rig.start()
        asked = rig.json("ask --json hi")
        job = rig.submit([{"id": "a", "prompt": "x"}])
        rig.ok("wait " + job)
        line = json.loads(rig.ok("results " + job))["response"]["body"]["timings"]["request"]
        check(asked["request"] and line and asked["request"] != line, "both have names:", asked, line)
        for name in (asked["request"], line):
            text = rig.ok("trace " + name).decode()
            check(all(w in text for w in ("request   " + name, "user alice", "queue", "steps", "total")), "its phases:", text)
            check_eq([r["request"] for r in rig.json("trace --json " + name)["requests"]], [name], "as JSON")
            check_eq(rig.ssh("trace " + name, user="bob").returncode, 3, "another's is not there")
        listed = rig.ok("trace").decode()
        check(asked["request"] in listed and line in listed, "the list:", listed)
        check_eq(len(rig.ok("trace", user="bob").decode().splitlines()), 1, "bob has none")


def test_usage_counts_what_was_used():
    with Rig() as rig:
        rig.add_user("alice")
        rig.add_user("bob")
        rig.start()
        job = rig.submit([{"prompt": "a b"}, {"prompt": "c"}, {"prompt": 7}])
        rig.ssh("wait " + job)
        rig.ok("ask 'one two three'")
        rig.ok("delete " + job)
        usage = rig.json("usage --json")
        wanted = {"jobs": 1, "questions": 1, "answers": 2, "errors": 1, "prompt_tokens": 9, "cached_tokens": 3, "completion_tokens": 9}
        check_eq(usage["today"], wanted, "today, also when the job is deleted")
        check_eq(usage["month"], wanted, "this month")
        check_eq(rig.json("usage --json", user="bob")["today"]["jobs"], 0, "bob's is bob's")
        check(b"tokens read" in rig.ok("usage"), "for people")


def test_limits_are_set_and_named():
    with Rig() as rig:
        rig.add_user("alice")
        rig.start()
        out = rig.user("limit", "alice", "max-tokens-a-day=5", "max-job-lines=10", "max-job-bytes=1K")
        check_eq(out.returncode, 0, out.stderr)
        check(b"max-tokens-a-day=5 " in out.stdout and b"max-job-bytes=1024 " in out.stdout, out.stdout)
        for words in [["nobody", "max-jobs=1"], ["alice", "max-jobs=x"], ["alice", "max-jbos=1"], ["alice", "max-jobs=99999999999999999999"],
                      ["alice", "max-job-bytes=9223372036854775807"], ["alice", "max-job-bytes=9007199254740994"]]:
            check(rig.user("limit", *words).returncode in (2, 3), words)
        check(b"9007199254740992" in rig.user("limit", "alice", "max-job-bytes=9223372036854775807").stderr, "the most is named")
        for most in ("9007199254740992", "1K"):     # the most can be read again
            check_eq(rig.user("limit", "alice", "max-job-bytes=" + most).returncode, 0, most)
        check(b"max-job-lines" in rig.user("limit", "alice").stdout, "shown")
        out = rig.ssh("submit", '{"prompt":"x"}\n' * 11)
        check_eq(out.returncode, 4, "lines")
        job = rig.submit([{"prompt": "a b c d e f"}])
        rig.ok("wait " + job)
        out = rig.ssh("submit", '{"prompt":"x"}\n')
        check(out.returncode == 4 and b"max-tokens-a-day" in out.stderr, "tokens a day", out.stderr)
        out = rig.ssh("ask hello")
        check(out.returncode == 4 and b"max-tokens-a-day" in out.stderr, "also for questions", out.stderr)
        check_eq(rig.user("limit", "alice", "max-tokens-a-day=0").returncode, 0, "taken away again")
        rig.ok("ask hello")


def test_a_disabled_user_is_put_out_and_comes_back():
    with Rig() as rig:
        rig.add_user("alice")
        rig.start()
        rig.ok("version")
        check_eq(rig.user("disable", "alice").returncode, 0, "disable")
        check_eq(rig.ssh("version").returncode, 255, "no login")
        check_eq(rig.user("enable", "alice").returncode, 0, "enable")
        rig.ok("version")
        check_eq(rig.user("disable", "nobody").returncode, 3, "no such user")
        check_eq(rig.user("disable").returncode, 2, "usage")


def test_a_refused_key_is_let_in_by_its_fingerprint():
    with Rig() as rig:
        rig.add_user("alice")
        rig.start()
        for n in range(12):
            rig.make_key("stranger%d" % n)
            check_eq(rig.ssh("version", user="stranger%d" % n).returncode, 255, "refused")

        def print_of(name):
            return subprocess.run(["ssh-keygen", "-lf", rig.path(name + ".pub")], capture_output=True, check=True).stdout.split()[1].decode()
        wait_until(lambda: print_of("stranger11").encode() in rig.user("pending").stdout, 10, "the last one is listed")
        listed = rig.user("pending").stdout.decode().splitlines()
        check_eq(len(listed), 8, "eight of one address", listed)
        check(all("from 127.0.0.1" in x for x in listed), listed)
        check_eq(rig.user("add", "carol", "--pending", "SHA256:nothing").returncode, 3, "none of that fingerprint")
        check_eq(rig.user("add", "carol", "--pending", print_of("stranger11")).returncode, 0, "let in")
        check_eq(rig.json("whoami --json", user="stranger11")["user"], "carol", "she is in")
        check(print_of("stranger11") not in rig.user("pending").stdout.decode(), "not pending any more")
        rig.stop()
        rig.start()
        check_eq(len(rig.user("pending").stdout.splitlines()), 7, "kept over a restart")


def test_keys_of_ones_own():
    with Rig() as rig:
        rig.add_user("alice")
        rig.add_user("bob")
        rig.start()
        second = rig.make_key("second", "rsa", 2048)
        with open(second + ".pub") as f:
            line = f.read().strip()
        first = rig.json("keys --json")["keys"]
        check_eq(len(first), 1, "one key")
        shown = subprocess.run(["ssh-keygen", "-lf", rig.path("alice.pub")], capture_output=True, check=True).stdout.split()[1].decode()
        check_eq(first[0]["fingerprint"], shown, "the fingerprint that ssh-keygen shows")
        check_eq(rig.ssh("version", user="second").returncode, 255, "not yet")
        rig.ok("keys add '%s'" % line)
        check_eq(rig.json("whoami --json", user="second")["user"], "alice", "in with the new key")
        out = rig.ssh("keys add '%s'" % line, user="bob")
        check(out.returncode == 4 and b"alice" not in out.stderr, "somebody else's", out.stderr)
        for bad in ["ssh-ed25519 AAAA x", "hello", "ssh-ed25519", 'from="10.0.0.1" ' + line, line + "\nuid = 0", ""]:
            out = rig.ssh("keys add '%s'" % bad)
            check(out.returncode in (2, 4), "bad key", repr(bad), out.returncode)
        for n in (8200, 9000, 16200):
            out = rig.ssh("keys add '%s'" % (" ".join(line.split()[:2]) + " " + "c" * n))
            check(out.returncode == 4 and b"8192" in out.stderr, "a comment too long", n, out.returncode, out.stderr)
        with open(os.path.join(rig.state, "users")) as f:
            check("uid" not in f.read(), "nothing else was written")
        rig.ok("keys remove " + shown)
        check_eq(rig.ssh("version").returncode, 255, "the old key is out")
        last = rig.json("keys --json", user="second")["keys"][0]["fingerprint"]
        check_eq(rig.ssh("keys remove " + last, user="second").returncode, 4, "the last key stays")
        check_eq(rig.ssh("keys remove SHA256:nothing", user="second").returncode, 3, "no such key")


def test_restricted_keys_are_the_administrators():
    with Rig() as rig:
        rig.add_user("alice")
        with open(os.path.join(rig.state, "users")) as f:
            text = f.read().replace("key = ", 'key = from="127.0.0.1" ')
        with open(os.path.join(rig.state, "users"), "w") as f:
            f.write(text)
        rig.start()
        with open(rig.make_key("free") + ".pub") as f:
            line = f.read().strip()
        out = rig.ssh("keys add '%s'" % line)
        check(out.returncode == 4 and b"restrictions" in out.stderr, out.returncode, out.stderr)


def test_list_by_state():
    with Rig() as rig:
        rig.add_user("alice")
        rig.start()
        done = rig.submit([{"prompt": "x"}])
        rig.ok("wait " + done)
        running = rig.submit([{"prompt": "!hold"}])
        check_eq([x["id"] for x in rig.json("list --json --state completed")["jobs"]], [done], "completed")
        check_eq([x["id"] for x in rig.json("list --json --all --state in_progress")["jobs"]], [running], "in progress")
        check_eq(rig.json("list --json --state failed")["jobs"], [], "failed")
        out = rig.ssh("list --state complete")
        check(out.returncode == 2 and b"completed" in out.stderr, "a word that is none", out.stderr)
        rig.ok("cancel " + running)


def test_flat_csv_and_join():
    with Rig() as rig:
        rig.add_user("alice")
        rig.broker_args = ["--delay-ms", "1"]
        rig.start()
        rows = [{"id": "r%d" % n, "text": 'a "%d",\nb' % n, "tag": " t%d" % n} for n in range(200)]
        out = io.StringIO()
        table = csv.DictWriter(out, ["id", "text", "tag"])
        table.writeheader()
        table.writerows(rows)
        job = rig.submit(out.getvalue(), "--template 'Say {text}'")
        rig.ok("wait " + job)
        flat = lines_of(rig.ok("results --flat " + job))
        check_eq([x["id"] for x in flat], [x["id"] for x in rows], "in the order of the input")
        check_eq(flat[7], {"id": "r7", "choice": 0, "text": "echo: Say " + rows[7]["text"], "finish_reason": "stop",
                           "prompt_tokens": flat[7]["prompt_tokens"], "completion_tokens": flat[7]["completion_tokens"]}, "flat")
        got = list(csv.DictReader(io.StringIO(rig.ok("results --csv --join " + job).decode(), newline="")))
        check_eq([{k: x[k] for k in ("id", "text", "tag")} for x in got], rows, "the input's columns come back")
        check(all(x["answer_text"] == "echo: Say " + x["text"] and x["answer_id"] == x["id"] for x in got), "beside their answers")
        joined = lines_of(rig.ok("results --flat --join"))
        check_eq(joined[3]["tag"], rows[3]["tag"], "joined objects; also of the last job")
        for wrong in ["--join", "--flat --csv", "--flat --follow", "--csv --follow"]:
            check_eq(rig.ssh("results %s %s" % (wrong, job)).returncode, 2, wrong)
        plain = rig.submit([{"id": "a", "prompt": "x"}, {"id": "b", "prompt": "y", "max_tokens": 3}])
        rig.ok("wait " + plain)
        out = rig.ssh("results --csv --join " + plain)
        check(out.returncode == 4 and b"line 2" in out.stderr, "columns that differ are named", out.stderr)
        check_eq([(x["prompt"], x["answer_text"]) for x in lines_of(rig.ok("results --flat --join " + plain))],
                 [("x", "echo: x"), ("y", "echo: y")], "job lines joined")


if __name__ == "__main__":
    run_tests([f for n, f in sorted(globals().items()) if n.startswith("test_")])
