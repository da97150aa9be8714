"""Whether a searcher's options, chosen on some recorded spaces, hold on others: leave-one-out, as a Markdown table.

    python benchmarks/search_options.py RECORDINGS --searcher surrogate --option tree_count=6,12,24 --by kernel

Every combination of the values runs on every space; then, for each space (or kernel, or device) left out in turn, the
best combination on the others is scored on it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from kernelwright.cli.words import parse_option
from kernelwright.problem.config import Value
from kernelwright_bench.search.leave_one_out import leave_one_out, leave_one_out_table
from kernelwright_bench.search.recordings import load_recorded


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", type=Path, nargs="+")
    parser.add_argument("--searcher", default="surrogate")
    parser.add_argument("--option", action="append", required=True, metavar="NAME=VALUE,VALUE,...")
    parser.add_argument("--by", choices=["space", "kernel", "device"], default="space")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--priors", metavar="DEVICE")
    words = parser.parse_args()
    grid: dict[str, list[Value]] = {}
    for text in words.option:
        name, _, values = text.partition("=")
        grid[name] = [parse_option(f"{name}={value}")[1] for value in values.split(",")]
    result = leave_one_out(
        load_recorded(*words.recordings),
        words.searcher,
        grid,
        repeats=words.repeats,
        jobs=words.jobs,
        by=words.by,
        priors_from=words.priors,
    )
    print(leave_one_out_table(result))
    print()
    for options, by_space in sorted(result.scores.items(), key=lambda item: -sum(item[1].values())):
        scores = list(by_space.values())
        print(f"{dict(options)}: mean {sum(scores) / len(scores):.3f}, worst {min(scores):.3f}", flush=True)


if __name__ == "__main__":
    main()
