#!/usr/bin/python3
"""The door: who gets in, what an ssh client may ask for, and what hostile or odd ones cannot do to others."""
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from gateway_rig import PATIENCE, Rig, check, check_eq, lines_of, run_tests, wait_until  # noqa: E402


def started(*users, args=()):
    rig = Rig()
    for user in users or ("alice",):
        rig.add_user(user)
    rig.start(*args)
    return rig


# --- logging in ---------------------------------------------------------------------------------


def test_exit_codes_and_first_words():
    with started() as rig:
        for command, code, out, err in [
                ("whoami", 0, b"alice\n", b""), ("version", 0, b"weir-gateway", b""), ("help", 0, b"submit", b""),
                ("help ask", 0, b"ask", b""), ("", 0, b"You are alice.", b""), ("help nothing", 3, b"", b"not_found"),
                ("statsu", 2, b"", b'did you mean "status"?'), ("list --jsno", 2, b"", b"did you mean --json?"),
                ("status", 3, b"", b"you have no jobs"), ("cancel", 2, b"", b"wants JOB"), ("list x", 2, b"", b"too many"),
                ("submit", 4, b"", b"empty"), ("whoami '", 2, b"", b"open single quote"), ("submit --max-tokens 0", 2, b"", b"wants an integer from 1 to 131072")]:
            o = rig.ssh(command)
            check_eq(o.returncode, code, repr(command), o.stdout, o.stderr)
            check(out in o.stdout and err in o.stderr, repr(command), o.stdout, o.stderr)
        check_eq(json.loads(rig.ssh("status --json").stdout)["error"]["code"], "not_found", "--json errors")


def test_no_command_reaches_a_shell():
    with started() as rig:
        for command in ["$(touch /tmp/weir-pwned)", "`id`", "whoami; id", "whoami | cat", "whoami && id", "whoami > /tmp/x", "whoami\nid",
                        "status $(id)", "status ../../etc/passwd", "scp -t /tmp", "rsync --server . /tmp"]:
            o = rig.ssh(command)
            check(o.returncode in (2, 3), command, o.returncode)
            check(b"uid=" not in o.stdout + o.stderr and b"root:" not in o.stdout, command, o.stdout, o.stderr)


def test_key_types():
    with Rig() as rig:
        rig.add_user("ed")
        rig.add_user("rsa", "rsa", 3072)
        rig.add_user("ec", "ecdsa", 256)
        rig.start()
        for user in ["ed", "rsa", "ec"]:
            check_eq(rig.ok("whoami", user=user), user.encode() + b"\n", user)
        check_eq(rig.ok("whoami", user="ed", options=["-o", "User=somebody"]), b"ed\n", "the key says who it is")


def test_a_key_of_a_kind_that_is_not_taken_comes_first():
    """It is refused as a key, not as a connection: the next one is heard."""
    with Rig() as rig:
        rig.add_user("alice")
        old = rig.path("old")
        if subprocess.run(["ssh-keygen", "-q", "-t", "dsa", "-N", "", "-f", old], capture_output=True).returncode != 0:
            return  # this ssh makes none any more
        rig.start()
        args = rig.ssh_args("alice", "-o", "PubkeyAcceptedAlgorithms=+ssh-dss", "-i", old)
        out = subprocess.run(args[:1] + ["-v"] + args[1:] + ["-o", "LogLevel=DEBUG1", "whoami"], capture_output=True, timeout=60)
        check_eq(out.stdout, b"alice\n", "the second key", out.stderr)
        check(b"Offering public key: " + old.encode() in out.stderr, "the old one was offered", out.stderr)


def test_an_agent_with_seven_keys():
    with Rig() as rig:
        agent = subprocess.run(["ssh-agent", "-s"], capture_output=True, check=True).stdout.decode()
        env = dict(os.environ, **dict(p.split("=", 1) for p in agent.replace("\n", ";").split(";") if p.startswith("SSH_")))
        try:
            for n in range(6):
                subprocess.run(["ssh-add", "-q", rig.make_key("k%d" % n)], env=env, check=True, stderr=subprocess.DEVNULL)
            subprocess.run(["ssh-add", "-q", rig.add_user("alice")], env=env, check=True, stderr=subprocess.DEVNULL)
            rig.start()
            args = ["ssh", "-F", "/dev/null", "-p", str(rig.port), "-o", "UserKnownHostsFile=" + rig.path("kh"), "-o",
                    "StrictHostKeyChecking=accept-new", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR", "127.0.0.1", "whoami"]
            out = subprocess.run(args, env=env, capture_output=True, timeout=30)
            check_eq(out.stdout, b"alice\n", "the seventh key", out.stderr)
        finally:
            subprocess.run(["ssh-agent", "-k"], env=env, stdout=subprocess.DEVNULL)


def test_who_is_not_let_in():
    with started("alice", "bob") as rig:
        rig.make_key("mallory")
        check_eq(rig.ssh("whoami", user="mallory").returncode, 255, "an unknown key")
        out = rig.ssh("whoami", options=["-o", "PubkeyAuthentication=no", "-o", "PreferredAuthentications=password,keyboard-interactive"])
        check_eq(out.returncode, 255, "no key")
        check(b"publickey" in out.stderr and b"password" not in out.stderr.split(b"(")[-1], "public keys only", out.stderr)
        subprocess.run(["ssh-keygen", "-q", "-s", rig.path("bob"), "-I", "x", "-n", "alice,root", rig.path("mallory.pub")], check=True,
                       stderr=subprocess.DEVNULL)
        out = rig.ssh("whoami", user="mallory", options=["-o", "CertificateFile=" + rig.path("mallory-cert.pub")])
        check_eq(out.returncode, 255, "a certificate")
        check_eq(rig.ssh("whoami", user="bob").returncode, 0, "bob")
        check_eq(rig.user("remove", "bob").returncode, 0, "remove")
        check_eq(rig.ssh("whoami", user="bob").returncode, 255, "bob is gone at once, without a signal")
        wait_until(lambda: b"event=login_failed peer=127.0.0.1" in open(rig.path("gateway.log"), "rb").read(), 5, "a line for fail2ban")


def test_key_options():
    with Rig() as rig:
        rig.make_key("a")
        pub = open(rig.path("a.pub")).read()
        for options, code in [('from="127.0.0.0/8"', 0), ('from="10.0.0.1,192.168.*"', 255), ('from="*,!127.0.0.1"', 255),
                              ('expiry-time="20200101"', 255), ('expiry-time="29990101",restrict', 0), ('command="ls"', 255)]:
            with open(rig.path("line.pub"), "w") as f:
                f.write(options + " " + pub)
            out = rig.user("add", "a", "--key", rig.path("line.pub"))
            if out.returncode != 0:
                check_eq(code, 255, "refused when added", options, out.stderr)
                continue
            if not rig.gateway:
                rig.start()
            check_eq(rig.ssh("whoami", user="a").returncode, code, options)
            check_eq(rig.user("remove", "a").returncode, 0, "remove")


def test_a_removed_user_is_put_out():
    with started("alice", "bob") as rig:
        p = subprocess.Popen(rig.ssh_args("bob") + ["submit"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        wait_until(lambda: len(rig.children("connection-process")) == 1, 5, "bob's connection")
        wait_until(lambda: b"event=login user=bob" in open(rig.path("gateway.log"), "rb").read(), 5, "bob's login")
        rig.user("remove", "bob")
        os.kill(rig.gateway.pid, signal.SIGHUP)
        wait_until(lambda: p.poll() is not None, 10, "bob is put out")
        p.communicate()
        rig.ok("whoami")


def test_host_keys():
    with started() as rig:
        rig.ok("whoami")
        for name in ["host_ed25519_key", "host_rsa_key"]:
            check_eq(os.stat(os.path.join(rig.state, name)).st_mode & 0o777, 0o600, name)
        out = rig.ok("whoami", options=["-o", "HostKeyAlgorithms=rsa-sha2-512", "-o", "UserKnownHostsFile=" + rig.path("kh2")])
        check_eq(out, b"alice\n", "the RSA host key")
        rig.stop()
        rig.start()
        rig.ok("whoami", options=["-o", "StrictHostKeyChecking=yes"])
        second = subprocess.run([os.path.join(os.environ.get("WEIR_BIN", "build/bin"), "weir-gateway"), "--ssh-port", "0", "--listen",
                                 "127.0.0.1", "--state-dir", rig.state], capture_output=True, timeout=30)
        check_eq(second.returncode, 1, "a second gateway on the same state")
        check(b"another gateway" in second.stderr, second.stderr)


# --- channels -----------------------------------------------------------------------------------


def test_ten_channels_on_one_connection_and_the_eleventh():
    with started() as rig:
        control = ["-o", "ControlPath=" + rig.path("cm")]
        master = subprocess.Popen(rig.ssh_args("alice", *control, "-M", "-N"), stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_until(lambda: os.path.exists(rig.path("cm")), 10, "the control socket")
            waiting = [subprocess.Popen(rig.ssh_args("alice", *control) + ["submit"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE) for _ in range(10)]
            spool = os.path.join(rig.state, "spool")
            wait_until(lambda: len(os.listdir(spool)) == 10, 10, "ten uploads")
            args = rig.ssh_args("alice", *control)
            eleventh = subprocess.run(args + ["whoami"], capture_output=True, stdin=subprocess.DEVNULL, timeout=20)
            check(eleventh.returncode != 0 or eleventh.stdout == b"alice\n", "refused, or the client made a connection of its own")
            ids = set()
            for p in waiting:
                out, err = p.communicate(b'{"prompt":"x"}\n', timeout=30)
                check_eq(p.returncode, 0, "submit", err)
                ids.add(out)
            check_eq(len(ids), 10, "ten jobs")
            check_eq(rig.ok("whoami", options=control), b"alice\n", "a channel is free again")
            for _ in range(30):
                rig.ok("list", options=control)
        finally:
            master.terminate()
            master.wait()


def test_what_a_client_may_not_ask_for():
    with started() as rig:
        check_eq(rig.ok("whoami", options=["-A", "-o", "ForwardX11=yes", "-o", "SendEnv=*", "-o", "SetEnv=WEIR_X=1"]), b"alice\n", "ignored")
        out = rig.ssh("", options=["-s"])
        check(out.returncode != 0, "no subsystem name")
        out = subprocess.run(rig.ssh_args("alice", "-s") + ["netconf"], stdin=subprocess.DEVNULL, capture_output=True, timeout=20)
        check(out.returncode != 0, "a subsystem that is not sftp")
        out = rig.ssh("", options=["-W", "127.0.0.1:22"])
        check(out.returncode != 0 and b"SSH-2.0" not in out.stdout, "no forwarding from here", out.stdout, out.stderr)
        out = rig.ssh("whoami", options=["-o", "ExitOnForwardFailure=yes", "-R", "0:127.0.0.1:22"])
        check(out.returncode != 0, "no forwarding to here")
        out = rig.ssh("whoami", options=["-C", "-o", "LogLevel=DEBUG"])
        check(out.stderr.count(b"compression: none") == 2, "no compression, though it was asked for", out.stderr)


def test_terminals():
    with started() as rig:
        out = rig.ssh("submit", '{"prompt":"x"}\n', options=["-tt"], timeout=20)
        check_eq(out.returncode, 0, "-tt and the end of standard input", out.stdout, out.stderr)
        check_eq(rig.ok("", options=["-T"])[:14], b"You are alice.", "-T without a command")
        p = subprocess.Popen(rig.ssh_args("alice", "-tt") + ["submit"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        p.stdin.write(b'{"prompt":"y"}\r\x04')
        p.stdin.flush()
        wait_until(lambda: p.poll() is not None, 10, "^D ends the input")
        check_eq(p.communicate()[0][-2:], b"\r\n", "lines end in CR LF")
        job = rig.submit([{"prompt": "!hold"}])
        p = subprocess.Popen(rig.ssh_args("alice", "-tt") + ["watch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(0.5)
        p.stdin.write(b"\x03")
        p.stdin.flush()
        out, err = p.communicate(timeout=20)
        check_eq(p.returncode, 130, "^C", out, err)
        check(b"The job goes on" in out + err, out, err)
        rig.ok("cancel " + job)


def test_closed_output_and_killed_clients():
    with started() as rig:
        job = rig.submit([{"prompt": "x" * 20000, "id": str(n)} for n in range(500)])
        rig.ok("wait")
        p = subprocess.Popen(rig.ssh_args() + ["results " + job], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
        p.stdout.read(100)
        p.stdout.close()
        p.wait(timeout=20)
        p = subprocess.Popen(rig.ssh_args() + ["results --follow " + job], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
        p.stdout.read(100)
        p.kill()
        p.wait()
        p.stdout.close()
        wait_until(lambda: not rig.children("connection-process"), 10, "no process is left")


def test_keepalives_and_rekeying_both_ways():
    with started() as rig:
        # 24 MiB up, more down, with a new key every 256 KiB
        lines = "".join(json.dumps({"id": "n%d" % n, "prompt": "%d " % n + "y" * 120000}) + "\n" for n in range(200))
        # ten keepalives without an answer end a client: 10 s, which a slow machine may not take for all of them
        options = ["-o", "RekeyLimit=256K", "-o", "ServerAliveInterval=1", "-o", "ServerAliveCountMax=10"]
        out = rig.ssh("submit", lines, options=options, timeout=120)
        check_eq(out.returncode, 0, "submit", out.stderr)
        rig.ok("wait", options=options)
        got = lines_of(rig.ok("results", options=options, timeout=120))
        check_eq(len(got), 200, "answers")
        check(all(x["response"]["body"]["choices"][0]["text"].endswith("y" * 120000) for x in got), "whole")
        p = subprocess.Popen(rig.ssh_args("alice", *options) + ["submit"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        time.sleep(12)
        check_eq(p.poll(), None, "keepalives are answered")
        p.communicate(b'{"prompt":"x"}\n', timeout=20)
        check_eq(p.returncode, 0, "submit")


def test_slow_reader_and_slow_store():
    with started() as rig:
        lines = "".join(json.dumps({"id": "n%d" % n, "prompt": "z" * 100000}) + "\n" for n in range(300))
        p = subprocess.Popen(rig.ssh_args() + ["submit"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        jobs = rig.children("jobs-process")[0]
        p.stdin.write(lines[:1000].encode())
        p.stdin.flush()
        time.sleep(0.5)
        os.kill(jobs, signal.SIGSTOP)
        time.sleep(1)
        p.stdin.write(lines[1000:].encode())
        p.stdin.close()
        p.stdin = None
        time.sleep(1)
        os.kill(jobs, signal.SIGCONT)
        p.communicate(timeout=60)
        check_eq(p.returncode, 0, "submit goes on by itself")
        rig.ok("wait")
        p = subprocess.Popen(rig.ssh_args() + ["results"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        p.stdout.read(10)
        time.sleep(2)
        pid = wait_until(lambda: len(rig.children("connection-process")) == 1 and rig.children("connection-process"), 30, "only this one is left")[0]
        rss = int(open("/proc/%d/statm" % pid).read().split()[1]) * 4096
        check(rss < 64 << 20, "the connection process stays small while nobody reads:", rss)
        rest = p.stdout.read()
        check_eq(p.wait(20), 0, "results")
        check(len(rest) > 30000000, "all bytes", len(rest))


# --- crowds -------------------------------------------------------------------------------------


def silent_connections(rig, n):
    socks = []
    for _ in range(n):
        s = socket.create_connection(("127.0.0.1", rig.port), timeout=10)
        socks.append(s)
    return socks


def see_closed(socks, seconds):
    """The other side ends each of them, in its turn within so many seconds."""
    for s in socks:
        s.settimeout(seconds)
        try:
            while s.recv(100):
                pass
        except ConnectionResetError:
            pass
        s.close()


def test_a_thousand_silent_connections_keep_nobody_out():
    with started(args=["--login-grace", "1h"]) as rig:
        rig.ok("whoami")
        socks = silent_connections(rig, 1000)
        check_eq(rig.ok("whoami"), b"alice\n", "others log in, and not because the silent ones are out of time")
        check(len(rig.children("connection-process")) <= 400, "bounded")
        for s in socks:
            s.close()
        rig.ok("whoami")


def test_silent_connections_do_not_hold_up_the_end():
    with started(args=["--startups-free", "1"]) as rig:
        silent = [socket.create_connection(("127.0.0.1", rig.port)) for _ in range(5)]
        wait_until(lambda: rig.ssh("whoami").returncode == 0, 10, "others get in")
        began = time.monotonic()
        rig.stop()
        check(time.monotonic() - began < 14 * PATIENCE, "stopped before the time at which everything is killed")
        see_closed(silent, 5)


def test_one_byte_now_and_then():
    with started(args=["--login-grace", "3s"]) as rig:
        silent = silent_connections(rig, 20)
        s = socket.create_connection(("127.0.0.1", rig.port))
        s.settimeout(0.2)
        began = time.monotonic()
        closed = False
        while not closed and time.monotonic() - began < 60 * PATIENCE:
            try:
                s.sendall(b"S")
                closed = s.recv(1000) == b""
            except socket.timeout:
                pass
            except OSError:
                closed = True
        check(closed, "its time is over however slowly it speaks")
        wait_until(lambda: not rig.children("connection-process"), 30, "that of the silent ones too")
        see_closed(silent, 60)


def test_garbage_and_half_handshakes():
    with started() as rig:
        for data in [b"GET / HTTP/1.0\r\n\r\n", b"SSH-1.5-x\r\n", b"SSH-2.0-x\r\n" + b"\xff" * 100, b"A" * 100000,
                     b"SSH-2.0-x\r\n" + b"\0\0\0\x0c\x0a\x14" + b"\0" * 20, b"\0" * 10]:
            s = socket.create_connection(("127.0.0.1", rig.port))
            s.settimeout(5)
            try:
                s.sendall(data)
                s.shutdown(socket.SHUT_WR)
                while s.recv(1000):
                    pass
            except OSError:
                pass
            s.close()
        rig.ok("whoami")
        wait_until(lambda: not rig.children("connection-process"), 10, "no process is left")


def test_a_dying_connection_process_harms_no_other():
    with started() as rig:
        rig.forbidden = []
        p = subprocess.Popen(rig.ssh_args() + ["submit"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        pid = wait_until(lambda: rig.children("connection-process"), 5, "a connection")[0]
        spool = os.path.join(rig.state, "spool")
        wait_until(lambda: os.listdir(spool), 5, "an upload")
        os.kill(pid, signal.SIGSEGV)
        check(p.wait(10) != 0, "that one ends")
        p.communicate()
        rig.ok("whoami")
        wait_until(lambda: not os.listdir(spool), 5, "its upload is gone")


def without_descriptors(pid):
    """Nothing more can be opened in that process.  What gives it its limit back."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = {int(fd) for fd in os.listdir("/proc/%d/fd" % pid)}
    first_free = min(set(range(len(used) + 1)) - used)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (first_free, before[1]))
    return lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def test_a_jobs_process_without_descriptors_refuses_and_goes_on():
    with started() as rig:
        rig.forbidden = []
        pid = rig.children("jobs-process")[0]
        give_back = without_descriptors(pid)
        check(rig.ssh("whoami").returncode == 255, "nobody comes in now")
        give_back()
        rig.ok("whoami")
        check_eq(rig.children("jobs-process"), [pid], "the same process")


def test_a_listener_without_descriptors_waits_and_goes_on():
    with started() as rig:
        def said():
            with open(rig.path("gateway.log")) as f:
                return sum("event=accept" in line for line in f)
        give_back = without_descriptors(rig.gateway.pid)
        began = time.monotonic()
        s = socket.create_connection(("127.0.0.1", rig.port))
        wait_until(said, 10, "it cannot be taken")
        time.sleep(1)
        check(said() <= 10 * (time.monotonic() - began) + 2, "it is tried again ten times a second: %d" % said())
        give_back()
        s.close()
        rig.ok("whoami")


def test_connection_processes_have_given_everything_up():
    with started() as rig:
        p = subprocess.Popen(rig.ssh_args() + ["submit"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        pid = wait_until(lambda: rig.children("connection-process"), 5, "a connection")[0]
        wait_until(lambda: os.listdir(os.path.join(rig.state, "spool")), 5, "an upload")
        status = dict(x.split(":\t", 1) for x in open("/proc/%d/status" % pid).read().splitlines() if ":\t" in x)
        check_eq(status["NoNewPrivs"], "1", "no new privileges")
        if os.geteuid() == 0:
            check_eq(set(status["Uid"].split()), {"65534"}, "uid")
            check_eq(int(status["CapEff"], 16), 0, "capabilities")
        if status["Seccomp"] != "2":
            print("     (seccomp is not in force here: %s)" % status["Seccomp"])
        limits = open("/proc/%d/limits" % pid).read()
        check("Max core file size        0 " in limits, "no core dumps", limits)
        p.kill()
        p.communicate()


# --- asking -------------------------------------------------------------------------------------


def test_ask():
    with started() as rig:
        check_eq(rig.ok("ask hello there"), b"echo: hello there\n", "words")
        check_eq(rig.ok("ask 'what is this?'", "a diff\n"), b"echo: what is this?\n\na diff\n\n", "words and standard input")
        check_eq(rig.ok("ask", "from stdin"), b"echo: from stdin\n", "standard input alone")
        end = rig.json("ask --json --seed 3 --temperature 0.5 --system 'be brief' hi")
        check_eq((end["text"], end["finish_reason"]), ("echo: hi", "stop"), "json")
        check_eq(rig.ssh("ask").returncode, 4, "no question")
        refused = rig.ssh("ask --model nothing hi")
        check_eq((refused.returncode, refused.stdout), (4, b""), "no such model, and nothing on standard output")
        check_eq(rig.ssh("ask '!fail request_killed_worker'").returncode, 7, "the request failed")
        check(b"limit" in rig.ssh("ask !length").stderr, "an answer cut by its limit says so")
        check_eq(rig.ssh("ask", b"x" * 1100000).returncode, 4, "too long")
        seen = [json.loads(x) for x in open(rig.path("broker.log"))]
        check(all(x["user"] == "alice" for x in seen), "on behalf of")
        check_eq([m["role"] for m in next(x for x in seen if x["prompt"] == "hi")["messages"]], ["system", "user"], "roles")


def test_ask_does_not_wait_for_a_quiet_terminal_nor_cut_what_comes_late():
    with started() as rig:
        r, w = os.pipe()
        p = subprocess.Popen(rig.ssh_args() + ["ask hi"], stdin=r, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        os.close(r)
        check_eq(p.stdout.read(), b"echo: hi\n", "answered with standard input open")
        check_eq(p.wait(10), 0, "exit code")
        os.close(w)
        p = subprocess.Popen(rig.ssh_args() + ["ask '!slow 3000'"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(2)
        out, err = p.communicate(b"late")
        check_eq(p.returncode, 4, "late input", out)
        check(b"came after the question was sent" in err, err)
        p = subprocess.Popen(rig.ssh_args() + ["ask - hi"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(2)
        out, err = p.communicate(b"late")
        check_eq(out, b"echo: hi\n\nlate\n", "- waits", err)


def test_leaving_cancels_the_question():
    with started() as rig:
        p = subprocess.Popen(rig.ssh_args("alice", "-tt") + ["ask '!hold'"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        wait_until(lambda: os.path.getsize(rig.path("broker.log")) > 0, 10, "the question is there")
        p.stdin.write(b"\x03")
        p.stdin.flush()
        p.communicate(timeout=20)
        check_eq(p.returncode, 130, "^C")


def test_models_pool_tokenize():
    with started() as rig:
        check_eq(rig.json("models --json")["models"][0]["name"], "fake", "models")
        check(b"fake" in rig.ok("models"), "models")
        check("n_requests" in rig.json("pool --json"), "pool")
        check(rig.ok("pool").startswith(b"pool  "), "pool for people", rig.ok("pool"))
        check_eq(rig.ok("tokenize abc"), b"97 98 99\n", "tokenize")
        check_eq(rig.ok("tokenize a  b"), b"97 32 98\n", "words are joined with a space")
        check_eq(rig.ok("tokenize", "a  b"), b"97 32 32 98\n", "standard input is taken as it is")
        check_eq(rig.json("tokenize --json", "a" * 100000)["ids"], [97] * 100000, "a long text")


if __name__ == "__main__":
    run_tests([f for n, f in sorted(globals().items()) if n.startswith("test_")])
