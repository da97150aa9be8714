"""`mcp`: serve a coding agent."""

from __future__ import annotations

import json
import math
from pathlib import Path

import typer

from kernelwright.errors import UsageError
from kernelwright.mcp_tools.server import serve, skill_text
from kernelwright.tuning.settings import parse_budget


def run_mcp(
    workspace: Path | None, *, budget: str, runs: Path | None, device: str | None, is_skill: bool, is_json: bool
) -> None:
    """Print the skill, or serve until the agent leaves.

    Raises:
        UsageError: no workspace is named, or the budget has no time.
    """
    if is_skill:
        typer.echo(json.dumps({"skill": skill_text()}) if is_json else skill_text())
        return
    if workspace is None:
        raise UsageError("no workspace is named", hint="say `kernelwright mcp FOLDER`, the folder of the kernels")
    seconds = parse_budget(budget).seconds
    if seconds is None or not math.isfinite(seconds):
        raise UsageError(f"the budget {budget!r} has no limit in time", hint="say 30m")
    serve(workspace, runs=runs, budget_s=seconds, device=device)
