"""What `optimize --model rules` makes of plain kernels, beside the hand-written templates, on any device.

```
python benchmarks/optimize_device.py --out FILE.json [--seconds 60] [--hand-seconds S | --hand EARLIER.json]
    [--problems softmax,matmul] [--examples FOLDER] [--device cuda:0] [--total-seconds 480] [--rounds 31]
```
`--examples src/kernelwright/examples --device opencl:cpu` gives the table of the CPU device. For each problem: rules
rewrite and tune the baseline, which is all that they see; the hand-written template is tuned; then baseline and both
winners are checked on every dataset and measured in one process, in interleaved rounds. FILE gets a record for each
problem as soon as it is there: both speedups and their ratio (`over_hand`: above 1, the rules are faster) with
intervals, the winner's chain of tactics, configs, evaluations, seconds, the winner's text, and every node with what was
predicted, gained and failed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelwright import OptimizeResult, optimize, tune
from kernelwright.errors import KernelwrightError
from kernelwright.evaluate.base import Comparison, EvaluationRequest
from kernelwright.evaluate.statistics import ConfidenceInterval, geometric_mean_interval, speedup_interval
from kernelwright.problem.config import Config
from kernelwright.problem.outcome import Failed
from kernelwright.results.tune_result import TuneResult
from kernelwright.template.model import Candidate
from kernelwright.tree.model import Node
from kernelwright.tuning.machine import LocalMachine
from kernelwright.tuning.settings import TuneSettings
from kernelwright.tuning.tune import TuningProblem

EXAMPLES = Path(__file__).parents[1] / "src/kernelwright/examples" / "cuda"

MOST_LOG_CHARACTERS = 600


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--out", type=Path, required=True)
    words.add_argument("--seconds", type=float, default=60.0, help="budget of optimize, for each problem")
    words.add_argument("--hand-seconds", type=float, help="budget of the hand-written template's tuning")
    words.add_argument("--problems", default="", help="names, commas between; all if left out")
    words.add_argument("--examples", type=Path, default=EXAMPLES)
    words.add_argument("--device", default=None)
    words.add_argument("--hand", type=Path, help="an earlier FILE, whose configs of hand-written templates are taken")
    words.add_argument("--rounds", type=int, default=31, help="of the comparison")
    words.add_argument("--total-seconds", type=float, default=None, help="no problem is begun after so long")
    given = words.parse_args()
    start_s, records = time.perf_counter(), []
    for name in given.problems.split(",") if given.problems else _names(given.examples):
        if given.total_seconds is not None and time.perf_counter() - start_s > given.total_seconds:
            records.append({"problem": name, "error": "not begun: the time was up"})
            continue
        records.append({"problem": name, **_measured(given.examples / name, given)})
        given.out.write_text(json.dumps(records, indent=1))
        print(_line(records[-1]), flush=True)
    given.out.write_text(json.dumps(records, indent=1))


def _names(examples: Path) -> list[str]:
    return sorted(each.parent.name for each in examples.glob("*/problem.toml"))


def _measured(example: Path, given: argparse.Namespace) -> dict[str, Any]:
    """One problem's record; what went wrong is a part of it."""
    start_s, record = time.perf_counter(), dict[str, Any](seconds=given.seconds)
    with tempfile.TemporaryDirectory() as folder:
        try:
            budget = f"{given.seconds:g}s"
            run = Path(folder) / "rules"
            made = optimize(example, run=run, budget=budget, start="baseline", memory="off", device=given.device)
            record |= _of_rules(made) | {"rules_wall_s": time.perf_counter() - start_s}
            known = _known_config(given.hand, example.name)
            if known is None:
                budget = f"{given.hand_seconds or given.seconds:g}s"
                hand = tune(example, run=Path(folder) / "hand", budget=budget, device=given.device)
                record |= _of_hand(hand)
                known = hand.best_config
            record |= {"hand_config": dict(known or {})}
            record |= _compared(example, made, known, given)
        except KernelwrightError as error:
            record |= {"error": f"{type(error).__name__}: {error}"}
    return record | {"wall_s": time.perf_counter() - start_s}


def _of_rules(made: OptimizeResult) -> dict[str, Any]:
    """What the run over structures says of itself."""
    fastest = made.fastest
    return {
        "device": made.view.started.device.get("name"),
        "is_gain": made.is_gain,
        "reason": made.reason,
        "speedup_in_run": _interval(made.speedup),
        "floor_fraction": made.floor_fraction,
        "chain": [step.node.label for step in made.path],
        "config": dict(made.best_config or {}),
        "evaluations": made.evaluated_count,
        "source": made.source(fastest.index) if fastest is not None and fastest.source_blob else None,
        "nodes": [_of_node(made, node) for node in made.tree],
    }


def _of_node(made: OptimizeResult, node: Node) -> dict[str, Any]:
    record: dict[str, Any] = {
        "index": node.index,
        "parent": node.parent,
        "label": node.label,
        "status": node.status,
        "predicted": node.predicted_gain,
        "at_default": 1 / node.default_value if node.default_value else None,
        "at_best": 1 / node.best_value if node.best_value else None,
        "evaluations": node.tuning.evaluated_count,
        "spent_s": node.tuning.spent_s,
        "config": dict(node.best_config),
        "ideas": [[idea.key, idea.predicted_gain, idea.promise] for idea in node.ideas],
    }
    if node.failure is not None:
        why = node.failure
        record["failure"] = [why.stage, why.reason, why.message, why.log[:MOST_LOG_CHARACTERS]]
        if made.folder is not None and node.source_blob:
            record["source"] = made.source(node.index)
    failures = _failures(made, node)
    return record | ({"failed_configs": failures} if failures else {})


def _failures(made: OptimizeResult, node: Node) -> list[dict[str, Any]]:
    """Each way in which configs of a node failed, with how many did and one of them."""
    if node.tuning.failed_count == 0:
        return []
    counts: Counter[tuple[str, str]] = Counter()
    first: dict[tuple[str, str], dict[str, Any]] = {}
    for event in made.tuned(node.index).view.failed:
        assert isinstance(event.outcome, Failed)
        key = (event.outcome.stage, event.outcome.reason)
        counts[key] += 1
        text = {"message": event.outcome.message, "log": event.outcome.log[:MOST_LOG_CHARACTERS]}
        first.setdefault(key, {"config": dict(event.config), **text})
    return [
        {"stage": stage, "reason": reason, "count": n, **first[stage, reason]} for (stage, reason), n in counts.items()
    ]


def _of_hand(hand: TuneResult) -> dict[str, Any]:
    return {
        "hand_evaluations": len(hand.view.evaluations),
        "hand_speedup_in_run": _interval(hand.speedup),
    }


def _known_config(file: Path | None, name: str) -> Config | None:
    """What an earlier run found for the hand-written template."""
    records = json.loads(file.read_text()) if file is not None else []
    return next((Config(each["hand_config"]) for each in records if each["problem"] == name), None)


def _compared(example: Path, made: OptimizeResult, hand: Config | None, given: argparse.Namespace) -> dict[str, Any]:
    """Baseline and both winners side by side; where the rules gained nothing their result is the baseline."""
    subject = TuningProblem.load(example)
    if hand is None:
        return {"error": "no configuration of the hand-written template passed"}
    candidates = {"plain": subject.baseline, "hand": Candidate(subject.template, hand)}
    if made.winner is not None and made.best_config is not None:
        own = TuningProblem.load(made.winner_folder / "problem" / "problem.toml")
        candidates["rules"] = Candidate(own.template, made.best_config)
    machine, settings = LocalMachine(), TuneSettings(device=given.device)
    device = machine.device(given.device, subject.baseline.template.language)
    with machine.runner(subject.problem, device, settings) as runner:
        runner.calibrate(subject.baseline)
        for name, candidate in candidates.items():
            request = EvaluationRequest(candidate, is_thorough=True, is_timed=False)
            outcome, _ = runner.submit(request).result()
            if isinstance(outcome, Failed):
                return {"error": f"{name}: {outcome.stage}: {outcome.message}"}
        comparison = runner.compare(list(candidates.values()), rounds=given.rounds)
    weights = {workload.name: workload.weight for workload in subject.problem.workloads}
    return _ratios(comparison, tuple(candidates), weights) if comparison is not None else {"error": "not compared"}


def _ratios(comparison: Comparison, names: Sequence[str], weights: Mapping[str, float]) -> dict[str, Any]:
    """Ratios of times with their intervals, over all workloads and of each."""
    if comparison.rejected:
        return {"error": f"wrong results in the comparison: {dict(comparison.rejected)}"}
    rows = {workload: dict(zip(names, each, strict=True)) for workload, each in comparison.samples_ms.items()}
    rules = "rules" if "rules" in names else "plain"
    pairs = {"speedup": ("plain", rules), "hand_speedup": ("plain", "hand"), "over_hand": ("hand", rules)}
    record: dict[str, Any] = {"by_workload": {name: {} for name in rows}}
    for key, (slow, fast) in pairs.items():
        if slow == fast:
            record[key] = {"estimate": 1.0, "low": 1.0, "high": 1.0}
            continue
        record[key] = _interval(
            geometric_mean_interval(
                [each[slow] for each in rows.values()],
                [each[fast] for each in rows.values()],
                weights=[weights[name] for name in rows],
            )
        )
        for name, each in rows.items():
            record["by_workload"][name][key] = _interval(speedup_interval(each[slow], each[fast]))
    for name, each in rows.items():
        record["by_workload"][name]["us"] = {who: 1e3 * statistics.median(times) for who, times in each.items()}
    return record


def _interval(value: ConfidenceInterval | None) -> dict[str, float] | None:
    return None if value is None else {"estimate": value.estimate, "low": value.low, "high": value.high}


def _line(record: Mapping[str, Any]) -> str:
    """A record for the eye."""
    if "error" in record:
        return f"{record['problem']}: {record['error']} ({record['wall_s']:.0f} s)"
    parts = [
        f"{key} {record[key]['estimate']:.3f} [{record[key]['low']:.3f}, {record[key]['high']:.3f}]"
        for key in ("speedup", "hand_speedup", "over_hand")
    ]
    failed = sum(node["status"] in ("failed", "refused") for node in record["nodes"])
    parts += [f"{' > '.join(record['chain'])}", f"{record['evaluations']} evaluations", f"{failed} nodes failed"]
    return f"{record['problem']}: {', '.join(parts)} ({record['wall_s']:.0f} s)"


if __name__ == "__main__":
    main()
