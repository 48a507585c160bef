#!/usr/bin/python3
"""What a death and what an overload cost, on the real model: under four minutes.

usage: reliability.py [takeover] [kills] [overload]      all three without arguments.  WEIR_TEST_MODEL: the model

takeover   a stream runs on one of two workers; kill -9; the time until its next token is there.  With the host store, from which the
           other worker takes the prompt's blocks, and without it
kills      tokens a second of 32 requests kept under way, undisturbed and while one of the two workers is killed every 5 s, in turn
overload   tokens a second of finished requests with the pool just full, and with ten times as many requests as it can serve and its
           queue full; the same for a second of processor time of broker and workers, which a busy machine changes less; how soon a
           refusal comes; the broker's memory meanwhile

Prints rows for docs/measurements.md.  The clients are processes of their own; on a small machine they take their share of the CPU."""
import json, os, random, re, signal, subprocess, sys, time, urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../tests/integration"))
import broker_pool  # noqa: E402
from broker_pool import Answer, Client, Pool  # noqa: E402
from ports import free_port  # noqa: E402

MODEL = os.environ.get("WEIR_TEST_MODEL") or os.path.expanduser("~/.cache/weir/SmolLM2-135M-Instruct.Q4_1.gguf")
TRIALS, PROMPT_WORDS, USERS = 24, 900, 8
WINDOW_S, SLICE_S, SLICES = 15, 10, 3


def percentile(values, p):
    v = sorted(values)
    return v[min(len(v) - 1, int(p / 100 * len(v)))]


def pool(store, more=(), **kw):
    return Pool(workers=2, models=["m=" + MODEL], real=True,
                args=["--threads", "1", "--kv-bytes", "256M", "--host-store-bytes", store, "--log-level", "error", *more], **kw)


def words(dice, n):
    return " ".join(dice.choice("the a sea wind ship man old small wide said went saw and of in to for with".split()) for _ in range(n))


# --- takeover -----------------------------------------------------------------------------------

def one_takeover(p, c, k):
    fields = dict(prompt=words(random.Random(k), PROMPT_WORDS), max_tokens=60, ignore_eos=True, temperature=0.0)
    want = c.generate(id="w", **{**fields, "max_tokens": 1})  # the prompt is known to one worker, and to the store if there is one
    time.sleep(0.3)
    c.send({"type": "generate", "id": "r", **fields})
    a, killed, again = Answer(), None, None
    while a.end is None:
        m = c.receive(60)
        if m.get("id") != "r":
            continue
        a.take(m)
        if m["type"] == "token" and killed and not again:
            again = time.monotonic()
        if m["type"] == "token" and not killed and len(a.ids[0]) >= 20:
            busy = [w for w in p.status()["workers"] if w["held"]]
            os.kill(busy[0]["pid"], signal.SIGKILL)
            killed = time.monotonic()
            while c.socket.poll(0) and not again:  # what was under way when it died is not what we wait for
                m = c.receive(1)
                if m.get("id") == "r":
                    a.take(m)
    assert a.end["type"] == "done" and a.ids[0][0] == want.ids[0][0], a.end
    assert a.end["takeovers"] == 1, a.end
    return (again - killed) * 1000, a.ids[0]


def takeover():
    answers = {}
    for store, name in (("512M", "with the host store"), ("0", "without it")):
        with pool(store) as p:
            c, times = p.client(), []
            for k in range(TRIALS):
                p.wait_ready(2)
                ms, ids = one_takeover(p, c, k)
                assert answers.setdefault(k, ids) == ids, "the two pools gave different answers"
                times.append(ms)
        print("| kill -9 to the next token, prompt of %d words, %s (%d kills) | p50 %.0f ms, p99 %.0f ms |" % (
            PROMPT_WORDS, name, TRIALS, percentile(times, 50), percentile(times, 99)), flush=True)


# --- load, in a process of its own --------------------------------------------------------------

def load(endpoint, outstanding, rate, warm_s, window_s):
    """Keep so many requests under way, or (rate > 0) send so many a second whatever comes back.  Prints what the window saw."""
    c, dice = Client(endpoint), random.Random(1)
    n = tokens = done = refused = errors = 0
    sent, latency = {}, []
    began = time.monotonic()
    due = began

    def send():
        nonlocal n
        n += 1
        c.send({"type": "generate", "id": n, "prompt": words(dice, 8), "max_tokens": 48, "ignore_eos": True, "stream": False,
                "temperature": 0.0, "on_behalf_of": "user%d" % (n % USERS)})
        sent[str(n)] = time.monotonic()

    for _ in range(outstanding):
        send()
    while time.monotonic() < began + warm_s + window_s:
        now = time.monotonic()
        while rate > 0 and due <= now:
            send()
            due += 1 / rate
        if not c.socket.poll(1 if rate > 0 else 100):
            continue
        m = c.receive()
        inside = time.monotonic() >= began + warm_s
        if m["type"] not in ("done", "error"):
            continue
        started = sent.pop(m["id"])
        if m["type"] == "done":
            done += inside
            tokens += inside * m["usage"]["completion_tokens"]
        elif m["code"] == "busy":
            assert m["retry_after_ms"] > 0
            refused += inside
            if inside:
                latency.append((time.monotonic() - started) * 1000)
        else:
            errors += 1
        if rate == 0:
            send()
    print(json.dumps({"tokens_s": tokens / window_s, "done": done, "refused": refused, "errors": errors,
                      "refusal_ms": [percentile(latency, 50), percentile(latency, 99)] if latency else None}))  # short: a pipe holds 64 KiB


def run_load(p, outstanding, rate, warm_s, window_s):
    return subprocess.Popen([sys.executable, __file__, "--load", p.endpoint, str(outstanding), str(rate), str(warm_s), str(window_s)],
                            stdout=subprocess.PIPE, text=True)


def result(process):
    out, _ = process.communicate()
    assert process.returncode == 0, "the load failed"
    return json.loads(out)


def settle(p):
    """The load's process has gone: so do its requests."""
    p.wait_empty(60)


# --- kills and overload -------------------------------------------------------------------------

def kills():
    """Calm and shaken slices in turn, so that a neighbour disturbs both."""
    tokens, n, slot = {True: 0, False: 0}, 0, 0
    with pool("512M") as p:
        l = run_load(p, 32, 0, 3, 2 * SLICES * SLICE_S + 5)
        time.sleep(5)
        for shaken in [False, True] * SLICES:
            before, until = p.status()["totals"]["tokens"], time.monotonic() + SLICE_S
            while time.monotonic() < until:
                w = [w for w in p.status()["workers"] if w["slot"] == slot]
                if shaken and w[0].get("pid"):
                    os.kill(w[0]["pid"], signal.SIGKILL)
                    n, slot = n + 1, 1 - slot
                time.sleep(min(5, max(0, until - time.monotonic())))
            tokens[shaken] += p.status()["totals"]["tokens"] - before
        errors = result(l)["errors"]
        settle(p)
    assert errors == 0, "requests failed"
    print("| tokens/s of 32 requests under way: undisturbed, one of two workers killed every 5 s (%d kills, 0 errors) | %.0f, %.0f: %.0f %% kept |" % (
        n, tokens[False] / SLICES / SLICE_S, tokens[True] / SLICES / SLICE_S, 100 * tokens[True] / tokens[False]), flush=True)


def cpu_s(p):
    """Processor time of a pool: the broker, its workers, and those that are dead."""
    ticks = 0
    for pid in [p.process.pid] + [w["pid"] for w in p.status()["workers"] if w.get("pid")]:
        with open("/proc/%d/stat" % pid) as f:
            ticks += sum(int(x) for x in f.read().rsplit(")", 1)[1].split()[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def refusals_within_1_ms(port):
    """Of all that were answered with `busy`, from the arrival of the message to its answer, as the broker itself saw it; and how many."""
    page = urllib.request.urlopen("http://127.0.0.1:%d/metrics" % port, timeout=10).read().decode()
    n = {le: int(count) for le, count in re.findall(r'weir_refusal_seconds_bucket\{le="([^"]+)"\} (\d+)', page)}
    return n["0.001"] / max(1, n["+Inf"]), n["+Inf"]


def rss(pid):
    with open("/proc/%d/status" % pid) as f:
        return int(f.read().split("RssAnon:")[1].split()[0])


def overload():
    port = free_port()
    with pool("512M", more=["--metrics-port", str(port)]) as p:
        before, cpu = p.status()["totals"]["tokens"], cpu_s(p)
        full = result(run_load(p, 64, 0, 3, WINDOW_S))
        full_cpu = (p.status()["totals"]["tokens"] - before) / (cpu_s(p) - cpu)
        settle(p)
        rate = 10 * full["done"] / WINDOW_S
        l, memory, held = run_load(p, 4096, rate, 8, 2 * WINDOW_S), [], 0
        time.sleep(8)
        before, cpu = p.status()["totals"]["tokens"], cpu_s(p)
        while l.poll() is None:
            memory.append(rss(p.process.pid))
            held = max(held, p.status()["pool"]["requests"])
            time.sleep(0.5)
        over_cpu = (p.status()["totals"]["tokens"] - before) / (cpu_s(p) - cpu)
        over = result(l)
        time.sleep(2.5)  # for the next page of metrics
        within, n_refused = refusals_within_1_ms(port)
        settle(p)
    memory = memory[:-2]
    assert over["refused"] > 0 and over["errors"] == 0, over
    print("| tokens/s of finished requests: pool just full, and at ten times that load (%.0f requests/s, %d refused) | %.0f, %.0f: %.0f %% |" % (
        rate, over["refused"], full["tokens_s"], over["tokens_s"], 100 * over["tokens_s"] / full["tokens_s"]))
    print("| the same for a second of processor time of broker and workers | %.0f, %.0f: %.0f %% |" % (full_cpu, over_cpu, 100 * over_cpu / full_cpu))
    print("| refusal at that load, from sending to the answer read | p50 %.2f ms, p99 %.2f ms |" % (
        over["refusal_ms"][0], over["refusal_ms"][1]))
    print("| of %d refusals, those the broker had answered within 1 ms of the message's arrival | %.2f %% |" % (n_refused, 100 * within))
    print("| memory of the broker meanwhile (%d requests held at most) | %.1f MiB at first, %.1f MiB at last |" % (
        held, memory[0] / 1024, memory[-1] / 1024), flush=True)


if __name__ == "__main__":
    broker_pool.SELF_CHECK.clear()
    if sys.argv[1:2] == ["--load"]:
        load(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), float(sys.argv[5]), float(sys.argv[6]))
    else:
        for what in sys.argv[1:] or ["takeover", "kills", "overload"]:
            {"takeover": takeover, "kills": kills, "overload": overload}[what]()
