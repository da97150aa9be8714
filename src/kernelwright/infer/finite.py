"""Ranges of float inputs on which results are finite: blocks of the launch are followed with drawn numbers.

Nothing could be proven on results that are not finite: `sqrt` of a negative variance, `exp` of a large sum, a
recurrence that grows. Where usual inputs give such, narrower ranges are tried; then each array is freed again that
does not need its own. All is counted in steps, so the same text gives the same ranges everywhere.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from kernelwright.errors import KernelwrightError
from kernelwright.infer.model import Inferred, InferredArgument, InferredStep
from kernelwright.infer.text.widen import widened
from kernelwright.problem.dtypes import integer_range, largest_finite
from kernelwright.problem.expressions.expression import Expression
from kernelwright.source import nodes
from kernelwright.source.builtin_functions import math_function
from kernelwright.source.lexer import masked
from kernelwright.source.syntax import parse
from kernelwright.tactics.base import Unfit
from kernelwright.tactics.recognised.replay.block import BlockReplay, CallFrame
from kernelwright.tactics.recognised.replay.values import Address, Numbers, Value, arbitrary, is_float_type

RANGES = (
    (-0.75, 0.75), (0.25, 0.75), (1.25, 1.75), (-0.0625, 0.0625), (0.015625, 0.0625), (-0.75, -0.25), (0.99, 1.01),
    (1e-4, 2e-4),
)  # fmt: skip
"""Tried in this order: of both signs, which branches ask for; positive; above 1 (`log`, `acosh`); small (`exp`,
recurrences); small and positive; negative; near 1; parts of a whole, as of a distribution."""

_CONTENTS = ("declared", "large", "negative", "sparse", "constant")
"""What hostile datasets do to floats, as far as it decides whether results are finite."""
_STEPS_OF_A_BLOCK = 8_000
_MOST_STEPS = 200_000
"""Of all blocks together, until ranges are found and again to free arrays: about half a second."""
_MOST_THREADS = 1024
_MOST_BLOCKS = 2**31 - 1
_INTEGERS = (-100, 100)
"""As datasets draw them where nothing is declared."""
_SAFE = frozenset((
    "fabs", "abs", "max", "min", "fmax", "fmin", "floor", "ceil", "rint", "round", "trunc", "nearbyint", "add", "sub",
    "mul", "fma", "mad", "sin", "cos", "tanh", "erf", "clamp", "isnan", "isinf", "isfinite", "copysign", "select",
))  # fmt: skip
"""Functions whose results are finite wherever their arguments are."""
_INFINITE = re.compile(r"INF|_MAX\b|HUGE|infinity|max\s*\(\s*\)|[eE]\+?3\d")
"""What a minimum or maximum starts with."""
_FUNCTIONS: Mapping[str, Callable[..., Numbers]] = MappingProxyType({
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "atan2": np.arctan2, "sinh": np.sinh, "cosh": np.cosh, "asinh": np.arcsinh, "acosh": np.arccosh,
    "atanh": np.arctanh, "log1p": np.log1p, "expm1": np.expm1, "log10": np.log10, "cbrt": np.cbrt, "hypot": np.hypot,
    "fmod": np.fmod, "copysign": np.copysign, "exp10": lambda x: np.power(10.0, x), "powr": np.power,
    "recip": lambda x: 1 / x, "divide": np.divide, "erf": np.tanh, "erfc": lambda x: 1 - np.tanh(x),
    "clamp": lambda x, low, high: np.minimum(np.maximum(x, low), high),
})  # fmt: skip
"""Beside those that a replay knows; of `erf` a stand-in, finite where it is."""

_Range = tuple[float, float]


def with_finite_results(inferred: Inferred) -> Inferred:
    """The same with a range for each float input that needs one for results to be finite.

    Kernels that cannot be followed stay as they are; of one that no range helps, a note says so.
    """
    free = [each.name for each in inferred.arguments if _is_free(each)]
    found = _Followed.of(inferred) if free and not inferred.questions else None
    try:
        bad = "" if found is None else found.first_infinite({})
    except Unfit:
        return inferred
    if found is None or not bad:
        return inferred
    ranges = _narrowed(found, free)
    if ranges is None:
        told = (
            f"{bad!r} is infinite or NaN on all inputs that were tried: write `range` or `file` of {' or '.join(free)}"
        )
        return replace(inferred, notes=(*inferred.notes, told))
    note = f"other values make {bad!r} infinite or NaN"
    return replace(inferred, arguments=tuple(
        replace(each, bounds=ranges[each.name], note="; ".join(filter(None, (each.note, note))))
        if each.name in ranges else each
        for each in inferred.arguments
    ))  # fmt: skip


def _is_free(argument: InferredArgument) -> bool:
    is_read = argument.role in ("input", "inout") and argument.dtype.kind == "float"
    return is_read and not argument.file and argument.bounds is None and argument.values == "random"


def _helps(found: _Followed, ranges: Mapping[str, _Range]) -> bool:
    try:
        return not found.first_infinite(ranges)
    except Unfit:
        return False


def _narrowed(found: _Followed, free: Sequence[str]) -> dict[str, _Range] | None:
    """The first ranges that help, for as few arrays as possible; None: none does.

    Those on which products vanish are taken only where no others help: there whatever writes zeros would be right.
    """
    for found.may_vanish in (False, True):
        chosen = next((each for each in RANGES if _helps(found, dict.fromkeys(free, each))), None)
        if chosen is not None:
            break
        found.left = _MOST_STEPS
    if chosen is None:
        return None
    found.left = _MOST_STEPS
    kept = dict.fromkeys(free, chosen)
    for name in free:
        fewer = {other: own for other, own in kept.items() if other != name}
        if fewer and _helps(found, fewer):
            kept = fewer
    return kept


@dataclass
class _Followed:
    """The launches of a problem, and how many steps may still be followed."""

    inferred: Inferred
    tree: nodes.SyntaxTree
    steps: tuple[InferredStep, ...]
    is_wide: bool
    """Whether the reference computes in doubles."""
    starts_infinite: bool
    left: int
    may_vanish: bool = True
    """Whether results may all be as good as 0."""

    @classmethod
    def of(cls, inferred: Inferred) -> _Followed | None:
        """None where nothing in the text can make an infinite number of finite ones."""
        defines = dict(each.removeprefix("-D").split("=", 1) for each in inferred.options if "=" in each)
        tree = parse(inferred.source, inferred.language, defines=defines)
        if not any(_may_fail(each) for each in tree.functions):
            return None
        launch, names = inferred.launch, tuple(each.name for each in inferred.arguments)
        only = InferredStep(inferred.entry, launch.grid, launch.block, launch.shared_bytes, names)
        results = [each.dtype for each in inferred.arguments if each.role in ("output", "inout")]
        is_wide = (
            all(each.kind == "float" for each in results) and widened(inferred.source, inferred.language) is not None
        )
        starts_infinite = bool(_INFINITE.search(masked(inferred.source)))
        return cls(inferred, tree, inferred.launches or (only,), is_wide, starts_infinite, _MOST_STEPS)

    def first_infinite(self, ranges: Mapping[str, _Range]) -> str:
        """The first array with a result that is not finite, where inputs are drawn from `ranges`; empty: none is.

        Or with none but such as are 0 in its type, unless they may vanish.

        Raises:
            Unfit: a kernel is not followed, or no steps are left.
        """
        for content in _CONTENTS:
            for place in (0.0, 0.5):
                kept: dict[str, dict[int, float]] = {}
                for step in self.steps:
                    found = self._first_of_block(step, place, _Drawn(self.inferred, ranges, content), kept)
                    if found:
                        return found
                found = "" if self.may_vanish or content != "declared" else self._first_vanished(kept)
                if found:
                    return found
        return ""

    def _first_vanished(self, kept: Mapping[str, Mapping[int, float]]) -> str:
        """The first array that was written with nothing but what is 0 in its type."""
        for each in self.inferred.arguments:
            values = kept.get(each.name, {}).values() if each.dtype.kind == "float" else ()
            if values and max(map(abs, values)) < 1 / largest_finite(each.dtype):
                return each.name
        return ""

    def _first_of_block(
        self, step: InferredStep, place: float, drawn: _Drawn, kept: dict[str, dict[int, float]]
    ) -> str:  # fmt: skip
        """The same of one block of a launch; `kept`: by array what launches have written, which grows."""
        by_name = {each.name: each for each in self.inferred.arguments}
        function = next((each for each in self.tree.functions if each.name == step.entry), None)
        if function is None or len(function.parameters) != len(step.arguments):
            raise Unfit("its kernel is not read")
        given = {own.name: by_name[name] for own, name in zip(function.parameters, step.arguments, strict=True)}
        run = self._replay(function, step, place, given, drawn)
        run.written = {own: kept[each.name] for own, each in given.items() if each.name in kept}
        frame = run.entry()
        try:
            with np.errstate(all="ignore"):
                run.statement(function.body, frame, np.ones(run.threads, bool))
        except Unfit:
            if run.steps <= run.most_steps:
                raise
            if self._is_growing(frame):
                return next((each.name for each in self.inferred.arguments if each.role in ("output", "inout")), "")
        finally:
            self.left -= run.steps
        kept |= {given[own].name: values for own, values in run.written.items() if own in given}
        floats = (each for own, each in given.items() if own in run.written and each.dtype.kind == "float")
        return next((each.name for each in floats if self._is_infinite(each, kept[each.name])), "")

    def _replay(
        self, function: nodes.Function, step: InferredStep, place: float, given: Mapping[str, InferredArgument],
        drawn: _Drawn,
    ) -> BlockReplay:  # fmt: skip
        grid, block = self._extents(step.grid), self._extents(step.block)
        threads = math.prod(block)
        if min(*grid, *block) < 1 or max(grid) > _MOST_BLOCKS or threads > _MOST_THREADS or self.left <= 0:
            raise Unfit("its grid or its blocks are too large, or no steps are left")
        values = {own: _value(each, self.inferred.sizes) for own, each in given.items()}
        run = BlockReplay(
            self.tree, function, _place_words(grid, block, place), threads, values, 0,
            lambda own, offsets: drawn.integers(given[own], offsets), most_steps=min(_STEPS_OF_A_BLOCK, self.left),
        )  # fmt: skip
        run.floats = lambda own, offsets: drawn.floats(given[own], offsets)
        run.more_functions = _FUNCTIONS
        return run

    def _extents(self, texts: Sequence[str]) -> tuple[int, int, int]:
        try:
            values = [Expression.parse(each).evaluate(dict(self.inferred.sizes)) for each in texts]
        except KernelwrightError as error:
            raise Unfit(f"an extent of its launch has no value: {error}") from error
        x, y, z = (*(int(str(each)) for each in values), 1, 1)[:3]
        return x, y, z

    def _is_infinite(self, argument: InferredArgument, written: Mapping[int, float]) -> bool:
        """Whether a result is none on which anything can be proven: one that is not finite, or most beyond its type."""
        found = np.abs(np.fromiter(written.values(), float, len(written)))
        is_beyond = ~(found <= largest_finite(argument.dtype))
        is_lost = ~np.isfinite(found) if self.is_wide else is_beyond
        return bool(is_lost.any() or is_beyond.mean() > 0.5) if found.size else False

    def _is_growing(self, frame: CallFrame) -> bool:
        """Whether variables were not finite any more where a long loop was left; arrays begin as NaN."""
        for value in (each.value for scope in frame.scopes for each in scope.values()):
            held = value.memory.data if isinstance(value, Address) else value
            if not isinstance(held, np.ndarray) or held.dtype.kind != "f":
                continue
            is_lost = np.isinf(held) & (not self.starts_infinite)
            if bool((is_lost if isinstance(value, Address) else is_lost | np.isnan(held)).any()):
                return True
        return False


@dataclass(frozen=True)
class _Drawn:
    """What arrays hold in one trial."""

    inferred: Inferred
    ranges: Mapping[str, _Range]
    content: str

    def floats(self, argument: InferredArgument, places: Numbers) -> Numbers:
        """Within the array's range, else as a normal distribution; changed as hostile datasets change them."""
        name = argument.name
        if argument.values == "zeros":
            return np.zeros(places.shape)
        if self.content == "constant":
            places = np.zeros_like(places)
        bounds = self.ranges.get(name, argument.bounds)
        share = (arbitrary(name, places, 1) + 1) / 2
        is_spike = arbitrary(name, places, 2) > 0.96
        if bounds is not None:
            return self._within(bounds, share, is_spike)
        normal: Numbers = np.sqrt(-2 * np.log1p(-share)) * np.cos(math.pi * arbitrary(name, places, 3))
        changed: Mapping[str, Numbers] = {
            "large": 30 * normal, "negative": -np.abs(normal), "sparse": np.where(is_spike, 10 * normal, 0.0)
        }  # fmt: skip
        return changed.get(self.content, normal)

    def _within(self, bounds: _Range, share: Numbers, is_spike: Numbers) -> Numbers:
        low, high = bounds
        drawn: Numbers = low + (high - low) * share
        changed: Mapping[str, Numbers] = {
            "large": np.where(share > 0.5, high, low), "sparse": np.where(is_spike, drawn, min(max(0.0, low), high))
        }  # fmt: skip
        return changed.get(self.content, drawn)

    def integers(self, argument: InferredArgument, places: Numbers) -> Numbers:
        """Within the array's bounds; of offsets none below the one before.

        Raises:
            Unfit: a file says them.
        """
        if argument.values == "zeros":
            return np.zeros_like(places)
        if argument.file and argument.values == "random":
            raise Unfit(f"a file says what {argument.name} holds")
        least, greatest = integer_range(argument.dtype)
        low, high = argument.bounds or (max(least, _INTEGERS[0]), min(greatest, _INTEGERS[1]))
        if argument.values == "offsets":
            count = math.prod(int(str(Expression.parse(e).evaluate(dict(self.inferred.sizes)))) for e in argument.shape)
            steps = np.floor((high - low) * places / max(count - 1, 1))
            return np.asarray(np.clip(low + steps, low, high), np.int64)
        share = (arbitrary(argument.name, places, 1) + 1) / 2
        return np.asarray(np.floor(low + (high - low + 1) * share), np.int64)


def _value(argument: InferredArgument, sizes: Mapping[str, int]) -> float | int | bool:
    """What a replay is told of an argument: a by-value one's number; whether an array is one of floats."""
    is_float = argument.dtype.kind == "float"
    if argument.role != "scalar":
        return is_float
    try:
        value = Expression.parse(argument.value).evaluate(dict(sizes))
    except KernelwrightError as error:
        raise Unfit(f"what {argument.name} is, is not known") from error
    if isinstance(value, str):
        raise Unfit(f"what {argument.name} is, is not known")
    return float(value) if is_float else int(value)


def _place_words(
    grid: tuple[int, int, int], block: tuple[int, int, int], place: float
) -> dict[str, tuple[Value, Value, Value]]:  # fmt: skip
    """By query of a thread, along x, y and z, in all languages; `place`: 0 is the first block along each axis."""
    threads = np.arange(math.prod(block))
    own = (threads % block[0], threads // block[0] % block[1], threads // (block[0] * block[1]))

    def same(values: Iterator[int]) -> tuple[Value, Value, Value]:
        x, y, z = (np.full(len(threads), each) for each in values)
        return x, y, z

    group = same(int(place * each) for each in grid)
    size, count = same(iter(block)), same(iter(grid))
    zero = same(iter((0, 0, 0)))
    x, y, z = (np.asarray(g) * s + t for g, s, t in zip(group, block, own, strict=True))
    total = same(s * g for s, g in zip(block, grid, strict=True))
    return {
        "threadIdx": own, "blockIdx": group, "blockDim": size, "gridDim": count, "get_local_id": own,
        "get_group_id": group, "get_local_size": size, "get_enqueued_local_size": size, "get_num_groups": count,
        "get_global_id": (x, y, z), "get_global_size": total, "get_global_offset": zero,
    }  # fmt: skip


def _may_fail(function: nodes.Function) -> bool:
    """Whether a text divides, calls what has a domain or grows fast, or multiplies what a loop carries."""
    whole = frozenset(id(part) for node in nodes.walk(function.body) for part in _whole_parts(node))
    for node in nodes.walk(function.body):
        match node:
            case nodes.Binary(operator="/", right=right) | nodes.Assign(operator="/=", value=right):
                if not isinstance(right, nodes.Literal) and id(node) not in whole:
                    return True
            case nodes.Call(function=name) if (known := math_function(name)) is not None and known[0] not in _SAFE:
                return True
            case nodes.Loop() if _multiplies_carried(node):
                return True
    return False


def _whole_parts(node: nodes.Node) -> Iterator[nodes.Node]:
    """The parts of an index, or of the first value of an integer."""
    match node:
        case nodes.Element(index=part):
            yield from nodes.walk(part)
        case nodes.Declarator(c_type=c_type, initial=part) if part is not None and _is_whole(c_type):
            yield from nodes.walk(part)


def _is_whole(c_type: str) -> bool:
    try:
        return is_float_type(c_type) is False
    except Unfit:
        return False


def _multiplies_carried(loop: nodes.Loop) -> bool:
    """Whether a factor is made of itself, by the assignments of a loop."""
    made: dict[str, set[str]] = {}
    factors: set[str] = set()
    for node in nodes.walk(loop.body):
        match node:
            case nodes.Assign(operator=operator, target=target, value=value) if own := nodes.root_name(target):
                made.setdefault(own, set()).update(_names(value), () if operator == "=" else (own,))
                factors |= {own} if operator == "*=" else set()
            case nodes.Declarator(name=own, initial=value) if value is not None:
                made.setdefault(own, set()).update(_names(value))
            case nodes.Binary(operator="*", left=left, right=right):
                factors |= _names(left) | _names(right)
    return any(_reaches(made, each) for each in factors & made.keys())


def _names(node: nodes.Expression) -> set[str]:
    """The variables of an expression; those of indices do not count."""
    indices = {
        id(part) for each in nodes.walk(node) if isinstance(each, nodes.Element) for part in nodes.walk(each.index)
    }
    return {each.name for each in nodes.walk(node) if isinstance(each, nodes.Name) and id(each) not in indices}


def _reaches(made: Mapping[str, set[str]], name: str) -> bool:
    """Whether a variable is made of itself."""
    seen: set[str] = set()
    waiting = list(made[name])
    while waiting:
        current = waiting.pop()
        if current == name:
            return True
        if current not in seen:
            seen.add(current)
            waiting += made.get(current, ())
    return False
