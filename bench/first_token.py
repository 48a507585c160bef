#!/usr/bin/python3
"""first_token.py BUILD_DIR - how soon the first token of a prompt comes that the cache has in full.

A prompt of about 2,000 tokens is asked over one connection, first cold, then again and again (WEIR_BENCH_ASKS, 40).  All of it but its last token is
then reused, so what is left is one row: the time to the first token, at the client, is held against one decode step at the same length (the
median time between two tokens of the same answers) and the goal of 1.5 steps + 2 ms.

Writes BUILD_DIR/bench/first_token.json."""
import os
import sys

import stack


def main():
    build, asks = sys.argv[1], int(os.environ.get("WEIR_BENCH_ASKS", "40"))
    with stack.pool() as pool:
        shape = dict(connections=1, words=1940, tokens=16, same=1)
        cold = stack.load(build, pool.endpoint, requests=1, **shape)
        warm = stack.load(build, pool.endpoint, requests=asks, **shape)
    n = warm["last_prompt_tokens"]
    if warm["cached_tokens"] != asks * (n - 1):
        sys.exit("%d of %d prompt tokens were cached" % (warm["cached_tokens"], asks * n))
    step = warm["between_ms_p50"]
    goal = 1.5 * step + 2
    print("%s, a prompt of %d tokens, %d of them cached, %d times" % (os.path.basename(stack.MODEL), n, n - 1, asks))
    print("first token: cold %.1f ms, cached median %.2f ms (99 of 100: %.2f); a decode step takes %.2f ms, the goal is %.2f ms: %s" % (
        cold["first_token_ms_p50"], warm["first_token_ms_p50"], warm["first_token_ms_p99"], step, goal,
        "kept" if warm["first_token_ms_p50"] <= goal else "missed"))
    stack.write(build, "first_token", {"model": os.path.basename(stack.MODEL), "prompt_tokens": n, "cold": cold, "warm": warm,
                                       "step_ms": step, "goal_ms": round(goal, 2)})


if __name__ == "__main__":
    main()
