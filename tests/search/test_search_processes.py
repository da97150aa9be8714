from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

SCRIPT = """
import json
from kernelwright.search.registry import SEARCHERS, create
from kernelwright.testing.contracts_search import small_space
from kernelwright.testing.synthetic import failing, smooth, drive
space = small_space()
objective = failing(smooth(space.parameters))
runs = {}
for name in SEARCHERS:
    seen = drive(create(name, space, seed=3), objective, budget=60, batch_count=4)
    runs[name] = [observation.config.id for observation in seen]
print(json.dumps(runs))
"""


@pytest.mark.thorough
def test_runs_are_the_same_in_every_process() -> None:
    started = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT], env={**os.environ, "PYTHONHASHSEED": seed}, stdout=subprocess.PIPE
        )
        for seed in ("1", "2")
    ]
    first, second = (json.loads(process.communicate(timeout=120)[0]) for process in started)
    assert first == second
    assert len(first) >= 5


def test_listing_the_searchers_loads_no_model_library() -> None:
    code = "import sys, kernelwright.search.registry; sys.exit('sklearn' in sys.modules or 'scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
