"""Which of the largest configurations of Triton problems cannot fit an H100, told from builds without a GPU.

```
python benchmarks/triton_corners.py PROBLEMS OUT.json
```
For each problem folder below `PROBLEMS` (as `triton_suite.py` leaves them in `STATE/problems`), every parameter takes
its largest value, with 4 and 16 warps. Each is built ahead of time for compute capability 9.0, and never launched. What
is in `OUT.json` already is kept.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from kernelwright import knobs
from kernelwright.backend.interpreter.backend import interpreter_device
from kernelwright.errors import KernelwrightError
from kernelwright.evaluate.builds.artifact_cache import ArtifactCache
from kernelwright.evaluate.builds.pool import BuildPool
from kernelwright.evaluate.builds.render import render
from kernelwright.evaluate.process.scratch import make_scratch
from kernelwright.problem.outcome import Failed
from kernelwright.template.model import Candidate
from kernelwright.tuning.device_limits import build_space
from kernelwright.tuning.tune import TuningProblem

WARPS = (4, 16)
BUILD_S = 120.0


def main() -> None:
    problems, out = Path(sys.argv[1]), Path(sys.argv[2])
    rows: dict[str, Any] = json.loads(out.read_text()) if out.is_file() else {}
    device = interpreter_device()
    pool = BuildPool(
        device.backend,
        device,
        process_count=1,
        cache=ArtifactCache(knobs.cache_dir() / "artifacts"),
        scratch=make_scratch(),
        timeout_s=BUILD_S,
    )
    try:
        for folder in sorted(each.parent for each in problems.glob("*/problem.toml")):
            if folder.name not in rows:
                rows[folder.name] = corners(folder, pool)
                out.write_text(json.dumps(rows, indent=1))
                print(json.dumps({folder.name: rows[folder.name]})[:300], flush=True)
    finally:
        pool.close()


def corners(folder: Path, pool: BuildPool) -> list[dict[str, Any]]:
    """What each of the largest configurations needs, or why it fails."""
    try:
        subject = TuningProblem.load(folder)
        device = interpreter_device()
        space = build_space(subject.problem, subject.template, device)
        largest = {each.name: max(each.values) for each in space.parameters}
        found = []
        for config in dict.fromkeys(space.nearest({**largest, "num_warps": warps}) for warps in WARPS):
            jobs = render(Candidate(subject.template, config), subject.problem, device)
            built = jobs if isinstance(jobs, Failed) else pool.submit(jobs[0].unit, (jobs[0].plan,)).result().built
            row: dict[str, Any] = {"config": dict(config)}
            if isinstance(built, Failed):
                row |= {"failed": f"{built.stage}: {built.reason}", "message": built.message[:300]}
            else:
                row |= {name: max(each.get(name, 0.0) for each in built.resources.values()) for name in FIGURES}
            found.append(row)
        return found
    except KernelwrightError as error:
        return [{"failed": "problem", "message": str(error)[:300]}]


FIGURES = ("registers_per_thread", "spill_bytes", "local_memory_bytes", "wgmma_instructions")

if __name__ == "__main__":
    main()
