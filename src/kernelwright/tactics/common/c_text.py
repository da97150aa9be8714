"""Polynomials of facts as C text."""

from __future__ import annotations

from collections.abc import Mapping

from kernelwright.analysis.facts import Atom
from kernelwright.analysis.polynomial import Polynomial
from kernelwright.analysis.values import division_name
from kernelwright.tactics.base import Unfit


def c_text(value: Polynomial, atoms: Mapping[str, Atom], names: Mapping[str, str], *, cast: str = "") -> str:
    """A polynomial as a C expression; quotients and remainders of such too.

    Args:
        value: what to write.
        atoms: the facts' atoms.
        names: C text by atom, for threads and loops; sizes that are plain identifiers stand for themselves.
        cast: a type that the first factor of each product gets, such as `(long)`.

    Raises:
        Unfit: something in it has no text.
    """
    if not value.terms:
        return "0"
    text = ""
    for monomial, coefficient in sorted(value.terms, key=lambda term: (term[1] < 0, -len(term[0]), term[0])):
        factors = [atom_text(name, atoms, names, cast=cast) for name in monomial]
        size = abs(coefficient)
        if size != 1 or not factors:
            factors.insert(0, str(size))
        if cast and monomial:
            factors[0] = f"{cast}{factors[0]}"
        product = " * ".join(factors)
        sign = "-" if coefficient < 0 else "+"
        text += f" {sign} {product}" if text else (f"-{product}" if coefficient < 0 else product)
    return text


def atom_text(name: str, atoms: Mapping[str, Atom], names: Mapping[str, str], *, cast: str = "") -> str:
    """One quantity as C text, in parentheses where needed."""
    if name in names:
        return names[name]
    atom = atoms.get(name)
    if atom is not None and len(atom.parts) == 2:
        for operator in "/%":
            if name == division_name(operator, *atom.parts):
                left, right = (c_text(part, atoms, names, cast=cast) for part in atom.parts)
                return f"(({left}) {operator} ({right}))"
    if atom is not None and atom.kind == "size" and not atom.parts and name.isidentifier():
        return name
    raise Unfit(f"{name} cannot be written down where it is needed")
