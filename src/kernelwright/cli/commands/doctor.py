"""`doctor`: what works here, and for each thing that does not: why, and what to install."""

from __future__ import annotations

import importlib.util
import json
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kernelwright import knobs
from kernelwright.evaluate.device.probe import ProbeReport, probe_devices
from kernelwright.tuning.environment import environment

OPTIONAL = (
    ("sklearn", "search", "the surrogate searcher and parameter importance"),
    ("pandas", "frame", "data frames of results"),
    ("torch", "torch", "references written in PyTorch"),
)


@dataclass(frozen=True, slots=True)
class _Finding:
    """One thing that was looked at."""

    what: str
    is_good: bool
    detail: str
    fix: str = ""
    is_needed: bool = False
    """Whether nothing works without it."""


def run_doctor(*, is_json: bool) -> int:
    """Print the findings; 0 when some device can be used and nothing that is needed is missing."""
    probe = probe_devices()
    findings = [*_devices(probe), *_measuring(probe), *_packages(), *_folders()]
    if is_json:
        document = {
            "devices": [asdict(device) for device in probe.devices],
            "findings": [asdict(finding) for finding in findings],
            "environment": environment(),
        }
        typer.echo(json.dumps(document, indent=2, default=str))
    else:
        _print(findings)
    is_broken = any(finding.is_needed and not finding.is_good for finding in findings)
    return 0 if probe.devices and not is_broken else 1


def _devices(probe: ProbeReport) -> list[_Finding]:
    found = [
        _Finding(
            f"device {device.id}",
            is_good=True,
            detail=f"{device.name} ({device.kind}, {device.driver}); "
            + ", ".join(f"{name} {value:,}" for name, value in device.limits.items()),
        )
        for device in probe.devices
    ]
    missing = [_Finding(f"backend {name}", is_good=False, detail=reason) for name, reason in probe.unavailable.items()]
    return found + missing


MEASURING = (
    ("cupti", "kernel times", "by CUPTI's records", "by events, which add about 2 us", "pip install nvidia-cuda-cupti"),
    ("nvml", "clocks and throttling", "by", "not recorded", "pip install nvidia-ml-py"),
    ("ncu", "hardware counters", "by", "not readable; everything else works without them", ""),
)
"""By fact of a device: what it is for, words when there is one, words when there is none, and what to install."""


def _measuring(probe: ProbeReport) -> list[_Finding]:
    """How times, clocks and counters are read on each device that tells."""
    findings = []
    for device in probe.devices:
        for fact, what, with_it, without, fix in MEASURING:
            note = device.facts.get(fact)
            if note is None:
                continue
            is_good = not note.startswith("no: ")
            detail = f"{with_it} {note}" if is_good else f"{without}: {note.removeprefix('no: ')}"
            findings.append(_Finding(f"{what} {device.id}", is_good=is_good, detail=detail, fix="" if is_good else fix))
    return findings


def _packages() -> list[_Finding]:
    findings = []
    for module, extra, purpose in OPTIONAL:
        is_here = importlib.util.find_spec(module) is not None
        findings.append(
            _Finding(
                f"package {module}",
                is_good=is_here,
                detail=purpose if is_here else f"not installed; needed for {purpose}",
                fix="" if is_here else f"pip install 'kernelwright[{extra}]'",
            )
        )
    return findings


def _folders() -> list[_Finding]:
    findings = []
    scratch = knobs.scratch_dir() or Path(tempfile.gettempdir())
    for name, folder, fix in (
        (
            "cache",
            knobs.cache_dir(),
            "set KERNELWRIGHT_CACHE_DIR to a folder that can be written: no run works without",
        ),
        ("scratch", scratch, "set KERNELWRIGHT_SCRATCH_DIR to a folder that can be written: no run works without"),
        ("working folder", Path.cwd(), "name run folders elsewhere with --run"),
    ):
        problem = _not_writable(folder)
        if problem:
            is_needed = name != "working folder"
            findings.append(_Finding(f"{name} {folder}", is_good=False, detail=problem, fix=fix, is_needed=is_needed))
        else:
            free_gib = shutil.disk_usage(folder).free / 2**30
            findings.append(
                _Finding(f"{name} {folder}", is_good=free_gib > 1, detail=f"writable, {free_gib:.1f} GiB free")
            )
    return findings


def _not_writable(folder: Path) -> str | None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return f"not writable: {error.strerror}"


def _print(findings: list[_Finding]) -> None:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(width=4)
    table.add_column(no_wrap=True)
    table.add_column()
    for finding in findings:
        bad = "[red]no[/]" if finding.is_needed else "[yellow]--[/]"
        mark = "[green]ok[/]" if finding.is_good else bad
        detail = finding.detail + (f"\n-> {finding.fix}" if finding.fix else "")
        table.add_row(mark, escape(finding.what), escape(detail))
    Console().print(table)
