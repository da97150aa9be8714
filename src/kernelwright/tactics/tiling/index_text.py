"""Indices as C text, at one place of a kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kernelwright.analysis.polynomial import Polynomial, named
from kernelwright.analysis.values import division_name
from kernelwright.source import nodes
from kernelwright.tactics.base import Subject, Unfit
from kernelwright.tactics.common.launches import AXES
from kernelwright.tactics.tiling.places import block_extents, plain


@dataclass(frozen=True, slots=True)
class IndexText:
    """How indices are written where an access happens."""

    subject: Subject
    loops: tuple[int, ...]
    """The loops around the place, outermost first."""
    arrays: Mapping[str, str] = field(default_factory=dict)
    """What arrays are called there, where that is not their name."""
    values: Mapping[str, Polynomial] = field(default_factory=dict)
    """Quantities that the text has no words for, in others."""
    words: Mapping[str, str] = field(default_factory=dict)
    """Words for more quantities."""
    gone: frozenset[str] = frozenset()
    """Quantities that are not there any more."""
    held: frozenset[Polynomial] = frozenset()
    """What is below 0 there in any case."""

    def array(self, name: str) -> str:
        """The array itself."""
        return self.arrays.get(name, name)

    def integer(self, value: Polynomial, parts: Mapping[str, str]) -> str:
        """A value as an `int`."""
        return f"(int)({self.text(value, parts)})"

    def below_zero(self, value: Polynomial) -> str:
        """The condition that a value is below 0."""
        joined = self.joined(value)
        less = Polynomial(tuple((m, c) for m, c in joined.terms if c > 0))
        return f"{self.text(less, {})} < {self.text(less - joined, {})}"

    def text(self, value: Polynomial, parts: Mapping[str, str]) -> str:
        """A value; `parts` has the texts of some of its quantities."""
        return " + ".join(self._term(*each, parts) for each in self.joined(value).terms) or "0"

    def joined(self, value: Polynomial) -> Polynomial:
        """A value with blocks and threads as places among all threads again, where that leaves no block."""
        value, block = value.replaced(self.values), block_extents(self.subject)
        for axis in AXES:
            whole = named(f"global.{axis}") - named(f"block.{axis}") * block[f"block_size.{axis}"]
            found = value.replaced({f"thread.{axis}": whole})
            value = value if f"block.{axis}" in found.names else found
        return value

    def _term(self, monomial: Sequence[str], coefficient: int, parts: Mapping[str, str]) -> str:
        plain = coefficient == 1 and monomial
        factors = [] if plain else [str(coefficient) if coefficient > 0 else f"({coefficient})"]
        return " * ".join([*factors, *(parts.get(name) or self._word(name) for name in monomial)])

    def _word(self, name: str) -> str:
        kind, _, axis = name.partition(".")
        if name in self.gone:
            raise Unfit("its loop over tiles and the loop within one do not make one loop")
        if name in self.words:
            return self.words[name]
        if axis in AXES and kind in ("thread", "block", "global"):
            return query(kind, axis, is_opencl=self.subject.language == "opencl")
        facts = self.subject.analysis.facts
        loops = [facts.loops[index] for index in self.loops if facts.loops[index].atom == name]
        if loops:
            return self._variable(loops[0].variable)
        atom = facts.atoms.get(name)
        if atom is not None and not atom.parts and atom.kind == "size" and name.isidentifier():
            return self._argument(name)
        if atom is not None and len(atom.parts) == 2:
            for operator in "/%":
                if name == division_name(operator, *atom.parts):
                    left, right = (self.text(plain(self.subject, each), {}) for each in atom.parts)
                    return f"(({left}) {operator} ({right}))"
        raise Unfit(f"{facts.names.get(name, name)} is not known where its index is needed")

    def _variable(self, name: str) -> str:
        """A loop's index, which must mean the loop's step there."""
        facts, body = self.subject.analysis.facts, self.subject.analysis.function.body
        around = [facts.loops[index] for index in self.loops if facts.loops[index].variable == name]
        own = [each.body for each in nodes.walk(body) if isinstance(each, nodes.Loop) and around
               and each.place.span == around[0].span]  # fmt: skip
        changed = {word for each in own for word in nodes.assigned_names(each) | nodes.declared_names(each)}
        if len(around) != 1 or not name or name in changed:
            raise Unfit(f"{name or 'a loop index'} means several things where its index is needed")
        types = {each.c_type for each in nodes.walk(body) if isinstance(each, nodes.Declarator) and each.name == name}
        return name if types == {"int"} else f"(int){name}"

    def _argument(self, name: str) -> str:
        """A size that the kernel is given and does not change."""
        body = self.subject.analysis.function.body
        given = {each.name: each.c_type for each in self.subject.analysis.function.parameters if not each.is_pointer}
        is_kept = name not in nodes.assigned_names(body) | nodes.declared_names(body)
        if not is_kept or (name not in given and self.subject.header.parameter(name) is None):
            raise Unfit(f"{name} is not known where its index is needed")
        return name if given.get(name, "int") == "int" else f"(int){name}"


def query(kind: str, axis: str, *, is_opencl: bool) -> str:
    """What a kernel asks for the place of a thread, its block, or the thread among all."""
    if is_opencl:
        word = {"thread": "get_local_id", "block": "get_group_id", "global": "get_global_id"}[kind]
        return f"(int){word}({AXES.index(axis)})"
    if kind == "global":
        return f"((int)blockIdx.{axis} * (int)blockDim.{axis} + (int)threadIdx.{axis})"
    return f"(int){kind}Idx.{axis}"
