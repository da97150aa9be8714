"""Give one problem the workloads of another, so that both are measured on the same sizes.

```
python benchmarks/same_workloads.py TO FROM        # two problem.toml; TO is written anew
```
"""

from __future__ import annotations

import argparse
from pathlib import Path

HEADER = "[[workloads]]"


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("to", type=Path)
    words.add_argument("source", type=Path)
    given = words.parse_args()
    given.to.write_text(without_workloads(given.to.read_text()) + "\n" + workloads(given.source.read_text()))


def tables(text: str) -> list[str]:
    """The parts of a TOML file, each from its header on; the first is what stands before any."""
    parts = [""]
    for line in text.splitlines(keepends=True):
        if line.startswith("["):
            parts.append("")
        parts[-1] += line
    return parts


def workloads(text: str) -> str:
    return "".join(part for part in tables(text) if part.startswith(HEADER))


def without_workloads(text: str) -> str:
    return "".join(part for part in tables(text) if not part.startswith(HEADER))


if __name__ == "__main__":
    main()
