"""Launches as problem files and template headers write them: `[launch]`, or several `[[launch]]` in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelwright.errors import SpecError
from kernelwright.problem.model import LaunchStep

if TYPE_CHECKING:
    from kernelwright.problem.expressions.expression import Expression
    from kernelwright.problem.toml.file import TomlTable

_KEYS = ("entry", "grid", "block", "shared_bytes", "arguments", "cluster", "cooperative", "constants")
_NOT_OF_TRITON = ("block", "shared_bytes", "cluster", "cooperative", "constants")
_HINTS = {
    "global": "write grid, in blocks (work-groups): the global size divided by the block",
    "global_size": "write grid, in blocks (work-groups): the global size divided by the block",
    "local": "write block: threads (work-items) of a block (work-group)",
    "local_size": "write block: threads (work-items) of a block (work-group)",
    "threads": "did you mean 'block'?",
    "blocks": "did you mean 'grid'?",
    "shared": "did you mean 'shared_bytes'?",
    "kernel": "did you mean 'entry'?",
    "args": "did you mean 'arguments'?",
}


def read_steps(table: TomlTable, *, entry: str | None, is_triton: bool = False) -> tuple[LaunchStep, ...]:
    """The launches under `launch` in `table`, in order; empty when there are none.

    Names in their expressions are not checked here: parameters are not known yet.

    Args:
        table: a problem, its `[baseline]`, or a template header.
        entry: the kernel of launches that name none.
        is_triton: whether they are of Triton kernels, whose block follows from `num_warps`; it is left empty.

    Raises:
        SpecError: a key is unknown or missing, or a grid or block has more than three extents.
    """
    tables = table.tables("launch", allow_single=True)
    if tables is None:
        return ()
    if not tables:
        raise table.error("launch", message="launch is an empty list", hint="give grid and block")
    return tuple(_read_step(each, entry, is_triton=is_triton) for each in tables)


def _read_step(table: TomlTable, entry: str | None, *, is_triton: bool) -> LaunchStep:
    table.refuse_unknown(_KEYS, what="a launch", hints=_HINTS)
    for key in _NOT_OF_TRITON if is_triton else ():
        if key in table:
            raise table.error(
                key,
                message=f"{key!r} in the launch of a Triton kernel, whose compiler decides it",
                hint="remove it; num_warps, num_ctas and the like are parameters or defines",
            )
    own_entry = table.text("entry") or entry
    if own_entry is None:
        raise table.missing("entry", expected='entry = "the kernel\'s name", here or at the top of the problem')
    arguments = table.texts("arguments")
    return LaunchStep(
        entry=own_entry,
        grid=_read_extents(table, "grid"),
        block=() if is_triton else _read_extents(table, "block"),
        shared_bytes=table.expression("shared_bytes"),
        arguments=arguments,
        location=table.location,
        cluster=_read_extents(table, "cluster") if "cluster" in table else (),
        is_cooperative=table.flag("cooperative") or False,
        constants=_read_constants(table.table("constants")),
    )


def _read_constants(table: TomlTable | None) -> tuple[tuple[str, str], ...]:
    """`constants = { VARIABLE = "argument" }`."""
    constants = []
    for variable in table or ():
        assert table is not None
        argument = table.text(variable)
        assert argument is not None
        constants.append((variable, argument))
    return tuple(constants)


def _read_extents(table: TomlTable, key: str) -> tuple[Expression, ...]:
    extents = table.expressions(key)
    if extents is None:
        what = {"grid": "blocks (work-groups)", "cluster": "blocks of a cluster"}.get(
            key, "threads (work-items) of a block"
        )
        raise table.missing(key, expected=f'{key} = ["..."], one to three numbers of {what}, x first')
    if not 1 <= len(extents) <= 3:
        raise SpecError(
            f"{table.label(key)} has {len(extents)} extents, expected 1 to 3",
            location=table.value_location(key),
        )
    return extents
