"""Products whose blocks keep tiles in shared memory, as plain loops over what the tiles were copied from.

`for (t ...) { As[ty][tx] = A[row * K + t * 16 + tx]; ...; for (k ...) sum += As[ty][k] * Bs[k][tx]; ... }` says the
same as `for (k ...) sum += A[row * K + k] * B[k * N + col];`. What a thread reads of a tile is what some thread copied
to that place: the place of the copy is solved for that thread, term by term.

`direct` looks at every thread and step instead, but leaves out conditions that hold on all workloads: a loop over tiles
then ends at a whole tile, which is right for these sizes alone. Here a product ends where its conditions say, for any
size, so both ways stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from kernelwright.analysis.facts import Access, LoopFact, Relation
from kernelwright.analysis.polynomial import ONE, Polynomial, named, number
from kernelwright.source import nodes
from kernelwright.source.edits import Edit, apply, insertion
from kernelwright.source.span import Span
from kernelwright.tactics.base import NotApplicable, Rewrite, Subject, Tactic, Unfit, Wrapped
from kernelwright.tactics.common.editing import refuse_arranged, refuse_opaque
from kernelwright.tactics.common.iteration_domain import expression_of, total_of
from kernelwright.tactics.common.launches import AXES, only_shape
from kernelwright.tactics.common.launches import number as extent_number
from kernelwright.tactics.common.thread_queries import query_text, thread_queries
from kernelwright.tactics.tiling.direct import direct
from kernelwright.tactics.tiling.frame import edited
from kernelwright.tactics.tiling.index_text import query
from kernelwright.tactics.tiling.places import instance_of
from kernelwright.tactics.tiling.plain_places import is_among_all

_ROW, _COLUMN = "tile.row", "tile.column"
_STEP, _DEPTH = "tile.step", "tile.depth"
_CONVERSIONS = frozenset(("__half2float", "__bfloat162float", "convert_float", "convert_double", "convert_int"))
_WITHOUT_EFFECT = _CONVERSIONS | {"min", "max", "mul24", "mad24", "__mul24", "__ldg", "__float2half"}
_ALONG_X = ("threadIdx.x", "get_local_id(0)")
_BESIDE_ROWS = frozenset(("threadIdx.y", "blockDim.x", "blockDim.y", "get_local_id(1)", "get_local_size(0)",
                          "get_local_size(1)", "get_global_id(0)", "get_global_id(1)"))  # fmt: skip


def also_unstaged(tactic: Tactic) -> Tactic:
    """A tactic that also looks at a kernel without its tiles in shared memory, where it does not apply as it is."""
    return Wrapped(tactic, _apply_unstaged)


def _apply_unstaged(tactic: Tactic, subject: Subject) -> Rewrite | NotApplicable:
    first = tactic.apply(subject)
    if isinstance(first, Rewrite):
        return first
    for plain in _plain_forms(subject, is_product=tactic.name == "contraction-tiles"):
        made = tactic.apply(plain)
        if isinstance(made, Rewrite) and not _has_lifted(plain, made):
            return replace(made, anchors=(Span(0, len(subject.source.encode("utf-8", "surrogatepass"))),))
    return first


def _plain_forms(subject: Subject, *, is_product: bool) -> Iterator[Subject]:
    """The kernel without shared memory: as a product's one loop, as reads of what was staged, in normal form too."""
    if not any(each.space == "shared" for each in subject.analysis.facts.arrays.values()):
        return
    for form in (unstaged, direct) if is_product else (direct,):
        for each in (subject, subject.normal) if form is direct else (subject,):
            try:
                made = None if each is None else form(each)
            except Unfit:
                continue
            if made is not None and (form is unstaged or is_among_all(made)):
                yield made


def _has_lifted(plain: Subject, rewrite: Rewrite) -> bool:
    """Whether a macro of the source became a parameter: places of what was staged are made with its value."""
    macros = plain.analysis.tree.expanded.macros
    return any(each.name in macros for each in rewrite.header.parameters)


def unstaged(subject: Subject) -> Subject:
    """The kernel with one loop in place of the loop over tiles and the loop within a tile.

    Raises:
        Unfit: it has no such loops, or does more in them than copy and join.
    """
    refuse_opaque(subject)
    refuse_arranged(subject, "contraction-tiles", "stencil-tiles", "transpose-tiles", "join-steps")
    subject = _by_two_axes(subject)
    tiles = _Tiles(subject, *_two_loops(subject))
    source = apply(subject.source, tiles.edits())
    step = only_shape(subject)
    none = None if step.shared_bytes is None else "0"
    header = subject.header.relaunched(step.entry, grid=step.grid, block=step.block, shared_bytes=none)
    return replace(subject, source=source, header=header)


def _by_two_axes(subject: Subject) -> Subject:
    """A kernel that takes rows and columns from one axis, `threadIdx.x / 32` and `threadIdx.x % 32`, with two axes."""
    step = only_shape(subject)
    block = [extent_number(each) for each in step.block]
    body = subject.analysis.function.body
    asked = thread_queries(body)
    if block[0] is None or any(each != 1 for each in block[1:]) or asked.keys() & _BESIDE_ROWS:
        return subject
    parts = [each for each in nodes.walk(body) if isinstance(each, nodes.Binary)
             and each.operator in ("/", "%") and query_text(each.left) in _ALONG_X]  # fmt: skip
    widths = {each.right.value if isinstance(each.right, nodes.Literal) else None for each in parts}
    width = next(iter(widths), None)
    if len(parts) < sum(asked.get(each, 0) for each in _ALONG_X) or len(widths) != 1 or not width or block[0] % width:
        return subject
    shape = (width, block[0] // width)
    words = {"%": "x", "/": "y"}
    if _is_column_along_y(subject, width):
        shape, words = shape[::-1], {"%": "y", "/": "x"}
    is_opencl = subject.language == "opencl"
    edits = [Edit(each.place.span, query("thread", words[each.operator], is_opencl=is_opencl)) for each in parts]
    if not all(each.place.is_exact for each in parts):
        return subject
    header = subject.header.relaunched(step.entry, grid=step.grid, block=map(str, shape))
    return replace(subject, source=apply(subject.source, edits), header=header)


def _is_column_along_y(subject: Subject, width: int) -> bool:
    """Whether the columns of neighbouring blocks along y follow each other in what is stored."""
    facts = subject.analysis.facts
    columns = [name for name, atom in facts.atoms.items() if atom.kind == "remainder" and atom.parts
               and atom.parts[0] == named("thread.x")]  # fmt: skip
    for access in facts.accesses:
        if access.kind == "read" or access.space != "global" or access.element is None:
            continue
        for name in columns:
            own, blocks = access.element.coefficient(name), access.element.coefficient("block.y")
            if own is not None and own.terms and blocks == own * number(width):
                return True
    return False


def _two_loops(subject: Subject) -> tuple[LoopFact, LoopFact]:
    """The loop over tiles, and the one loop in it that reads them."""
    facts = subject.analysis.facts
    reads = {each.loops for each in facts.accesses if each.space == "shared" and each.kind == "read"}
    found = next(iter(reads), ())
    if len(reads) != 1 or len(found) != 2:
        raise Unfit("no one loop in another one reads tiles")
    outer, inner = (facts.loops[index] for index in found)
    for loop in (outer, inner):
        is_plain = (
            loop.is_exact and not loop.ends_early and not loop.inlined_in and loop.atom and loop.step is not None
            and loop.step.kind == "add" and loop.start is not None and loop.bound is not None
            and loop.operator in ("<", "<=")
        )  # fmt: skip
        if not is_plain:
            raise Unfit("how its loops count is not followed")
    if outer.parent is not None or inner.start != Polynomial() or inner.operator != "<":
        raise Unfit("its loop within a tile does not begin with the tile")
    if inner.step is None or inner.step.amount != ONE:
        raise Unfit("its loop within a tile skips elements")
    return outer, inner


@dataclass(frozen=True, slots=True)
class _Copied:
    """What lies at a place of a tile: `array[element]`, in the tile's row and column."""

    array: str
    element: Polynomial
    conditions: tuple[Relation, ...]


class _Tiles:
    """The tiles of one kernel, and what the kernel is without them."""

    def __init__(self, subject: Subject, outer: LoopFact, inner: LoopFact) -> None:
        self._subject = subject
        self._facts = subject.analysis.facts
        self._outer, self._inner = outer, inner
        self._body = subject.analysis.function.body
        self._outer_node, self._inner_node = self._node(outer, self._body), self._node(inner, self._body)
        self._block = self._block_extents()
        self._instance = instance_of(subject)
        self._depth_ends: list[Polynomial] = []
        self._conditions: dict[str, None] = {}

    def edits(self) -> list[Edit]:
        """What makes the plain kernel of the source."""
        self._refuse_other_work()
        texts = {read.span: self._value(read) for read in self._shared("read")}
        inner = self._inner_node
        body = edited(self._subject.source, inner.body.place.span, [Edit(*each) for each in texts.items()])
        depth = self._named("along")
        exits = "".join(f"if (!({each})) return;\n  " for each in self._conditions)
        head = f"{exits}for (int {depth} = 0; {depth} < {self._end()}; ++{depth}) "
        found = [Edit(self._outer_node.place.span, head + body)]
        found += [Edit(mark.span, "") for mark in self._outer_node.pragmas]
        found += [Edit(each.span, "") for each in self._facts.barriers if not self._outer.span.contains(each.span)]
        gone = [self._outer_node.place.span, *self._declarations()]
        found += [Edit(each, "") for each in gone[1:]]
        found += self._given_numbers(gone)
        return found + list(self._kept_pointers())

    def _given_numbers(self, gone: Sequence[Span]) -> Iterator[Edit]:
        """Numbers in place of template parameters, so that places read the same everywhere."""
        for node in nodes.walk(self._body):
            if not isinstance(node, nodes.Name) or node.name not in self._instance or not node.place.is_exact:
                continue
            if not any(each.contains(node.place.span) for each in gone):
                yield Edit(node.place.span, str(self._instance[node.name].constant))

    # -- what must hold ------------------------------------------------------------------------------

    def _node(self, loop: LoopFact, body: nodes.Node) -> nodes.Loop:
        for node in nodes.walk(body):
            if isinstance(node, nodes.Loop) and node.place.span == loop.span and node.place.is_exact:
                return node
        raise Unfit("its loop is made by a macro")

    def _block_extents(self) -> dict[str, Polynomial]:
        found = {}
        texts = [each.text for each in only_shape(self._subject).block]
        for axis, text in zip(AXES, (*texts, "1", "1")[:3], strict=True):
            value = extent_number(text)
            if value is None and not text.isidentifier():
                raise Unfit("the shape of its blocks is not known")
            found[f"block_size.{axis}"] = named(text) if value is None else number(value)
        return found

    def _shared(self, *kinds: str) -> list[Access]:
        return [each for each in self._facts.accesses if each.space == "shared" and each.kind in kinds]

    def _refuse_other_work(self) -> None:
        """Tiles are copied, waited for and read, and nothing else happens between."""
        others = [
            each for each in self._facts.accesses if each.space == "shared" and each.kind not in ("read", "write")
        ]
        is_elsewhere = any(self._outer.index not in each.loops for each in self._shared("read", "write"))
        if others or is_elsewhere or self._facts.exchanges:
            raise Unfit("its threads share more than tiles")
        if any(each.scope != "block" or each.inlined_in for each in self._facts.barriers):
            raise Unfit("its threads wait for each other in a way that is not followed")
        waits = [each.span for each in self._facts.barriers]
        statements = _statements(self._outer_node.body)
        if self._inner_node not in statements or self._outer_node not in self._body.statements:
            raise Unfit("its loops stand under conditions")
        if any(self._outer.index in each.loops for each in self._writes_out()):
            raise Unfit("its loop over tiles stores results")
        moved = self._counters(self._outer_node) | self._counters(self._inner_node)
        for statement in statements:
            is_wait = isinstance(statement, nodes.Evaluate) and any(statement.place.span.contains(w) for w in waits)
            if statement is self._inner_node or is_wait:
                continue
            if not self._is_copy(statement):
                moved |= self._moved(statement)
        inside = {each.name for each in nodes.walk(self._inner_node.body) if isinstance(each, nodes.Name)}
        after = self._outer_node.place.span.end
        later = {each.name for each in nodes.walk(self._body)
                 if isinstance(each, nodes.Name) and each.place.span.start >= after}  # fmt: skip
        tiles = {each.array.partition("#")[0] for each in self._shared("read")}
        own = {self._inner.variable} if self._inner.variable not in later else set()
        if ((moved | {self._outer.variable}) - own) & (inside - tiles) or moved & later:
            raise Unfit("what its loop over tiles moves is used for more than copies")
        self._refuse_depth_as_data()

    def _counters(self, loop: nodes.Loop) -> set[str]:
        """Names that a loop's head sets, and that live beyond the loop."""
        parts = [each for each in (loop.initial, loop.update) if each is not None]
        declared = nodes.declared_names(loop.initial) if loop.initial is not None else set()
        return {name for part in parts for name in nodes.assigned_names(part)} - declared

    def _moved(self, statement: nodes.Statement) -> set[str]:
        """The local names that a statement between the copies sets."""
        match statement:
            case nodes.Declaration(declarators=declarators):
                _refuse_effects(*(each.initial for each in declarators if each.initial is not None))
                return {each.name for each in declarators if not each.is_shared}
            case nodes.Evaluate(expression=nodes.Assign(target=nodes.Name(name=name), value=value)):
                _refuse_effects(value)
                return {name}
            case nodes.Evaluate(expression=nodes.Update(operand=nodes.Name(name=name))):
                return {name}
        raise Unfit("its loop over tiles does more than copy them and join")

    def _is_copy(self, statement: nodes.Statement) -> bool:
        """Whether a statement writes tiles and nothing else."""
        match statement:
            case nodes.Evaluate(expression=nodes.Assign(target=target, value=value)):
                _refuse_effects(target, value)
                return nodes.root_name(target) in {each.array.partition("#")[0] for each in self._shared("write")}
            case nodes.If(condition=condition, yes=yes, no=no):
                _refuse_effects(condition)
                return all(self._is_copy(each) for part in (yes, no) if part is not None for each in _statements(part))
            case nodes.Loop(body=body) if not any(isinstance(each, nodes.Jump) for each in nodes.walk(body)):
                return all(self._is_copy(each) for each in _statements(body))
            case nodes.Block():
                return all(self._is_copy(each) for each in _statements(statement))
        return False

    def _refuse_depth_as_data(self) -> None:
        """The index within a tile may only say which element of it is read."""
        spans = [each.span for each in self._shared("read")]
        for node in nodes.walk(self._inner_node.body):
            is_index = isinstance(node, nodes.Name) and node.name == self._inner.variable
            if is_index and not any(span.contains(node.place.span) for span in spans):
                raise Unfit("the index within a tile is used as a number")
            if isinstance(node, nodes.Jump | nodes.Return | nodes.Loop):
                raise Unfit("its loop within a tile does more than join")

    # -- what lies where -----------------------------------------------------------------------------

    def _value(self, read: Access) -> str:
        """C text of the element that the kernel reads from a tile."""
        if read.element is None or not read.is_exact or read.width != ONE:
            raise Unfit("which element of a tile it reads is not known")
        if not any(isinstance(each, nodes.Element) and each.place.span == read.span for each in nodes.walk(self._body)):
            raise Unfit("it reads a part of an element")
        writes = [each for each in self._shared("write") if each.array == read.array]
        if any(each.guards and each.span not in self._filled_either_way() for each in writes):
            raise Unfit(f"{read.array} is filled in some threads only")
        copies = [self._copied(each) for each in writes]
        found = [each for each in copies if each is not None]
        if not found or any(each != found[0] for each in found):
            raise Unfit(f"what {read.array} holds is not one array's elements")
        row, column = self._split(read.element, read.array)
        self._refuse_outside(column, read.array)
        places = {_ROW: row, _COLUMN: column}
        before = len(self._depth_ends)
        self._read_conditions(found[0], places)
        if len(self._depth_ends) > before:
            self._refuse_other_terms(read)
        return f"{self._named(found[0].array)}[{self._text(self._merged(found[0].element.replaced(places)))}]"

    def _filled_either_way(self) -> set[Span]:
        """Writes of tiles in both branches of a condition, to the same places."""
        found: set[Span] = set()
        by_span = {each.span: each for each in self._shared("write")}
        for node in nodes.walk(self._outer_node.body):
            if not isinstance(node, nodes.If) or node.no is None:
                continue
            branches = [
                [by_span[each.place.span] for each in nodes.walk(part)
                 if isinstance(each, nodes.Assign) and each.place.span in by_span]
                for part in (node.yes, node.no)
            ]  # fmt: skip
            places = [sorted((each.array, str(each.element)) for each in branch) for branch in branches]
            is_plain = all(not isinstance(each, nodes.If) for part in (node.yes, node.no) for each in nodes.walk(part))
            if is_plain and places[0] == places[1] and len(set(places[0])) == len(places[0]):
                found |= {each.span for branch in branches for each in branch}
        return found

    def _copied(self, write: Access) -> _Copied | None:
        """What a copy puts at a place of its tile; None for the zeros beyond the end."""
        assign = next((each for each in nodes.walk(self._outer_node)
                       if isinstance(each, nodes.Assign) and each.place.span == write.span), None)  # fmt: skip
        if assign is None or assign.operator != "=" or write.element is None or not write.is_exact:
            raise Unfit("how a tile is filled is not followed")
        if _is_zero(assign.value) and write.guards:
            return None
        loaded = _loaded(assign.value)
        load = next((each for each in self._facts.accesses if each.space == "global" and each.kind == "read"
                     and loaded is not None and each.span == loaded.place.span), None)  # fmt: skip
        if load is None or load.element is None or load.width != ONE:
            raise Unfit("a tile holds more than copies")
        if self._facts.arrays[write.array].c_type != self._facts.arrays[load.array].c_type:
            raise Unfit("a tile has another type than what it is copied from")
        guards = [self._facts.guards[index] for index in load.guards]
        conditions = [comparison for each in guards for comparison in each.comparisons]
        if not all(each.is_complete for each in guards):
            raise Unfit("under which condition a tile is filled is not known")
        solved = self._solved(write)
        return _Copied(
            load.array, self._plain(load.element).replaced(solved),
            tuple(replace(c, left=self._plain(c.left).replaced(solved), right=self._plain(c.right).replaced(solved))
                  for c in conditions),
        )  # fmt: skip

    def _writes_out(self) -> list[Access]:
        return [each for each in self._facts.accesses if each.space == "global" and each.kind != "read"]

    def _plain(self, value: Polynomial) -> Polynomial:
        """With blocks' extents as numbers, and places among all threads in blocks and threads."""
        known = dict(self._block)
        for axis in AXES:
            size = self._block[f"block_size.{axis}"]
            known[f"global.{axis}"] = named(f"block.{axis}") * size + named(f"thread.{axis}")
        return value.replaced(known).replaced(self._instance)

    def _solved(self, write: Access) -> dict[str, Polynomial]:
        """By what moves from thread to thread, what it is for the thread that fills a place of the tile."""
        assert write.element is not None
        solved: dict[str, Polynomial] = {}
        for part, place in zip(self._split(write.element, write.array), (_ROW, _COLUMN), strict=True):
            movers = sorted((name for name in part.names if self._is_personal(name, write)), key=self._is_loop)
            pivot = next((name for name in movers if part.coefficient(name) == ONE and name not in solved), None)
            if pivot is None and part.terms:
                raise Unfit(f"which thread fills a place of {write.array} is not known")
            if pivot is not None:
                solved[pivot] = named(place) - (part - named(pivot))
        return solved

    def _is_personal(self, name: str, write: Access) -> bool:
        own = {self._facts.loops[index].atom for index in write.loops if index != self._outer.index}
        return name.startswith("thread.") or name in own

    def _is_loop(self, name: str) -> bool:
        return not name.startswith("thread.")

    def _split(self, element: Polynomial, array: str) -> tuple[Polynomial, Polynomial]:
        """An element's row and column in a tile."""
        element = self._plain(element)
        pitch = self._pitch(array)
        row = Polynomial()
        if pitch is not None:
            for term in element.terms:
                share = Polynomial((term,)).divided(pitch)
                row = row + share if share is not None else row
            return row, element - row * pitch
        return row, element

    def _pitch(self, array: str) -> Polynomial | None:
        """The elements of one row of a tile; None for a tile of one row."""
        extents = [each for each in self._facts.arrays[array].extents if each is not None]
        if len(extents) > 2:
            raise Unfit(f"{array} has more than two extents")
        if len(extents) == 2:
            return self._plain(extents[1])
        factors = {abs(c) for each in self._shared("read", "write") if each.array == array and each.element is not None
                   for monomial, c in self._plain(each.element).terms if monomial}  # fmt: skip
        return number(max(factors)) if factors and max(factors) > 1 else None

    def _refuse_outside(self, column: Polynomial, array: str) -> None:
        """A column beyond its row's end is a place of the next row."""
        pitch = self._pitch(array)
        most = [self._most(name) for name in column.names]
        if pitch is None or pitch.constant is None or None in most:
            if pitch is not None and column.single_name is None:
                raise Unfit(f"which column of {array} is read is not known")
            return
        ends = {name: number(value) for name, value in zip(column.names, most, strict=True) if value is not None}
        last = column.replaced(ends).constant
        if last is None or last >= pitch.constant or any(c < 0 for _, c in column.terms):
            raise Unfit(f"a read of {array} goes beyond its row")

    def _most(self, name: str) -> int | None:
        """The greatest value of a place within the tile."""
        if name == self._inner.atom and self._inner.bound is not None:
            bound = self._plain(self._inner.bound).constant
            return None if bound is None else bound - 1
        size = self._block.get(name.replace("thread.", "block_size."))
        if size is not None and size.constant is not None:
            return size.constant - 1
        return None

    # -- one loop of two -----------------------------------------------------------------------------

    def _merged(self, value: Polynomial) -> Polynomial:
        """With the step over tiles and the index within one as one index."""
        outer, inner = self._outer, self._inner
        assert outer.start is not None
        assert outer.step is not None
        assert inner.bound is not None
        step = self._plain(outer.step.amount)
        found = value.replaced({
            inner.atom: named(_DEPTH) - self._plain(inner.bound) * named(_STEP),
            outer.atom: self._plain(outer.start) + step * named(_STEP),
        })  # fmt: skip
        if _STEP in found.names:
            raise Unfit("tiles do not follow each other along the product")
        return found

    def _read_conditions(self, copied: _Copied, places: Mapping[str, Polynomial]) -> None:
        """Conditions of a copy: one that ends the product, and those that the result stands under, too."""
        known = [
            {self._joined(told) for index in write.guards for c in self._facts.guards[index].comparisons
             if (told := self._difference(c)) is not None}
            for write in self._writes_out()
        ]  # fmt: skip
        for each in copied.conditions:
            told = self._difference(each)
            difference = None if told is None else self._merged(told.replaced(places))
            if difference is None:
                raise Unfit("under which condition a tile is filled is not known")
            end = named(_DEPTH) - difference
            if _DEPTH not in end.names and expression_of(self._subject, end) is not None:
                self._depth_ends.append(end)
            elif all(self._joined(difference) in each for each in known):
                self._conditions[self._below_zero(self._joined(difference))] = None
            else:
                raise Unfit("a tile is filled under another condition than results are stored")

    def _below_zero(self, value: Polynomial) -> str:
        """C text of the condition, without a difference that unsigned numbers would wrap."""
        less = Polynomial(tuple((m, c) for m, c in value.terms if c > 0))
        return f"{self._text(less)} < {self._text(less - value)}"

    def _refuse_other_terms(self, read: Access) -> None:
        """Beyond the end the tile holds zeros, which must leave the sum alone: what is read is a factor."""
        inside = [each for each in nodes.walk(self._inner_node.body)
                  if isinstance(each, nodes.Assign) and each.place.span.contains(read.span)]  # fmt: skip
        if any(_is_factor(_added(each), read.span) for each in inside):
            return
        raise Unfit("what its zeros beyond the end add is not known")

    def _difference(self, relation: Relation) -> Polynomial | None:
        """What must be below 0; None for another relation."""
        left, right = self._plain(relation.left), self._plain(relation.right)
        return {"<": left - right, ">": right - left, "<=": left - right - ONE, ">=": right - left - ONE}.get(
            relation.operator
        )

    def _end(self) -> str:
        """C text of the product's length."""
        covered = self._covered()
        if not self._depth_ends:
            return self._text(covered[0]) if covered[1] is None else covered[1]
        end = self._depth_ends[0]
        if any(each != end for each in self._depth_ends):
            raise Unfit("its tiles end at different places")
        self._refuse_shorter(end)
        return self._text(end)

    def _covered(self) -> tuple[Polynomial, str | None]:
        """How many steps both loops make together, and C text of it where it is rounded up to whole tiles."""
        outer, inner = self._outer, self._inner
        assert outer.start is not None
        assert outer.bound is not None
        assert outer.step is not None
        assert inner.bound is not None
        within, step = self._plain(inner.bound), self._plain(outer.step.amount)
        length = self._plain(outer.bound) - self._plain(outer.start) + (ONE if outer.operator == "<=" else Polynomial())
        if step == ONE:
            return length * within, None
        long, each = self._text(length), self._text(step)
        return length, f"(({long}) + ({each}) - 1) / ({each}) * ({self._text(within)})"

    def _refuse_shorter(self, end: Polynomial) -> None:
        """Where conditions end the product, the tiles must reach as far."""
        covered = expression_of(self._subject, self._covered()[0])
        told = expression_of(self._subject, end)
        for sizes in self._subject.sizes():
            reach = None if covered is None else total_of(self._subject, covered, sizes)
            length = None if told is None else total_of(self._subject, told, sizes)
            if reach is None or length is None or reach < length:
                raise Unfit("how far its tiles reach is not known")

    # -- text ----------------------------------------------------------------------------------------

    def _joined(self, value: Polynomial) -> Polynomial:
        """Blocks and threads as places among all threads again, where the kernel asks for these."""
        for axis in AXES:
            if f"global.{axis}" in self._facts.atoms:
                size = self._block[f"block_size.{axis}"]
                found = value.replaced({f"thread.{axis}": named(f"global.{axis}") - named(f"block.{axis}") * size})
                value = found if f"block.{axis}" not in found.names else value
        return value

    def _text(self, value: Polynomial) -> str:
        """C text of a polynomial."""
        return " + ".join(self._term(*each) for each in self._joined(value).terms) or "0"

    def _term(self, monomial: Sequence[str], coefficient: int) -> str:
        factors = (
            [str(coefficient) if coefficient > 0 else f"({coefficient})"] if coefficient != 1 or not monomial else []
        )
        return " * ".join([*factors, *map(self._word, monomial)])

    def _word(self, name: str) -> str:
        """C text of one quantity."""
        kind, _, axis = name.partition(".")
        if axis in AXES and kind in ("thread", "block", "global"):
            return query(kind, axis, is_opencl=self._subject.language == "opencl")
        atom = self._facts.atoms.get(name)
        if name == _DEPTH:
            return self._named("along")
        if atom is not None and atom.kind == "size" and name.isidentifier():
            return name
        if atom is not None and len(atom.parts) == 2 and ("/" in name or "%" in name):
            operator = "%" if atom.kind == "remainder" else "/"
            return f"(({self._text(atom.parts[0])}) {operator} ({self._text(atom.parts[1])}))"
        raise Unfit(f"{name} is known between tiles only")

    def _named(self, word: str) -> str:
        """A name that the source does not have."""
        word = f"{word}_all"
        while word in self._subject.source:
            word += "_"
        return word

    def _declarations(self) -> Iterator[Span]:
        """Declarations of the tiles outside of the loop."""
        for node in nodes.walk(self._body):
            if isinstance(node, nodes.Declaration) and any(each.is_shared for each in node.declarators):
                if not all(each.is_shared for each in node.declarators) or not node.place.is_exact:
                    raise Unfit("a tile is declared beside something else")
                if not self._outer.span.contains(node.place.span):
                    yield node.place.span

    def _kept_pointers(self) -> Iterator[Edit]:
        """Where arrays began: the kernel may move its pointers."""
        place = self._body.place.span.start + 1
        arrays = sorted({each.array for each in self._facts.accesses if each.space == "global" and each.kind == "read"
                         and self._outer.index in each.loops})  # fmt: skip
        given = {each.name: each for each in self._subject.analysis.function.parameters}
        if not set(arrays) <= given.keys():
            raise Unfit("a tile is filled from something else than an argument")
        space = "__global " if self._subject.language == "opencl" else ""
        text = "".join(f"\n  const {space}{given[name].c_type} *{self._named(name)} = {name};" for name in arrays)
        yield insertion(place, text)


def _statements(node: nodes.Statement) -> tuple[nodes.Statement, ...]:
    if not isinstance(node, nodes.Block):
        return (node,)
    return tuple(
        each for one in node.statements for each in (_statements(one) if isinstance(one, nodes.Block) else (one,))
    )


def _refuse_effects(*values: nodes.Expression) -> None:
    """Refuse expressions that do more than have a value.

    Raises:
        Unfit: one assigns, or calls what is not known.
    """
    for value in values:
        for node in nodes.walk(value):
            is_effect = isinstance(node, nodes.Assign | nodes.Update | nodes.MethodCall | nodes.OpaqueExpression)
            is_call = isinstance(node, nodes.Call) and not query_text(node) and node.function not in _WITHOUT_EFFECT
            if is_effect or is_call:
                raise Unfit("copies of tiles do more than copy")


def _added(assign: nodes.Assign) -> nodes.Expression | None:
    """What an assignment adds to its target; None where it does something else."""
    if assign.operator == "+=":
        return assign.value
    match assign.value:
        case nodes.Binary(operator="+", left=left, right=right) if assign.operator == "=":
            name = nodes.root_name(assign.target)
            return right if isinstance(left, nodes.Name) and left.name == name else left
        case nodes.Call(function="fma" | "fmaf" | "mad", arguments=(_, _, nodes.Name())) if assign.operator == "=":
            return assign.value
    return None


def _is_factor(value: nodes.Expression | None, span: Span) -> bool:
    """Whether what stands at `span` is a factor of a value, so that zero there makes the value zero."""
    match value:
        case nodes.Element():
            return value.place.span == span
        case nodes.Cast(operands=(inner,)) | nodes.Unary(operator="-" | "+", operand=inner):
            return _is_factor(inner, span)
        case nodes.Binary(operator="*", left=left, right=right):
            return _is_factor(left, span) or _is_factor(right, span)
        case nodes.Call(function="fma" | "fmaf" | "mad", arguments=(left, right, _)):
            return _is_factor(left, span) or _is_factor(right, span)
        case nodes.Call(function=function, arguments=(inner,)) if function in _CONVERSIONS:
            return _is_factor(inner, span)
    return False


def _is_zero(value: nodes.Expression) -> bool:
    match value:
        case nodes.Cast(operands=(inner,)):
            return _is_zero(inner)
        case nodes.Literal(text=text):
            return text.rstrip("fFuUlLh.").replace(".", "").strip("0") == "" and text[:1].isdigit()
    return False


def _loaded(value: nodes.Expression) -> nodes.Expression | None:
    """The element that a value is a copy of, or else zero."""
    match value:
        case nodes.Element():
            return value
        case nodes.Conditional(yes=yes, no=no) if _is_zero(no):
            return _loaded(yes)
    return None
