"""A kernel in C as one in Triton: maps, rows, reductions and contractions, by what their threads do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from kernelwright.problem.dtypes import dtype_of_c_type
from kernelwright.problem.expressions.expression import Expression
from kernelwright.source import nodes
from kernelwright.source.builtin_functions import barrier_scope
from kernelwright.source.span import Span
from kernelwright.source.triton.reading import OPTIONS
from kernelwright.space.parameter import Constraint, Parameter
from kernelwright.tactics.base import Subject, Unfit
from kernelwright.tactics.common.block_functions import joining_calls
from kernelwright.tactics.common.iteration_domain import Axis, is_guarded, places_of, require_independent
from kernelwright.tactics.common.launches import AXES, extents, is_number, number, only_shape, refuse_aliases
from kernelwright.tactics.common.loop_reductions import Operation
from kernelwright.tactics.launch.plain_launch import plain_subject
from kernelwright.tactics.launch.warp_rows import one_warp_a_block
from kernelwright.tactics.reductions.inline_reductions import outlined
from kernelwright.tactics.tiling.direct import direct
from kernelwright.tactics.tiling.unstaged import by_two_axes
from kernelwright.tactics.triton import loops
from kernelwright.tactics.triton.dots import write_dot
from kernelwright.tactics.triton.global_places import by_global_places
from kernelwright.tactics.triton.layout import PLACES, Layout
from kernelwright.tactics.triton.several_places import one_place_a_thread, swapped
from kernelwright.tactics.triton.text import Writer, body_text
from kernelwright.tactics.triton.trees import function_text, with_trees, write_tree
from kernelwright.tactics.triton.values import names_in_triton
from kernelwright.template.header import Header, expressions, launch_step

_WARPS = Parameter("num_warps", (1, 2, 4, 8), 4)
_STAGES = Parameter("num_stages", (1, 2, 3, 4), 2, "loads of a loop under way")
_MOST = 256
"""Elements of a tile for each thread."""

_DOT = (
    Parameter("BLOCK", (16, 32, 64, 128, 256), 64, "columns of a program"),
    Parameter("BLOCK_Y", (16, 32, 64, 128, 256), 64, "rows of a program"),
    Parameter("TILE", (16, 32, 64, 128), 32, "elements that are multiplied at once"),
)
_LOOPS = partial(loops.write, write_dot=write_dot)

_WORD = re.compile(r"(?<![\w.])\w+(?!=[^=])")
"""Not what belongs to something, `tl.store`, and no argument's name, `mask=`."""
Made = tuple[str, Header]


def kernels_in_triton(subject: Subject) -> Made:
    """The text in Triton of all kernels that are launched, and a header with their parameters and launches.

    Each is taken as it is, in normal form, with a thread for each step of its loop over the grid, with a block for each
    warp, and with joins of a block's threads as functions. Launches that become the same text are one kernel.

    Args:
        subject: kernels in CUDA or OpenCL.

    Raises:
        Unfit: a place beyond its end may be touched, or something in one has no words in Triton.
    """
    for name in OPTIONS:
        if any(name in each.sizes for each in subject.problem.workloads):
            raise Unfit(f"a size is called {name}, which is an option of Triton's launches")
    steps = subject.header.steps
    if len(steps) == 1:
        text, header = _written(subject)
        return _file((text,)), header
    made = [_written_of_several(subject, replace(subject.header, steps=(each,))) for each in steps]
    distinct = [each for index, each in enumerate(made) if each not in made[:index]]
    entries = [header.entries[0] for _, header in distinct]
    numbered = [
        _numbered(subject, each, number, is_alone=entries.count(entries[number - 1]) == 1)
        for number, each in enumerate(distinct, 1)
    ]
    launched = (numbered[distinct.index(each)][1].steps[0] for each in made)
    return _file([text for text, _ in numbered]), Header(
        parameters=tuple({each.name: each for _, header in numbered for each in header.parameters}.values()),
        constraints=tuple(each for _, header in numbered for each in header.constraints),
        defines={name: each for _, header in numbered for name, each in header.defines.items()},
        steps=tuple(replace(each, arguments=said.arguments) for each, said in zip(launched, steps, strict=True)),
        mark="#",
    )


def _written_of_several(subject: Subject, launch: Header) -> Made:
    (entry,) = launch.entries
    try:
        return _written(replace(subject, entry=entry, header=launch))
    except Unfit as unfit:
        raise Unfit(f"{entry}: {unfit.reason}") from unfit


def _written(subject: Subject) -> Made:
    """The function of a kernel that is launched once, and its header."""
    refuse_aliases(subject)
    reasons: list[Unfit] = []
    clash: Unfit | None = None
    for write, form in _attempts(subject):
        try:
            made = write(form())
        except Unfit as unfit:
            reasons.append(unfit)
            continue
        try:
            return _apart(subject, *made)
        except Unfit as unfit:
            clash = clash or unfit
    raise clash or _telling(subject, reasons)


def _numbered(subject: Subject, made: Made, number: int, *, is_alone: bool) -> Made:
    """One of several kernels, with names of its own for its parameters, and for itself unless it `is_alone`.

    Raises:
        Unfit: something else has such a name.
    """
    text, header = made
    parameters = (each.name for each in header.parameters if each.name not in OPTIONS)
    names = {name: f"{name}_{number}" for name in (*parameters, *header.defines)}
    names |= {} if is_alone else {header.entries[0]: f"{header.entries[0]}_{number}"}
    taken = {*re.findall(r"\w+", text), *_problem_names(subject)}
    if met := sorted(taken.intersection(names.values())):
        raise Unfit(f"something is called {met[0]}, which is a name of the kernels in Triton")
    text, header = _renamed(made, names)
    limits = tuple(replace(each, name=f"{each.name} {number}") for each in header.constraints)
    return text, replace(header, constraints=limits)


def _problem_names(subject: Subject) -> set[str]:
    return {each.name for each in subject.problem.arguments}.union(*(each.sizes for each in subject.problem.workloads))


def _apart(subject: Subject, text: str, header: Header) -> Made:
    """The same with other names for parameters whose names the problem has; Triton's own options are left out there.

    Raises:
        Unfit: a number of the problem has such a name, which the launch may say in both meanings.
    """
    problem = subject.problem
    taken = _problem_names(subject)
    kept = tuple(each for each in header.parameters if each.name not in taken & {*OPTIONS})
    own = {*(each.name for each in kept), *header.defines} & taken
    if len(kept) == len(header.parameters) and not own:
        return text, header
    scalars = {each.name for each in problem.arguments if each.role == "scalar"}
    if met := sorted(own & scalars.union(*(each.sizes for each in problem.workloads))):
        raise Unfit(f"a size is called {met[0]}, which is a parameter of the kernel in Triton")
    names = {each.name for each in header.parameters} - {each.name for each in kept}
    limits = tuple(each for each in header.constraints if not names & each.expression.names)
    return _renamed((text, replace(header, parameters=kept, constraints=limits)), {each: f"{each}_OWN" for each in own})


def _renamed(made: Made, names: Mapping[str, str]) -> Made:
    """The same with other names for parameters, for constants of its launch, or for itself."""

    def renamed(said: str) -> str:
        return _WORD.sub(lambda found: names.get(found[0], found[0]), said)

    text, header = made
    (step,) = header.steps
    return renamed(text), replace(
        header,
        parameters=tuple(replace(each, name=renamed(each.name)) for each in header.parameters),
        constraints=tuple(
            replace(each, expression=Expression.parse(renamed(each.expression.text))) for each in header.constraints
        ),
        defines={renamed(name): each for name, each in header.defines.items()},
        steps=(launch_step(renamed(step.entry), tuple(renamed(each.text) for each in step.grid), ()),),
    )


def _telling(subject: Subject, reasons: list[Unfit]) -> Unfit:
    """The reason that says where: the first with a line; else the first, and where threads meet or it starts."""
    found = next((each for each in reasons if each.reason.startswith("line ")), None)
    if found is not None:
        return found
    function = subject.analysis.function
    calls = (each for each in nodes.walk(function.body) if isinstance(each, nodes.Call))
    met = next((each.place for each in calls if barrier_scope(each.function) is not None), function.name_place)
    return Unfit(f"line {met.span.line(subject.source)}: {reasons[0].reason}")


def _attempts(subject: Subject) -> Iterator[tuple[Callable[[Subject], Made], Callable[[], Subject]]]:
    """Ways to write a kernel, each with the form of it that is written, the plainest first."""
    forms = [subject, *([subject.normal] if subject.normal is not None and subject.normal is not subject else [])]
    for each in forms:
        yield _threads, partial(_as_it_is, each)
        yield _threads, partial(plain_subject, each)
    for each in forms:
        yield _threads, partial(_without_shared, _staged_sums, each)
    for each in forms:
        for turned in (_as_it_is, one_warp_a_block):
            for is_free in (True, False):
                yield partial(_rows, is_free=is_free), partial(_outlined, turned, each)
    for each in forms:
        yield _tree_rows, partial(_as_it_is, each)
    for each in forms:
        yield _threads, partial(by_global_places, each)
    for each in forms:
        yield _threads, partial(_staged_once, each)
        yield _threads, partial(_without_shared, _staged_once, each)
    for each in forms:
        for staged in (_as_it_is, _staged_once):
            yield _threads, partial(_of_single_places, staged, _as_it_is, each)
            yield _threads, partial(_of_single_places, staged, swapped, each)


def _staged_once(subject: Subject) -> Subject:
    """The kernel without shared memory, where threads meet outside of loops alone."""
    loops = (each for each in nodes.walk(subject.analysis.function.body) if isinstance(each, nodes.Loop))
    for each in (inner for loop in loops for inner in nodes.walk(loop)):
        if isinstance(each, nodes.Call) and barrier_scope(each.function) is not None:
            raise Unfit("its threads meet in a loop")
    return direct(subject)


def _staged_sums(subject: Subject) -> Subject:
    """The kernel without tiles in shared memory, where its sums end with what is summed, whatever its sizes are."""
    try:
        made = direct(by_two_axes(subject))
    except Unfit as unfit:  # what others refuse for says more
        raise Unfit("it does more with tiles than to copy and join them") from unfit
    if made.header.constraints != subject.header.constraints:
        raise Unfit("without its tiles it holds for some sizes alone")
    chosen = (each for each in nodes.walk(made.analysis.function.body) if isinstance(each, nodes.Conditional))
    if any(each.condition.place.span.text(made.source) not in subject.source for each in chosen):
        raise Unfit("its tiles hold numbers beside what they are copied from")
    return made


def _as_it_is(subject: Subject) -> Subject:
    return subject


def _without_shared(form: Callable[[Subject], Subject], subject: Subject) -> Subject:
    return by_global_places(form(subject))


def _of_single_places(
    staged: Callable[[Subject], Subject], turned: Callable[[Subject], Subject], subject: Subject
) -> Subject:
    return by_global_places(turned(one_place_a_thread(staged(subject))))


def _outlined(turned: Callable[[Subject], Subject], subject: Subject) -> Subject:
    return outlined(turned(subject))[0]


# Threads that do not meet


def _threads(subject: Subject) -> Made:
    """Each program does a block of the threads' places, and elements of their loops in tiles."""
    require_independent(subject)
    places = places_of(subject)
    if any(each.loop is not None or not each.atom.startswith("global.") for each in places.axes):
        raise Unfit("a thread walks several places, or asks for its place in its block")
    along = {each.atom.removeprefix("global."): each for each in places.axes}
    covered = dict(zip(AXES, extents(only_shape(subject)), strict=True))
    if any(
        axis not in along and not (is_number(each.grid, 1) and is_number(each.block, 1))
        for axis, each in covered.items()
    ):
        raise Unfit("several threads do the same")
    _require_plain(subject)
    has_loops = any(isinstance(each, nodes.Loop) for each in nodes.walk(subject.analysis.function.body))
    for kind in ("dots", "tiles") if has_loops else ():
        try:
            return _threads_in(subject, along, kind)
        except Unfit:
            continue
    return _threads_in(subject, along, "")


def _require_plain(subject: Subject) -> None:
    if subject.analysis.function.template_parameters:
        raise Unfit("it is a template")


def _threads_in(subject: Subject, along: dict[str, Axis], kind: str) -> Made:
    covered = dict(zip(AXES, extents(only_shape(subject)), strict=True))
    wide = _has_wide_places(subject)
    ends = _ends(subject, along)
    has_y = "y" in along and ("y" in ends or is_guarded(subject, along["y"]))
    has_tiles = kind == "tiles"
    if kind == "dots" and not has_y:
        raise Unfit("its output has no rows and columns")
    extents_ = (*(("BLOCK_Y",) if has_y else ()), "BLOCK", *(("TILE",) if has_tiles else ()))
    places = {axis: frozenset((index,)) if (index < 2 and has_y) or axis == "x" else frozenset[int]()
              for axis, index in (("x", int(has_y)), ("y", 0 if has_y else 9), ("z", 9)) if axis in along}  # fmt: skip
    layout = Layout(
        "threads", extents_, places, {axis: number(each.block) for axis, each in covered.items()},
        {axis: each.total for axis, each in along.items()}, len(extents_) - 1 if has_tiles else None,
        tuple((f"in_{axis}", places[axis]) for axis in ends), is_wide=wide, has_dots=kind == "dots",
    )  # fmt: skip
    lines, names, writer = body_text(subject, layout, {}, _LOOPS, {})
    if kind and not any("TILE" in line for line in lines):
        raise Unfit("no loop of it is walked in tiles")
    setup = [f"{PLACES[axis]} = {_place_line(layout, axis, index)}" for index, axis in enumerate(AXES) if axis in along]
    setup += [f"in_{axis} = {PLACES[axis]} < {end}" for axis, end in ends.items()]
    last = max(along)
    grid = tuple(_programs(along[axis].total if axis in along else "1", layout, axis) for axis in AXES if axis <= last)
    if layout.has_dots:
        return _ended(_made(subject, layout, writer, ([*setup, *lines], names), list(_DOT), grid), ends, along)
    parameters = [Parameter("BLOCK", _blocks(layout), 256 if len(extents_) == 1 else 16, "places of a program")]
    if has_y:
        parameters.append(Parameter("BLOCK_Y", (1, 2, 4, 8, 16, 32, 64), 1 if has_tiles else 4, "places along y"))
    return _ended(_made(subject, layout, writer, ([*setup, *lines], names), parameters, grid), ends, along)


def _ends(subject: Subject, along: Mapping[str, Axis]) -> dict[str, str]:
    """By axis along which nothing keeps places behind the end from touching memory, a constant that says where it is.

    A launch has no such places, where a block has one thread or its threads divide what there is; blocks of programs
    may.
    """
    size = {axis: each.block for axis, each in zip(AXES, extents(only_shape(subject)), strict=True)}
    asked = [axis for axis in ("x", "y") if axis in along and (axis == "x" or not is_number(size[axis], 1))]
    return {axis: f"END_{axis.upper()}" for axis in asked if not is_guarded(subject, along[axis])}


def _ended(made: Made, ends: Mapping[str, str], along: Mapping[str, Axis]) -> Made:
    return made[0], replace(made[1], defines={end: expressions((along[axis].total,))[0] for axis, end in ends.items()})


def _blocks(layout: Layout) -> tuple[int, ...]:
    if layout.tile_axis is None:
        return (16, 32, 64, 128, 256, 512, 1024, 2048, 4096) if len(layout.extents) > 1 else (128, 256, 512, 1024, 2048,
                                                                                             4096)  # fmt: skip
    return 1, 2, 4, 8, 16, 32, 64, 128, 256


def _place_line(layout: Layout, axis: str, index: int) -> str:
    text = f"tl.program_id({index})" + (".to(tl.int64)" if layout.is_wide else "")
    (along,) = layout.places[axis] or (None,)
    if along is None:
        return text
    size = layout.extents[along]
    return f"{text} * {size} + {layout.along(f'tl.arange(0, {size})', along)}"


def _programs(total: str, layout: Layout, axis: str) -> str:
    along = layout.places.get(axis)
    return f"ceil_div({total}, {layout.extents[next(iter(along))]})" if along else total


def _has_wide_places(subject: Subject) -> bool:
    """Whether the thread's number is kept in 64 bits somewhere."""
    declared = [each for each in nodes.walk(subject.analysis.function.body) if isinstance(each, nodes.Declarator)]
    place = {each.name for each in subject.analysis.facts.thread_indices}
    kinds = [dtype_of_c_type(each.c_type, subject.language) for each in declared if each.name in place]
    return any(each is not None and each.item_bytes == 8 for each in kinds)


# Blocks whose threads join their values


def _tree_rows(subject: Subject) -> Made:
    """The same, where threads join several values each in trees."""
    plain, names = with_trees(subject)
    joined, _ = outlined(plain)
    text, header = _rows(joined, is_free=False, trees=names)
    return "\n\n".join([*(function_text(joined, each) for each in names), text]), header


def _rows(subject: Subject, *, is_free: bool, trees: tuple[str, ...] = ()) -> Made:
    """Each program does some blocks, with all their threads."""
    _require_plain(subject)
    shape = dict(zip(AXES, extents(only_shape(subject)), strict=True))
    size = number(shape["x"].block)
    if size is None or any(not is_number(shape[axis].block, 1) for axis in ("y", "z")):
        raise Unfit("its blocks are no rows of a known number of threads")
    if not is_free and size & (size - 1):
        raise Unfit(f"a block has {size} threads, and tiles have powers of two")
    joins = _joins(subject, size)
    layout = Layout(
        "rows", ("ROWS", "TILE" if is_free else str(size)), {}, {"x": size, "y": 1, "z": 1},
        {"row": shape["x"].grid}, 1, ((("in_grid"), frozenset((0,))),), is_free, _has_wide_places(subject),
    )  # fmt: skip
    lines, names, writer = body_text(subject, layout, joins, _LOOPS, dict.fromkeys(trees, write_tree))
    extent = layout.extents[1]
    wide = ".to(tl.int64)" if layout.is_wide else ""
    setup = [
        f"row = tl.program_id(0){wide} * ROWS + {layout.along('tl.arange(0, ROWS)', 0)}",
        f"lane = {layout.along(f'tl.arange(0, {extent})', 1)}",
        "in_grid = row < GRID",
        *(f"{PLACES[axis]} = tl.program_id({index})" for index, axis in enumerate(AXES[1:], 1)
          if not is_number(shape[axis].grid, 1)),
    ]  # fmt: skip
    grids = [shape[axis].grid for axis in AXES]
    grid = (f"ceil_div({grids[0]}, ROWS)", *grids[1:])
    while len(grid) > 1 and grid[-1] == "1":
        grid = grid[:-1]
    parameters = [Parameter("ROWS", (1, 2, 4, 8, 16, 32), 1, "blocks of the source that a program does")]
    made = _made(subject, layout, writer, ([*setup, *lines], names), parameters, grid)
    return made[0], replace(made[1], defines={"GRID": expressions((grids[0],))[0]})


def _joins(subject: Subject, size: int) -> dict[Span, Operation]:
    found = joining_calls(subject.analysis.tree, subject.analysis.function, size)
    if any(is_stored for _, _, is_stored in found):
        raise Unfit("a function stores what the threads of a block join")
    return {call.place.span: operation for call, operation, _ in found}


# The file


def _made(
    subject: Subject,
    layout: Layout,
    writer: Writer,
    text: tuple[list[str], dict[str, str]],
    parameters: list[Parameter],
    grid: tuple[str, ...],
) -> Made:
    lines, names = text
    constants = [each for each in layout.extents if not each.isdigit()] + (["TILE"] if layout.has_dots else [])
    has_tiles = "TILE" in layout.extents
    constraints = []
    if has_tiles:
        parameters.append(Parameter("TILE", (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192), 256,
                                    "elements of a row that are taken together"))  # fmt: skip
    if any("WHOLE" in line for line in lines):
        constants.append("WHOLE")
        parameters.append(Parameter("WHOLE", (0, 1), 0, "1: rows fit into one tile, and are loaded once"))
        limits = list(dict.fromkeys(writer.bounds))
        constraints += [Constraint(f"whole {index}", Expression.parse(f"WHOLE == 0 or TILE >= {limit}"))
                        for index, limit in enumerate(limits, 1)]  # fmt: skip
    parameters.append(_WARPS)
    if any(line.lstrip().startswith("for ") for line in lines):
        parameters.append(_STAGES)
    product = " * ".join(layout.extents)
    if len(layout.extents) > 1:
        constraints.append(Constraint("registers", Expression.parse(f"{product} <= {_MOST} * 32 * num_warps")))
    constants += [each for each in ("GRID", "END_X", "END_Y") if any(each in line for line in lines)]
    entry = names_in_triton((subject.analysis.function.name, *names.values()))[subject.analysis.function.name]
    step = launch_step(entry, grid, ())
    header = Header(parameters=tuple(parameters), constraints=tuple(constraints), defines={}, steps=(step,), mark="#")
    return _function(entry, lines, list(names.values()), constants), header


def _function(entry: str, body: list[str], names: list[str], constants: list[str]) -> str:
    arguments = ", ".join([*names, *(f"{each}: tl.constexpr" for each in constants)])
    return "\n".join(["@triton.jit", f"def {entry}({arguments}):", *(f"    {line}" for line in body), ""])


def _file(functions: Iterable[str]) -> str:
    """With what they use beside Triton's language."""
    text = "\n\n".join(functions)
    library = "from triton.language.extra import libdevice\n" if re.search(r"\blibdevice\.", text) else ""
    helper = "@triton.jit\ndef multiplied(one, other):\n    return one * other\n\n\n"
    uses_helper = re.search(r"\bmultiplied\b", text) is not None
    return f"import triton\nimport triton.language as tl\n{library}\n\n{helper if uses_helper else ''}{text}"
