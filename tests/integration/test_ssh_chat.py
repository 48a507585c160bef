#!/usr/bin/python3
"""`ssh box chat` and `ssh box top`: with a terminal and without, over the real ssh client."""
import fcntl
import json
import os
import struct
import subprocess
import sys
import termios
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from gateway_rig import Rig, check, check_eq, run_tests, wait_until  # noqa: E402
from terminal import Terminal, edit_lines  # noqa: E402


class SshTerminal(Terminal):
    """ssh -t on a pseudo-terminal of our own."""

    def __init__(self, rig, command, user="alice", columns=80, rows=24):
        super().__init__(rig.ssh_args(user, "-tt") + [command])
        self.resize(columns, rows)

    def resize(self, columns, rows):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def asked(rig):
    """What the broker was asked, in order."""
    try:
        with open(rig.path("broker.log")) as f:
            return [json.loads(line) for line in f]
    except FileNotFoundError:
        return []


def texts(request):
    return [m["content"] for m in request["messages"]]


def started():
    rig = Rig()
    rig.add_user("alice")
    rig.start()
    return rig


def test_chat_without_a_terminal_answers_every_line():
    with started() as rig:
        out = rig.ssh("chat --system 'be brief'", b"one\n\ntwo\r\n/reset\nthree \\\nmore\n/quit\nfour\n")
        check_eq((out.returncode, out.stdout), (0, b"echo: one\necho: two\necho: three \nmore\n"), "answers", out.stderr)
        log = asked(rig)
        check_eq([texts(m) for m in log],
                 [["be brief", "one"], ["be brief", "one", "echo: one", "two"], ["be brief", "three \nmore"]], "conversations")
        check_eq([m["role"] for m in log[1]["messages"]], ["system", "user", "assistant", "user"], "roles")
        check_eq((log[0]["user"], log[0]["class"] or "interactive"), ("alice", "interactive"), "whose")
        out = rig.ssh("chat", b"one\n!fail context_overflow\nlast")
        check_eq((out.returncode, out.stdout), (4, b"echo: one\necho: last\n"), "a failed turn is taken back", out.stderr)
        check_eq(texts(asked(rig)[-1]), ["one", "echo: one", "last"], "without it")
        check(b"context_overflow" in out.stderr, out.stderr)
        for end in (b"", b"/quit\n"):
            out = rig.ssh("chat", b"!fail internal_error\n" + end)
            check_eq((out.returncode, out.stdout, out.stderr.count(b"weir: ")), (8, b"", 1), "an internal error is told once", out.stderr)
        out = rig.ssh("chat --json", "gr\u00fc\u00dfe\n!fail busy\n")
        first, second = [json.loads(x) for x in out.stdout.splitlines()]
        check_eq((first["text"], first["finish_reason"], second["error"]["code"]), ("echo: gr\u00fc\u00dfe", "stop", "busy"), "json")
        check_eq(rig.ssh("chat", b"").returncode, 0, "nothing to say")
        check_eq(rig.ssh("chat", b"\xff\xfe\n").returncode, 4, "no UTF-8")
        out = rig.ssh("chat what is it")
        check_eq((out.returncode, out.stdout), (0, b"echo: what is it\n"), "one question")
        check_eq(rig.ssh("chat '!fail internal_error'").returncode, 8, "its exit code")


def test_a_conversation_is_a_session_that_ends_with_it():
    with started() as rig:
        out = rig.ssh("chat --system s", b"one\ntwo\n/reset\nthree\nfour\n")
        check_eq(out.returncode, 0, "answers", out.stderr)
        names = [m["parameters"].get("session") for m in asked(rig)]
        check(names[0] == names[1] != names[2] == names[3] and all(n and n.startswith("ssh-") for n in names), names)

        def ended():
            try:
                with open(rig.path("broker.log.sessions")) as f:
                    return f.read().splitlines()
            except FileNotFoundError:
                return []
        wait_until(lambda: len(ended()) == 2, 60, "both are ended")
        check_eq(ended(), [names[0] + " alice", names[2] + " alice"], "each for its user")
        options = ("-o", "ControlMaster=auto", "-o", "ControlPath=" + rig.path("mux"), "-o", "ControlPersist=600")
        out = rig.ssh("chat", b"five\n", options=options)
        check_eq(out.stdout, b"echo: five\n", "answers", out.stderr)
        wait_until(lambda: len(ended()) == 3, 60, "it is ended, though the connection stays")
        check_eq(subprocess.run(rig.ssh_args("alice", "-O", "exit", *options), capture_output=True).returncode, 0, "it did")
        out = rig.ssh("chat what is it")
        check("session" not in asked(rig)[-1]["parameters"], "one question is no conversation")
        out = rig.ssh("ask what is it")
        check("session" not in asked(rig)[-1]["parameters"], "nor is that")
        out = rig.ssh("chat", b"!full house\nnext\n")
        check_eq((out.returncode, out.stdout), (0, b"echo: !full house\necho: next\n"), "a pool that takes no more sessions answers", out.stderr)
        check("session" not in asked(rig)[-1]["parameters"], "and is not asked again")


def test_lines_that_fail_one_after_another():
    """Each fails while it is asked, without a word to the broker; a stack that grew with them would end at some ten thousand."""
    n = 200000
    with started() as rig:
        out = rig.ssh("chat", b"hi\n" + b"\xff\n" * n + b"last\n", timeout=120)
        check_eq((out.returncode, out.stdout), (4, b"echo: hi\necho: last\n"), "before and behind them", out.stderr[-1000:])
        check_eq(out.stderr.count(b"not UTF-8"), n, "each is told of")
        check_eq(texts(asked(rig)[-1]), ["hi", "echo: hi", "last"], "none is left in the conversation")


def test_chat_takes_the_parameters_of_weir():
    with started() as rig:
        options = ("--model fake --max-tokens 5 --temperature 0.5 --top-p 0.9 --top-k 7 --min-p 0.1 --repetition-penalty 1.1 "
                   "--presence-penalty -0.5 --frequency-penalty 1.5 --stop a --stop 'b c' --ignore-eos --chat-template chatml --cache off "
                   "--scope pool --salt s --seed 9 --deadline 60s")
        for verb in ("ask", "chat"):
            out = rig.ssh("%s %s hello" % (verb, options))
            check_eq((out.returncode, out.stdout), (0, b"echo: hello\n"), verb, out.stderr)
            r = asked(rig)[-1]["parameters"]
            wanted = {"max_tokens": 5, "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "repetition_penalty": 1.1,
                      "presence_penalty": -0.5, "frequency_penalty": 1.5, "stop": ["a", "b c"], "ignore_eos": True, "chat_template": "chatml",
                      "cache": "off", "scope": "pool", "salt": "s", "seed": 9, "deadline_ms": 60000}
            got = {k: round(r[k], 5) if isinstance(r.get(k), float) else r.get(k) for k in wanted}  # numbers are 32 bits wide on the wire
            check_eq(got, wanted, "parameters of", verb)
        for wrong in ("--top-p 2", "--top-p x", "--presence-penalty -3", "--cache maybe", "--scope all", "--top-k 0", "--stop ''"):
            check_eq(rig.ssh("ask %s hello" % wrong).returncode, 2, wrong)


def test_chat_on_a_terminal_edits_lines():
    with started() as rig:
        t = SshTerminal(rig, "chat")
        edit_lines(t)
        t.type(b"/nothing\r")
        t.wait_for(b"there is no /nothing")
        t.wait_for(b"> ")
        t.type(b"one \\\r")
        t.wait_for(b". ")
        t.type(b"two\r")
        t.wait_for(b"echo: one \r\ntwo")
        t.wait_for(b"> ")
        t.type(b"never sent\x03")
        t.wait_for(b"^C")
        t.wait_for(b"> ")
        t.type(b"\x04")
        code, rest = t.end()
        check_eq(code, 0, "^D ends")
        check(b"\x1b[?2004l" in rest, "the terminal is as it was:", rest)
        check("never sent" not in [m["prompt"] for m in asked(rig)], "a line that was dropped")


def test_chat_characters_come_in_parts_and_are_wide():
    with started() as rig:
        t = SshTerminal(rig, "chat", columns=30)
        t.wait_for(b"> ")
        for byte in "\u6c34\U0001f336e\u0301".encode():
            t.type(bytes([byte]))
            time.sleep(0.02)
        t.type(b"\xff\r")  # and one that is none
        t.wait_for("echo: \u6c34\U0001f336e\u0301\ufffd\r\n".encode())
        check_eq(asked(rig)[-1]["prompt"], "\u6c34\U0001f336e\u0301\ufffd", "as the broker has it")
        t.wait_for(b"> ")
        t.type("\u6c34" * 40 + "\x01")  # 80 columns wide: the row scrolls, never wraps
        t.wait_for(b"\x1b[2C")
        t.resize(20, 10)
        t.type("\x05!\r")
        t.wait_for(("echo: " + "\u6c34" * 40 + "!\r\n").encode())
        t.wait_for(b"> ")
        t.type("a\x1b]0;x\x07b\r")  # a control character in an answer is shown, not sent
        answer = t.wait_for(b"first after")
        check(b"\x1b]" not in answer and b"\x07" not in answer, answer)
        t.wait_for(b"> ")
        t.type(b"/quit\r")
        check_eq(t.end()[0], 0, "/quit")


def test_ctrl_c_stops_the_answer_and_nothing_else():
    with started() as rig:
        t = SshTerminal(rig, "chat")
        t.wait_for(b"> ")
        t.type(b"!hold\r")
        wait_until(lambda: asked(rig) and asked(rig)[-1]["prompt"] == "!hold", 10, "asked")
        t.type(b"typed ahead\x03")
        t.wait_for(b"[stopped]")
        t.wait_for(b"> ")
        wait_until(lambda: os.path.exists(rig.path("broker.log.cancelled")), 10, "the broker was told")
        t.type(b"!slow 700 a\rb\r")  # two lines ahead of their answers
        t.wait_for(b"echo: !slow 700 a")
        t.wait_for(b"echo: b")
        t.wait_for(b"> ")
        rig.stop_broker()
        t.type(b"c\r")
        t.wait_for(b"broker_unreachable")
        rig.start_broker()
        t.wait_for(b"> ")

        def answers():
            t.type(b"d\r")
            t.wait_for(b"> d")
            out = t.wait_for(b"> ")
            return b"echo: d" in out
        wait_until(answers, 20, "answers again")
        t.type(b"\x04")
        check_eq(t.end()[0], 0, "end")
        check_eq([m["prompt"] for m in asked(rig) if "typed" in (m.get("prompt") or "")], [], "what was typed before ^C")


def test_tt_without_a_terminal_and_signals():
    with started() as rig:
        out = rig.ssh("chat", b"one\ntwo\n", options=("-tt",))
        check(b"echo: one" in out.stdout and b"echo: two" in out.stdout, out.stdout)
        check_eq(out.returncode, 0, "ends with its input")
        child = subprocess.Popen(rig.ssh_args("alice", "-T") + ["chat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        child.stdin.write(b"one\n")
        child.stdin.flush()
        check_eq(child.stdout.read(10), b"echo: one\n", "an answer at once")
        child.kill()
        child.wait()
        wait_until(lambda: not rig.children("connection-process"), 10, "its process has gone")


def test_top():
    with started() as rig:
        rig.add_user("bob")
        out = rig.json("top --json")
        check_eq([u["name"] for u in out["users"]], ["alice"], "only oneself")
        check_eq([u["name"] for u in rig.json("pool --json")["users"]], ["alice"], "also in pool")
        check_eq([u["name"] for u in rig.json("pool --json", user="bob")["users"]], ["bob"], "and bob himself")
        page = rig.ok("top")
        check(b"alice" in page and b"bob" not in page and b"\x1b" not in page, page)
        t = SshTerminal(rig, "top", columns=100, rows=12)
        t.wait_for(b"\x1b[?1049h")
        page = t.wait_for(b"q leave")
        page += t.wait_for(b"q leave")
        check(b"alice" in page and b"bob" not in page, page)
        t.resize(60, 20)
        wait_until(lambda: b"\x1b[20;1H" in t.wait_for(b"q leave"), 10, "drawn for the new size")
        rig.stop_broker()
        t.wait_for(b"broker_unreachable")
        rig.start_broker()
        t.wait_for(b"running")
        t.type(b"q")
        code, rest = t.end()
        check_eq((code, rest.endswith(b"\x1b[?1049l") or b"\x1b[?1049l" in rest), (0, True), "the screen is as it was", rest)
        t = SshTerminal(rig, "top")
        t.wait_for(b"q leave")
        t.type(b"\x03")
        check_eq(t.end()[0], 130, "^C")


if __name__ == "__main__":
    run_tests([f for n, f in sorted(globals().items()) if n.startswith("test_")])
