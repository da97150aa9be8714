"""Check our score of searchers against the methodology's own package, on the same repeats, as a Markdown table.

    python benchmarks/search_methodology.py REPEATS_FOLDER RECORDINGS     # a folder that `bench search --out` wrote
    python benchmarks/search_methodology.py --golden tests/bench/methodology.json

The package's score is random (its bags are drawn anew); the table has its mean and deviation over several draws.
`--golden` writes small simulated spaces and repeats with the package's scores, for the test that needs no package.
Needs `pip install 'kernelwright[bench-search]'`.
"""

from __future__ import annotations

import argparse
import json
from importlib.metadata import version
from pathlib import Path

import numpy as np

from kernelwright_bench.search.files import load_repeats
from kernelwright_bench.search.methodology import package_scores
from kernelwright_bench.search.recordings import load_recorded
from kernelwright_bench.search.repeats import Strategy
from kernelwright_bench.search.score import Trajectory, baseline_of, score_of

GOLDEN_DRAWS = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repeats", type=Path, nargs="?", help="folder that `kernelwright bench search --out` wrote")
    parser.add_argument("recordings", type=Path, nargs="*", help="what it was run on")
    parser.add_argument("--searcher", action="append", default=[])
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--golden", type=Path, help="write simulated cases with the package's scores")
    words = parser.parse_args()
    if words.golden:
        words.golden.write_text(json.dumps(golden(), separators=(",", ":")) + "\n")
        return
    print(f"Against autotuning_methodology {version('autotuning_methodology')}, {words.draws} draws of its score.\n")
    print("| space | strategy | repeats | ours | the package's, mean | its deviation | difference |")
    print("| --- | --- | --: | --: | --: | --: | --: |")
    worst = 0.0
    for recorded in load_recorded(*words.recordings):
        for name in words.searcher or ["random", "auto"]:
            result = load_repeats(words.repeats, recorded, Strategy(name))
            if result is None:
                continue
            theirs = package_scores(recorded.time_ms, recorded.cost_s, result.trajectories, draw_count=words.draws)
            difference = result.score - float(np.mean(theirs))
            worst = max(worst, abs(difference))
            print(
                f"| {recorded.name} | {name} | {len(result.repeats)} | {result.score:.4f} | {np.mean(theirs):.4f} "
                f"| {np.std(theirs):.4f} | {difference:+.4f} |",
                flush=True,
            )
    print(f"\nLargest difference: {worst:.4f}")


def golden() -> dict[str, object]:
    """Simulated spaces and repeats: random, quick, ending early with repeated looks, failing at first."""
    cases = []
    for name, seed, size, failing, repeat_count in (
        ("random", 1, 400, 0.0, 8),
        ("quick", 2, 400, 0.1, 8),
        ("ends early", 3, 300, 0.05, 6),
        ("few evaluations", 4, 200, 0.3, 6),
    ):
        rng = np.random.default_rng(seed)
        values = np.round(1 + rng.lognormal(0, 0.8, size), 5)
        cost_s = np.round(0.5 + rng.gamma(4, 0.3, size), 4)
        values[rng.random(size) < failing] = np.nan
        budget_s = baseline_of(values, cost_s).budget_s
        repeats = [
            _simulated(name, values, cost_s, budget_s, np.random.default_rng([seed, k])) for k in range(repeat_count)
        ]
        theirs = package_scores(values, cost_s, repeats, draw_count=GOLDEN_DRAWS)
        cases.append(
            {
                "name": name,
                "values": [None if np.isnan(value) else float(value) for value in values],
                "cost_s": cost_s.tolist(),
                "repeats": [
                    {"time_s": r.time_s.tolist(), "best": [None if np.isnan(b) else float(b) for b in r.best]}
                    for r in repeats
                ],
                "package_mean": round(float(np.mean(theirs)), 5),
                "package_deviation": round(float(np.std(theirs)), 5),
            }
        )
        print(name, score_of(baseline_of(values, cost_s), repeats), np.mean(theirs), np.std(theirs))
    return {
        "package": f"autotuning_methodology {version('autotuning_methodology')}",
        "draws": GOLDEN_DRAWS,
        "cases": cases,
    }


def _simulated(
    name: str, values: np.ndarray, cost_s: np.ndarray, budget_s: float, rng: np.random.Generator
) -> Trajectory:
    order = rng.permutation(len(values))
    if name == "quick":  # the good half first, the better the sooner, with noise
        order = np.argsort(np.nan_to_num(np.log(values), nan=1.0) + rng.normal(0, 1.2, len(values)))
    end_s = budget_s * (rng.uniform(0.3, 0.9) if name == "ends early" else 1.1)
    times, bests = [], []
    spent_s, best = 0.0, np.nan
    for index in order:
        spent_s = round(spent_s + float(cost_s[index]) + 0.001, 4)
        best = np.fmin(best, values[index])
        times.append(spent_s)
        bests.append(best)
        for _ in range(int(rng.integers(4)) if name == "ends early" else 0):
            spent_s = round(spent_s + 0.001, 4)
            times.append(spent_s)
            bests.append(best)
        if spent_s > end_s:
            break
    return Trajectory(np.array(times), np.array(bests))


if __name__ == "__main__":
    main()
