"""How long a test waits for what must come: seconds times PATIENCE.

A wait ends as soon as its condition holds, so patience costs nothing on a machine that keeps up; it only decides when a slow
one is taken for a broken one.  WEIR_PATIENCE sets it."""
import os
import time

SANITIZED = bool(os.environ.get("WEIR_SANITIZED"))
PATIENCE = float(os.environ.get("WEIR_PATIENCE") or (12 if SANITIZED else 4))


class Failure(AssertionError):
    """What a test wants does not hold."""


def wait_until(condition, seconds=10, what="what was waited for"):
    """What condition() gives, once it is true."""
    end = time.monotonic() + seconds * PATIENCE
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise Failure("not within %g s: %s" % (seconds, what))
