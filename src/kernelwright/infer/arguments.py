"""Roles, shapes and ranges of a kernel's arguments, from its accesses under one launch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from kernelwright.analysis.analysis import Analysis
from kernelwright.analysis.facts import Access, LoopFact
from kernelwright.analysis.polynomial import ONE, ZERO, Polynomial, named, number
from kernelwright.errors import UsageError
from kernelwright.infer.bounds import AXES, Bounds, Unbounded
from kernelwright.infer.c_types import struct_numbers
from kernelwright.infer.coverage import is_covered
from kernelwright.infer.model import InferredArgument, Question, Values
from kernelwright.infer.symbols import Symbols
from kernelwright.infer.words import Words
from kernelwright.infer.work import chosen_elements
from kernelwright.problem.dtypes import Dtype, integer_range
from kernelwright.problem.model import Role
from kernelwright.problem.source_scan import KernelParameter
from kernelwright.source.language import Language

ROUNDED_UP = 1.3
"""By how much more than is touched an array may be, so that its extents are plain sizes."""
BEYOND = 8
"""Values that a kernel guards against are drawn from a range that is longer by one part in so many on that side."""
ROWS_OF_A_TABLE = 4096
"""That an index array chooses from, where nothing says how many there are."""
ELEMENTS_OF_A_PART = 32
"""Between two offsets on average, where nothing says how many there are."""

FROM_MEMORY = "an index is read from memory and computed with"

_ONE_A_THREAD = "one element a thread"
_BEFORE_THE_FIRST = "it seems to be touched before its first element"
_AMONG_OTHERS = "an index that is not followed is taken to lie among the others"
_COUNTED = "counted on these sizes"
GUESSED_EXTENTS = (_ONE_A_THREAD, _BEFORE_THE_FIRST, _AMONG_OTHERS, _COUNTED)
"""How the note of an array begins whose extents its kernel's text does not say."""

NOT_FOLLOWED = ("carried", "select", "unknown")
"""Kinds of indices that lie among an array's others, as far as anybody can tell."""


@dataclass(slots=True)
class ArrayReader:
    """What one kernel's pointers need to hold."""

    analysis: Analysis
    language: Language
    parameters: Mapping[str, KernelParameter]
    """The kernel's pointers, by name."""
    symbols: Symbols
    words: Words
    spare: tuple[str, ...]
    """By-value integers that the kernel's body never names."""
    asks: bool = True
    """Whether what cannot be known is asked; else it is guessed, and marked."""
    questions: list[Question] = field(default_factory=list)
    guessed_sizes: set[str] = field(default_factory=set)
    ranges: dict[str, tuple[Polynomial, Polynomial]] = field(default_factory=dict)
    distinct: set[str] = field(default_factory=set)
    """Arrays whose values say where threads write: no two are the same."""
    offsets: set[str] = field(default_factory=set)
    """Arrays whose neighbours are where walks start and end: no value is below the one before."""
    notes: dict[str, str] = field(default_factory=dict)
    """By array, why its bounds are a guess."""

    def arguments(self, dtypes: Mapping[str, Dtype], names: Mapping[str, str]) -> dict[str, InferredArgument]:
        """By pointer, its argument; `names`: what the problem calls them."""
        self._find_ranges(dtypes)
        found = {}
        for name, parameter in self.parameters.items():
            found[name] = self._argument(name, parameter, dtypes[name], names[name])
        return found

    @property
    def _accesses(self) -> tuple[Access, ...]:
        return self.analysis.facts.accesses

    def _of(self, array: str) -> list[Access]:
        return [each for each in self._accesses if each.array == array]

    def bounds(self) -> Bounds:
        """With all ranges that are known so far."""
        return Bounds(self.analysis.facts, self.symbols, ranges=self.ranges)

    # -- values that index others --------------------------------------------------------------------

    def _find_ranges(self, dtypes: Mapping[str, Dtype]) -> None:
        waiting = dict.fromkeys(each for each in self._index_arrays() if dtypes[each].is_integer)
        self.offsets |= {each for each in waiting if self._says_where_walks_end(each)}
        for array in list(waiting):
            known = self._said_range(array)
            if known is not None:
                self.ranges[array] = number(known[0]), number(known[1])
                del waiting[array]
        for array in [each for each in waiting if self._is_loop_bound(each)]:
            walk = self._walk_range(array, dtypes[array])
            if walk is None:
                self._miss_walk_range(array)
            else:
                self.ranges[array] = walk
            del waiting[array]
        self._require_room(dtypes)
        self.distinct |= {each for each in waiting if self._says_where_to_write(each)}
        for is_last in (False, True):
            for array in list(waiting):
                high = self._highest_index(array, dtypes[array], is_last=is_last)
                if high is not None:
                    self.ranges[array] = self._with_guarded(array, dtypes[array], high)
                    del waiting[array]

    def _require_room(self, dtypes: Mapping[str, Dtype]) -> None:
        """Refuse offsets up to a total that their type does not hold."""
        for array in sorted(self.offsets & self.ranges.keys()):
            least, greatest = integer_range(dtypes[array])
            for value in map(self.symbols.number, self.ranges[array]):
                if value is not None and not least <= value <= greatest:
                    raise UsageError(
                        f"the offsets in {array!r} go to {value}, and {dtypes[array].name} holds {least} to {greatest}",
                        hint=f"say a smaller total, {array}=0..{greatest} at most, or give the kernel a wider type",
                    )

    def _walk_range(self, array: str, dtype: Dtype) -> tuple[Polynomial, Polynomial] | None:
        """The values of an array that say how far loops go; None where nothing says how far that is."""
        longest = self._longest_walk(array)
        if longest is not None:
            self.notes[array] = "lengths of walks, up to what rows have room for"
            return ONE, longest
        total = self._walked_elements(array) if array in self.offsets else None
        if total is None and array in self.offsets and not self.asks:
            total = min(ELEMENTS_OF_A_PART * self._count(array), integer_range(dtype)[1])
            self.notes[array] = f"{ELEMENTS_OF_A_PART} elements a part or fewer, which nothing says"
        return None if total is None else (ZERO, number(total))

    def _miss_walk_range(self, array: str) -> None:
        """Ask for it, or leave the array to whoever corrects the problem."""
        why = f"the values of {array!r} bound a loop, so they cannot be drawn at random"
        if not self.asks:
            self.notes[array] = f"{why}: give a file"
            return
        self.ranges[array] = ZERO, ZERO
        if array in self.offsets:
            self.questions.append(Question(f"{array}=0..TOTAL", self._asked_total(array)))
        else:
            self.questions.append(Question(f"{array}=FILE.npy", why))

    def _said_range(self, array: str) -> tuple[int, int] | None:
        if array in self.words.ranges:
            return self.words.ranges[array]
        if array in self.words.files:
            return file_range(self.words, array)
        return None

    def _index_arrays(self) -> Iterator[str]:
        bounds = self.bounds()
        for access in self._accesses:
            for name in sorted(access.element.names) if access.element is not None else ():
                yield from self._behind(name, bounds)
        for loop in self.analysis.facts.loops:
            for part in (loop.start, loop.bound):
                for name in sorted(part.names) if part is not None else ():
                    yield from self._behind(name, bounds)

    def _behind(self, name: str, bounds: Bounds, depth: int = 0) -> Iterator[str]:
        """The parameter arrays whose values are in a name."""
        atom = self.analysis.facts.atoms[name]
        if atom.kind == "data":
            array = bounds.source_of(atom)
            if array is not None and array in self.parameters:
                yield array
        loop = bounds.loops.get(name)
        parts = list(atom.parts)
        if loop is not None:
            parts += [each for each in (loop.start, loop.bound) if each is not None]
        if depth < 6:
            for part in parts:
                for inner in sorted(part.names - {name}):
                    yield from self._behind(inner, bounds, depth + 1)

    def _says_where_to_write(self, array: str) -> bool:
        """Whether threads write, not atomically, to elements that its values choose."""
        bounds = self.bounds()
        for access in self._accesses:
            if access.element is None or access.kind == "read" or access.is_atomic or access.space != "global":
                continue
            if any(array in self._behind(name, bounds) for name in access.element.names):
                return True
        return False

    def _is_loop_bound(self, array: str) -> bool:
        bounds = self.bounds()
        for loop in self.analysis.facts.loops:
            for part in (loop.start, loop.bound):
                for name in part.names if part is not None else ():
                    if array in self._behind(name, bounds):
                        return True
        return False

    def _says_where_walks_end(self, array: str) -> bool:
        """Whether one loop reads two neighbours of it as its start and its end: `k = p[r]; k < p[r + 1]`."""
        return any(self._goes_to_neighbour(loop, array) for loop in self.analysis.facts.loops)

    def _goes_to_neighbour(self, loop: LoopFact, array: str) -> bool:
        """Whether a loop goes from one value of it to the next one, or over as many steps as lie between them."""
        start = None if loop.start is None else self._values_in(loop.start, array)
        if start is None or loop.bound is None or len(start) > 1 or any(factor != 1 for _, factor in start):
            return False
        last = loop.bound + ONE if loop.operator == "<=" else loop.bound
        atom = self.analysis.facts.atoms[last.single_name] if last.single_name is not None else None
        ends = (last, *(atom.parts if atom is not None and atom.kind == "select" else ()))
        return any(self._is_next(start, end, array) for end in ends)

    def _is_next(self, start: list[tuple[Polynomial, int]], end: Polynomial, array: str) -> bool:
        """Whether an end is the value behind the start's, or, without one, how far two neighbours are apart."""
        values = self._values_in(end, array)
        if not values or len(values) != len(end.terms):
            return False
        ends = [element for element, factor in values if factor == 1]
        starts = [element for element, factor in start or values if factor == (1 if start else -1)]
        is_whole = len(values) == len(ends) + (0 if start else len(starts))
        return is_whole and len(ends) == len(starts) == 1 and ends[0] - starts[0] == ONE

    def _values_in(self, value: Polynomial, array: str) -> list[tuple[Polynomial, int]] | None:
        """The elements of it whose values are added up in a value, and how often; None: in another way."""
        bounds, found = self.bounds(), []
        for names, factor in value.terms:
            if not any(array in self._behind(name, bounds) for name in names):
                continue
            element = self._element_read(names[0]) if len(names) == 1 else None
            if element is None:
                return None
            found.append((element, factor))
        return found

    def _element_read(self, name: str) -> Polynomial | None:
        """The element whose value a name is; None: it is something else."""
        atom = self.analysis.facts.atoms[name]
        if atom.kind != "data" or len(atom.sources.accesses) != 1:
            return None
        (index,) = atom.sources.accesses
        return self.analysis.facts.accesses[index].element

    def _reads_behind(self, loop: LoopFact) -> Iterator[Access]:
        """The reads whose values are in a loop's start or end."""
        waiting = [name for part in (loop.start, loop.bound) if part is not None for name in part.names]
        seen = set(waiting)
        while waiting:
            atom = self.analysis.facts.atoms[waiting.pop()]
            if atom.kind == "data":
                yield from (self.analysis.facts.accesses[index] for index in atom.sources.accesses)
            inner = {name for part in atom.parts for name in part.names} - seen
            seen |= inner
            waiting += sorted(inner)

    def _walks(self, array: str) -> Iterator[str]:
        """The arrays of which its values cut out parts."""
        bounds = self.bounds()
        for access in self._accesses:
            names = access.element.names if access.element is not None and access.array != array else ()
            loops = [bounds.loops[each] for each in names if each in bounds.loops]
            if any(read.array == array for loop in loops for read in self._reads_behind(loop)):
                yield access.array

    def _walked_elements(self, array: str) -> int | None:
        """How many elements the arrays have that it cuts into parts, where a person says so of one."""
        found = [self._said_elements(each) for each in self._walks(array)]
        return min((each for each in found if each is not None), default=None)

    def _asked_total(self, array: str) -> str:
        walked = ", ".join(dict.fromkeys(map(repr, self._walks(array)))) or "what the loop walks"
        return f"its values cut {walked} into parts; TOTAL is how many elements these have"

    def _longest_walk(self, array: str) -> Polynomial | None:
        """How long a walk may be whose end its values say: what rows of the arrays that are walked have room for.

        `x[row * most + t]` has room for `most` steps of `t`; None where a loop also starts at a value.
        """
        facts, bounds = self.analysis.facts, self.bounds()
        found: list[tuple[int, Polynomial]] = []
        for loop in facts.loops:
            if loop.start is not None and any(array in self._behind(name, bounds) for name in loop.start.names):
                return None
            atom = None if loop.bound is None or loop.bound.single_name is None else facts.atoms[loop.bound.single_name]
            if atom is None or atom.kind != "data" or bounds.source_of(atom) != array:
                continue
            for access in self._accesses:
                if access.element is not None and loop.atom in access.element.names and loop.operator == "<":
                    found += self._room(access.element, loop.atom)
        return min(found, key=lambda each: each[0])[1] if found else None

    def _room(self, element: Polynomial, walker: str) -> Iterator[tuple[int, Polynomial]]:
        """How many steps of one index another one jumps over."""
        value = self.symbols.plain(element)
        own = value.coefficient(walker)
        for name in self.symbols.moving(value):
            apart = value.coefficient(name)
            ratio = None if name == walker or apart is None or own is None or not own.terms else apart.divided(own)
            size = None if ratio is None or self.symbols.moving(ratio) else self.symbols.number(ratio)
            if ratio is not None and size is not None and size > 1:
                yield size, ratio

    def _highest_index(self, array: str, dtype: Dtype, *, is_last: bool) -> Polynomial | None:
        """The greatest value that keeps every access inside; None where that is not known yet."""
        found: list[tuple[int, Polynomial]] = []
        bounds = self.bounds()
        for access in self._accesses:
            for name in access.element.names if access.element is not None else ():
                atom = self.analysis.facts.atoms[name]
                if atom.kind != "data" or bounds.source_of(atom) != array:
                    continue
                for high in self._limits(name, access, bounds):
                    size = self.symbols.number(high)
                    if size is not None and size >= 0:
                        found.append((size, high))
        if dtype.item_bytes == 1 and (found or is_last):
            found.append((integer_range(dtype)[1], number(integer_range(dtype)[1])))
        if found:
            return min(found, key=lambda each: each[0])[1]
        return self._chosen_rows(array) - ONE if is_last else None

    def _with_guarded(self, array: str, dtype: Dtype, high: Polynomial) -> tuple[Polynomial, Polynomial]:
        """From 0 to the highest index, and beyond where the kernel itself asks whether a value is inside.

        Such values come in use (a padding of -1), so a kernel that no longer asks must be seen to be wrong.
        """
        bounds = self.bounds()
        last = self.symbols.number(high)
        uses = [
            (named(name), bounds.of_access(access))
            for access in self._accesses
            for name in (access.element.names if access.element is not None else ())
            if self.analysis.facts.atoms[name].kind == "data"
            and bounds.source_of(self.analysis.facts.atoms[name]) == array
        ]
        if not uses or last is None:
            return ZERO, high
        more = last // BEYOND + 1
        least, most = integer_range(dtype)
        is_low = all(any(each.left == -value for each in guards) for value, guards in uses)
        is_high = all(any(each.left == value for each in guards) for value, guards in uses)
        low = number(-more) if is_low and -more >= least else ZERO
        return low, high + number(more) if is_high and last + more <= most else high

    def _limits(self, name: str, access: Access, bounds: Bounds) -> Iterator[Polynomial]:
        for constraint in bounds.of_access(access):
            if constraint.left == named(name):
                yield constraint.right
        assert access.element is not None
        element = self.symbols.plain(access.element)
        factor = element.coefficient(name)
        total = self._elements_without(access.array, name, bounds)
        if factor is None or total is None or not (self.symbols.number(factor) or 0) > 0:
            return
        try:
            rest = bounds.upper(element - factor * named(name) + access.width - ONE, bounds.of_access(access))
        except Unbounded:
            return
        yield self.symbols.floor(total - ONE - rest, factor)

    def _elements_without(self, array: str, name: str, bounds: Bounds) -> Polynomial | None:
        """How many elements an array has by its declaration, by a person's word, or by its other accesses."""
        declared = self.analysis.facts.arrays[array]
        if not declared.is_parameter:
            total = ONE
            for extent in declared.extents:
                if extent is None:
                    return None
                total = total * self.symbols.plain(extent)
            return total if declared.extents else None
        said = self._said_elements(array)
        if said is not None:
            return number(said)
        found = []
        for access in self._of(array):
            if access.element is None or name in access.element.names:
                continue
            try:
                last = bounds.largest(access)
            except Unbounded:
                continue
            size = self.symbols.number(last)
            if size is not None:
                found.append((size, last))
        return self._rounded(max(found, key=lambda each: each[0])[1] + ONE) if found else None

    def _chosen_rows(self, array: str) -> Polynomial:
        if len(self.spare) == 1:
            self.notes[array] = f"its values are below {self.spare[0]!r}, which nothing else names"
            return named(self.spare[0])
        name = f"{array}_values"
        rows = self._count(array) if array in self.distinct else ROWS_OF_A_TABLE
        self.symbols.values[name] = int(self.words.numbers.get(name, rows))
        if name not in self.words.numbers and array not in self.distinct:
            self.guessed_sizes.add(name)
        self.notes[array] = f"its values are below {name}, which nothing says"
        return named(name)

    def _count(self, array: str) -> int:
        """How many elements an array has, or more: a power of two."""
        try:
            last = self.symbols.number(self._last(self._of(array))[0])
        except Unbounded:
            last = None
        return ROWS_OF_A_TABLE if last is None else 1 << last.bit_length()

    # -- shapes --------------------------------------------------------------------------------------

    def _argument(self, name: str, parameter: KernelParameter, dtype: Dtype, shown: str) -> InferredArgument:
        file = str(self.words.files[name]) if name in self.words.files else ""
        if parameter.address_space == "local":
            return self._local(name, dtype, shown)
        accesses = self._of(name)
        extents, note, total = self._shape(name, accesses)
        width = self.analysis.facts.arrays[name].width if name in self.analysis.facts.arrays else 1
        struct = struct_numbers(parameter.c_type, self.analysis, self.language)
        role: Role = "input"
        if not parameter.is_const and parameter.address_space != "constant":
            role = self._role(name, accesses, total)
        if struct is not None:
            width = struct[1]
            role = "inout" if role == "output" else role  # some members may be left as they are
        shape = (*extents, str(width)) if width > 1 else extents
        limits = None
        if name in self.ranges and not file:
            low, high = (self.symbols.number(each) for each in self.ranges[name])
            limits = (low or 0, high or 0)
        note = note or self.notes.get(name, "")
        values: Values = "random"
        if not file and limits is not None and name in self.offsets:
            values, file = "offsets", f"{shown}.npy"
            note = f"{note}; parts of different lengths, some of them empty".removeprefix("; ")
        is_distinct = name in self.distinct and not file
        values = "distinct" if is_distinct else values
        if is_distinct and limits is not None and total is not None:
            is_enough = limits[1] + 1 >= total
            said = "none stands twice" if is_enough else f"some stand twice, {limits[1] + 1} are too few for {total}"
            note = f"{note}; {said}".removeprefix("; ")
            if not is_enough and self.asks:
                why = f"its values say where threads write, and {limits[1] + 1} are too few for {total} elements"
                self.questions.append(Question(f"{name}=FILE.npy", why))
            file = f"{shown}.npy"
        found = InferredArgument(shown, role, dtype, shape, bounds=limits, file=file, values=values, note=note)
        is_accumulated = bool(accesses) and all(each.kind == "accumulate" or each.is_atomic for each in accesses)
        chosen = self._chosen(accesses) if self._is_indexed(name) else None
        return replace(found, chosen=chosen, is_accumulated=is_accumulated)

    def _chosen(self, accesses: list[Access]) -> str:
        counts: dict[str, Polynomial] = {}
        for each in self.parameters.keys() - self.words.files.keys():  # nobody knows what a file's values choose
            with suppress(Unbounded):
                counts[each] = self._last(self._of(each))[0] + ONE
        return chosen_elements(accesses, self.bounds(), counts)

    def _is_indexed(self, array: str) -> bool:
        """Whether values of other arrays choose all the elements that are touched; parts of it are all of it."""
        if any(array in self._walks(each) for each in self.offsets):
            return False
        bounds, accesses = self.bounds(), self._of(array)
        elements = [each.element for each in accesses if each.element is not None]
        return bool(elements) and all(
            any(True for name in each.names for _ in self._behind(name, bounds)) for each in elements
        )

    def _local(self, name: str, dtype: Dtype, shown: str) -> InferredArgument:
        accesses = self._of(name)
        try:
            last, _ = self._last(accesses)
        except Unbounded:
            extents = [value for key, value in self.symbols.fixed.items() if key.startswith("block_size.")]
            threads = 1
            for extent in extents:
                threads *= extent
            note = f"local memory: {_ONE_A_THREAD}"
            return InferredArgument(shown, "local", dtype, (str(threads),), note=note)
        return InferredArgument(shown, "local", dtype, (self.symbols.text(last + ONE) or "1",))

    def _said_elements(self, name: str) -> int | None:
        if name in self.words.extents:
            total = 1
            for extent in self.words.extents[name]:
                total *= extent
            return total
        if name in self.words.files:
            return file_elements(self.words, name)
        said = self.words.numbers.get(name)
        return said if isinstance(said, int) else None

    def _shape(self, name: str, accesses: list[Access]) -> tuple[tuple[str, ...], str, int | None]:
        """Extents, why they are a guess, and how many elements there are; a question where they are not known."""
        if name in self.words.extents:
            said = self.words.extents[name]
            return tuple(map(str, said)), "", self._said_elements(name)
        elements = self._said_elements(name)
        if elements is not None:
            return (str(elements),), "", elements
        if not accesses:
            return ("1",), "the kernel does not use it", 1
        try:
            last, guess = self._last(accesses)
        except Unbounded as error:
            why = self._why(error.name)
            if not self.asks:
                return self._one_a_thread(), f"{_ONE_A_THREAD}: {why}", None
            self.questions.append(Question(f"{name}=ELEMENTS", f"how many elements {name!r} has: {why}"))
            return ("1",), "", None
        total = self._rounded(last + ONE)
        extents = self._extents(total, accesses)
        if extents is None:
            value = self.symbols.number(total)
            return (str(value),), _COUNTED, value
        note = _BEFORE_THE_FIRST if self._may_be_negative(accesses) else guess
        return extents, note, self.symbols.number(total)

    def _may_be_negative(self, accesses: list[Access]) -> bool:
        """Whether the least index of an access is known, and below 0: no extent makes that right."""
        bounds = self.bounds()
        for access in accesses:
            assert access.element is not None
            try:
                least = self.symbols.number(bounds.upper(-access.element, bounds.of_access(access)))
            except Unbounded:
                continue
            if least is not None and least > 0:
                return True
        return False

    def _one_a_thread(self) -> tuple[str, ...]:
        """As many elements as the launch has threads."""
        found = []
        for axis in AXES:
            blocks, _ = self.symbols.derived.get(f"grid_size.{axis}", ("1", 1))
            found.append(f"{blocks} * {self.symbols.fixed.get(f'block_size.{axis}', 1)}")
        return tuple(text for text in reversed(found) if text not in ("1 * 1", "(1) * 1")) or ("1",)

    def _why(self, name: str) -> str:
        atom = self.analysis.facts.atoms.get(name)
        if atom is None:
            return name or "its index is not understood"
        words = {
            "data": FROM_MEMORY,
            "carried": "an index changes from step to step in a way that is not followed",
            "unknown": "an index is not understood",
            "loop": "a loop's bounds are not understood",
        }
        return words.get(atom.kind, f"nothing bounds {name}")

    def _last(self, accesses: list[Access]) -> tuple[Polynomial, str]:
        """The last element that any access touches, and why that is a guess.

        An index that a loop carries from step to step, the place of a maximum say, is taken to lie among the others.
        """
        bounds = self.bounds()
        found: list[tuple[int, Polynomial]] = []
        carried: Unbounded | None = None
        for access in accesses:
            try:
                last = bounds.largest(access)
            except Unbounded as error:
                atom = self.analysis.facts.atoms.get(error.name)
                if atom is None or atom.kind not in NOT_FOLLOWED:
                    raise
                carried = error
                continue
            size = self.symbols.number(last)
            if size is None:
                raise Unbounded("")
            found.append((size, last))
        is_told = any(last.constant is None for _, last in found)
        if not found or (carried is not None and not is_told):  # the first element alone says nothing of the others
            raise carried or Unbounded("")
        guess = "" if carried is None else _AMONG_OTHERS
        return max(found, key=lambda each: (each[0], -len(each[1].terms)))[1], guess

    def _rounded(self, total: Polynomial) -> Polynomial:
        """A single product of sizes where that is hardly more: `height * stride` for a last row that ends early."""
        total = self._without_quotients(total)
        size = self.symbols.number(total)
        if len(total.terms) <= 1 or size is None:
            return total
        degree = max(len(monomial) for monomial, _ in total.terms)
        top = [(monomial, factor) for monomial, factor in total.terms if len(monomial) == degree and factor > 0]
        for monomial, factor in top:
            whole = Polynomial(((monomial, factor),))
            value = self.symbols.number(whole)
            if value is not None and size <= value <= ROUNDED_UP * size and degree > 1:
                return whole
        return total

    def _without_quotients(self, total: Polynomial) -> Polynomial:
        """`n` for `16 * (n // 16)`, where that is the same: never less on any sizes."""
        for name in total.names:
            share = self.symbols.share(name)
            if share is None or any(factor % share[1] for names, factor in total.terms if name in names):
                continue
            factor = total.coefficient(name)
            if factor is None:
                continue
            shares = Polynomial(tuple((names, number_ // share[1]) for names, number_ in factor.terms))
            whole = total.without((name,)) + shares * self.symbols.plain(share[0])
            if self.symbols.number(whole) == self.symbols.number(total):
                total = whole
        return total

    def _extents(self, total: Polynomial, accesses: list[Access]) -> tuple[str, ...] | None:
        """One extent a factor, the one that rows are counted in first."""
        if len(total.terms) != 1:
            text = self.symbols.text(total)
            return None if text is None else (text,)
        (monomial, factor), *_ = total.terms
        own, all_ = (self._as_strides(monomial, each) for each in (accesses, self._accesses))
        ordered = sorted(monomial, key=lambda name: (own[name], all_[name]))
        texts = [self.symbols.text(named(name)) for name in ordered]
        if any(text is None for text in texts):
            return None
        kept = [text for text in texts if text is not None]
        if not kept:
            return (str(factor),)
        if factor == 1:
            return tuple(kept)
        return (*kept, str(factor)) if self._is_inner(factor, accesses) else (f"{factor} * {kept[0]}", *kept[1:])

    def _as_strides(self, names: tuple[str, ...], accesses: Sequence[Access]) -> dict[str, int]:
        """By size, how often indices step by it."""
        strides = dict.fromkeys(names, 0)
        for access in accesses:
            element = ZERO if access.element is None else self.symbols.plain(access.element)
            for terms, _ in element.terms:
                for name in strides.keys() & set(terms):
                    strides[name] += 1
        return strides

    def _is_inner(self, factor: int, accesses: list[Access]) -> bool:
        """Whether rows are so many elements apart."""
        for access in accesses:
            element = ZERO if access.element is None else self.symbols.plain(access.element)
            if any(coefficient % factor == 0 and names for names, coefficient in element.terms):
                return True
        return False

    # -- roles ---------------------------------------------------------------------------------------

    def _role(self, name: str, accesses: list[Access], total: int | None) -> Role:
        """`output` only where every element is surely written and none is read; what is kept back is `inout`."""
        writes = [each for each in accesses if each.kind in ("write", "accumulate", "unknown")]
        if not writes:
            return "input"
        if any(each.kind != "write" or each.is_atomic for each in accesses):
            return "inout"
        return "output" if total is not None and is_covered(writes, total, self.bounds()) else "inout"


def file_elements(words: Words, name: str) -> int:
    """How many elements a `.npy` file has."""
    import numpy as np

    try:
        return int(np.load(words.files[name], mmap_mode="r", allow_pickle=False).size)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {words.files[name]}: {error}", hint="give a .npy file of numbers") from None


def file_range(words: Words, name: str) -> tuple[int, int]:
    """The least and greatest value of a `.npy` file."""
    import numpy as np

    try:
        values = np.load(words.files[name], mmap_mode="r", allow_pickle=False)
        return (int(values.min()), int(values.max())) if values.size else (0, 0)
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"cannot read {words.files[name]}: {error}", hint="give a .npy file of numbers") from None
