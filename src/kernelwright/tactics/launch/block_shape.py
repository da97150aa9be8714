"""The block's shape as a parameter, also where the source has it as a number."""

from __future__ import annotations

import re
from dataclasses import replace

from kernelwright.analysis.facts import LiteralFact
from kernelwright.analysis.polynomial import named
from kernelwright.source import nodes
from kernelwright.source.builtin_functions import atomic_operation, is_exchange
from kernelwright.source.span import Span
from kernelwright.tactics.base import Effect, Rewrite, RuleTactic, Subject, Unfit
from kernelwright.tactics.common.editing import RewriteBuilder, refuse_hidden_branches
from kernelwright.tactics.common.iteration_domain import Axis, is_guarded, queries_are_indices
from kernelwright.tactics.common.launches import AXES, covered_by, is_number, number, only_shape
from kernelwright.tactics.common.thread_queries import query_text
from kernelwright.tactics.vectors.thread_places import refuse_place_as_data
from kernelwright.template.header import expressions

_POWERS = (32, 64, 128, 256, 512, 1024)
_FLOATING = re.compile(r"float|double|half")
_MORE = {"x": (1, 4, 8, 16, *_POWERS), "y": (1, 2, 4, 8, 16, 32), "z": (1, 2, 4, 8)}


def _lift(subject: Subject) -> Rewrite:
    refuse_hidden_branches(subject)
    step = only_shape(subject)
    if all(number(extent) is None or number(extent) == 1 for extent in step.block):
        raise Unfit("the block is a parameter", is_already_so=any(subject.header.parameters))
    baked = _baked_macro(subject, tuple(extent.text for extent in step.block))
    if baked is not None:
        return _lift_macro(subject, baked)
    return _lift_free(subject) if _is_free(subject) else _lift_together(subject)


def _baked_macro(subject: Subject, block: tuple[str, ...]) -> LiteralFact | None:
    """A macro of the kernel that is the block's extent along x, and must stay it."""
    facts = subject.analysis.facts
    if _is_free(subject):
        return None
    named_so = re.compile(r"BLOCK|GROUP|THREADS|TPB|WG|TILE|LOCAL|BS|\bB\b|NT", re.IGNORECASE)
    found = [
        each for each in facts.literals
        if each.role in ("macro", "parameter") and is_number(block[0], each.value) and each.uses
        and named_so.search(each.name)
    ]  # fmt: skip
    return found[0] if len(found) == 1 else None


def _is_free(subject: Subject) -> bool:
    """Whether the kernel works for blocks of any shape: its threads do not meet and know only their place among all."""
    facts = subject.analysis.facts
    if facts.barriers or facts.exchanges or any(a.space == "shared" for a in facts.arrays.values()) or facts.opaque:
        return False
    values = [
        *(access.element for access in facts.accesses if access.element is not None),
        *(side for guard in facts.guards for c in guard.comparisons for side in (c.left, c.right)),
        *(loop.start for loop in facts.loops if loop.start is not None),
    ]
    words = ("thread.", "block.", "block_size.", "warp.", "grid_size.")
    block = only_shape(subject).block
    for index, axis in enumerate(AXES):
        if index >= len(block) or is_number(block[index], 1):
            values = [value.replaced({f"block.{axis}": named(f"global.{axis}")}) for value in values]
        elif not queries_are_indices(subject, axis):
            return False
    return not any(name.startswith(words) or "thread." in name for value in values for name in value.names)


def _lift_macro(subject: Subject, literal: LiteralFact) -> Rewrite:
    """`#define GROUP 256` with blocks of 256: one parameter for the source and every launch that it stands for."""
    plan = RewriteBuilder(subject, "launch-shape", "launch")
    facts = subject.analysis.facts
    if facts.opaque:
        raise Unfit("not all of the kernel is understood")
    is_pow2 = literal.value & (literal.value - 1) == 0
    if not is_pow2:
        raise Unfit("the block is no power of two; why is not known")
    _refuse_places_as_data(subject, literal)
    refuse_own_values(subject)
    by_block = [a for a in facts.accesses if a.kind != "read" and a.space == "global" and a.element is not None
                and any(n.startswith("block.") for n in a.element.names)]  # fmt: skip
    low = literal.value if by_block else 32
    high = 1024 if subject.device.kind == "gpu" else 4096
    values = tuple(v for v in (*_POWERS, 2048, 4096) if low <= v <= min(high, subject.device.max_threads_per_block))
    name = plan.lift_macro(literal.name, values, "threads of a block")
    users = _kernels_that_use(subject, literal.name)
    steps = []
    for step in plan.header.steps:
        entry = step.entry.partition("<")[0].strip()
        if entry not in users:
            steps.append(step)
            continue
        if not is_number(step.block[0].text, literal.value):
            raise Unfit(f"the launch of {entry} has another block than {name}")
        grid = [extent.text for extent in step.grid]
        covered = covered_by(grid[0], step.block[0].text)
        if covered is not None:
            grid[0] = f"ceil_div({covered}, {name})"
        elif number(grid[0]) is None and re.search(rf"\b{literal.value}\b", grid[0]):
            raise Unfit(f"how {name} decides on the grid of {entry} is not known")
        if step.shared_bytes is not None:
            raise Unfit(f"how {name} decides on the shared memory of {entry} is not known")
        steps.append(replace(step, grid=expressions(grid), block=expressions((name, *step.block[1:]))))
    plan.header = replace(plan.header, steps=tuple(steps))
    for mark in subject.analysis.function.attributes:
        if re.search(r"reqd_work_group_size|__launch_bounds__", mark.text) and str(literal.value) in mark.text:
            text = re.sub(rf"\b{literal.value}\b", name, mark.span.text(subject.source), count=1)
            plan.replace(mark.span, text)
    return plan.finish(
        f"{name}, the size of a block, is a parameter of the source and of its launches.",
        Effect(1.15, "threads and blocks that run at once"),
        properties=subject.properties,
    )


def _refuse_places_as_data(subject: Subject, literal: LiteralFact) -> None:
    """Neither the macro nor a thread's place may be a part of what is computed; both may index, count and decide.

    Raises:
        Unfit: one is.
    """
    for function in (subject.analysis.function, *subject.helpers):
        declared = [each for each in nodes.walk(function.body) if isinstance(each, nodes.Declarator)]
        pointers = {each.name for each in declared if each.is_pointer}
        pointers |= {each.name for each in function.parameters if each.is_pointer}
        places = {literal.name}
        for each in nodes.walk(function.body):  # in their order: a place is made of places before it
            match each:
                case (
                    nodes.Declarator(name=name, initial=value) | nodes.Assign(target=nodes.Name(name=name), value=value)
                ) if value is not None and name not in pointers and _is_data(value, literal, places):
                    places.add(name)
        floats = {each.name for each in declared if _FLOATING.search(each.c_type) and not each.is_pointer}
        places -= floats
        values = [each.initial for each in declared if each.name in floats and not each.extents]
        for node in nodes.walk(function.body):
            match node:
                case nodes.Assign(target=nodes.Name(name=name), value=value) if name in floats:
                    values.append(value)
                case nodes.Assign(target=nodes.Element() | nodes.Unary(), value=value):
                    values.append(value)
                case nodes.Call(function=name, arguments=(_, *given)) if atomic_operation(name):
                    values += given
        if any(each is not None and _is_data(each, literal, places) for each in values):
            raise Unfit("the thread's place or the block's size is a part of what it computes")


def _is_data(node: nodes.Node, literal: LiteralFact, places: set[str]) -> bool:
    """Whether a value is made of a place, the block's size or one of the names; indices and conditions do not count."""
    match node:
        case nodes.Name(name=name) if name in places:
            return True
        case nodes.Literal(place=place) if place.span in literal.uses:
            return True
        case nodes.Binary(operator=operator) if operator in ("<", "<=", ">", ">=", "==", "!=", "&&", "||"):
            return False
        case nodes.Call(function=name) if is_exchange(name):
            return False
        case nodes.Element(base=base):
            return _is_data(base, literal, set())
        case nodes.Conditional(yes=yes, no=no):
            return _is_data(yes, literal, places) or _is_data(no, literal, places)
    if query_text(node).startswith(("threadIdx.", "get_local_id(")):
        return True
    return any(_is_data(each, literal, places) for each in nodes.children(node))


def _kernels_that_use(subject: Subject, macro: str) -> set[str]:
    """Kernels of the file that name a macro, in their bodies or in functions that they call."""
    tree = subject.analysis.tree
    uses = tree.expanded.uses.get(macro, ())
    functions = {each.name: each for each in tree.functions}
    direct = {f.name for f in tree.functions if any(f.place.span.contains(use) for use in uses)}
    found = set(direct)
    for _ in range(len(functions)):
        for function in tree.functions:
            called = {each.function for each in nodes.walk(function.body) if isinstance(each, nodes.Call)}
            if called & found:
                found.add(function.name)
    return {name for name in found if functions[name].is_kernel}


def _lift_together(subject: Subject) -> Rewrite:
    """Blocks that work on one thing together, with the block's size asked for wherever it matters.

    Raises:
        Unfit: something may rely on the size that blocks have.
    """
    step = only_shape(subject)
    size = number(step.block[0].text)
    if size is None or size & (size - 1) or any(number(extent) != 1 for extent in step.block[1:]):
        raise Unfit("the kernel relies on the shape of its blocks")
    _refuse_reliance(subject, size)
    plan = RewriteBuilder(subject, "launch-shape", "launch")
    values = _values_together(subject, size)
    name = plan.parameter("BLOCK", sorted({*values, size}), size, "threads that work on one thing together")
    shared = None
    if step.shared_bytes is not None:
        count = number(step.shared_bytes)
        if count is None or count % size:
            raise Unfit("how much shared memory a block of another size needs is not known")
        shared = f"{count // size} * {name}"
    plan.header = plan.header.relaunched(step.entry, grid=step.grid, block=(name, *step.block[1:]), shared_bytes=shared)
    for mark in subject.analysis.function.attributes:
        if re.search(r"reqd_work_group_size|__launch_bounds__|work_group_size_hint", mark.text):
            plan.replace(mark.span, "")
    return plan.finish(
        f"{name}, the threads that work on one thing together, is a parameter.",
        Effect(1.15, "threads that wait for each other, and blocks that run at once"),
        properties=subject.properties,
    )


def _refuse_reliance(subject: Subject, size: int) -> None:
    """Refuse kernels that may rely on the size of their blocks.

    Raises:
        Unfit: saying how.
    """
    facts, step = subject.analysis.facts, only_shape(subject)
    reason = "the kernel relies on the shape of its blocks"
    if facts.opaque or covered_by(step.grid[0].text, step.block[0].text) is not None:
        raise Unfit(reason)
    is_by_rows = subject.pattern.kind in ("row-wise", "whole reduction") and subject.pattern.confidence == "certain"
    walked = () if is_by_rows else _walked_by_blocks(subject)
    if re.search(rf"\b{size}\b", " ".join(extent.text for extent in step.grid)) or _uses_total(subject):
        raise Unfit(reason)
    for guard in facts.guards:
        for each in guard.comparisons:
            sides = (each.left, each.right)
            if any(side.constant not in (None, 0) for side in sides) and any("thread." in str(side) for side in sides):
                raise Unfit("a condition compares the thread's place with a number")
    refuse_own_values(subject)
    _refuse_size_as_data(subject.analysis.function.body)
    _refuse_certain_places(subject)
    sharing = {index for access in facts.accesses if access.space == "shared" for index in access.loops}
    for loop in facts.loops:
        pace = None if loop.step is None else loop.step.amount
        told = [each for each in (loop.start, loop.bound, pace) if each is not None]
        is_fixed = loop.step is not None and loop.step.amount.constant is not None
        if is_fixed and loop.sweep != "sequential" and loop.start is not None and "thread." in str(loop.start):
            raise Unfit("a loop walks in steps of the size that blocks have")
        if loop.index in sharing and not any("block_size." in str(each) for each in told):
            raise Unfit("a loop over shared memory has a fixed length")
    scopes = {reduction.scope for reduction in facts.reductions}
    if "warp" in scopes and "block" not in scopes:
        raise Unfit("values are joined between the threads of a warp, which is the block")
    if any(array.space == "shared" and array.is_parameter for array in facts.arrays.values()):
        raise Unfit("how much local memory a block of another size needs is not known")
    refuse_place_as_data(subject, walked=walked)


def _walked_by_blocks(subject: Subject) -> tuple[Span, ...]:
    """Accesses at the thread's place, all of which the block walks along: with fewer threads it takes more steps.

    Raises:
        Unfit: a thread touches only the element at its own place, or reads what others may write.
    """
    _refuse_changed_elements(subject)
    loops = subject.analysis.facts.loops
    walks = {each.atom for each in loops if each.step is not None and "block_size." in str(each.step.amount)}
    found = []
    for access in subject.analysis.facts.accesses:
        names = access.element.names if access.element is not None else frozenset({"thread."})
        if access.space == "shared" or not any(name.startswith("thread.") for name in names):
            continue
        if not walks & names:
            raise Unfit(f"each thread touches one element of {access.array}, and fewer threads leave the rest")
        found.append(access.span)
    return tuple(found)


def _refuse_changed_elements(subject: Subject) -> None:
    """Arrays that are read and written must be so at the same elements: a block's threads may not be alike then.

    Raises:
        Unfit: one is read elsewhere.
    """
    outside = [each for each in subject.analysis.facts.accesses if each.space == "global"]
    for array in {each.array for each in outside if each.kind != "read" and not each.is_atomic}:
        touched = {str(each.element) for each in outside if each.array == array}
        if len(touched) > 1 and any(each.array == array and each.kind == "read" for each in outside):
            raise Unfit(f"it reads elements of {array} that other threads may write")


def _refuse_certain_places(subject: Subject) -> None:
    """Of what each thread leaves in shared memory, the first one's and places in steps of loops may be read.

    Raises:
        Unfit: another place is read, which fewer threads may not have.
    """
    facts = subject.analysis.facts
    shared = [each for each in facts.accesses if each.space == "shared"]
    own = {each.array for each in shared if each.kind != "read" and each.element is not None
           and any(name.startswith("thread.") for name in each.element.names)}  # fmt: skip
    for access in shared:
        if access.array not in own:
            continue
        if access.element is None or (access.element.constant is not None and access.element.constant != 0):
            raise Unfit("it reads what a certain thread left")
        parts = [part for name in access.element.names for part in facts.atoms[name].parts]
        if any("block_size." in str(part) for part in parts):
            raise Unfit("it reads what a neighbour left")


def refuse_own_values(subject: Subject) -> None:
    """What one thread makes in a loop of the block may only be joined: with more threads it is of other elements.

    Raises:
        Unfit: it is used by itself.
    """
    facts, body = subject.analysis.facts, subject.analysis.function.body
    together = {loop.span for loop in facts.loops if loop.sweep != "sequential" and not loop.inlined_in}
    for loop in nodes.walk(body):
        if isinstance(loop, nodes.Loop) and loop.place.span in together:
            after = [each for each in _flat(body) if each.place.span.start >= loop.place.span.end]
            for name in sorted(nodes.assigned_names(loop.body) - nodes.declared_names(loop)):
                _refuse_own_value(subject, name, after)
                _refuse_own_start(body, loop, name)


def _refuse_own_start(body: nodes.Block, loop: nodes.Loop, name: str) -> None:
    """What each thread of a block begins a sum with counts as often as there are threads: it must be 0.

    Raises:
        Unfit: it is not, or 1 of a product.
    """
    wanted = {_neutral(each, name) for each in nodes.walk(loop.body) if isinstance(each, nodes.Assign)} - {None}
    before = [each for each in nodes.walk(body) if each.place.span.start < loop.place.span.start]
    starts = [each.initial for each in before if isinstance(each, nodes.Declarator) and each.name == name]
    starts += [each.value for each in before
               if isinstance(each, nodes.Assign) and nodes.variable_of(each.target) == name]  # fmt: skip
    for value in wanted:
        if any(each is not None and _is_value(each, value) is False for each in starts):
            raise Unfit(f"{name} begins with something else than {value} in each thread")


def _neutral(assign: nodes.Assign, name: str) -> int | None:
    """What changes nothing in a sum or product that an assignment adds to; None for anything else."""
    if not isinstance(assign.target, nodes.Name) or assign.target.name != name:
        return None
    operator = assign.operator
    if operator == "=" and isinstance(assign.value, nodes.Binary):
        sides = (assign.value.left, assign.value.right)
        is_own = any(isinstance(each, nodes.Name) and each.name == name for each in sides)
        operator = f"{assign.value.operator}=" if is_own else "="
    return {"+=": 0, "-=": 0, "*=": 1}.get(operator)


def _is_value(value: nodes.Expression, wanted: int | None) -> bool | None:
    """Whether an expression is a certain number, in all components; None for what is no number."""
    match value:
        case nodes.Literal(text=text):
            try:
                return float(text.rstrip("fFuUlLhH")) == wanted
            except ValueError:
                return None
        case nodes.Unary(operator="-", operand=nodes.Literal()):
            return _is_value(value.operand, 0) if wanted == 0 else False
        case nodes.Cast(operands=operands):
            told = [_is_value(each, wanted) for each in operands]
            return None if None in told else all(told)
    return None


def _refuse_size_as_data(body: nodes.Block) -> None:
    """The size of a block may count steps and choose elements; it may be no part of what is stored.

    Raises:
        Unfit: it is.
    """
    sizes = ("blockDim.x", "get_local_size(0)")
    declared = [each for each in nodes.walk(body) if isinstance(each, nodes.Declarator)]
    names = {each.name for each in declared if each.initial is not None and query_text(each.initial) in sizes}
    for assign in nodes.walk(body):
        if not isinstance(assign, nodes.Assign) or not isinstance(assign.target, nodes.Element):
            continue
        inside = [each.index.place.span for each in nodes.walk(assign.value) if isinstance(each, nodes.Element)]
        for node in nodes.walk(assign.value):
            is_size = query_text(node) in sizes or (isinstance(node, nodes.Name) and node.name in names)
            if is_size and not any(each.contains(node.place.span) for each in inside):
                raise Unfit("the size of a block is a part of what it stores")


def _refuse_own_value(subject: Subject, name: str, after: list[nodes.Statement]) -> None:
    helpers = {each.name for each in subject.analysis.tree.functions}
    shared = {key.partition("#")[0] for key, each in subject.analysis.facts.arrays.items() if each.space == "shared"}
    for statement in after:
        if not any(isinstance(each, nodes.Name) and each.name == name for each in nodes.walk(statement)):
            continue
        calls = {each.function for each in nodes.walk(statement) if isinstance(each, nodes.Call)}
        if calls & helpers or any(is_exchange(each) or atomic_operation(each) for each in calls):
            return  # joined by whatever that is
        match statement:
            case nodes.Evaluate(expression=nodes.Assign(target=target, value=value)) if nodes.root_name(
                target
            ) in shared and _is_kept(value, name):
                continue
        raise Unfit(f"what a thread has in {name} is used by itself")


def _is_kept(value: nodes.Expression, name: str) -> bool:
    """Whether a value is what a name holds, converted, or one of several that a constructor puts together."""
    match value:
        case nodes.Name(name=other):
            return other == name
        case nodes.Cast(operands=operands) | nodes.Items(items=operands):
            return any(_is_kept(each, name) for each in operands)
        case nodes.Call(function=function, arguments=arguments) if function.startswith(
            ("make_", "__float2", "convert_")
        ):
            return any(_is_kept(each, name) for each in arguments)
    return False


def _flat(block: nodes.Block) -> list[nodes.Statement]:
    """The statements of a function that are no blocks, in order."""
    return [
        each
        for statement in block.statements
        for each in (_flat(statement) if isinstance(statement, nodes.Block) else [statement])
    ]


def _values_together(subject: Subject, size: int) -> list[int]:
    largest = min(subject.device.max_threads_per_block, 1024)
    for array in subject.analysis.facts.arrays.values():
        extents = [None if extent is None else extent.constant for extent in array.extents]
        if array.space == "shared" and extents and None not in extents:
            largest = min(largest, size)
    least = 1 if subject.device.kind == "cpu" and not subject.analysis.facts.exchanges else 32
    return [v for v in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024) if least <= v <= largest]


def _uses_total(subject: Subject) -> bool:
    """Whether what a kernel does depends on how many threads there are in all, or on a place among all of them.

    Threads that walk all data together in steps of the grid may be more or fewer, unless each block stores its share.
    """
    facts = subject.analysis.facts
    values = [a.element for a in facts.accesses if a.element is not None and a.space == "global"]
    values += [side for guard in facts.guards for c in guard.comparisons for side in (c.left, c.right)]
    names = {name for value in values for name in value.names}
    deep = names | {n for name in names for part in facts.atoms[name].parts for n in part.names}
    if any(name.startswith(("global.", "grid_size.", "block_size.")) for name in deep):
        return True
    stored = [a.element for a in facts.accesses if a.space == "global" and a.kind != "read" and not a.is_atomic]
    is_of_block = any(each is None or any(name.startswith("block.") for name in each.names) for each in stored)
    return is_of_block and any(loop.sweep == "grid-stride" for loop in facts.loops)


def _lift_free(subject: Subject) -> Rewrite:
    step = only_shape(subject)
    plan = RewriteBuilder(subject, "launch-shape", "launch")
    grid, block = ([extent.text for extent in extents] for extents in (step.grid, step.block))
    names = []
    for index, extent in enumerate(tuple(block)):
        value = number(extent)
        if value is None or (value == 1 and index):
            continue
        axis = AXES[index]
        total = covered_by(grid[index] if index < len(grid) else "1", extent)
        if total is None or not is_guarded(subject, Axis(f"global.{axis}", total), is_exact=False):
            raise Unfit("nothing in the kernel stops threads beyond the end")
        values = sorted({*_MORE[axis], value})
        suffix = "" if len(step.block) == 1 else f"_{axis.upper()}"
        name = plan.parameter(f"BLOCK{suffix}", values, value, f"threads of a block along {axis}")
        names.append(name)
        grid[index], block[index] = f"ceil_div({total}, {name})", name
    if len(names) > 1:
        plan.constraint("threads", f"{' * '.join(names)} <= 1024")
    plan.header = plan.header.relaunched(step.entry, grid=tuple(grid), block=tuple(block))
    for mark in subject.analysis.function.attributes:
        if re.search(r"reqd_work_group_size|__launch_bounds__|work_group_size_hint", mark.text):
            plan.replace(mark.span, "")
    return plan.finish(
        f"The shape of a block is a parameter ({' and '.join(names)}).",
        Effect(1.1, "threads and blocks that run at once"),
        properties=subject.properties,
    )


LAUNCH_SHAPE = RuleTactic(
    "launch-shape", "launch", "The block's shape as a parameter, also where the source has it as a number.", _lift
)
