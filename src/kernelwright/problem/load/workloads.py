"""The workloads of a problem file: named sizes, defaults, weights."""

from __future__ import annotations

import graphlib
from dataclasses import replace
from typing import TYPE_CHECKING

from kernelwright.errors import SpecError
from kernelwright.problem.checks import check_expression, check_name, evaluate_extent
from kernelwright.problem.model import Workload
from kernelwright.problem.toml.file import TomlTable, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kernelwright.problem.expressions.expression import Expression

_OWN_KEYS = ("name", "weight")
_MAX_SIZE = 2**63 - 1


def read_workloads(root: TomlTable) -> tuple[Workload, ...]:
    """The `[[workloads]]` with the defaults and derived sizes of `[sizes]`, all with the same size names.

    `[sizes]` gives a default (an integer) that workloads may override, or a size that is computed from others
    (an expression).

    Raises:
        SpecError: a wrong value, a repeated name, sizes that differ between workloads, a circle in `[sizes]`.
    """
    tables = root.tables("workloads")
    if tables is None:
        raise root.missing("workloads", expected='[[workloads]] with one line a size, like "n = 4096"')
    if not tables:
        raise root.error("workloads", message="workloads is empty", hint="give at least one [[workloads]]")
    defaults, derived = _read_sizes(root.table("sizes"))
    workloads = [_read_workload(table, defaults, derived) for table in tables]
    _refuse_differences(tables, workloads)
    _refuse_repeated_names(tables, workloads)
    names = tuple(workloads[0].sizes)
    ordered = [replace(each, sizes={name: each.sizes[name] for name in names}) for each in workloads]
    order = _derivation_order(derived)
    return tuple(_derive(workload, derived, order) for workload in ordered)


def _read_sizes(table: TomlTable | None) -> tuple[Mapping[str, int], Mapping[str, Expression]]:
    defaults: dict[str, int] = {}
    derived: dict[str, Expression] = {}
    for name in table or ():
        assert table is not None
        check_name(name, what="size", location=table.key_location(name))
        if isinstance(table.data[name], str):
            expression = table.expression(name)
            assert expression is not None
            derived[name] = expression
        else:
            defaults[name] = _read_size(table, name)
    return defaults, derived


def _read_workload(table: TomlTable, defaults: Mapping[str, int], derived: Mapping[str, Expression]) -> Workload:
    own: dict[str, int] = {}
    for name in table:
        if name in _OWN_KEYS:
            continue
        check_name(name, what="size", location=table.key_location(name))
        if name in derived:
            raise SpecError(
                f"size {name!r} is computed in [sizes], so a workload cannot set it",
                hint="remove one of the two",
                location=table.key_location(name),
            )
        own[name] = _read_size(table, name)
    weight = table.number("weight")
    if weight is not None and weight <= 0:
        raise table.error(
            "weight",
            message=f"weight is {weight!r}, expected a number above 0",
            hint="remove the workload to leave it out",
        )
    given_name = table.text("name")
    if given_name is not None and (not given_name.strip() or not given_name.isprintable()):
        message = f"{given_name!r} is no name for a workload: it must be visible text"
        raise table.error("name", message=message)
    default_name = ",".join(f"{size}={value}" for size, value in own.items()) or "default"
    sizes = {**{size: value for size, value in defaults.items() if size not in own}, **own}
    return Workload(given_name or default_name, sizes, 1.0 if weight is None else float(weight), table.location)


def _read_size(table: TomlTable, name: str) -> int:
    value = table.data[name]
    if isinstance(value, bool) or not isinstance(value, int):
        near = did_you_mean(name, _OWN_KEYS)
        error = table.wrong_type(name, value=value, expected=f"a positive integer, since {name!r} is a size")
        error.hint = near
        raise error
    if not 1 <= value <= _MAX_SIZE:
        raise table.error(name, message=f"size {name!r} is {value}, expected an integer from 1 to 2^63 - 1")
    return value


def _refuse_differences(tables: Sequence[TomlTable], workloads: Sequence[Workload]) -> None:
    first = workloads[0]
    for table, workload in zip(tables, workloads, strict=True):
        for name in workload.sizes:
            if name not in first.sizes:
                hint = did_you_mean(name, (*first.sizes, *_OWN_KEYS))
                raise SpecError(
                    f"workload {workload.name!r} has a size {name!r} that the first workload does not have",
                    hint=hint or "give every workload the same sizes, or a default in [sizes]",
                    location=table.key_location(name),
                )
        missing = [name for name in first.sizes if name not in workload.sizes]
        if missing and (near := did_you_mean(missing[0], _OWN_KEYS)):
            raise SpecError(
                f"unknown key {missing[0]!r}: only some workloads have a size of that name",
                hint=near,
                location=tables[0].key_location(missing[0]),
            )
        if missing:
            raise SpecError(
                f"workload {workload.name!r} has no size {missing[0]!r}, which the first workload has",
                hint="give every workload the same sizes, or a default in [sizes]",
                location=table.location,
            )


def _refuse_repeated_names(tables: Sequence[TomlTable], workloads: Sequence[Workload]) -> None:
    seen: set[str] = set()
    for table, workload in zip(tables, workloads, strict=True):
        if workload.name in seen:
            raise SpecError(
                f"two workloads are called {workload.name!r}",
                hint='give each its own name = "..."' if "name" in table else "remove one, or give it a name",
                location=table.value_location("name"),
            )
        seen.add(workload.name)


def _derivation_order(derived: Mapping[str, Expression]) -> tuple[str, ...]:
    graph = {name: expression.names & derived.keys() for name, expression in derived.items()}
    try:
        return tuple(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        circle: list[str] = error.args[1]
        raise SpecError(
            "sizes are computed in a circle: " + " needs ".join(reversed(circle)),
            hint="give one of them a number",
            location=derived[circle[0]].location,
        ) from None


def _derive(workload: Workload, derived: Mapping[str, Expression], order: Sequence[str]) -> Workload:
    sizes = dict(workload.sizes)
    for name in order:
        what = f"size {name!r}"
        check_expression(derived[name], sizes, what=what)
        sizes[name] = evaluate_extent(derived[name], sizes, what=what, workload=workload)
    return replace(workload, sizes=sizes)
