"""Loops that the threads of a block, a warp or a grid walk together: each step takes a vector of neighbours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from kernelwright.analysis.facts import LoopFact, Reduction
from kernelwright.source import nodes
from kernelwright.source.loop_headers import LoopHeader
from kernelwright.source.span import Span
from kernelwright.tactics.base import Effect, Rewrite, RuleTactic, Subject, Unfit
from kernelwright.tactics.common.block_functions import joining_calls
from kernelwright.tactics.common.dialect import dialect
from kernelwright.tactics.common.editing import RewriteBuilder, indent, refuse_arranged, refuse_unread
from kernelwright.tactics.common.launches import number, only_shape
from kernelwright.tactics.common.loop_reductions import (
    Joined,
    Operation,
    across_lanes,
    joined_variables,
    vector_ends,
    vector_starts,
)
from kernelwright.tactics.common.thread_queries import query_text, thread_queries
from kernelwright.tactics.vectors.lane_kinds import LaneKind
from kernelwright.tactics.vectors.lane_text import operators_in, prelude
from kernelwright.tactics.vectors.lanes import Vectorizer, functions_for, types_in
from kernelwright.tactics.vectors.load_batches import batched_loop
from kernelwright.tactics.vectors.shared_loops import (
    TOGETHER,
    is_kept_row,
    loops_inside,
    outer_loops,
    plain_loop,
    refuse_memory_between,
    refuse_partial_results,
    require_apart,
    shares_arrays,
)
from kernelwright.tactics.vectors.thread_places import alike_variables, personal_variables, threads_sharing

_VECTOR_TYPES = frozenset(("float", "double", "int", "uint"))


@dataclass
class LoopVectorizer:
    """One kernel while its loops get vectors."""

    subject: Subject
    plan: RewriteBuilder
    vec: str
    types: dict[str, str]
    personal: frozenset[str]
    """Variables that differ from thread to thread."""
    block: tuple[int, str] | None = None
    """The size of a block as a number of the source, and the parameter that it becomes."""
    count: str = ""
    """The parameter that says how many steps of a loop are loaded at a time; empty: one."""
    spellings: tuple[str, ...] = ()
    """How the source says that number: digits, macros."""
    calls: dict[Span, Operation] = field(default_factory=dict)
    """Calls that are known to join what all threads of a block have."""
    ready: list[_Ready] = field(default_factory=list)
    wide: list[Vectorizer] = field(default_factory=list)
    joined: list[Joined] = field(default_factory=list)
    changed: int = 0
    is_alone: bool = False
    """Whether each loop is one thread's own, and not walked together."""

    def is_block_wide(self, ready: _Ready) -> bool:
        """Whether a loop is walked by one block: what a thread keeps is what it comes back to."""
        return ready.fact.start is not None and ready.fact.start.single_name == "thread.x"

    def spelled(self, text: str) -> str:
        """The source's text of a start or step with the block's size as a parameter."""
        if self.block is None or not self.spellings:
            return text
        return re.sub(rf"\b(?:{'|'.join(self.spellings)})\b", self.block[1], text)


def _vectors(subject: Subject) -> Rewrite:
    refuse_arranged(subject)
    refuse_unread(subject)
    facts = subject.analysis.facts
    if subject.pattern.kind == "gather/scatter":
        require_apart(subject)
    elif subject.pattern.kind not in ("row-wise", "whole reduction", "contraction", "elementwise"):
        raise Unfit(f"it is {subject.pattern.kind}: what its threads leave for each other is not known")
    together = {loop.span: loop for loop in facts.loops if loop.sweep in TOGETHER and not loop.inlined_in}
    loops_in_order = outer_loops(subject.analysis.function.body)
    if not any(each.place.span in together for each in loops_in_order):
        loops_in_order = [inner for each in loops_in_order for inner in loops_inside(subject, each)]
    found = [(n, together[n.place.span]) for n in loops_in_order if n.place.span in together]
    if not found:
        raise Unfit("no loop is walked by threads together")
    refuse_memory_between(subject, [fact for _, fact in found])
    refuse_partial_results(subject, [fact for _, fact in found])
    loops = start(subject, "vector-loops", calls=_calls(subject))
    reasons = []
    for node, fact in found:
        try:
            widen(loops, node, fact)
        except Unfit as unfit:
            reasons.append(unfit.reason)
            if shares_arrays(subject, fact):
                raise
    if not loops.changed:
        raise Unfit(reasons[0])
    return _finish(loops)


def start(subject: Subject, tactic: str, *, calls: Mapping[Span, Operation]) -> LoopVectorizer:
    """A kernel whose loops are to get vectors."""
    plan = RewriteBuilder(subject, tactic, "row")
    narrow = [a.element_bytes or 4 for a in subject.analysis.facts.arrays.values() if a.is_parameter]
    is_cpu = subject.device.kind == "cpu"
    widest = 8 if is_cpu else min(8, max(1, subject.device.vector_bytes // max(min(narrow, default=4), 1)))
    vec = plan.parameter("VEC", (1, 2, 4, 8), widest, "neighbours that a thread takes in each step of a loop")
    function = subject.analysis.function
    types = {each.name: f"{each.c_type} *" if each.is_pointer else each.c_type for each in function.parameters}
    for node in nodes.walk(function.body):
        if isinstance(node, nodes.Declarator):
            types[node.name] = f"{node.c_type} *" if node.is_pointer or node.extents else node.c_type
    return LoopVectorizer(subject, plan, vec, types, personal_variables(function.body, calls), calls=dict(calls))


def _alike(loops: LoopVectorizer, fact: LoopFact) -> frozenset[str]:
    """Personal variables that all threads which share a loop have the same of."""
    if fact.sweep not in ("warp-stride", "block-stride"):
        return frozenset()
    subject = loops.subject
    still = alike_variables(subject, threads_sharing(subject, fact))
    return loops.personal - personal_variables(subject.analysis.function.body, loops.calls, still=still)


def _calls(subject: Subject) -> dict[Span, Operation]:
    """Calls after which all threads of a block have the same; none where that is not known of all."""
    step = only_shape(subject)
    size = number(step.block[0].text)
    if size is None or size > 1024 or any(number(extent) != 1 for extent in step.block[1:]):
        return {}
    try:
        found = joining_calls(subject.analysis.tree, subject.analysis.function, size)
    except Unfit:
        return {}
    return {call.place.span: operation for call, operation, _ in found}


# One loop


@dataclass(frozen=True)
class _Ready:
    """A loop that has a vector form."""

    node: nodes.Loop
    fact: LoopFact
    header: LoopHeader
    declared: nodes.Declarator
    joined: tuple[Joined, ...]
    lanes: Vectorizer
    body: str


def widen(loops: LoopVectorizer, node: nodes.Loop, fact: LoopFact) -> None:
    """Prepare a vector form of one loop, and a rest that goes one by one; `emit` writes it.

    Raises:
        Unfit: it has none.
    """
    header = plain_loop(node, fact, is_alone=loops.is_alone)
    declared = node.initial.declarators[0] if isinstance(node.initial, nodes.Declaration) else None
    assert declared is not None
    joined = joined_variables(node, loops.types)
    for each in joined if not loops.is_alone else ():
        _require_joined(loops, node, fact, each)
    lanes = _lanes(loops, node, fact, header, joined)
    body = _body(node, lanes)
    if not lanes.vector_loads + lanes.vector_stores:
        raise Unfit("nothing that the loop loads or stores lies side by side")
    loops.ready.append(_Ready(node, fact, header, declared, joined, lanes, body))
    loops.wide.append(lanes)
    loops.joined += joined
    loops.changed += 1


def emit(loops: LoopVectorizer) -> None:
    """Write every loop that was prepared; what several load is kept in registers, as far as a parameter says."""
    kept = _kept(loops)
    keep = ""
    is_long = any("block.x" in each.fact.start.names for each in loops.ready if each.fact.start is not None)
    if loops.subject.language != "opencl" and loops.subject.pattern.kind == "whole reduction" and is_long:
        why = "vectors that a thread loads before it joins the first"
        loops.count = loops.plan.parameter("COUNT", (1, 2, 4, 8), 4, why)
        loops.plan.constraint("loaded", f"{loops.count} * {loops.vec} <= 32")
    if kept:
        keep = loops.plan.parameter(
            "KEEP", (0, 1, 2, 4, 8), _steps_of_a_row(loops), "vectors of a row that a thread keeps in registers"
        )
        loops.plan.constraint("kept", f"{keep} * {loops.vec} <= 64")
    filled: set[str] = set()
    for each in loops.ready:
        own = {text: kept[text] for text in each.lanes.loaded if text in kept}
        fills = frozenset(own) - filled
        lines = [f"{dialect(loops.subject.language).vector(kept_in[1])} {kept_in[0]}[{keep} > 0 ? {keep} : 1];"
                 for text, kept_in in own.items() if text in fills]  # fmt: skip
        filled |= fills
        _write(
            loops, each, keep if own else "", {text: f"{name}[kw_k]" for text, (name, _) in own.items()}, fills, lines
        )


def _kept(loops: LoopVectorizer) -> dict[str, tuple[str, str]]:
    """By the text of a load that several loops have of what nobody writes: a register array and its element type."""
    facts, body = loops.subject.analysis.facts, loops.subject.analysis.function.body
    written = {access.array for access in facts.accesses if access.kind != "read"}
    found: dict[str, list[_Ready]] = {}
    for each in loops.ready:
        if not any(each.node is statement for statement in body.statements) or not loops.is_block_wide(each):
            continue
        for text, (_, span) in each.lanes.loaded.items():
            arrays = {access.array for access in facts.accesses if access.span == span}
            if arrays and not arrays & written:
                found.setdefault(text, []).append(each)
    kept: dict[str, tuple[str, str]] = {}
    for text, several in sorted(found.items()):
        walks = {(str(r.fact.start), str(r.fact.bound), str(r.fact.step), r.declared.name) for r in several}
        if len(several) > 1 and len(walks) == 1:
            kept[text] = (f"kw_kept_{len(kept)}", several[0].lanes.loaded[text][0])
    return kept


def _steps_of_a_row(loops: LoopVectorizer) -> int:
    """Enough for the longest row at the defaults, on a GPU; 0 where that is not known or too much."""
    subject = loops.subject
    bound = loops.ready[0].fact.bound
    vec = loops.plan.header.parameter(loops.vec)
    size = loops.block[0] if loops.block is not None else number(only_shape(subject).block[0].text)
    if subject.device.kind == "cpu" or bound is None or size is None or vec is None:
        return 0
    lengths = [subject.evaluate(bound, sizes) for sizes in subject.sizes()]
    longest = max((each for each in lengths if each is not None), default=0)
    needed = -(-longest // (size * int(vec.default)))
    fits = next((each for each in (1, 2, 4, 8) if each >= needed), 0)
    return fits if None not in lengths and fits * int(vec.default) <= 64 else 0


def _write(
    loops: LoopVectorizer, ready: _Ready, keep: str, kept: Mapping[str, str], fills: frozenset[str], arrays: list[str]
) -> None:
    source = loops.subject.source
    node, declared, words, vec = ready.node, ready.declared, dialect(loops.subject.language), loops.vec
    assert declared.initial is not None
    start = loops.spelled(declared.initial.place.span.text(source))
    step = "1" if ready.header.step is None else loops.spelled(ready.header.step.place.span.text(source))
    bound, c_type, name = ready.header.bound.place.span.text(source), declared.c_type, declared.name
    pad = indent(source, node.place.span.start)
    may = " && ".join(["kw_to > 0", *(f"({each}) > 0 && ({each}) % {vec} == 0" for each in ready.lanes.blocks)])
    lines = [f"const {c_type} kw_to = {bound};", f"const {c_type} kw_full = {may} ? kw_to / {vec} * {vec} : 0;"]
    lines += vector_starts(words, ready.joined)
    first_place = f"({start}) * {vec}"
    if keep:
        lanes = _lanes(loops, node, ready.fact, ready.header, ready.joined)
        lanes.kept, lanes.fills = kept, fills
        lines += [
            "#pragma unroll",
            f"for (int kw_k = 0; kw_k < {keep}; ++kw_k) {{",
            f"  const {c_type} {name} = (({start}) + kw_k * ({step})) * {vec};",
            f"  if ({name} < kw_full) {{",
            f"    {_body(node, lanes)}",
            "  }",
            "}",
        ]
        first_place = f"(({start}) + {keep} * ({step})) * {vec}"
    if loops.count and not keep:
        lines += batched_loop(c_type=c_type, name=name, first=first_place, step=step, vec=vec, count=loops.count,
                              body=ready.body)  # fmt: skip
    else:
        lines += [
            f"for ({c_type} {name} = {first_place}; {name} < kw_full; {name} += ({step}) * {vec}) {{",
            f"  {ready.body}",
            "}",
        ]
    lines += vector_ends(ready.joined)
    original = node.body.place.span.text(source)
    if not words.is_opencl:
        lines.append("#pragma unroll 1")
    lines.append(f"for ({c_type} {name} = kw_full + ({start}); {name} < kw_to; {name} += {step}) {original}")
    head = "".join(f"{line}\n{pad}" for line in arrays)
    loops.plan.replace(node.place.span, head + "{\n" + "\n".join(f"{pad}  {line}" for line in lines) + f"\n{pad}}}")
    for mark in node.pragmas:
        loops.plan.replace(mark.span, "")


def _require_joined(loops: LoopVectorizer, node: nodes.Loop, fact: LoopFact, joined: Joined) -> None:
    """What each thread's value is used for must be joining it with the others' by the same operation.

    Raises:
        Unfit: a thread's own value matters.
    """
    reductions = loops.subject.analysis.facts.reductions
    own = [r for r in reductions if r.target == joined.name and fact.index in r.loops and r.operation == joined.plain]
    if not own or not any(_joins(each, own[0], joined) for each in reductions):
        raise Unfit(f"{joined.name} is not joined with what other threads have")
    after = [each for each in _statements(loops.subject.analysis.function.body)
             if each.place.span.start >= node.place.span.end and _mentions(each, joined.name)]  # fmt: skip
    if not after:
        raise Unfit(f"{joined.name} is not joined with what other threads have")
    first = after[0]
    is_replaced = (
        isinstance(first, nodes.Evaluate) and isinstance(first.expression, nodes.Assign)
        and first.expression.operator == "=" and isinstance(first.expression.target, nodes.Name)
        and first.expression.target.name == joined.name and isinstance(first.expression.value, nodes.Call)
    )  # fmt: skip
    if not is_replaced and (len(after) > 1 or _mentions(first, joined.name) > 1):
        raise Unfit(f"what a thread has in {joined.name} is used by itself")


def _joins(reduction: Reduction, own: Reduction, joined: Joined) -> bool:
    return (
        reduction.scope in ("block", "warp", "device")
        and reduction.operation == joined.plain
        and own.index in reduction.sources.reductions
    )


def _statements(block: nodes.Block) -> list[nodes.Statement]:
    """The statements of a function that are no blocks, in order; those of loops count as one."""
    found: list[nodes.Statement] = []
    for each in block.statements:
        if isinstance(each, nodes.Block):
            found += _statements(each)
        else:
            found.append(each)
    return found


def _mentions(node: nodes.Node, name: str) -> int:
    return sum(isinstance(each, nodes.Name) and each.name == name for each in nodes.walk(node))


def _lanes(
    loops: LoopVectorizer, node: nodes.Loop, fact: LoopFact, header: LoopHeader, joined: tuple[Joined, ...]
) -> Vectorizer:  # fmt: skip
    """What turns a loop's body into one for vectors.

    Raises:
        Unfit: the body depends on which thread runs it.
    """
    subject, words = loops.subject, dialect(loops.subject.language)
    own = nodes.declared_names(node)
    personal = set() if loops.is_alone else loops.personal - _alike(loops, fact) - own - {j.name for j in joined}
    for each in nodes.walk(node.body):
        if isinstance(each, nodes.Name) and each.name in personal:
            raise Unfit(f"{each.name} belongs to the thread, and threads take other elements then")
        if query_text(each).startswith(("threadIdx.", "get_local_id(", "get_global_id(", "warp")):
            raise Unfit("the loop asks which thread it runs in")
    start = {header.variable: LaneKind(1)}
    for value in joined:
        if words.is_opencl and value.c_type not in _VECTOR_TYPES:
            raise Unfit(f"there are no vectors of {value.c_type} here")
        start[value.name] = LaneKind(is_varying=True, c_type=value.c_type)
    lanes = Vectorizer(
        subject.source, words, subject.analysis.tree, dict.fromkeys(thread_queries(node.body), 0), frozenset(),
        {name: c_type.removesuffix(" *") for name, c_type in loops.types.items() if name not in own},
        vec=loops.vec, renamed={value.name: f"kw_{value.name}" for value in joined}, start=start,
        blocked=header.variable,
    )  # fmt: skip
    arrays = subject.analysis.facts.arrays.items()
    shared = {
        key.partition("#")[0] for key, array in arrays if array.space == "shared" and not is_kept_row(subject, key)
    }
    if any(isinstance(each, nodes.Name) and each.name in shared for each in nodes.walk(node.body)):
        raise Unfit("the loop uses shared memory")
    return lanes


def _body(node: nodes.Loop, lanes: Vectorizer) -> str:
    """The body for vectors.

    Raises:
        Unfit: there is none.
    """
    statements = node.body.statements if isinstance(node.body, nodes.Block) else (node.body,)
    lanes.settle(statements)
    return lanes.block(statements)


def add_prelude(loops: LoopVectorizer) -> None:
    """Write the changed loops, and the text that they stand on."""
    emit(loops)
    subject, plan, words = loops.subject, loops.plan, dialect(loops.subject.language)
    c_types = types_in(loops.wide, subject) | {each.c_type for each in loops.joined}
    mapped = {key for lanes in loops.wide for key in lanes.mapped}
    operators = operators_in(subject.analysis.function.body)
    plan.prelude.append(prelude(words, loops.vec, c_types=c_types, mapped=mapped, operators=operators))
    plan.prelude += functions_for(loops.wide)
    for operation, c_type in sorted({(each.operation, each.c_type) for each in loops.joined}):
        plan.prelude.append(across_lanes(words, operation, c_type, loops.vec))


def _finish(loops: LoopVectorizer) -> Rewrite:
    subject, plan = loops.subject, loops.plan
    add_prelude(loops)
    narrow = min((a.element_bytes or 4 for a in subject.analysis.facts.arrays.values() if a.is_parameter), default=4)
    factor = 2.0 if subject.device.kind == "cpu" else {1: 1.8, 2: 1.5, 4: 1.2}.get(narrow, 1.05)
    return plan.finish(
        f"{loops.changed} loops take vectors of {loops.vec} neighbours in each step.",
        Effect(factor, f"a quarter or less of the loads, each up to {subject.device.vector_bytes} bytes"),
    )


VECTOR_LOOPS = RuleTactic(
    "vector-loops", "row", "Vectors in loops that the threads of a block, a warp or a grid walk together.", _vectors
)
