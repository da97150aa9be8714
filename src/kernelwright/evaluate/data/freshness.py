"""Inputs that no launch has seen before: what is drawn anew for each timed launch, and from which secret.

The device draws (`DeviceSession.redraw`), and the referee draws the same again to judge what a launch wrote. The secret
of a launch is made after the candidate was built, so whatever a kernel remembers is of no use to it.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from kernelwright.backend.redraw import Redraw, draw_of, redrawn
from kernelwright.evaluate.data.array_threads import ALONE, Crew
from kernelwright.evaluate.data.bounds import key_order
from kernelwright.evaluate.data.datasets import Array, float_bounds, integer_bounds
from kernelwright.problem.dtypes import DTYPES, Dtype, mantissa_bits
from kernelwright.problem.model import Argument, Problem

SAME_INPUTS = "every timed launch sees the same values of "
"""How a note begins that names inputs which are not made anew."""

PIECE = 1 << 18
"""Elements drawn at a time on a host. Threads wait for the interpreter's lock between small pieces: with 2**15 eight
threads took 8.0 ns for a float32, with 2**18 they take 2.4 (16 cores of a Xeon; one thread takes 11)."""


def new_secret() -> int:
    """A secret for the launches of one job."""
    return secrets.randbits(64)


def launch_secret(secret: int, number: int) -> int:
    """That of the launch with this number."""
    return int.from_bytes(hashlib.blake2s(f"{secret:x} launch {number}".encode(), digest_size=8).digest(), "little")


def redraw_of(argument: Argument) -> Redraw | None:
    """How the argument is made anew; None: it is the same in every launch."""
    if argument.role not in ("input", "inout") or argument.fresh == "keep":
        return None
    dtype = DTYPES[argument.dtype]
    if argument.fresh == "permute":
        return Redraw("permute", dtype.item_bytes)
    if dtype.kind != "float":
        low, high = integer_bounds(argument.distribution, dtype)
        bits = 8 * dtype.item_bytes
        return Redraw("integers", dtype.item_bytes, low=low % (1 << bits), span=(high - low + 1) % (1 << 64))
    if argument.distribution.kind == "integers":
        return Redraw("gather", dtype.item_bytes)
    return _float_redraw(argument, dtype)


def _float_redraw(argument: Argument, dtype: Dtype) -> Redraw:
    bits, fraction = 8 * dtype.item_bytes, mantissa_bits(dtype)
    mantissa, sign = (1 << fraction) - 1, 1 << (bits - 1)
    low, high = 0, (1 << bits) - 1
    bounds = float_bounds(argument.distribution)
    if bounds is not None:
        ends = np.array(bounds, np.float64)
        stored = ends.astype(dtype.numpy_dtype)
        low, high = (int(key) for key in key_order(dtype).keys(stored.view(f"u{dtype.item_bytes}")))
        wide = stored.astype(np.float64)
        low, high = low + int(wide[0] < ends[0]), high - int(wide[1] > ends[1])
    return Redraw("float", dtype.item_bytes, mantissa, sign - 1 - mantissa, low, high)


def stays_same(problem: Problem) -> tuple[str, ...]:
    """The inputs that every timed launch sees as the one before it did, each with the reason in brackets."""
    return tuple(f"{each.name} ({_reason(each)})" for each in problem.inputs if redraw_of(each) is None)


def same_inputs_note(problem: Problem) -> str:
    """What a claim leaves open because some inputs are the same in every timed launch; empty: none is."""
    names = stays_same(problem)
    if not names:
        return ""
    rest = "" if len(names) < len(problem.inputs) else ", which are all its inputs"
    return f"{SAME_INPUTS}{', '.join(names)}{rest}: results that a kernel keeps for these would not be noticed"


def _reason(argument: Argument) -> str:
    kind = argument.distribution.kind
    return kind if kind in ("constant", "file") else 'fresh = "keep"'


def fresh_inputs(problem: Problem, base: Mapping[str, Array], secret: int, *, crew: Crew = ALONE) -> dict[str, Array]:
    """What the launch with this secret sees, by input; those that stay as they are, are those of `base`."""
    inputs = dict(base)
    for argument in problem.inputs:
        how = redraw_of(argument)
        if how is not None:
            inputs[argument.name] = _fresh(argument.name, base[argument.name], how, secret, crew)
    return inputs


def _fresh(name: str, base: Array, how: Redraw, secret: int, crew: Crew) -> Array:
    words: npt.NDArray[np.unsignedinteger] = base.reshape(-1).view(f"u{how.item_bytes}")
    draw = draw_of(secret, name, words.size, how)
    fresh = np.empty_like(words)

    def work(span: tuple[int, int]) -> None:
        for start in range(*span, PIECE):
            stop = min(start + PIECE, span[1])
            fresh[start:stop] = redrawn(words, how, draw, start, stop)

    crew.each(work, crew.spans(words.size, least=PIECE))
    fresh.setflags(write=False)
    return np.asarray(fresh.view(base.dtype).reshape(base.shape))
