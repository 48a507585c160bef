"""weir top as people see it: in tmux, at several sizes, with a pool that works; and as one page of text in a pipe."""
import os, re, shutil, subprocess, sys, threading, time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from patience import PATIENCE
from serve_rig import WEIR, Serve, main, wait_until


class Screen:
    """A tmux server of our own, with one window."""

    def __init__(self, pool, columns, lines, *args):
        self.socket = pool.path("tmux-%dx%d" % (columns, lines))
        env = {**pool.env, "TERM": "xterm-256color"}
        command = "%s top %s; echo left with $?; sleep 60" % (WEIR, " ".join(args))
        subprocess.run(["tmux", "-S", self.socket, "-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y", str(lines), command],
                       env=env, check=True)
        self.tmux("set", "-g", "status", "off")
        self.tmux("resize-window", "-x", str(columns), "-y", str(lines))

    def tmux(self, *args):
        return subprocess.run(["tmux", "-S", self.socket, *args], check=True, capture_output=True, text=True).stdout

    def lines(self, *flags):
        return self.tmux("capture-pane", "-p", *flags).rstrip("\n").split("\n")

    def text(self, *flags):
        return "\n".join(self.lines(*flags))

    def type(self, keys):
        self.tmux("send-keys", keys)

    def end(self):
        subprocess.run(["tmux", "-S", self.socket, "kill-server"], capture_output=True)


def with_load(pool, function):
    stop = threading.Event()

    def work():
        while not stop.is_set():
            pool.weir("generate", "--max-tokens", "300", "--ignore-eos", "words and words")
    thread = threading.Thread(target=work)
    thread.start()
    try:
        function()
    finally:
        stop.set()
        thread.join()


def it_fits_every_size():
    if not shutil.which("tmux"):
        print("  (no tmux: not tried)")
        return
    with Serve(workers=3, metrics=False) as pool:
        wait_until(lambda: all(w["state"] == "ready" for w in pool.status()["workers"]), 60, "all are ready")

        def look():
            for columns, lines in ((80, 24), (40, 10), (132, 50)):
                screen = Screen(pool, columns, lines, "--delay", "300ms")
                try:
                    wait_until(lambda: "running for" in screen.text() and "q leave" in screen.text(), 20, "the first page")
                    shown = screen.lines()
                    assert len(shown) <= lines and max(map(len, shown)) <= columns, shown
                    if columns >= 80:
                        assert sum(re.match(r" +[0-2] ready ", line) is not None for line in shown) == 3, shown
                        wait_until(lambda: re.search(r"[1-9][0-9.]* tokens/s", screen.text()), 20, "tokens a second")
                    screen.type("q")
                    wait_until(lambda: "left with 0" in screen.text(), 20, "q leaves, and the screen is what it was")
                    assert "SLOT" not in screen.text()
                finally:
                    screen.end()
        with_load(pool, look)


def keys_a_new_size_and_a_broker_that_goes():
    if not shutil.which("tmux"):
        print("  (no tmux: not tried)")
        return
    with Serve(metrics=False) as pool:
        pool.weir("generate", "--max-tokens", "2", "a b")
        screen = Screen(pool, 80, 24, "--delay", "200ms")
        try:
            wait_until(lambda: "users by rate" in screen.text(), 20, "the first page")
            assert "\033[7m" in screen.text("-e")  # a reversed head
            screen.type("s")
            wait_until(lambda: "users by running" in screen.text(), 15, "another order")
            screen.type(" ")
            wait_until(lambda: "PAUSED" in screen.text(), 15, "a pause")
            screen.type(" ")
            wait_until(lambda: "PAUSED" not in screen.text(), 15, "no pause")
            screen.tmux("resize-window", "-x", "60", "-y", "15")
            wait_until(lambda: "q leave" in screen.lines()[-1] and len(screen.lines()) == 15, 15, "the new size")
            pool.stop()
            wait_until(lambda: "broker_unreachable" in screen.text(), 15, "the reason")
            screen.type("C-c")
            wait_until(lambda: "left with 130" in screen.text(), 15, "^C leaves")
        finally:
            screen.end()


def without_colour_there_is_none():
    if not shutil.which("tmux"):
        print("  (no tmux: not tried)")
        return
    with Serve(metrics=False) as pool:
        screen = Screen(pool, 80, 24, "--no-color")
        try:
            wait_until(lambda: "SLOT" in screen.text(), 20, "the first page")
            assert "\033[" not in screen.text("-e"), screen.text("-e")
        finally:
            screen.end()


def one_page_in_a_pipe():
    with Serve(workers=2, metrics=False) as pool:
        pool.weir("generate", "--max-tokens", "2", "a b")
        began = time.time()
        out = pool.weir("top", "--delay", "200ms").stdout
        assert time.time() - began < 5 * PATIENCE and "\033" not in out and out.count(" ready ") == 2 and "USER" in out, out
        assert "[" not in out.split("\n")[0]
        pool.weir("top", "--delay", "1ms", code=2)
        pool.weir("top", "x", code=2)
        pool.stop()
        assert "broker_unreachable" in pool.weir("top", code=3).stderr


if __name__ == "__main__":
    main([it_fits_every_size, keys_a_new_size_and_a_broker_that_goes, without_colour_there_is_none, one_page_in_a_pipe], sys.argv[1:])
