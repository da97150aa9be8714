"""How CUDA, HIP and OpenCL C spell the same things: for text that tactics write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from kernelwright.source.language import Language

AXES = ("x", "y", "z")
Joined = Literal["sum", "product", "max", "min", "greater", "less"]


@dataclass(frozen=True, slots=True)
class Dialect:
    """One dialect's spellings."""

    language: Language
    helper: str
    """Before a function that kernels call."""
    barrier: str
    """Waits for the block, with its shared memory visible; a statement."""
    shared: str
    """Before an array in shared memory."""
    restrict: str
    space: str
    """Before a pointer to global memory."""
    signed_64: str

    @property
    def is_opencl(self) -> bool:
        """Whether it is OpenCL C."""
        return self.language == "opencl"

    def thread(self, axis: str) -> str:
        """The thread's place in its block."""
        return f"(int)get_local_id({AXES.index(axis)})" if self.is_opencl else f"(int)threadIdx.{axis}"

    def block(self, axis: str) -> str:
        """The block's place in the launch."""
        return f"(int)get_group_id({AXES.index(axis)})" if self.is_opencl else f"(int)blockIdx.{axis}"

    def block_size(self, axis: str) -> str:
        """Threads of a block along an axis."""
        return f"(int)get_local_size({AXES.index(axis)})" if self.is_opencl else f"(int)blockDim.{axis}"

    def vector(self, c_type: str) -> str:
        """The type of a vector of a scalar type, as vector code declares it."""
        return f"kw_{c_type}" if self.is_opencl else f"kw_lanes<{c_type}>"

    def unroll(self, count: str | int) -> str:
        """The line before a loop that asks for `count` steps written out; 1 asks for none."""
        return f"#pragma unroll {count}"


_DIALECTS: Mapping[Language, Dialect] = MappingProxyType({
    "opencl": Dialect("opencl", "static inline", "barrier(CLK_LOCAL_MEM_FENCE);", "__local", "restrict", "__global ",
                      "long"),
    **{each: Dialect(each, "static __device__ __forceinline__", "__syncthreads();", "__shared__", "__restrict__", "",
                     "long long")
       for each in ("cuda", "hip")},
})  # fmt: skip


def dialect(language: Language) -> Dialect:
    """The spellings of a language that tactics write.

    Raises:
        KeyError: Triton, which no tactic writes.
    """
    return _DIALECTS[language]


_OPENCL_JOIN = MappingProxyType({"sum": "({0}) + ({1})", "product": "({0}) * ({1})", "max": "fmax({0}, {1})",
                                 "min": "fmin({0}, {1})"})  # fmt: skip
_CUDA_JOIN = MappingProxyType({"sum": "({0}) + ({1})", "product": "({0}) * ({1})", "max": "fmaxf({0}, {1})",
                               "min": "fminf({0}, {1})"})  # fmt: skip


def joined(language: Language, operation: Joined, left: str, right: str, *, c_type: str) -> str:
    """Two values of a scalar type joined by an operation; `greater` and `less` compare, so that NaN is never taken."""
    if operation in ("greater", "less"):
        return f"(({right}) {'>' if operation == 'greater' else '<'} ({left}) ? ({right}) : ({left}))"
    if c_type in ("float", "double"):
        table = _OPENCL_JOIN if language == "opencl" else _CUDA_JOIN
        text = table[operation]
        if c_type == "double":
            text = text.replace("fmaxf", "fmax").replace("fminf", "fmin")
        return text.format(left, right)
    sign = ">" if operation == "max" else "<"
    if operation in ("max", "min"):
        return f"(({left}) {sign} ({right}) ? ({left}) : ({right}))"
    return _OPENCL_JOIN[operation].format(left, right)
