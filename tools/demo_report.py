#!/usr/bin/env python3
"""Print the demo's answers, or its figures.

usage: demo_report.py answers PROMPTS RESULTS
       demo_report.py figures RESULTS STATUS JOB
"""
import json
import statistics
import sys


def lines(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f if line.strip()]


def answers(prompts, results):
    asked = {p["custom_id"]: p["body"]["messages"][-1]["content"] for p in lines(prompts)}
    got = lines(results)
    for r in got:
        text = r["response"]["body"]["choices"][0]["message"]["content"]
        print(f"{r['custom_id']}  {asked[r['custom_id']]}\n            {' '.join(text.split())}")
    missing = set(asked) - {r["custom_id"] for r in got}
    if missing or len(got) != len(asked):
        sys.exit(f"answers missing: {sorted(missing)}")


def figures(results, status, job):
    got, pool, state = lines(results), json.load(open(status)), json.load(open(job))
    usage = [r["response"]["body"]["usage"] for r in got]
    prompt = sum(u["prompt_tokens"] for u in usage)
    cached = sum(u["prompt_tokens_details"]["cached_tokens"] for u in usage)
    answer = sum(u["completion_tokens"] for u in usage)
    seconds = max(1e-3, state["elapsed_s"])
    first = sorted(r["response"]["body"]["timings"]["first_token_ms"] for r in got)
    print(f"answers             {len(got)} of {state['request_counts']['total']}, {state['request_counts']['failed']} failed")
    print(f"time                {seconds:.1f} s from submit to the last answer")
    print(f"tokens generated    {answer}, {answer / seconds:.0f} a second")
    print(f"prompt tokens       {prompt}, {100 * cached / max(1, prompt):.0f} % taken from the cache")
    print(f"first token         median {statistics.median(first):.0f} ms, slowest {first[-1]:.0f} ms after the broker had it")
    restarts = sum(w["restarts"] for w in pool["workers"])
    print(f"worker restarts     {restarts}; {pool['totals']['takeovers']} answers were begun by the killed worker and ended by another")


{"answers": answers, "figures": figures}[sys.argv[1]](*sys.argv[2:])
