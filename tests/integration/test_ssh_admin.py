#!/usr/bin/python3
"""What the administrator has: checks of the configuration, the program at a job's end, exempt sources, groups, usage of all, keys of accounts."""
import fcntl
import os
import pwd
import re
import signal
import socket
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from gateway_rig import BIN, PATIENCE, ROOT, Rig, check, check_eq, run_tests, wait_until  # noqa: E402


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


def test_a_wrong_word_of_weir_user_is_named():
    with Rig() as rig:
        for words in ((), ("add",), ("limits", "alice")):
            out = rig.user(*words)
            check(out.returncode == 2 and b"weir user add NAME" in out.stderr and out.stdout == b"", words, out)
        check(b"has no limits" in out.stderr, out.stderr)
        out = rig.user("--help")
        check(out.returncode == 0 and b"weir user join NAME GROUP" in out.stdout and b"--ssh-port" not in out.stdout, "help", out.stdout)


def test_a_users_file_that_cannot_be_read_is_told_of_once():
    with Rig() as rig:
        rig.add_user("alice")
        rig.start()

        def said(what):
            return sum(what in line for line in lines(rig.path("gateway.log")))
        users = rig.state + "/users"
        os.rename(users, rig.path("users"))
        os.symlink("users", users)  # nobody can open that
        wait_until(lambda: said("event=users state=kept") > 0, 10, "seen")
        for _ in range(3):  # each login looks too
            rig.ok("whoami")
        time.sleep(1.5)
        check_eq(said("event=users state=kept"), 1, "told once, and who was known still is")
        seen = said("event=users n=1")
        os.rename(rig.path("users"), users)
        wait_until(lambda: said("event=users n=1") > seen, 10, "read when it can be")


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


def test_told_again_it_ends_at_once():
    with Rig() as rig:
        rig.add_user("alice")
        started = rig.path("started")
        rig.start("--job-hook", script(rig, "hook", "echo $$ >>%s\nsleep 300 & wait\n" % started), "--job-hook-timeout", "5m")
        rig.ok("wait " + rig.submit([{"prompt": "x"}]))
        wait_until(lambda: lines(started), 20, "a program runs")
        rig.gateway.send_signal(signal.SIGTERM)
        wait_until(lambda: "event=stop " in open(rig.path("gateway.log")).read(), 20, "it stops, and waits for the program")
        began = time.time()
        check_eq(rig.stop(), 0, "its end")
        check(time.time() - began < 10, "it waited for the program, or for 15 s")
        left = subprocess.run(["pgrep", "-r", "R,S,D", "-s", ",".join(lines(started))], capture_output=True, text=True).stdout
        check_eq(left, "", "the program is gone, too")


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


def test_the_log_says_who_did_what():
    with Rig() as rig:
        rig.add_user("alice")
        rig.start()
        job = rig.submit('{"prompt": "the secret of alice"}\n')
        rig.ok("wait " + job)
        answers = rig.ok("results " + job)
        rig.ssh("status 'no such = \"job\"'")
        rig.ok("ask the secret of alice")
        p = subprocess.Popen(rig.ssh_args("alice") + ["watch", rig.submit([{"prompt": "!hold"}])], stdout=subprocess.PIPE)
        p.stdout.read(1)
        p.kill()
        p.wait()
        p.stdout.close()

        def ends():
            return [dict(re.findall(r'(\w+)=("(?:[^"\\]|\\.)*"|\S+)', x)) for x in lines(rig.path("gateway.log")) if "event=verb_end " in x]
        wait_until(lambda: any(x["exit"] == "gone" for x in ends()), 20, "a client that has left")
        by_verb = {x["verb"]: x for x in ends()}
        check(all(x["user"] == "alice" and x["peer"].startswith("127.0.0.1:") for x in ends()), "who and from where", ends())
        check_eq((by_verb["wait"]["job"], by_verb["wait"]["exit"]), (job, "0"), "which job")
        check_eq((by_verb["results"]["job"], by_verb["results"]["bytes_out"]), ('"%s"' % job, str(len(answers))), "how much")
        check_eq(by_verb["status"]["exit"], "3", "how it ended")
        check_eq([x["exit"] for x in ends() if x["verb"] == "watch"], ["gone"], "left")
        check("secret" not in open(rig.path("gateway.log")).read(), "never what was asked")


def test_groups_share_their_limits():
    with Rig() as rig:
        for name in ("alice", "bob", "carol"):
            rig.add_user(name)
        def user(*args):
            out = rig.user(*args)
            check_eq(out.returncode, 0, args, out.stderr)
            return out.stdout.decode()
        user("group", "add", "physics")
        user("join", "alice", "physics")
        user("join", "bob", "physics")
        user("limit", "@physics", "max-jobs=2", "max-tokens-a-day=40")
        check_eq(rig.user("limit", "@physics", "max-job-lines=2").returncode, 2, "no limit of a group")
        check_eq(rig.user("limit", "@chemistry", "max-jobs=2").returncode, 3, "no such group")
        check_eq(rig.user("join", "alice", "chemistry").returncode, 3, "no such group")
        check_eq(rig.user("group", "remove", "physics").returncode, 4, "it has members")
        check("@physics" in user("list") and "alice keys=1 group=physics" in user("list"), user("list"))
        rig.start()
        for name in ("alice", "bob"):
            rig.submit([{"prompt": "!hold"}], user=name)
        out = rig.ssh("submit", '{"prompt": "x"}\n')
        check_eq(out.returncode, 4, "a job too many of the group")
        check(b"your group physics has 2 jobs" in out.stderr and b"max-jobs" in out.stderr, out.stderr)
        rig.ok("wait " + rig.submit([{"prompt": "x"}], user="carol"), user="carol")
        for name in ("alice", "bob"):
            rig.ok("cancel last", user=name)
            rig.ssh("wait last", user=name)
        rig.ok("wait " + rig.submit([{"prompt": " ".join("x" * 20)}], user="bob"), user="bob")   # 21 tokens read, as many written
        out = rig.ssh("ask hello")
        check_eq(out.returncode, 4, "bob has used up what alice could have")
        check(b"your group physics has used 42 tokens today, its limit is 40" in out.stderr, out.stderr)
        group = rig.json("usage --json")["group"]
        check_eq((group["name"], group["today"]["completion_tokens"], group["max_tokens_a_day"]), ("physics", 21, 40), "usage tells of the group")
        check_eq(rig.json("usage --json", user="carol")["group"], None, "who is in none")
        user("leave", "alice")
        rig.ok("ask hello")
        table = user("usage").splitlines()
        check_eq(table[0], "kind,name,group,period,jobs,questions,answers,errors,prompt_tokens,cached_tokens,completion_tokens", "header")
        check("user,bob,physics,today,2,0,1,1,21,1,21" in table, table)
        check("user,alice,,today,1,1,0,1,2,1,2" in table, table)
        check("group,physics,physics,today,2,0,1,1,21,1,21" in table, table)
        check(any(x.startswith("user,carol,,month,") for x in table), table)
        user("remove", "carol")
        check(any(x.startswith("user,carol,-,month,") for x in user("usage").splitlines()), "also who has gone")
        check_eq(rig.user("usage", "more").returncode, 2, "usage")


def test_uploads_at_the_same_time_do_not_pass_max_jobs():
    with Rig() as rig:
        for name in ("alice", "bob"):
            rig.add_user(name)
        for words in (["limit", "alice", "max-jobs=2"], ["group", "add", "physics"], ["join", "bob", "physics"], ["limit", "@physics", "max-jobs=2"]):
            check_eq(rig.user(*words).returncode, 0, words)
        rig.start()
        for name, whose in (("alice", b"you have 2 jobs"), ("bob", b"your group physics has 2 jobs")):
            uploads = [subprocess.Popen(rig.ssh_args(name) + ["submit"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                       for _ in range(4)]
            spool = os.path.join(rig.state, "spool")
            wait_until(lambda: len(os.listdir(spool)) == 4, 30, "all of them have begun")
            ends = [u.communicate(b'{"prompt": "!hold"}\n', timeout=60 * PATIENCE) for u in uploads]
            check_eq(sorted(u.returncode for u in uploads), [0, 0, 4, 4], "two jobs", ends)
            for u, (_, err) in zip(uploads, ends):
                check(u.returncode == 0 or (whose in err and b"max-jobs" in err), "the limit is named", err)
            made = [x["id"] for x in rig.json("list --all --json", user=name)["jobs"]]
            check_eq(len(made), 2, "and no more")
            for job in made:
                rig.ok("cancel " + job, user=name)
                rig.ssh("wait " + job, user=name)


def test_max_queued_is_kept_and_holds_up_nobody_else():
    with Rig() as rig:
        rig.add_user("alice")
        rig.add_user("bob")
        rig.user("limit", "alice", "max-queued=5")
        rig.start()
        job = rig.submit([{"prompt": "!hold %d" % n} for n in range(300)])
        wait_until(lambda: rig.json("status --json " + job)["running"] == 5, 10, "five are with the broker")
        rig.ok("wait " + rig.submit([{"prompt": "x"} for _ in range(300)], user="bob"), user="bob", timeout=60)
        check_eq(rig.json("status --json " + job)["running"], 5, "and no more")
        pid = rig.children("jobs-process")[0]
        def cpu():
            with open("/proc/%d/stat" % pid) as f:
                return sum(int(x) for x in f.read().rsplit(")", 1)[1].split()[11:13])
        before = cpu()
        time.sleep(2)
        check(cpu() - before < 50, "who is at the limit is not asked again and again: %d ticks" % (cpu() - before))
        rig.ok("cancel " + job)
        rig.ssh("wait " + job)
        other = rig.submit([{"prompt": "!once busy %d" % n} for n in range(40)])   # refused for alice only
        rig.ok("wait " + rig.submit([{"prompt": "x"} for _ in range(50)], user="bob"), user="bob", timeout=60)
        rig.ok("wait " + other)


def test_the_lock_of_the_users_file_in_a_persons_hands_stops_nobody():
    """`weir user add NAME --key -` holds it while somebody types."""
    with Rig() as rig:
        rig.add_user("alice")
        rig.start()
        line = open(rig.make_key("new") + ".pub").read().strip()
        with open(rig.state + "/users.lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            out = rig.ssh("keys add '%s'" % line)
            check(out.returncode == 4 and b"busy" in out.stderr, out)
            rig.ok("whoami")
        rig.ok("keys add '%s'" % line)


def test_keys_of_accounts():
    """--from-authorized-keys: the keys of an account that can be used here, and its uid.  The account's home is a folder made for this."""
    account = pwd.getpwuid(os.geteuid())
    with Rig() as rig:
        keys = [open(rig.make_key(name) + ".pub").read().strip() for name in ("one", "two", "three")]
        with open(rig.path("authorized_keys"), "w") as f:
            f.write("# mine\n%s\ncommand=\"/bin/true\" %s\nfrom=\"127.0.0.1\" %s\nsecret words\n" % tuple(keys))

        def add(prepare):
            return subprocess.run(["unshare", "-m", "sh", "-c", "mount -t tmpfs tmpfs %s || exit 77; mkdir %s/.ssh; %s\nexec %s/weir-gateway user add %s "
                                   "--from-authorized-keys --state-dir %s" % (account.pw_dir, account.pw_dir, prepare, BIN, account.pw_name, rig.state)],
                                  capture_output=True)
        out = add("cp %s %s/.ssh/" % (rig.path("authorized_keys"), account.pw_dir))
        if out.returncode == 77 or b"unshare failed" in out.stderr or BIN.startswith(account.pw_dir + "/"):
            print("     (no mount namespace: not tried)")
            return
        check_eq(out.returncode, 0, "two of them", out.stderr)
        check(b"2 keys added" in out.stdout, out.stdout)
        check(b":3: left out" in out.stderr and b":5: left out" in out.stderr and b"secret" not in out.stderr, out.stderr)
        check(b"uid=%d keys=2" % account.pw_uid in rig.user("list").stdout, rig.user("list").stdout)
        check_eq(add("true").returncode, 3, "no file")
        check_eq(add("ln -s /etc/passwd %s/.ssh/authorized_keys" % account.pw_dir).returncode, 4, "no key in it")
        check_eq(rig.user("add", "nobody-is-called-so", "--from-authorized-keys").returncode, 3, "no such account")


if __name__ == "__main__":
    run_tests([f for n, f in sorted(globals().items()) if n.startswith("test_")])
