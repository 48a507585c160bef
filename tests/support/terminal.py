"""A program on a pseudo-terminal: what it shows is waited for, keys are typed."""
import os
import pty
import select
import time

from gateway_rig import check
from patience import PATIENCE


class Terminal:
    seconds = 20  # times PATIENCE: how long is waited, if nothing else is said

    def __init__(self, args, env=None):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execvpe(args[0], args, os.environ if env is None else env)
        self.seen = b""

    def wait_for(self, text, seconds=None):
        """What came up to and with text; what came before is forgotten."""
        end = time.monotonic() + (seconds or self.seconds) * PATIENCE
        while text not in self.seen:
            check(time.monotonic() < end, "waiting for", text, "saw", self.seen)
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    self.seen += os.read(self.fd, 65536)
                except OSError:
                    check(text in self.seen, "ended, waiting for", text, "saw", self.seen)
        at = self.seen.index(text) + len(text)
        part, self.seen = self.seen[:at], self.seen[at:]
        return part

    def type(self, text):
        os.write(self.fd, text.encode() if isinstance(text, str) else text)

    def end(self, seconds=None):
        """Exit code, and everything that still came."""
        stop = time.monotonic() + (seconds or self.seconds) * PATIENCE
        while time.monotonic() < stop:
            if select.select([self.fd], [], [], 0.05)[0]:
                try:
                    more = os.read(self.fd, 65536)
                except OSError:
                    break
                if not more:
                    break
                self.seen += more
        _, status = os.waitpid(self.pid, 0)
        os.close(self.fd)
        return os.waitstatus_to_exitcode(status), self.seen


def edit_lines(t):
    """In a chat that answers "echo: " and what was said: keys, a character of two bytes, history, a paste."""
    t.wait_for(b"> ")
    t.type(b"helo\x1b[Dl\x05 you\x17me\x01X\x04\x1b[3~\x08\x05\r")  # left, end, ^W, home, delete keys
    t.wait_for(b"echo: llo me")
    t.wait_for(b"> ")
    t.type("h\u00e9\u00e9\x7f\r")  # Backspace takes a whole character
    t.wait_for("echo: h\u00e9\r\n".encode())
    t.wait_for(b"> ")
    t.type(b"\x1b[A\x1b[A\r")  # history
    t.wait_for(b"echo: llo me")
    t.wait_for(b"> ")
    t.type(b"\x1b[200~two\rlines\x1b[201~\r")
    t.wait_for(b"echo: two\r\nlines")
    t.wait_for(b"> ")
