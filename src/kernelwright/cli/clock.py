"""How long this process has been at its command: a budget counts from there. Imports nothing that takes time."""

from __future__ import annotations

import time

_begun_s: list[float] = []


def begin() -> None:
    """The process begins to carry out one command."""
    _begun_s[:] = [time.monotonic()]


def since_start_s() -> float:
    """Seconds since then; 0 where the process does more than one command."""
    return time.monotonic() - _begun_s[0] if _begun_s else 0.0
