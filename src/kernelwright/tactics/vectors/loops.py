"""Loops that the threads of a block, a warp or a grid walk together: each step takes a vector of neighbours."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from kernelwright.analysis.facts import Access, LoopFact, Reduction
from kernelwright.analysis.patterns.pattern import recognise
from kernelwright.analysis.polynomial import ONE, ZERO, Polynomial, named
from kernelwright.source import nodes
from kernelwright.source.loop_headers import LoopHeader, read_header
from kernelwright.source.span import Span
from kernelwright.tactics.base import Effect, Rewrite, RuleTactic, Subject, Unfit
from kernelwright.tactics.common.block_functions import joining_calls
from kernelwright.tactics.common.dialect import dialect
from kernelwright.tactics.common.editing import RewriteBuilder, indent, refuse_arranged, refuse_unread
from kernelwright.tactics.common.iteration_domain import require_independent
from kernelwright.tactics.common.launches import number, only_shape
from kernelwright.tactics.common.loop_reductions import Joined, Operation, across_lanes, joined_variables
from kernelwright.tactics.common.thread_queries import query_text, thread_queries
from kernelwright.tactics.vectors.lane_kinds import COMPARISONS, LaneKind
from kernelwright.tactics.vectors.lane_text import operators_in, prelude
from kernelwright.tactics.vectors.lanes import Vectorizer
from kernelwright.tactics.vectors.load_batches import batched_loop

TOGETHER = ("block-stride", "grid-stride", "warp-stride")
"""Sweeps of loops that threads share."""
_WARP = 32
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
        _require_apart(subject)
    elif subject.pattern.kind not in ("row-wise", "whole reduction", "contraction", "elementwise"):
        raise Unfit(f"it is {subject.pattern.kind}: what its threads leave for each other is not known")
    together = {loop.span: loop for loop in facts.loops if loop.sweep in TOGETHER and not loop.inlined_in}
    loops_in_order = outer_loops(subject.analysis.function.body)
    if not any(each.place.span in together for each in loops_in_order):
        loops_in_order = [inner for each in loops_in_order for inner in _inside(subject, each)]
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


def _require_apart(subject: Subject) -> None:
    """Threads see nothing of each other, and nothing that they have stored: any of them may take an element.

    Raises:
        Unfit: they may.
    """
    require_independent(subject)
    accesses = [each for each in subject.analysis.facts.accesses if each.space == "global"]
    both = {each.array for each in accesses if each.kind == "read"} & {a.array for a in accesses if a.kind != "read"}
    if both or any(each.kind == "accumulate" for each in accesses):
        raise Unfit("it is gather/scatter, and reads what it stores")


def _inside(subject: Subject, loop: nodes.Loop) -> list[nodes.Loop]:
    """Loops in the steps of one that all threads of a block take alike; none where threads may see each other."""
    fact = next((each for each in subject.analysis.facts.loops if each.span == loop.place.span), None)
    parts = () if fact is None or fact.step is None else (fact.start, fact.bound, fact.step.amount)
    if not parts or None in parts or not isinstance(loop.body, nodes.Block):
        return []
    atoms = subject.analysis.facts.atoms
    names = {name for part in parts if part is not None for name in part.names}
    if any(atoms[name].kind != "size" and not _is_of_other_axes(name) for name in names):
        return []
    try:
        _require_apart(subject)
    except Unfit:
        return []
    return outer_loops(loop.body)


def outer_loops(body: nodes.Block) -> list[nodes.Loop]:
    """Loops that stand in no other loop."""
    found: list[nodes.Loop] = []
    waiting: list[nodes.Node] = list(reversed(body.statements))
    while waiting:
        node = waiting.pop()
        if isinstance(node, nodes.Loop):
            found.append(node)
        elif isinstance(node, nodes.Block | nodes.If):
            waiting.extend(reversed(list(nodes.children(node))))
    return found


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
    return LoopVectorizer(subject, plan, vec, types, _personal(function.body, calls), calls=dict(calls))


def _alike(loops: LoopVectorizer, fact: LoopFact) -> frozenset[str]:
    """Personal variables that all threads which share a loop have the same of."""
    if fact.sweep not in ("warp-stride", "block-stride"):
        return frozenset()
    body, still = loops.subject.analysis.function.body, _still(loops.subject, _lanes_of(loops.subject, fact))
    return loops.personal - _personal(body, loops.calls, still=still)


def _lanes_of(subject: Subject, fact: LoopFact) -> int:
    """How many neighbouring threads share a loop that starts at `threadIdx.x % 32`; 0 where all along x do."""
    if fact.sweep != "warp-stride" or fact.start is None or fact.start.single_name is None:
        return 0
    atom = subject.analysis.facts.atoms[fact.start.single_name]
    width = atom.parts[1].constant if atom.kind == "remainder" else _WARP
    return width or 0


def _still(subject: Subject, lanes: int) -> frozenset[str]:
    """Variables that so many neighbouring threads have the same of: places of other axes, and numbers of their groups.

    `lanes` is 0 for all threads of a block along x. Blocks must consist of whole groups.
    """
    facts, body = subject.analysis.facts, subject.analysis.function.body
    size = number(only_shape(subject).block[0].text)
    has_groups = subject.language == "cuda" and lanes > 0 and size is not None and size % lanes == 0

    def is_still(name: str) -> bool:
        atom = facts.atoms[name]
        if atom.kind != "quotient" or not has_groups:
            return atom.kind == "size" or (atom.kind == "thread" and _is_of_other_axes(name))
        divisor = atom.parts[1].constant or 1
        return divisor % lanes == 0 and atom.parts[0].single_name in ("thread.x", "global.x")

    changed = nodes.assigned_names(body)
    declared = [each.name for each in nodes.walk(body) if isinstance(each, nodes.Declarator)]
    values: dict[str, list[Polynomial]] = {}
    for each in facts.thread_indices:
        values.setdefault(each.name, []).append(each.value)
    return frozenset(
        name for name, known in values.items()
        if name not in changed and declared.count(name) == len(known) == 1 and all(map(is_still, known[0].names))
    )  # fmt: skip


def _is_of_other_axes(name: str) -> bool:
    kind, _, axis = name.partition(".")
    return kind == "block" or (kind in ("thread", "global") and axis in ("y", "z"))


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


def _personal(
    body: nodes.Block, calls: Mapping[Span, Operation], indices: Collection[str] = (), still: Collection[str] = ()
) -> frozenset[str]:  # fmt: skip
    """Variables that are made of the thread's place in its block; what `calls` give is the same for all threads.

    `indices`: of loops, which name an element and not the thread; `still`: known to be the same for the threads asked
    about.
    """
    words = ("threadIdx.", "get_local_id(", "get_global_id(", "warp")
    found: set[str] = set()
    for _ in range(8):
        before = len(found)
        for node in nodes.walk(body):
            match node:
                case nodes.Declarator(name=name, initial=initial) if initial is not None:
                    source: nodes.Node = initial
                case nodes.Assign(target=nodes.Name(name=name), value=value):
                    source = value
                case _:
                    continue
            if any(
                (isinstance(each, nodes.Name) and each.name in found) or query_text(each).startswith(words)
                for each in nodes.walk(source)
                if not any(span.contains(each.place.span) for span in calls)
            ):
                found |= {name} - {*indices, *still}
        if len(found) == before:
            break
    return frozenset(found)


def refuse_place_as_data(subject: Subject, *, is_kernel_alone: bool = False, walked: Collection[Span] = ()) -> None:
    """The thread's place may only index shared memory, be compared, and start loops: results do not depend on it.

    Args:
        subject: the kernel.
        is_kernel_alone: whether the functions that it calls are known to be fine.
        walked: accesses that may be at the thread's place, too, since the block walks along them.

    Raises:
        Unfit: it is used in another way.
    """
    facts = subject.analysis.facts
    shared = {array.name.partition("#")[0] for array in facts.arrays.values() if array.space == "shared"}
    for function in (subject.analysis.function, *(() if is_kernel_alone else subject.helpers)):
        names = set() if function.is_kernel else _shared_parameters(subject, function)
        allowed = [*_allowed_places(function.body, shared | names), *walked]
        loops = {n.name for n in nodes.walk(function.body) if isinstance(n, nodes.Declarator)} & {
            each.variable for each in facts.loops
        }
        personal = _personal(function.body, {}, loops)
        for node in nodes.walk(function.body):
            is_place = query_text(node).startswith(("threadIdx.", "get_local_id(", "get_global_id("))
            if isinstance(node, nodes.Name) and node.name in personal:
                is_place = not _is_float_variable(function.body, node.name)
            if is_place and not any(span.contains(node.place.span) for span in allowed):
                raise Unfit("the thread's place is used as a number")


def _shared_parameters(subject: Subject, function: nodes.Function) -> set[str]:
    """Pointers that a helper gets, but for those through which it touches global memory."""
    elsewhere = {each.span for each in subject.analysis.facts.accesses
                 if each.inlined_in == function.name and each.space != "shared"}  # fmt: skip
    touched = {nodes.root_name(each.base) for each in nodes.walk(function.body)
               if isinstance(each, nodes.Element) and each.place.span in elsewhere}  # fmt: skip
    return {each.name for each in function.parameters if each.is_pointer} - touched


def _allowed_places(body: nodes.Block, shared: set[str]) -> list[Span]:
    """Where the thread's place may stand."""
    found: list[Span] = []
    for node in nodes.walk(body):
        match node:
            case nodes.Element(base=base, index=index) if nodes.root_name(base) in shared:
                found.append(index.place.span)
            case nodes.Binary(operator=operator) if operator in COMPARISONS:
                found.append(node.place.span)
            case nodes.If(condition=condition):
                found.append(condition.place.span)
            case nodes.Loop():
                found.append(Span(node.place.span.start, node.body.place.span.start))
            case nodes.Declarator(c_type=c_type, initial=initial) if initial is not None and "float" not in c_type:
                found.append(node.place.span)
    return found


def _is_float_variable(body: nodes.Block, name: str) -> bool:
    """Whether a variable holds data, which may come from shared memory at the thread's place."""
    types = {n.c_type for n in nodes.walk(body) if isinstance(n, nodes.Declarator) and n.name == name}
    return bool(types) and all("float" in each or "double" in each or "half" in each for each in types)


# Memory between loops


def _touched(subject: Subject, fact: LoopFact) -> tuple[set[str], set[str]]:
    """Arrays that a loop reads, and those that it writes."""
    accesses = [a for a in subject.analysis.facts.accesses if fact.index in a.loops and a.space != "private"]
    return {a.array for a in accesses if a.kind != "write"}, {a.array for a in accesses if a.kind != "read"}


def shares_arrays(subject: Subject, fact: LoopFact) -> bool:
    """Whether a loop changes something that is touched elsewhere: then all loops must change alike."""
    _, written = _touched(subject, fact)
    return any(
        a.array in written and (a.kind != "write" or fact.index not in a.loops) for a in subject.analysis.facts.accesses
    )


def refuse_memory_between(subject: Subject, loops: list[LoopFact], *, is_kept: bool = False) -> None:
    """What one loop stores another may load, but only each thread its own: loops that walk alike.

    Args:
        subject: the kernel.
        loops: its loops.
        is_kept: whether rows in shared memory are kept elsewhere afterwards, in any dialect.

    Raises:
        Unfit: threads would load what others have not stored yet.
    """
    facts = subject.analysis.facts
    indices = {loop.index for loop in loops}
    for loop in loops:
        _, written = _touched(subject, loop)
        for access in facts.accesses:
            if access.array not in written or access.kind == "write":
                continue
            is_row = _is_kept_row(subject, access.array) or (is_kept and access.space == "shared")
            if (access.space != "global" and not is_row) or not indices & set(access.loops):
                raise Unfit(f"{access.array} passes values from thread to thread")
            other = next(each for each in loops if each.index in access.loops)
            if (other.start, other.bound, other.step) != (loop.start, loop.bound, loop.step):
                raise Unfit(f"{access.array} passes values between loops that walk differently")
            forms = {
                str(f) for f in (_column(subject, a.index, loops) for a in facts.accesses if a.array == access.array)
            }
            if len(forms) != 1:
                raise Unfit(f"{access.array} passes values from one place to another")


def _is_kept_row(subject: Subject, array: str) -> bool:
    """Whether an array in shared memory can be loaded and stored as vectors: where pointers have no address space."""
    return subject.language != "opencl" and subject.analysis.facts.arrays[array].space == "shared"


def refuse_partial_results(subject: Subject, loops: list[LoopFact]) -> None:
    """A loop over the grid gives each block other elements then: what a block stores must not matter by itself.

    Raises:
        Unfit: it may.
    """
    facts = subject.analysis.facts
    if not any(loop.sweep == "grid-stride" or "block.x" in (loop.start or ONE).names for loop in loops):
        return
    for access in facts.accesses:
        if access.space != "global" or access.kind == "read" or access.is_atomic or not access.sources.reductions:
            continue
        arguments = {binding.get(access.array) for binding in subject.bindings}
        if any(each is not None and each.role != "scratch" for each in arguments) or not _others_join(subject, access):
            raise Unfit(f"what each block stores in {access.array} would be of other elements")


def _others_join(subject: Subject, access: Access) -> bool:
    """Whether every other launch only joins what blocks have left, by the same operation."""
    operations = {subject.analysis.facts.reductions[i].operation for i in access.sources.reductions}
    entries = set(subject.launched) - {subject.entry}
    if len(operations) != 1 or not entries:
        return False
    for entry in entries:
        other = subject.analysis_of(entry)
        is_whole = recognise(other).kind == "whole reduction"
        if not is_whole or {each.operation for each in other.facts.reductions} != operations:
            return False
    return True


def _column(subject: Subject, index: int, loops: list[LoopFact]) -> object:
    """An access's element with the index of its loop under one name."""
    access = subject.analysis.facts.accesses[index]
    if access.element is None:
        return index
    return access.element.replaced({loop.atom: named("column") for loop in loops if loop.index in access.loops})


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
        lines = [f"{_kept_type(loops, kept_in[1])} {kept_in[0]}[{keep} > 0 ? {keep} : 1];"
                 for text, kept_in in own.items() if text in fills]  # fmt: skip
        filled |= fills
        _write(
            loops, each, keep if own else "", {text: f"{name}[kw_k]" for text, (name, _) in own.items()}, fills, lines
        )


def _kept_type(loops: LoopVectorizer, c_type: str) -> str:
    return f"kw_{c_type}" if loops.subject.language == "opencl" else f"kw_lanes<{c_type}>"


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
    for each in ready.joined:
        wide = f"kw_{each.c_type}" if words.is_opencl else f"kw_lanes<{each.c_type}>"
        first = each.name if each.is_idempotent else f"({each.c_type}){each.identity}"
        lines.append(f"{wide} kw_{each.name} = {first};")
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
    for each in ready.joined:
        across = f"kw_across_{each.operation}_{each.c_type.replace(' ', '_')}(kw_{each.name})"
        sign = {"sum": "+=", "product": "*="}.get(each.operation, "=")
        lines.append(f"{each.name} {sign} {across};")
    original = node.body.place.span.text(source)
    if not words.is_opencl:
        lines.append("#pragma unroll 1")
    lines.append(f"for ({c_type} {name} = kw_full + ({start}); {name} < kw_to; {name} += {step}) {original}")
    head = "".join(f"{line}\n{pad}" for line in arrays)
    loops.plan.replace(node.place.span, head + "{\n" + "\n".join(f"{pad}  {line}" for line in lines) + f"\n{pad}}}")
    for mark in node.pragmas:
        loops.plan.replace(mark.span, "")


def plain_loop(node: nodes.Loop, fact: LoopFact, *, is_alone: bool = False) -> LoopHeader:
    """The header of a loop that counts upwards from the thread's own place and runs to its end.

    Args:
        node: the loop.
        fact: what is known of it.
        is_alone: whether it counts from 0 by 1 instead: a thread walks it alone.

    Raises:
        Unfit: it is another one.
    """
    header = read_header(node)
    if header is None or header.rest or header.is_in_body or header.step_kind != "add":
        raise Unfit("a loop counts in a way that is not followed")
    if header.operator != "<" or not isinstance(node.initial, nodes.Declaration) or not node.place.is_exact:
        raise Unfit("a loop counts in a way that is not followed")
    if len(node.initial.declarators) != 1 or node.initial.declarators[0].initial is None:
        raise Unfit("a loop counts in a way that is not followed")
    if isinstance(node.condition, nodes.Binary) and node.condition.operator == "&&":
        raise Unfit("a loop ends by more than its bound")
    if fact.start is None or fact.ends_early:
        raise Unfit("where a loop starts and ends is not known")
    if header.step is None and not is_alone:
        raise Unfit("a loop counts in a way that is not followed")
    if is_alone and (fact.start != ZERO or fact.step is None or fact.step.amount != ONE):
        raise Unfit("a loop does not count from 0 by 1")
    if not is_alone and not is_own_place(fact):
        raise Unfit("a loop does not start at the thread's own place")
    if any(isinstance(each, nodes.Return | nodes.Jump | nodes.OpaqueStatement) for each in nodes.walk(node.body)):
        raise Unfit("a loop may be left early")
    if _has_fraction(header.bound):
        raise Unfit("a loop ends at a fraction, which no index is")
    changed = nodes.assigned_names(node.body)
    parts = [each for each in (header.bound, header.step, node.initial) if each is not None]
    used = {each.name for part in parts for each in nodes.walk(part) if isinstance(each, nodes.Name)}
    if changed & used or any(isinstance(each, nodes.Element) for each in nodes.walk(header.bound)):
        raise Unfit("where a loop ends may change while it runs")
    return header


def _has_fraction(bound: nodes.Expression) -> bool:
    """Whether a bound is made of floats: `n * 0.5f` is no number that an index can be compared with from below."""
    literals = [each.text for each in nodes.walk(bound) if isinstance(each, nodes.Literal) and each.value is None]
    return any(re.fullmatch(r"[\d.]+(?:[eE][-+]?\d+)?[fF]?", each) for each in literals)


def is_own_place(fact: LoopFact) -> bool:
    """Whether a loop starts at the thread's place among those that walk it, counted from 0."""
    start, step = fact.start, fact.step
    assert start is not None
    if start.single_name is not None:
        return True
    if step is None or start.names != {"block.x", "thread.x"} or start.coefficient("thread.x") != ONE:
        return False
    size = start.coefficient("block.x")
    return (
        size is not None
        and start.without(("block.x", "thread.x")) == ZERO
        and step.amount == size * named("grid_size.x")
    )


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
        key.partition("#")[0] for key, array in arrays if array.space == "shared" and not _is_kept_row(subject, key)
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
    c_types = {each.c_type for each in loops.joined} | {"float"}
    for lanes in loops.wide:
        c_types |= {kind.c_type for kind in lanes.kinds.values() if kind.is_varying and kind.c_type}
    c_types |= {a.c_type for a in subject.analysis.facts.arrays.values()}
    mapped = {key for lanes in loops.wide for key in lanes.mapped}
    plan.prelude.append(
        prelude(
            words,
            loops.vec,
            c_types=c_types,
            mapped=mapped,
            operators=operators_in(subject.analysis.function.body),
        )
    )
    plan.prelude += {name: text for lanes in loops.wide for name, text in lanes.clones.items() if text}.values()
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
