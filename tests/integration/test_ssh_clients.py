#!/usr/bin/python3
"""Other clients than OpenSSH, and one that lies: paramiko and asyncssh.  Skipped where they are not installed."""
import asyncio
import json
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from gateway_rig import PATIENCE, Rig, check, check_eq, run_tests, wait_until  # noqa: E402

try:
    import asyncssh
    import paramiko
except ImportError as e:
    print("not installed: %s" % e.name)
    sys.exit(77)


def started():
    rig = Rig()
    rig.add_user("alice")
    rig.start()
    return rig


def paramiko_client(rig):
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
    client.connect("127.0.0.1", rig.port, username="alice", pkey=paramiko.Ed25519Key.from_private_key_file(rig.path("alice")),
                   look_for_keys=False, allow_agent=False, timeout=20)
    return client


def test_paramiko():
    with started() as rig:
        client = paramiko_client(rig)
        stdin, stdout, _ = client.exec_command("submit --json")
        stdin.write('{"prompt": "a"}\n')
        stdin.channel.shutdown_write()
        job = json.loads(stdout.read())["id"]
        check_eq(stdout.channel.recv_exit_status(), 0, "submit")
        _, stdout, _ = client.exec_command("wait " + job)
        check_eq(stdout.channel.recv_exit_status(), 0, "wait")
        _, stdout, _ = client.exec_command("results " + job)
        check(b"echo: a" in stdout.read(), "results")
        channel = client.get_transport().open_session()
        channel.invoke_shell()
        check(channel.recv(1000).startswith(b"You are alice."), "a shell is the greeting")
        client.close()


def test_asyncssh():
    async def go(rig):
        async with asyncssh.connect("127.0.0.1", rig.port, username="alice", client_keys=[rig.path("alice")], known_hosts=None) as c:
            result = await c.run("whoami")
            check_eq((result.stdout, result.exit_status), ("alice\n", 0), "whoami")
            result = await c.run("run", input='{"prompt": "a"}\n{"prompt": "b"}\n')
            check_eq((len(result.stdout.splitlines()), result.exit_status), (2, 0), "run")
            results = await asyncio.gather(*[c.run("list") for _ in range(8)])
            check(all(r.exit_status == 0 for r in results), "eight at once")

    with started() as rig:
        asyncio.run(go(rig))


def test_half_closed_channels():
    """A client that has said all it will say, before or after it asks, gets three megabytes and the exit status; one that stops reading harms nobody."""
    with started() as rig:
        rig.ok("wait " + rig.submit([{"id": "n%d" % n, "prompt": "x" * 3000} for n in range(1000)]))
        wanted = rig.ok("results")
        check(len(wanted) > 3000000, "large")
        client = paramiko_client(rig)
        for before in (True, False):
            channel = client.get_transport().open_session(timeout=30)
            if before:
                channel.exec_command("results")
                channel.shutdown_write()
            else:
                channel.exec_command("results")
                time.sleep(0.3)
                channel.shutdown_write()
            with channel.makefile("rb") as f:
                check_eq(f.read() == wanted, True, "all of it")
            check_eq(channel.recv_exit_status(), 0, "and how it ended")
            channel.close()
        channel = client.get_transport().open_session(timeout=30)
        channel.exec_command("results --follow")
        channel.shutdown_read()
        other = client.get_transport().open_session(timeout=30)
        other.exec_command("whoami")
        check_eq(other.makefile("rb").read(), b"alice\n", "another channel of the connection goes on")
        channel.close()
        client.close()
        wait_until(lambda: not rig.children("connection-process"), 30, "it ends with its client")


def test_sizes_that_lie():
    """Maximum packets of 0 to 10 bytes, windows of 0 and 2^32 - 1: that connection may suffer, nobody else."""
    with started() as rig:
        rig.forbidden.remove("event=connection_died")
        for packet in [0, 1, 10, 11, 2 ** 32 - 1]:
            for window in [0, 2 ** 32 - 1]:
                client = paramiko_client(rig)
                transport = client.get_transport()
                transport.default_max_packet_size = packet
                transport._sanitize_packet_size = lambda size: size
                transport._sanitize_window_size = lambda size: size
                try:
                    channel = transport.open_session(window_size=window, max_packet_size=packet, timeout=1)
                    channel.exec_command("help")
                    time.sleep(0.05)
                except (paramiko.SSHException, EOFError, OSError):
                    pass
                rig.ok("whoami")  # others are served
                client.close()
        wait_until(lambda: not rig.children("connection-process"), 90, "no process is left spinning")


def test_a_window_of_zero_is_waited_for():
    with started() as rig:
        job = rig.submit([{"prompt": "x" * 1000, "id": str(n)} for n in range(200)])
        rig.ok("wait")
        client = paramiko_client(rig)
        channel = client.get_transport().open_session(window_size=2 ** 15)
        channel.exec_command("results " + job)
        time.sleep(0.5)
        pid = wait_until(lambda: len(rig.children("connection-process")) == 1 and rig.children("connection-process"), 30, "only this one is left")[0]
        before = sum(int(x) for x in open("/proc/%d/stat" % pid).read().rsplit(")", 1)[1].split()[11:13])
        time.sleep(1)
        after = sum(int(x) for x in open("/proc/%d/stat" % pid).read().rsplit(")", 1)[1].split()[11:13])
        check(after - before < 20, "it does not spin:", after - before)
        data = b""
        while True:
            part = channel.recv(100000)
            if not part:
                break
            data += part
        check_eq(len(data.splitlines()), 200, "all of it")
        check_eq(channel.recv_exit_status(), 0, "exit status")
        client.close()


def test_nothing_before_the_login():
    """Channels, and the server's own success message, before anybody has logged in."""
    with started() as rig:
        for kind in ["channel", "success"]:
            transport = paramiko.Transport(("127.0.0.1", rig.port))
            transport.start_client(timeout=20)
            message = paramiko.Message()
            if kind == "success":
                message.add_byte(bytes([52]))
                transport._send_user_message(message)
                time.sleep(0.1)
            message = paramiko.Message()
            message.add_byte(bytes([90]))
            message.add_string("session")
            message.add_int(0)
            message.add_int(100000)
            message.add_int(32768)
            try:
                transport._send_user_message(message)
                time.sleep(0.3)
            except (paramiko.SSHException, EOFError, OSError):
                pass
            check(not transport.is_authenticated(), "no login")
            transport.close()
        log = open(rig.path("gateway.log")).read()
        check("event=verb" not in log and "event=login user" not in log, "nothing ran")
        rig.ok("whoami")


def test_many_users_at_once():
    with started() as rig:
        for n in range(10):
            rig.add_user("u%d" % n)
        procs = [subprocess.Popen(rig.ssh_args("u%d" % (n % 10)) + ["submit"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE) for n in range(60)]
        for p in procs:
            p.stdin.write(b'{"prompt":"x"}\n' * 20)
            p.stdin.close()
            p.stdin = None
        ids = set()
        for p in procs:
            out, err = p.communicate(timeout=60 * PATIENCE)
            check_eq(p.returncode, 0, "submit", err)
            ids.add(out)
        check_eq(len(ids), 60, "jobs")
        for n in range(10):
            check_eq(rig.ssh("wait", user="u%d" % n).returncode, 0, "wait")


if __name__ == "__main__":
    run_tests([f for n, f in sorted(globals().items()) if n.startswith("test_")])
