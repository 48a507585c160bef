"""The weir command as people use it: real processes, a pseudo-terminal where one matters, a broker that does what the prompt says."""
import json, os, shutil, signal, socket, subprocess, sys, tempfile, time, types

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from patience import PATIENCE, wait_until  # noqa: E402
import terminal  # noqa: E402

BIN = os.environ.get("WEIR_BIN") or os.path.join(os.path.dirname(__file__), "../../build/bin")
WEIR = os.path.join(BIN, "weir")
FAKE = os.path.join(os.path.dirname(__file__), "../support/fake_broker.py")
MODEL = os.environ.get("WEIR_TEST_MODEL") or os.path.expanduser("~/.cache/weir/SmolLM2-135M-Instruct.Q4_1.gguf")

try:
    import msgpack, zmq  # noqa: F401  (the fake broker's)
except ImportError:
    print("python3-zmq and python3-msgpack are not here")
    sys.exit(77)


class Place:
    """A folder, a fake broker in it, and the command pointed at it."""

    def __init__(self, delay_ms=0, broker=True):
        self.dir = tempfile.mkdtemp(prefix="weir-cli-")
        self.endpoint = "ipc://" + self.path("broker.sock")
        self.delay_ms = delay_ms
        self.broker = None
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("WEIR_")}
        self.env["WEIR_CONNECT"] = self.endpoint
        if broker:
            self.start()

    def path(self, name):
        return os.path.join(self.dir, name)

    def start(self):
        self.broker = subprocess.Popen([sys.executable, FAKE, self.endpoint, "--delay-ms", str(self.delay_ms),
                                        "--log", self.path("log")], stdout=subprocess.PIPE)
        assert self.broker.stdout.readline() == b"ready\n"

    def stop(self):
        if self.broker:
            self.broker.kill()
            self.broker.wait()
            self.broker.stdout.close()
            self.broker = None

    def log(self):
        with open(self.path("log")) as f:
            return [json.loads(line) for line in f]

    def weir(self, *args, input=b"", code=0, timeout=30):
        r = subprocess.run([WEIR, *args], input=input, capture_output=True, env=self.env, timeout=timeout)
        assert r.returncode == code, (args, r.returncode, r.stdout, r.stderr)
        return r

    def begin(self, *args, **kw):
        return subprocess.Popen([WEIR, *args], env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **kw)

    def write(self, name, lines):
        with open(self.path(name), "w") as f:
            f.writelines(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
        return self.path(name)

    def read(self, name):
        if not os.path.exists(self.path(name)):
            return []
        with open(self.path(name)) as f:
            return [json.loads(line) for line in f]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
        shutil.rmtree(self.dir)


class WeirTerminal(terminal.Terminal):
    """The command on a pseudo-terminal."""
    seconds = 10

    def __init__(self, place, *args):
        super().__init__([WEIR, *args], {**place.env, "TERM": "xterm"})


# --- generate, tokenize, models, help ------------------------------------------------------------

def completes_a_prompt_and_adds_nothing_in_a_pipe():
    with Place() as p:
        assert p.weir("generate", "the \x1b sea").stdout == b"echo: the \x1b sea"
        assert p.weir("generate", "-", input=b"from stdin\n").stdout == b"echo: from stdin\n"
        assert p.weir("generate", input=b"piped").stdout == b"echo: piped"
        assert p.weir("generate", "--", "--looks like a flag").stdout == b"echo: --looks like a flag"
        assert p.weir("--connect", p.endpoint, "generate", "x").stdout == b"echo: x"
        p.env["WEIR_CONNECT"] = "ipc:///nowhere"
        assert p.weir("generate", "--connect", p.endpoint, "x").stdout == b"echo: x"


def json_is_one_object():
    with Place() as p:
        a = json.loads(p.weir("generate", "--json", "--seed", "5", "one two").stdout)
        assert a["text"] == "echo: one two" and a["token_ids"] == [100, 101, 102] and a["finish_reason"] == "stop"
        assert a["usage"] == {"prompt_tokens": 3, "cached_tokens": 1, "completion_tokens": 3}
        assert set(a["timings"]) == {"queue_ms", "prefill_ms", "first_token_ms", "total_ms"}
        assert (a["worker"], a["takeovers"], a["model"], a["system_fingerprint"], a["seed"]) == (0, 0, "fake", "fake-1", 5)
        seeds = {json.loads(p.weir("generate", "--json", "x").stdout)["seed"] for _ in range(3)}
        assert len(seeds) == 3 and max(seeds) < 2 ** 53


def parameters_reach_the_broker():
    with Place() as p:
        p.weir("generate", "--max-tokens", "7", "--class", "batch", "x")
        last = p.log()[-1]
        assert last["max_tokens"] == 7 and last["class"] == "batch"
        r = p.weir("generate", "--model", "other", "x", code=1)
        assert b"model_not_found" in r.stderr


def exit_codes_tell_what_went_wrong():
    with Place() as p:
        r = p.weir("generate", "!fail context_overflow", code=1)
        assert r.stderr.startswith(b"weir generate: context_overflow: ") and r.stdout == b""
        r = p.weir("generate", "--json", "!fail context_overflow", code=1)
        assert json.loads(r.stdout)["error"]["code"] == "context_overflow"
        p.weir("generate", "!fail busy", code=4)
        p.weir("generate", "!fail no_worker", code=4)
        p.weir("generate", "!fail permission_denied", code=4)
        p.weir("generate", "--max-tokens", "0", "x", code=2)
        p.weir("generate", "two", "prompts", code=2)
        p.weir("generate", "--logprobs", "x", code=2)
        assert b"did you mean --temperature?" in p.weir("generate", "--temprature", "1", "x", code=2).stderr
        assert b'did you mean "generate"?' in p.weir("genrate", "x", code=2).stderr
        p.weir("nonsense", code=2)
        p.weir(code=2)
        p.stop()
        began = time.time()
        for args in (["generate", "x"], ["tokenize", "x"], ["models"], ["status"], ["chat", "x"]):
            r = p.weir(*args, code=3)
            assert b"broker_unreachable" in r.stderr, r.stderr
        assert time.time() - began < 3 * PATIENCE


def not_utf8_is_refused_with_a_sentence():
    with Place() as p:
        r = p.weir("generate", "-", input=b"abc\xff", code=1)
        assert b"not UTF-8" in r.stderr and b"byte 3" in r.stderr
        r = p.weir("generate", "-", input=b"a" * (1 << 20) + b"b", code=1)
        assert b"limit_exceeded" in r.stderr and b"1048576" in r.stderr


def every_verb_has_help():
    with Place(broker=False) as p:
        out = p.weir("help").stdout.decode()
        for verb in "generate chat batch tokenize models status serve user gateway version".split():
            assert verb in out
            text = p.weir("help", verb).stdout
            assert b"usage" in text.lower(), (verb, text)
        assert b"--max-tokens" in p.weir("generate", "--help").stdout
        assert json.loads(p.weir("version", "--json").stdout)["version"] in p.weir("--version").stdout.decode()
        for args in (["help", "generate"], ["version"]):
            with open("/dev/full", "w") as full:
                assert subprocess.run([WEIR, *args], stdout=full, stderr=subprocess.DEVNULL).returncode == 1


def tokenize_and_models():
    with Place() as p:
        assert p.weir("tokenize", "ab").stdout == b"97 98\n"
        assert json.loads(p.weir("tokenize", "--json", "-", input=b"ab").stdout) == {"ids": [97, 98], "n": 2}
        assert p.weir("models").stdout.startswith(b"fake ")
        assert json.loads(p.weir("models", "--json").stdout)["models"][0]["name"] == "fake"
        for verb in ("models", "status", "trace"):  # what is told, and no word of the wire
            assert not {"type", "id"} & set(json.loads(p.weir(verb, "--json").stdout)), verb


def an_interrupt_stops_at_once():
    with Place() as p:
        for sig in (signal.SIGINT, signal.SIGTERM):
            before = len(p.log()) if os.path.exists(p.path("log")) else 0
            c = p.begin("generate", "!hold")
            wait_until(lambda: os.path.exists(p.path("log")) and len(p.log()) > before)
            c.send_signal(sig)
            assert c.wait(5) == 130
            c.communicate()


def a_lost_broker_is_told():
    with Place() as p:
        c = p.begin("generate", "!hold")
        wait_until(lambda: os.path.exists(p.path("log")) and p.log())
        p.stop()
        assert c.wait(5) == 3
        assert b"broker_unreachable" in c.communicate()[1]


def a_closed_pipe_ends_quietly():
    with Place() as p:
        c = subprocess.Popen("%s generate - | head -c 4" % WEIR, shell=True, env=p.env, stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = c.communicate(b"word " * 20000, timeout=20)
        assert out == b"echo" and err == b""


# --- terminals -----------------------------------------------------------------------------------

def no_control_character_of_a_model_reaches_a_terminal():
    with Place() as p:
        t = WeirTerminal(p, "generate", "a\x1b]0;title\x07 \x9b2J\u009b \u202e z")
        code, out = t.end()
        assert code == 0
        assert b"\x1b" not in out and b"\x07" not in out and b"\xc2\x9b" not in out and "\u202e".encode() not in out, out
        assert b"^[]0;title^G" in out
        t = WeirTerminal(p, "generate", "--json", "a\x1b]0;\u009b")
        code, out = t.end()
        assert code == 0 and b"\x1b" not in out and b"\xc2\x9b" not in out


def chat_keeps_the_conversation():
    with Place() as p:
        r = p.weir("chat", "--system", "be brief", input=b"one\n\ntwo\n/reset\nthree \\\nmore\n/quit\nfour\n")
        assert r.stdout == b"echo: one\necho: two\necho: three \nmore\n", r.stdout
        log = p.log()
        assert [m["content"] for m in log[1]["messages"]] == ["be brief", "one", "echo: one", "two"]
        assert [m["role"] for m in log[1]["messages"]] == ["system", "user", "assistant", "user"]
        assert [m["content"] for m in log[2]["messages"]] == ["be brief", "three \nmore"]
        assert len(log) == 3


def a_failed_turn_is_taken_back():
    with Place() as p:
        r = p.weir("chat", input=b"one\n!fail context_overflow\ntwo\n", code=1)
        assert r.stdout == b"echo: one\necho: two\n", r.stdout
        assert [m["content"] for m in p.log()[-1]["messages"]] == ["one", "echo: one", "two"]


def chat_on_a_terminal_edits_lines_and_stops_answers():
    with Place() as p:
        t = WeirTerminal(p, "chat")
        terminal.edit_lines(t)
        t.type(b"!hold\r")
        wait_until(lambda: p.log()[-1]["prompt"] == "!hold")
        time.sleep(0.1)
        t.type(b"\x03")  # now a signal: stops the answer
        t.wait_for(b"[stopped]")
        t.wait_for(b"> ")
        t.type(b"never sent\x03")  # now a key: drops the line
        t.wait_for(b"^C")
        t.wait_for(b"> ")
        t.type(b"/help\r")
        t.wait_for(b"/reset")
        t.type(b"\x04")
        code, _ = t.end()
        assert code == 0
        assert "never sent" not in [m["prompt"] for m in p.log()]


def chat_goes_on_after_the_brokers_return():
    with Place() as p:
        t = WeirTerminal(p, "chat")
        t.wait_for(b"> ")
        t.type(b"one\r")
        t.wait_for(b"echo: one")
        t.wait_for(b"> ")
        p.stop()
        p.start()
        t.type(b"two\r")
        t.wait_for(b"echo: two")
        t.wait_for(b"> ")
        t.type(b"/quit\r")
        assert t.end()[0] == 0


# --- batch ---------------------------------------------------------------------------------------

def request(i, prompt=None, **more):
    return {"custom_id": "r%d" % i, "method": "POST", "url": "/v1/completions",
            "body": {"prompt": prompt or "number %d" % i, **more}}


def every_line_has_one_end():
    with Place() as p:
        lines = [request(i) for i in range(50)]
        lines[3] = request(3, tools=[])
        lines[4] = "{broken\n"
        lines[5] = request(2)                       # the id of another
        lines[6] = {"messages": [{"role": "user", "content": "short"}]}
        lines[7] = "   \n"
        lines[8] = request(8, "!fail deadline_exceeded")
        lines[9] = json.dumps(request(9)) + "\r\n"
        lines[10] = '{"prompt": "%s"}\n' % ("x" * (2 << 20))
        lines[0] = "\ufeff" + json.dumps(request(0)) + "\n"
        p.write("in", lines)
        r = p.weir("batch", p.path("in"), "-o", p.path("out"), code=1)
        out, errors = p.read("out"), p.read("out.errors")
        assert len(out) == 44 and len(errors) == 5, (len(out), len(errors), errors)
        assert sorted(o["custom_id"] for o in out) == sorted(
            ["r%d" % i for i in range(50) if i not in (3, 4, 5, 6, 7, 8, 10)] + ["line-7"])
        assert {e["error"]["line"]: e["error"]["code"] for e in errors} == {
            4: "unsupported_parameter", 5: "invalid_request", 6: "duplicate_id", 9: "deadline_exceeded", 11: "limit_exceeded"}
        assert all(o["error"] is None and o["response"]["status_code"] == 200 for o in out)
        assert all(e["response"]["status_code"] >= 400 and e["error"] for e in errors)
        one = next(o for o in out if o["custom_id"] == "r9")["response"]["body"]
        assert one["object"] == "text_completion" and one["choices"][0]["text"] == "echo: number 9"
        assert b"44 answered, 5 failed" in r.stderr
        assert all(m["class"] == "batch" for m in p.log())


def a_second_run_does_only_what_is_missing():
    with Place() as p:
        p.write("in", [request(i) for i in range(20)] + [request(20, "!once internal_error")])
        p.weir("batch", p.path("in"), "-o", p.path("out"), code=1)
        n = len(p.log())
        r = p.weir("batch", p.path("in"), "-o", p.path("out"))
        assert len(p.log()) == n + 1 and b"20 answered before" in r.stderr
        assert sorted(o["custom_id"] for o in p.read("out")) == sorted("r%d" % i for i in range(21))
        assert not os.path.exists(p.path("out.errors"))
        p.write("in", [request(i, "another") for i in range(20)])
        assert b"key_conflict" in p.weir("batch", p.path("in"), "-o", p.path("out"), code=1).stderr
        assert len(p.read("out")) == 21


def a_killed_run_goes_on(sig, code):
    with Place(delay_ms=20) as p:
        p.write("in", [request(i) for i in range(300)])
        for _ in range(4):
            c = p.begin("batch", p.path("in"), "-o", p.path("out"), "-w", "4")
            n = len(p.read("out"))
            wait_until(lambda: len(open(p.path("out"), "rb").read().split(b"\n")) - 1 > n + 5 if os.path.exists(p.path("out")) else False)
            c.send_signal(sig)
            assert c.wait(5) == code
            c.communicate()
        with open(p.path("out"), "a") as f:
            f.write('{"id": "batch_req_torn')  # as if it had died in a write
        p.weir("batch", p.path("in"), "-o", p.path("out"))
        assert sorted(o["custom_id"] for o in p.read("out")) == sorted("r%d" % i for i in range(300))


def an_interrupted_batch_goes_on():
    a_killed_run_goes_on(signal.SIGINT, 130)


def a_murdered_batch_goes_on():
    a_killed_run_goes_on(signal.SIGKILL, -9)


def busy_is_waited_for():
    with Place() as p:
        p.write("in", [request(i, "!once busy %d" % i) for i in range(30)] + [request(30, "!once no_worker")])
        p.weir("batch", p.path("in"), "-o", p.path("out"))
        assert len(p.read("out")) == 31


def a_broker_that_comes_back_gets_the_lines_again():
    with Place(delay_ms=10) as p:
        p.write("in", [request(i) for i in range(100)])
        c = p.begin("batch", p.path("in"), "-o", p.path("out"), "-w", "8")
        wait_until(lambda: os.path.exists(p.path("out")) and len(open(p.path("out"), "rb").read()) > 2000)
        p.stop()
        time.sleep(0.3)
        p.start()
        assert c.wait(30) == 0, c.communicate()
        c.communicate()
        assert sorted(o["custom_id"] for o in p.read("out")) == sorted("r%d" % i for i in range(100))


def a_broker_that_stays_away_ends_the_run():
    with Place(delay_ms=10) as p:
        p.write("in", [request(i) for i in range(1000)])
        c = p.begin("batch", p.path("in"), "-o", p.path("out"), "-w", "8", "--retry", "500ms")
        wait_until(lambda: os.path.exists(p.path("out")) and len(open(p.path("out"), "rb").read()) > 2000)
        p.stop()
        assert c.wait(10) == 3
        assert b"the same command goes on from here" in c.communicate()[1]
        assert not os.path.exists(p.path("out.errors"))


def a_pipe_is_answered_while_it_is_open():
    with Place() as p:
        c = p.begin("batch", "-", "-q", stdin=subprocess.PIPE)
        for i in range(5):
            c.stdin.write(json.dumps({"prompt": "p%d" % i, "id": i}).encode() + b"\n")
            c.stdin.flush()
            assert json.loads(c.stdout.readline())["custom_id"] == str(i)
        out, err = c.communicate(b'{"prompt": 1}\n')
        assert c.returncode == 1 and out == b""
        assert json.loads(err)["error"]["param"] == "prompt"


def empty_input_is_no_work():
    with Place() as p:
        p.write("in", [])
        p.weir("batch", p.path("in"), "-o", p.path("out"))
        assert p.read("out") == []
        p.weir("batch", "-")
        p.weir("batch", p.path("missing"), code=1)
        p.weir("batch", p.dir, code=1)
        p.weir("batch", code=2)
        p.weir("batch", p.path("in"), "-o", p.path("in"), code=2)


def progress_is_plain_lines_in_a_pipe_and_a_bar_on_a_terminal():
    with Place(delay_ms=300) as p:
        p.write("in", [request(i) for i in range(4)])
        r = p.weir("batch", p.path("in"), "-o", p.path("out"), "-w", "1")
        assert b"\r" not in r.stderr and b"\x1b" not in r.stderr
        t = WeirTerminal(p, "batch", p.path("in"), "-o", p.path("out2"), "-w", "1")
        code, out = t.end()
        assert code == 0 and b"/4" in out and b"[#" in out, out


# --- serve ---------------------------------------------------------------------------------------

class Served:
    def __init__(self, p, *more):
        p.env["WEIR_CONNECT"] = "ipc://" + p.path("run/broker.sock")
        self.log = open(p.path("serve.log"), "ab")
        self.process = subprocess.Popen(
            [WEIR, "serve", "--model", "m=" + MODEL, "--workers", "1", "--threads", "1", "--kv-bytes", "64M", "--ssh-port", "0",
             "--listen", "127.0.0.1", "--state-dir", p.path("state"), "--runtime-dir", p.path("run"), *more],
            stdout=subprocess.PIPE, stderr=self.log, env=p.env)

    def ready(self):
        line = self.process.stdout.readline().decode()
        assert line.startswith("ready "), (line, open(self.log.name).read()[-2000:])
        return dict(w.split("=", 1) for w in line.split()[1:])

    def children(self):
        """Every process below it, workers too."""
        found, todo = [], [self.process.pid]
        while todo:
            r = subprocess.run(["pgrep", "-P", str(todo.pop())], capture_output=True, text=True)
            found += [int(x) for x in r.stdout.split()]
            todo += [int(x) for x in r.stdout.split()]
        return found

    def end(self, code, seconds=20):
        assert self.process.wait(seconds) == code, (self.process.returncode, open(self.log.name).read()[-2000:])
        self.process.stdout.close()
        self.log.close()


def alive(pid):
    try:
        os.kill(pid, 0)
        with open("/proc/%d/stat" % pid) as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def serve_starts_a_pool_and_leaves_nothing():
    if not os.path.exists(MODEL):
        print("  (no model: not tried)")
        return
    with Place(broker=False) as p:
        s = Served(p)
        said = s.ready()
        assert said["workers"] == "1" and said["models"] == "m"
        p.weir("status", "--wait-ready", "20")
        a = json.loads(p.weir("generate", "--json", "--max-tokens", "4", "--temperature", "0", "The sea is").stdout)
        assert a["usage"]["completion_tokens"] == 4 and a["model"] == "m"
        with socket.create_connection(("127.0.0.1", int(said["ssh_port"]))) as c:
            assert c.recv(4) == b"SSH-"
        children = s.children()
        assert len(children) >= 4, children  # broker, worker, gateway, jobs
        s.process.send_signal(signal.SIGTERM)
        s.end(0)
        wait_until(lambda: not any(alive(c) for c in children))
        assert p.weir("status", code=3)


def serve_ends_with_its_children_and_they_with_it():
    if not os.path.exists(MODEL):
        print("  (no model: not tried)")
        return
    with Place(broker=False) as p:
        s = Served(p)
        s.ready()
        children = s.children()
        broker = subprocess.run(["pgrep", "-P", str(s.process.pid), "weir-broker"], capture_output=True, text=True).stdout.split()
        os.kill(int(broker[0]), signal.SIGKILL)
        s.end(1)
        wait_until(lambda: not any(alive(c) for c in children))
        s = Served(p)
        s.ready()
        children = s.children()
        s.process.kill()
        s.end(-9)
        wait_until(lambda: not any(alive(c) for c in children), 20)


def serve_says_what_is_wrong_before_it_starts():
    with Place(broker=False) as p:
        assert b"--model" in p.weir("serve", code=2).stderr
        assert b"did you mean" in p.weir("serve", "--modle", "x", code=2).stderr
        with socket.socket() as taken:
            taken.bind(("0.0.0.0", 0))
            taken.listen()
            port = taken.getsockname()[1]
            r = p.weir("serve", "--model", "/dev/null", "--ssh-port", str(port), code=1)
            assert b"is taken" in r.stderr and b"--ssh-port" in r.stderr
        r = p.weir("serve", "--model", p.path("missing.gguf"), "--no-ssh", "--runtime-dir", p.path("r"), "--state-dir", p.path("s"), code=1)
        assert b"missing.gguf" in r.stderr


def user_is_the_gateways_verb():
    with Place(broker=False) as p:
        assert b"user" in p.weir("user", "--help").stdout
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", p.path("key")], check=True)
        p.weir("user", "add", "ann", "--key", p.path("key.pub"), "--state-dir", p.path("state"))
        assert b"ann" in p.weir("user", "list", "--state-dir", p.path("state")).stdout


HELPERS = (a_killed_run_goes_on, alive, request, wait_until)

if __name__ == "__main__":
    wanted = sys.argv[1:]
    for name, test in list(globals().items()):
        if isinstance(test, types.FunctionType) and test not in HELPERS and (not wanted or name in wanted):
            began = time.time()
            test()
            print("ok %s (%.1f s)" % (name, time.time() - began), flush=True)
