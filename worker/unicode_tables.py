#!/usr/bin/env python3
"""Write unicode_tables.c, the character classes of unicode.h, to standard output.

Takes the package unicodedata2 where it is installed, else Python's own (older) data.  The committed table is of Unicode 16.0,
the version of the tokenizer libraries that models are published with.
"""
try:
    import unicodedata2 as data
except ImportError:
    import unicodedata as data

SPACES = {0x20, 0x85, 0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000, *range(0x09, 0x0E), *range(0x2000, 0x200B)}
NAMES = {"L": "UNICODE_LETTER", "N": "UNICODE_NUMBER", "P": "UNICODE_PUNCTUATION"}


def class_of(c):
    return "UNICODE_SPACE" if c in SPACES else NAMES.get(data.category(chr(c))[0])


ranges = []
for c in range(0x110000):
    k = class_of(c)
    if k is None:
        continue
    if ranges and ranges[-1][1] == c - 1 and ranges[-1][2] == k:
        ranges[-1][1] = c
    else:
        ranges.append([c, c, k])

print(f"""/* unicode_tables.c - written by unicode_tables.py from the Unicode {data.unidata_version} character database.  Do not edit. */
#include "unicode.h"

/* clang-format off */
const uint32_t unicode_n_ranges = {len(ranges)};
const struct unicode_range unicode_ranges[] = {{""")
short = {"UNICODE_LETTER": "L", "UNICODE_NUMBER": "N", "UNICODE_PUNCTUATION": "P", "UNICODE_SPACE": "S"}
for k, s in short.items():
    print(f"#define {s} {k}")
cells = [f"{{0x{a:X},0x{b:X},{short[k]}}}," for a, b, k in ranges]
line = "   "
for cell in cells:
    if len(line) + 1 + len(cell) > 110:
        print(line)
        line = "   "
    line += " " + cell
print(line + "\n};")
