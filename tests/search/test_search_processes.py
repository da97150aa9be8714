from __future__ import annotations

import json
import os
import subprocess
import sys

SCRIPT = """
import json
from kernelwright.search.registry import SEARCHERS, create
from kernelwright.testing.contracts_search import small_space
from kernelwright.testing.synthetic import Failing, Smooth, drive
space = small_space()
objective = Failing(Smooth(space.parameters))
runs = {}
for name in SEARCHERS:
    seen = drive(create(name, space, seed=3), objective, budget=60, batch_count=4)
    runs[name] = [observation.config.id for observation in seen]
print(json.dumps(runs))
"""


def _runs(hash_seed: str) -> dict[str, list[str]]:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    runs: dict[str, list[str]] = json.loads(done.stdout)
    return runs


def test_runs_are_the_same_in_every_process() -> None:
    assert _runs("1") == _runs("2")


def test_listing_the_searchers_loads_no_model_library() -> None:
    code = "import sys, kernelwright.search.registry; sys.exit('sklearn' in sys.modules or 'scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
