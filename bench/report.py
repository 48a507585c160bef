"""report.py RAW JSON MODEL THREADS - medians and ratios from the lines that compare.sh collected: `who test tokens_per_second`."""
import json
import os
import statistics
import sys

raw, out, model, threads = sys.argv[1:5]
values = {}
for line in open(raw, encoding="utf-8"):
    who, test, number = line.split()[:3]
    values.setdefault((who, test), []).append(float(number))
median = {key: statistics.median(v) for key, v in values.items()}

file_bytes = os.path.getsize(model)
result = {"model": os.path.basename(model), "threads": int(threads), "ours": {}, "peer": {}, "limit": {}, "ratios": {}}
for (who, test), number in sorted(median.items()):
    result[who][test] = number
for test in ("prefill512", "decode1", "decode16"):
    if test in result["ours"] and test in result["peer"]:
        result["ratios"][test] = round(result["ours"][test] / result["peer"][test], 2)
ours = result["ours"]
result["prefill4096_over_512"] = round(ours["prefill4096"] / ours["prefill512"], 3)
result["decode4000_over_100"] = round(ours["decode4000"] / ours["decode100"], 3)
result["q8_decode4000_over_100"] = round(ours["q8-decode4000"] / ours["q8-decode100"], 3)
if "read_gb_s" in result["limit"]:
    result["decode1_of_read_bandwidth"] = round(ours["decode1"] * file_bytes / 1e9 / result["limit"]["read_gb_s"], 3)

print(f"{result['model']}, {threads} threads, tokens/s, medians of {len(values[('ours', 'decode1')])} rounds")
print(f"{'':14}{'ours':>10}{'llama.cpp':>12}{'ratio':>8}")
for test in ("prefill512", "decode1", "decode16"):
    print(f"{test:14}{ours[test]:10.0f}{result['peer'].get(test, 0):12.0f}{result['ratios'].get(test, 0):8.2f}")
print(f"prompt of 4096 at {result['prefill4096_over_512']:.2f} of the speed of 512; decode at 4000 of context at "
      f"{result['decode4000_over_100']:.2f} (f16) and {result['q8_decode4000_over_100']:.2f} (q8) of that at 100")
if "decode1_of_read_bandwidth" in result:
    print(f"decode1 reads {100 * result['decode1_of_read_bandwidth']:.0f} % of the {result['limit']['read_gb_s']:.0f} GB/s that plain reading gets")
with open(out, "w", encoding="utf-8") as f:
    json.dump(result, f, indent=1)
    f.write("\n")
