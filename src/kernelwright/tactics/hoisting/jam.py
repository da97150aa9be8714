"""Unroll and jam: a thread takes several places of one axis, such that its loops load once what these share.

The kernel's own statements stay. Those that differ from place to place stand in a short loop over the places, with
their indices computed anew; values that outlive such a loop become small arrays, which compilers keep in registers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kernelwright.analysis.facts import Access
from kernelwright.analysis.polynomial import ONE, ZERO, Polynomial, named
from kernelwright.problem.expressions.expression import Expression
from kernelwright.source import nodes
from kernelwright.source.edits import Edit
from kernelwright.source.span import Span
from kernelwright.tactics.base import Effect, Rewrite, RuleTactic, Subject, Unfit
from kernelwright.tactics.common.c_text import c_text
from kernelwright.tactics.common.editing import RewriteBuilder, refuse_arranged
from kernelwright.tactics.common.iteration_domain import expression_of, require_independent
from kernelwright.tactics.common.launches import extents, number, only_shape
from kernelwright.tactics.common.thread_queries import query_text, thread_queries
from kernelwright.tactics.recognised.places import visible
from kernelwright.tactics.tiling.frame import edited

NAME = "jam"
_TYPES = frozenset(("float", "double", "int", "uint", "unsigned", "unsigned int", "long", "long long", "half", "__half",
                    "__nv_bfloat16"))  # fmt: skip
_COUNTS = (1, 2, 4, 8, 16)
_AXES = {"block.y": ("blockIdx.y", "get_group_id(1)"), "block.z": ("blockIdx.z", "get_group_id(2)")}
_SPACE = re.compile(r"\b(?:__)?(?:global|constant)\s+$")
"""OpenCL's word for where a pointer points, right before a declaration."""

_OVERHEAD = 3
"""What a step of a loop costs beside its loads, in loads; a guess."""


@dataclass(frozen=True)
class _Step:
    """From one place to the next along an axis of the launch."""

    place: str
    """The atom that counts places: `block.z`, `global.x`."""
    by: Polynomial
    """How far neighbours on the axis are apart."""


class _Moves:
    """How index arithmetic changes with a step, and on which conditions that is so for `KW_T` places."""

    def __init__(self, subject: Subject, step: _Step) -> None:
        self._subject, self._step = subject, step
        self.conditions: dict[str, None] = {}
        self._known: dict[str, Polynomial | None] = {}

    def of(self, value: Polynomial) -> Polynomial | None:
        """What is added from one place to the next; None where that is not known."""
        moves: dict[str, Polynomial] = {}
        for name in value.names:
            by = self._atom(name)
            if by is None:
                return None
            if by.terms:
                moves[name] = named(name) + by
        return value.replaced(moves) - value if moves else ZERO

    def _atom(self, name: str) -> Polynomial | None:
        if name not in self._known:
            self._known[name] = None
            self._known[name] = self._found(name)
        return self._known[name]

    def _found(self, name: str) -> Polynomial | None:
        if name == self._step.place:
            return self._step.by
        atom = self._subject.analysis.facts.atoms[name]
        if atom.kind in ("thread", "loop", "size"):
            is_same_axis = atom.kind == "thread" and self._step.place.partition(".")[2] == name.partition(".")[2]
            return None if is_same_axis else ZERO
        if atom.kind not in ("quotient", "remainder"):
            return None
        dividend, divisor = atom.parts
        by = self.of(dividend)
        if by is None or not by.terms:
            return by
        exact = by.divided(divisor)
        if exact is not None:
            return exact if atom.kind == "quotient" else ZERO
        if not self._starts_groups(dividend) or not self._holds_whole_groups(divisor, by):
            return None
        return ZERO if atom.kind == "quotient" else by

    def _starts_groups(self, value: Polynomial) -> bool:
        """Whether a value counts places from the first of a group: with anything added, groups would be cut."""
        name = value.single_name
        return name is not None and (
            name == self._step.place or self._subject.analysis.facts.atoms[name].kind in ("quotient", "remainder")
        )

    def _holds_whole_groups(self, divisor: Polynomial, by: Polynomial) -> bool:
        """Whether a divisor can be a multiple of a group of places; notes the condition."""
        texts = [expression_of(self._subject, each) for each in (divisor, by)]
        for sizes in self._subject.sizes():
            whole, step = self._subject.evaluate(divisor, sizes), self._subject.evaluate(by, sizes)
            if not whole or not step or step < 0 or whole % (2 * step):
                return False
        if None in texts:
            return False
        self.conditions[f"({texts[0]}) % (({texts[1]}) * KW_T) == 0"] = None
        return True


@dataclass
class _Jam:
    """One kernel while its places are jammed."""

    subject: Subject
    step: _Step
    moves: _Moves
    indices: dict[str, nodes.Declarator] = field(default_factory=dict)
    """Index arithmetic that differs from place to place: computed anew for each."""
    values: dict[str, nodes.Declarator] = field(default_factory=dict)
    """Data that differs: an element for each place."""
    is_shared: list[Access] = field(default_factory=list)
    """Loads in loops that all places share."""
    is_own: list[Access] = field(default_factory=list)
    guards: set[Span] = field(default_factory=set)
    """Conditions that hold for all places of a group, or for none."""

    def differs(self, node: nodes.Node) -> bool:
        """Whether something in it differs from place to place."""
        names = self.indices.keys() | self.values.keys()
        return any(
            (isinstance(each, nodes.Name) and each.name in names) or query_text(each) in _AXES.get(self.step.place, ())
            for each in nodes.walk(node)
        )


def _jam(subject: Subject) -> Rewrite:
    if NAME in subject.history:
        raise Unfit("its places are jammed already", is_already_so=True)
    refuse_arranged(subject, "row-split", "stencil-tiles", "contraction-tiles", "transpose-tiles", "row-scan")
    require_independent(subject)
    if subject.pattern.kind == "contraction":
        raise Unfit("it is a product of matrices, which tiles are for")
    if any(each.startswith(("gridDim", "get_num_groups", "get_global_size"))
           for each in thread_queries(subject.analysis.function.body)):  # fmt: skip
        raise Unfit("it uses the size of its launch")
    _refuse_hidden_changes(subject)
    found = [jam for step in _steps(subject) if (jam := _of_step(subject, step)) is not None]
    if not found:
        raise Unfit("no loop loads what neighbours along an axis share, beside what they do not")
    best = max(found, key=_worth)
    return _written(best)


# Which axis


def _steps(subject: Subject) -> Iterator[_Step]:
    """Axes of the launch, and those that a flat index is divided into."""
    facts, step = subject.analysis.facts, only_shape(subject)
    for place, (axis, block) in {"block.y": (1, step.block), "block.z": (2, step.block)}.items():
        has_one = len(block) <= axis or number(block[axis]) == 1
        if has_one and len(step.grid) > axis and place in facts.atoms:
            yield _Step(place, ONE)
    width = {named("global.x"): ONE}
    for _ in range(4):
        for atom in facts.atoms.values():
            if atom.kind == "quotient" and atom.parts[0] in width and named(atom.name) not in width:
                by = width[atom.parts[0]] * atom.parts[1]
                width[named(atom.name)] = by
                yield _Step("global.x", by)


def _of_step(subject: Subject, step: _Step) -> _Jam | None:
    """What a step along an axis changes; None where nothing would be gained, or it is not followed."""
    jam = _Jam(subject, step, _Moves(subject, step))
    try:
        _find_names(jam)
        _find_guards(jam)
        _find_loads(jam)
        _check_statements(jam, subject.analysis.function.body.statements)
    except Unfit:
        return None
    return jam if jam.is_shared and jam.is_own else None


def _find_names(jam: _Jam) -> None:
    """The variables that differ from place to place.

    Raises:
        Unfit: one of them cannot be an array.
    """
    body = jam.subject.analysis.function.body
    known = {each.name: each.value for each in jam.subject.analysis.facts.thread_indices if each.name}
    changed = nodes.assigned_names(body)
    declared = [each for each in nodes.walk(body) if isinstance(each, nodes.Declarator)]
    names = [each.name for each in declared]
    if jam.step.place == "global.x" and sum(known.get(each) == named("global.x") for each in set(names)) != 1:
        raise Unfit("the flat index has no variable of its own")
    while True:
        before = len(jam.indices) + len(jam.values)
        for each in declared:
            if each.name in jam.indices or each.name in jam.values:
                continue
            is_plain = each.name not in changed and names.count(each.name) == 1 and each.initial is not None
            by = jam.moves.of(known[each.name]) if is_plain and each.name in known else None
            if by is not None:
                if by.terms:
                    jam.indices[each.name] = each
                continue
            if not _is_made_of(jam, each, body):
                continue
            if is_plain and _is_index(each):
                jam.indices[each.name] = each
            elif names.count(each.name) != 1 or each.extents or each.is_pointer or each.c_type not in _TYPES:
                raise Unfit(f"{each.name} cannot be kept for several places")
            else:
                jam.values[each.name] = each
        if len(jam.indices) + len(jam.values) == before:
            return


def _is_made_of(jam: _Jam, each: nodes.Declarator, body: nodes.Block) -> bool:
    """Whether a variable or an array takes anything that differs from place to place, or is chosen by it."""
    if each.initial is not None and jam.differs(each.initial):
        return True
    for node in nodes.walk(body):
        match node:
            case nodes.Assign(target=target, value=value) if nodes.root_name(target) == each.name:
                if jam.differs(value) or jam.differs(target):
                    return True
            case nodes.Update(operand=nodes.Element() as operand) if nodes.root_name(operand) == each.name:
                if jam.differs(operand):
                    return True
            case nodes.If(condition=condition) if jam.differs(condition) and _guarded(jam, condition) is None:
                if each.name in nodes.assigned_names(node) | _filled(node):
                    return True
    return False


def _filled(node: nodes.Node) -> set[str | None]:
    """Arrays whose elements change."""
    return {
        nodes.root_name(each.target if isinstance(each, nodes.Assign) else each.operand) for each in nodes.walk(node)
        if isinstance(each, nodes.Assign | nodes.Update)
    }  # fmt: skip


def _refuse_hidden_changes(subject: Subject) -> None:
    """Variables may change by their names alone.

    Raises:
        Unfit: one has another name, or is given away by reference or address.
    """
    body = subject.analysis.function.body
    own = {each.name for each in nodes.walk(body) if isinstance(each, nodes.Declarator)}
    arrays = {each.name for each in nodes.walk(body) if isinstance(each, nodes.Declarator) and each.extents}
    functions = {each.name: each for each in subject.analysis.tree.functions}
    for node in nodes.walk(body):
        match node:
            case nodes.Declarator(is_reference=True):
                raise Unfit(f"{node.name} is another name for something")
            case nodes.Declarator(is_pointer=True, initial=initial) if initial is not None and any(
                isinstance(each, nodes.Name) and each.name in arrays for each in nodes.walk(initial)
            ):
                raise Unfit(f"{node.name} points to an array of the thread's own")
            case nodes.Unary(operator="&", operand=operand) if nodes.root_name(operand) in own:
                raise Unfit(f"the address of {nodes.root_name(operand)} is taken")
            case nodes.Call(function=name, arguments=arguments) if name in functions:
                for parameter, argument in zip(functions[name].parameters, arguments, strict=False):
                    is_given = (parameter.is_reference or parameter.is_pointer) and not parameter.is_const
                    if is_given and nodes.root_name(argument) in own:
                        raise Unfit(f"{name} may change what it is given")


def _is_index(each: nodes.Declarator) -> bool:
    """Whether a variable is a place or a pointer that is computed without loads."""
    if each.initial is None or each.extents or not each.initial.place.is_exact:
        return False
    if any(isinstance(n, nodes.Element | nodes.Call | nodes.Assign | nodes.Update) and not query_text(n)
           for n in nodes.walk(each.initial)):  # fmt: skip
        return False
    return each.is_pointer or not any(word in each.c_type for word in ("float", "double", "half", "bfloat", "auto"))


def _find_guards(jam: _Jam) -> None:
    """Conditions on places that all places of a group meet alike."""
    for node in nodes.walk(jam.subject.analysis.function.body):
        if isinstance(node, nodes.If) and jam.differs(node.condition):
            conditions = _guarded(jam, node.condition)
            if conditions is not None:
                jam.guards.add(node.condition.place.span)
                jam.moves.conditions |= dict.fromkeys(conditions)


def _guarded(jam: _Jam, condition: nodes.Expression) -> list[str] | None:
    """What makes `place < bound` the same for a group; None where a condition is another one."""
    span = condition.place.span
    guards = [each for each in jam.subject.analysis.facts.guards if each.span == span and each.kind != "expression"]
    known = [each for each in guards if each.is_complete]
    if not known:
        return None
    found = []
    for each in known[0].comparisons:
        sides = jam.moves.of(each.left), jam.moves.of(each.right)
        if sides[0] is None or sides[1] is None or sides[1].terms:
            return None
        if not sides[0].terms:
            continue
        bound, by = expression_of(jam.subject, each.right), expression_of(jam.subject, sides[0])
        is_place = each.left == named(jam.step.place) and each.operator in ("<", ">=")
        if not is_place or bound is None or by is None or not jam.subject.is_as_said(each):
            return None
        found.append(f"({bound}) % (({by}) * KW_T) == 0")
    return found


def _find_loads(jam: _Jam) -> None:
    """Which loads in loops places share.

    Raises:
        Unfit: a loop differs from place to place.
    """
    for each in jam.subject.analysis.facts.accesses:
        if each.kind != "read" or not each.loops or each.space not in ("global", "constant"):
            continue
        by = None if each.element is None else jam.moves.of(each.element)
        (jam.is_own if by is None or by.terms else jam.is_shared).append(each)


def _check_statements(jam: _Jam, statements: Sequence[nodes.Statement]) -> None:
    """Statements that differ must be plain.

    Raises:
        Unfit: one is not.
    """
    for each in statements:
        match each:
            case nodes.Block(statements=inner):
                _check_statements(jam, inner)
            case nodes.Loop(body=body):
                head = [part for part in (each.initial, each.condition, each.update) if part is not None]
                if any(jam.differs(part) for part in head):
                    raise Unfit("a loop differs from place to place")
                _check_statements(jam, (body,))
            case nodes.If(condition=condition, yes=yes, no=no) if _is_alike(jam, condition):
                _check_statements(jam, (yes,) if no is None else (yes, no))
            case nodes.OpaqueStatement():
                raise Unfit("a statement is not understood")
            case _ if jam.differs(each):
                if not each.place.is_exact or any(
                    isinstance(n, nodes.Loop | nodes.Jump | nodes.Return | nodes.OpaqueExpression)
                    for n in nodes.walk(each)
                ):
                    raise Unfit("a statement that differs from place to place is not plain")


def _is_alike(jam: _Jam, condition: nodes.Expression) -> bool:
    return condition.place.span in jam.guards or not jam.differs(condition)


def _worth(jam: _Jam) -> tuple[float, int]:
    """How much less is loaded; then whether what is left is the same for all threads of a warp."""
    return _gain(jam), sum(each.contiguity == "broadcast" for each in jam.is_own)


def _gain(jam: _Jam) -> float:
    shared, own = len(jam.is_shared) + _OVERHEAD, len(jam.is_own)
    return (shared + own) / (shared / 8 + own)


# Text


def _written(jam: _Jam) -> Rewrite:
    subject = jam.subject
    plan = RewriteBuilder(subject, NAME, "map")
    count = plan.parameter("JAM", _COUNTS, _default(jam), "places of an axis that a thread takes together")
    for condition in jam.moves.conditions:
        plan.constraint("groups", condition.replace("KW_T", count))
    inner = plan.fresh("kw_j")
    base = plan.fresh("kw_group")
    for edit in _edits(jam, subject.analysis.function.body.statements, _Words(count, inner, base)):
        plan.replace(edit.span, edit.replacement)
    _place(jam, plan, count, base)
    _launch(jam, plan, count)
    shared = ", ".join(sorted({each.array for each in jam.is_shared}))
    return plan.finish(
        f"A thread takes {count} places together: {shared} is loaded once for all of them.",
        Effect(min(6.0, _gain(jam)), f"loops load {shared} once for {count} places, and count once"),
    )


def _default(jam: _Jam) -> int:
    """Eight places, or as many as the conditions allow on every workload."""
    return next(each for each in (8, 4, 2, 1) if _allows(jam, each))


def _allows(jam: _Jam, count: int) -> bool:
    texts = [Expression.parse(each.replace("KW_T", str(count))) for each in (*jam.moves.conditions, *_whole(jam))]
    return all(bool(each.evaluate(sizes)) for each in texts for sizes in jam.subject.sizes())


def _whole(jam: _Jam) -> list[str]:
    """What the launch must be a multiple of; a flat index without spare threads has no guard: no place may be over."""
    if jam.step.place == "global.x":
        covered = extents(only_shape(jam.subject))[0]
        by = expression_of(jam.subject, jam.step.by)
        if covered.is_rounded_up:
            return []
        if by is None:
            raise Unfit("how far its places are apart is not known in sizes")
        return [f"({covered.grid}) % KW_T == 0", f"({covered.total}) % (({by}) * KW_T) == 0"]
    axis = "xyz".index(jam.step.place[-1])
    return [f"({only_shape(jam.subject).grid[axis].text}) % KW_T == 0"]


@dataclass(frozen=True)
class _Words:
    count: str
    inner: str
    base: str


def _edits(jam: _Jam, statements: Sequence[nodes.Statement], words: _Words) -> Iterator[Edit]:
    """The statements that differ, each for all places."""
    for each in statements:
        match each:
            case nodes.Block(statements=inner):
                yield from _edits(jam, inner, words)
            case nodes.Loop(body=body):
                yield from _body_edits(jam, body, words)
            case nodes.If(condition=condition, yes=yes, no=no) if _is_alike(jam, condition):
                for part in (yes,) if no is None else (yes, no):
                    yield from _body_edits(jam, part, words)
            case nodes.Declaration():
                yield from _declared(jam, each, words)
            case _ if jam.differs(each):
                yield Edit(each.place.span, _for_all(jam, each, words))


def _body_edits(jam: _Jam, body: nodes.Statement, words: _Words) -> Iterator[Edit]:
    if isinstance(body, nodes.Block):
        yield from _edits(jam, body.statements, words)
    else:
        yield from _edits(jam, (body,), words)


def _declared(jam: _Jam, node: nodes.Declaration, words: _Words) -> Iterator[Edit]:
    """Values become arrays; indices stay as they are, for the first place."""
    own = [each for each in node.declarators if each.name in jam.values]
    if not own:
        return
    source, text = jam.subject.source, ""
    for each in node.declarators:
        if each.name not in jam.values:
            before = Span(node.place.span.start, node.declarators[0].place.span.start).text(source)
            text += f"{before}{_with_place(jam, each, f'{words.base}_0')}; "
            continue
        text += f"{each.c_type} {each.name}[{words.count}]; "
        if each.initial is not None:
            value = _of_place(jam, each.initial, words)
            text += _around(jam, f"{each.name}[{words.inner}] = {value};", each.place.span, words)
    yield Edit(node.place.span, text)


def _for_all(jam: _Jam, node: nodes.Statement, words: _Words) -> str:
    return _around(jam, _of_place(jam, node, words), node.place.span, words)


def _around(jam: _Jam, text: str, at: Span, words: _Words) -> str:
    """A statement for all places, with their indices computed anew."""
    lines = [f"{{ {declared} " for declared in _anew(jam, at, words)]
    return (
        f"{{\n#pragma unroll\nfor (int {words.inner} = 0; {words.inner} < {words.count}; ++{words.inner}) {{ "
        f"{''.join(lines)}{text}{'}' * len(lines)} }}\n}}"
    )


def _anew(jam: _Jam, at: Span, words: _Words) -> Iterator[str]:
    """Declarations of those indices that a place in the text sees, for the place that is worked on, in order."""
    seen = visible(jam.subject.analysis.function.body, at)
    for each in sorted(jam.indices.values(), key=lambda declared: declared.place.span.start):
        if each.name not in seen or seen[each.name][0] is not each:
            continue
        assert each.initial is not None
        text = _with_place(jam, each.initial, f"({words.base}_0 + {words.inner})")
        if each.name == _flat(jam):
            text = f"{words.base}_0 + {words.inner} * {words.base}_by"
        head = f"const {each.c_type} {each.name} ="
        if each.is_pointer:
            start = _statement_of(jam.subject, each).place.span.start
            before = _SPACE.search(Span(0, start).text(jam.subject.source))
            head = Span(start, each.initial.place.span.start).text(jam.subject.source)
            head = f"{before[0] if before else ''}{head}"
        yield f"{head} {text};"


def _statement_of(subject: Subject, declared: nodes.Declarator) -> nodes.Declaration:
    """The declaration of a variable.

    Raises:
        Unfit: of a pointer beside others.
    """
    for each in nodes.walk(subject.analysis.function.body):
        if isinstance(each, nodes.Declaration) and any(one is declared for one in each.declarators):
            if declared.is_pointer and len(each.declarators) > 1:
                raise Unfit(f"{declared.name} is declared beside others")
            return each
    raise Unfit(f"where {declared.name} is declared is not known")


def _flat(jam: _Jam) -> str:
    """The variable of the flat index; empty for another axis."""
    if jam.step.place != "global.x":
        return ""
    known = jam.subject.analysis.facts.thread_indices
    return next(each.name for each in known if each.name and each.value == named("global.x"))


def _of_place(jam: _Jam, node: nodes.Node, words: _Words) -> str:
    """Text in which values are those of the place that is worked on."""
    edits = [
        Edit(each.place.span, f"{each.name}[{words.inner}]") for each in nodes.walk(node)
        if isinstance(each, nodes.Name) and each.name in jam.values
    ]  # fmt: skip
    edits += [
        Edit(each.place.span, f"({words.base}_0 + {words.inner})") for each in nodes.walk(node)
        if query_text(each) in _AXES.get(jam.step.place, ("?",))
    ]  # fmt: skip
    return edited(jam.subject.source, node.place.span, edits)


def _with_place(jam: _Jam, node: nodes.Node, place: str) -> str:
    """An index's text with another place."""
    words = _AXES.get(jam.step.place, ("?",))
    edits = [Edit(each.place.span, place) for each in nodes.walk(node) if query_text(each) in words]
    return edited(jam.subject.source, node.place.span, edits)


def _place(jam: _Jam, plan: RewriteBuilder, count: str, base: str) -> None:
    """The first place of a thread's group."""
    subject = jam.subject
    body, facts = subject.analysis.function.body, subject.analysis.facts
    if jam.step.place == "global.x":
        declared = jam.indices[_flat(jam)]
        assert declared.initial is not None
        by = c_text(jam.step.by, facts.atoms, {})
        inner = Span(declared.initial.place.span.start, declared.initial.place.span.end)
        own = f"({inner.text(subject.source)})"
        plan.replace(inner, f"({own} / ({by}) * ({by}) * {count} + {own} % ({by}))")
        statement = _statement_of(subject, declared)
        text = f" const {declared.c_type} {base}_0 = {declared.name}, {base}_by = {by};"
        plan.insert(statement.place.span.end, text)
        return
    word = _AXES[jam.step.place][1 if subject.language == "opencl" else 0]
    plan.insert(body.statements[0].place.span.start, f"const int {base}_0 = (int){word} * {count};\n  ")
    jammed = [each.span for each in plan.edits]
    for each in nodes.walk(body):
        span = each.place.span
        if query_text(each) in _AXES[jam.step.place] and not any(one.contains(span) for one in jammed if one != span):
            plan.replace(span, f"{base}_0")


def _launch(jam: _Jam, plan: RewriteBuilder, count: str) -> None:
    step = only_shape(jam.subject)
    grid = [each.text for each in step.grid]
    axis = "xyz".index(jam.step.place[-1])
    if jam.step.place == "global.x":
        covered = extents(step)[0]
        grid[0] = (
            f"ceil_div(({covered.total}) // {count}, {covered.block})"
            if covered.is_rounded_up
            else f"({grid[0]}) // {count}"
        )
        for name, text in zip(("blocks", "places"), _whole(jam), strict=False):
            plan.constraint(name, text.replace("KW_T", count))
    else:
        plan.constraint("axis", f"({grid[axis]}) % {count} == 0")
        grid[axis] = f"({grid[axis]}) // {count}"
    plan.header = plan.header.relaunched(step.entry, grid=grid, block=[each.text for each in step.block],
                                         shared_bytes=None)  # fmt: skip


JAM = RuleTactic(NAME, "map", "Places of an axis whose loops load the same: several a thread, loaded once.", _jam)
