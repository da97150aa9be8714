"""Where the time of a program goes, by kernel, from what a profiler has written.

```
times = read_profile(Path("report_cuda_gpu_kern_sum.csv"))
shares, notes = shares_of(times, {"gemm": {"gemm_kernel"}, "norm": {"layer_norm"}})
shares                # {"gemm": 0.61, "norm": 0.07}; the rest of the time is no problem's
```
Three kinds of file: Nsight Systems' `cuda_gpu_kern_sum` as CSV, the PyTorch profiler's Chrome trace as JSON, and a CSV
with a column of names, of problems or kernels, and one of times.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelwright.errors import UsageError
from kernelwright.json_text import read_json_bytes, read_json_text

_NAMES = ("name", "kernel name", "kernel", "problem")
_TIMES = ("total time", "time", "duration", "share")
"""Beginnings of a heading, the best first: Nsight Systems tells per cent beside nanoseconds."""

MOST_LISTED = 5


def read_profile(path: Path) -> dict[str, float]:
    """Time by kernel, under the names that the profiler wrote, in the file's own unit.

    Raises:
        UsageError: the file cannot be read, is of no known kind, or tells no kernel's time.
    """
    try:
        content = read_json_bytes(path)
    except (OSError, json.JSONDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error.msg
        raise UsageError(f"the profile {path} cannot be read: {reason}", hint="check the path") from None
    is_json = content.lstrip()[:1] in (b"{", b"[")
    times = _of_trace(content, path) if is_json else _of_table(content.decode("utf-8-sig", "replace"), path)
    if not math.fsum(times.values()) > 0:
        raise UsageError(f"the profile {path} tells of no time on a device", hint="profile with the GPU's activities")
    return times


def shares_of(
    times: Mapping[str, float], kernels: Mapping[str, Collection[str]]
) -> tuple[dict[str, float], tuple[str, ...]]:
    """The problems' shares of the profiled time, and what a person should know.

    A share is 0 to 1, of the time of all kernels; 0: none of its kernels is in the profile. Notes tell of problems that
    are not there, and of kernels that several problems have.

    Args:
        times: as `read_profile` gives them.
        kernels: by problem, the names of its kernels.

    Raises:
        UsageError: none of the profiled kernels is any problem's.
    """
    total, found, notes = math.fsum(times.values()), dict.fromkeys(kernels, 0.0), []
    for name, time in times.items():
        own = [problem for problem, entries in kernels.items() if problem == name or plain_name(name) in entries]
        if len(own) > 1:
            notes.append(f"{plain_name(name)} is a kernel of {' and '.join(own)}: its time is divided evenly")
        for problem in own:
            found[problem] += time / total / len(own)
    if not any(found.values()):
        longest = sorted(times, key=lambda each: -times[each])[:MOST_LISTED]
        listed = ", ".join(plain_name(each) for each in longest)
        raise UsageError(
            f"no kernel of these problems is in the profile; the longest there: {listed}",
            hint="a problem's kernel has the profiled one's name; or write a CSV with the columns problem,time",
        )
    absent = [problem for problem, share in found.items() if not share]
    notes += [f"{problem} is not in the profile: it comes last" for problem in absent]
    return found, tuple(notes)


def plain_name(text: str) -> str:
    """A kernel's own name: `void at::(anonymous namespace)::norm<float, 4>(float*, int)` is `norm`."""
    text = re.sub(r"\(anonymous namespace\)::|\s*\[clone [^\]]*\]", "", text)
    while text != (shorter := re.sub(r"<[^<>]*>", "", text)):
        text = shorter
    words = text.partition("(")[0].split()
    return words[-1].rpartition("::")[2] if words else ""


# -- kinds of file


def _of_trace(content: bytes, path: Path) -> dict[str, float]:
    """A Chrome trace, in microseconds."""
    try:
        document: Any = read_json_text(content)
    except json.JSONDecodeError as error:
        raise UsageError(f"the profile {path} is no JSON: {error.msg}", hint="export it again") from None
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list):
        raise UsageError(f"the profile {path} has no traceEvents", hint="a PyTorch profiler's export_chrome_trace has")
    times: defaultdict[str, float] = defaultdict(float)
    for event in events:
        if isinstance(event, dict) and str(event.get("cat", "")).lower() == "kernel":
            times[str(event.get("name", ""))] += _number(event.get("dur")) or 0.0
    return dict(times)


def _of_table(text: str, path: Path) -> dict[str, float]:
    """A CSV with headings, behind any lines that a tool has written before it; or names and times alone."""
    rows = [row for row in csv.reader(io.StringIO(text)) if row]
    name, time, begin = next(
        ((*columns, at + 1) for at, row in enumerate(rows) if (columns := _columns(row)) is not None), (0, 1, 0)
    )
    times: defaultdict[str, float] = defaultdict(float)
    for row in rows[begin:]:
        value = _number(row[time]) if len(row) > max(name, time) else None
        if value is None:
            hint = "give Nsight Systems' cuda_gpu_kern_sum, a Chrome trace, or the columns problem,time"
            raise UsageError(f"the profile {path} has no time in the line {','.join(row)[:100]!r}", hint=hint)
        times[row[name].strip()] += value
    return dict(times)


def _columns(row: Sequence[str]) -> tuple[int, int] | None:
    """The places of names and times in a line of headings; None: it is none."""
    headings = [each.strip().lower() for each in row]
    name = next((headings.index(each) for each in _NAMES if each in headings), None)
    time = next((at for each in _TIMES for at, text in enumerate(headings) if text.startswith(each)), None)
    return None if name is None or time is None else (name, time)


def _number(value: object) -> float | None:
    """A time of at least 0; None: it is none."""
    try:
        number = float(str(value).replace(",", "").strip().rstrip("%"))
    except ValueError:
        return None
    return number if 0 <= number < math.inf else None
