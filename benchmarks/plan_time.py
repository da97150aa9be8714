"""How long the rules need from a source to a plan: every example's baseline at the head of a long file.

```
python benchmarks/plan_time.py [--lines 500] [--repeats 3]
```
For each CUDA example, a CUDA file of that many lines: its baseline, then many other kernels. Told are the
best of some runs, in seconds of this process: reading and lifting, all tactics on the plain kernel (with the look at
what each makes possible), and the same for the first idea's rewrite. Each run is a process of its own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

from kernelwright.agent.base import Context, Draft, Task, TemplateContext, Written
from kernelwright.agent.rules.agent import RulesAgent
from kernelwright.agent.written import written_template
from kernelwright.backend.base import DeviceInfo
from kernelwright.tree.model import Node, Tree
from kernelwright.tuning.tune import TuningProblem

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "tactics"))
from long_source import long_source  # noqa: E402

LIMITS = {"max_threads_per_block": 1024, "shared_memory_per_block": 232448, "warp_size": 32, "multiprocessors": 132}
NODE = Node(0, None, "baseline", "", "", "", "", None, "b", "cuda", ())


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--lines", type=int, default=500)
    words.add_argument("--repeats", type=int, default=3)
    given = words.parse_args()
    print("| problem | lines | lift s | plan s | start to plan s | plan of the first rewrite s | ideas |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for path in sorted((ROOT / "src/kernelwright/examples" / "cuda").glob("*/problem.toml")):
        print(row(path.parent, given.lines, given.repeats), flush=True)


def row(folder: Path, lines: int, repeats: int) -> str:
    """A line of the table."""
    subject = TuningProblem.load(folder)
    written = written_template(subject.baseline.template)
    written = replace(written, text=long_source(written.text, lines=lines))
    device = DeviceInfo("cuda", "cuda:0", "H100", "gpu", LIMITS)
    task = Task(subject.problem, device, copy_bytes_per_s=3e12)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool:
        runs = list(pool.map(timed, [task] * repeats, [written] * repeats))
    lift_s, plan_s, next_s, ideas = min(runs, key=lambda each: each[0] + each[1])
    return (
        f"| {folder.name} | {written.text.count(chr(10))} | {lift_s:.2f} | {plan_s:.2f} | **{lift_s + plan_s:.2f}** "
        f"| {next_s:.2f} | {ideas} |"
    )


def timed(task: Task, written: Written) -> tuple[float, float, float, int]:
    """Seconds to lift, to plan, and to plan again for the first rewrite; the number of ideas."""
    agent, tree = RulesAgent(), Tree((NODE,))
    start_s = time.process_time()
    lifted = agent.template(TemplateContext(task, written))
    lift_s = time.process_time() - start_s
    own = lifted.written if isinstance(lifted, Draft) else written
    start_s = time.process_time()
    plan = agent.plan(Context(task, tree, NODE, own))
    plan_s = time.process_time() - start_s
    if not plan.ideas:
        return lift_s, plan_s, 0.0, 0
    code = agent.code(Context(task, tree, NODE, own), plan.ideas[0])
    assert isinstance(code, Draft), code
    start_s = time.process_time()
    agent.plan(Context(task, tree, NODE, code.written))
    return lift_s, plan_s, time.process_time() - start_s, len(plan.ideas)


if __name__ == "__main__":
    main()
