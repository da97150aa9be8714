"""A plain contraction taken apart: its two factors as affine reads, its loop, and what becomes of the sum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernelwright.analysis.facts import LoopFact, Reduction
from kernelwright.analysis.patterns.indices import Touch
from kernelwright.analysis.polynomial import ONE, ZERO, Polynomial
from kernelwright.source import nodes
from kernelwright.source.edits import Edit
from kernelwright.tactics.base import Subject, Unfit
from kernelwright.tactics.common.editing import RewriteBuilder
from kernelwright.tactics.tiling.frame import Frame, Index, edited
from kernelwright.tactics.tiling.index_space import frame_of

ELEMENT = "kw_element"
"""What stands for the loaded element in a factor's expression."""

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
    own: Index
    """The index of the output that this factor has for itself."""
    by_own: Polynomial
    by_k: Polynomial
    start: Polynomial
    """The rest of the element's index: sizes, and indices that both factors or none of them have."""
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
    loop: LoopFact
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
    if pattern.kind not in ("contraction", "row-wise") or subject.indices.unplaced:
        raise Unfit("it is no product of matrices")
    if pattern.kind == "contraction" and pattern.variant != "matrix-matrix":
        is_tiled = "tiled" in pattern.variant
        raise Unfit(f"it is a {pattern.variant} contraction", is_already_so=is_tiled)
    frame = frame_of(subject)
    reduction = _only_reduction(subject)
    loop = _loop(subject, reduction)
    node = _loop_node(subject, loop)
    target, factors = _accumulation(subject, node)
    _refuse_used_later(subject, node, target)
    output = _output(subject)
    touches = [_touch_of(subject, factor) for factor in factors]
    c_type, size = _sum_type(subject, target)
    own = _own_indices(frame, touches, output, loop.atom)
    ends = frame.only_bounds([each.access for each in touches], frame.atoms())
    made = [
        _factor(frame, plan, touch, text, atom, loop.atom, c_type, ends)
        for touch, text, atom in zip(touches, _texts(subject, factors, touches), own, strict=True)
    ]
    by_output = frame.form(output).terms
    is_swapped = by_output.get(own[0]) == ONE
    left, right = (made[1], made[0]) if is_swapped else (made[0], made[1])
    batch = tuple(frame.index(plan, atom, ends[atom]) for atom in frame.atoms() if atom not in own)
    assert loop.start is not None
    assert loop.bound is not None
    added = f"{target.place.span.text(subject.source)} += kw_sum;"
    return Contraction(
        frame, loop, left, right, c_type, size, frame.text(loop.start), frame.text(loop.bound), batch,
        (*(Edit(mark.span, "") for mark in node.pragmas), Edit(loop.span, added)),
    )  # fmt: skip


def _only_reduction(subject: Subject) -> Reduction:
    found = subject.analysis.facts.reductions
    if len(found) != 1 or found[0].operation != "sum" or found[0].scope != "thread" or found[0].inlined_in:
        raise Unfit("it does more than one sum of products")
    if len(found[0].loops) != 1:
        raise Unfit("its sum runs over more than one loop")
    return found[0]


def _loop(subject: Subject, reduction: Reduction) -> LoopFact:
    loop = subject.analysis.facts.loops[reduction.loops[0]]
    is_plain = (
        loop.is_exact and not loop.ends_early and not loop.inlined_in and loop.atom and loop.parent is None
        and loop.operator in ("<", "!=") and loop.step is not None and loop.step.kind == "add"
        and loop.step.amount == ONE and loop.start is not None and loop.bound is not None
    )  # fmt: skip
    if not is_plain:
        raise Unfit("how its loop counts is not followed")
    if len(subject.analysis.facts.loops) != 1:
        raise Unfit("it has other loops")
    return loop


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


def _accumulation(subject: Subject, loop: nodes.Loop) -> tuple[nodes.Expression, list[list[nodes.Expression]]]:
    """What is added to, and the two groups of factors, each with one load."""
    statements = loop.body.statements if isinstance(loop.body, nodes.Block) else (loop.body,)
    local: dict[str, nodes.Expression] = {}
    sums: list[nodes.Assign] = []
    for statement in statements:
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


def _own_indices(frame: Frame, touches: list[Touch], output: Touch, loop: str) -> list[str]:
    forms = [frame.form(touch) for touch in touches]
    of_output = set(frame.form(output).terms)
    found = []
    for one, other in ((forms[0], forms[1]), (forms[1], forms[0])):
        own = (set(one.terms) & of_output) - set(other.terms)
        if len(own) != 1 or loop not in one.terms:
            raise Unfit("which index of the output a factor has for itself is not certain")
        found.append(own.pop())
    for form in forms:
        strange = set(form.terms) - of_output - {loop}
        if strange:
            raise Unfit(f"a factor depends on {frame.name(sorted(strange)[0])}, which the output has not")
    return found


def _factor(
    frame: Frame, plan: RewriteBuilder, touch: Touch, text: str, atom: str, loop: str, c_type: str,
    ends: Mapping[str, Polynomial | None],
) -> Factor:  # fmt: skip
    form = frame.form(touch)
    own = _check_type(frame.subject, touch, text, c_type)
    array = frame.subject.analysis.facts.arrays[touch.array]
    start = form.offset
    for name, coefficient in form.terms.items():
        if name not in (atom, loop):
            start = start + coefficient * _named(name)
    by_own, by_k = form.terms.get(atom, ZERO), form.terms.get(loop, ZERO)
    index = frame.index(plan, atom, ends[atom])
    return Factor(touch.array, own, array.element_bytes, index, by_own, by_k, start, text)


def _named(name: str) -> Polynomial:
    return Polynomial((((name,), 1),))
