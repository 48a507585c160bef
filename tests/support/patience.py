"""How long a test waits for what must come: seconds times PATIENCE.

A wait ends as soon as its condition holds, so patience costs nothing on a machine that keeps up; it only decides when a slow
one is taken for a broken one.  WEIR_PATIENCE sets it."""
import os

SANITIZED = bool(os.environ.get("WEIR_SANITIZED"))
PATIENCE = float(os.environ.get("WEIR_PATIENCE") or (12 if SANITIZED else 4))
