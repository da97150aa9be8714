"""What the page says about dispatch: which config serves which sizes, what that loses, and what it was measured on."""

from __future__ import annotations

from dataclasses import dataclass

from kernelwright.dispatching.table import ONE_CONFIG, DispatchTable, dispatch_table, mean_and_worst, recorded_timings
from kernelwright.errors import KernelwrightError
from kernelwright.report.charts import value_text
from kernelwright.report.source import FrozenProblem
from kernelwright.report.svg import number
from kernelwright.report.text import clean
from kernelwright.store.view import RunView


@dataclass(frozen=True, slots=True)
class _ServedShape:
    """One measured shape."""

    name: str
    sizes: str
    is_tuned: bool
    served_by: str
    baseline_ms: float
    best_ms: float
    loss: str
    """What the config that serves it loses against the best there."""


@dataclass(frozen=True, slots=True)
class _DispatchSection:
    """The section, as plain data."""

    lead: str
    configs: tuple[tuple[str, str], ...] = ()
    """Name and values."""
    rule: str = ""
    shapes: tuple[_ServedShape, ...] = ()
    note: str = ""


def no_table(why: str) -> _DispatchSection:
    """The section of a run that has no table."""
    return _DispatchSection(why)


def dispatch_section(view: RunView, problem: FrozenProblem) -> _DispatchSection:
    """The table of a run; why there is none, where there is none."""
    if problem.subject is None:
        return no_table(f"The frozen problem cannot be read, so there is no table: {problem.complaint}.")
    timings = recorded_timings(view, problem.subject.problem)
    if not timings.configs or not timings.shapes:
        return no_table("Nothing was measured that a table could be made of.")
    try:
        table = dispatch_table(view, problem.subject)
    except KernelwrightError as error:
        return no_table(f"No table: {clean(error.message)}.")
    return _DispatchSection(
        lead=_lead(table),
        configs=tuple((table.label(place), _values(table, place)) for place in range(len(table.configs))),
        rule=clean("\n".join(table.rule_lines())),
        shapes=tuple(_shapes(table)),
        note=_note(table),
    )


def _lead(table: DispatchTable) -> str:
    count = sum(config is not None for config in table.configs)
    if table.is_alone:
        return "One configuration was measured; there is no other to choose."
    configs = "One configuration serves" if count == 1 else f"{count} configurations serve"
    lead = f"{configs} every measured shape; none is shown to lose more than {100 * table.loss:g}\u00a0% there"
    losses = [*table.losses(tuned=True), *table.losses(tuned=False)]
    if max(losses, default=0.0) > table.loss:
        return f"{lead}: what looks like a larger loss below is not told from noise."
    return f"{lead}."


def _values(table: DispatchTable, place: int) -> str:
    config = table.configs[place]
    return "" if config is None else clean(" ".join(f"{name}={value_text(value)}" for name, value in config.items()))


def _shapes(table: DispatchTable) -> list[_ServedShape]:
    found = []
    for shape in table.shapes:
        place = next((k for k in range(len(table.configs)) if shape in table.served(k)), None)
        found.append(
            _ServedShape(
                name=clean(shape.name),
                sizes=clean(", ".join(f"{name} = {value}" for name, value in shape.sizes.items())),
                is_tuned=shape.is_tuned,
                served_by=table.label(place) if place is not None else "the baseline",
                baseline_ms=shape.baseline_ms,
                best_ms=shape.best_ms,
                loss=f"{100 * shape.losses[place]:.2g}\u00a0%" if place is not None and not table.is_alone else "–",
            )
        )
    return found


def _note(table: DispatchTable) -> str:
    if not table.is_probed:
        return (
            "Only the tuned workloads were measured; kernelwright dispatch measures shapes between and beyond them. "
            "kernelwright export writes the table as C, as Python and as JSON."
        )
    if table.is_alone:
        return f"{ONE_CONFIG.capitalize()}."
    parts = []
    for words, losses in (("tuned workloads", table.losses(tuned=True)), ("other shapes", table.losses(tuned=False))):
        if found := mean_and_worst(losses):
            mean, worst = (f"{number(100 * each, 2)}\u00a0%" for each in found)
            parts.append(f"{words} lose {mean} on average, {worst} at most")
    if found := mean_and_worst(table.held_out_losses):
        parts.append(f"shapes that the rule was not made from lose {number(100 * found[0], 2)}\u00a0% on average")
    return "; ".join(parts).capitalize() + "."
