"""The tools on the official SDK: standard input and output, or a client in the same process."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernelwright import imports, knobs
from kernelwright.mcp_tools.jobs import Jobs
from kernelwright.mcp_tools.tools import Tools
from kernelwright.mcp_tools.workspace import Workspace
from kernelwright.version import VERSION

SKILL = Path(__file__).with_name("SKILL.md")

INSTRUCTIONS = (
    "Makes GPU kernels faster, and proves it. analyse lists problems and kernels; optimize starts a job; status and "
    "result follow it; evaluate proves and measures one source or schedule of yours; explain says why; export writes "
    "the winner. What was in the workspace when the server started is what is measured. Report only numbers from here."
)


def skill_text() -> str:
    """The skill file for coding agents."""
    return SKILL.read_text(encoding="utf-8")


def tool_functions(tools: Tools) -> tuple[Callable[..., str], ...]:
    """All tools, by their methods; the description of each is its docstring."""
    return (
        tools.analyse, tools.optimize, tools.evaluate, tools.status, tools.result, tools.explain, tools.export,
        tools.budget,
    )  # fmt: skip


def mcp_server(tools: Tools) -> Any:
    """The SDK's server with all tools; each works in a thread, so that others answer meanwhile.

    Raises:
        MissingDependency: the SDK is not installed.
    """
    server = imports.require("mcp.server", purpose="tools for coding agents").MCPServer(
        "kernelwright", instructions=INSTRUCTIONS, version=VERSION, log_level="WARNING"
    )
    for function in tool_functions(tools):
        server.add_tool(_in_thread(function), description=inspect.getdoc(function), structured_output=False)
    return server


def serve(workspace: Path, *, runs: Path | None, budget_s: float, device: str | None) -> None:
    """Serve one agent on standard input and output until it leaves; then end what it has started.

    Raises:
        MissingDependency: the SDK is not installed.
        UserError: the workspace is no folder, or holds too much.
    """
    imports.require("mcp.server", purpose="tools for coding agents")
    place = Workspace(workspace)
    jobs = Jobs(place.private, budget_s)
    try:
        folder = runs if runs is not None else knobs.memory_dir().parent / "mcp-runs"
        mcp_server(Tools(place, jobs, runs=folder.resolve(), device=device)).run()
    finally:
        jobs.close()
        place.close()


def _in_thread(function: Callable[..., str]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def call(*values: Any, **named: Any) -> str:
        from anyio import to_thread

        answer: str = await to_thread.run_sync(functools.partial(function, *values, **named))
        return answer

    return call
