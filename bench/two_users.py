#!/usr/bin/python3
"""two_users.py BUILD_DIR - one user's job beside another's single questions.

Three times WEIR_BENCH_SECONDS (20): questions alone, the job alone, both.  The job is a slice of a long one: its lines, class batch, 64 at a time
behind a common instruction of about 100 tokens, 64 tokens each.  The questions come one at a time, class interactive, each half a second after the answer
to the last, 16 tokens each.  Time to the first token of the questions (median, 99th percentile) with and without the job, and what the job
keeps of its pace.

Writes BUILD_DIR/bench/two_users.json."""
import json
import os
import subprocess
import sys

import stack


def main():
    build, seconds = sys.argv[1], int(os.environ.get("WEIR_BENCH_SECONDS", "20"))
    job = dict(user="ann", batch=1, requests=0, seconds=seconds, connections=64, words=80, tokens=64)
    questions = dict(user="bob", requests=0, seconds=seconds, connections=1, words=40, tokens=16, pause_ms=500)
    with stack.pool() as pool:
        stack.load(build, pool.endpoint, **dict(job, requests=64, seconds=0))  # warm
        stack.load(build, pool.endpoint, **dict(questions, requests=2, seconds=0))
        idle = stack.load(build, pool.endpoint, first=10 ** 6, **questions)
        alone = stack.load(build, pool.endpoint, first=2 * 10 ** 6, **job)
        p = subprocess.Popen(stack.load_command(build, pool.endpoint, first=3 * 10 ** 6, **job), stdout=subprocess.PIPE)
        beside = stack.load(build, pool.endpoint, first=4 * 10 ** 6, **questions)
        both = json.loads(p.communicate()[0])
        if p.returncode != 0:
            sys.exit("the job failed")
    kept = both["tokens_per_s"] / alone["tokens_per_s"]
    print("%s, %d seconds each" % (os.path.basename(stack.MODEL), seconds))
    print("%-28s%12s%12s" % ("", "p50 ms", "p99 ms"))
    for name, r in (("first token, pool idle", idle), ("first token, beside the job", beside)):
        print("%-28s%12.1f%12.1f   (%d questions)" % (name, r["first_token_ms_p50"], r["first_token_ms_p99"], r["answers"]))
    print("one step of the job: %.1f ms (median time between its tokens)" % alone["between_ms_p50"])
    print("the job: %.0f tokens/s alone, %.0f beside the questions: %.0f %%" % (alone["tokens_per_s"], both["tokens_per_s"], 100 * kept))
    stack.write(build, "two_users", {"model": os.path.basename(stack.MODEL), "seconds": seconds, "questions_idle": idle, "questions_beside": beside,
                                     "job_alone": alone, "job_beside": both, "job_keeps": round(kept, 3)})


if __name__ == "__main__":
    main()
