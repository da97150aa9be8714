"""What the analysis says is true: compared with a slow reference that runs kernels thread by thread, with numbers."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from pathlib import Path

import pytest
from concrete import NotRun, Pointer, Thread, Touched, threads
from hypothesis import given
from hypothesis import strategies as st
from plain_kernels import CASES
from random_kernels import kernels

from kernelwright.analysis.analysis import Analysis, analyse, analyse_function
from kernelwright.analysis.facts import Access, Guard
from kernelwright.analysis.polynomial import Polynomial
from kernelwright.analysis.values import division_name
from kernelwright.source.language import Language
from kernelwright.source.syntax import parse
from tiers import examples

EXAMPLES = Path(__file__).parents[2] / "src/kernelwright/examples"
BASELINES = sorted(EXAMPLES.glob("**/baseline.c[lu]"))
COMPARE = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


class Numbers:
    """Evaluates the polynomials of facts."""

    def __init__(self, analysis: Analysis, sizes: Mapping[str, int], event: Touched, access: Access) -> None:
        self.atoms = analysis.facts.atoms
        self.values: dict[str, int] = dict(sizes)
        for axis in "xyz":
            self.values[f"global.{axis}"] = (
                sizes[f"block.{axis}"] * sizes[f"block_size.{axis}"] + sizes[f"thread.{axis}"]
            )
        for index in access.loops:
            loop = analysis.facts.loops[index]
            if loop.span in event.counters:
                self.values[loop.atom] = event.counters[loop.span]

    def of(self, value: Polynomial) -> int | None:
        """A polynomial's value; None where it has something in it that is not followed."""
        total = 0
        for monomial, coefficient in value.terms:
            product = coefficient
            for name in monomial:
                known = self.atom(name)
                if known is None:
                    return None
                product *= known
            total += product
        return total

    def atom(self, name: str) -> int | None:
        if name in self.values:
            return self.values[name]
        atom = self.atoms[name]
        if len(atom.parts) != 2:
            return None
        is_quotient, is_remainder = (name == division_name(sign, *atom.parts) for sign in "/%")
        left, right = map(self.of, atom.parts)
        if left is None or not right or not (is_quotient or is_remainder):
            return None
        quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
        return quotient if is_quotient else left - quotient * right


def check(analysis: Analysis, sizes: Mapping[str, int]) -> int:
    """Every access that happens is a fact, at the element that the fact says, under its conditions; how many do."""
    events = Thread(analysis.tree, analysis.function, sizes).run()
    known = 0
    for event in events:
        facts = [
            access for access in analysis.facts.accesses
            if access.span == event.span and access.array.partition("#")[0] == event.array
            and (access.kind != "read") == event.is_write
        ]  # fmt: skip
        assert facts, f"{event} is no fact"
        known += any(_agrees(analysis, sizes, event, access) for access in facts)
        if not any(_agrees(analysis, sizes, event, access) is not False for access in facts):
            said = [(str(access.element), [str(c) for c in _comparisons(analysis, access)]) for access in facts]
            raise AssertionError(f"{event} happened, but the facts say {said}")
    return known


def _comparisons(analysis: Analysis, access: Access) -> list[object]:
    return [c for index in access.guards for c in analysis.facts.guards[index].comparisons]


def _agrees(analysis: Analysis, sizes: Mapping[str, int], event: Touched, access: Access) -> bool | None:
    """Whether a fact is true of an event; None where it says nothing."""
    numbers = Numbers(analysis, sizes, event, access)
    for index in access.guards:
        if not _holds(analysis.facts.guards[index], numbers):
            return False
    if access.element is None or access.kind == "unknown":
        return None
    element = numbers.of(access.element)
    return None if element is None else element == event.offset


def _holds(guard: Guard, numbers: Numbers) -> bool:
    for comparison in guard.comparisons:
        left, right = numbers.of(comparison.left), numbers.of(comparison.right)
        if left is not None and right is not None and not COMPARE[comparison.operator](left, right):
            return False
    return True


SIZES = {"n": 6, "m": 5, "k": 3, "rows": 4, "cols": 5, "d": 3, "w": 5, "h": 3, "width": 6, "height": 4, "tokens": 3,
         "GROUP": 4, "V": 5, "nx": 9, "ny": 7, "nz": 4, "RADIUS": 2, "M": 4, "N": 5, "K": 3, "wA": 4, "wB": 4, "BS": 2,
         "C": 2, "D": 6, "H": 3, "W": 4}  # fmt: skip


def known_accesses(analysis: Analysis) -> int:
    """How many accesses of some threads are known exactly; -1 when the reference cannot run the kernel."""
    total = 0
    for thread in threads():
        try:
            total += check(analysis, {**SIZES, **thread})
        except NotRun:
            return -1
    return total


@pytest.mark.parametrize("file", BASELINES, ids=lambda path: path.parent.name)
def test_every_access_of_a_baseline_happens_where_the_facts_say(file: Path) -> None:
    language: Language = "opencl" if file.suffix == ".cl" else "cuda"
    tree = parse(file.read_text(), language)
    for function in tree.kernels:
        assert known_accesses(analyse_function(tree, function, language)) > 0


NOT_RUN = ("vector_type", "vector_cast", "opencl_vload", "vector_index_variable", "unknown_function",
           "assembly_of_a_place", "switch_and_goto", "pointers_in_a_struct", "strided_halves_pointer")  # fmt: skip
"""Kernels with things that the reference does not run: vectors, structs, what is opaque to the analysis too."""


@pytest.mark.parametrize("case", [c for c in CASES if c.name not in NOT_RUN], ids=lambda case: case.name)
def test_every_access_of_a_plain_kernel_happens_where_the_facts_say(case: object) -> None:
    analysis = analyse(case.source, case.language)  # type: ignore[attr-defined]
    assert known_accesses(analysis) > 0


def test_a_counter_whose_name_an_inner_loop_takes_is_no_constant() -> None:
    """The loop counts in no way that is understood, so its own variable must be forgotten as any other."""
    analysis = analyse(
        "__global__ void f(float *a, int n) {"
        " for (int c = 4; c; c >>= 1) { a[c] = 1; for (int c = 0; c < n; ++c) { a[n] = c; } } }",
        "cuda",
    )
    assert check(analysis, next(threads()) | {"n": 2}) >= 0


@examples(100)
@given(kernels(), st.integers(1, 4), st.integers(1, 5), st.integers(0, 3))
def test_every_access_of_a_random_kernel_happens_where_the_facts_say(source: str, n: int, m: int, k: int) -> None:
    analysis = analyse(source, "cuda")
    for thread in threads(axes=1):
        try:
            check(analysis, {**thread, "n": n, "m": m, "k": k})
        except NotRun:
            return


def test_the_reference_catches_a_wrong_fact() -> None:
    """So that the tests above can fail."""
    right = analyse("__global__ void f(float *a, int n) { int i = threadIdx.x; a[i + 1] = 0; }", "cuda")
    wrong = analyse("__global__ void f(float *a, int n) { int i = threadIdx.x; a[i + 2] = 0; }", "cuda")
    lie = Analysis(right.tree, right.function, wrong.facts)
    assert check(right, next(threads()) | {"n": 3}) == 1
    with pytest.raises(AssertionError, match="but the facts say"):
        check(lie, next(threads()) | {"n": 3})
    assert Pointer("a", 1) != Pointer("a", 2)
