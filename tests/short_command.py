"""The command, as tests start it in a process of its own."""

from __future__ import annotations

import sys

_PROGRAM = """import runpy
from kernelwright.evaluate.device_queue import queue as lane
lane.CEILING_BYTES = 16 << 20
runpy.run_module("kernelwright", run_name="__main__", alter_sys=True)
"""

COMMAND = (sys.executable, "-c", _PROGRAM)
"""`python -m kernelwright`, which copies less to see how fast the device copies: else that is half of a small run."""
