"""Histograms: each block counts in memory of its own, and adds what it has to the whole once."""

from __future__ import annotations

from dataclasses import dataclass

from kernelwright.source import nodes
from kernelwright.source.builtin_functions import atomic_operation
from kernelwright.source.span import Span
from kernelwright.tactics.base import Effect, Rewrite, RuleTactic, Subject, Unfit
from kernelwright.tactics.common.dialect import dialect
from kernelwright.tactics.common.editing import RewriteBuilder, refuse_unread
from kernelwright.tactics.common.iteration_domain import Axis, is_guarded, places_of, query_macros, total_of
from kernelwright.tactics.common.launches import is_number, only_shape, refuse_aliases

MOST_BYTES = 32768
"""Shared memory that the bins of a block may take."""

_TYPES = {"opencl": ("int", "uint", "unsigned", "unsigned int"), "cuda": ("int", "unsigned", "unsigned int", "float")}


@dataclass(frozen=True, slots=True)
class _Count:
    """One atomic addition to a bin."""

    call: nodes.Call
    element: nodes.Element


def _private_bins(subject: Subject) -> Rewrite:
    if {"private-bins", "coarsen", "vector-map"} & set(subject.history):
        raise Unfit("its threads were arranged anew before", is_already_so=True)
    counts, array = _counts(subject)
    axis = _axis(subject)
    bins = _size(subject, array)
    plan = RewriteBuilder(subject, "private-bins", "reduction")
    is_cpu = subject.device.kind == "cpu"
    block = plan.parameter("BLOCK", (64, 128, 256, 512, 1024), 256, "threads of a block")
    items = plan.parameter("ITEMS", (1, 2, 4, 8, 16, 32, 64, 128), 64 if is_cpu else 8, "elements of a thread")
    copies = plan.parameter("COPIES", (1, 2, 4, 8, 16), 1, "copies of the bins, which neighbouring threads spread over")
    size = plan.fresh("KW_BINS")
    plan.header = plan.header.with_define(size, bins)
    plan.prelude.append(f"#ifndef {size}\n#define {size} 1\n#endif\n")
    c_type = subject.analysis.facts.arrays[array].c_type
    plan.constraint("bins", f"({bins}) * {copies} * 4 <= {MOST_BYTES}")
    for each in counts:
        index = each.element.index.place.span.text(subject.source)
        plan.replace(each.call.arguments[0].place.span, f"&kw_bins[({index}) * {copies} + kw_copy]")
    _frame(plan, counts[0].call.function, array, c_type, (size, items, copies))
    step = only_shape(subject)
    plan.header = plan.header.relaunched(
        step.entry, grid=(f"ceil_div({axis.total}, {block} * {items})",), block=(block,)
    )
    told = "the atomics of a block meet in its own memory, and the bins in global memory once a block"
    return plan.finish(
        f"Each block counts in {copies} copies of the bins of its own, {items} elements a thread.",
        Effect(1.02, "the threads of a CPU seldom meet in a bin") if is_cpu else Effect(8.0, told),
    )


def _counts(subject: Subject) -> tuple[list[_Count], str]:
    """All additions; nothing else may be stored, and no thread may see a bin.

    Raises:
        Unfit: saying what else there is, with its line.
    """
    refuse_unread(subject)
    facts = subject.analysis.facts
    if facts.barriers or facts.exchanges or any(array.space == "shared" for array in facts.arrays.values()):
        raise Unfit("its threads already work together")
    refuse_aliases(subject)
    stored = [each for each in facts.accesses if each.kind != "read" and each.space == "global"]
    arrays = sorted({each.array for each in stored})
    if not any(each.is_atomic for each in stored):
        raise Unfit("it changes no memory atomically")
    others = [each for each in facts.accesses if each.array in arrays and not each.is_atomic]
    if len(arrays) != 1 or others or any(each.inlined_in for each in stored):
        line = (others or stored)[-1].span.line(subject.source)
        raise Unfit(f"line {line}: something else than one array's atomic additions is stored, or a bin is read")
    function = subject.analysis.function
    changed = sorted(nodes.assigned_names(function.body) & {each.name for each in function.parameters} - set(arrays))
    if changed:
        raise Unfit(f"the argument {changed[0]} is changed, which the thread's next element would see")
    statements = [n for n in nodes.walk(function.body) if isinstance(n, nodes.Evaluate)]
    counts = []
    for each in statements:
        match each.expression:
            case (
                nodes.Call(
                    arguments=(
                        nodes.Unary(operator="&", operand=nodes.Element(base=nodes.Name(name=name)) as element),
                        *_,
                    )
                ) as call
            ) if (
                name == arrays[0]
                and atomic_operation(call.function) in ("add", "inc")
                and (call.place.is_exact and element.place.is_exact)
            ):
                counts.append(_Count(call, element))
    if len(counts) != len(stored):
        line = stored[0].span.line(subject.source)
        raise Unfit(f"line {line}: an atomic is no plain addition to an element, or what was there is used")
    if any(atomic_operation(each.call.function) == "inc" and subject.language != "opencl" for each in counts):
        raise Unfit("atomicInc wraps around at a bound")
    c_type = facts.arrays[arrays[0]].c_type
    if c_type not in _TYPES["opencl" if subject.language == "opencl" else "cuda"]:
        raise Unfit(f"bins of type {c_type} are not counted in shared memory")
    return counts, arrays[0]


def _axis(subject: Subject) -> Axis:
    """The one axis of elements, beyond whose end threads do nothing.

    Raises:
        Unfit: there are more, or a thread walks several elements already.
    """
    step = only_shape(subject)
    if any(not is_number(each, 1) for each in (*step.grid[1:], *step.block[1:])) or step.shared_bytes is not None:
        raise Unfit("its launch has more than one axis, or shared memory of its own")
    places = places_of(subject)
    axis = places.axes[0]
    if len(places.axes) != 1 or axis.loop is not None or axis.atom != "global.x" or not is_guarded(subject, axis):
        raise Unfit("a thread has not one element, or more threads than elements do something")
    body = subject.analysis.function.body
    loops = [each for each in nodes.walk(body) if isinstance(each, nodes.Loop)]
    if any(isinstance(n, nodes.Return) for loop in loops for n in nodes.walk(loop)):
        raise Unfit("a thread may leave inside a loop")
    return axis


def _size(subject: Subject, array: str) -> str:
    """How many bins there are, as an expression in sizes.

    Raises:
        Unfit: too many for shared memory, on some workload.
    """
    argument = subject.bindings[0].get(array) if len(subject.bindings) == 1 else None
    if argument is None or not argument.shape:
        raise Unfit(f"how many elements {array} has is not known")
    text = " * ".join(f"({each.text})" for each in argument.shape)
    for sizes in subject.sizes():
        count = total_of(subject, text, sizes)
        if count is None or count * 4 > MOST_BYTES:
            raise Unfit(f"{count} bins of {array} exceed the {MOST_BYTES} bytes of shared memory that a block may take")
    return text


def _frame(plan: RewriteBuilder, function: str, array: str, c_type: str, names: tuple[str, str, str]) -> None:
    """Empty bins before the body, the body for each element of the thread, full bins after it."""
    subject, words = plan.subject, dialect(plan.subject.language)
    size, items, copies = names
    body = subject.analysis.function.body
    add = {"atomic_inc": "atomic_add", "atom_inc": "atom_add"}.get(function, function)
    integer = "size_t" if words.is_opencl else "unsigned"
    place, count = words.thread("x"), words.block_size("x")
    head = [
        f"{words.shared} {c_type} kw_bins[{size} * {copies}];",
        f"const int kw_thread = {place}, kw_threads = {count}, kw_copy = kw_thread % {copies};",
        f"for (int kw_b = kw_thread; kw_b < {size} * {copies}; kw_b += kw_threads) kw_bins[kw_b] = 0;",
        words.barrier,
        f"const {integer} kw_first = ({integer}){words.block('x')} * kw_threads * {items} + kw_thread;",
        f"for (int kw_k = 0; kw_k < {items}; ++kw_k) {{",
        f"const {integer} kw_x = kw_first + ({integer})kw_k * kw_threads;",
    ]
    tail = [
        words.barrier,
        f"for (int kw_b = kw_thread; kw_b < {size}; kw_b += kw_threads) {{",
        f"  {c_type} kw_sum = 0;",
        f"  for (int kw_c = 0; kw_c < {copies}; ++kw_c) kw_sum += kw_bins[kw_b * {copies} + kw_c];",
        f"  if (kw_sum != 0) {add}(&{array}[kw_b], kw_sum);",
        "}",
    ]
    defines, undefines = query_macros(subject, places_of(subject))
    for each in nodes.walk(body):
        if isinstance(each, nodes.Return):
            plan.replace(each.place.span, "continue;")
    start = Span(body.place.span.start + 1, body.place.span.end - 1)
    plan.insert(start.start, "\n  " + "\n  ".join(head) + f"\n{defines}")
    plan.insert(start.end, f"\n{undefines}  }}\n  " + "\n  ".join(tail) + "\n")
    for mark in subject.analysis.function.attributes:
        if any(word in mark.text for word in ("reqd_work_group_size", "__launch_bounds__", "work_group_size_hint")):
            plan.replace(mark.span, "")


PRIVATE_BINS = RuleTactic(
    "private-bins",
    "reduction",
    "Histograms: each block counts in shared memory, and adds its bins once.",
    _private_bins,
)
