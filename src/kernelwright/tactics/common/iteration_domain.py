"""Kernels whose threads do not meet: which thread does what may be chosen anew.

The body becomes a function of the thread's place; the kernel's own words for it (`get_global_id`, `blockIdx`) are
macros there, so the body itself stays byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from kernelwright.analysis.facts import Access, LoopFact
from kernelwright.analysis.polynomial import Polynomial, named
from kernelwright.errors import SpecError
from kernelwright.problem.expressions.expression import Expression
from kernelwright.source import nodes
from kernelwright.source.span import Span
from kernelwright.tactics.base import Subject, Unfit
from kernelwright.tactics.common.block_functions import refuse_asking_helpers
from kernelwright.tactics.common.editing import declaration_start, refuse_unread
from kernelwright.tactics.common.launches import Extent, extents, is_number, only_shape
from kernelwright.tactics.common.thread_queries import query_text, thread_queries

AXES = ("x", "y", "z")


def require_independent(subject: Subject) -> None:
    """Refuse kernels whose threads may see each other.

    Raises:
        Unfit: saying how they may.
    """
    refuse_unread(subject)
    facts = subject.analysis.facts
    if facts.barriers or facts.exchanges:
        raise Unfit("its threads wait for each other")
    if any(array.space == "shared" for array in facts.arrays.values()):
        raise Unfit("its threads share memory")
    if any(access.is_atomic for access in facts.accesses):
        raise Unfit("it changes memory atomically")
    written = {access.array for access in facts.accesses if access.kind != "read" and access.space == "global"}
    read = {access.array for access in facts.accesses if access.kind in ("read", "accumulate", "unknown")}
    if any(access.kind == "unknown" for access in facts.accesses):
        raise Unfit("an array is given to something that is not followed")
    refuse_shared_arguments(subject, written)
    for array in sorted(written & read):
        if not has_own(subject, array):
            raise Unfit(f"{array} is read and written: a thread may read what another one stores")


def refuse_shared_arguments(subject: Subject, written: set[str]) -> None:
    """What is written has one name: a load by another name would see it.

    Raises:
        Unfit: a launch passes it twice.
    """
    names = [parameter.name for parameter in subject.analysis.function.parameters]
    for step in subject.header.steps:
        if step.entry.partition("<")[0].strip() != subject.entry:
            continue
        passed = dict(zip(names, step.arguments or (), strict=False))
        for name in sorted(written):
            if [passed.get(name)] != [each for each in passed.values() if each == passed.get(name)]:
                raise Unfit(f"a launch passes the array of {name} twice")


def has_own(subject: Subject, array: str) -> bool:
    """Whether every thread touches only elements of an array that no other one touches.

    A thread that stores wherever it reads does: two threads that met at one element would race in the kernel as it is.
    Places are told apart by what they are of the thread and of loops that count alike.
    """
    atoms = subject.analysis.facts.atoms
    is_in_loop = False
    stored: dict[tuple[Polynomial, Polynomial], list[frozenset[int]]] = {}
    read: list[tuple[tuple[Polynomial, Polynomial], frozenset[int]]] = []
    for each in subject.analysis.facts.accesses:
        if each.array != array:
            continue
        form = _in_common(subject, each.element)
        kinds = set() if form is None else {atoms[name].kind for name in deep_names(subject, form)}
        if form is not None and "thread" not in kinds and _starts_apart(subject, form):
            is_in_loop = True
        is_followed = ("thread" in kinds or is_in_loop) and kinds <= {"thread", "loop", "size", "quotient", "remainder"}
        if form is None or not is_followed:
            return False
        place = form, each.width
        if each.kind != "read":
            stored.setdefault(place, []).append(frozenset(each.guards))
        if each.kind != "write":
            read.append((place, frozenset(each.guards)))
    if len({place for place, _ in read} | stored.keys()) == 1:
        return True
    return not is_in_loop and all(any(own <= guards for own in stored.get(place, ())) for place, guards in read)


def _starts_apart(subject: Subject, form: Polynomial) -> bool:
    """Whether a loop in a place starts at the thread's own."""
    facts = subject.analysis.facts
    starts = [each.start for each in facts.loops if each.atom in deep_names(subject, form) and each.start]
    return any(facts.atoms[name].kind == "thread" for each in starts for name in deep_names(subject, each))


def _in_common(subject: Subject, element: Polynomial | None) -> Polynomial | None:
    """An element in which loops that count alike, one after the other, have the same index."""
    if element is None:
        return None
    first: dict[tuple[object, ...], str] = {}
    for loop in subject.analysis.facts.loops:
        first.setdefault((loop.start, loop.operator, loop.bound, loop.step, loop.parent), loop.atom)
    names = {
        loop.atom: named(first[loop.start, loop.operator, loop.bound, loop.step, loop.parent])
        for loop in subject.analysis.facts.loops
        if loop.atom in element.names
    }
    return element.replaced(names)


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of the kernel's own index space."""

    atom: str
    """What facts call it: `global.x`, `block.y`, `thread.x`."""
    total: str
    """How many there are, as an expression in sizes."""
    loop: LoopFact | None = None
    """A loop that walks it with steps of all threads: it runs once for each place."""


@dataclass(frozen=True, slots=True)
class Places:
    """The kernel's index space, fastest axis first, and how its words for it read there."""

    axes: tuple[Axis, ...]
    words: Mapping[str, str]
    """By thread query: text in `kw_x`, `kw_y`, `kw_z` (integers of type `size_t` or `unsigned`)."""
    steps: Mapping[str, int] = field(default_factory=dict)
    """By thread query: how it moves along the fastest axis."""
    ones: frozenset[str] = frozenset()
    defines: Mapping[str, str] = field(default_factory=dict)
    """Macros that the words need, with their expressions in sizes."""


def places_of(subject: Subject, *, fastest: str = "x") -> Places:
    """The index space of an independent kernel.

    Args:
        subject: an independent kernel.
        fastest: the launch axis whose neighbours become lanes or neighbouring threads.

    Raises:
        Unfit: how it uses its thread's place is not followed.
    """
    found = extents(only_shape(subject))
    function = subject.analysis.function
    queries = thread_queries(function.body)
    refuse_asking_helpers(subject)
    if any(query.endswith("(?)") or query == "warpSize" for query in queries):
        raise Unfit("it asks for the thread's place in a way that is not followed")
    used = [axis for axis in AXES if any(query.endswith((f".{axis}", f"({AXES.index(axis)})")) for query in queries)]
    if fastest not in used:
        raise Unfit(f"it does not use the launch's {fastest} axis")
    order = [fastest, *(axis for axis in used if axis != fastest)]
    axes, words, steps, ones = [], {}, {}, set()
    for axis in order:
        index = AXES.index(axis)
        if not _is_one_number(subject, axis, found[index]):
            return _rows_and_threads(subject, found, order)
        loop = _grid_loop(subject, axis)
        total = found[index].total if loop is None else _bound_text(subject, loop)
        axes.append(Axis(f"global.{axis}", total, loop))
        place = f"kw_{AXES[len(axes) - 1]}"
        words.update(_words(subject, axis, place, total=f"kw_end_{AXES[len(axes) - 1]}"))
        moves = 1 if len(axes) == 1 else 0
        steps.update({f"get_global_id({index})": moves, f"get_group_id({index})": moves, f"blockIdx.{axis}": moves})
        still = (f"get_local_id({index})", f"get_local_size({index})", f"get_num_groups({index})",
                 f"get_global_size({index})", f"threadIdx.{axis}", f"blockDim.{axis}", f"gridDim.{axis}",
                 f"get_global_offset({index})")  # fmt: skip
        steps.update(dict.fromkeys(still, 0))
        ones |= {f"get_local_size({index})", f"blockDim.{axis}"}
    _refuse_grid_sizes(subject, queries, axes, order)
    return Places(tuple(axes), words, steps, frozenset(ones))


def _words(subject: Subject, axis: str, place: str, *, total: str) -> dict[str, str]:
    """A launch with blocks of one thread."""
    index = AXES.index(axis)
    if subject.language == "opencl":
        return {
            f"get_global_id({index})": place, f"get_group_id({index})": place, f"get_local_id({index})": "0",
            f"get_local_size({index})": "1", f"get_num_groups({index})": total, f"get_global_size({index})": total,
            f"get_global_offset({index})": "0",
        }  # fmt: skip
    return {f"blockIdx.{axis}": place, f"threadIdx.{axis}": "0", f"blockDim.{axis}": "1", f"gridDim.{axis}": total}


def _is_one_number(subject: Subject, axis: str, covered: Extent) -> bool:
    """Whether a kernel knows only the thread's place among all threads along an axis, not in its block."""
    facts = subject.analysis.facts
    if is_number(covered.block, 1):
        return True
    lone = {f"thread.{axis}", f"block.{axis}", "thread.linear", "warp.lane"}
    values = [index.value for index in facts.thread_indices]
    if any(lone & deep_names(subject, value) for value in values):
        return False
    mentioned = [
        *(access.element for access in facts.accesses if access.element is not None),
        *(side for guard in facts.guards for each in guard.comparisons for side in (each.left, each.right)),
        *(loop.start for loop in facts.loops if loop.start is not None),
        *(loop.bound for loop in facts.loops if loop.bound is not None),
    ]
    sizes = {f"block_size.{axis}", f"grid_size.{axis}"}
    if any((lone | sizes) & deep_names(subject, value) for value in mentioned):
        return False
    return queries_are_indices(subject, axis)


def deep_names(subject: Subject, *values: Polynomial) -> set[str]:
    """Every quantity in values, also those that their quotients and remainders are made of."""
    atoms, found = subject.analysis.facts.atoms, set[str]()
    waiting = [name for value in values for name in value.names]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [inner for part in (atoms[name].parts if name in atoms else ()) for inner in part.names]
    return found


def queries_are_indices(subject: Subject, axis: str) -> bool:
    """Whether a thread's place in its block is asked for only where it becomes the place among all threads.

    The launch's size may be the step of a loop.
    """
    index = AXES.index(axis)
    raw = {f"threadIdx.{axis}", f"blockIdx.{axis}", f"blockDim.{axis}", f"gridDim.{axis}", f"get_local_id({index})",
           f"get_group_id({index})", f"get_local_size({index})", f"get_num_groups({index})",
           f"get_global_size({index})"}  # fmt: skip
    facts = subject.analysis.facts
    loops = [loop for loop in facts.loops if loop.sweep == "grid-stride"]
    spans = [each.span for each in facts.thread_indices]
    spans += [Span(loop.span.start, loop.body.start) for loop in loops]
    spans += _step_variables(subject, loops)
    for loop in loops:
        spans += [node.place.span for node in nodes.walk(subject.analysis.function.body)
                  if isinstance(node, nodes.Assign) and isinstance(node.target, nodes.Name)
                  and node.target.name == loop.variable and node.operator == "+="]  # fmt: skip
    for node in nodes.walk(subject.analysis.function.body):
        if query_text(node) in raw and not any(span.contains(node.place.span) for span in spans):
            return False
    return True


def _step_variables(subject: Subject, loops: list[LoopFact]) -> list[Span]:
    """Declarations of variables that are only the step of a loop over the grid."""
    body = subject.analysis.function.body
    found = []
    for node in nodes.walk(body):
        if not isinstance(node, nodes.Declarator) or node.initial is None or not thread_queries(node.initial):
            continue
        if any(not query.startswith(("blockDim", "gridDim", "get_local_size", "get_num_groups", "get_global_size"))
               for query in thread_queries(node.initial)):  # fmt: skip
            continue
        uses = [each.place.span for each in nodes.walk(body) if isinstance(each, nodes.Name) and each.name == node.name]
        steps = [
            each.place.span for each in nodes.walk(body)
            if isinstance(each, nodes.Assign) and each.operator == "+=" and isinstance(each.target, nodes.Name)
            and each.target.name in {loop.variable for loop in loops}
        ]  # fmt: skip
        if all(any(step.contains(use) for step in steps) for use in uses):
            found.append(node.place.span)
    return found


def _grid_loop(subject: Subject, axis: str) -> LoopFact | None:
    """The loop that walks an axis with steps of all threads."""
    facts = subject.analysis.facts
    loops = [
        loop for loop in facts.loops
        if loop.sweep == "grid-stride" and loop.start is not None and f"global.{axis}" in loop.start.names
    ]  # fmt: skip
    if not loops:
        return None
    if len(loops) > 1:
        raise Unfit("several loops walk the grid")
    loop = loops[0]
    if loop.start != named(f"global.{axis}") or loop.operator != "<" or loop.ends_early:
        raise Unfit("how its loop walks the grid is not followed")
    used = [a for a in facts.accesses if a.element is not None and a.space != "private"
            and f"global.{axis}" in deep_names(subject, a.element)]  # fmt: skip
    outside = [a for a in facts.accesses if loop.index not in a.loops and a.kind != "read" and a.space == "global"]
    if used or outside:
        raise Unfit("it does more than its loop over the grid")
    return loop


def _refuse_grid_sizes(subject: Subject, queries: Mapping[str, int], axes: list[Axis], order: list[str]) -> None:
    """The launch's size may only be the step of a loop."""
    for axis, launched in zip(axes, order, strict=True):
        index = AXES.index(launched)
        asked = {f"gridDim.{launched}", f"get_num_groups({index})", f"get_global_size({index})"} & set(queries)
        if asked and axis.loop is None:
            raise Unfit(f"it uses the size of its launch ({sorted(asked)[0]})")


def _bound_text(subject: Subject, loop: LoopFact) -> str:
    assert loop.bound is not None
    text = expression_of(subject, loop.bound)
    if text is None:
        raise Unfit("where its loop over the grid ends is not known in sizes")
    return text


def expression_of(subject: Subject, value: Polynomial) -> str | None:
    """A polynomial of the kernel's by-value parameters as an expression in the problem's sizes; None: not possible."""
    terms = []
    for monomial, coefficient in value.terms:
        factors = [str(coefficient)] if coefficient != 1 or not monomial else []
        for name in monomial:
            text = _size_text(subject, name)
            if text is None:
                return None
            factors.append(text)
        terms.append(" * ".join(factors))
    return " + ".join(terms) if terms else "0"


def _size_text(subject: Subject, name: str) -> str | None:
    if subject.header.parameter(name) is not None:
        return name
    scalar = subject.scalar(name)
    if scalar is not None:
        return scalar.text if re.fullmatch(r"\w+", scalar.text) else f"({scalar.text})"
    default = subject.analysis.facts.defaults.get(name)
    if default is not None:
        return None if default.constant is None else str(default.constant)
    atom = subject.analysis.facts.atoms.get(name)
    if atom is not None and len(atom.parts) == 2 and "/" in name:
        left, right = (expression_of(subject, part) for part in atom.parts)
        return None if left is None or right is None else f"(({left}) // ({right}))"
    return None


def _rows_and_threads(subject: Subject, found: tuple[Extent, Extent, Extent], order: list[str]) -> Places:
    """Blocks that each take a row, whose threads walk along it: `for (i = threadIdx.x; i < d; i += blockDim.x)`."""
    facts = subject.analysis.facts
    is_line = order == ["x"] or (order == ["x", "y"] and is_number(found[1].block, 1))
    if not is_line or any(each.block != "1" or each.grid != "1" for each in found[len(order) :]):
        raise Unfit("it uses its place in the block, in a way that is not followed")
    if not any(loop.sweep in ("block-stride", "grid-stride") for loop in facts.loops):
        return _blocks_and_threads(subject, found)
    loops = [loop for loop in facts.loops if loop.sweep == "block-stride"]
    if len(loops) != 1:
        raise Unfit("it uses its place in the block, in a way that is not followed")
    loop = loops[0]
    is_plain = loop.start == named("thread.x") and loop.operator == "<" and not loop.ends_early
    if not is_plain or loop.step is None or loop.step.amount not in (named("block_size.x"),):
        raise Unfit("how the threads of a block walk their loop is not followed")
    for access in facts.accesses:
        if access.element is not None and {"thread.x", "global.x"} & deep_names(subject, access.element):
            raise Unfit("it does more than its loop over the block")
        if access.kind != "read" and access.space == "global" and loop.index not in access.loops:
            raise Unfit("it does more than its loop over the block")
    if any(
        {"thread.x", "global.x", "block_size.x"}
        & {n for c in guard.comparisons for side in (c.left, c.right) for n in deep_names(subject, side)}
        for guard in facts.guards
    ):
        raise Unfit("a condition uses the place in the block")  # fmt: skip
    queries = thread_queries(subject.analysis.function.body)
    more, still = _blocks_along_y(found)
    allowed = {"get_local_id(0)", "get_local_size(0)", "get_group_id(0)", "threadIdx.x", "blockDim.x", "blockIdx.x"}
    if set(queries) - allowed - more.keys():
        raise Unfit("it uses its place in the block, in a way that is not followed")
    if queries.get("threadIdx.x", 0) + queries.get("get_local_id(0)", 0) != 1:
        raise Unfit("it uses its place in the block in several ways")
    words = {"get_local_id(0)": "kw_x", "get_local_size(0)": "kw_end_x", "get_group_id(0)": "kw_y",
             "threadIdx.x": "kw_x", "blockDim.x": "kw_end_x", "blockIdx.x": "kw_y"}  # fmt: skip
    steps = {"get_local_id(0)": 1, "threadIdx.x": 1, "get_local_size(0)": 0, "blockDim.x": 0, "get_group_id(0)": 0,
             "blockIdx.x": 0}  # fmt: skip
    axes = (Axis("thread.x", _bound_text(subject, loop), loop), Axis("block.x", found[0].grid), *still)
    return Places(axes, {**words, **more}, {**steps, **dict.fromkeys(more, 0)})


def _blocks_and_threads(subject: Subject, found: tuple[Extent, Extent, Extent]) -> Places:
    """Threads of a block along the fastest axis, blocks along the next: exact whatever the kernel makes of them."""
    queries = thread_queries(subject.analysis.function.body)
    more, still = _blocks_along_y(found)
    allowed = {"get_local_id(0)", "get_local_size(0)", "get_group_id(0)", "get_global_id(0)", "threadIdx.x",
               "blockDim.x", "blockIdx.x"}  # fmt: skip
    if set(queries) - allowed - more.keys():
        raise Unfit("it uses its place in the block, in a way that is not followed")
    size, defines = found[0].block, {}
    if not is_number(size, int(size) if size.isdigit() else -1):
        defines, size = {"KW_BLOCK_SIZE": size}, "KW_BLOCK_SIZE"
    words = {"get_local_id(0)": "kw_x", "get_local_size(0)": size, "get_group_id(0)": "kw_y",
             "get_global_id(0)": f"kw_y * {size} + kw_x", "threadIdx.x": "kw_x", "blockDim.x": size,
             "blockIdx.x": "kw_y"}  # fmt: skip
    steps = {"get_local_id(0)": 1, "threadIdx.x": 1, "get_global_id(0)": 1}
    steps |= dict.fromkeys(("get_local_size(0)", "blockDim.x", "get_group_id(0)", "blockIdx.x"), 0)
    axes = (Axis("thread.x", found[0].block), Axis("block.x", found[0].grid), *still)
    return Places(axes, {**words, **more}, {**steps, **dict.fromkeys(more, 0)}, frozenset(), defines)


def _blocks_along_y(found: tuple[Extent, Extent, Extent]) -> tuple[dict[str, str], tuple[Axis, ...]]:
    """Blocks of one thread along y, as words and a slowest axis; nothing where the launch has no such axis."""
    if found[1].grid == "1":
        return {}, ()
    words = {"blockIdx.y": "kw_z", "threadIdx.y": "0", "blockDim.y": "1", "get_group_id(1)": "kw_z",
             "get_global_id(1)": "kw_z", "get_local_id(1)": "0", "get_local_size(1)": "1"}  # fmt: skip
    return words, (Axis("block.y", found[1].grid),)


# Bounds


def is_guarded(subject: Subject, axis: Axis, *, is_exact: bool = True) -> bool:
    """Whether places beyond an axis's total do nothing, on every workload; `is_exact`: and all before it do something.

    A border that is left alone ends before the total.
    """
    if axis.loop is not None:
        return True
    facts = subject.analysis.facts
    touched = [access for access in facts.accesses if access.space in ("global", "constant")]
    return all(_is_bounded(subject, access, axis, is_exact) for access in touched)


def _is_bounded(subject: Subject, access: Access, axis: Axis, is_exact: bool) -> bool:
    bounds = subject.analysis.bounds(access)
    names = {axis.atom, axis.atom.replace("global.", "block.")}
    bound = next((bounds[name] for name in names if name in bounds), None)
    if bound is None:
        return False
    for sizes in subject.sizes():
        value, total = subject.evaluate(bound, sizes), total_of(subject, axis.total, sizes)
        if value is None or total is None or value > total:
            return False
        if value != total and (is_exact or bound.constant is not None):  # a number is below declared totals alone
            return False
    return True


def total_of(subject: Subject, text: str, sizes: Mapping[str, int]) -> int | None:
    """The value of a launch expression on one workload, parameters at their defaults."""
    defaults = {each.name: each.default for each in subject.header.parameters}
    try:
        value = Expression.parse(text).evaluate({**defaults, **sizes})
    except SpecError:
        return None
    return value if isinstance(value, int) else None


# Text


def renamed_kernel(
    subject: Subject, name: str, extra: str, places: Places, *, body: str | None = None, is_apart: bool = False
) -> str:  # fmt: skip
    """The kernel as a function of its place, called `name`; with another body where one is given.

    Args:
        subject: the kernel.
        name: the function's name.
        extra: more parameters, behind the kernel's own.
        places: what its words for the thread's place mean.
        body: instead of its own; with braces.
        is_apart: whether it is to be called, not written out where it is used (OpenCL).
    """
    function = subject.analysis.function
    data = subject.source.encode("utf-8", "surrogatepass")
    between = data[function.name_place.span.end : function.body.place.span.start].decode("utf-8", "surrogatepass")
    opening, closing = between.find("("), between.rfind(")")
    if opening < 0 or between[closing + 1 :].strip() or "__grid_constant__" in between:
        raise Unfit("its parameters are written in a way that is not understood")
    parameters = between[opening + 1 : closing].strip()
    head = template_head(subject)
    helper = "static inline" if subject.language == "opencl" else "static __device__ __forceinline__"
    if is_apart and subject.language == "opencl":
        helper = "static __attribute__((noinline))"
    result = function.c_type if body is None else "int"
    text = body if body is not None else function.body.place.span.text(subject.source)
    joined = ", ".join(part for part in (parameters, extra) if part and part != "void")
    defines, undefines = query_macros(subject, places)
    return f"{defines}{head}{helper} {result} {name}({joined}) {text}\n{undefines}"


def query_macros(subject: Subject, places: Places) -> tuple[str, str]:
    """Lines that make the kernel's words for its thread's place mean another one, and lines that end that."""
    queries = set(thread_queries(subject.analysis.function.body))
    if subject.language == "opencl":
        names = sorted({query.partition("(")[0] for query in queries})
        lines = []
        for name in names:
            words = [places.words.get(f"{name}({index})", "0") for index in range(3)]
            x, y, z = (f"(size_t)({word})" for word in words)
            lines.append(f"#define {name}(kw_axis) ((kw_axis) == 0 ? {x} : (kw_axis) == 1 ? {y} : {z})\n")
        return "".join(lines), "".join(f"#undef {name}\n" for name in names)
    names = sorted({query.partition(".")[0] for query in queries})
    lines = []
    for name in names:
        words = [places.words.get(f"{name}.{axis}", "0") for axis in AXES]
        lines.append(
            f"#define {name} (uint3{{(unsigned)({words[0]}), (unsigned)({words[1]}), (unsigned)({words[2]})}})\n"
        )
    return "".join(lines), "".join(f"#undef {name}\n" for name in names)


def template_head(subject: Subject) -> str:
    """`template <...>` with its line end; empty for a plain kernel."""
    function = subject.analysis.function
    if not function.template_parameters:
        return ""
    start = declaration_start(subject.source, function)
    data = subject.source.encode("utf-8", "surrogatepass")
    text = data[start : function.place.span.start].decode("utf-8", "surrogatepass")
    if not text.lstrip().startswith("template"):
        raise Unfit("its template parameters are written in a way that is not understood")
    return text


def template_arguments(subject: Subject) -> str:
    """`<T, N>` for a call from the kernel itself; empty for a plain kernel."""
    names = [each.name for each in subject.analysis.function.template_parameters]
    return f"<{', '.join(names)}>" if names else ""
