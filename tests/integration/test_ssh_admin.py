#!/usr/bin/python3
"""What the administrator has: checks of the configuration, the program at a job's end, exempt sources, groups, usage of all, keys of accounts."""
import os
import re
import signal
import socket
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from gateway_rig import BIN, ROOT, Rig, check, check_eq, run_tests, wait_until  # noqa: E402


def script(rig, name, text):
    path = rig.path(name)
    with open(path, "w") as f:
        f.write("#!/bin/sh\n" + text)
    os.chmod(path, 0o755)
    return path


def lines(path):
    try:
        with open(path) as f:
            return f.read().splitlines()
    except FileNotFoundError:
        return []


def test_check_says_what_is_wrong():
    with Rig() as rig:
        def run(*args):
            return subprocess.run([BIN + "/weir-gateway", "check", "--state-dir", rig.state, "--connect", rig.endpoint, "--ssh-port", "0", *args],
                                  capture_output=True, text=True)
        out = run()
        check_eq(out.returncode, 0, "nothing is there, and nothing is wrong", out.stdout, out.stderr)
        check("note   state-dir" in out.stdout and "note   broker" in out.stdout and "weir user add" in out.stdout, out.stdout)
        check(not os.path.exists(rig.state), "it starts and makes nothing")
        rig.add_user("alice")
        rig.start()
        out = run("--listen", "127.0.0.1", "--ssh-port", str(rig.port))
        check_eq(out.returncode, 0, "beside one that runs", out.stdout)
        for word in ("note   listen", "in use", "ok     host keys", "ok     users: 1 users, 1 keys", "ok     broker"):
            check(word in out.stdout, word, out.stdout)
        for args, words in ((["--startups-free", "500"], "startups-free"), (["--exempt-source", "10.0.0.0/33"], "exempt-source"),
                            (["--job-hook", "true"], "absolute path"), (["--job-hook", "/etc/passwd"], "executed"), (["--listen", "localhost"], "IP address"),
                            (["--log-level", "loud"], "log-level")):
            out = run(*args)
            check_eq(out.returncode, 4, args, out.stdout)
            check("wrong" in out.stdout and words in out.stdout, args, out.stdout)
        check_eq(run("--startups-fre", "5").returncode, 2, "no such option")
        check_eq(run("more").returncode, 2, "too many words")
        os.chmod(rig.state, 0o777)
        with open(rig.state + "/users", "a") as f:
            f.write("key = ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGFhYWE= broken\nmax-jobs = many\n")
        out = run()
        check_eq(out.returncode, 4, "a folder open to all, a broken users file", out.stdout)
        check("mode 0777" in out.stdout and "wrong  users" in out.stdout, out.stdout)
        os.chmod(rig.state, 0o750)


def test_a_program_is_run_when_a_job_has_ended():
    with Rig() as rig:
        rig.add_user("alice")
        seen = rig.path("seen")
        hook = script(rig, "hook", 'echo "$1 $2 $3 $WEIR_LINES $WEIR_FAILED $#" >>%s\nenv | sort | cut -d= -f1 | tr "\\n" " " >%s\n'
                                   'ls /proc/self/fd | wc -l >%s\npwd >>%s\necho said; cat\n' % (seen, rig.path("env"), rig.path("fds"), rig.path("fds")))
        rig.start("--job-hook", hook)
        job = rig.submit([{"prompt": "x"}, {"prompt": "!fail invalid_request"}])
        check_eq(rig.ssh("wait " + job).returncode, 1, "ended")
        wait_until(lambda: lines(seen), 10, "the program was run")
        check_eq(lines(seen), ["%s alice completed 2 1 3" % job], "words and environment")
        held = rig.submit([{"prompt": "!hold"}])
        rig.ok("cancel " + held)
        wait_until(lambda: len(lines(seen)) == 2, 10, "of a cancelled one too")
        check_eq(lines(seen)[1], "%s alice cancelled 1 1 3" % held, "cancelled")
        wait_until(lambda: len(lines(rig.path("fds"))) == 2, 10, "all of it")
        known = {"LANG", "PATH", "PWD", "OLDPWD", "SHLVL", "_", "WEIR_FAILED", "WEIR_JOB", "WEIR_LINES", "WEIR_STATUS", "WEIR_USER"}
        check(set(open(rig.path("env")).read().split()) <= known, "nothing else in its environment", open(rig.path("env")).read())
        check_eq((int(lines(rig.path("fds"))[0]) <= 5, lines(rig.path("fds"))[1]), (True, "/"), "descriptors and folder")
        check("said" in open(rig.path("gateway.log")).read(), "what it says is in the log")


def test_a_slow_program_holds_up_nobody_and_is_killed():
    with Rig() as rig:
        rig.add_user("alice")
        started = rig.path("started")
        hook = script(rig, "hook", "echo $$ >>%s\nsleep 300 & wait\n" % started)
        rig.start("--job-hook", hook, "--job-hook-timeout", "2s")
        for _ in range(6):
            rig.ok("wait " + rig.submit([{"prompt": "x"}]))
        wait_until(lambda: len(lines(started)) == 6, 20, "all of them, four at once")
        wait_until(lambda: open(rig.path("gateway.log")).read().count("reason=timeout") == 6, 20, "all of them killed")
        left = subprocess.run(["pgrep", "-r", "R,S,D", "-s", ",".join(lines(started))], capture_output=True, text=True).stdout
        check_eq(left, "", "also what they had started")
        rig.ok("wait " + rig.submit([{"prompt": "x"}]))
        check_eq(rig.stop(), 0, "a program that runs does not keep the gateway from ending")
        rig.start("--job-hook", "/bin/false")
        job = rig.submit([{"prompt": "x"}])
        check_eq(rig.ssh("wait " + job).returncode, 0, "its exit code changes nothing")
        wait_until(lambda: "exit=1" in open(rig.path("gateway.log")).read(), 10, "but is logged")


def test_exempt_sources_are_not_limited_before_their_login():
    with Rig() as rig:
        rig.add_user("alice")
        rig.start("--startups-free", "3", "--startups-percent", "100", "--startups-max", "4", "--startups-per-source", "2",
                  "--exempt-source", "127.0.0.0/30", "--login-grace", "4s")
        silent = []
        for _ in range(12):
            s = socket.create_connection(("127.0.0.1", rig.port))
            silent.append(s)
        time.sleep(0.5)
        check("event=drop " not in open(rig.path("gateway.log")).read(), "none of them has to go")
        rig.ok("whoami")
        far = [socket.create_connection(("127.0.0.1", rig.port), source_address=("127.0.0.9", 0)) for _ in range(12)]
        wait_until(lambda: open(rig.path("gateway.log")).read().count("reason=room") >= 8, 10, "others are limited")
        check("peer=127.0.0.1:" not in "".join(x for x in lines(rig.path("gateway.log")) if "event=drop" in x), "and make room among themselves")
        wait_until(lambda: open(rig.path("gateway.log")).read().count("reason=login_grace") >= 12, 15, "the login grace is for all")
        for s in silent + far:
            s.close()


def test_the_line_for_fail2ban():
    """The expression of docs/security.md finds every failed login, with its address, and nothing else."""
    with open(os.path.join(ROOT, "docs", "security.md")) as f:
        regex = re.search(r"`failregex = (.*?)`", f.read()).group(1)
    regex = re.compile(regex.replace("<HOST>", r"(?P<host>\d+\.\d+\.\d+\.\d+|[0-9a-fA-F:]*:[0-9a-fA-F:.]*)"))
    with Rig() as rig:
        rig.add_user("alice")
        rig.start()
        rig.make_key("mallory")
        rig.ok("whoami")
        name = "x gateway/jobs event=login_failed peer=1 address=10.9.8.7 keys_offered=1"  # to have somebody else banned
        out = rig.ssh("whoami", user="mallory", options=("-l", name))
        check_eq(out.returncode, 255, "not let in")
        rig.ok("whoami", options=("-l", name))
        rig.user("disable", "alice")
        check_eq(rig.ssh("whoami", options=("-l", name)).returncode, 255, "not let in")
        wait_until(lambda: len([x for x in lines(rig.path("gateway.log")) if "warn gateway/jobs event=login_failed" in x]) == 2, 10, "logged")
        found = [m for m in map(regex.search, lines(rig.path("gateway.log"))) if m]
        check_eq([m.group("host") for m in found], ["127.0.0.1"] * 2, "each once, with the address it came from")


if __name__ == "__main__":
    run_tests([f for n, f in sorted(globals().items()) if n.startswith("test_")])
