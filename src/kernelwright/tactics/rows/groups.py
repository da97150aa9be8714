"""Blocks with a thread for each element of a group: fewer threads, vectors of elements, several groups to a block.

A block that is as large as its group moves two or four bytes a thread, and joins in shared memory with a barrier for
each level. Here a few neighbouring threads of a warp share a group, each with a vector of it, join by shuffles, and a
block takes as many groups as fit. Kernels that join nothing are the simpler case of the same.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kernelwright.errors import SpecError
from kernelwright.problem.config import Value
from kernelwright.problem.expressions.expression import Expression
from kernelwright.problem.source_scan import used_words
from kernelwright.source import nodes
from kernelwright.source.builtin_functions import barrier_scope
from kernelwright.tactics.base import Effect, Rewrite, RuleTactic, Subject, Unfit
from kernelwright.tactics.common.block_functions import joins_block, refuse_asking_helpers
from kernelwright.tactics.common.dialect import dialect, joined
from kernelwright.tactics.common.editing import RewriteBuilder, refuse_arranged, refuse_unread
from kernelwright.tactics.common.iteration_domain import (
    Places,
    expression_of,
    renamed_kernel,
    require_independent,
    template_arguments,
    total_of,
)
from kernelwright.tactics.common.launches import number, only_shape, refuse_aliases
from kernelwright.tactics.common.loop_reductions import Operation, across_lanes
from kernelwright.tactics.common.thread_queries import query_text, thread_queries
from kernelwright.tactics.common.traffic_model import effect, map_pairs, tree_barriers
from kernelwright.tactics.rows.registers import held_blocks
from kernelwright.tactics.rows.text import (
    LOAD_HINTS,
    LOAD_WHY,
    STORE_HINTS,
    STORE_WHY,
    division,
    hinted_access,
    whole,
)
from kernelwright.tactics.scalar.compiler_hints import allowed_error
from kernelwright.tactics.vectors.lane_kinds import UNIFORM
from kernelwright.tactics.vectors.lane_text import prelude
from kernelwright.tactics.vectors.row_lanes import RowLanes

BLOCKS = (64, 96, 128, 192, 256, 320, 384, 512, 640, 768, 1024)
MOST_BYTES = 64
"""A thread takes so much of one array at once; more leaves too few threads to hide memory's latency. A guess."""


@dataclass
class _GroupLanes(RowLanes):
    """Lanes of one group; what only the group's first thread does stays as it is."""

    def _if(self, node: nodes.If) -> str:
        condition = node.condition
        is_first = (
            isinstance(condition, nodes.Binary) and condition.operator == "==" and self._is_one_lane(condition)
            and any(isinstance(side, nodes.Literal) and side.value == 0 for side in (condition.left, condition.right))
        )  # fmt: skip
        if is_first and node.no is None and node.place.is_exact and not self._is_touched(node.yes):
            self._refuse_moving(node.yes)
            return self._text(node)  # vectors start at multiples of their length: the first lane is lane 0 of the first
        return super()._if(node)

    def _refuse_moving(self, node: nodes.Node) -> None:
        """What is not the same in all lanes may not be used by one of them."""
        for each in nodes.walk(node):
            if isinstance(each, nodes.Name) and self.kinds.get(each.name, UNIFORM) != UNIFORM:
                raise Unfit(f"{each.name} is used by one thread alone")
            if query_text(each).startswith("threadIdx."):
                raise Unfit("one thread uses its place")

    def _check(self, node: nodes.Binary, first: str, second: str) -> str:
        if self.kind(node.left).step == self.kind(node.right).step:
            return ""
        raise Unfit("a condition depends on the thread's place in its group")


@dataclass(frozen=True, slots=True)
class _Join:
    """Statements by which the threads of a block join one value each, in shared memory."""

    array: str
    declaration: nodes.Declaration
    store: nodes.Evaluate
    value: nodes.Expression
    last: nodes.Statement
    operation: Operation
    c_type: str


@dataclass
class _Group:
    """One kernel while its groups get fewer threads."""

    subject: Subject
    plan: RewriteBuilder
    join: _Join | None
    size: str
    """Elements of a group, as an expression in sizes."""
    count: str
    """Groups."""
    names: dict[str, str] = field(default_factory=dict)


def _share(subject: Subject) -> Rewrite:
    group = _understood(subject)
    _declare_parameters(group)
    body = _vector_body(group)
    _constrain(group)
    return _finished(group, body)


# What it must be


def _understood(subject: Subject) -> _Group:
    refuse_arranged(subject, "block-items", "group-lanes")
    if subject.language != "cuda" or subject.device.kind != "gpu":
        raise Unfit("groups are shared by the threads of a warp in CUDA")
    refuse_unread(subject)
    function = subject.analysis.function
    step = only_shape(subject)
    if any(number(each) != 1 for each in (*step.block[1:], *step.grid[1:])):
        raise Unfit("its launch has more than one axis")
    queries = set(thread_queries(function.body))
    if not {"threadIdx.x", "blockIdx.x"} <= queries <= {"threadIdx.x", "blockIdx.x", "blockDim.x"}:
        raise Unfit("its threads are not asked for a block and a place in it alone")
    if number(step.block[0].text) is not None and "blockDim.x" not in queries:
        raise Unfit("its blocks are a number of threads that says nothing of a group")
    refuse_asking_helpers(subject)
    if any(isinstance(each, nodes.Return) for each in nodes.walk(function.body)):
        raise Unfit("its threads may end early")
    join = _join(subject)
    if join is None:
        require_independent(subject)
    else:
        _refuse_passing(subject, join)
    return _Group(subject, RewriteBuilder(subject, "group-lanes", "map"), join, step.block[0].text, step.grid[0].text)


def _refuse_passing(subject: Subject, join: _Join) -> None:
    """Threads may leave each other nothing but what they join.

    Raises:
        Unfit: they may leave something else.
    """
    facts, body = subject.analysis.facts, subject.analysis.function.body
    refuse_aliases(subject)
    if any(access.is_atomic or access.kind == "unknown" for access in facts.accesses):
        raise Unfit("it changes memory atomically, or gives an array to something that is not followed")
    written = {a.array for a in facts.accesses if a.kind != "read" and a.space == "global"}
    if any(a.array in written and a.kind != "write" for a in facts.accesses):
        raise Unfit("an array is read and written: a thread may read what another one stores")
    shared = {key.partition("#")[0] for key, array in facts.arrays.items() if array.space == "shared"}
    if shared != {join.array}:
        raise Unfit("it has shared memory for more than its join")
    inside = range(join.store.place.span.start, join.last.place.span.end)
    for node in nodes.walk(body):
        if isinstance(node, nodes.Call) and barrier_scope(node.function) and node.place.span.start not in inside:
            raise Unfit("its threads meet again after they joined")
        if isinstance(node, nodes.Name) and node.name == join.array:
            at = node.place.span
            is_known = at.start in inside or join.declaration.place.span.contains(at)
            if not is_known and not _is_base_of_total(body, node):
                raise Unfit(f"{join.array} is used for more than the join")


def _is_base_of_total(body: nodes.Block, name: nodes.Name) -> bool:
    return any(
        isinstance(each, nodes.Element) and each.base == name
        and isinstance(each.index, nodes.Literal) and each.index.value == 0
        for each in nodes.walk(body)
    )  # fmt: skip


def _join(subject: Subject) -> _Join | None:
    """The join that stands in the kernel itself, as a store, a barrier and a loop; None where threads never meet.

    Raises:
        Unfit: they meet in another way.
    """
    facts = subject.analysis.facts
    if not facts.barriers and not facts.exchanges:
        return None
    statements = subject.analysis.function.body.statements
    declared = [
        each for each in statements
        if isinstance(each, nodes.Declaration) and len(each.declarators) == 1
        and each.declarators[0].is_shared and each.declarators[0].extents
    ]  # fmt: skip
    if len(declared) != 1:
        raise Unfit("its threads meet in a way that is no join in one array")
    array = declared[0].declarators[0]
    for place, statement in enumerate(statements):
        match statement:
            case nodes.Evaluate(
                expression=nodes.Assign(operator="=", target=nodes.Element() as target, value=value)
            ) if nodes.root_name(target) == array.name and query_text(target.index) == "threadIdx.x":
                if place + 2 < len(statements) and isinstance(statements[place + 2], nodes.Loop):
                    return _tree(subject, declared[0], statement, value, statements[place + 1 : place + 3])
    raise Unfit("its threads meet in a way that is no join in one array")


def _tree(
    subject: Subject,
    declaration: nodes.Declaration,
    store: nodes.Evaluate,
    value: nodes.Expression,
    rest: tuple[nodes.Statement, ...],
) -> _Join:
    """The join that these statements are, for every size of a block that workloads have.

    Raises:
        Unfit: they are none.
    """
    array, function = declaration.declarators[0], subject.analysis.function
    assert isinstance(store.expression, nodes.Assign)
    own = nodes.Name(value.place, "kw_own")
    total = nodes.Element(value.place, nodes.Name(value.place, array.name), nodes.Literal(value.place, "0", 0))
    body = nodes.Block(
        function.body.place,
        (declaration, replace(store, expression=replace(store.expression, value=own)), *rest,
         nodes.Return(value.place, total)),
    )  # fmt: skip
    parameter = replace(function.parameters[0], name="kw_own", c_type=array.c_type, is_pointer=False)
    section = replace(function, name="kw_join", is_kernel=False, parameters=(parameter,), body=body)
    block = only_shape(subject).block[0].text
    sizes = {total_of(subject, block, each) for each in subject.sizes()}
    functions = {each.name: each for each in subject.analysis.tree.functions}
    found = {
        None if size is None or size > 1024 else joins_block(section, functions, size, {}, "kw_own") for size in sizes
    }
    result = found.pop() if len(found) == 1 else None
    if result is None or result[1]:
        raise Unfit("what its threads leave in shared memory is no plain sum, product, max or min of all")
    return _Join(array.name, declaration, store, value, rest[-1], result[0], array.c_type)


# Parameters and conditions


def _declare_parameters(group: _Group) -> None:
    subject, plan = group.subject, group.plan
    most = subject.device.max_threads_per_block
    blocks = tuple(each for each in BLOCKS if each <= most)
    group.names["block"] = plan.parameter("BLOCK", blocks, 256 if 256 in blocks else blocks[0], "threads of a block")
    sizes = [a.element_bytes or 4 for a in subject.analysis.facts.arrays.values() if a.is_parameter]
    widest = MOST_BYTES // max(sizes, default=4)
    values = tuple(each for each in (1, 2, 4, 8, 16) if each <= max(2, widest))
    group.names["vec"] = plan.parameter("VEC", values, values[-1], "elements of a group that a thread takes")
    group.names["count"] = plan.parameter("COUNT", (1, 2, 4), 1, "vectors that a thread takes, a block apart")
    group.names["load"] = plan.parameter("LOAD", LOAD_HINTS, 0, LOAD_WHY)
    group.names["store"] = plan.parameter("STORE", STORE_HINTS, 0, STORE_WHY)
    if allowed_error(subject) > 0.0 and not any("double" in a.c_type for a in subject.analysis.facts.arrays.values()):
        why = "0: divisions by one number for a group; 1: multiplications by its reciprocal"
        default = 1 if allowed_error(subject) >= 1e-6 else 0  # a reciprocal adds about 1e-7
        group.names["reciprocal"] = plan.parameter("RECIPROCAL", (0, 1), default, why)
    for what, name in (("size", "KW_GROUP"), ("lanes", "KW_LANES"), ("groups", "KW_GROUPS")):
        group.names[what] = plan.fresh(name)
    group.names["held"] = held_blocks(plan)


def _constrain(group: _Group) -> None:
    """Vectors divide a group and are aligned; what joins fits into a warp; defaults that meet it on every workload.

    Raises:
        Unfit: no values do.
    """
    plan, names = group.plan, group.names
    vec, block, held, count = names["vec"], names["block"], names["held"], names["count"]
    conditions = {"whole": f"({group.size}) % {vec} == 0"}
    aligned = _alignments(group)
    if aligned:
        conditions["aligned"] = " and ".join(f"({text}) % {vec} == 0" for text in aligned)
    if group.join is not None:
        lanes = f"({group.size}) // {vec}"
        conditions["warp"] = f"{lanes} <= 32 and is_power_of_two({lanes})"
    conditions["room"] = f"{block} * {held} <= 2048"
    conditions["registers"] = f"{vec} * {count} <= 32"
    conditions["indices"] = f"({group.count}) * ({group.size}) <= 2147483647 * {vec}"
    parsed = [Expression.parse(text) for text in conditions.values()]
    own = plan.header.parameter(vec)
    assert own is not None
    defaults: dict[str, Value] = {each.name: each.default for each in plan.header.parameters}
    # Eight elements are enough for wide loads and leave more threads than sixteen.
    order = sorted(own.values, key=lambda each: (int(each) > 8, -int(each)))
    for wide, sizes in itertools.product(order, (group.subject.sizes(),)):
        try:
            if all(each.evaluate({**of, **defaults, vec: wide}) for each in parsed for of in sizes):
                plan.header = plan.header.with_parameters(replace(own, default=wide))
                break
        except SpecError as error:
            raise Unfit(f"a condition has no value: {error}") from error
    else:
        raise Unfit("no vector divides a group into what a warp can join")
    for name, condition in conditions.items():
        plan.constraint(name, condition)


def _alignments(group: _Group) -> list[str]:
    """What must be a multiple of the vector's length beside the group's, as expressions in sizes.

    Raises:
        Unfit: that is not known of some access.
    """
    subject, facts = group.subject, group.subject.analysis.facts
    places = {"thread.x", "global.x"}
    found: dict[str, None] = {}
    for access in facts.accesses:
        if access.space != "global":
            continue
        if access.element is None:
            raise Unfit(f"which element of {access.array} is touched is not known")
        if not places & access.element.names:
            continue  # the same for the whole group
        for monomial, coefficient in access.element.terms:
            if places & set(monomial) or "block_size.x" in monomial:
                continue
            sizes = [str(coefficient)] if abs(coefficient) != 1 else []
            for name in monomial:
                atom = facts.atoms.get(name)
                text = None
                if atom is None or atom.kind not in ("thread", "loop"):
                    text = expression_of(subject, type(access.element)((((name,), 1),)))
                if text is not None:
                    sizes.append(text)
            if not sizes:
                raise Unfit(f"whether vectors of {access.array} are aligned is not known")
            found[" * ".join(sizes)] = None
    return list(found)


# Text


@dataclass(frozen=True, slots=True)
class _Body:
    """The kernel's statements for a vector of a group."""

    lanes: _GroupLanes
    text: str
    loads: tuple[tuple[str, str, str], ...]
    """What is loaded before anything else: the vector's name, its element type, the text of the load."""
    places: tuple[str, ...]
    """Declarations that the loads need."""


def _vector_body(group: _Group) -> _Body:
    """The kernel's statements for a vector of a group, all its loads first.

    Raises:
        Unfit: they have no such form.
    """
    plain = _lanes(group, {})
    _settled(group, plain)
    _text(group, plain)
    statements = _parts(group)
    early = plain.early_loads(statements)
    registers: dict[str, tuple[str, str]] = {}
    for text, (c_type, span) in plain.loaded.items():
        if span in early:
            registers[text] = (group.plan.fresh(f"kw_in_{len(registers)}"), c_type)
    lanes = _lanes(group, {text: name for text, (name, _) in registers.items()})
    _settled(group, lanes)
    text = _text(group, lanes)
    if lanes.early:
        raise Unfit("a condition depends on the thread's place in its group")
    if not lanes.vector_loads + lanes.vector_stores:
        raise Unfit("nothing that it loads or stores lies side by side for neighbouring threads")
    loads = tuple((name, c_type, load) for load, (name, c_type) in registers.items())
    return _Body(lanes, text, loads, tuple(lanes.place_declarations(statements)))


def _lanes(group: _Group, registers: Mapping[str, str]) -> _GroupLanes:
    subject, join, names = group.subject, group.join, group.names
    types = {each.name: each.c_type for each in subject.analysis.function.parameters}
    if join is not None:
        types[join.array] = join.c_type
    return _GroupLanes(
        subject.source, dialect(subject.language), subject.analysis.tree,
        {"threadIdx.x": 1, "blockIdx.x": 0, "blockDim.x": 0}, frozenset(), types,
        give_up="return 0;", leave="return 1;", vec=names["vec"], reciprocal=names.get("reciprocal", ""),
        registers=registers, step="",
    )  # fmt: skip


def _parts(group: _Group, *, is_after: bool | None = None) -> tuple[nodes.Statement, ...]:
    """The kernel's statements without the join: all of them, those after it or those before it."""
    statements, join = group.subject.analysis.function.body.statements, group.join
    if join is None:
        return statements
    before = tuple(
        each for each in statements
        if each.place.span.end <= join.store.place.span.start and each is not join.declaration
    )  # fmt: skip
    after = tuple(each for each in statements if each.place.span.start >= join.last.place.span.end)
    return (*before, *after) if is_after is None else after if is_after else before


def _settled(group: _Group, lanes: _GroupLanes) -> None:
    join = group.join
    if join is None:
        lanes.settle(_parts(group))
        return
    before, after = _parts(group, is_after=False), _parts(group, is_after=True)
    lanes.settle((*before, nodes.Evaluate(join.value.place, join.value), *after))
    if not lanes.kind(join.value).is_varying:
        raise Unfit("what its threads join is the same for all of them")


def _text(group: _Group, lanes: _GroupLanes) -> str:
    join, names = group.join, group.names
    if join is None:
        return lanes.block(_parts(group))
    first = "\n  ".join(lanes.statement(each) for each in _parts(group, is_after=False))
    across = f"kw_across_{join.operation}_{join.c_type}"
    total = (
        f"const {join.c_type} kw_total = kw_group_{join.operation}_{join.c_type}("
        f"{across}(kw_lanes<{join.c_type}>({lanes.expression(join.value)})), {names['lanes']});"
    )
    after = lanes.block(_parts(group, is_after=True))
    rest = re.sub(rf"\b{re.escape(join.array)}\s*\[\s*0\s*\]", "kw_total", after)
    return f"{first}\n  {total}\n  {rest}"


def _finished(group: _Group, body: _Body) -> Rewrite:
    subject, plan, names, lanes = group.subject, group.plan, group.names, body.lanes
    words, function = dialect(subject.language), subject.analysis.function
    vec, block, count, size = names["vec"], names["block"], names["count"], names["size"]
    for name, text in (
        (size, group.size), (names["lanes"], f"({group.size}) // {vec}"), (names["groups"], group.count)
    ):  # fmt: skip
        plan.header = plan.header.with_define(name, text)
        plan.prelude.append(f"#ifndef {name}\n#define {name} 1\n#endif\n")
    plan.prelude += [
        prelude(words, vec, c_types=(), mapped=lanes.mapped), hinted_access(vec, names["load"], names["store"])
    ]  # fmt: skip
    if lanes.divisions:
        plan.prelude.append(division(names["reciprocal"], vec))
    elif "reciprocal" in names:
        plan.drop(names["reciprocal"])
    if group.join is not None:
        plan.prelude.append(across_lanes(words, group.join.operation, group.join.c_type, vec))
        plan.prelude.append(_joining_function(group.join.operation, group.join.c_type))
    places = Places((), {"threadIdx.x": "kw_x", "blockIdx.x": "kw_y", "blockDim.x": size})
    vectors = ", ".join(f"kw_lanes<{c_type}> &{name}" for name, c_type, _ in body.loads)
    extra = ", ".join(each for each in ("const unsigned kw_x, const unsigned kw_y", vectors) if each)
    load, compute = plan.fresh(f"kw_{subject.entry}_load"), plan.fresh(f"kw_{subject.entry}_vector")
    loads = [*body.places, *(f"{name} = {text};" for name, _, text in body.loads)]
    for name, lines in ((load, loads), (compute, [body.text])):
        text = whole("\n  ".join((*lines, "return 1;")))
        plan.prelude.append(renamed_kernel(subject, name, extra, places, body=f"{{\n  {text}\n}}"))
    plan.replace(function.body.place.span, _dispatch(group, body, load, compute))
    step = only_shape(subject)
    per_block = f"{block} * {count}"
    total = f"({group.count}) * (({group.size}) // {vec})"
    plan.header = plan.header.relaunched(
        step.entry, grid=(f"ceil_div({total}, {per_block})",), block=(block,),
        shared_bytes="0" if step.shared_bytes is not None else None,
    )  # fmt: skip
    for mark in function.attributes:
        if re.search(r"__launch_bounds__|__maxnreg__", mark.text):
            plan.replace(mark.span, "")
    plan.insert(function.name_place.span.start, f"__launch_bounds__({block}, {names['held']}) ")
    met = "" if group.join is None else ", and join by shuffles instead of barriers"
    rewrite = plan.finish(
        f"A thread takes {vec} neighbours of a group at once, a block of {block} several groups{met}.", _effect(group)
    )
    used = used_words(rewrite.source, subject.language)
    gone = [p.name for p in rewrite.header.parameters if p.name.startswith("UNROLL") and p.name not in used]
    kept = tuple(each for each in rewrite.header.parameters if each.name not in gone)
    return replace(rewrite, header=replace(rewrite.header, parameters=kept))  # the loop that they unrolled is no more


def _joining_function(operation: Operation, c_type: str) -> str:
    """A function that joins the values of `lanes` neighbouring threads of a warp; every one gets the result."""
    both = joined("cuda", operation, "value", "other", c_type=c_type)
    return (
        "static __device__ __forceinline__\n"
        f"{c_type} kw_group_{operation}_{c_type}({c_type} value, const int lanes) {{\n"
        '  _Pragma("unroll") for (int reach = 16; reach > 0; reach /= 2) {\n'
        "    if (reach >= lanes) continue;\n"
        f"    const {c_type} other = __shfl_xor_sync(0xffffffffu, value, reach);\n    value = {both};\n  }}\n"
        "  return value;\n}\n"
    )


def _dispatch(group: _Group, body: _Body, load: str, compute: str) -> str:
    """The kernel's new body: which parts of which groups a thread takes; all that it loads comes first."""
    subject, names = group.subject, group.names
    arguments = [each.name for each in subject.analysis.function.parameters]
    vectors = [f"{name}[kw_item]" for name, _, _ in body.loads]
    given = f"{template_arguments(subject)}({', '.join([*arguments, 'kw_x', 'kw_y', *vectors])})"
    line = f"kw_at / {names['lanes']}"
    stop = [f"    if (kw_at >= (unsigned){names['groups']} * {names['lanes']}) break;"]
    if group.join is not None:  # all threads of a warp must meet: those beyond the end do the last group once more
        last = f"{names['groups']} - 1u"
        line, stop = f"{line} < {last} ? {line} : {last}", []
    lines = ["{", *(f"  kw_lanes<{c_type}> {name}[{names['count']}];" for name, c_type, _ in body.loads)]
    for function in (load, compute) if body.loads else (compute,):
        lines += [
            "#pragma unroll",
            f"  for (int kw_item = 0; kw_item < {names['count']}; ++kw_item) {{",
            f"    const unsigned kw_at = (blockIdx.x * {names['count']} + kw_item) * {names['block']} + threadIdx.x;",
            *stop,
            f"    const unsigned kw_y = {line}, kw_x = kw_at % {names['lanes']} * {names['vec']};",
            f"    {function}{given};",
            "  }",
        ]
    return "\n".join((*lines, "}"))


def _effect(group: _Group) -> Effect:
    """Fewer threads with wider loads, and no barriers."""
    subject = group.subject
    vec = group.plan.header.parameter(group.names["vec"])
    assert vec is not None
    threads, blocks = [], []
    for sizes in subject.sizes():
        count, size = (total_of(subject, text, sizes) for text in (group.count, group.size))
        threads.append(None if count is None or size is None else count * size)
        blocks.append(size or 1)
    block = max(blocks)
    barriers = 0 if group.join is None else tree_barriers(block)
    pairs = map_pairs(subject, threads, block, int(vec.default), barriers=barriers)
    told = "threads move 16 bytes at once" + ("" if group.join is None else " and join by shuffles, without barriers")
    return effect(pairs, told, otherwise=1.8 if group.join is None else 2.5)


GROUP_LANES = RuleTactic(
    "group-lanes",
    "map",
    "Groups that a block has a thread an element for are shared by few threads, in vectors.",
    _share,
)
