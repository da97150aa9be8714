"""The problems of a KernelBench checkout: files `KernelBench/levelN/ID_NAME.py`."""

from __future__ import annotations

import re
from pathlib import Path

from kernelwright.errors import UsageError
from kernelwright.problem.toml.file import did_you_mean

_FILE = re.compile(r"(\d+)_.*\.py")


def problems_of(checkout: Path, level: int, ids: str) -> dict[int, Path]:
    """The files of the problems that are asked for, by their numbers, in order.

    Args:
        checkout: KernelBench's folder.
        level: 1 to 4.
        ids: `3,7,10-12`; empty: all.

    Raises:
        UsageError: there is no such level, no problem with one of the numbers, or `ids` names none.
    """
    folder = checkout / "KernelBench" / f"level{level}"
    found = {
        int(match[1]): file.resolve()
        for file in (folder.iterdir() if folder.is_dir() else ())
        if (match := _FILE.fullmatch(file.name))
    }
    if not found:
        raise UsageError(
            f"{folder} has no problems, files like 1_Name.py", hint="name a KernelBench checkout, and its --level"
        )
    wanted = _numbers(ids) or sorted(found)
    for number in wanted:
        if number not in found:
            close = did_you_mean(str(number), [str(each) for each in sorted(found)])
            raise UsageError(
                f"--ids: level {level} has no problem {number}", hint=close or f"it has {min(found)} to {max(found)}"
            )
    return {number: found[number] for number in wanted}


def _numbers(ids: str) -> list[int]:
    numbers: list[int] = []
    for part in filter(None, (each.strip() for each in ids.split(","))):
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part)
        if match is None:
            raise UsageError(f"--ids {part!r} is no number and no range", hint="say --ids 1,5,10-12")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise UsageError(f"--ids {part!r} ends before it begins", hint=f"say --ids {last}-{first}")
        numbers += range(first, last + 1)
    if ids and not numbers:
        raise UsageError(f"--ids {ids!r} names no problem", hint="say --ids 1,5,10-12, or leave it out for all")
    return list(dict.fromkeys(numbers))
