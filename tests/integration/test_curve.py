"""Clients of other machines: tcp with CURVE.  The clients here are pyzmq's own, and the command `weir`."""
import os, resource, socket, stat, subprocess, time
from broker_pool import BIN, Client, Pool, run
import zmq, zmq.utils.z85

WEIR = os.path.join(BIN, "weir")


def read_key(path):
    with open(path) as f:
        return {k.strip(): v.strip() for k, v in (line.split("=", 1) for line in f if "=" in line and line[0] != "#")}


class Keys:
    """`weir key` on the state folder of a pool that is to be."""

    def __init__(self):
        import tempfile
        self.dir = tempfile.mkdtemp(prefix="weir-keys-")
        self.users = os.path.join(self.dir, "users")
        self.curve = os.path.join(self.dir, "curve.key")
        self.args = ["--tcp", "tcp://127.0.0.1:0", "--curve-key", self.curve, "--users-file", self.users]

    def key(self, *words, code=0):
        p = subprocess.run([WEIR, "key", *words, "--state-dir", self.dir], capture_output=True, text=True, timeout=30)
        assert p.returncode == code, (words, p)
        return p.stdout + p.stderr

    def new(self, name, file=None, *more):
        path = os.path.join(self.dir, (file or name) + ".key")
        self.key("new", name, "-o", path, *more)
        return path

    def close(self):
        import shutil
        shutil.rmtree(self.dir)


class CurvePool(Pool):
    def __init__(self, keys, args=(), limit=None, **more):
        self.limit = limit
        super().__init__(args=keys.args + list(args), **more)
        end = time.time() + 60
        while "event=ready" not in self.log() and time.time() < end:
            time.sleep(0.01)
        self.tcp = self.log().split(" tcp=", 1)[1].split()[0]

    def start(self):
        if self.limit is not None:
            self.command = ["prlimit", "--nofile=%d:%d" % (self.limit, self.limit)] + self.command
        super().start()


class CurveClient(Client):
    """key: the dictionary of a key file; None: no CURVE at all."""

    def __init__(self, pool, key, server=None):
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.reconnect_ivl = 60000  # one try
        if key is not None:
            self.socket.curve_publickey = bytes.fromhex(key["public-key"])
            self.socket.curve_secretkey = bytes.fromhex(key["secret-key"])
            self.socket.curve_serverkey = bytes.fromhex(server or key["server-key"])
        self.socket.connect(pool.tcp)
        pool.clients.append(self)

    def is_let_in(self, seconds):
        self.send({"type": "hello"})
        return self.socket.poll(int(seconds * 1000)) != 0


def weir(pool, *words, key=None, server=None, code=0, **more):
    command = [WEIR, "--connect", pool.tcp] + (["--key", key] if key else []) + (["--server-key", server] if server else [])
    p = subprocess.run(command + list(words), capture_output=True, text=True, timeout=60, **more)
    assert p.returncode == code, (words, p)
    return p.stdout + p.stderr


def a_key_is_a_user():
    keys = Keys()
    alice, bob = keys.new("alice", None, "--label", "laptop"), keys.new("bob")
    for path in (alice, bob, keys.curve):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert read_key(alice)["server-key"] == keys.key("server").strip() == read_key(keys.curve)["public-key"]
    assert "laptop" in keys.key("list", "alice") and "bob" not in keys.key("list", "alice")
    with CurvePool(keys) as pool:
        a, b = CurveClient(pool, read_key(alice)), CurveClient(pool, read_key(bob))
        assert a.ask({"type": "hello"}, "hello")["user"] == "alice" and b.ask({"type": "hello"}, "hello")["user"] == "bob"
        answer, local = a.generate(prompt="x", max_tokens=5, seed=1), pool.client().generate(prompt="x", max_tokens=5, seed=1)
        assert answer.end["type"] == "done" and answer.ids == local.ids
        # the program, flags before and behind the verb, from the environment, and the server's key by itself
        assert weir(pool, "generate", "x", "-m", "5", key=alice)
        assert weir(pool, "generate", "x", "-m", "5", "--key", alice)
        assert weir(pool, "models", env={**os.environ, "WEIR_KEY": alice})
        assert weir(pool, "status", key=alice, server=read_key(alice)["server-key"])
        z85 = zmq.utils.z85.encode(bytes.fromhex(read_key(alice)["server-key"])).decode()
        assert weir(pool, "status", key=alice, server=z85)
        log = pool.log()
        for path in (alice, bob, keys.curve):
            assert read_key(path)["secret-key"] not in log and read_key(path)["public-key"] not in log
    keys.close()


def each_sees_and_cancels_only_ones_own():
    keys = Keys()
    alice, bob = read_key(keys.new("alice")), read_key(keys.new("bob"))
    with CurvePool(keys, env={"WEIR_FAKE_STEP_MS": "20"}, args=["--user-running-max", "1"]) as pool:
        a, a2, b, m = (CurveClient(pool, k) for k in (alice, alice, bob, alice))
        a.send({"type": "generate", "id": "r", "prompt": "x", "max_tokens": 400, "ignore_eos": True})
        a.receive_type("token")
        for other in (b, a2):  # of another user; of another connection of the same one
            other.send({"type": "cancel", "id": "r"})
            other.ask({"type": "hello"}, "hello")
        a.receive_type("token")
        # the limit is the user's, over all connections
        a2.send({"type": "generate", "id": "q", "prompt": "y", "max_tokens": 2})
        a2.receive_type("accepted")
        b.send({"type": "generate", "id": "q", "prompt": "y", "max_tokens": 2})
        b.receive_type("done")
        status = m.ask({"type": "status", "id": "s"}, "status")
        assert [u["name"] for u in status["users"]] == ["alice"], status["users"]
        assert [u["running"] for u in status["users"]] == [1] and status["users"][0]["queued"] == 1
        for message, type in [({"type": "admin", "id": "o", "verb": "pause", "worker": 0}, "error"),
                              ({"type": "generate", "id": "o", "prompt": "x", "on_behalf_of": "bob"}, "error")]:
            assert m.ask(message, type)["code"] == "permission_denied"
        a.send({"type": "cancel", "id": "r"})
        assert a.receive_type("error")["code"] == "cancelled"
        a2.receive_type("done")
    keys.close()


def sessions_keys_and_caches_are_the_users():
    """The same name of a session and the same idempotency key of two users are two things."""
    keys = Keys()
    alice, bob = read_key(keys.new("alice")), read_key(keys.new("bob"))
    with CurvePool(keys) as pool:
        a, b = CurveClient(pool, alice), CurveClient(pool, bob)
        first = a.generate(prompt="x", max_tokens=4, idempotency_key="k", temperature=1)
        other = b.generate(prompt="another", max_tokens=4, idempotency_key="k", temperature=1)
        assert first.end["type"] == other.end["type"] == "done"
        again = CurveClient(pool, alice).generate(prompt="x", max_tokens=4, idempotency_key="k", temperature=1)
        assert again.ids == first.ids and again.accepted["seed"] == first.accepted["seed"]
        assert CurveClient(pool, alice).generate(prompt="another", max_tokens=4, idempotency_key="k").code == "key_conflict"
    keys.close()


def nobody_else_comes_in():
    keys = Keys()
    alice = keys.new("alice")
    key = read_key(alice)
    stranger = os.path.join(keys.dir, "stranger.key")
    public = keys_pair(stranger)
    with CurvePool(keys) as pool:
        other = dict(read_key(stranger), **{"server-key": key["server-key"]})
        assert not CurveClient(pool, other).is_let_in(1)                                   # an unknown key
        assert not CurveClient(pool, key, server=public).is_let_in(1)                      # a wrong server key
        assert not CurveClient(pool, None).is_let_in(1)                                    # no key
        half = dict(key, **{"secret-key": other["secret-key"]})
        assert not CurveClient(pool, half).is_let_in(1)                                    # somebody's public key without its secret
        assert CurveClient(pool, key).is_let_in(20)
        # and what the program says of it
        server = key["server-key"]
        assert "does not know this key" in weir(pool, "status", key=stranger, server=server, code=4)
        assert "handshake" in weir(pool, "status", key=alice, server=public, code=3)
        assert "tcp needs a key" in weir(pool, "status", code=2)
        assert "whose server key" in weir(pool, "status", key=stranger, code=2)
        assert "no key file" in weir(pool, "status", key="/nonexistent", code=1)
        os.chmod(alice, 0o640)
        assert "0640" in weir(pool, "status", key=alice, code=4)
        os.chmod(alice, 0o600)
        pool.wait_for("logged", lambda s: "event=tcp_refused" in pool.log())
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))  # bound, and nobody listens
        p = subprocess.run([WEIR, "--connect", "tcp://127.0.0.1:%d" % listener.getsockname()[1], "--key", alice, "status"],
                           capture_output=True, text=True, timeout=60)
        assert p.returncode == 3 and "nobody answers" in p.stderr, p
        p = subprocess.run([WEIR, "--connect", pool.endpoint, "status", "--key", alice], capture_output=True, text=True, timeout=60)
        assert p.returncode == 2 and "keys are for tcp" in p.stderr, p
    keys.close()


def keys_pair(path):
    p = subprocess.run([WEIR, "key", "pair", "-o", path], capture_output=True, text=True, timeout=30)
    assert p.returncode == 0, p
    return p.stdout.strip()


def keys_come_and_go_while_it_runs():
    keys = Keys()
    alice = read_key(keys.new("alice"))
    with CurvePool(keys, env={"WEIR_FAKE_STEP_MS": "20"}) as pool:
        a = CurveClient(pool, alice)
        a.send({"type": "generate", "id": "r", "prompt": "x", "max_tokens": 4000, "ignore_eos": True})
        a.receive_type("token")
        # a key made by its owner, entered here, and known within a second or so; no signal is needed
        own = os.path.join(keys.dir, "own.key")
        keys.key("add", "bob", keys_pair(own), "--label", "home")
        bob = dict(read_key(own), **{"server-key": alice["server-key"]})
        pool.wait_for("reloaded", lambda s: "curve_keys=2" in pool.log())
        assert CurveClient(pool, bob).ask({"type": "hello"}, "hello")["user"] == "bob"
        # a removed one ends what its connection has, and the connection is nobody's
        assert "1 key removed" in keys.key("remove", "alice")
        error = a.receive_type("error")
        assert error["code"] == "permission_denied" and error["id"] == "r", error
        a.send({"type": "hello"})
        assert a.receive_type("error")["code"] == "permission_denied"
        assert not CurveClient(pool, alice).is_let_in(1)
        assert "bob" in keys.key("list") and "alice" not in keys.key("list")
        keys.key("remove", "bob", "home")
        keys.key("remove", "bob", "home", code=1)
        pool.wait_for("reloaded", lambda s: "curve_keys=0" in pool.log())
        pool.wait_empty()
    keys.close()


def a_flood_of_handshakes_keeps_out_new_ones_only():
    keys = Keys()
    alice = read_key(keys.new("alice"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
    with CurvePool(keys, args=["--tcp-connections-max", "32"]) as pool:
        a = CurveClient(pool, alice)
        assert a.generate(prompt="x", max_tokens=3).end["type"] == "done"
        before = len(os.listdir("/proc/%d/fd" % pool.process.pid))
        address = pool.tcp[6:].rsplit(":", 1)
        flood = []
        for i in range(600):
            s = socket.socket()
            s.setblocking(False)
            s.connect_ex((address[0], int(address[1])))
            flood.append(s)
            if i % 3 == 0:
                try:
                    s.send(b"\xff\0\0\0\0\0\0\0\1\x7f" if i % 2 else os.urandom(64))
                except OSError:
                    pass
        pool.wait_for("full", lambda s: "full=1" in pool.log())
        for i in range(20):  # who is in goes on, and so does the machine itself
            assert a.generate(id=str(i), prompt="x", max_tokens=3).end["type"] == "done"
            assert pool.client().generate(prompt="x", max_tokens=3).end["type"] == "done"
        # what the kernel had accepted before the door was shut comes on top of the limit
        assert len(os.listdir("/proc/%d/fd" % pool.process.pid)) - before < 32 + 128 + 128
        for s in flood:
            s.close()
        end = time.time() + 60
        while not CurveClient(pool, alice).is_let_in(1):  # a new client comes in when the flood is over
            assert time.time() < end, pool.log()
    keys.close()


def one_user_does_not_hold_all_connections():
    import urllib.request
    from ports import free_port
    keys, port = Keys(), free_port()
    alice, bob, carol = keys.new("alice"), keys.new("bob"), keys.new("carol")
    with open(keys.users) as f:
        text = f.read()
    with open(keys.users, "w") as f:
        f.write(text.replace("[alice]\n", "[alice]\nmax-connections = 3\n"))

    with CurvePool(keys, args=["--user-connections-max", "2", "--metrics-port", str(port)]) as pool:
        def numbers():
            page = urllib.request.urlopen("http://127.0.0.1:%d/metrics" % port, timeout=20).read().decode()
            return {line.rsplit(" ", 1)[0]: int(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith("weir_tcp_")}

        def until(what, condition, seconds=60):
            end = time.time() + seconds
            while not condition():
                assert time.time() < end, (what, numbers(), pool.log())
                time.sleep(0.05)

        refused, silent = 'weir_tcp_refused_total{reason="user_connections"}', 'weir_tcp_refused_total{reason="silent"}'
        quiet = [CurveClient(pool, read_key(bob)) for _ in range(2)]  # a handshake, and not a word: they count, until they are ended
        until("connected", lambda: numbers()["weir_tcp_connections"] == 2)
        until("bob has two", lambda: not CurveClient(pool, read_key(bob)).is_let_in(0.5))
        mine = [CurveClient(pool, read_key(alice)) for _ in range(3)]
        for c in mine:
            assert c.ask({"type": "hello"}, "hello")["user"] == "alice"
        assert not CurveClient(pool, read_key(alice)).is_let_in(1)
        said = weir(pool, "status", key=alice, code=4)
        assert "busy: " in said and "max-connections" in said, said
        assert CurveClient(pool, read_key(carol)).is_let_in(60)  # who is somebody else comes in
        until("counted", lambda: numbers()[refused] >= 3)
        before = mine[0].generate(prompt="x", max_tokens=5, seed=1)
        assert before.end["type"] == "done"
        mine.pop().close()
        until("one is closed, one comes in", lambda: CurveClient(pool, read_key(alice)).is_let_in(1))
        until("silent ones are ended", lambda: numbers()[silent] >= 2)
        until("and bob comes in", lambda: CurveClient(pool, read_key(bob)).is_let_in(1))
        for c in mine:  # who speaks stays
            assert c.generate(prompt="x", max_tokens=5, seed=1).ids == before.ids
        pool.wait_for("logged", lambda s: "user_connections=" in pool.log())
        del quiet
    keys.close()


def what_is_told_wrong_is_named():
    keys = Keys()
    alice = keys.new("alice")
    keys.key("new", "alice", "-o", alice, code=1)          # never overwritten
    keys.key("new", "Alice", code=2)
    keys.key("add", "bob", "zz", code=2)
    keys.key("add", "bob", read_key(alice)["public-key"], code=1)  # it is alice's
    keys.key("remove", "carol", code=1)
    broker = [BIN + "/weir-broker", "--model", "x=/dev/null", "--worker-program", BIN + "/../tests/fake_worker", "--runtime-dir", keys.dir + "/run"]
    bad_mode = os.path.join(keys.dir, "bad.key")
    with open(bad_mode, "w") as f, open(alice) as good:
        f.write(good.read())
    os.chmod(bad_mode, 0o644)
    halves = os.path.join(keys.dir, "halves.key")
    other = os.path.join(keys.dir, "other.key")
    keys_pair(other)
    with open(halves, "w") as f:
        f.write("public-key = %s\nsecret-key = %s\n" % (read_key(alice)["public-key"], read_key(other)["secret-key"]))
    os.chmod(halves, 0o600)
    tcp = ["--tcp", "tcp://127.0.0.1:0"]
    for args, words in [(tcp, "--curve-key"), (tcp + ["--curve-key", keys.curve], "--users-file"),
                        (keys.args + ["--tcp", "tcp://localhost:1"], "tcp://ADDRESS:PORT"), (keys.args + ["--tcp", "tcp://1.2.3.4"], "tcp://ADDRESS:PORT"),
                        (keys.args + ["--tcp", "tcp://[::1:5"], "tcp://ADDRESS:PORT"), (keys.args + ["--tcp", "tcp://1.2.3.4:99999"], "tcp://ADDRESS:PORT"),
                        (keys.args + ["--curve-key", bad_mode], "0644"), (keys.args + ["--curve-key", halves], "not that of secret-key"),
                        (["--endpoint", "tcp://127.0.0.1:5555"], "CURVE")]:
        p = subprocess.run(broker + args, capture_output=True, text=True, timeout=30)
        assert p.returncode in (1, 2) and words in p.stderr, (args, p)
    keys.close()


def strangers_get_no_more_than_the_descriptors_allow():
    keys = Keys()
    keys.new("alice")
    broker = [BIN + "/weir-broker", "--model", "x=/dev/null", "--worker-program", BIN + "/../tests/fake_worker", "--runtime-dir", keys.dir + "/run"]
    for hard, args in [(1000, ["--tcp-connections-max", "489"]), (512, []), (512, ["--tcp-connections-max", "1"])]:
        p = subprocess.run(["prlimit", "--nofile=%d:%d" % (hard, hard), *broker, *keys.args, *args], capture_output=True, text=True, timeout=30)
        assert p.returncode in (1, 2) and "tcp-connections-max" in p.stderr and "limit of %d " % hard in p.stderr, (hard, args, p)
    for hard, args, lowered in [(1000, ["--tcp-connections-max", "488"], False), (1000, [], True), (1536, [], False)]:
        if os.geteuid() != 0 and 0 <= resource.getrlimit(resource.RLIMIT_NOFILE)[1] < hard:
            continue  # nobody but root may raise it
        with CurvePool(keys, args=args, limit=hard) as pool:
            assert ("event=tcp_connections_lowered tcp_connections_max=488 " in pool.log()) == lowered, pool.log()
            assert ("event=tcp_connections_lowered" in pool.log()) == lowered
    keys.close()


def root_works_on_a_services_folder_as_the_service():
    keys = Keys()
    if os.geteuid() == 0:
        state, uid = os.path.join(keys.dir, "state"), 65534
        os.chmod(keys.dir, 0o755)
        os.mkdir(state, 0o750)
        os.chown(state, uid, uid)
        alice, own = os.path.join(keys.dir, "alice.key"), os.path.join(keys.dir, "own.key")
        at = ["--state-dir", state]
        public = keys_pair(own)
        for words, says in [(["new", "alice", "-o", alice], "wrote"), (["add", "bob", public], "added"), (["list"], "bob"),
                            (["server"], "\n"), (["remove", "alice"], "1 key removed")]:
            p = subprocess.run([WEIR, "key", *words, *at], capture_output=True, text=True, timeout=30)
            assert p.returncode == 0 and says in p.stdout, (words, p)
        assert {"users", "curve.key"} <= set(os.listdir(state))
        for name in os.listdir(state):
            assert os.stat(os.path.join(state, name)).st_uid == uid, name
        assert os.stat(alice).st_uid == 0 and stat.S_IMODE(os.stat(alice).st_mode) == 0o600
        # what others may write, and a link, are refused as before
        os.symlink(state, os.path.join(keys.dir, "link"))
        p = subprocess.run([WEIR, "key", "list", "--state-dir", os.path.join(keys.dir, "link")], capture_output=True, text=True, timeout=30)
        assert p.returncode == 1 and "symbolic" in p.stderr, p
        os.chmod(state, 0o777)
        p = subprocess.run([WEIR, "key", "list", *at], capture_output=True, text=True, timeout=30)
        assert p.returncode == 4 and "written by others" in p.stderr, p
    else:
        print("not root: skipped")
    keys.close()


def only_new_and_add_make_the_folder():
    keys = Keys()
    public = keys_pair(os.path.join(keys.dir, "own.key"))
    state = os.path.join(keys.dir, "a", "state")
    for words, code in [(["list"], 0), (["server"], 1), (["remove", "bob"], 1), (["add", "bob", public], 0)]:
        p = subprocess.run([WEIR, "key", *words, "--state-dir", state], capture_output=True, text=True, timeout=30)
        assert p.returncode == code, (words, p)
        assert os.path.isdir(os.path.dirname(state)) == (words[0] == "add"), words
    keys.close()


if __name__ == "__main__":
    run([a_key_is_a_user, each_sees_and_cancels_only_ones_own, sessions_keys_and_caches_are_the_users, nobody_else_comes_in,
         keys_come_and_go_while_it_runs, a_flood_of_handshakes_keeps_out_new_ones_only, one_user_does_not_hold_all_connections, what_is_told_wrong_is_named,
         strangers_get_no_more_than_the_descriptors_allow, root_works_on_a_services_folder_as_the_service, only_new_and_add_make_the_folder])
