#!/usr/bin/python3
"""What people pipe into `ssh box submit`: packed, text, tables; over the real ssh client."""
import gzip
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from gateway_rig import SANITIZED, Rig, check, check_eq, check_once, lines_of, run_tests, wait_until  # noqa: E402


def zstd(data, *options):
    return subprocess.run(["zstd", "-q", "-c", *options], input=data, stdout=subprocess.PIPE, check=True).stdout


def texts(rig, job):
    return {x["custom_id"]: x["response"]["body"]["choices"][0].get("text") or
            x["response"]["body"]["choices"][0]["message"]["content"] for x in lines_of(rig.ok("results " + job))}


def have_zstd():
    return subprocess.run(["which", "zstd"], capture_output=True).returncode == 0


def test_gzip_and_zstd_are_found_by_their_first_bytes():
    with Rig() as rig:
        rig.add_user("alice")
        rig.start()
        plain = "".join(json.dumps({"id": "n%d" % n, "prompt": "q %d" % n}) + "\n" for n in range(3000)).encode()
        half = len(plain) // 2
        packed = [plain, gzip.compress(plain), gzip.compress(plain[:half]) + gzip.compress(plain[half:])]
        if have_zstd():
            packed += [zstd(plain), zstd(plain[:half]) + zstd(plain[half:], "-19")]
        for data in packed:
            job = rig.submit(data, "--key same")
            check_eq(rig.ssh("wait " + job).returncode, 0, "wait")
            check_once(rig, job, ["n%d" % n for n in range(3000)])
        check_eq(len(rig.json("list --json")["jobs"]), 1, "the same text is the same job, packed or not")


def test_damaged_streams_submit_nothing():
    with Rig() as rig:
        rig.add_user("alice")
        rig.start()
        good = gzip.compress(b'{"prompt": "x"}\n' * 2)
        for data, word in [(good[:-5], b"ends early"), (good + b"more", b"not gzip follows"),
                           (good[:-8] + b"\0" * 8, b"damaged"), (b"\x1f\x8bgarbage", b"damaged")]:
            out = rig.ssh("submit", data)
            check_eq(out.returncode, 4, "refused", data[-8:], out.stderr)
            check(word in out.stderr, word, out.stderr)
        check_eq(rig.json("list --json")["jobs"], [], "no job")
        wait_until(lambda: not os.listdir(os.path.join(rig.state, "spool")), 5, "nothing is left")


def test_a_bomb_ends_at_the_users_limit_of_bytes():
    with Rig() as rig:
        rig.add_user("alice")
        with open(os.path.join(rig.state, "users"), "a") as f:
            f.write("max-job-bytes = 20M\n")
        rig.start()
        bombs = [gzip.compress(b'{"prompt":"aaaaaaaaaaaa"}\n' * (4 << 20))]
        if have_zstd():
            bombs.append(zstd(b" " * (300 << 20)))
        for data in bombs:
            check(len(data) < 1 << 20, "small on the line:", len(data))
            out = rig.ssh("submit", data)
            check_eq(out.returncode, 4, "refused", out.stderr)
            check(b"max-job-bytes" in out.stderr and b"20971520" in out.stderr, out.stderr)
        wait_until(lambda: not os.listdir(os.path.join(rig.state, "spool")), 5, "nothing is left")
        rig.ok("version")


def test_text_one_prompt_a_line():
    with Rig() as rig:
        rig.add_user("alice")
        rig.start()
        job = rig.submit(b'\xef\xbb\xbfWhy is "it" so?\r\n\r\n{"prompt": "just text"}\nlast', "--text")
        check_eq(rig.ssh("wait " + job).returncode, 0, "wait")
        check_eq(texts(rig, job), {"line-1": 'echo: Why is "it" so?', "line-3": 'echo: {"prompt": "just text"}', "line-4": "echo: last"},
                 "answers")
        job = rig.submit(b"hello\n", "--text --chat")
        rig.ok("wait " + job)
        seen = [json.loads(x) for x in open(rig.path("broker.log"))]
        check_eq(seen[-1]["messages"], [{"role": "user", "content": "hello"}], "--chat")


def test_a_template_over_csv_and_json_lines():
    with Rig() as rig:
        rig.add_user("alice")
        rig.start()
        table = 'id,text,n\r\na,"Guten\nTag, ""Welt""",1\r\nb,short\r\nc,"",3\r\n'
        job = rig.submit(table, "--template 'Translate: {text} ({n})'")
        check_eq(rig.ssh("wait " + job).returncode, 1, "one line is wrong")
        check_eq(texts(rig, job), {"a": 'echo: Translate: Guten\nTag, "Welt" (1)', "c": "echo: Translate:  (3)"}, "answers")
        wrong = lines_of(rig.ok("errors " + job))
        check_eq([(x["error"]["line"], x["error"]["message"]) for x in wrong], [(4, "the line has 2 fields, the header has 3")], "errors")
        lines = b'{"id": 1, "text": "x", "n": true}\n{"id": "two", "text": "y"}\n'
        job = rig.submit(gzip.compress(lines), "--template '{text}: {n}'")
        rig.ssh("wait " + job)
        check_eq(texts(rig, job), {"1": "echo: x: true"}, "JSON lines")
        wrong = lines_of(rig.ok("errors " + job))
        check_eq((wrong[0]["custom_id"], wrong[0]["error"]["line"]), ("two", 2), "the line without n")
        out = rig.ssh("submit --template '{body}'", table)
        check_eq(out.returncode, 4, "a column that is not there")
        check(b"{body}" in out.stderr and b"id, text, n" in out.stderr, out.stderr)
        for options, word in [("--template 'no column'", b"names no column"), ("--text --template '{a}'", b"together"), ("--chat", b"--text")]:
            out = rig.ssh("submit " + options, table)
            check(out.returncode == 2 and word in out.stderr, options, out.returncode, out.stderr)


def test_utf16_is_refused_by_name():
    with Rig() as rig:
        rig.add_user("alice")
        rig.start()
        text = '{"prompt": "x"}\r\n'
        for data in [text.encode("utf-16"), text.encode("utf-16-be"), text.encode("utf-16-le"), gzip.compress(text.encode("utf-16"))]:
            for options in ["", "--text", "--template '{prompt}'"]:
                out = rig.ssh("submit " + options, data)
                check_eq(out.returncode, 4, options, out.stderr)
                check(b"UTF-16" in out.stderr, out.stderr)


def memory_kib(rig, kind):
    most = 0
    for pid in rig.children(kind):
        with open("/proc/%d/status" % pid) as f:
            most = max(most, int(f.read().split("VmHWM:")[1].split()[0]))
    return most


def test_memory_does_not_grow_with_the_input():
    """The same master connection takes a small and a large upload; what the processes ever held hardly differs."""
    with Rig() as rig:
        rig.add_user("alice")
        rig.start(broker=False)
        control = rig.path("control")
        master = subprocess.Popen(rig.ssh_args("alice", "-M", "-S", control, "-N"))
        while not os.path.exists(control):
            if master.poll() is not None:
                break
        row = b'n%06d,"some text that is, in a way, of middling length",x\n'

        def submit(n):
            data = gzip.compress(b"id,text,tail\n" + b"".join(row % i for i in range(n)), 1)
            rig.submit_over = rig.ssh("submit --template 'Say {text}'", data, options=("-S", control))
            check_eq(rig.submit_over.returncode, 0, "submit", rig.submit_over.stderr)
            return memory_kib(rig, "connection-process"), memory_kib(rig, "jobs-process")
        small = submit(2000)
        large = submit(20000 if SANITIZED else 100000)
        master.kill()
        master.wait()
        growth = [b - a for a, b in zip(small, large)]
        check(growth[0] < 8 << 10 or SANITIZED, "connection process grew by KiB", growth)
        check(growth[1] < 16 << 10 or SANITIZED, "jobs process grew by KiB", growth)


if __name__ == "__main__":
    run_tests([f for n, f in sorted(globals().items()) if n.startswith("test_")])
