#!/usr/bin/env python3
"""JSON lines of tests/gpu/run.sh to OUT_DIR/results.json and OUT_DIR/results.txt, the most important first.

usage: report.py OUT_DIR
"""
import json
import os
import sys

ORDER = ["device", "bandwidth", "exact", "fast", "model", "sanitizer", "speed", "attention", "transformers"]


def main():
    out = sys.argv[1]
    rows, notes = [], []
    with open(os.path.join(out, "lines.jsonl"), encoding="utf-8") as f:
        for line in f:
            try:
                rows.append(json.loads(line))
            except ValueError:
                notes.append(line.rstrip())
    rows.sort(key=lambda r: ORDER.index(r["part"]) if r.get("part") in ORDER else len(ORDER))
    with open(os.path.join(out, "results.json"), "w", encoding="utf-8") as f:
        json.dump({"rows": rows, "notes": notes}, f, indent=1)
    checks = [r for r in rows if "ok" in r]
    wrong = [r for r in checks if not r["ok"]]
    text = [f"{len(checks) - len(wrong)} of {len(checks)} checks passed"]
    text += ["WRONG " + json.dumps(r) for r in wrong]
    text += [f"{r['part']:12} {r.get('device') or r.get('what', '')} {r.get('gb_a_second', '')}" for r in rows
             if r["part"] in ("device", "bandwidth")]
    text.append(f"{'shape':10} {'what':8} {'n':>5} {'ms':>10} {'tokens/s':>12} {'of bandwidth':>13} {'Top/s':>8} {'x Transformers':>15}")
    peers = {(r["shape"], r["sequences"]): r["tokens_a_second"] for r in rows if r["part"] == "transformers"}
    for r in rows:
        if r["part"] != "speed" or "shape" not in r or r["what"] == "load":
            continue
        n = r.get("sequences", r.get("tokens"))
        peer = peers.get((r["shape"], n)) if r["what"] == "decode" else None
        text.append(f"{r['shape']:10} {r['what']:8} {n:5} {r.get('ms_a_step', r.get('ms')):10.3f} {r['tokens_a_second']:12.1f} "
                    f"{r.get('of_bandwidth', ''):>13} {r.get('tera_operations_a_second', ''):>8} "
                    f"{round(r['tokens_a_second'] / peer, 2) if peer else '':>15}")
    text += [f"attention  {r['what']:6} {r.get('kv', ''):3} {r.get('past', ''):>5} + {r.get('tokens', ''):>5} {r.get('ms', ''):>9} ms "
             f"{r['tera_operations_a_second']:8.2f} Top/s {r.get('of_peak', ''):>6} of the f16 peak" for r in rows if r["part"] == "attention" and "kv" in r]
    text += notes
    with open(os.path.join(out, "results.txt"), "w", encoding="utf-8") as f:
        f.write("\n".join(text) + "\n")
    print("\n".join(text))
    sys.exit(1 if wrong or not checks else 0)


main()
