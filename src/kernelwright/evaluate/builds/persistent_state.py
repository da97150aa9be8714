"""What a program holds beside its kernels, and whether a candidate may: memory of its own, inline assembly.

A kernel that keeps results could look them up when it is launched on the same inputs again, as it is when it is timed.
So a candidate may keep no more than the baseline does, by what the built program says and not by its source. Assembly
can get memory from elsewhere, which nothing here sees, so a problem must allow it, and every claim repeats that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernelwright.backend.base import Artifact, StateVariable
from kernelwright.evaluate.words import ASSEMBLY_ALLOWED
from kernelwright.problem.outcome import Failed

KEEPS_STATE = "keeps-state"
ASSEMBLY = "assembly"
ALLOW_ASSEMBLY = "say `assembly = true` at the top of the problem file if it is yours and you trust it"
ASSEMBLY_NOTE = (
    f"{ASSEMBLY_ALLOWED} (assembly = true): what it does is not seen, so read the winner before you believe its speedup"
)
NAMES_SHOWN = 4
UNKNOWN = (
    "what its program keeps between launches cannot be told with this driver, though it can of the baseline's; leave "
    "out `-cl-std` from CL2.0 on, without which there are no variables that could keep something"
)


@dataclass(frozen=True, slots=True)
class Kept:
    """What the programs of one candidate hold; of several workloads the one that keeps most counts."""

    variables: tuple[StateVariable, ...]
    is_known: bool
    assembly: str = ""
    """What is said of its inline assembly; empty: there is none."""
    allows_assembly: bool = False
    """Of a baseline: whether the problem allows candidates some."""

    @property
    def byte_count(self) -> float:
        """All together; infinite for what has no limit."""
        return _bytes(self.variables)

    def failure(self, allowed: Kept) -> Failed | None:
        """Why it cannot be compared with a baseline that keeps `allowed`; None when it can."""
        if self.assembly and not allowed.allows_assembly:
            message = f"{self.assembly}: it could keep results where nothing sees them; {ALLOW_ASSEMBLY}"
            return Failed("build", ASSEMBLY, message)
        if not self.is_known and allowed.is_known:
            return Failed("build", KEEPS_STATE, UNKNOWN)
        if self.byte_count <= allowed.byte_count:
            return None
        more = f", and the baseline {_amount(allowed.byte_count)}" if allowed.byte_count else ""
        message = (
            f"it keeps {_amount(self.byte_count)} between launches{more}: {self.words}. Results of an earlier launch "
            "on the same inputs could be timed as if they were computed; use an argument with role `scratch`, or local "
            "memory, and `constant` (OpenCL) or `__constant__` (CUDA) for tables"
        )
        return Failed("build", KEEPS_STATE, message)

    @property
    def words(self) -> str:
        """The variables, largest first."""
        ordered = sorted(self.variables, key=lambda each: -_bytes((each,)))
        shown = ", ".join(
            each.name if each.byte_count is None else f"{each.name} ({each.byte_count:,} bytes)"
            for each in ordered[:NAMES_SHOWN]
        )
        return f"{shown} and {len(ordered) - NAMES_SHOWN} more" if len(ordered) > NAMES_SHOWN else shown

    def note(self, *, is_set_back: bool) -> str:
        """What to say beside the results of a baseline that keeps this; empty: nothing.

        `is_set_back`: whether variables have their first values again before each launch.
        """
        if not self.is_known:
            return (
                "whether kernels keep anything between launches in variables of their own cannot be told with this "
                "driver: read the winner before you believe its speedup"
            )
        if not self.variables or (is_set_back and self.byte_count < float("inf")):
            return ""
        return (
            f"the baseline keeps {_amount(self.byte_count)} between launches in variables of its own: {self.words}; "
            "candidates may keep as much, and nothing sets it back: a speedup may rest on it"
        )


NOTHING = Kept((), is_known=True)


def kept_by(artifacts: Sequence[Artifact]) -> Kept:
    """What the programs of a candidate hold."""
    known = [each.state for each in artifacts if each.state is not None]
    assembly = next((each.assembly for each in artifacts if each.assembly), "")
    return Kept(max(known, key=_bytes, default=()), len(known) == len(artifacts), assembly)


def _bytes(variables: Sequence[StateVariable]) -> float:
    return float(sum(float("inf") if each.byte_count is None else each.byte_count for each in variables))


def _amount(byte_count: float) -> str:
    if byte_count == float("inf"):
        return "as much memory as it asks for"
    return f"{int(byte_count):,} bytes" if byte_count else "nothing"
