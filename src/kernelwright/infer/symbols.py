"""Index arithmetic in sizes: its value on one workload, and its text in a problem's expressions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from kernelwright.analysis.facts import Atom
from kernelwright.analysis.polynomial import ONE, Polynomial, named, number

_NESTING = 20


@dataclass(slots=True)
class Symbols:
    """What each name stands for: sizes with their values, macros with their defaults, the launch."""

    atoms: Mapping[str, Atom]
    values: dict[str, int]
    """By size: its value on the workload."""
    fixed: dict[str, int] = field(default_factory=dict)
    """Macros, constants and block extents, which are written as plain numbers."""
    derived: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Names that are no sizes of their own: an expression, and its value."""
    quotients: dict[str, tuple[Polynomial, Polynomial]] = field(default_factory=dict)
    """Names made here: a value divided by another, rounded down."""

    def is_size(self, name: str) -> bool:
        """Whether a name is the same for all threads."""
        if name in self.fixed or name in self.values or name in self.quotients or name in self.derived:
            return True
        atom = self.atoms.get(name)
        if atom is None:
            return False
        if atom.kind == "size":
            return True
        return atom.kind in ("quotient", "remainder") and not any(self.moving(part) for part in atom.parts)

    def moving(self, value: Polynomial) -> tuple[str, ...]:
        """The names that differ between threads or iterations, sorted."""
        return tuple(sorted(name for name in value.names if not self.is_size(name)))

    def number(self, value: Polynomial, depth: int = 0) -> int | None:
        """The value on the workload; None where a name in it has none."""
        total = 0
        for monomial, coefficient in value.terms:
            product = coefficient
            for name in monomial:
                factor = self._number_of(name, depth)
                if factor is None:
                    return None
                product *= factor
            total += product
        return total

    def _number_of(self, name: str, depth: int) -> int | None:
        for known in (self.values, self.fixed):
            if name in known:
                return known[name]
        if name in self.derived:
            return self.derived[name][1]
        parts = self._parts(name)
        if parts is None or depth > _NESTING:
            return None
        left, right = self.number(parts[0], depth + 1), self.number(parts[1], depth + 1)
        if left is None or right is None or right <= 0 or left < 0:
            return None
        return left % right if self._is_remainder(name) else left // right

    def _parts(self, name: str) -> tuple[Polynomial, Polynomial] | None:
        if name in self.quotients:
            return self.quotients[name]
        atom = self.atoms.get(name)
        return (atom.parts[0], atom.parts[1]) if atom is not None and len(atom.parts) == 2 else None

    def _is_remainder(self, name: str) -> bool:
        atom = self.atoms.get(name)
        if name in self.quotients or atom is None:
            return False
        return atom.kind == "remainder" or "%" in name

    def share(self, name: str) -> tuple[Polynomial, int] | None:
        """What a name is a share of, and how many shares there are: `n // 16`; None where it is none."""
        if name in self.quotients:
            whole, shares = self.quotients[name]
            divisor = self.plain(shares).constant
            return None if divisor is None else (whole, divisor)
        written = re.fullmatch(r"\(*(\w+) // (\d+)\)*", self.derived.get(name, ("", 0))[0])
        return (named(written[1]), int(written[2])) if written and written[1] in self.values else None

    def text(self, value: Polynomial) -> str | None:
        """The value as an expression of a problem; None where a name in it is none of a problem's."""
        if not value.terms:
            return "0"
        text = ""
        for monomial, coefficient in sorted(value.terms, key=lambda term: (term[1] < 0, -len(term[0]), term[0])):
            plain = coefficient
            factors: list[str] = []
            for name in monomial:
                if name in self.fixed:
                    plain *= self.fixed[name]
                    continue
                factor = self._text_of(name)
                if factor is None:
                    return None
                factors.append(factor)
            size = abs(plain)
            product = " * ".join(([] if size == 1 and factors else [str(size)]) + factors)
            sign = "-" if plain < 0 else "+"
            text = f"{text} {sign} {product}" if text else ("-" if plain < 0 else "") + product
        return text

    def _text_of(self, name: str) -> str | None:
        if name in self.derived:
            return self.derived[name][0]
        if name in self.values:
            return name
        parts = self._parts(name)
        if parts is None:
            return None
        left, right = self.text(parts[0]), self.text(parts[1])
        if left is None or right is None:
            return None
        sign = "%" if self._is_remainder(name) else "//"
        return f"({_bracketed(left)} {sign} {_bracketed(right)})"

    def plain(self, value: Polynomial) -> Polynomial:
        """With macros, constants and block extents as numbers."""
        known = {name: self._plain_number(name) for name in value.names}
        return value.replaced({name: number(fixed) for name, fixed in known.items() if fixed is not None})

    def _plain_number(self, name: str) -> int | None:
        """What a name is for all sizes: a macro, a constant, or a share of a block."""
        if name in self.fixed:
            return self.fixed[name]
        parts = self._parts(name) if self.is_size(name) else None
        if parts is None or not all(each in self.fixed for part in parts for each in part.names):
            return None
        return self._number_of(name, 0)

    def floor(self, value: Polynomial, divisor: Polynomial) -> Polynomial:
        """The value divided by a size and rounded down."""
        above = (value + ONE).divided(divisor)
        if above is not None:
            return above - ONE  # (d*k - 1) // d
        whole = value.divided(divisor)
        if whole is not None:
            return whole
        name = f"({value} // {divisor})"
        self.quotients[name] = value, divisor
        return named(name)


def _bracketed(text: str) -> str:
    return text if text.isidentifier() or text.isdigit() else f"({text})"
