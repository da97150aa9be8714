"""A plain contraction taken apart: its two factors as affine reads, its loops, and what becomes of the sum.

A convolution is one, too: its loops over channels and taps are one index, and so are the output's rows and columns.
What a tap beyond the border adds counts as zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from kernelwright.analysis.affine import AffineForm
from kernelwright.analysis.facts import LoopFact, Reduction
from kernelwright.analysis.patterns.indices import Touch
from kernelwright.analysis.polynomial import ONE, ZERO, Polynomial, named
from kernelwright.source import nodes
from kernelwright.source.edits import Edit
from kernelwright.tactics.base import Subject, Unfit
from kernelwright.tactics.common.editing import RewriteBuilder
from kernelwright.tactics.common.iteration_domain import deep_names
from kernelwright.tactics.tiling.frame import MOST_PLACES, Frame, Index, edited, is_at_most_int
from kernelwright.tactics.tiling.index_space import frame_of
from kernelwright.tactics.tiling.plain_places import is_without_effect

ELEMENT = "kw_element"
"""What stands for the loaded element in a factor's expression."""

STEP = "steps.index"
"""The quantity that counts the steps of all loops together."""

_SUMMABLE = {
    "float": 4, "double": 8, "int": 4, "unsigned": 4, "unsigned int": 4, "uint": 4, "long": 8, "ulong": 8,
    "long long": 8, "unsigned long long": 8, "int32_t": 4, "uint32_t": 4, "int64_t": 8, "uint64_t": 8,
}  # fmt: skip
"""Types that sums may have, with their bytes; template parameters are types too."""

_FUSED = frozenset(("fma", "fmaf", "mad", "__fmaf_rn", "__fma_rn"))
_TO_FLOAT = frozenset(("__half2float", "__bfloat162float", "convert_float"))


@dataclass(frozen=True, slots=True)
class Factor:
    """One factor of the product: a load, and what is made of it."""

    array: str
    c_type: str
    """The type of the array's elements."""
    element_bytes: int | None
    own: tuple[Index, ...]
    """The indices of the output that this factor has for itself, fastest first."""
    by_own: Polynomial
    """What the fastest of them counts for."""
    by_k: Polynomial
    """What the innermost loop counts for."""
    element: Polynomial
    """The element's index."""
    start: Polynomial
    """The rest of it: sizes, and indices that both factors or none of them have."""
    is_affine: bool
    """Whether it is `start + by_own * m + by_k * k` of the one index that its own make, and the one of all loops."""
    needed: tuple[Polynomial, ...]
    """What is at least 0 where there is an element; elsewhere the factor counts as 0."""
    expression: str
    """The factor, with `ELEMENT` for the load; `ELEMENT` alone where it is the load."""

    @property
    def is_plain(self) -> bool:
        """Whether the factor is the load itself."""
        return self.expression == ELEMENT

    @property
    def unit(self) -> str:
        """Which index moves along neighbours in memory: `own`, `k` or nothing."""
        if self.by_own == ONE:
            return "own"
        return "k" if self.by_k == ONE else ""


@dataclass(frozen=True, slots=True)
class Contraction:
    """`target += sum over k of left(m, k) * right(k, n)`, then whatever follows in the kernel."""

    frame: Frame
    loops: tuple[Index, ...]
    """The loops that make k, innermost first."""
    left: Factor
    right: Factor
    """The factor with the output's fastest index."""
    c_type: str
    """The type of the sum."""
    sum_bytes: int | None
    """None for a template's type."""
    first_k: str
    """C text in the kernel."""
    end_k: str
    batch: tuple[Index, ...]
    finish_edits: tuple[Edit, ...]
    """Turn the kernel's body into one that adds `kw_sum` instead of looping."""


def contraction_of(subject: Subject, plan: RewriteBuilder) -> Contraction:
    """The contraction that a kernel is.

    Raises:
        Unfit: it is none, or something of it is not certain.
    """
    pattern = subject.pattern
    if subject.indices.unplaced:
        raise Unfit("it is no product of matrices")
    if pattern.kind == "contraction" and "tiled" in pattern.variant:
        raise Unfit(f"it is a {pattern.variant} contraction", is_already_so=True)
    frame = frame_of(subject)
    loops = _loops(subject, _only_reduction(subject))
    node = _loop_node(subject, loops[-1])
    target, factors = _accumulation(subject, node)
    _refuse_used_later(subject, node, target)
    output = _output(subject)
    touches = [_touch_of(subject, factor) for factor in factors]
    c_type, size = _sum_type(subject, target)
    own = _own_indices(frame, touches, output, {each.atom for each in loops})
    ends = frame.only_bounds([output.access], frame.atoms())
    if not {atom for each in own for atom in each} <= set(frame.atoms()):
        raise Unfit("an index of the output does not walk the launch")
    indices = [tuple(frame.index(plan, atom, ends[atom]) for atom in frame.atoms() if atom in each) for each in own]
    steps = tuple(_step_index(frame, each, is_alone=len(loops) == 1) for each in loops)
    needed = _needed(subject, frame, node, touches, output)
    made = [
        _factor(frame, touch, text, each, loops, c_type)
        for touch, text, each in zip(touches, _texts(subject, factors, touches), indices, strict=True)
    ]
    batch = tuple(
        frame.index(plan, atom, ends[atom]) for atom in frame.atoms() if not any(atom in each for each in own)
    )
    made = _with_needed(subject, made, needed, {each.atom for each in (*steps, *batch)})
    by_output = frame.form(output).terms
    is_swapped = any(by_output.get(each.atom) == ONE for each in indices[0])
    left, right = (made[1], made[0]) if is_swapped else (made[0], made[1])
    _keep_in_int(plan, left, right, steps)
    added = f"{target.place.span.text(subject.source)} += kw_sum;"
    first, end = ("0", " * ".join(f"({each.end})" for each in steps))
    if len(loops) == 1:
        assert loops[0].start is not None and loops[0].bound is not None  # noqa: PT018
        first, end = frame.text(loops[0].start), frame.text(loops[0].bound)
    return Contraction(
        frame, steps, left, right, c_type, size, first, end, batch,
        (*(Edit(mark.span, "") for mark in node.pragmas), Edit(node.place.span, added)),
    )  # fmt: skip


def _only_reduction(subject: Subject) -> Reduction:
    found = subject.analysis.facts.reductions
    if len(found) != 1 or found[0].operation != "sum" or found[0].scope != "thread" or found[0].inlined_in:
        raise Unfit("it does more than one sum of products")
    return found[0]


def _loops(subject: Subject, reduction: Reduction) -> tuple[LoopFact, ...]:
    """The loops that a sum runs over, innermost first: one within the other, and no others."""
    facts = subject.analysis.facts
    found = tuple(facts.loops[index] for index in reversed(reduction.loops))
    parents = (*(each.index for each in found[1:]), None)
    for loop, parent in zip(found, parents, strict=True):
        is_plain = (
            loop.is_exact and not loop.ends_early and not loop.inlined_in and loop.atom and loop.parent == parent
            and loop.operator in ("<", "<=", "!=") and loop.step is not None and loop.step.kind == "add"
            and loop.step.amount == ONE and loop.start is not None and loop.bound is not None
        )  # fmt: skip
        if not is_plain or (loop.operator == "<=" and len(found) == 1):
            raise Unfit("how its loop counts is not followed")
    if len(facts.loops) != len(found):
        raise Unfit("it has other loops")
    return found


def _step_index(frame: Frame, loop: LoopFact, *, is_alone: bool) -> Index:
    """A loop as one index of the sum; one that is alone counts from its own start."""
    assert loop.start is not None
    assert loop.bound is not None
    if is_alone:
        return Index(loop.atom, "", "", "loop")
    count = loop.bound - loop.start + (ONE if loop.operator == "<=" else ZERO)
    first = "" if loop.start == ZERO else f"(int)({frame.text(loop.start)})"
    return Index(loop.atom, f"(int)({frame.text(count)})", frame.host(count), "loop", first)


def _loop_node(subject: Subject, loop: LoopFact) -> nodes.Loop:
    for node in nodes.walk(subject.analysis.function.body):
        if isinstance(node, nodes.Loop) and node.place.span == loop.span and node.place.is_exact:
            return node
    raise Unfit("its loop is made by a macro")


def _refuse_used_later(subject: Subject, loop: nodes.Loop, target: nodes.Expression) -> None:
    """Variables that the loop moves, but for the sum, must not be used behind it."""
    kept = {target.name} if isinstance(target, nodes.Name) else set()
    moved = nodes.assigned_names(loop) - kept
    for node in nodes.walk(subject.analysis.function.body):
        if isinstance(node, nodes.Name) and node.name in moved and node.place.span.start >= loop.place.span.end:
            raise Unfit(f"{node.name} is used behind the loop that moves it")


# The accumulation


def _within(statement: nodes.Statement) -> Iterator[nodes.Statement]:
    """The statements of a loop's body, of loops within it, and of what stands under conditions."""
    match statement:
        case nodes.Block(statements=statements):
            for each in statements:
                yield from _within(each)
        case nodes.Loop(body=body):
            yield from _within(body)
        case nodes.If(condition=condition, yes=yes, no=None) if is_without_effect(condition):
            inside = yes.statements if isinstance(yes, nodes.Block) else (yes,)
            if not all(isinstance(each, nodes.Jump) and each.word == "continue" for each in inside):
                yield from _within(yes)
        case _:
            yield statement


def _accumulation(subject: Subject, loop: nodes.Loop) -> tuple[nodes.Expression, list[list[nodes.Expression]]]:
    """What is added to, and the two groups of factors, each with one load."""
    local: dict[str, nodes.Expression] = {}
    sums: list[nodes.Assign] = []
    for statement in _within(loop.body):
        match statement:
            case nodes.Declaration(declarators=declarators):
                local |= {each.name: each.initial for each in declarators if each.initial is not None}
            case nodes.Evaluate(expression=nodes.Assign() as assign) if _is_sum(subject, assign, local):
                sums.append(assign)
            case nodes.Evaluate(expression=nodes.Assign(target=nodes.Name()) | nodes.Update(operand=nodes.Name())):
                continue
            case _:
                raise Unfit("its loop does more than one product")
    if len(sums) != 1:
        raise Unfit("its loop does not add one product")
    local = {name: value for name, value in local.items() if name not in nodes.assigned_names(loop.body)}
    target = sums[0].target
    declared = nodes.declared_names(loop)
    if any(isinstance(node, nodes.Name) and node.name in declared for node in nodes.walk(target)):
        raise Unfit("what it adds to is known in the loop only")
    return target, _groups(subject, _product(sums[0]), local)


def _is_sum(subject: Subject, assign: nodes.Assign, local: Mapping[str, nodes.Expression]) -> bool:
    """Whether an assignment adds something loaded; pointers and counters that move on do not."""
    loaded = {name for name, value in local.items() if _loads(subject, value)}
    return any(
        _loads(subject, value)
        or any(isinstance(node, nodes.Name) and node.name in loaded for node in nodes.walk(value))
        for value in _added(assign) or ()
    )


def _added(assign: nodes.Assign) -> list[nodes.Expression] | None:
    """The factors of what an assignment adds to its target; None where it adds nothing."""
    if assign.operator == "+=":
        return [assign.value]
    if assign.operator != "=":
        return None
    match assign.value:
        case nodes.Binary(operator="+", left=left, right=right):
            if _is_same(left, assign.target):
                return [right]
            return [left] if _is_same(right, assign.target) else None
        case nodes.Call(function=function, arguments=(x, y, z)) if function in _FUSED and _is_same(z, assign.target):
            return [x, y]
    return None


def _is_same(left: nodes.Expression, right: nodes.Expression) -> bool:
    match left, right:
        case nodes.Name(name=one), nodes.Name(name=other):
            return one == other
        case nodes.Element(base=a, index=i), nodes.Element(base=b, index=j):
            return _is_same(a, b) and _is_same(i, j)
        case nodes.Binary(operator=p, left=a, right=b), nodes.Binary(operator=q, left=c, right=d):
            return p == q and _is_same(a, c) and _is_same(b, d)
        case nodes.Literal(text=one), nodes.Literal(text=other):
            return one == other
    return False


def _is_zero(value: nodes.Expression) -> bool:
    return isinstance(value, nodes.Literal) and value.text.rstrip("fF") in ("0", "0.", "0.0")


def _product(assign: nodes.Assign) -> list[nodes.Expression]:
    found: list[nodes.Expression] = []
    waiting = list(_added(assign) or ())
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, nodes.Binary) and node.operator == "*":
            waiting[:0] = [node.left, node.right]
        else:
            found.append(node)
    return found


def _groups(
    subject: Subject, factors: list[nodes.Expression], local: Mapping[str, nodes.Expression]
) -> list[list[nodes.Expression]]:
    """Factors by the load that they are made of; those without one go to the first."""
    groups: list[list[nodes.Expression]] = []
    uniform: list[nodes.Expression] = []
    for written in factors:
        factor = written
        while isinstance(factor, nodes.Name) and factor.name in local:
            factor = local[factor.name]
        if isinstance(factor, nodes.Conditional) and _is_zero(factor.no) and is_without_effect(factor.condition):
            factor = factor.yes
        loads = _loads(subject, factor)
        if len(loads) > 1:
            raise Unfit("a factor is made of several loads")
        (groups.append([factor]) if loads else uniform.append(factor))
    if len(groups) != 2:
        raise Unfit("its product has other than two loads")
    return [groups[0] + uniform, groups[1]]


def _loads(subject: Subject, node: nodes.Expression) -> list[Touch]:
    return [t for t in subject.indices.reads if node.place.span.contains(t.access.span) and t.access.is_exact]


def _touch_of(subject: Subject, group: list[nodes.Expression]) -> Touch:
    touch = _loads(subject, group[0])[0]
    if touch.is_clamped or touch.access.width != ONE or touch.access.inlined_in:
        raise Unfit(f"how {touch.array} is read is not followed")
    return touch


def _texts(subject: Subject, groups: list[list[nodes.Expression]], touches: list[Touch]) -> list[str]:
    """Each group as one expression of `ELEMENT`."""
    known = {each.name for each in subject.analysis.function.parameters if not each.is_pointer}
    known -= nodes.assigned_names(subject.analysis.function.body)
    found = []
    for group, touch in zip(groups, touches, strict=True):
        texts = []
        for factor in group:
            if not factor.place.is_exact:
                raise Unfit("a factor is made by a macro")
            for node in nodes.walk(factor):
                is_load = touch.access.span.contains(node.place.span)
                if isinstance(node, nodes.Name) and not is_load and node.name not in known:
                    raise Unfit(f"a factor is made of {node.name} too")
            edits = [Edit(touch.access.span, ELEMENT)] if factor is group[0] else []
            texts.append(edited(subject.source, factor.place.span, edits))
        found.append(texts[0] if len(texts) == 1 else " * ".join(f"({text})" for text in texts))
    return [ELEMENT if text.strip("() ") == ELEMENT else text for text in found]


# Types


def _sum_type(subject: Subject, target: nodes.Expression) -> tuple[str, int | None]:
    c_type = ""
    if isinstance(target, nodes.Name):
        for node in nodes.walk(subject.analysis.function.body):
            if isinstance(node, nodes.Declarator) and node.name == target.name:
                if c_type or node.extents or node.is_pointer or node.is_reference:
                    raise Unfit(f"{target.name} names several things")
                c_type = node.c_type
    else:
        array = subject.analysis.facts.arrays.get(nodes.root_name(target) or "")
        c_type = "" if array is None else array.c_type
    c_type = _plain_type(c_type)
    if c_type == "auto":
        raise Unfit("the type of its sum is not written down")
    if c_type in subject.analysis.facts.template_parameters:
        return c_type, None
    if c_type not in _SUMMABLE:
        raise Unfit(f"it sums in {c_type or 'an unknown type'}")
    return c_type, _SUMMABLE[c_type]


def _plain_type(c_type: str) -> str:
    words = [word for word in c_type.split() if word not in ("const", "volatile", "__restrict__", "restrict")]
    return " ".join(words).rstrip("* ")


def _check_type(subject: Subject, touch: Touch, text: str, c_type: str) -> str:
    """The array's type; a factor must have the sum's, by itself or by a conversion."""
    array = subject.analysis.facts.arrays[touch.array]
    own = _plain_type(array.c_type)
    flat = text.replace(" ", "")
    casts = (f"({c_type.replace(' ', '')})", f"static_cast<{c_type}>(", f"{c_type}(", f"convert_{c_type}(")
    is_cast = flat.startswith(casts) or (c_type == "float" and flat.startswith(tuple(f"{f}(" for f in _TO_FLOAT)))
    if own != c_type and not is_cast:
        raise Unfit(f"its sum is of type {c_type}, and {touch.array} of {own}")
    if own == "half" and subject.language == "opencl":
        raise Unfit(f"{touch.array} holds halves, which not every device loads")
    return own


# Indices


def _output(subject: Subject) -> Touch:
    writes = subject.indices.writes
    places = {str(each.form) for each in writes}
    if len(places) != 1:
        raise Unfit("it stores at several places")
    return writes[0]


def _own_indices(frame: Frame, touches: list[Touch], output: Touch, loops: set[str]) -> list[set[str]]:
    forms = [frame.form(touch) for touch in touches]
    of_output = set(frame.form(output).terms)
    found = []
    for one, other in ((forms[0], forms[1]), (forms[1], forms[0])):
        own = (set(one.terms) & of_output) - set(other.terms)
        if not own or not loops <= set(one.terms):
            raise Unfit("which index of the output a factor has for itself is not certain")
        found.append(own)
    for form in forms:
        strange = set(form.terms) - of_output - loops
        if strange:
            raise Unfit(f"a factor depends on {frame.name(sorted(strange)[0])}, which the output has not")
    return found


def _factor(
    frame: Frame, touch: Touch, text: str, own: tuple[Index, ...], loops: tuple[LoopFact, ...], c_type: str
) -> Factor:  # fmt: skip
    form = frame.form(touch)
    c_own = _check_type(frame.subject, touch, text, c_type)
    array = frame.subject.analysis.facts.arrays[touch.array]
    start = element = form.offset
    along = {each.atom for each in loops}
    is_even = _is_even(form, loops)
    for name, coefficient in form.terms.items():
        if name not in along or not is_even:
            element = element + coefficient * named(name)
        if name not in along and name not in {each.atom for each in own}:
            start = start + coefficient * named(name)
    by_own, by_k = form.terms.get(own[0].atom, ZERO), form.terms.get(loops[0].atom, ZERO)
    element = element + by_k * named(STEP) if is_even else element
    return Factor(
        touch.array, c_own, array.element_bytes, own, by_own, by_k, element, start, is_even and len(own) == 1, (), text
    )


def _is_even(form: AffineForm, loops: tuple[LoopFact, ...]) -> bool:
    """Whether all steps of the loops are equally far apart in memory: `9 * c + 3 * r + s` of 3 rows of 3."""
    if len(loops) > 1 and any(each.start != ZERO for each in loops):
        return False
    for inner, outer in pairwise(loops):
        assert inner.bound is not None
        count = inner.bound + ONE if inner.operator == "<=" else inner.bound
        if form.terms.get(outer.atom, ZERO) != form.terms.get(inner.atom, ZERO) * count:
            return False
    return True


# Conditions


def _needed(
    subject: Subject, frame: Frame, loop: nodes.Loop, touches: list[Touch], output: Touch
) -> list[Polynomial]:  # fmt: skip
    """What is at least 0 in all steps that add something.

    Raises:
        Unfit: a condition within the loops is not followed.
    """
    facts = subject.analysis.facts
    within = [facts.guards[index] for index in sorted({i for each in touches for i in each.access.guards})
              if loop.place.span.contains(facts.guards[index].span)]  # fmt: skip
    outside = {i for each in touches for i in each.access.guards if not loop.place.span.contains(facts.guards[i].span)}
    if not outside <= set(output.access.guards):
        raise Unfit("it sums only where a condition says so")
    asked = [each.condition for each in nodes.walk(loop.body) if isinstance(each, nodes.If | nodes.Conditional)]
    if {each.place.span for each in asked} - {each.span for each in within}:
        raise Unfit("a condition on its products is not followed")
    known = [each for each in facts.parameters if not each.is_pointer]
    if within and not all(is_at_most_int(each.c_type, subject) for each in known if "float" not in each.c_type):
        raise Unfit("a condition on its products is of more than ints")
    found = dict[Polynomial, None]()
    for guard in within:
        if not guard.is_complete:
            raise Unfit(f"where {guard.text} holds is not followed")
        for each in guard.comparisons:
            less, more = (each.left, each.right) if each.operator[0] == "<" else (each.right, each.left)
            if each.operator not in ("<", "<=", ">", ">=") or not subject.is_as_said(each):
                raise Unfit(f"where {guard.text} holds is not followed")
            found[frame.normal(more - less - (ZERO if "=" in each.operator else ONE))] = None
    return list(found)


def _with_needed(subject: Subject, made: list[Factor], needed: list[Polynomial], shared: set[str]) -> list[Factor]:
    """Factors with the conditions under which they are 0: each is of what one of them has.

    Raises:
        Unfit: one is of more.
    """
    for each in needed:
        moving = {_as_global(name) for name in deep_names(subject, each) if _is_moving(subject, name)}
        places = [number for number, one in enumerate(made)
                  if moving <= shared | {_as_global(index.atom) for index in one.own}
                  | {part for index in one.own for part in _moving_parts(subject, index.atom)}]  # fmt: skip
        if not places:
            raise Unfit("a condition on its products is of both factors")
        one = made[places[0]]
        made[places[0]] = replace(one, needed=(*one.needed, each))
    return made


def _moving_parts(subject: Subject, atom: str) -> set[str]:
    """What an index that was divided is made of: with it go all of its parts."""
    return {_as_global(name) for name in deep_names(subject, named(atom)) if _is_moving(subject, name)}


def _is_moving(subject: Subject, name: str) -> bool:
    atom = subject.analysis.facts.atoms.get(name)
    return name.startswith(("block.", "thread.", "global.")) or (atom is not None and atom.kind == "loop")


def _as_global(name: str) -> str:
    return f"global.{name[6:]}" if name.startswith("block.") else name


def _keep_in_int(plan: RewriteBuilder, left: Factor, right: Factor, steps: tuple[Index, ...]) -> None:
    """Several indices as one are counted in `int`, too; and two loops of no steps at all are none."""
    for letter, indices in (("m", left.own), ("n", right.own), ("k", steps)):
        if len(indices) > 1:
            count = f"{' * '.join(f'({each.host})' for each in indices)} <= {MOST_PLACES}"
            least = [f"({each.host}) >= 0" for each in steps if letter == "k" and "-" in each.host]
            plan.constraint(f"range_{letter}", " and ".join((count, *least)))
