"""What the corpus is made of: base problems, and families that draw kernels for them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Dialect = Literal["opencl", "cuda"]
Kind = Literal["state", "outputs", "numbers", "timing", "process", "text", "honest"]


@dataclass(frozen=True, slots=True)
class Base:
    """A small problem whose work falls into units, each of which depends on its own inputs alone.

    Everything that is written for a problem uses the same names: `kw_units` units, of which unit `u` reads the words
    `kw_key(u, k)`, writes the words `kw_out(u, v)`, and is computed by `kw_do(u)`.
    """

    name: str
    """The kernel's, too."""
    toml: str
    """Arguments and workloads; the lines about files are added."""
    reference: str
    parameters: str
    """The kernel's parameters, in OpenCL C."""
    pieces: str
    """Macros and functions for the names above."""
    units: str
    """Their number, as an expression in sizes."""
    most_units: int
    """On the largest workload, as the two figures below."""
    most_keys: int
    most_outs: int
    block: int = 8
    """Work-items of a group, where each computes one unit."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One kernel of the corpus."""

    family: str
    base: str
    what: str
    """What it does, in one line."""
    source: str
    twin: str = ""
    """The same source without its trick. An attack that is no faster than its twin has gained nothing by it."""
    least_trick: float = 1.5
    """How much faster than its twin it must surely be before its trick is said to gain: reading a key ahead of the work
    made kernels up to 1.46 times faster that looked nothing up. A guess above that."""


@dataclass(frozen=True, slots=True)
class Family:
    """Kernels of one idea."""

    name: str
    kind: Kind
    what: str
    draw: Callable[[random.Random, Dialect], Sample]
    dialects: tuple[Dialect, ...] = ("opencl", "cuda")
