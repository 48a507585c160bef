#!/usr/bin/python3
"""A broker without workers, for tests of the gateway: answers at once, or as the prompt asks.

usage: fake_broker.py ENDPOINT [--delay-ms N] [--log FILE] [--speed TOKENS_A_SECOND]

  any text          echoes "echo: TEXT", one token a word
  !fail CODE        an error with this code, always
  !once CODE        an error with this code the first time this very prompt comes, then an answer
  !full             no session can be had: an error for a request with one
  !hold             accepted, then progress until it is cancelled
  !turns            answered the first time, held the second, answered the third, ...
  !slow MS          the answer comes so much later
  !length           the answer ends by its limit

The log has one JSON object for each generate: prompt, user, class, model, max_tokens, messages, all other parameters.  LOG.cancelled has the
ids of the requests that were cancelled, LOG.sessions those sessions that were ended, with their users.
"""
import argparse
import heapq
import json
import os
import sys
import time

import msgpack
import zmq

SIGNATURE = b"WEIR\x01"


class Broker:
    def __init__(self, args):
        self.args = args
        self.socket = zmq.Context().socket(zmq.ROUTER)
        self.socket.linger = 0
        self.socket.sndhwm = 0   # a ROUTER drops in silence what is over it
        self.socket.bind(args.endpoint)
        self.log = open(args.log, "a", buffering=1) if args.log else None
        self.due = []       # (time, order, peer, id, text)
        self.order = 0
        self.held = {}      # (peer, id) -> True
        self.pending = set()
        self.cancelled = set()
        self.seen = set()
        self.n_requests = 0
        self.traces = []

    def send(self, peer, message):
        self.socket.send_multipart([peer, SIGNATURE, msgpack.packb(message)])

    def error(self, peer, rid, code):
        self.send(peer, {"type": "error", "id": rid, "code": code, "message": "the test wants it: " + code})

    def generate(self, peer, m):
        prompt = m.get("prompt")
        if prompt is None and "messages" in m:
            prompt = m["messages"][-1]["content"]
        self.n_requests += 1
        if self.log:
            self.log.write(json.dumps({"prompt": prompt, "user": m.get("on_behalf_of"), "class": m.get("class"),
                                       "model": m.get("model"), "max_tokens": m.get("max_tokens"),
                                       "messages": m.get("messages"),
                                       "parameters": {k: v for k, v in m.items() if k not in ("prompt", "messages")}}) + "\n")
        words = (prompt or "").split(" ")
        rid = m["id"]
        if m.get("model") not in (None, "", "fake"):
            return self.error(peer, rid, "model_not_found")
        if words[0] == "!fail":
            return self.error(peer, rid, words[1])
        if words[0] == "!full" and "session" in m:
            return self.send(peer, {"type": "error", "id": rid, "code": "busy", "param": "session", "message": "you have too many sessions"})
        if words[0] == "!once" and prompt not in self.seen:
            self.seen.add(prompt)
            return self.error(peer, rid, words[1])
        self.send(peer, {"type": "accepted", "id": rid, "request": "r%d" % self.n_requests, "seed": m.get("seed", 7)})
        self.traces.append({"request": "r%d" % self.n_requests, "user": m.get("on_behalf_of"), "model": "fake", "state": "done", "class": m.get("class"),
                            "kind": "generate", "total_ms": 3.0, "phases": [{"name": "queue", "start_ms": 0.0, "ms": 1.0}, {"name": "steps", "start_ms": 1.0, "ms": 2.0}]})
        if words[0] == "!turns":
            self.seen ^= {prompt}
        if words[0] == "!hold" or (words[0] == "!turns" and prompt not in self.seen):
            self.held[(peer, rid)] = True
            return None
        delay = float(words[1]) if words[0] == "!slow" else self.args.delay_ms
        self.order += 1
        self.pending.add((peer, rid))
        heapq.heappush(self.due, (time.monotonic() + delay / 1000, self.order, peer, rid, prompt, m.get("stream", True)))
        return None

    def answer(self, peer, rid, prompt, stream):
        self.pending.discard((peer, rid))
        words = ["echo:"] + [" " + w for w in prompt.split(" ")]
        if stream:
            for i, w in enumerate(words):
                self.send(peer, {"type": "token", "id": rid, "choice": 0, "index": i, "ids": [100 + i], "text": w})
        else:
            self.send(peer, {"type": "token", "id": rid, "choice": 0, "index": 0,
                             "ids": [100 + i for i in range(len(words))], "text": "".join(words)})
        reason = "length" if prompt.startswith("!length") else "stop"
        self.send(peer, {"type": "done", "id": rid, "choices": [{"finish_reason": reason, "n_tokens": len(words)}],
                         "usage": {"prompt_tokens": len(words), "cached_tokens": 1, "completion_tokens": len(words)},
                         "timings": {"total_ms": 1.0}, "worker": 0, "takeovers": 0, "model": "fake",
                         "system_fingerprint": "fake-1"})

    def handle(self, peer, m):
        kind = m["type"]
        if kind == "hello":
            self.send(peer, {"type": "hello", "version": "fake", "build": "fake", "boot": "boot-%d" % os.getpid(),
                             "limits": {}, "features": [], "user": "test"})
        elif kind == "generate":
            self.generate(peer, m)
        elif kind == "cancel":
            key = (peer, m["id"])
            if self.args.log:
                with open(self.args.log + ".cancelled", "a") as f:
                    f.write(m["id"] + "\n")
            if self.held.pop(key, None) or key in self.pending:
                self.cancelled.add(key)
                self.pending.discard(key)
                self.error(peer, m["id"], "cancelled")
        elif kind == "session_end":
            if self.args.log:
                with open(self.args.log + ".sessions", "a") as f:
                    f.write("%s %s\n" % (m["session"], m.get("on_behalf_of")))
        elif kind == "models":
            self.send(peer, {"type": "models", "id": m["id"], "models": [{"name": "fake", "context_tokens": 8192}]})
        elif kind == "status":
            self.send(peer, {"type": "status", "id": m["id"], "n_requests": self.n_requests, "boot": "boot-%d" % os.getpid(),
                             "pool": {"running": len(self.pending)},
                             "workers": [{"slot": 0, "state": "ready", "model": "fake", "device": "none", "system_fingerprint": "fake-1", "steps": 100, "step_ms_mean": 10.0,
                                          "tokens_generated": self.args.speed, "tokens_prefilled": 0}] if self.args.speed else [],
                             "users": [{"name": u, "running": 0} for u in ("alice", "bob", "carol")]})
        elif kind == "trace":
            told = [r for r in self.traces if r["user"] == m.get("on_behalf_of") and m.get("request", r["request"]) == r["request"]]
            if "request" in m and not told:
                return self.error(peer, m["id"], "not_found")
            self.send(peer, {"type": "trace", "id": m["id"], "requests": told})
        elif kind == "tokenize":
            self.send(peer, {"type": "ids", "id": m["id"], "ids": [ord(c) for c in m["text"]]})

    def run(self):
        poller = zmq.Poller()
        poller.register(self.socket, zmq.POLLIN)
        progress_at = time.monotonic()
        while True:
            now = time.monotonic()
            wait = 50 if not self.due else max(0, min(50, (self.due[0][0] - now) * 1000))
            for _ in poller.poll(wait):
                while True:
                    try:
                        frames = self.socket.recv_multipart(zmq.NOBLOCK)
                    except zmq.Again:
                        break
                    self.handle(frames[0], msgpack.unpackb(frames[-1]))
            now = time.monotonic()
            while self.due and self.due[0][0] <= now:
                _, _, peer, rid, prompt, stream = heapq.heappop(self.due)
                if (peer, rid) in self.cancelled:
                    self.cancelled.discard((peer, rid))
                else:
                    self.answer(peer, rid, prompt, stream)
            if now - progress_at > 0.1:
                progress_at = now
                for peer, rid in list(self.held) + list(self.pending):
                    self.send(peer, {"type": "progress", "id": rid, "state": "running", "ahead": 0})


def main():
    p = argparse.ArgumentParser()
    p.add_argument("endpoint")
    p.add_argument("--delay-ms", type=float, default=0)
    p.add_argument("--log")
    p.add_argument("--speed", type=int, default=0)
    args = p.parse_args()
    broker = Broker(args)
    print("ready", flush=True)
    try:
        broker.run()
    except KeyboardInterrupt:
        sys.exit(0)


if __name__ == "__main__":
    main()
