"""Print how long it takes to know a feasible space, against python-constraint2 and brute force, as a Markdown table.

python benchmarks/space_construction.py [--limit SECONDS] [--small] [--only SPACE]
"""

from __future__ import annotations

import argparse

from kernelwright_bench.space.cases import CASES
from kernelwright_bench.space.measure import SpaceMeasurement, markdown_table, measure_spaces


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for one measurement (default: 60)")
    parser.add_argument("--small", action="store_true", help="leave the large spaces out")
    parser.add_argument("--only", choices=[case.name for case in CASES], help="one space only")
    chosen = parser.parse_args()
    cases = [
        case for case in CASES if (not chosen.only or case.name == chosen.only) and not (chosen.small and case.is_large)
    ]
    rows: list[SpaceMeasurement] = []
    for row in measure_spaces(cases, limit_s=chosen.limit):
        print(f"measured {row.case}: {row.method}", flush=True)
        rows.append(row)
    print()
    print(markdown_table(rows))


if __name__ == "__main__":
    main()
