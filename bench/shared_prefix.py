#!/usr/bin/python3
"""shared_prefix.py BUILD_DIR - questions that begin alike, through the whole stack, beside llama-server on the same file.

32 questions over 16 connections, each of a beginning of about 440 tokens and a short end, 32 tokens out, greedy.  Cold: the server has
just started.  Warm: the same questions again.  Ours is one worker behind a broker, asked through libweir (bench/load); the peer is
llama-server with 16 slots, asked over HTTP.  Both in turn, WEIR_BENCH_ROUNDS times (3); medians and their ratio.

WEIR_PEER is the folder with llama-server, WEIR_BENCH_MODEL the model.  Writes BUILD_DIR/bench/shared_prefix.json."""
import os
import statistics
import sys

import stack

SHAPE = {"requests": 32, "connections": 16, "words": 410, "tokens": 32}


def main():
    build = sys.argv[1]
    rounds = int(os.environ.get("WEIR_BENCH_ROUNDS", "3"))
    runs = {"ours cold": [], "ours warm": [], "llama-server cold": [], "llama-server warm": []}
    for _ in range(rounds):
        with stack.pool() as pool:
            runs["ours cold"].append(stack.load(build, pool.endpoint, **SHAPE))
            runs["ours warm"].append(stack.load(build, pool.endpoint, **SHAPE))
        if os.path.exists(os.path.join(stack.PEER, "llama-server")):
            with stack.LlamaServer(SHAPE["connections"], 16384) as server:
                runs["llama-server cold"].append(server.load(**SHAPE))
                runs["llama-server warm"].append(server.load(**SHAPE))
    median = {name: statistics.median(r["seconds"] for r in list_) for name, list_ in runs.items() if list_}
    ours = runs["ours cold"][0]
    print("%s, %d questions over %d connections, %d tokens each of which the first questions share about %d, %d out, medians of %d" % (
        os.path.basename(stack.MODEL), SHAPE["requests"], SHAPE["connections"], ours["last_prompt_tokens"], SHAPE["words"], SHAPE["tokens"], rounds))
    print("%-20s%10s%12s%16s%16s" % ("", "seconds", "tokens/s", "first p50 ms", "first p99 ms"))
    for name, list_ in runs.items():
        if list_:
            print("%-20s%10.2f%12.0f%16.0f%16.0f" % ((name, median[name]) + tuple(
                statistics.median(r[k] for r in list_) for k in ("tokens_per_s", "first_token_ms_p50", "first_token_ms_p99"))))
    result = {"model": os.path.basename(stack.MODEL), "shape": SHAPE, "seconds": median, "runs": runs}
    if "llama-server cold" in median:
        result["cold_ratio"] = round(median["llama-server cold"] / median["ours cold"], 1)
        result["warm_ratio"] = round(median["llama-server warm"] / median["ours warm"], 1)
        print("llama-server takes %.1f times as long cold, %.1f times warm" % (result["cold_ratio"], result["warm_ratio"]))
    else:
        print("no llama-server in %s (WEIR_PEER): only ours was measured" % stack.PEER)
    stack.write(build, "shared_prefix", result)


if __name__ == "__main__":
    main()
