"""The parts of the prompts of recorded runs: how long each is, and how many replies rest on it; predictions, too.

```
python benchmarks/prompts.py RUN... [--now] [--predictions]
```
A reply rests on a part when its reasons say a figure (or a name with a digit) that stands in that part of its prompt
alone; it writes by a part when its code has a name that stands there alone, which may be chance, so only a zero says
anything. `--now` replays the runs and takes the prompts as this version words them. `--predictions`
holds predicted against measured gains, each corrected by what the other runs and the run's own earlier steps came to.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelwright.agent.model.context import CHARACTERS_PER_TOKEN
from kernelwright.agent.model.replies import fenced_blocks
from kernelwright.llm.base import ChatRequest, Reply
from kernelwright.llm.recorded import FILE_NAME, Exchange, ReplayedModel, read_exchanges
from kernelwright.optimization.optimize import replay_optimize
from kernelwright.store.view import RunView
from kernelwright.tree.beliefs import (
    AS_PREDICTED,
    BELIEF,
    LARGE_PROMISE,
    MODEL_BELIEF,
    MODEL_BELIEF_WEIGHT,
    MOST_TRUTH,
    USEFUL,
)
from kernelwright.tree.model import Tree

FIGURE = re.compile(r"[A-Za-z_]*\d[\w.]*\w")
NAME = re.compile(r"[A-Za-z_]\w{3,}")
COMMENT = re.compile(r"//.*")
TITLE = re.compile(r"## (.*)")
VARYING = re.compile(r"`[^`]*`|\bnode \d+|\d+")
HEADS: Mapping[str, str] = {
    "Your role": "the role's instruction",
    "The source": "the source",
    "The kernel:": "the source",
    "Its header": "its header",
    "Its launch": "its header",
    "Answer with": "the form of the answer",
}
"""Lines that begin a part behind the context, by how they start."""


def parts_of(request: ChatRequest) -> dict[str, str]:
    """The prompt by part, system text first; what went back with a complaint is one part."""
    found: dict[str, list[str]] = {"system": [request.system]}
    part, is_data = "before the first title", False
    for line in request.messages[0].text.split("\n"):
        if not is_data:
            title = TITLE.match(line)
            head = next((name for start, name in HEADS.items() if line.startswith(start)), None)
            part = VARYING.sub("...", title[1]) if title else head or part
        is_data = line == "BEGIN DATA" or (is_data and line != "END DATA")
        found.setdefault(part, []).append(line)
    if len(request.messages) > 1:
        found["sent back"] = [each.text for each in request.messages[1:]]
    return {name: "\n".join(lines) for name, lines in found.items()}


def rests_on(parts: Mapping[str, str], reply: str) -> set[str]:
    """The parts that alone have a figure of the reply's reasons."""
    return _alone(parts, FIGURE, _reasons(reply))


def writes_by(parts: Mapping[str, str], reply: Reply) -> set[str]:
    """The parts that alone have a name of the reply's code."""
    return _alone(parts, NAME, COMMENT.sub("", _code(reply)))


def _alone(parts: Mapping[str, str], word: re.Pattern[str], text: str) -> set[str]:
    """The parts with a word of the text that no other part has."""
    said = set(word.findall(text))
    words = {name: set(word.findall(part)) for name, part in parts.items()}
    return {
        name
        for name, own in words.items()
        if said & own - set[str]().union(*(other for key, other in words.items() if key != name))
    }


def _code(reply: Reply) -> str:
    """The source, header or edits in a reply, wherever they stand."""
    said = _object(reply.text)
    blocks = [each.text for each in fenced_blocks(reply.text) if each.tag != "json"]
    return "\n".join([*blocks, str(said.get("source") or ""), str(said.get("header") or "")])


def _reasons(reply: str) -> str:
    """What a reply says in its JSON object; empty where it has none."""
    said = _object(reply)
    return " ".join(str(said.get(key) or "") for key in ("because", "instruction", "give_up"))


def _object(reply: str) -> dict[str, Any]:
    """The JSON object that begins at the first brace; empty where there is none."""
    start = reply.find("{")
    try:
        said, _ = json.JSONDecoder().raw_decode(reply[max(start, 0) :])
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def exchanges_of(run: Path, *, is_now: bool) -> list[Exchange]:
    """What was asked and answered; `is_now`: as this version asks it."""
    if not is_now:
        return list(read_exchanges(run / FILE_NAME)[0])
    seen: list[Exchange] = []
    answer = ReplayedModel.complete

    def complete(self: ReplayedModel, request: ChatRequest) -> Reply:
        reply = answer(self, request)
        seen.append(Exchange(request, reply))
        return reply

    ReplayedModel.complete = complete  # type: ignore[method-assign]
    try:
        with tempfile.TemporaryDirectory() as folder:
            replay_optimize(run, run=Path(folder) / "again")
    finally:
        ReplayedModel.complete = answer  # type: ignore[method-assign]
    return seen


def print_parts(exchanges: Sequence[Exchange]) -> None:
    """A row for each role and part."""
    lengths, cited = defaultdict[tuple[str, str], list[float]](list), defaultdict[tuple[str, str], int](int)
    written = defaultdict[tuple[str, str], int](int)
    counts, totals = defaultdict[str, int](int), defaultdict[str, list[float]](list)
    for each in exchanges:
        parts, role = parts_of(each.request), each.request.role
        counts[role] += 1
        totals[role].append(sum(map(len, parts.values())) / CHARACTERS_PER_TOKEN)
        for name, text in parts.items():
            lengths[role, name].append(len(text) / CHARACTERS_PER_TOKEN)
        for name in rests_on(parts, each.reply.text):
            cited[role, name] += 1
        for name in writes_by(parts, each.reply):
            written[role, name] += 1
    print("| role | part | in prompts | median tokens | replies that rest on it | that write by it |")
    print("|---|---|---|---|---|---|")
    for (role, name), found in lengths.items():
        uses = f"{cited[role, name]} | {written[role, name]}"
        told = f"{len(found)} of {counts[role]} | {statistics.median(found):.0f} | {uses}"
        print(f"| {role} | {name} | {told} |")
    for role, sums in totals.items():
        print(f"| {role} | all | {len(sums)} | {statistics.median(sums):.0f} | | |")


@dataclass(frozen=True, slots=True)
class Step:
    """One step that a model predicted, in logarithms."""

    predicted: float
    measured: float

    @property
    def is_large(self) -> bool:
        """As `tree.beliefs` tells promises apart."""
        return self.predicted >= math.log(LARGE_PROMISE)

    @property
    def share(self) -> float:
        """Which part came true."""
        return min(max(self.measured / self.predicted, 0.0), MOST_TRUTH)


def steps_of(run: Path) -> list[Step]:
    """Working steps with a prediction, in their order."""
    tree = Tree.of(RunView.read(run).tree_events)
    known = ((node.predicted_gain, tree.gain(node.index)) for node in tree if node.is_working)
    return [Step(math.log(said), math.log(found)) for said, found in known if said and found and said >= USEFUL]


Estimator = Callable[[Step, Sequence[Step], Sequence[Step]], float]
"""What a step is expected to gain, from its prediction, the run's earlier steps, and those of other runs."""


def _mean(prior: float, weight: float, steps: Sequence[Step]) -> float:
    return (prior * weight + sum(each.share for each in steps)) / (weight + len(steps))


def as_said(step: Step, own: Sequence[Step], others: Sequence[Step]) -> float:
    """The prediction itself."""
    del own, others
    return step.predicted


def pooled(step: Step, own: Sequence[Step], others: Sequence[Step]) -> float:
    """All predictions corrected alike, from a guess."""
    del others
    return step.predicted * _mean(BELIEF, 2.0, own)


def by_size(step: Step, own: Sequence[Step], others: Sequence[Step]) -> float:
    """Large and small promises corrected apart, from what the other runs' came to."""
    alike = [each for each in others if each.is_large is step.is_large]
    prior = min(1.0, statistics.fmean(each.share for each in alike)) if alike else BELIEF
    same = [each for each in own if each.is_large is step.is_large]
    return step.predicted * min(1.0, _mean(prior, MODEL_BELIEF_WEIGHT, same))


def as_believed(step: Step, own: Sequence[Step], others: Sequence[Step]) -> float:
    """As `tree.beliefs` has it: the same, from the constants that were chosen so."""
    del others
    same = [each for each in own if each.is_large is step.is_large]
    return step.predicted * min(1.0, _mean(MODEL_BELIEF[step.is_large], MODEL_BELIEF_WEIGHT, same))


def errors_of(estimate: Estimator, runs: Sequence[Sequence[Step]]) -> Iterator[float]:
    """The error of each step's logarithm, its run left out of `others`."""
    for place, run in enumerate(runs):
        others = [step for at, other in enumerate(runs) for step in other if at != place]
        for count, step in enumerate(run):
            yield abs(estimate(step, run[:count], others) - step.measured)


def print_predictions(runs: Sequence[Sequence[Step]]) -> None:
    """A row for each estimator."""
    print("| predicted gains | steps | mean error (log) | median | within 10 % |\n|---|---|---|---|---|")
    for estimate in (as_said, pooled, by_size, as_believed):
        errors = list(errors_of(estimate, runs))
        close = sum(each <= AS_PREDICTED for each in errors)
        told = f"{len(errors)} | {statistics.fmean(errors):.3f} | {statistics.median(errors):.3f} | {close}"
        print(f"| {estimate.__name__.replace('_', ' ')} | {told} |")


def main() -> None:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--now", action="store_true")
    parser.add_argument("--predictions", action="store_true")
    arguments = parser.parse_args()
    if arguments.predictions:
        print_predictions([steps_of(run) for run in arguments.runs])
    else:
        print_parts([each for run in arguments.runs for each in exchanges_of(run, is_now=arguments.now)])


if __name__ == "__main__":
    main()
