"""What a tactic makes of a plain kernel, beside the hand-written template: both tuned on this device, then compared.

```
python benchmarks/tactics_device.py --out results.json [--seconds 60] [--problems transpose,stencil,matmul]
    [--examples examples/cuda] [--device cuda:0]
```
For each problem: the hand-written template is tuned against the plain kernel; then the tactic's template is tuned
against the hand-written one at its best values, and the finals are interleaved rounds. `over_hand` is that ratio with
its interval (above 1: the tactic's is faster), `hand_over_plain` the first run's.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernelwright import tune
from kernelwright.evaluate.stats import Interval
from kernelwright.problem.config import Config
from kernelwright.problem.load import load_problem
from kernelwright.refactor.tactics.base import DeviceFacts, Rewrite, Subject
from kernelwright.refactor.tactics.draft import HeaderDraft, ScratchDraft, StepDraft, strip_header
from kernelwright.refactor.tactics.registry import tactic
from kernelwright.template.load import load_baseline, load_template, parse_header

TACTIC_OF = {"matmul": "contraction-tiles", "transpose": "transpose-tiles", "stencil": "stencil-tiles"}


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--out", type=Path, required=True)
    words.add_argument("--seconds", type=int, default=60)
    words.add_argument("--problems", default="transpose,stencil,matmul")
    words.add_argument("--examples", type=Path, default=Path(__file__).parents[1] / "examples" / "cuda")
    words.add_argument("--device", default=None)
    given = words.parse_args()
    rows: list[dict[str, Any]] = []
    for name in given.problems.split(","):
        with tempfile.TemporaryDirectory() as folder:
            row = measure(given.examples / name, Path(folder), TACTIC_OF[name], given.seconds, given.device)
        rows.append({"problem": name, "seconds": given.seconds, **row})
        given.out.write_text(json.dumps(rows, indent=1))
        print(json.dumps(rows[-1]), flush=True)


def measure(example: Path, folder: Path, tactic_name: str, seconds: int, device: str | None) -> dict[str, Any]:
    """Two runs and what they say."""
    start_s = time.perf_counter()
    hand = tune(example, run=folder / "hand", budget=f"{seconds}s", device=device)
    if hand.best_config is None:
        return {"error": "the hand-written template gave no winner"}
    is_cpu = "opencl" in str(load_problem(example / "problem.toml").kernel.language)
    facts = (
        DeviceFacts("cpu", vector_bytes=32, max_threads_per_block=4096)
        if is_cpu
        else DeviceFacts("gpu", warp_size=32, max_threads_per_block=1024)
    )
    problem = rewritten_problem(example, folder / "problem", tactic_name, hand.best_config, facts)
    made = tune(problem, run=folder / "tactic", budget=f"{seconds}s", device=device)
    return {
        "tactic": tactic_name,
        "over_hand": interval(made.speedup),
        "hand_over_plain": interval(hand.speedup),
        "by_workload": {row.workload: interval(row.speedup) for row in made.workloads},
        "hand_config": dict(hand.best_config),
        "config": dict(made.best_config or {}),
        "evaluations": [len(hand.view.evaluations), len(made.view.evaluations)],
        "wall_s": time.perf_counter() - start_s,
    }


def interval(value: Interval | None) -> dict[str, float] | None:
    """An interval for JSON."""
    return None if value is None else {"estimate": value.estimate, "low": value.low, "high": value.high}


def rewritten_problem(
    example: Path, folder: Path, tactic_name: str, best: Config, facts: DeviceFacts
) -> Path:  # fmt: skip
    """The example with the tactic's template, and the hand-written one at its best values as the baseline."""
    shutil.copytree(example, folder)
    file = folder / "problem.toml"
    problem = load_problem(file)
    template = load_template(problem)
    baseline = load_baseline(problem, template).template
    draft = HeaderDraft(steps=tuple(StepDraft.of(step) for step in baseline.steps), options=baseline.options)
    found = tactic(tactic_name)
    assert found is not None
    rewrite = found.apply(Subject.make(problem, baseline.source, draft, facts))
    if not isinstance(rewrite, Rewrite):
        raise SystemExit(f"{example}: {rewrite.reason}")
    suffix = Path(problem.kernel.file).suffix
    (folder / f"tactic{suffix}").write_text(rewrite.file_text)
    hand = Path(problem.kernel.file).read_text()
    (folder / f"hand{suffix}").write_text(fixed(hand, best, problem.kernel.entry))
    words = tomllib.loads(file.read_text())
    file.write_text(with_templates(file.read_text(), words, suffix))
    return file


def fixed(template: str, best: Config, entry: str) -> str:
    """A template whose defaults are a config."""
    header = parse_header(template, Path("hand"), entry=entry)
    draft = HeaderDraft(
        tuple(replace(each, default=best[each.name], values=(best[each.name],)) for each in header.parameters),
        (),
        tuple(StepDraft.of(step) for step in header.steps),
        tuple((name, value.text) for name, value in header.defines.items()),
        tuple(ScratchDraft(s.name, s.dtype, tuple(e.text for e in s.shape), s.role) for s in header.scratch),
        tuple(header.options),
    )
    return draft.render() + strip_header(template)


def with_templates(text: str, words: dict[str, Any], suffix: str) -> str:
    """problem.toml with the tactic's template as its kernel and the hand-written one as its baseline."""
    entry, plain_entry = words["entry"], words["baseline"].get("entry", words["entry"])
    kept, is_baseline = [], False
    for line in text.splitlines():
        if line.startswith("["):
            is_baseline = line.strip("[] ").startswith("baseline")
        if is_baseline:
            continue
        if line.startswith("kernel ="):
            line = f'kernel = "tactic{suffix}"'  # noqa: PLW2901
        if line.startswith("entry ="):
            line = f'entry = "{plain_entry}"'  # noqa: PLW2901
        kept.append(line)
    return "\n".join([*kept, "", "[baseline]", f'kernel = "hand{suffix}"', f'entry = "{entry}"', ""])


if __name__ == "__main__":
    main()
