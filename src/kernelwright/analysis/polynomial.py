"""Integer polynomials over named quantities: the values of index arithmetic, exactly.

`row * d + col` is a polynomial over `row`, `d` and `col`. Which names are indices and which are sizes is decided by
`analysis.affine`. Values wrap around in C; here they do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Monomial = tuple[str, ...]
"""Names, sorted, repeated for powers; empty for the constant."""

MAX_TERMS = 40  # guess: index arithmetic of real kernels stays below ten
MAX_DEGREE = 8


@dataclass(frozen=True, slots=True)
class Polynomial:
    """A sum of monomials with integer coefficients; equal polynomials compare equal."""

    terms: tuple[tuple[Monomial, int], ...] = ()
    """Sorted, without zeros."""

    @staticmethod
    def make(terms: Mapping[Monomial, int]) -> Polynomial:
        """The polynomial with these terms; monomials must be sorted."""
        return Polynomial(tuple(sorted((m, c) for m, c in terms.items() if c)))

    @property
    def constant(self) -> int | None:
        """Its value where it is a plain number; None where it is not."""
        if not self.terms:
            return 0
        (monomial, coefficient), *rest = self.terms
        return coefficient if not monomial and not rest else None

    @property
    def names(self) -> frozenset[str]:
        """Every quantity that it mentions."""
        return frozenset(name for monomial, _ in self.terms for name in monomial)

    @property
    def single_name(self) -> str | None:
        """The quantity that it is, with coefficient 1 and nothing else."""
        if len(self.terms) == 1 and self.terms[0][1] == 1 and len(self.terms[0][0]) == 1:
            return self.terms[0][0][0]
        return None

    @property
    def is_small(self) -> bool:
        """Whether it is small enough to calculate with."""
        return len(self.terms) <= MAX_TERMS and all(
            len(monomial) <= MAX_DEGREE and abs(coefficient) < 1 << 64 for monomial, coefficient in self.terms
        )

    def __add__(self, other: Polynomial) -> Polynomial:
        terms = dict(self.terms)
        for monomial, coefficient in other.terms:
            terms[monomial] = terms.get(monomial, 0) + coefficient
        return Polynomial.make(terms)

    def __neg__(self) -> Polynomial:
        return Polynomial(tuple((monomial, -coefficient) for monomial, coefficient in self.terms))

    def __sub__(self, other: Polynomial) -> Polynomial:
        return self + -other

    def __mul__(self, other: Polynomial) -> Polynomial:
        terms: dict[Monomial, int] = {}
        for left, left_coefficient in self.terms:
            for right, right_coefficient in other.terms:
                monomial = tuple(sorted(left + right))
                terms[monomial] = terms.get(monomial, 0) + left_coefficient * right_coefficient
        return Polynomial.make(terms)

    def divided(self, other: Polynomial) -> Polynomial | None:
        """The polynomial whose product with `other` is this one; None where there is none."""
        if len(other.terms) > 1:
            return self._divided_by_sum(other)
        if not other.terms:
            return None
        divisor, factor = other.terms[0]
        terms: dict[Monomial, int] = {}
        for monomial, coefficient in self.terms:
            rest = _without(monomial, divisor)
            if rest is None or coefficient % factor:
                return None
            terms[rest] = coefficient // factor
        return Polynomial.make(terms)

    def _divided_by_sum(self, other: Polynomial) -> Polynomial | None:
        """Term by term, the first ones of both first, in an order that products keep: by degree, then by names."""
        rest, found = self, Polynomial.make({})
        first = Polynomial((max(other.terms, key=_degree_first),))
        for _ in range(MAX_TERMS):
            if not rest.terms:
                break
            share = Polynomial((max(rest.terms, key=_degree_first),)).divided(first)
            if share is None:
                return None
            found, rest = found + share, rest - share * other
        return None if rest.terms else found

    def coefficient(self, name: str) -> Polynomial | None:
        """What `name` is multiplied with; None where it stands in a product with itself."""
        terms: dict[Monomial, int] = {}
        for monomial, coefficient in self.terms:
            count = monomial.count(name)
            if count > 1:
                return None
            if count == 1:
                terms[_without(monomial, (name,)) or ()] = coefficient
        return Polynomial.make(terms)

    def without(self, names: Iterable[str]) -> Polynomial:
        """The terms that mention none of `names`."""
        left_out = frozenset(names)
        return Polynomial(tuple((m, c) for m, c in self.terms if left_out.isdisjoint(m)))

    def replaced(self, values: Mapping[str, Polynomial]) -> Polynomial:
        """With quantities replaced by polynomials."""
        if self.names.isdisjoint(values):
            return self
        total = Polynomial()
        for monomial, coefficient in self.terms:
            product = number(coefficient)
            for name in monomial:
                product = product * values.get(name, named(name))
            total = total + product
        return total

    def __str__(self) -> str:
        """`2*d*row + col - 1`: highest degree first."""
        if not self.terms:
            return "0"
        text = ""
        for monomial, coefficient in sorted(self.terms, key=lambda term: (-len(term[0]), term[0])):
            size = abs(coefficient)
            factors = "*".join(([] if size == 1 and monomial else [str(size)]) + list(monomial))
            sign = "-" if coefficient < 0 else "+"
            text += f" {sign} {factors}" if text else ("-" if coefficient < 0 else "") + factors
        return text


def _degree_first(term: tuple[Monomial, int]) -> tuple[int, Monomial]:
    return len(term[0]), term[0]


def _without(monomial: Monomial, divisor: Monomial) -> Monomial | None:
    left = list(monomial)
    for name in divisor:
        if name not in left:
            return None
        left.remove(name)
    return tuple(left)


def number(value: int) -> Polynomial:
    """The constant polynomial."""
    return Polynomial((((), value),) if value else ())


def named(name: str) -> Polynomial:
    """The polynomial that is one quantity."""
    return Polynomial((((name,), 1),))


ZERO = number(0)
ONE = number(1)
