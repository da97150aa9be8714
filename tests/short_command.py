"""The command, as tests start it in a process of its own."""

from __future__ import annotations

import sys

_PROGRAM = """import functools, runpy
from kernelwright.evaluate.device_queue import queue as lane
lane.CEILING_BYTES = 16 << 20
lane.suspicious = functools.partial(lane.suspicious, overhead_ms=1e9)
runpy.run_module("kernelwright", run_name="__main__", alter_sys=True)
"""

COMMAND = (sys.executable, "-c", _PROGRAM)
"""`python -m kernelwright`, which copies less to see how fast the device copies: else that is half of a small run.

And a launch that waited for a core is none that hides its work, however busy the machine is."""
