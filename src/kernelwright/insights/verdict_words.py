"""The verdict of a run in words: the sentence, why a baseline is kept, and what the proof behind it does not cover.

Words follow the verdict's kind and interval (`results/verdict.py`); none of them looks at samples or bounds again.
"""

from __future__ import annotations

from collections.abc import Iterator

from kernelwright.errors import ModelBudgetSpent, StoreError
from kernelwright.evaluate.data.freshness import SAME_INPUTS
from kernelwright.evaluate.statistics import ConfidenceInterval, least_rounds
from kernelwright.evaluate.words import (
    ASSEMBLY_ALLOWED,
    ORIGINAL_IS_REFERENCE,
    LooseTolerance,
    bounds_text,
    factor_text,
    interval_text,
)
from kernelwright.llm.recorded import FILE_NAME, read_exchanges
from kernelwright.results.optimize_result import OptimizeResult
from kernelwright.results.tune_result import TuneResult
from kernelwright.results.verdict import Kind, Verdict
from kernelwright.store.event import RunStarted
from kernelwright.store.view import RunView

AT_LIMIT = 0.9
"""From this part of the measured ceiling on, a kernel is said to be at its limit: the ceiling is not more exact."""

_LEFT_OUT = "no candidate is judged on "
"""How a note begins, or goes on, that tells of data on which nothing was judged."""


def verdict_text(result: TuneResult) -> str:
    """The verdict on a search."""
    return _sentence(result.verdict, result.view)


def tree_verdict_text(result: OptimizeResult) -> str:
    """The verdict on a tree of structures; where the baseline is kept, with why."""
    verdict = result.verdict
    if verdict.kind is Kind.NOTHING or (verdict.kind is Kind.PROVISIONAL and verdict.provisional is None):
        return "Nothing was measured; nothing to recommend."
    told = _sentence(verdict, result.view)
    if not verdict.keeps_baseline:
        return told
    return f"{told.removesuffix('.')}, so keep the baseline. {kept_because(result)}"


def _sentence(verdict: Verdict, view: RunView) -> str:
    """The verdict in one sentence; no claim without an interval that lies above 1, of rounds enough."""
    told = interval_text(verdict.speedup)
    match verdict.kind:
        case Kind.GAIN:
            return f"{told} as fast as the baseline, with 95% confidence over all finalists."
        case Kind.SOME if verdict.partial is not None:
            return f"No gain over all workloads: {told}. But {verdict.partial.words}."
        case Kind.ITSELF:
            return f"No gain: the best configuration is the baseline itself, measured {told}."
        case Kind.TOO_FEW:
            return f"No claim: {told} lies above 1, but {rounds_words(verdict)}."
        case Kind.OPEN:
            return f"No significant gain: {told} contains 1{unclaimed_words(verdict)}."
        case Kind.SLOWER:
            return f"No gain: {told} lies below 1{unclaimed_words(verdict)}."
        case Kind.NO_TIME:
            return f"Not enough budget to compare: no claim.{_unconfirmed(verdict)}"
        case Kind.PROVISIONAL if verdict.provisional is not None:
            found = factor_text(verdict.provisional)
            return f"Best so far {found} (provisional: not compared side by side with the baseline)."
        case Kind.KEPT:
            return "No gain: nothing that was tried stood to be compared with the baseline."
    return _nothing(view)


def claim_text(result: TuneResult) -> str:
    """The verdict as a clause, with the interval that it rests on: what an exported file says of itself."""
    is_allowed = any(note.text.startswith(ASSEMBLY_ALLOWED) for note in result.view.notes)
    return f"{_clause(result.verdict)}{f'; {ASSEMBLY_ALLOWED}' if is_allowed else ''}"


def _clause(verdict: Verdict) -> str:
    interval = verdict.speedup
    if interval is None:
        if verdict.provisional is None:
            return "nothing won"
        found = factor_text(verdict.provisional, times="")
        return f"about {found} times the baseline's speed: an estimate of the search, not compared beside the baseline"
    measured = f"{_level(verdict, interval)} {bounds_text(interval, between=' to ')}"
    speed = f"{factor_text(interval.estimate, times='')} times the baseline's speed"
    told = f"{speed} ({measured}, {counted(verdict.rounds, 'interleaved round')})"
    match verdict.kind:
        case Kind.SOME if verdict.partial is not None:
            return f"no gain over all workloads: {told}; {verdict.partial.words}"
        case Kind.ITSELF:
            return f"no gain: the best configuration is the baseline itself, {told}"
        case Kind.TOO_FEW:
            return f"no claim: {told}; {rounds_words(verdict)}"
        case Kind.OPEN:
            return f"no significant gain: {told}{unclaimed_words(verdict)}"
        case Kind.SLOWER:
            return f"no gain: {told}{unclaimed_words(verdict)}"
    return told


def _level(verdict: Verdict, interval: ConfidenceInterval) -> str:
    """How sure an interval is: the one level that everything names, of all finalists together."""
    if verdict.has_too_few_rounds:
        return f"{100 * interval.confidence:.4g} % interval"
    return "95 % interval" + (f" for all {verdict.finalists} finalists together," if verdict.finalists > 1 else "")


def rounds_words(verdict: Verdict, *, workloads: int = 1) -> str:
    """That there were too few rounds for a claim, over all workloads or on one of so many, and how many one takes."""
    over = counted(verdict.finalists, "finalist")
    over += f" and {workloads} workloads" if workloads > 1 else ""
    are, least = "is" if verdict.rounds == 1 else "are", least_rounds(verdict.finalists * workloads)
    return (
        f"{counted(verdict.rounds, 'round')} {are} too few for a claim over {over}: at least {least} are needed "
        "(--rounds)"
    )


def unclaimed_words(verdict: Verdict) -> str:
    """What more rounds could support, to go on with; empty: nothing."""
    if verdict.has_too_few_rounds:
        return f"; {rounds_words(verdict)}"
    if not verdict.unclaimed:
        return ""
    told = ", ".join(f"on {each.workload} {interval_text(each.speedup)}" for each in verdict.unclaimed)
    return f"; {told} lies above it, but {rounds_words(verdict, workloads=len(verdict.workloads))}"


def _unconfirmed(verdict: Verdict) -> str:
    """What the search found, where that is another one than the baseline."""
    if verdict.provisional is None:
        return ""
    return f" The search's best is about {factor_text(verdict.provisional)}, unconfirmed."


def _nothing(view: RunView) -> str:
    """What became of the configurations of a run without any that could be used."""
    if view.comparison is not None:
        return "Every finalist was rejected in the final comparison; nothing to recommend."
    if view.passed:
        return "No configuration could beat the baseline; those that passed were stopped early. Keep the baseline."
    tried = "No configuration passed" if view.evaluations else "No configuration was tried"
    return f"{tried}; nothing to recommend."


def kept_because(result: OptimizeResult) -> str:
    """Why the baseline is kept: what was tried, and how far the device's limit is."""
    count = len(result.tree) - 1
    tried = f"Tried: {tried_words(count, tried_count(result))}"
    nothing = "Nothing could be changed in it: see `show run` for the reason of each tactic"
    unusable = unusable_words(result)
    if unusable:
        nothing = "Nothing was changed in it"
        count = sum(bool(node.source_blob) for node in result.tree if node.parent is not None)
    parts = [tried if count else nothing, *([unusable] if unusable else [])]
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


def outweighed_words(verdict: Verdict) -> str:
    """Where a gain on some workloads is largest, why it is none over all, what to do; empty: there is none."""
    if verdict.kind is not Kind.SOME or verdict.partial is None:
        return ""
    most = max(verdict.partial.faster, key=lambda each: each.speedup.low)
    slower = [each.workload for each in verdict.partial.verdicts if each.finding == "slower"]
    why = "which other workloads outweigh" if slower else f"but nothing is sure on {', '.join(verdict.partial.others)}"
    return (
        f"on {most.workload} it is {interval_text(most.speedup)}, {why}: the export uses it where it is faster and the "
        "baseline on the others; give those less weight or leave them out if they do not matter"
    )


def caveats(view: RunView) -> tuple[str, ...]:
    """What a verdict must be read with: where checks were loose, or left out, because of the baseline.

    One sentence for each output or kind of data; from the notes that the run recorded when it began.
    """
    return (*_loose(view), *_left_out(view), *_same_inputs(view), *_assembly(view), *_original(view))


def is_caveat(text: str) -> bool:
    """Whether `caveats` has a note whole, so that it need not be told beside a verdict."""
    return text.startswith((SAME_INPUTS, ASSEMBLY_ALLOWED, ORIGINAL_IS_REFERENCE)) or _LEFT_OUT in text


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


def _same_inputs(view: RunView) -> Iterator[str]:
    for note in view.notes:
        if note.text.startswith(SAME_INPUTS):
            yield f"Not proven against kernels that remember: {note.text}."


def _original(view: RunView) -> Iterator[str]:
    note = next((note.text for note in view.notes if note.text.startswith(ORIGINAL_IS_REFERENCE)), "")
    if note:
        yield f"{note[0].upper()}{note[1:]}."


def _assembly(view: RunView) -> Iterator[str]:
    note = next((note.text for note in view.notes if note.text.startswith(ASSEMBLY_ALLOWED)), "")
    if note:
        yield f"{note[0].upper()}{note[1:]}."


def _left_out(view: RunView) -> Iterator[str]:
    for note in view.notes:
        if _LEFT_OUT in note.text:
            text = note.text.strip().rstrip(".")
            yield f"Not checked everywhere: {text}."
