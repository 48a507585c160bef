#!/usr/bin/python3
"""sftp and scp: OpenSSH's own programs, curl, paramiko and asyncssh where they are installed, and packets made by hand."""
import gzip
import hashlib
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from gateway_rig import PATIENCE, Rig, check, check_eq, check_once, lines_of, run_tests, wait_until  # noqa: E402
from sftp_client import Sftp  # noqa: E402

try:
    import paramiko
except ImportError:
    paramiko = None
try:
    import asyncio
    import warnings
    warnings.simplefilter("ignore")
    import asyncssh
except ImportError:
    asyncssh = None


def started(*args):
    rig = Rig()
    rig.add_user("alice")
    rig.start(*args)
    return rig


def job_lines(n, size=10):
    return "".join(json.dumps({"id": "l%d" % i, "prompt": "x" * size}) + "\n" for i in range(n)).encode()


def put_file(rig, name, data):
    with open(rig.path(name), "wb") as f:
        f.write(data)
    return rig.path(name)


def options(rig, user="alice"):
    return rig.ssh_args(user)[1:-3]


def sftp(rig, *commands, user="alice", code=0, more=()):
    """OpenSSH's sftp with a batch of commands; a command that begins with - may fail.  Gives (stdout, stderr)."""
    words = [w if w != "-p" else "-P" for w in options(rig, user)]
    out = subprocess.run(["sftp", "-q", *more, "-b", "-", *words, user + "@127.0.0.1"], input="\n".join(commands).encode() + b"\n",
                         capture_output=True, timeout=60 * PATIENCE)
    if code is not None:
        check_eq(out.returncode, code, "sftp", commands, out.stdout, out.stderr)
    return out.stdout.decode(errors="replace"), out.stderr.decode(errors="replace")


def scp(rig, *args, user="alice"):
    words = [w if w != "-p" else "-P" for w in options(rig, user)]
    return subprocess.run(["scp", "-q", *words, *args], capture_output=True, timeout=60 * PATIENCE)


def jobs(rig, user="alice"):
    return rig.json("list --all --json", user=user)["jobs"]


def inbox(rig, user="alice"):
    folder = os.path.join(rig.state, "files", user, "inbox")
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


def test_put_makes_a_job_and_its_files_are_read():
    with started() as rig:
        data = job_lines(20)
        path = put_file(rig, "night.jsonl", data)
        _, err = sftp(rig, "put %s inbox/night.jsonl" % path)
        check("is now job" in err and "20 lines" in err, "the user is told which job it is:", err)
        check_eq(len(jobs(rig)), 1, "one job")
        job = jobs(rig)[0]
        check_eq((job["name"], job["request_counts"]["total"]), ("night", 20), "named like the file")
        check_eq(inbox(rig), [], "nothing is left in the inbox")
        rig.ok("wait night")
        answers, _ = check_once(rig, job["id"], ["l%d" % i for i in range(20)])
        check_eq(len(answers), 20, "all answered")
        out, _ = sftp(rig, "ls -l", "ls -l jobs/%s" % job["id"], "cd jobs/last", "get output.jsonl %s" % rig.path("out"),
                      "get input.jsonl %s" % rig.path("in"), "get status.json %s" % rig.path("status"), "get /jobs/night/errors.jsonl %s" % rig.path("err"))
        check_eq(open(rig.path("in"), "rb").read(), data, "the input")
        check_eq(open(rig.path("out"), "rb").read(), rig.ok("results night"), "the output")
        check_eq(os.path.getsize(rig.path("err")), 0, "no errors")
        check_eq(json.load(open(rig.path("status")))["status"], "completed", "status.json")
        for word in ["inbox", "jobs", "alice", "output.jsonl", "status.json"]:
            check(word in out, word, "is listed:", out)
        log = open(rig.path("gateway.log")).read()
        check("action=submit file=\"night.jsonl.incomplete\" bytes=%d result=job:%s" % (len(data), job["id"]) in log or
              "action=submit file=night.jsonl.incomplete bytes=%d result=job:%s" % (len(data), job["id"]) in log, "the log says who put what")
        check("action=get job=" in log, "and who took what")


def test_packed_files():
    with started() as rig:
        data = job_lines(300)
        sftp(rig, "put %s inbox/" % put_file(rig, "a.jsonl.gz", gzip.compress(data)))
        check_eq(jobs(rig)[0]["request_counts"]["total"], 300, "gzip")
        check_eq(jobs(rig)[0]["name"], "a", "its name")
        if shutil.which("zstd"):
            put_file(rig, "b.jsonl", data)
            subprocess.run(["zstd", "-q", rig.path("b.jsonl")], check=True)
            sftp(rig, "put %s.zst inbox/" % rig.path("b.jsonl"))
            check_eq(len(jobs(rig)), 2, "zstd")
        _, err = sftp(rig, "-put %s inbox/" % put_file(rig, "cut.jsonl.gz", gzip.compress(data)[:-100]))
        check("ends early" in err, "a cut stream is told:", err)
        check_eq(inbox(rig), ["cut.jsonl.gz.incomplete", "cut.jsonl.gz.incomplete.txt"], "and kept, with a note")
        check("ends early" in open(os.path.join(rig.state, "files/alice/inbox/cut.jsonl.gz.incomplete.txt")).read(), "the note says why")
        sftp(rig, "put -a %s inbox/cut.jsonl.gz" % put_file(rig, "whole.jsonl.gz", gzip.compress(data)))
        check_eq(inbox(rig), [], "the rest makes it whole")
        bomb = gzip.compress(b" " * (3 << 20))
        rig.user("limit", "alice", "max-job-bytes=2M")
        _, err = sftp(rig, "-put %s inbox/" % put_file(rig, "bomb.gz", bomb))
        check("max-job-bytes" in err, "a bomb ends at the limit:", err)


def test_half_a_file_waits_for_its_rest():
    with started() as rig:
        data = job_lines(400, 100)
        half = put_file(rig, "half", data[:30001])
        whole = put_file(rig, "whole", data)
        _, err = sftp(rig, "put %s inbox/big.jsonl" % half, code=1)
        check("last line is not complete" in err, "the user is told:", err)
        check_eq(inbox(rig), ["big.jsonl.incomplete", "big.jsonl.incomplete.txt"], "it is kept")
        check_eq(len(jobs(rig)), 0, "no job")
        out, _ = sftp(rig, "ls -l inbox", "get inbox/big.jsonl.incomplete.txt %s" % rig.path("note"), "get inbox/big.jsonl %s" % rig.path("back"))
        check("30001" in out, "its length is shown", out)
        check("put -a" in open(rig.path("note")).read(), "the note says how to go on")
        check_eq(open(rig.path("back"), "rb").read(), data[:30001], "it can be read back under its own name")
        sftp(rig, "put -a %s inbox/big.jsonl" % whole)
        check_eq(inbox(rig), [], "the inbox is empty")
        rig.ok("wait")
        check_once(rig, jobs(rig)[0]["id"], ["l%d" % i for i in range(400)])
        # as it is, by a rename
        sftp(rig, "put %s inbox/other.jsonl" % half, code=1)
        sftp(rig, "rename inbox/other.jsonl.incomplete inbox/other.jsonl")
        check_eq((len(jobs(rig)), inbox(rig)), (2, []), "a rename to the final name makes a job of it")
        # a name that says it is not finished
        sftp(rig, "put %s inbox/x.part" % whole, "ls inbox", "rename inbox/x.part inbox/y.tmp", "rename inbox/y.tmp inbox/x.jsonl")
        check_eq((len(jobs(rig)), inbox(rig)), (3, []), "x.part waits for its name")
        # reget
        put_file(rig, "got", rig.ok("results " + jobs(rig)[-1]["id"])[:1000])
        sftp(rig, "reget jobs/%s/output.jsonl %s" % (jobs(rig)[-1]["id"], rig.path("got")))
        check_eq(open(rig.path("got"), "rb").read(), rig.ok("results " + jobs(rig)[-1]["id"]), "reget")


def test_interrupted_sftp_leaves_half_a_file():
    with started() as rig:
        path = put_file(rig, "big.jsonl", job_lines(10000, 2000))
        words = [w if w != "-p" else "-P" for w in options(rig)]
        client = subprocess.Popen(["sftp", "-q", "-l", "20000", *words, "alice@127.0.0.1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE)
        client.stdin.write(b"put %s inbox/big.jsonl\n" % path.encode())
        client.stdin.flush()
        stored = os.path.join(rig.state, "files/alice/inbox/big.jsonl.incomplete")
        wait_until(lambda: os.path.exists(stored) and os.path.getsize(stored) > 300000, 20, "bytes on disk")
        client.send_signal(signal.SIGINT)
        client.stdin.close()
        client.wait(30 * PATIENCE)
        client.stdout.close(), client.stderr.close()
        wait_until(lambda: os.path.exists(stored + ".txt"), 10, "a note")
        check_eq(len(jobs(rig)), 0, "no job of half a file")
        half = os.path.getsize(stored)
        check(half < os.path.getsize(path), "it was half")
        sftp(rig, "put -a %s inbox/big.jsonl" % path)
        check_eq((jobs(rig)[0]["request_counts"]["total"], inbox(rig)), (10000, []), "resumed")
        check_eq(os.path.getsize(os.path.join(rig.state, "files/alice/jobs", jobs(rig)[0]["id"], "input.jsonl")), os.path.getsize(path), "all of it")


def test_what_is_refused_is_said():
    with started() as rig:
        small = put_file(rig, "small.jsonl", job_lines(3))
        refused = [("mkdir inbox/folder", "folders cannot be made"), ("ln -s /etc/passwd inbox/link", "links cannot be made"),
                   ("rmdir jobs", "folders cannot be removed"), ("rm jobs/last/output.jsonl", "delete JOB"), ("put %s jobs/x.jsonl" % small, "inbox/ only"),
                   ("put %s inbox/a/b.jsonl" % small, "inbox/ only"), ("put %s /a/b/c/d/e.jsonl" % small, "inbox/ only")]
        sftp(rig, "put %s inbox/nothing.part" % small)
        _, err = sftp(rig, *["-" + c for c, _ in refused], "-rename inbox/nothing.part jobs/x")
        for command, words in refused + [("rename", "within inbox/")]:
            check(words in err, command, "is told:", err)
        with Sftp(rig) as s:
            for path in ["/etc/passwd", "inbox/../../../etc/passwd", "../../../../etc/passwd", "jobs/last/../../../../etc/passwd", "inbox/nothing",
                         "jobs/j99999/output.jsonl"]:
                check_eq(s.open_status(path, 1), 2, path)
            for path in ["/etc", "jobs/nothing", "inbox/folder"]:
                check_eq(s.request_status(11, s.string(path)), 2, path)
            check_eq(s.request_status(13, s.string("inbox/nothing")), 2, "remove")
            check_eq(s.request_status(13, s.string("inbox/nothing.part")), 0, "remove")
        bad = put_file(rig, "dup.jsonl", b'{"id":"a","prompt":"1"}\n{"id":"b","prompt":"1"}\n{"id":"a","prompt":"2"}\n')
        _, err = sftp(rig, "put %s inbox/" % bad, code=1)
        check("lines 1 and 3 have the same custom_id" in err, "duplicate:", err)
        check("duplicate_id" in open(os.path.join(rig.state, "files/alice/inbox/dup.jsonl.incomplete.txt")).read(), "in the note")
        _, err = sftp(rig, "put %s inbox/" % put_file(rig, "empty.jsonl", b""), code=1)
        check("the input is empty" in err, "empty:", err)
        _, err = sftp(rig, "put %s inbox/" % put_file(rig, "wide.jsonl", '{"prompt":"x"}\n'.encode("utf-16")), code=1)
        check("UTF-16" in err, "UTF-16:", err)
        check_eq(jobs(rig), [], "no job")
        sftp(rig, "rm inbox/dup.jsonl", "rm inbox/empty.jsonl", "rm inbox/wide.jsonl")
        check_eq(inbox(rig), [], "removed with their notes")


def test_limits_hold_and_are_named():
    with started() as rig:
        rig.user("limit", "alice", "max-jobs=1", "max-job-lines=5", "max-job-bytes=4K")
        _, err = sftp(rig, "put %s inbox/" % put_file(rig, "lines.jsonl", job_lines(6)), code=1)
        check("more lines than the limit of 5" in err, "lines:", err)
        _, err = sftp(rig, "put %s inbox/" % put_file(rig, "bytes.jsonl", job_lines(5, 2000)), code=1)
        check("max-job-bytes" in err and "4096" in err, "bytes:", err)
        check_eq(jobs(rig), [], "what was cut at the limit is no job")
        sftp(rig, "rm inbox/*")
        sftp(rig, "put %s inbox/p%d.part" % (put_file(rig, "x", b"y" * 4096), 1), *["put %s inbox/p%d.part" % (rig.path("x"), n) for n in (2, 3, 4)])
        _, err = sftp(rig, "put %s inbox/p5.part" % rig.path("x"), code=1)
        check("inbox-bytes" in err, "all files together:", err)
        sftp(rig, "rm inbox/*")
        rig.stop_broker()
        sftp(rig, "put %s inbox/" % put_file(rig, "one.jsonl", job_lines(2)))
        _, err = sftp(rig, "put %s inbox/two.jsonl" % rig.path("one.jsonl"), code=1)
        check("max-jobs" in err, "jobs:", err)
        check_eq(len(jobs(rig)), 1, "one job")
        check_eq(inbox(rig), [], "nothing was begun")


def test_df_tells_what_can_still_be_put():
    with started() as rig:
        rig.user("limit", "alice", "max-job-bytes=1M")

        def df(*command):
            out, err = sftp(rig, *command)
            line = [l for l in out.splitlines() if not l.startswith("sftp>")][-1].split()
            return [int(n.rstrip("%")) for n in line]
        check_eq(df("df"), [4096, 0, 4096, 4096, 0], "size, used, free, free to all, part used")
        sftp(rig, "put %s inbox/x.part" % put_file(rig, "x", b"y" * (1 << 20)))
        check_eq(df("df inbox"), [4096, 1024, 3072, 3072, 25], "a file takes of it")
        check_eq(df("df -i jobs"), [1000, 1, 999, 999, 0], "and one of the files there may be")
        sftp(rig, "df nowhere/else", code=1)


def test_users_do_not_meet():
    with started() as rig:
        rig.add_user("bob")
        sftp(rig, "put %s inbox/mine.part" % put_file(rig, "a", job_lines(1)), "put %s inbox/mine.jsonl" % rig.path("a"))
        job = jobs(rig)[0]["id"]
        out, _ = sftp(rig, "ls jobs", "ls inbox", user="bob")
        check(job not in out and "mine" not in out, "bob sees nothing:", out)
        sftp(rig, "get jobs/%s/input.jsonl /dev/null" % job, user="bob", code=1)
        sftp(rig, "get inbox/mine.part /dev/null", user="bob", code=1)
        sftp(rig, "get ../alice/inbox/mine.part /dev/null", user="bob", code=1)


def test_links_in_the_folder_lead_nowhere():
    with started() as rig:
        folder = os.path.join(rig.state, "files/alice/inbox")
        sftp(rig, "put %s inbox/a.part" % put_file(rig, "a", job_lines(1)))
        os.symlink("/etc/passwd", folder + "/link.part")
        os.symlink("/tmp", folder + "/folder")
        os.mkfifo(folder + "/pipe.part")
        with Sftp(rig) as s:
            for path, flags in [("inbox/link.part", 1), ("inbox/pipe.part", 1), ("inbox/link.part", 10), ("inbox/folder/x", 1), ("inbox/folder/x", 10)]:
                check(s.open_status(path, flags) != 0, path, flags)
        out, _ = sftp(rig, "ls inbox")
        check("a.part" in out and "link" not in out and "pipe" not in out, "only files are listed:", out)
        check(open("/etc/passwd").read().startswith("root"), "passwd")


def test_scp():
    with started() as rig:
        path = put_file(rig, "a b'$(touch x);`y`.jsonl", job_lines(4))
        for target in ["alice@127.0.0.1:", "alice@127.0.0.1:inbox/", "alice@127.0.0.1:inbox/other.jsonl"]:
            out = scp(rig, path, target)
            check_eq(out.returncode, 0, "scp to", target, out.stderr)
        check_eq(len(jobs(rig)), 3, "three jobs")
        check(any(j["name"] == "a b'$(touch x);`y`" for j in jobs(rig)), "the name is literal:", [j["name"] for j in jobs(rig)])
        rig.ok("wait")
        out = scp(rig, "alice@127.0.0.1:jobs/last/output.jsonl", rig.path("got"))
        check_eq((out.returncode, open(rig.path("got"), "rb").read()), (0, rig.ok("results")), "scp from")
        for words in [("-O", path, "alice@127.0.0.1:"), ("-O", "alice@127.0.0.1:jobs/last/output.jsonl", rig.path("got2"))]:
            out = scp(rig, *words)
            check(out.returncode != 0 and b"old scp protocol" in out.stderr, "scp -O:", out)
        out = rig.ssh("rsync --server -e.LsfxCIvu . inbox/")
        check(out.returncode == 2 and b"rsync is not spoken here" in out.stderr, "rsync:", out)
        out = scp(rig, "-r", os.path.dirname(path), "alice@127.0.0.1:inbox/")
        check(out.returncode != 0 and b"folders cannot be made" in out.stderr, "scp -r:", out)


def test_large_files_through_small_windows():
    """20 MB up and down: pipelined, with a rekey every 256 KB, and by way of a packet size of 1 KB."""
    with started() as rig:
        data = job_lines(5000, 4000)
        sha = hashlib.sha256(data).hexdigest()
        path = put_file(rig, "big.jsonl", data)
        small = put_file(rig, "small", data[:2 << 20])
        for file, more in [(path, ("-o", "RekeyLimit=256K")), (small, ("-B", "1024", "-R", "200"))]:
            sftp(rig, "put %s inbox/big.part" % file, "get inbox/big.part %s" % rig.path("back"), "rm inbox/big.part", more=more)
            check_eq(open(rig.path("back"), "rb").read(), open(file, "rb").read(), more)
        with Sftp(rig) as s: # every read is asked for at once, and nothing taken for a while
            handle = s.open("inbox/p.part", 2 | 8 | 16)
            for at in range(0, len(data), 250000):
                s.send(6, s.string(handle) + struct.pack(">Q", at) + s.string(data[at:at + 250000]))
            for at in range(0, len(data), 250000):
                check_eq(s.status(), 0, "write")
            s.close_handle(handle)
            handle = s.open("inbox/p.part", 1)
            ids = [s.send(5, s.string(handle) + struct.pack(">QI", at, 32768)) for at in range(0, len(data), 32768)]
            time.sleep(0.5)
            got = b"".join(s.data(i) for i in ids)
            check_eq(hashlib.sha256(got).hexdigest(), sha, "pipelined")


def test_output_is_read_while_it_grows():
    with started() as rig:
        rig.stop_broker()
        rig.start_broker()
        sftp(rig, "put %s inbox/grow.jsonl" % put_file(rig, "g", job_lines(300)))
        with Sftp(rig) as s:
            handle = s.open("jobs/grow/output.jsonl", 1)
            got = b""

            def more():
                nonlocal got
                got += s.read(handle, len(got)) or b""
                return got.count(b"\n") == 300
            wait_until(more, 30, "all answers through one handle")
            check_eq(sorted(x["custom_id"] for x in lines_of(got)), sorted("l%d" % i for i in range(300)), "each once")


def test_packets_that_lie():
    """Bytes that are no sftp, and sftp that makes no sense: an answer or an end, and others are served."""
    with started() as rig:
        for raw in [b"\xff" * 100, struct.pack(">IB", 1, 1), struct.pack(">I", 1 << 30), struct.pack(">IBI", 5, 3, 7), b"GET / HTTP/1.0\r\n\r\n"]:
            out = subprocess.run(rig.ssh_args()[:-3] + ["-l", "alice", "-s", "127.0.0.1", "sftp"], input=raw, capture_output=True, timeout=30 * PATIENCE)
            check(out.returncode == 2 and b"no packets of sftp" in out.stderr, "told and ended:", raw[:10], out)
        with Sftp(rig) as s:
            check_eq(s.request_status(5, s.string(b"12345678") + struct.pack(">QI", 0, 10)), 4, "a handle that is not")
            check_eq(s.request_status(5, s.string(b"\0" * 8) + struct.pack(">QI", 0, 10)), 4, "another")
            check_eq(s.request_status(99, b""), 8, "an unknown type")
            check_eq(s.request_status(3, b"\xff\xff\xff\xff"), 5, "a length that lies")
            check_eq(s.request_status(200, s.string("nothing@example.org") + b"x"), 8, "an unknown extension")
            handle = s.open("inbox/a.part", 2 | 8 | 16)
            check_eq(s.request_status(6, s.string(handle) + struct.pack(">Q", 2 ** 64 - 1) + s.string("xy")), 4, "an offset at the end of all numbers")
            check_eq(s.request_status(6, s.string(handle) + struct.pack(">Q", 2 ** 63) + s.string("xy")), 4, "and one in the middle")
            check_eq(s.request_status(4, s.string(handle)), 4, "the file was not written as it should be")
            check_eq(s.request_status(4, s.string(handle)), 4, "closed twice")
            handles = [s.open("inbox/a.part", 1) for _ in range(64)]
            check_eq(s.request_status(3, s.string("inbox/a.part") + struct.pack(">II", 1, 0)), 4, "the 65th")
            for h in handles:
                s.close_handle(h)
            check_eq(s.open_status("inbox/notutf8\xbf.part".encode("latin-1"), 2 | 8), 0, "bytes are kept")
            check_eq(s.open_status(b"inbox/a\x1b[31m", 2 | 8), 3, "control characters")
            check_eq(s.open_status("inbox/" + "x" * 300, 2 | 8), 3, "a long name")
            check_eq(s.open_status("inbox/" + "x" * 200, 2 | 8), 0, "the longest name")
            names = s.names("inbox")
            check(b"notutf8\xbf.part" in names and b"x" * 200 + b".incomplete" in names, "listed", names)
        check(b"notutf8" in subprocess.run(["sftp", "-q", "-b", "-"] + [w if w != "-p" else "-P" for w in options(rig)] + ["alice@127.0.0.1"],
                                           input=b"ls -l inbox\n", capture_output=True).stdout, "ls -l")
        rig.ok("whoami")


def test_a_client_that_never_reads_what_is_said_is_served():
    """Each refusal is also a sentence on standard error: thousands of them wait for nobody, and keep no answer back."""
    with started() as rig:
        with Sftp(rig) as s:
            for _ in range(3000):
                check_eq(s.request_status(14, s.string("folder") + struct.pack(">I", 0)), 3, "refused")
            check_eq(s.names("/"), [b"inbox", b"jobs"], "and served")


def test_a_file_is_closed_before_it_is_renamed():
    with started() as rig:
        with Sftp(rig) as s:
            handle = s.open("inbox/x.part", 2 | 8 | 16)
            names = s.string("inbox/x.part") + s.string("inbox/x.jsonl")
            check_eq(s.request_status(6, s.string(handle) + struct.pack(">Q", 0) + s.string(job_lines(2))), 0, "write")
            check_eq(s.request_status(18, names), 4, "rename")
            check_eq(s.request_status(200, s.string("posix-rename@openssh.com") + names), 4, "posix-rename")
            check_eq(jobs(rig), [], "no job")
            check_eq(s.request_status(4, s.string(handle)), 0, "close")
            check_eq(s.request_status(18, names), 0, "rename after that")
            check_eq([x["name"] for x in jobs(rig)], ["x"], "one job")


def test_a_user_is_put_out_while_others_keep_the_gateway_busy():
    with started() as rig:
        rig.add_user("bob")
        bob = Sftp(rig, "bob")
        with Sftp(rig) as alice:
            check_eq(rig.user("disable", "bob").returncode, 0, "disable")

            def out():
                for _ in range(300):    # no moment without a request; nobody logs in meanwhile
                    alice.send(17, alice.string("inbox/nothing"))
                for _ in range(300):
                    check_eq(alice.status(), 2, "no such file")
                return bob.process.poll() is not None
            wait_until(out, 10, "bob is put out")
        bob.kill()


def test_two_sessions_do_not_write_one_file():
    with started() as rig:
        with Sftp(rig) as a, Sftp(rig) as b:
            handle = a.open("inbox/x.jsonl", 2 | 8 | 16)
            check_eq(b.open_status("inbox/x.jsonl", 2 | 8 | 16), 4, "held")
            check_eq(b.request_status(13, b.string("inbox/x.jsonl")), 4, "remove")
            check_eq(b.request_status(18, b.string("inbox/x.jsonl.incomplete") + b.string("inbox/y.jsonl")), 4, "rename")
            check_eq(a.request_status(6, a.string(handle) + struct.pack(">Q", 0) + a.string(job_lines(2))), 0, "write")
            check_eq(a.request_status(4, a.string(handle)), 0, "close")
            check_eq(len(jobs(rig)), 1, "one job")
            check_eq(a.request_status(17, a.string("inbox/x.jsonl"), wanted=105), None, "whoever put it can still ask for it")
            check_eq(b.request_status(17, b.string("inbox/x.jsonl")), 2, "nobody else")
            check_eq(b.open_status("inbox/x.jsonl", 2 | 8 | 16), 0, "and the name is free again")


def gone(pid):
    try:
        with open("/proc/%d/stat" % pid) as f:
            return f.read().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def kill_some(rig, kind):
    """SIGKILL to the processes of a kind; of the listener, to all, and a new start."""
    pids = rig.children("jobs-process") + rig.children("connection-process") if kind == "listener" else rig.children(kind)
    if kind == "listener":
        rig.stop(signal.SIGKILL)
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    if kind == "listener":
        wait_until(lambda: all(gone(p) for p in pids), 10, "all are gone")
        rig.start()
    wait_until(lambda: rig.ssh("whoami").returncode == 0, 30, "served again")


def upload_and_kill(rig, name, kind, data, whole, dice):
    """Put data, or a part of it, and kill while it comes, or while the job is being made."""
    s = Sftp(rig)
    try:
        handle = s.open("inbox/%s.jsonl" % name, 2 | 8 | 16)
        for at in range(0, len(data) if whole else 1, 200000):
            check_eq(s.request_status(6, s.string(handle) + struct.pack(">Q", at) + s.string(data[at:at + 200000])), 0, "write")
        if whole:
            s.send(4, s.string(handle))
            time.sleep(dice.random() * dice.choice([0.01, 0.1, 1]))
        kill_some(rig, kind)
    finally:
        s.kill()


def test_killed_processes_leave_no_job_twice_and_no_half_job():
    with started() as rig:
        rig.forbidden = [w for w in rig.forbidden if w != "event=connection_died"]
        data = job_lines(3000, 300)
        seed = int(os.environ.get("KILL_SEED", int.from_bytes(os.urandom(4), "big")))
        print("KILL_SEED=%d" % seed)
        dice = random.Random(seed)
        path, rounds, n_jobs = put_file(rig, "data", data), int(os.environ.get("KILL_ROUNDS", "6")), 0
        for n in range(rounds):
            name, kind, whole = "k%d" % n, ["connection-process", "jobs-process", "listener"][n % 3], n % 2 == 1
            upload_and_kill(rig, name, kind, data, whole, dice)
            there = [j for j in jobs(rig) if j["name"] == name]
            stored = os.path.join(rig.state, "files/alice/inbox/%s.jsonl.incomplete" % name)
            if whole:
                wait_until(lambda: [j for j in jobs(rig) if j["name"] == name] or os.path.exists(stored), 10, "a job or a file")
                there = [j for j in jobs(rig) if j["name"] == name]
                check_eq(len(there) + os.path.exists(stored), 1, kind, "either a job or a file", there)
                check(not there or there[0]["request_counts"]["total"] == 3000, "a job of all lines")
            else:
                wait_until(lambda: os.path.exists(stored + ".txt"), 10, "the incomplete file has a note")
                check_eq((there, os.path.getsize(stored)), ([], 200000), "half a file is still there, and no job")
            n_jobs += len(there)
            if not there: # a whole file runs by its name, half a one after its rest has come
                sftp(rig, "rename inbox/%s.jsonl.incomplete inbox/%s.jsonl" % (name, name) if whole else "put -a %s inbox/%s.jsonl" % (path, name))
        check_eq(sorted(j["name"] for j in jobs(rig)), sorted("k%d" % n for n in range(rounds)), "each is one job")
        check_eq((inbox(rig), os.listdir(os.path.join(rig.state, "files/alice/submitting"))), ([], []), "nothing is left")
        check(all(j["request_counts"]["total"] == 3000 for j in jobs(rig)), "of all lines")
        print("%d of %d whole files had become jobs before the kill" % (n_jobs, rounds // 2))
        rig.ok("wait k%d" % (rounds - 1))


def test_a_full_disk():
    with Rig() as rig:
        rig.add_user("alice")
        os.makedirs(rig.state, exist_ok=True)
        keep = {f: open(os.path.join(rig.state, f), "rb").read() for f in os.listdir(rig.state)}
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m,mode=0750", "tmpfs", rig.state], capture_output=True).returncode != 0:
            print("no tmpfs can be mounted here")
            return
        try:
            for name, content in keep.items():
                with open(os.path.join(rig.state, name), "wb") as f:
                    f.write(content)
            rig.start()
            data = job_lines(1500, 12000)
            path = put_file(rig, "big.jsonl", data)
            _, err = sftp(rig, "put %s inbox/big.jsonl" % path, code=1)
            check("No space left" in err, "the disk is named:", err)
            check_eq(jobs(rig), [], "no job of what was cut")
            check("big.jsonl.incomplete" in inbox(rig), "what came is kept")
            sftp(rig, "rm inbox/big.jsonl", "put %s inbox/small.jsonl" % put_file(rig, "small.jsonl", job_lines(100)))
            rig.ok("wait small")
            check_eq(len(jobs(rig)), 1, "with room again it works")
            rig.stop()
        finally:
            rig.stop()
            subprocess.run(["umount", "-l", rig.state], check=False)


def test_control_master():
    with started() as rig:
        path = put_file(rig, "m.jsonl", job_lines(2))
        master = subprocess.Popen(rig.ssh_args("alice", "-M", "-N", "-S", rig.path("control")))
        wait_until(lambda: os.path.exists(rig.path("control")), 20, "the master")
        shared = ["-o", "ControlPath=" + rig.path("control")]
        procs = [subprocess.Popen(["sftp", "-q", *shared, "-b", "-", "alice@127.0.0.1"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.PIPE) for _ in range(4)]
        for n, p in enumerate(procs):
            _, err = p.communicate(b"put %s inbox/m%d.jsonl\nls jobs\n" % (path.encode(), n), timeout=60 * PATIENCE)
            check_eq(p.returncode, 0, "sftp over the master", err)
        check_eq(len(jobs(rig)), 4, "four jobs")
        sessions = [Sftp(rig, options=("-S", rig.path("control"))) for _ in range(4)]
        for s in sessions:  # as many files as each may open, all in one process over there
            for _ in range(64):
                s.open("jobs/last/input.jsonl", 1)
        check_eq(sessions[0].open_status("jobs/last/input.jsonl", 1), 4, "the 65th of a session")
        for s in sessions:
            check_eq(s.finish(), 0, "exit status")
        master.terminate()
        master.wait()


def test_paramiko():
    if paramiko is None:
        print("paramiko is not installed")
        return
    with started() as rig:
        data = job_lines(2000, 2000)
        client = paramiko.SSHClient()
        client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
        client.connect("127.0.0.1", rig.port, username="alice", pkey=paramiko.Ed25519Key.from_private_key_file(rig.path("alice")),
                       look_for_keys=False, allow_agent=False, timeout=20)
        s = client.open_sftp()
        attrs = s.put(put_file(rig, "p.jsonl", data), "inbox/p.jsonl")  # looks afterwards whether it is all there
        check_eq(attrs.st_size, len(data), "put")
        try:
            s.put(put_file(rig, "e.jsonl", b'{"prompt": 1}\n{"pro'), "inbox/e.jsonl")
            check(False, "no error")
        except OSError as e:
            check("last line is not complete" in str(e), "the status has the sentence:", e)
        rig.ok("wait p")
        s.get("jobs/p/output.jsonl", rig.path("out"))
        check_eq(open(rig.path("out"), "rb").read(), rig.ok("results p"), "get")
        check_eq(json.loads(s.open("jobs/p/status.json").read())["name"], "p", "status")
        check_eq(sorted(s.listdir("/")), ["inbox", "jobs"], "listdir")
        check_eq(s.normalize("."), "/", "realpath")
        with s.open("inbox/q.part", "w") as f:
            f.set_pipelined(True)
            for at in range(0, len(data), 30000):
                f.write(data[at:at + 30000])
        small = client.get_transport().open_session(window_size=32768, max_packet_size=4096)
        small.invoke_subsystem("sftp")
        with paramiko.SFTPClient(small).open("inbox/q.part", "r") as f:
            check_eq(f.read(300000), data[:300000], "through a window of 32 KB")
        s.posix_rename("inbox/q.part", "inbox/q.jsonl")
        check_eq(len(jobs(rig)), 2, "renamed")
        client.close()


def test_asyncssh():
    if asyncssh is None:
        print("asyncssh is not installed")
        return

    async def go(rig, data):
        async with asyncssh.connect("127.0.0.1", rig.port, username="alice", client_keys=[rig.path("alice")], known_hosts=None) as c:
            async with c.start_sftp_client() as s:
                await s.put(put_file(rig, "a.jsonl", data), "inbox/a.jsonl")
                check_eq(sorted(await s.listdir("/")), ["inbox", "jobs"], "listdir")
                await s.get("jobs/a/input.jsonl", rig.path("back"))
                check_eq(open(rig.path("back"), "rb").read(), data, "get")
                try:
                    await s.mkdir("inbox/x")
                    check(False, "no error")
                except asyncssh.SFTPError as e:
                    check("folders cannot be made" in str(e), "mkdir:", e)

    with started() as rig:
        asyncio.run(go(rig, job_lines(1000, 3000)))
        check_eq(len(jobs(rig)), 1, "one job")


def test_curl():
    if not shutil.which("curl") or b"sftp" not in subprocess.run(["curl", "--version"], capture_output=True).stdout:
        print("curl is not installed, or cannot do sftp")
        return
    with started() as rig:
        base = ["curl", "-sS", "-k", "--key", rig.path("alice"), "--pubkey", rig.path("alice.pub"), "-u", "alice:"]
        url = "sftp://127.0.0.1:%d/" % rig.port
        out = subprocess.run(base + ["-T", put_file(rig, "c.jsonl", job_lines(100, 1000)), url + "inbox/c.jsonl"], capture_output=True)
        if b"Unsupported" in out.stderr or b"not supported" in out.stderr:
            print("curl:", out.stderr.decode())
            return
        check_eq(out.returncode, 0, "put", out.stderr)
        check_eq(len(jobs(rig)), 1, "one job")
        out = subprocess.run(base + [url + "jobs/c/input.jsonl"], capture_output=True)
        check_eq(out.stdout, job_lines(100, 1000), "get")
        check(b"input.jsonl" in subprocess.run(base + [url + "jobs/c/"], capture_output=True).stdout, "list")


def test_the_session_ends_with_its_client():
    with started() as rig:
        for ending in ["eof", "kill"]:
            s = Sftp(rig)
            s.open("inbox/x.part", 2 | 8 | 16)
            if ending == "eof":
                check_eq(s.finish(), 0, "exit status")
            else:
                s.kill()
            wait_until(lambda: not rig.children("connection-process"), 20, "no process is left")
            check("x.part.incomplete.txt" in inbox(rig), "what was open has a note")
            sftp(rig, "rm inbox/x.part")


if __name__ == "__main__":
    run_tests([f for n, f in sorted(globals().items()) if n.startswith("test_")])
