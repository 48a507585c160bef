"""make_yarn_vectors.py - frequencies and angles of rotary positions scaled by YaRN, computed from the paper's formulas in Python.

Writes data/yarn.txt, which test_rope_vectors.c compares with kernels/cpu/rope.c.  Per case one line of parameters
(head size, base, factor, original context, beta fast, beta slow, extrapolation factor, attention factor), one of the magnitude
and the frequencies, then one line a position: position, cosines, sines.

The paper (Peng, Quesnelle, Fan, Shippole: "YaRN: Efficient Context Window Extension of Large Language Models", 2023):
r(i) = L / wavelength(i) is how often pair i turns over the original context L.  Above beta fast the frequency stays, below beta slow
it is divided by s, between them a ramp mixes both.  As in common use the ramp runs over whole pairs, floor and ceiling of
where r is beta fast and beta slow; cosines and sines are multiplied by 0.1 ln s + 1.
"""
import math
import os

CASES = [
    (64, 10000.0, 4.0, 4096, 32.0, 1.0, 1.0, 1.0),
    (128, 1000000.0, 4.0, 32768, 32.0, 1.0, 1.0, 1.0),
    (128, 500000.0, 16.0, 8192, 64.0, 2.0, 1.0, 0.8),
    (32, 10000.0, 2.0, 512, 32.0, 1.0, 0.5, 1.0),
    (96, 10000.0, 8.0, 2048, 32.0, 1.0, 0.0, 1.25),
]
POSITIONS = [0, 1, 17, 4095, 40000]


def pair_with_turns(turns, dims, base, context):
    """The (real) number i of the pair with context / wavelength(i) = turns, wavelength(i) = 2 pi base^(2i / dims)."""
    return dims / 2 * math.log(context / (2 * math.pi * turns), base)


def main():
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "yarn.txt"), "w", encoding="ascii") as out:
        for dims, base, factor, context, fast, slow, ext, attn in CASES:
            first = max(math.floor(pair_with_turns(fast, dims, base, context)), 0)
            last = min(math.ceil(pair_with_turns(slow, dims, base, context)), dims - 1)
            frequencies = []
            for i in range(dims // 2):
                own = 1 / base ** (2 * i / dims)
                ramp = min(max((i - first) / max(last - first, 0.001), 0), 1)
                keep = (1 - ramp) * ext
                frequencies.append(own * keep + own / factor * (1 - keep))
            magnitude = attn * (0.1 * math.log(factor) + 1) if ext != 0 else attn
            print("case", dims, base, factor, context, fast, slow, ext, attn, file=out)
            print("magnitude", repr(magnitude), *map(repr, frequencies), file=out)
            for p in POSITIONS:
                print("position", p, *(f"{math.cos(p * f) * magnitude:.9g}" for f in frequencies),
                      *(f"{math.sin(p * f) * magnitude:.9g}" for f in frequencies), file=out)


main()
