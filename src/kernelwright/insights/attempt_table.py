"""What the attempts of finished runs came to, as a table for people: rates, cost, and what went wrong most often.

```
table = attempt_table([Path("runs/softmax-1"), Path("runs/stencil-1")])
print(table.markdown())
```
Every figure is counted from the run folders: the tree's events, the final comparison, the recorded replies.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelwright.agent.model.agent import AGAIN, REFUSED
from kernelwright.errors import StoreError
from kernelwright.insights.attempts import AttemptFigures, attempts_of
from kernelwright.llm.chain import OUT_OF_TIME
from kernelwright.llm.recorded import FILE_NAME, read_exchanges
from kernelwright.optimization.agent import account_of
from kernelwright.optimization.settings import OptimizeSettings
from kernelwright.problem.outcome import Failed
from kernelwright.results.optimize_result import OptimizeResult, is_optimize_run
from kernelwright.store.view import RunView
from kernelwright.tree.model import Tree
from kernelwright.tree.moves import attempts

NOTICEABLE = 1.05
"""Predicted gains from here on are held against what came of them: less is not seen through the noise of a search."""

MOST_KIND = 90
"""Characters of a kind of mistake."""

_QUOTED = re.compile(r"'[^'\n]{1,80}'|\"[^\"\n]{1,80}\"|`[^`\n]{1,80}`")
_NUMBER = re.compile(r"\b\d[\d.,]*\b")


@dataclass(frozen=True, slots=True)
class _RunAttempts:
    """One run."""

    run: Path
    problem: str
    model: str
    policy: str
    figures: AttemptFigures
    reply_count: int
    sent_back: tuple[str, ...]
    """Complaints that went back with a reply, by kind, in order."""
    failed: tuple[str, ...]
    """Why attempts came to nothing, by kind, in order."""
    promised_count: int
    """Correct attempts that promised a noticeable gain and were measured."""
    slower_count: int
    """The correct ones that were slower than what they were made from."""


@dataclass(frozen=True, slots=True)
class _AttemptTable:
    """Several runs."""

    runs: tuple[_RunAttempts, ...]

    @property
    def mistakes(self) -> tuple[tuple[str, int], ...]:
        """What went wrong in all runs, the most common first, then by name."""
        found: Counter[str] = Counter()
        for run in self.runs:
            found.update(f"reply sent back: {kind}" for kind in run.sent_back)
            found.update(f"attempt failed: {kind}" for kind in run.failed)
            found["a gain was predicted, the search measured a loss"] += run.slower_count
        return tuple(
            sorted(((kind, count) for kind, count in found.items() if count), key=lambda each: (-each[1], each[0]))
        )

    def markdown(self) -> str:
        """Both tables."""
        rows = [_row(each) for each in self.runs]
        if len(self.runs) > 1:
            rows.append(self._total())
        lines = [*_table(_HEADINGS, rows), ""]
        mistakes = [(kind, str(count)) for kind, count in self.mistakes]
        lines += _table(("what went wrong", "times"), mistakes) if mistakes else ["Nothing went wrong."]
        return "\n".join(lines) + "\n"

    def _total(self) -> tuple[str, ...]:
        figures = [each.figures for each in self.runs]
        attempt_count, correct_count = sum(f.attempt_count for f in figures), sum(f.correct_count for f in figures)
        tokens = [f.tokens for f in figures if f.tokens is not None]
        return (
            "all", "", "",
            str(attempt_count),
            _rate(correct_count, attempt_count),
            _mean([f.attempts_to_correct for f in figures]),
            str(sum(f.faster_count for f in figures)),
            _rate(sum(f.repaired_count for f in figures), sum(f.repair_count for f in figures)),
            str(sum(each.reply_count for each in self.runs)),
            str(sum(len(each.sent_back) for each in self.runs)),
            _rate(sum(each.slower_count for each in self.runs), sum(each.promised_count for each in self.runs)),
            f"{sum(tokens):,}" if tokens else "-",
            "",
            "",
        )  # fmt: skip

    def as_data(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "runs": [
                {
                    "run": str(each.run),
                    "problem": each.problem,
                    "model": each.model,
                    "policy": each.policy,
                    "replies": each.reply_count,
                    "sent_back": list(each.sent_back),
                    "failed": list(each.failed),
                    "promised": each.promised_count,
                    "slower_than_promised": each.slower_count,
                    **each.figures.as_data(),
                }
                for each in self.runs
            ],
            "mistakes": dict(self.mistakes),
        }


_HEADINGS = (
    "run", "problem", "model, policy", "attempts", "correct", "first correct at", "faster", "repaired", "replies",
    "sent back", "gain predicted, loss in the search", "tokens", "gain accepted", "tokens per %",
)  # fmt: skip


def attempt_table(runs: Iterable[Path]) -> _AttemptTable:
    """The figures of these runs of `optimize`; a folder that holds runs below it stands for all of them, by name.

    Raises:
        StoreError: there is no run of `optimize`, or one is damaged.
    """
    return _AttemptTable(tuple(_of_run(run) for path in runs for run in _runs_in(Path(path))))


def _runs_in(path: Path) -> Iterator[Path]:
    """The path itself, or every run of `optimize` below it that is not a node of another one."""
    if (path / "events.jsonl").is_file():
        yield path
        return
    found = sorted(each.parent for each in path.rglob("events.jsonl") if each.parent.parent.name != "nodes")
    runs = [each for each in found if is_optimize_run(RunView.read(each))]
    if not runs:
        raise StoreError(f"{path} holds no run of `optimize`", hint="name run folders, or a folder of them")
    yield from runs


def _of_run(run: Path) -> _RunAttempts:
    view = RunView.read(run)
    if not is_optimize_run(view):
        raise StoreError(f"{run} is a run of `tune`, which asks for no structures", hint="name a run of `optimize`")
    result, settings = OptimizeResult(view), OptimizeSettings.from_record(view.started.settings)
    accepted = result.speedup.estimate if result.is_gain and result.speedup is not None else None
    exchanges, _ = read_exchanges(run / FILE_NAME)
    answered = [each for each in exchanges if not each.reply.failure]
    complaints = [each.request.messages[-1].text for each in answered if len(each.request.messages) > 1]
    promised, slower = _promises(result.tree)
    return _RunAttempts(
        run=run,
        problem=view.started.problem_name,
        model=settings.model.partition("@")[0],
        policy=settings.policy,
        figures=attempts_of(result.tree, account=account_of(run), speedup=accepted),
        reply_count=len(answered),
        sent_back=tuple(kind_of(text.removeprefix(REFUSED).removesuffix(AGAIN)) for text in complaints),
        failed=tuple(_failure(node.failure) for node in attempts(result.tree) if node.failure is not None),
        promised_count=promised,
        slower_count=slower,
    )


def _failure(failure: Failed) -> str:
    """Stage and reason; of what a role declined, whether it wrote nothing usable or said that nothing is worth it."""
    if failure.reason != "declined":
        return f"{failure.stage}: {failure.reason}"
    if failure.message.startswith(OUT_OF_TIME):
        return OUT_OF_TIME
    is_useless = any(words in failure.message for words in ("replies could not be used", "cannot be read"))
    return "no reply could be used" if is_useless else "the role gave it up"


def _promises(tree: Tree) -> tuple[int, int]:
    """Correct attempts that promised a noticeable gain, and those of them that came out slower."""
    gains = [
        tree.gain(node.index)
        for node in attempts(tree)
        if node.is_working and (node.predicted_gain or 0.0) >= NOTICEABLE
    ]
    known = [gain for gain in gains if gain is not None]
    return len(known), sum(gain < 1 for gain in known)


def kind_of(complaint: str) -> str:
    """What is wrong with a reply, without the names and numbers of this one."""
    first = complaint.strip().split("\n")[0]
    text = _NUMBER.sub("N", _QUOTED.sub("...", first)).partition(";")[0]
    head, _, rest = text.partition(": ")
    kind = f"{head}: {rest.partition(': ')[0]}" if rest else head
    return kind if len(kind) <= MOST_KIND else kind[: MOST_KIND - 4] + " ..."


def _row(run: _RunAttempts) -> tuple[str, ...]:
    figures = run.figures
    return (
        run.run.name,
        run.problem,
        f"{run.model}, {run.policy}",
        str(figures.attempt_count),
        _rate(figures.correct_count, figures.attempt_count),
        str(figures.attempts_to_correct or "-"),
        str(figures.faster_count),
        _rate(figures.repaired_count, figures.repair_count),
        str(run.reply_count),
        str(len(run.sent_back)),
        _rate(run.slower_count, run.promised_count),
        "-" if figures.tokens is None else f"{figures.tokens:,}",
        "-" if figures.gained_percent is None else f"{figures.gained_percent:,.0f} %",
        "-" if figures.tokens_per_percent is None else f"{figures.tokens_per_percent:,.0f}",
    )


def _rate(part: int, whole: int) -> str:
    return f"{part} of {whole}" if whole else "-"


def _mean(values: Sequence[int | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{sum(known) / len(known):.1f} (mean)" if known else "-"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """As Markdown."""
    told = [[cell.replace("|", "\\|") for cell in row] for row in (headings, *rows)]
    lines = ["| " + " | ".join(row) + " |" for row in told]
    return [lines[0], "|" + "---|" * len(headings), *lines[1:]]
