"""stack.py - what the benches of the whole stack share: a pool, the load program, the peer, and where results go."""
import http.client
import json
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "integration"))
import broker_pool  # noqa: E402

broker_pool.SELF_CHECK = []
CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "weir")
MODEL = os.environ.get("WEIR_BENCH_MODEL") or os.path.join(CACHE, "SmolLM2-135M-Instruct.Q4_1.gguf")
PEER = os.environ.get("WEIR_PEER") or os.path.join(CACHE, "llama.cpp", "build", "bin")
WORDS = "the river bends past a mill where grain is ground and boats wait for the lock to open".split()


THREADS = int(os.environ.get("WEIR_BENCH_THREADS") or len(os.sched_getaffinity(0)))  # of both sides


def pool(workers=1, args=()):
    return broker_pool.Pool(workers=workers, models=["m=" + MODEL], real=True, args=["--threads", str(THREADS)] + list(args))


def load_command(build, endpoint, **options):
    return [os.path.join(build, "bench", "load"), "endpoint=" + endpoint] + ["%s=%s" % o for o in options.items()]


def load(build, endpoint, **options):
    """Run bench/load; its object."""
    return json.loads(subprocess.run(load_command(build, endpoint, **options), stdout=subprocess.PIPE, check=True).stdout)


def prompt(i, words):
    """Question i as bench/load asks it."""
    prefix = " ".join(WORDS[k % len(WORDS)] for k in range(words))
    return "%s\nQuestion %d: what happens %d hours later near mile %d? Answer:" % (prefix, i, i, i * 7 % 97)


def quantile(values, q):
    values = sorted(values)
    return values[int(q * (len(values) - 1) + 0.5)]


class LlamaServer:
    """llama-server with as many slots as there are connections, on a port of its own."""

    def __init__(self, slots, context):
        self.port = socket.create_server(("127.0.0.1", 0)).getsockname()[1]
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [os.path.join(PEER, "llama-server"), "-m", MODEL, "-np", str(slots), "-c", str(context), "-t", str(THREADS), "-fa", "on",
             "--host", "127.0.0.1", "--port", str(self.port)], stdout=self.log, stderr=self.log)
        end = time.monotonic() + 300
        while True:
            try:
                c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
                c.request("GET", "/health")
                if c.getresponse().status == 200:
                    break
            except OSError:
                pass
            if self.process.poll() is not None or time.monotonic() > end:
                self.log.seek(0)
                sys.exit("llama-server did not start:\n" + self.log.read().decode(errors="replace")[-2000:])
            time.sleep(0.1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(60)

    def load(self, requests, connections, words, tokens):
        """The same questions over HTTP; the same figures as bench/load, as far as the peer tells them."""
        jobs, first, counts = queue.Queue(), [], []
        for i in range(requests):
            jobs.put(prompt(i, words))

        def ask():
            while True:
                try:
                    text = jobs.get_nowait()
                except queue.Empty:
                    return
                c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=900)  # the peer ends a connection with its answer
                body = {"prompt": text, "n_predict": tokens, "temperature": 0, "stream": True, "ignore_eos": True, "cache_prompt": True}
                asked = time.monotonic()
                c.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
                seen, n = None, 0
                for line in c.getresponse():
                    if line.startswith(b"data:") and b"[DONE]" not in line:
                        seen = seen or time.monotonic() - asked
                        event = json.loads(line[5:])
                        n = event.get("tokens_predicted", n) or n
                first.append(1e3 * seen)
                counts.append(n)

        threads = [threading.Thread(target=ask) for _ in range(connections)]
        began = time.monotonic()
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        seconds = time.monotonic() - began
        if len(counts) != requests or min(counts) < tokens:
            sys.exit("llama-server answered %d of %d questions, the shortest with %d tokens" % (len(counts), requests, min(counts or [0])))
        return {"seconds": round(seconds, 3), "answers": len(counts), "tokens": sum(counts), "tokens_per_s": round(sum(counts) / seconds, 1),
                "first_token_ms_p50": round(quantile(first, 0.5), 2), "first_token_ms_p99": round(quantile(first, 0.99), 2)}


def write(build, name, result):
    path = os.path.join(build, "bench", name + ".json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump(result, f, indent=1)
        f.write("\n")
    print("written: " + path)
