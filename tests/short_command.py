"""The command, as tests start it in a process of its own."""

from __future__ import annotations

import sys

_PROGRAM = """import functools, runpy, types
from kernelwright.evaluate.device_queue import final_comparison, queue as lane
lane.CEILING_BYTES = 16 << 20
lane.suspicious = functools.partial(lane.suspicious, overhead_ms=1e9)
final_comparison.Confirmation = lambda *_, **__: types.SimpleNamespace(refuse=lambda _: None)
runpy.run_module("kernelwright", run_name="__main__", alter_sys=True)
"""

COMMAND = (sys.executable, "-c", _PROGRAM)
"""`python -m kernelwright`, which copies less to see how fast the device copies: else that is half of a small run.

And no busy machine fails it: a launch that waited for a core is none that hides its work, and every gain is believed.
Both have tests of their own; see `busy`."""
