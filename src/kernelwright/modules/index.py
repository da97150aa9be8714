"""Indices as sums of variables, quotients and remainders, simplified by what is known of their ranges.

```
row, col = variable("row", 8), variable("col", 4)
flat = row * 4 + col
flat // 4 == row, flat % 4 == col          # True, True
(flat // 2).text()                         # "row * 2 + col / 2"
```

Variables and quotients are at least 0. A quotient's text is that of C, which rounds to zero: it is right where the
index that is divided is not negative.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Atom:
    """A variable; or, with `of`, a quotient or a remainder of an index."""

    name: str
    """A variable's, or `/` or `%`."""
    most: int
    """The largest value."""
    of: TensorIndex | None = None
    by: int = 1

    def text(self) -> str:
        if self.of is None:
            return self.name
        return f"{self.of.text(is_operand=True)} {self.name} {self.by}"


@dataclass(frozen=True, slots=True)
class TensorIndex:
    """A sum of products: `constant` and each atom times its factor."""

    constant: int
    terms: tuple[tuple[_Atom, int], ...] = ()

    def __add__(self, other: TensorIndex | int) -> TensorIndex:
        if isinstance(other, int):
            return TensorIndex(self.constant + other, self.terms)
        sums = dict(self.terms)
        for atom, factor in other.terms:
            sums[atom] = sums.get(atom, 0) + factor
        return _joined(TensorIndex(self.constant + other.constant, _sorted(sums)))

    def __mul__(self, factor: int) -> TensorIndex:
        if factor == 0:
            return TensorIndex(0)
        return TensorIndex(self.constant * factor, tuple((atom, own * factor) for atom, own in self.terms))

    def __sub__(self, other: TensorIndex | int) -> TensorIndex:
        return self + other * -1

    def __floordiv__(self, by: int) -> TensorIndex:
        whole, rest = self._split(by)
        low, high = rest.bounds()
        if by == 1 or (low >= 0 and high < by):
            return whole
        common = math.gcd(by, rest.constant, *(factor for _, factor in rest.terms))
        rest, by = rest._over(common), by // common
        if by == 1:
            return whole + rest
        inner = rest.only()
        if inner is not None and inner.name == "/" and inner.of is not None:
            return whole + inner.of // (inner.by * by)
        return whole + _single(_Atom("/", max(0, high // common // by), rest, by))

    def __mod__(self, by: int) -> TensorIndex:
        _, rest = self._split(by)
        low, high = rest.bounds()
        if low >= 0 and high < by:
            return rest
        inner = rest.only()
        if inner is not None and inner.name == "%" and inner.of is not None and inner.by % by == 0:
            return inner.of % by
        return _single(_Atom("%", by - 1, rest, by))

    def _split(self, by: int) -> tuple[TensorIndex, TensorIndex]:
        """Multiples of a number, divided by it, and the rest."""
        whole = tuple((atom, factor // by) for atom, factor in self.terms if factor % by == 0)
        rest = tuple((atom, factor) for atom, factor in self.terms if factor % by)
        return TensorIndex(self.constant // by, whole), TensorIndex(self.constant % by, rest)

    def _over(self, common: int) -> TensorIndex:
        return TensorIndex(self.constant // common, tuple((atom, factor // common) for atom, factor in self.terms))

    def only(self) -> _Atom | None:
        """The atom that it is, once and nothing else."""
        if self.constant == 0 and len(self.terms) == 1 and self.terms[0][1] == 1:
            return self.terms[0][0]
        return None

    def step_of(self, name: str) -> int | None:
        """How far it goes for each step of a variable; None: not evenly, since a quotient has the variable."""
        if any(atom.of is not None and atom.of.step_of(name) != 0 for atom, _ in self.terms):
            return None
        return sum(factor for atom, factor in self.terms if atom.name == name)

    def bounds(self) -> tuple[int, int]:
        """The least and the largest value, at most so far apart."""
        low = self.constant + sum(factor * atom.most for atom, factor in self.terms if factor < 0)
        high = self.constant + sum(factor * atom.most for atom, factor in self.terms if factor > 0)
        return low, high

    def text(self, *, is_operand: bool = False) -> str:
        """In C; with parentheses where it is an operand of more than a sum."""
        parts = []
        for atom, factor in self.terms:
            own = atom.text()
            own = f"({own})" if atom.of is not None and abs(factor) != 1 else own
            parts.append((factor < 0, own if abs(factor) == 1 else f"{own} * {abs(factor)}"))
        if self.constant or not parts:
            parts.append((self.constant < 0, str(abs(self.constant))))
        parts.sort(key=lambda part: part[0])  # a sum does not begin with a minus where it need not
        text = "".join(f" {'-' if is_less else '+'} {own}" for is_less, own in parts)
        text = text[3:] if text.startswith(" + ") else f"-{text[3:]}"
        return f"({text})" if is_operand and (len(parts) > 1 or " " in text or text.startswith("-")) else text


def variable(name: str, extent: int) -> TensorIndex:
    """A variable from 0 to below `extent`; one that can only be 0 is that constant."""
    return _single(_Atom(name, extent - 1)) if extent > 1 else TensorIndex(0)


def flattened(indices: Sequence[TensorIndex], shape: Sequence[int]) -> TensorIndex:
    """The place of an element in row-major order."""
    flat = TensorIndex(0)
    for index, extent in zip(indices, shape, strict=True):
        flat = flat * extent + index
    return flat


def unflattened(flat: TensorIndex, shape: Sequence[int]) -> tuple[TensorIndex, ...]:
    """The indices of the element at a place in row-major order."""
    found: list[TensorIndex] = []
    for extent in reversed(shape):
        found.append(flat % extent if len(found) < len(shape) - 1 else flat)
        flat = flat // extent
    return tuple(reversed(found))


def _single(atom: _Atom) -> TensorIndex:
    return TensorIndex(0, ((atom, 1),))


def _sorted(sums: dict[_Atom, int]) -> tuple[tuple[_Atom, int], ...]:
    kept = [(atom, factor) for atom, factor in sums.items() if factor]
    return tuple(sorted(kept, key=lambda term: (-abs(term[1]), term[0].text())))


def _joined(index: TensorIndex) -> TensorIndex:
    """With `n * (x / n) + x % n` as `x`, and `n * (x / n % m) + x % n` as `x % (n * m)`, wherever they stand there."""
    factors = dict(index.terms)
    for atom, factor in index.terms:
        if atom.name != "%" or atom.of is None:
            continue
        above = atom.of // atom.by
        for quotient in (each for each, own in index.terms if own == factor * atom.by):
            if quotient != above.only() and (quotient.name != "%" or quotient.of != above):
                continue
            rest = {each: own for each, own in factors.items() if each not in (atom, quotient)}
            whole = atom.of if quotient == above.only() else atom.of % (atom.by * quotient.by)
            return TensorIndex(index.constant, _sorted(rest)) + whole * factor
    return index
