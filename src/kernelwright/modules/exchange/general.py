"""One program for all sizes, from programs that were lowered at a few: what differs between them is written in sizes.

Lowering knows numbers only. The same graph on other extents gives the same text with other numbers, so each number that
differs is fitted by a product or a sum of sizes, which must hold at every sample. Samples are primes, so that few
formulas hold by chance.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

from kernelwright.errors import SpecError

SAMPLES = 4
"""Two determine a formula of one product, the others refuse a wrong one."""
_TOKEN = re.compile(r"[A-Za-z_]\w*|\d+(?:\.\d+)?(?:[eE][-+]?\d+)?\w*|\s+|.", re.DOTALL)
_MOST_FACTORS = 4

Sizes = Mapping[str, int]


def samples_of(names: Sequence[str], *, first: int = 17) -> tuple[dict[str, int], ...]:
    """Sizes to lower at: primes from `first` on, each once."""
    primes = (n for n in itertools.count(first) if all(n % each for each in range(2, math.isqrt(n) + 1)))
    columns = [list(itertools.islice(primes, SAMPLES)) for _ in names]
    return tuple({name: column[row] for name, column in zip(names, columns, strict=True)} for row in range(SAMPLES))


def general_text(texts: Sequence[str], samples: Sequence[Sizes]) -> str:
    """The text that is each of `texts` where its sizes are put in.

    Raises:
        SpecError: they differ in more than numbers, or a number is no product or sum of sizes.
    """
    rows = [_TOKEN.findall(text) for text in texts]
    if len({len(row) for row in rows}) != 1:
        raise SpecError("the program has another structure on other sizes", hint="leave workloads of one shape only")
    return "".join(_token(each, samples) for each in zip(*rows, strict=True))


def _token(tokens: Sequence[str], samples: Sequence[Sizes]) -> str:
    if len(set(tokens)) == 1:
        return tokens[0]
    if all(each.isdecimal() for each in tokens):
        return formula([int(each) for each in tokens], samples)
    numbers = [_number(each) for each in tokens]
    if any(each is None for each in numbers):
        raise SpecError(
            f"the program says {tokens[0]!r} on some sizes and {tokens[1]!r} on others",
            hint="leave workloads of one shape only",
        )
    return _real(
        [each for each in numbers if each is not None], samples, "float" if tokens[0][-1] in "fF" else "double"
    )


def _number(token: str) -> float | None:
    try:
        return float(token.rstrip("fF"))
    except ValueError:
        return None


def _real(numbers: Sequence[float], samples: Sequence[Sizes], c_type: str) -> str:
    """A real number that is a whole one of sizes, or one over it."""
    if all(each == round(each) for each in numbers):
        return f"({c_type}){formula([round(each) for each in numbers], samples)}"
    inverse = [1 / each for each in numbers if each]
    if len(inverse) == len(numbers) and all(math.isclose(each, round(each), rel_tol=1e-6) for each in inverse):
        return f"(({c_type})1 / ({c_type}){formula([round(each) for each in inverse], samples)})"
    raise SpecError(f"{numbers[0]} on one sample of sizes, {numbers[1]} on another: no formula of sizes that was tried")


def formula(values: Sequence[int], samples: Sequence[Sizes]) -> str:
    """The plainest expression in sizes with these values; in parentheses where it is more than a name.

    Raises:
        SpecError: none that was tried.
    """
    if len(set(values)) == 1:
        return str(values[0])
    for factor, product, rest in _candidates(values, samples):
        text = " * ".join(([str(abs(factor))] if abs(factor) != 1 else []) + list(product))
        text = f"{rest} - {text}" if factor < 0 else f"{text} {'-' if rest < 0 else '+'} {abs(rest)}" if rest else text
        return text if re.fullmatch(r"\w+", text) else f"({text})"
    for first, second in itertools.combinations(_products(samples), 2):
        if all(_value(first, s) + _value(second, s) == value for s, value in zip(samples, values, strict=True)):
            return f"({' * '.join(first)} + {' * '.join(second)})"
    raise SpecError(f"{values[0]} at {_shown(samples[0])} and {values[1]} at {_shown(samples[1])}: no formula of sizes")


def _candidates(values: Sequence[int], samples: Sequence[Sizes]) -> Iterator[tuple[int, tuple[str, ...], int]]:
    """Factor, product and rest, those without a rest first."""
    found = []
    for product in _products(samples):
        numbers = [_value(product, each) for each in samples]
        if numbers[0] == numbers[1]:
            continue
        factor = Fraction(values[1] - values[0], numbers[1] - numbers[0])
        rest = values[0] - factor * numbers[0]
        is_whole = factor.denominator == 1
        if is_whole and all(factor * n + rest == value for n, value in zip(numbers, values, strict=True)):
            found.append((int(factor), product, int(rest)))
    yield from sorted(found, key=lambda each: (each[2] != 0, len(each[1])))


def _products(samples: Sequence[Sizes]) -> Iterator[tuple[str, ...]]:
    for count in range(1, _MOST_FACTORS + 1):
        yield from itertools.combinations_with_replacement(samples[0], count)


def _value(product: tuple[str, ...], sizes: Sizes) -> int:
    return math.prod(sizes[name] for name in product)


def _shown(sizes: Sizes) -> str:
    return ", ".join(f"{name} = {value}" for name, value in sizes.items())
