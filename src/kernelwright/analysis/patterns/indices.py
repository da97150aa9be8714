"""The elements that a kernel touches, in the form that patterns compare: global memory only, one index vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

from kernelwright.analysis.affine import AXES, AffineForm, affine_form
from kernelwright.analysis.analysis import Analysis
from kernelwright.analysis.facts import Access, LoopFact, Relation
from kernelwright.analysis.polynomial import ONE, ZERO, Polynomial, named


@dataclass(frozen=True, slots=True)
class Touch:
    """One access of global memory with its element as an affine form."""

    access: Access
    form: AffineForm
    is_clamped: bool
    """Whether the index is kept inside its range by `min`, `max` or `?:`."""

    @property
    def array(self) -> str:
        """What it touches."""
        return self.access.array

    @property
    def atoms(self) -> frozenset[str]:
        """What moves the index."""
        return frozenset(self.form.terms)

    @property
    def unit_atoms(self) -> frozenset[str]:
        """What moves the index by one element."""
        return frozenset(name for name, c in self.form.terms.items() if c in (ONE, -ONE))


class Indices:
    """The touches of one kernel, and how they relate."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        self.facts = analysis.facts
        self.movement = analysis.movement
        self.loop_of = {loop.atom: loop for loop in self.facts.loops if loop.atom}
        self._splits = self._found_splits()
        self.touches: dict[int, Touch] = {}
        self.unplaced: list[Access] = []
        """Accesses of global memory whose element is not known or not affine."""
        for access in self.facts.accesses:
            if access.space in ("global", "constant"):
                touch = self._touch(access)
                if touch is None:
                    self.unplaced.append(access)
                else:
                    self.touches[access.index] = touch

    @cached_property
    def writes(self) -> tuple[Touch, ...]:
        """Stores to global memory, accumulating ones too."""
        return tuple(t for t in self.touches.values() if t.access.kind in ("write", "accumulate"))

    @cached_property
    def reads(self) -> tuple[Touch, ...]:
        """Loads from global memory."""
        return tuple(touch for touch in self.touches.values() if touch.access.kind == "read")

    def feeding(self, touch: Touch) -> tuple[Touch, ...]:
        """The loads that a stored value is made of."""
        return tuple(each for each in self.reads if each.access.index in touch.access.sources.accesses)

    def bounds(self, touch: Touch) -> dict[str, Polynomial]:
        """By atom, a size that it stays below."""
        return dict(self.analysis.bounds(touch.access))

    def name(self, atom: str) -> str:
        """An atom as the source calls it."""
        return "something unknown" if "~" in atom else self.facts.names.get(atom, atom)

    def loop(self, atom: str) -> LoopFact | None:
        """The loop that an atom counts."""
        return self.loop_of.get(atom)

    def is_data(self, atom: str) -> bool:
        """Whether an atom was read from memory."""
        return self.movement.is_data(atom)

    def is_followed(self, atom: str) -> bool:
        """Whether it is known what an atom is."""
        return self.facts.atoms[atom].kind not in ("carried", "unknown", "float", "data", "select")

    def axes_of(self, value: Polynomial) -> frozenset[str]:
        """The launch axes that a value depends on."""
        return frozenset(axis for axis in AXES if self.movement.depends_on_axis(value, axis))

    def thread_axes_of(self, value: Polynomial) -> frozenset[str]:
        """The axes along which the threads of one block have different values."""
        found = set()
        for axis in AXES:
            change = self.movement.by_thread(value, axis)
            if change is None or change.terms or self._has_part_of_thread(value, axis):
                found.add(axis)
        return frozenset(found)

    def _has_part_of_thread(self, value: Polynomial, axis: str) -> bool:
        """Whether a quotient of the thread's position stands in a value."""
        for name in value.names:
            atom = self.facts.atoms[name]
            if atom.kind in ("quotient", "remainder"):
                inner = {each for part in atom.parts for each in part.names}
                if inner & {f"thread.{axis}", f"global.{axis}"}:
                    return True
        return False

    def aligned(self, read: Touch, write: Touch) -> Touch:
        """A load in the store's vocabulary: loops that count alike, one after the other, count as one."""
        names = {
            name: other
            for name in sorted(read.atoms - write.atoms)
            for other in sorted(write.atoms - read.atoms)
            if self._counts_alike(name, other)
        }
        if not names:
            return read
        terms = {names.get(name, name): c for name, c in read.form.terms.items()}
        return replace(read, form=AffineForm(MappingProxyType(dict(sorted(terms.items()))), read.form.offset))

    def _counts_alike(self, left: str, right: str) -> bool:
        one, other = self.loop(left), self.loop(right)
        if one is None or other is None or one.start is None or one.step is None:
            return False
        return (one.start, one.operator, one.bound, one.step) == (other.start, other.operator, other.bound, other.step)

    def is_kept_in_place(self, array: str) -> bool:
        """Whether whatever is loaded from a local array is what was stored at that element in the same way."""
        stored: list[Access] = []
        loaded: list[Access] = []
        for access in self.facts.accesses:
            if access.array == array:
                (loaded if access.kind == "read" else stored).append(access)
        return all(any(self._is_same_element(read, write) for write in stored) for read in loaded)

    def _is_same_element(self, read: Access, write: Access) -> bool:
        if read.element is None or write.element is None or write.index > read.index:
            return False
        names = {
            name: named(other)
            for name in sorted(read.element.names - write.element.names)
            for other in sorted(write.element.names - read.element.names)
            if self._counts_alike(name, other)
        }
        return read.element.replaced(names) == write.element

    def local_reads(self, array: str) -> tuple[Touch, ...]:
        """The loads from a shared or local array whose element is affine."""
        found = (self._touch(a) for a in self.facts.accesses if a.array == array and a.kind == "read")
        return tuple(touch for touch in found if touch is not None)

    def needs_earlier_iteration(self, touch: Touch) -> bool:
        """Whether a stored value is made of what an earlier iteration of a loop around the store left."""
        return bool(touch.access.sources.carried & set(touch.access.loops))

    def conditions(self, touch: Touch) -> tuple[tuple[str, str], ...]:
        """What decides on an access beside bounds of indices: as written, and the guard's kind."""
        found = []
        for index in touch.access.guards:
            guard = self.facts.guards[index]
            if not guard.is_complete or not all(self._is_bound(comparison) for comparison in guard.comparisons):
                found.append((" ".join(guard.text.split()), guard.kind))
        return tuple(dict.fromkeys(found))

    def _is_bound(self, comparison: Relation) -> bool:
        kinds = {self.facts.atoms[n].kind for side in (comparison.left, comparison.right) for n in side.names}
        is_known = not kinds & {"data", "float", "carried", "unknown"}
        return is_known and (comparison.operator not in ("==", "!=") or kinds <= {"size"})

    # Common forms

    def _found_splits(self) -> dict[str, Polynomial]:
        """Indices that the kernel takes apart by `/` and `%`, as the sum of their parts."""
        splits: dict[str, Polynomial] = {}
        used = {name for access in self.facts.accesses if access.element is not None for name in access.element.names}
        for name in sorted(used):
            atom = self.facts.atoms[name]
            if atom.kind not in ("quotient", "remainder"):
                continue
            whole, divisor = atom.parts
            remainder = self._division("remainder", whole, divisor)
            quotient = self._division("quotient", whole, divisor)
            single = whole.single_name
            if single and remainder and quotient and self.facts.atoms[single].kind in ("thread", "loop", "quotient"):
                splits.setdefault(single, divisor * named(quotient) + named(remainder))
        return splits

    def _division(self, kind: str, whole: Polynomial, divisor: Polynomial) -> str | None:
        for name, atom in self.facts.atoms.items():
            if atom.kind == kind and atom.parts == (whole, divisor):
                return name
        return None

    def _touch(self, access: Access) -> Touch | None:
        if access.element is None:
            return None
        element, is_clamped = self._without_limits(access)
        for _ in range(4):
            split = element.replaced(self._splits)
            if split == element or not split.is_small:
                break
            element = split
        form = affine_form(element, self.facts.atoms)
        return None if form is None else Touch(access, form, is_clamped)

    def _without_limits(self, access: Access) -> tuple[Polynomial, bool]:
        """With `min(i, n - 1)` and `(i + 1) % n` as `i` and `i + 1`: where the index is inside its range anyway."""
        element, is_clamped = access.element, False
        assert element is not None
        bounds = self.analysis.bounds(access)
        for _ in range(4):
            limits = {name: usual for name in element.names if (usual := self._usual(name, bounds)) is not None}
            if not limits:
                break
            element, is_clamped = element.replaced(limits), True
        return element, is_clamped

    def _usual(self, name: str, bounds: Mapping[str, Polynomial]) -> Polynomial | None:
        """What an index is away from the borders; None for one that is not kept inside a range."""
        atom = self.facts.atoms[name]
        if atom.kind == "select":
            return atom.usual
        if atom.kind != "remainder":
            return None
        whole, length = atom.parts
        moving = [each for each in whole.names if self.facts.atoms[each].kind != "size"]
        if len(moving) != 1 or whole.coefficient(moving[0]) != ONE or bounds.get(moving[0]) != length:
            return None
        back = whole - length
        return back if len(back.terms) < len(whole.terms) else whole


def difference(left: Touch, right: Touch) -> Polynomial | None:
    """How far apart two touches are, where every atom moves both by the same; else None."""
    if left.form.terms != right.form.terms:
        return None
    return left.form.offset - right.form.offset


def steps_apart(
    distance: Polynomial, form: AffineForm, bounds: dict[str, Polynomial], atoms: frozenset[str]
) -> dict[str, Polynomial] | None:
    """By atom, how many steps of it make `distance`; None when no steps that its bounds allow do.

    Each monomial of the distance goes to the atom with the largest coefficient that divides it.
    """
    steps: dict[str, Polynomial] = {}
    order = sorted(atoms & set(form.terms), key=lambda name: _size(form.terms[name]), reverse=True)
    for monomial, coefficient in distance.terms:
        part = Polynomial(((monomial, coefficient),))
        for name in order:
            ratio = part.divided(form.terms[name])
            if ratio is None or _is_out_of_reach(ratio, bounds.get(name)):
                continue
            steps[name] = steps.get(name, ZERO) + ratio
            break
        else:
            return None
    return {name: step for name, step in steps.items() if step.terms}


def _size(coefficient: Polynomial) -> tuple[int, int]:
    degree = max((len(monomial) for monomial, _ in coefficient.terms), default=0)
    return degree, max((abs(value) for _, value in coefficient.terms), default=0)


def _is_out_of_reach(steps: Polynomial, bound: Polynomial | None) -> bool:
    """Whether an index below `bound` can never differ by so many steps."""
    if bound is None:
        return False
    for sign in (ONE, -ONE):
        beyond = (steps * sign - bound).constant
        if beyond is not None and beyond >= 0:
            return True
    ratio = steps.divided(bound) or (-steps).divided(bound)
    return ratio is not None and ratio.constant is not None and ratio.constant != 0
