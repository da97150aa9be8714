"""What is said with the verdict of a run: why a baseline is kept, and what the proof behind it does not cover."""

from __future__ import annotations

from collections.abc import Iterator

from kernelwright.engine.optimize_result import OptimizeResult
from kernelwright.engine.result import TuneResult
from kernelwright.errors import ModelBudgetSpent, StoreError
from kernelwright.evaluate.words import LooseTolerance, interval_text
from kernelwright.llm.recorded import FILE_NAME, read_exchanges
from kernelwright.store.event import RunStarted
from kernelwright.store.view import RunView

AT_LIMIT = 0.9
"""From this part of the measured ceiling on, a kernel is said to be at its limit: the ceiling is not more exact."""

_LEFT_OUT = "no candidate is judged on "
"""How a note begins, or goes on, that tells of data on which nothing was judged."""


def kept_because(result: OptimizeResult) -> str:
    """Why the baseline is kept: what was tried, the best of it, and how far the device's limit is.

    Figures are those of the final comparison; without one, only what was tried is told.
    """
    count = len(result.tree) - 1
    tried = f"Tried: {tried_words(count, tried_count(result))}"
    nothing = "Nothing could be changed in it: see `show run` for the reason of each tactic"
    unusable = unusable_words(result)
    if unusable:
        nothing = "Nothing was changed in it"
        count = sum(bool(node.source_blob) for node in result.tree if node.parent is not None)
    parts = [tried if count else nothing, *([unusable] if unusable else [])]
    if result.speedup is not None:
        parts.append(f"the best is {interval_text(result.speedup)}")
    outweighed = outweighed_words(result.compared) if result.winner is None else ""
    if outweighed:
        parts.append(outweighed)
    fraction = result.floor_fraction
    if fraction is not None:
        words = "it is already at its limit, " if fraction >= AT_LIMIT else "it runs at "
        parts.append(f"{words}{ceiling_words(fraction, result.view.started)}")
    return "; ".join(parts) + "."


def unusable_words(result: OptimizeResult) -> str:
    """What came of a model's replies where nothing did: requests without an answer, or only answers of no use."""
    try:
        replies = [each.reply for each in read_exchanges(result.folder / FILE_NAME)[0]] if result.folder else []
    except StoreError:
        return ""
    failed = [each for each in replies if each.failure]
    if failed:
        unasked = ModelBudgetSpent.__name__
        told = [each for each in failed if each.failure != unasked]
        if not told:
            return failed[-1].text
        most = sum(each.failure != unasked for each in replies)
        which = "the one request" if most == 1 else f"{len(told)} of {most} requests"
        return f"{which} to the model came to nothing{', the last' if len(told) > 1 else ''}: {told[-1].text}"
    if replies and len(result.tree) == 1:
        which = "the one reply" if len(replies) == 1 else f"none of the {len(replies)} replies"
        end = "could not be used" if len(replies) == 1 else "could be used"
        return f"{which} of the model {end}: see `show node RUN 0 --replies`"
    return ""


def counted(count: int, noun: str) -> str:
    """`1 structure`, `2 structures`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def tried_words(structures: int, configurations: int) -> str:
    """How much was tried."""
    return f"{counted(structures, 'structure')} and {counted(configurations, 'configuration')}"


def ceiling_words(fraction: float, started: RunStarted) -> str:
    """How far something is from what the device can do; on a CPU, that this is known for one moment only."""
    words = f"{fraction:.0%} of what was measured as this device's ceiling"
    if started.device.get("kind") != "cpu":
        return words
    return f"{words} when this run began (on a CPU that moves with what else the host does)"


def tried_count(result: OptimizeResult) -> int:
    """Evaluations of all structures: their proofs' too, also of those that were never tuned after it."""
    count = 0
    for node in result.tree:
        try:
            count += len(RunView.read(result.node_folder(node.index)).evaluations)
        except StoreError:  # it was refused before anything was run, or its folder is gone
            count += node.tuning.evaluated_count
    return count


def outweighed_words(result: TuneResult) -> str:
    """The workload that gains most where the whole does not, and what to do about it; empty: there is none."""
    if result.is_gain or len(result.workloads) < 2:
        return ""
    gains = [row for row in result.workloads if row.speedup is not None and row.speedup.low > 1]
    if not gains:
        return ""
    most = max(gains, key=lambda row: row.speedup.low if row.speedup else 0.0)
    exported = "the export uses it there and the baseline on the others; " if result.partial is not None else ""
    return (
        f"on {most.workload} it is {interval_text(most.speedup)}, which other workloads outweigh: {exported}give them "
        "less weight or leave them out if that is the one that matters"
    )


def caveats(view: RunView) -> tuple[str, ...]:
    """What a verdict must be read with: where checks were loose, or left out, because of the baseline.

    One sentence for each output or kind of data; from the notes that the run recorded when it began.
    """
    return (*_loose(view), *_left_out(view))


def _loose(view: RunView) -> Iterator[str]:
    found = [each for note in view.notes if (each := LooseTolerance.read(note.text)) is not None]
    for output in dict.fromkeys(each.output for each in found):
        mine = [each for each in found if each.output == output]
        where = ", ".join(dict.fromkeys(each.workload for each in mine))
        times = f"up to {max(each.factor for each in mine):.0f} times"
        yield (
            f"Checked loosely: the tolerance of {output!r} was {times} what its dtype needs (on {where}), because the "
            "baseline is that inexact; candidates may be as wrong as it is. Declare a [tolerance] to be stricter."
        )


def _left_out(view: RunView) -> Iterator[str]:
    for note in view.notes:
        if _LEFT_OUT in note.text:
            text = note.text.strip().rstrip(".")
            yield f"Not checked everywhere: {text}."
