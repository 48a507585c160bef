#!/usr/bin/env python3
"""Write tests/reference/data/splitters.json: texts cut into words by the regular expressions that the tokenizers are published with.

Needs the package regex; run from the root of the tree.  Rows: {splitter, text, words}; the words join to the text.
"""
import json
import random
import regex

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
LLAMA3 = (r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
          r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SPLITTERS = {
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "llama-bpe": [LLAMA3 % "{1,3}"],
    "qwen2": [LLAMA3 % ""],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"],
}


def cut(pieces, pattern):
    """Each match is a piece, and so is what lies between two matches."""
    out = []
    for piece in pieces:
        at = 0
        for m in regex.finditer(pattern, piece):
            if m.start() > at:
                out.append(piece[at:m.start()])
            if m.end() > m.start():
                out.append(m.group())
            at = m.end()
        if at < len(piece):
            out.append(piece[at:])
    return out


texts = [line.rstrip("\n").encode().decode("unicode_escape").encode("utf-16", "surrogatepass").decode("utf-16", "replace")
         for line in open("tests/reference/data/texts.txt", encoding="ascii") if not line.startswith("#!")]
rng = random.Random(7)
alphabet = ["a", "B", "\u00e9", "\u4f60", "1", "2", "3", "\u0661", "\u00bd", " ", " ", "\t", "\n", "\r", "\u00a0", "\u3000", "'", "'s",
            "'LL", "'re", "!", ".", "$", "+", "~", "|", "`", "\U0001f600", "\u0301", "\u2028", "\x00", "x"]
texts += ["".join(rng.choice(alphabet) for _ in range(rng.randrange(1, 24))) for _ in range(200)]
rows = []
for name, patterns in SPLITTERS.items():
    for text in texts:
        pieces = [text]
        for pattern in patterns:
            pieces = cut(pieces, pattern)
        assert "".join(pieces) == text
        rows.append({"splitter": name, "text": text, "words": pieces})
json.dump(rows, open("tests/reference/data/splitters.json", "w"), separators=(",", ":"))
print(len(rows), "rows")
