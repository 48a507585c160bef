#!/usr/bin/python3
"""Jobs over the real ssh client: every line is answered once, whatever dies."""
import concurrent.futures
import json
import os
import random
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from gateway_rig import Rig, check, check_eq, check_once, lines_of, run_tests, wait_until  # noqa: E402


def mixed_lines():
    """1,000 lines, 10 of them bad.  Returns text, ids of the good ones, numbers of the bad ones."""
    bad = {5: "{", 77: "not json", 130: "[1]", 200: '{"prompt": 7}', 313: '{"id": "z", "promt": "x"}', 400: '{"prompt": "x", "max_tokens": -1}',
           555: '{"prompt": "x", "tools": []}', 700: '{"custom_id": "q", "method": "GET", "url": "/v1/completions", "body": {"prompt": "x"}}',
           801: '{"custom_id": "u", "method": "POST", "url": "/v1/nothing", "body": {}}', 999: '{"prompt": "x", "temperature": "hot"}'}
    out = []
    for n in range(1, 1001):
        out.append(bad.get(n) or json.dumps({"id": "q%d" % n, "prompt": "question %d" % n}))
    return "\n".join(out) + "\n", ["q%d" % n for n in range(1, 1001) if n not in bad], sorted(bad)


def test_a_thousand_lines_with_ten_bad_ones():
    with Rig() as rig:
        rig.add_user("alice")
        rig.start()
        text, good, bad = mixed_lines()
        job = rig.submit(text, "--name thousand")
        out = rig.ssh("wait thousand")
        check_eq(out.returncode, 1, "wait: some lines failed", out.stderr)
        answers = lines_of(rig.ok("results thousand"))
        errors = lines_of(rig.ok("errors thousand"))
        check_eq(sorted(x["custom_id"] for x in answers), sorted(good), "answers")
        check_eq(sorted(x["error"]["line"] for x in errors), bad, "numbers of the bad lines")
        check(all(x["error"]["message"] and x["error"]["code"] for x in errors), "reasons")
        one = next(x for x in answers if x["custom_id"] == "q42")
        check_eq(one["response"]["body"]["choices"][0]["text"], "echo: question 42", "text")
        status = rig.json("status --json " + job)
        check_eq(status["request_counts"], {"total": 1000, "completed": 990, "failed": 10}, "counts")
        check_eq(status["status"], "completed", "status")
        ordered = lines_of(rig.ok("results thousand --ordered"))
        check_eq([x["custom_id"] for x in ordered], good, "in the order of the input")
        seen = [json.loads(x) for x in open(rig.path("broker.log"))]
        check(all(x["user"] == "alice" and x["class"] == "batch" for x in seen), "on behalf of the user, class batch")


def test_kill_of_the_jobs_process_loses_and_doubles_nothing():
    with Rig() as rig:
        rig.add_user("alice")
        rig.broker_args = ["--delay-ms", "20"]
        rig.start()
        ids = ["n%d" % n for n in range(3000)]
        job = rig.submit([{"id": i, "prompt": i} for i in ids])
        for _ in range(4):
            time.sleep(random.uniform(0.1, 0.5))
            os.kill(rig.children("jobs-process")[0], signal.SIGKILL)
            wait_until(lambda: rig.children("jobs-process"), 10, "a new jobs process")
            wait_until(lambda: rig.ssh("version").returncode == 0, 10, "logins work again")
        check_eq(rig.ssh("wait " + job).returncode, 0, "wait")
        answers, errors = check_once(rig, job, ids)
        check_eq((len(answers), len(errors)), (3000, 0), "counts")
        status = rig.json("status --json " + job)
        check_eq(status["request_counts"], {"total": 3000, "completed": 3000, "failed": 0}, "counters agree")


def test_a_restart_goes_on_where_it_was():
    with Rig() as rig:
        rig.add_user("alice")
        rig.broker_args = ["--delay-ms", "150"]
        rig.start()
        ids = ["n%d" % n for n in range(2000)]
        job = rig.submit([{"id": i, "prompt": i} for i in ids])
        wait_until(lambda: rig.json("status --json " + job)["request_counts"]["completed"] > 100, 20, "some answers")
        check_eq(rig.stop(), 0, "clean stop")
        before = sum(1 for _ in open(rig.path("broker.log")))
        rig.start()
        check_eq(rig.ssh("wait " + job).returncode, 0, "wait")
        check_once(rig, job, ids)
        again = sum(1 for _ in open(rig.path("broker.log"))) - before
        check(again < 2000, "answered lines are not asked again:", again)


def test_kill_of_everything_and_torn_files():
    with Rig() as rig:
        rig.add_user("alice")
        rig.broker_args = ["--delay-ms", "10"]
        rig.start()
        ids = ["n%d" % n for n in range(1500)]
        job = rig.submit([{"id": i, "prompt": i} for i in ids])
        wait_until(lambda: rig.json("status --json " + job)["request_counts"]["completed"] > 50, 20, "some answers")
        pids = rig.children("jobs-process")
        rig.stop(signal.SIGKILL)
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        folder = os.path.join(rig.state, "files", "alice", "jobs", job)
        with open(os.path.join(folder, "output.jsonl"), "ab") as f:
            f.write(b'{"custom_id": "n3", "torn')
        with open(os.path.join(folder, "errors.jsonl"), "ab") as f:
            f.write(b'\xe2\x82')
        time.sleep(0.3)
        rig.start()
        check_eq(rig.ssh("wait " + job).returncode, 0, "wait")
        check_once(rig, job, ids)


def test_the_broker_dies_and_comes_back():
    with Rig() as rig:
        rig.add_user("alice")
        rig.broker_args = ["--delay-ms", "300"]  # so that the job outlives this broker on any machine
        rig.start()
        ids = ["n%d" % n for n in range(1500)]
        job = rig.submit([{"id": i, "prompt": i} for i in ids])
        time.sleep(0.3)
        rig.stop_broker()
        time.sleep(0.5)
        check_eq(rig.ssh("models").returncode, 5, "models says that the pool is unreachable")
        status = rig.json("status --json " + job)
        check_eq((status["status"], status["note"], status["eta_s"]), ("in_progress", "waiting for the broker", None), "the job waits, and says for what")
        rig.start_broker()
        check_eq(rig.ssh("wait " + job).returncode, 0, "wait")
        check_once(rig, job, ids)


def test_a_job_submitted_while_the_broker_is_away():
    with Rig() as rig:
        rig.add_user("alice")
        rig.start(broker=False)
        job = rig.submit([{"prompt": "a"}, {"prompt": "b"}])
        time.sleep(0.5)
        check_eq(rig.json("status --json " + job)["note"], "waiting for the broker", "what it waits for")
        rig.start_broker()
        check_eq(rig.ssh("wait " + job).returncode, 0, "wait")


def test_cancel_answers_every_line_once():
    with Rig() as rig:
        rig.add_user("alice")
        rig.broker_args = ["--delay-ms", "50"]
        rig.start()
        ids = ["n%d" % n for n in range(1000)]
        job = rig.submit([{"id": i, "prompt": "!hold" if int(i[1:]) % 10 == 0 else i} for i in ids])
        wait_until(lambda: rig.json("status --json " + job)["request_counts"]["completed"] > 10, 20, "some answers")
        check_eq(rig.json("cancel --json " + job)["status"], "cancelling", "cancel")
        check_eq(rig.ssh("wait " + job).returncode, 6, "wait")
        answers, errors = check_once(rig, job, ids)
        check(len(answers) > 10 and len(errors) > 100, "partial results stay", len(answers), len(errors))
        check_eq({x["error"]["code"] for x in errors.values()}, {"cancelled"}, "codes")
        check_eq(rig.json("status --json " + job)["status"], "cancelled", "status")
        check_eq(rig.ssh("cancel " + job).returncode, 4, "a second cancel is refused")


def test_a_deadline_ends_the_job():
    with Rig() as rig:
        rig.add_user("alice")
        rig.start()
        ids = ["a", "b", "c"]
        job = rig.submit([{"id": "a", "prompt": "x"}, {"id": "b", "prompt": "!hold"}, {"id": "c", "prompt": "!hold"}], "--deadline 1s")
        check_eq(rig.ssh("wait " + job).returncode, 6, "wait")
        answers, errors = check_once(rig, job, ids)
        check_eq(sorted(answers), ["a"], "answers")
        check_eq({x["error"]["code"] for x in errors.values()}, {"deadline_exceeded"}, "codes")
        check_eq(rig.json("status --json " + job)["status"], "expired", "status")


def test_failures_of_ours_are_tried_again():
    with Rig() as rig:
        rig.add_user("alice")
        rig.start()
        codes = ["busy", "no_worker", "shutting_down", "internal_error", "broker_unreachable"]
        job = rig.submit([{"id": c, "prompt": "!once " + c} for c in codes] + [{"id": "never", "prompt": "!fail internal_error"},
                                                                               {"id": "over", "prompt": "!fail context_overflow"}])
        check_eq(rig.ssh("wait " + job).returncode, 1, "wait")
        answers, errors = check_once(rig, job, codes + ["never", "over"])
        check_eq(sorted(answers), sorted(codes), "answered at the second try")
        check_eq(errors["over"]["error"]["code"], "context_overflow", "code")
        check(rig.json("status --json " + job)["retries"] >= 5, "counted")
        tries = [json.loads(x)["prompt"] for x in open(rig.path("broker.log"))]
        check_eq(tries.count("!fail context_overflow"), 1, "a line's own fault is not tried again")
        check(1 < tries.count("!fail internal_error") < 10, "bounded")
        job = rig.submit([{"prompt": "!fail no_worker"}])
        wait_until(lambda: rig.json("status --json " + job)["note"] == "waiting: the test wants it: no_worker", 60, "status says what it waits for")
        rig.ssh("cancel " + job)


def test_run_streams_the_answers_and_tells_the_end():
    with Rig() as rig:
        rig.add_user("alice")
        rig.start()
        data = "".join(json.dumps({"id": "n%d" % n, "prompt": "p"}) + "\n" for n in range(300))
        out = rig.ssh("run --name r", data)
        check_eq(out.returncode, 0, "run", out.stderr)
        check_eq(len({x["custom_id"] for x in lines_of(out.stdout)}), 300, "answers")
        out = rig.ssh("run", data + "bad\n")
        check_eq(out.returncode, 1, "run with a bad line")
        check_eq(len(lines_of(out.stdout)), 300, "answers")
        check(b"300 answers, 1 errors" in out.stderr, out.stderr)


def test_following_a_running_job():
    with Rig() as rig:
        rig.add_user("alice")
        rig.broker_args = ["--delay-ms", "100"]
        rig.start()
        ids = ["n%d" % n for n in range(500)]
        job = rig.submit([{"id": i, "prompt": i} for i in ids])
        out = rig.ssh("results --follow " + job)
        check_eq(out.returncode, 0, "results --follow")
        check_eq(sorted(x["custom_id"] for x in lines_of(out.stdout)), sorted(ids), "all, once")
        out = rig.ssh("watch " + job)
        check_eq(out.returncode, 0, "watch of an ended job")
        check(b"500 of 500 lines, completed" in out.stdout, out.stdout)


def test_what_is_refused_at_once():
    with Rig() as rig:
        rig.add_user("alice")
        rig.start()
        for data, code, word in [(b"", 4, b"empty"), (b"\n  \n\r\n", 4, b"empty"), (b"\xef\xbb\xbf\n", 4, b"empty"),
                                 ('{"id":"a","prompt":"x"}\n{"prompt":"y"}\n{"id":"a","prompt":"z"}\n', 4, b"lines 1 and 3"),
                                 ('{"prompt":"x"}\n{"id":"line-1","prompt":"y"}\n', 4, b"lines 1 and 2"),
                                 ('{"prompt":"x"}\n'.encode("utf-16"), 4, b"UTF-16")]:
            out = rig.ssh("submit", data)
            check_eq(out.returncode, code, data, out.stderr)
            check(word in out.stderr, data, out.stderr)
            check_eq(out.stdout, b"", "no id")
        check_eq(rig.json("list --json")["jobs"], [], "nothing was submitted")
        wait_until(lambda: not os.listdir(os.path.join(rig.state, "spool")), 5, "no upload is left")


def test_standard_input_that_is_no_pipe():
    """Clients that poll differ for files and devices: the end of the input is seen all the same."""
    with Rig() as rig:
        rig.add_user("alice")
        rig.start()
        out = subprocess.run(rig.ssh_args() + ["submit"], stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
        check_eq((out.returncode, out.stdout), (4, b""), "submit < /dev/null", out.stderr)
        check(b"empty" in out.stderr, out.stderr)
        with open(rig.path("one"), "w") as f:
            f.write('{"prompt": "x"}\n')
        with open(rig.path("one"), "rb") as f:
            out = subprocess.run(rig.ssh_args() + ["submit"], stdin=f, capture_output=True, timeout=60)
        check_eq(out.returncode, 0, "submit < FILE", out.stderr)
        rig.ok("wait " + out.stdout.decode().strip())


def test_a_job_whose_lines_all_failed_is_no_success():
    with Rig() as rig:
        rig.add_user("alice")
        rig.start()
        lines = [{"id": "a%d" % n, "prompt": "!fail model_not_found"} for n in range(3)]
        job = rig.submit(lines)
        for command in ("wait ", "watch ", "results --follow "):
            check_eq(rig.ssh(command + job).returncode, 1, command)
        status = rig.json("status --json " + job)
        check_eq((status["status"], status["request_counts"]["failed"], status["request_counts"]["completed"]), ("completed", 3, 0), "the counts say so")
        check_eq(rig.ssh("run", "".join(json.dumps(l) + "\n" for l in lines)).returncode, 1, "run")
        check_once(rig, job, ["a0", "a1", "a2"])


def test_a_client_that_is_killed_before_the_id_is_printed_submits_once():
    """It does not know whether there is a job: with the same key it may say it again, at whatever moment it died."""
    with Rig() as rig:
        rig.add_user("alice")
        rig.start()
        text, seen = "".join(json.dumps({"id": "l%d" % n, "prompt": "x"}) + "\n" for n in range(5000)).encode(), 0
        for n in range(6):
            key = "k%d" % n
            p = subprocess.Popen(rig.ssh_args() + ["submit --key %s --name %s" % (key, key)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            p.stdin.write(text)
            p.stdin.close()
            if n % 2 == 0:
                wait_until(lambda: any(j["name"] == key for j in rig.json("list --json")["jobs"]), 30, "the job is there, and nobody has been told")
            else:
                time.sleep(random.random() * 0.2)
            p.kill()
            p.stdout.close()
            p.wait()
            seen += len([j for j in rig.json("list --json")["jobs"] if j["name"] == key])
            job = rig.ok("submit --key %s --name %s" % (key, key), text).decode().strip()
            there = [j for j in rig.json("list --json")["jobs"] if j["name"] == key]
            check_eq([(j["id"], j["request_counts"]["total"]) for j in there], [(job, 5000)], "one job for one key")
        check(seen >= 3, "jobs were there before they were submitted again:", seen)


def test_line_endings_marks_and_blanks():
    with Rig() as rig:
        rig.add_user("alice")
        rig.start()
        data = b'\xef\xbb\xbf{"id":"1","prompt":"a"}\r\n\r\n   \n{"id":"4","prompt":"d"}\n\n{"prompt":"last"}'
        job = rig.submit(data)
        check_eq(rig.ssh("wait").returncode, 0, "wait")
        answers, _ = check_once(rig, job, ["1", "4", "line-6"])
        check_eq(answers["line-6"]["response"]["body"]["choices"][0]["text"], "echo: last", "no newline at the end")
        job = rig.submit(b'{"id":"gbk","prompt":"\xc4\xe3\xba\xc3"}\n{:\n "model": "x"}\n{"id":"good","prompt":"x"}\n\x00\x01\n')
        check_eq(rig.ssh("wait " + job).returncode, 1, "lines that are no text or no JSON are errors of their own")
        answers, errors = check_once(rig, job, ["good", "line-1", "line-2", "line-3", "line-5"])
        check_eq((list(answers), len(errors)), (["good"], 4), "the others run")


def test_an_idempotency_key():
    with Rig() as rig:
        rig.add_user("alice")
        rig.add_user("bob")
        rig.start()
        first = rig.submit([{"prompt": "a"}], "--key k1")
        check_eq(rig.submit([{"prompt": "a"}], "--key k1"), first, "same key and content")
        out = rig.ssh("submit --key k1", '{"prompt":"b"}\n')
        check_eq(out.returncode, 4, "other content")
        check(b"key_conflict" in out.stderr and first.encode() in out.stderr, out.stderr)
        check_eq(rig.ssh("submit --key k1 --model fake", '{"prompt":"a"}\n').returncode, 4, "other options")
        check(rig.submit([{"prompt": "a"}], "--key k1", user="bob") != first, "keys are a user's own")
        check_eq(len(rig.json("list --json")["jobs"]), 1, "one job")
        rig.ok("wait")
        rig.ok("delete " + first)
        check(rig.submit([{"prompt": "b"}], "--key k1") != first, "a deleted job gives its key free")


def test_nobody_sees_anothers_jobs():
    with Rig() as rig:
        rig.add_user("alice")
        rig.add_user("bob")
        rig.start()
        job = rig.submit([{"prompt": "secret"}], "--name mine")
        for verb in ["status", "results", "errors", "watch", "wait", "cancel", "delete"]:
            for name in [job, "mine", job[:6], "last", "../alice/jobs/" + job, "%"]:
                check_eq(rig.ssh("%s '%s'" % (verb, name), user="bob").returncode, 3, verb, name)
        check_eq(rig.json("list --json --all", user="bob")["jobs"], [], "list")
        rig.ok("status " + job)


def test_names_of_jobs():
    with Rig() as rig:
        rig.add_user("alice")
        rig.start()
        a = rig.submit([{"prompt": "a"}], "--name 'über nacht'")
        b = rig.submit([{"prompt": "b"}])
        check_eq(rig.json("status --json 'über nacht'")["id"], a, "name")
        check_eq(rig.json("status --json last")["id"], b, "last")
        check_eq(rig.json("status --json")["id"], b, "no name")
        check_eq(rig.json("status --json " + a[:6])["id"], a, "unique beginning")
        check_eq(rig.ssh("status j0").returncode, 3, "beginning of both")
        rig.ok("wait " + b)
        rig.ok("delete " + b)
        check_eq(rig.json("status --json last")["id"], a, "last after a deletion")
        c = rig.submit([{"prompt": "c"}])
        check(c[:6] > b[:6], "ids are not used again")


def test_users_share_the_window():
    with Rig() as rig:
        rig.add_user("alice")
        rig.add_user("bob")
        rig.broker_args = ["--delay-ms", "20"]
        rig.start("--job-window", "16")
        big = rig.submit([{"prompt": "a%d" % n} for n in range(4000)])
        small = rig.submit([{"prompt": "b%d" % n} for n in range(100)], user="bob")
        check_eq(rig.ssh("wait " + small, user="bob").returncode, 0, "bob")
        done = rig.json("status --json " + big)["request_counts"]["completed"]
        check(done < 2000, "bob's hundred lines did not wait for alice's thousands:", done)
        rig.ok("cancel " + big)
        rig.ssh("wait " + big)



def test_a_window_full_of_long_lines_keeps_nobody_out():
    with Rig() as rig:
        for name in ("alice", "bob", "carol"):
            rig.add_user(name)
        rig.start("--job-window", "8")
        huge = rig.submit("".join('{"prompt": "!hold %d"}\n' % n for n in range(5000)))
        wait_until(lambda: rig.json("status --json " + huge)["running"] == 8, 30, "the window is full of lines that never end")
        for name in ("bob", "carol"):
            job = rig.submit([{"prompt": "x%d" % n} for n in range(30)], user=name)
            check_eq(rig.ssh("wait " + job, user=name).returncode, 0, name)
        job = rig.submit([{"prompt": "!hold"} for _ in range(30)], user="bob")
        wait_until(lambda: rig.json("status --json " + job, user="bob")["running"] == 4, 10, "four of one's own beyond it")
        status = rig.json("status --json " + huge)
        check_eq((status["running"], status["request_counts"]["completed"]), (8, 0), "nothing of alice's had to end for that")
        check_eq(rig.json("status --json " + job, user="bob")["running"], 4, "and no more")
        rig.ok("cancel " + job, user="bob")
        rig.ok("cancel " + huge)
        check_eq(rig.ssh("wait " + huge, timeout=120).returncode, 6, "cancelled")


def test_lines_with_one_prefix_are_fed_together():
    with Rig() as rig:
        rig.add_user("alice")
        rig.start()
        stems = ["".join(random.choice("abcdefgh ") for _ in range(500)) for _ in range(8)]
        lines = [{"id": "n%d" % n, "prompt": stems[random.randrange(8)] + " question %d" % n} for n in range(1000)]
        job = rig.submit(lines)
        rig.ok("wait " + job)
        check_once(rig, job, [x["id"] for x in lines])
        fed = [json.loads(x)["prompt"][:500] for x in open(rig.path("broker.log"))]
        changes = sum(a != b for a, b in zip(fed, fed[1:]))
        check(changes <= 8 * 4, "changes of prefix; in the order of the file it would be nearly 900:", changes)


def test_a_hundred_jobs_of_one_do_not_hide_that_of_another():
    with Rig() as rig:
        rig.add_user("alice")
        rig.add_user("bob")
        rig.broker_args = ["--delay-ms", "50"]
        rig.start("--job-window", "2")
        lines = [{"prompt": "a"}] * 100
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: rig.submit(lines), range(90)))
        small = rig.submit([{"prompt": "b%d" % n} for n in range(20)], user="bob")
        check_eq(rig.ssh("wait " + small, user="bob").returncode, 0, "bob")
        open_jobs = [j for j in rig.json("list --json")["jobs"] if j["status"] == "in_progress"]
        check(len(open_jobs) > 70, "alice still has her jobs:", len(open_jobs))


def test_the_id_is_on_disk_when_it_is_printed():
    with Rig() as rig:
        rig.add_user("alice")
        rig.start(broker=False)
        for _ in range(3):
            job = rig.submit([{"prompt": "x"}] * 1 + [{"prompt": "y%d" % n} for n in range(500)])
            os.kill(rig.children("jobs-process")[0], signal.SIGKILL)
            wait_until(lambda: rig.children("jobs-process"), 10, "a new jobs process")
            wait_until(lambda: rig.ssh("version").returncode == 0, 10, "logins work again")
            check_eq(rig.json("status --json " + job)["request_counts"]["total"], 501, "there, and whole")


def test_a_lost_connection_submits_nothing():
    with Rig() as rig:
        rig.add_user("alice")
        rig.start()
        p = subprocess.Popen(rig.ssh_args() + ["submit"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        p.stdin.write(b'{"prompt":"x"}\n' * 10000)
        p.stdin.flush()
        wait_until(lambda: os.listdir(os.path.join(rig.state, "spool")), 5, "an upload")
        p.kill()
        p.wait()
        wait_until(lambda: not os.listdir(os.path.join(rig.state, "spool")), 5, "the upload is gone")
        check_eq(rig.json("list --json")["jobs"], [], "no job")


def test_a_full_disk_is_waited_for():
    """The state folder on a small tmpfs that is filled in the middle of a job, and emptied again."""
    with Rig() as rig:
        os.makedirs(rig.state)
        mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m,mode=0750", "tmpfs", rig.state], capture_output=True)
        if mount.returncode != 0:
            print("     (no right to mount a tmpfs: not tried)")
            return
        try:
            rig.add_user("alice")
            rig.broker_args = ["--delay-ms", "200"]
            rig.start()
            ids = ["n%d" % n for n in range(2500)]
            job = rig.submit([{"id": i, "prompt": i + " x" * 100} for i in ids])
            wait_until(lambda: rig.json("status --json " + job)["request_counts"]["completed"] > 50, 20, "some answers")
            ballast = os.open(os.path.join(rig.state, "ballast"), os.O_WRONLY | os.O_CREAT)
            try:
                while os.write(ballast, b"\0" * 4096) > 0:
                    pass
            except OSError:
                os.close(ballast)
            note = wait_until(lambda: rig.json("status --json " + job)["note"], 30, "status says what it waits for")
            check("disk" in note, note)
            check_eq(rig.ssh("submit", '{"prompt":"y"}\n' * 2000).returncode in (4, 8), True, "a submit is refused")
            time.sleep(1)
            os.unlink(os.path.join(rig.state, "ballast"))
            check_eq(rig.ssh("wait " + job, timeout=60).returncode, 0, "wait")
            answers, errors = check_once(rig, job, ids)
            check_eq(len(answers), 2500, "answers")
            rig.stop()
        finally:
            rig.stop()
            subprocess.run(["umount", rig.state], check=False)


if __name__ == "__main__":
    run_tests([f for n, f in sorted(globals().items()) if n.startswith("test_")])
