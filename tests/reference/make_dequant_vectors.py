"""make_dequant_vectors.py - random blocks of every weight type and what the `gguf` Python package makes of them.

Needs numpy and gguf (0.19.0 when the file was made); neither is needed to run the test.  Writes data/dequant.bin, which
test_dequant_vectors.c reads.  A record: u32 type, u32 bytes, u32 numbers, the bytes, the numbers as f32 (little endian).
"""
import os
import struct

import gguf
import gguf.quants
import numpy

TYPES = "F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q4_K Q5_K Q6_K".split()
HALVES = {"Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}


def main():
    rng = numpy.random.default_rng(20261130)
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "dequant.bin"), "wb") as out:
        for name in TYPES:
            kind = gguf.GGMLQuantizationType[name]
            size, each = gguf.GGML_QUANT_SIZES[kind]
            n_blocks = max(4, 256 // size) if size < 256 else 4
            if name == "F16":
                data = rng.standard_normal(n_blocks).astype(numpy.float16).view(numpy.uint8)
            elif name == "BF16":
                data = (rng.standard_normal(n_blocks).astype(numpy.float32).view(numpy.uint32) >> 16).astype(numpy.uint16).view(numpy.uint8)
            else:
                blocks = rng.integers(0, 256, (n_blocks, each), dtype=numpy.uint8)
                for at in HALVES[name]:  # scales are numbers, also 0, a subnormal and large ones
                    scales = (rng.standard_normal(n_blocks) * 0.01).astype(numpy.float16)
                    scales[0], scales[1], scales[2] = 0, 6e-8, 60.0
                    blocks[:, at:at + 2] = scales.view(numpy.uint8).reshape(n_blocks, 2)
                data = blocks.reshape(-1)
            want = gguf.quants.dequantize(data, kind).astype("<f4").reshape(-1)
            out.write(struct.pack("<III", int(kind), data.size, want.size) + data.tobytes() + want.tobytes())


main()
