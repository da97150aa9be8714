"""How a kernel that Triton compiled is launched: what its cubin takes, which only Triton knew."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from kernelwright.backend.base import LaunchFailed, PlanStep, ScalarArgument
from kernelwright.problem.dtypes import DTYPES, encode_scalar

_DTYPES = {
    "i1": "bool", "u1": "bool", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "u8": "uint8",
    "u16": "uint16", "u32": "uint32", "u64": "uint64", "fp16": "float16", "bf16": "bfloat16", "fp32": "float32",
    "f32": "float32", "fp64": "float64",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TritonLaunch:
    """One kernel's."""

    name: str
    """In the cubin."""
    parameters: tuple[tuple[int, str], ...]
    """Which of the launch's arguments it takes, in order, and as what: arguments that are 1 became constants."""
    threads: int
    """Of a block."""
    shared_bytes: int
    """Dynamic shared memory."""
    ctas: int
    """Blocks of a program, which are a cluster."""
    is_cooperative: bool
    scratch: tuple[int, ...]
    """Pointers after the arguments: bytes that each block has there; 0: the pointer is null."""

    @classmethod
    def read(cls, record: dict[str, Any]) -> TritonLaunch:
        """Of what `written` gave."""
        parameters = tuple((int(index), str(kind)) for index, kind in record["parameters"])
        return cls(**{**record, "parameters": parameters, "scratch": tuple(record["scratch"])})

    def written(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def step(self, step: PlanStep) -> PlanStep:
        """The launch as the driver gets it."""
        x, y, z = step.grid
        return replace(
            step,
            grid=(x * self.ctas, y, z),
            block=(self.threads, 1, 1),
            shared_bytes=self.shared_bytes,
            arguments=tuple(step.arguments[index] for index, _ in self.parameters),
            cluster=(self.ctas, 1, 1) if self.ctas > 1 else None,
            is_cooperative=self.is_cooperative,
        )

    def values(self, step: PlanStep, values: Sequence[bytes]) -> list[bytes]:
        """Those of the launch's arguments that the kernel takes, as it takes them.

        Raises:
            LaunchFailed: an argument cannot be given so.
        """
        return [self._value(step.arguments[index], values[index], kind) for index, kind in self.parameters]

    def scratch_bytes(self, step: PlanStep) -> list[int]:
        """Of each pointer after the arguments, for a launch as `step` made it."""
        return [each * math.prod(step.grid) for each in self.scratch]

    def _value(self, argument: object, value: bytes, kind: str) -> bytes:
        if kind.startswith("*"):
            return value
        if kind not in _DTYPES or not isinstance(argument, ScalarArgument):
            name = getattr(argument, "name", "an argument")
            raise LaunchFailed(
                "invalid-arguments", f"Triton takes {name!r} of {self.name!r} as {kind}, which has no such form here"
            )
        number = np.frombuffer(value, DTYPES[argument.dtype].numpy_dtype)[0]
        return encode_scalar(_DTYPES[kind], number.item())
