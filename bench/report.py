"""report.py RAW JSON MODEL THREADS - medians and ratios from the lines that compare.sh collected.

Lines: `ours|peer|limit test number`, and from kernels_bench `kernel name number unit [limit per cent]`.
A ratio is the median of the ratios of the rounds: what ran in turn met the same neighbours.
"""
import json
import os
import statistics
import sys

TESTS = ("prefill512", "decode1", "decode16")

raw, out, model, threads = sys.argv[1:5]
values, kernels = {}, {}
with open(raw, encoding="utf-8") as f:
    for line in f:
        words = line.split()
        if words[0] == "kernel":
            kernels[words[1]] = {"value": float(words[2]), "unit": words[3]}
            if len(words) > 5:
                kernels[words[1]] |= {"limit": float(words[4]), "percent": float(words[5])}
        else:
            values.setdefault((words[0], words[1]), []).append(float(words[2]))
median = {key: statistics.median(v) for key, v in values.items()}


def ratio(a, b):
    """Median over the rounds of a / b, to three places."""
    return round(statistics.median(x / y for x, y in zip(values[a], values[b])), 3)


file_bytes = os.path.getsize(model)
result = {"model": os.path.basename(model), "threads": int(threads), "ours": {}, "peer": {}, "limit": {}, "ratios": {}}
for (who, test), number in sorted(median.items()):
    result[who][test] = number
ours, peer, limit = result["ours"], result["peer"], result["limit"]
for test in TESTS:
    if test in ours and test in peer:
        result["ratios"][test] = ratio(("ours", test), ("peer", test))
result["prefill4096_over_512"] = ratio(("ours", "prefill4096"), ("ours", "prefill512"))
result["decode4000_over_100"] = ratio(("ours", "decode4000"), ("ours", "decode100"))
result["q8_decode4000_over_100"] = ratio(("ours", "q8-decode4000"), ("ours", "q8-decode100"))
if "read_gb_s" in limit:
    result["decode1_of_read_bandwidth"] = round(ours["decode1"] * file_bytes / 1e9 / limit["read_gb_s"], 3)
if "start_ms" in peer:
    result["start_over_peer"] = ratio(("ours", "start_ms"), ("peer", "start_ms"))
    result["start_memory_beyond_weights_and_kv_mib"] = round(max(values["ours", "start_rss_mib"]) - ours["start_plan_mib"], 1)
result["kernels"] = kernels

print(f"{result['model']}, {threads} threads, tokens/s, medians of {len(values['ours', 'decode1'])} rounds")
print(f"{'':14}{'ours':>10}{'llama.cpp':>12}{'ratio':>8}")
for test in TESTS:
    print(f"{test:14}{ours[test]:10.0f}{peer.get(test, 0):12.0f}{result['ratios'].get(test, 0):8.2f}")
print(f"prompt of 4096 at {result['prefill4096_over_512']:.2f} of the speed of 512; decode at 4000 of context at "
      f"{result['decode4000_over_100']:.2f} (f16) and {result['q8_decode4000_over_100']:.2f} (q8) of that at 100")
if "decode1_of_read_bandwidth" in result:
    print(f"decode1 reads {100 * result['decode1_of_read_bandwidth']:.0f} % of the {limit['read_gb_s']:.0f} GB/s that plain reading gets")
if "start_ms" in peer:
    print(f"start to first token {ours['start_ms']:.0f} ms, llama.cpp {peer['start_ms']:.0f} ms, ratio {result['start_over_peer']:.2f}; resident "
          f"at most {result['start_memory_beyond_weights_and_kv_mib']:.0f} MiB beyond weights and KV ({ours['start_plan_mib']:.0f} MiB)")
if kernels:
    print(f"\n{'kernel, one thread':24}{'':>8}{'':11}{'limit':>8}{'%':>6}")
for name, k in kernels.items():
    print(f"{name:24}{k['value']:8.1f} {k['unit']:10}" + (f"{k['limit']:8.0f}{k['percent']:6.0f}" if "limit" in k else ""))
with open(out, "w", encoding="utf-8") as f:
    json.dump(result, f, indent=1)
    f.write("\n")
