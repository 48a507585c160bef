#!/usr/bin/python3
"""The client that docs/protocol.md prints runs as it is printed."""
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from broker_pool import Pool

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../docs/protocol.md")


def run(program, *arguments):
    return subprocess.run([sys.executable, program, *arguments], capture_output=True, text=True, timeout=60)


def main():
    with open(PAGE) as page:
        blocks = re.findall(r"```python\n(.*?)```", page.read(), re.S)
    assert len(blocks) == 1, f"{len(blocks)} Python blocks in the page"
    with tempfile.NamedTemporaryFile("w", suffix=".py") as program, Pool() as pool:
        program.write(blocks[0])
        program.flush()
        good = run(program.name, pool.endpoint, "The sea is")
        assert good.returncode == 0, good.stderr
        text, _, end = good.stdout.rpartition("\n-- ")
        assert text, good.stdout
        assert re.match(r"(stop|length) \{'prompt_tokens': \d+, 'cached_tokens': \d+, 'completion_tokens': \d+\}\n$", end), end
        bad = run(program.name, pool.endpoint, "!error")
        assert bad.returncode == 1 and bad.stderr.startswith("context_overflow: "), bad.stderr
        pool.wait_empty()
    print("the printed client works")


if __name__ == "__main__":
    main()
