"""What a coding agent may do, and what it may not: the tools themselves, without the SDK."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelwright.errors import UserError
from kernelwright.export.choice import read_choices
from kernelwright.mcp_tools import jobs as jobs_module
from kernelwright.mcp_tools import tools as tools_module
from kernelwright.mcp_tools.jobs import AgentJob, Jobs
from kernelwright.mcp_tools.server import skill_text, tool_functions
from kernelwright.mcp_tools.tools import Tools, small
from kernelwright.mcp_tools.workspace import Workspace

Told = Callable[[str], dict[str, Any]]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Commands that would have been started; none is."""
    found: list[list[str]] = []

    def start(self: Jobs, kind: str, words: list[Any], folder: Path, *, limit_s: float) -> AgentJob:
        found.append([str(each) for each in words])
        raise UserError("not started", hint="by this test")

    monkeypatch.setattr(Jobs, "start", start)
    return found


# -- what is there -----------------------------------------------------------------------------------------------------


def test_there_are_at_most_eight_tools_each_with_words(tools: Tools) -> None:
    functions = tool_functions(tools)
    assert len(functions) <= 8
    assert all(function.__doc__ and len(function.__doc__) < 800 for function in functions)
    assert all(f"`{each.__name__}(" in skill_text() or f"{each.__name__}(" in skill_text() for each in functions)


def test_without_a_kernel_the_workspace_is_listed(tools: Tools, told: Told) -> None:
    assert told(tools.analyse())["problems"] == ["matmul"]


def test_a_kernel_is_analysed_in_few_words(tools: Tools, told: Told) -> None:
    answer = told(tools.analyse("matmul/baseline.cl"))
    assert "contraction" in answer["analysis"]
    assert "/tmp" not in answer["analysis"]


def test_what_was_asked_wrongly_is_answered(tools: Tools, told: Told) -> None:
    for answer in (
        tools.status("none"),
        tools.result(),
        tools.explain("optimize-9"),
        tools.export("x", ["source"]),
        tools.optimize("matmull"),
        tools.optimize("matmul", budget="forever"),
        tools.optimize("matmul", budget="200"),
        tools.optimize("matmul", budget="2h"),
        tools.optimize("matmul", stage="--help"),
        tools.evaluate("matmul", config={"NONE": 1}),
        tools.evaluate("matmul/baseline.cl"),
        tools.evaluate("matmul", source="not a kernel"),
    ):
        assert told(answer)["error"]
    assert "did you mean 'matmul'" in told(tools.optimize("matmull"))["next"]


# -- the fence ---------------------------------------------------------------------------------------------------------

PATHS = (
    "../secret", "/etc/passwd", "matmul/../../secret", "", ".", "a\0b", "~/x", "link", "matmul/link.cl", "x" * 5000,
    "-h", "--run", "matmul/\n", "file:///etc/passwd",
)  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_no_path_leads_out_of_the_workspace(tmp_path: Path, path: str, told: Told, started: list[list[str]]) -> None:
    root = tmp_path / "root"
    (root / "matmul").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "problem.toml").write_text("name = 'secret'\n")
    (tmp_path / "k.cl").write_text("__kernel void secret(__global float *x) { x[0] = 1; }\n")
    (root / "link").symlink_to(tmp_path / "secret")
    (root / "matmul" / "link.cl").symlink_to(tmp_path / "k.cl")
    workspace = Workspace(root)
    try:
        tools = Tools(workspace, Jobs(workspace.private, 60), runs=tmp_path / "runs")
        for answer in (tools.optimize(path), tools.evaluate(path), tools.analyse(path) if path else '{"error": 1}'):
            assert "error" in json.loads(answer)
            assert "secret" not in answer or "secret" in path
        for words in started:
            assert words[1].startswith(str(workspace.private))
    finally:
        workspace.close()


@pytest.mark.parametrize(
    "size", ["--run=/tmp/x", "-h", "rows", "rows=1;ls", "rows=$(ls)", "a=b c", "=1", "x=" + "9" * 99]
)
def test_words_for_sizes_are_sizes(tools: Tools, told: Told, started: list[list[str]], size: str) -> None:
    assert "is no size" in told(tools.optimize("matmul/baseline.cl", [size]))["error"]
    assert not started


HOSTILE = {
    "huge": "a" * 5_000_000,
    "include": '#include "/etc/passwd"\n',
    "assembly": 'void f() { asm("trap;"); }\n',
    "library": 'void f() { system("ls"); }\n',
    "invisible": "// \u202e\n",
    "undefined": "float secret(float);\n",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_source_that_a_model_may_not_write_no_agent_may(
    tools: Tools, told: Told, root: Path, started: list[list[str]], name: str
) -> None:
    source = (root / "matmul" / "matmul.cl").read_text() + HOSTILE[name]
    assert told(tools.evaluate("matmul", source=source))["error"]
    assert not started


@pytest.mark.parametrize(
    "option", ["-I/etc", "-include /etc/passwd", "-DX=$(ls)", "--output-file=/tmp/x", "-fplugin=/tmp/x.so"]
)
def test_options_in_a_source_are_those_that_a_model_may_give(
    tools: Tools, told: Told, root: Path, started: list[list[str]], option: str
) -> None:
    source = (root / "matmul" / "matmul.cl").read_text()
    assert "// [parameters]" in source
    hostile = source.replace("// [parameters]", f'// options = ["{option}"]\n// [parameters]', 1)
    assert "compile option" in told(tools.evaluate("matmul", source=hostile))["error"]
    assert not started


@pytest.mark.parametrize("value", ["8\n#include </etc/passwd>", 8.5, 10**30, None, [8], {"a": 1}, True, "8"])
def test_a_schedule_has_declared_values_only(tools: Tools, told: Told, started: list[list[str]], value: object) -> None:
    answer = told(tools.evaluate("matmul", config={"VEC": value}))
    assert "VEC cannot be" in answer["error"]
    assert not started


def test_references_and_tolerances_are_those_of_the_start(tools: Tools, told: Told, root: Path) -> None:
    """What an agent writes into its folder changes nothing that is measured."""
    before = (root / "matmul" / "reference.py").read_bytes()
    (root / "matmul" / "reference.py").write_text("def matmul(a, b, m, n, k):\n    return 0 * (a @ b)\n")
    problem = root / "matmul" / "problem.toml"
    problem.write_text(problem.read_text() + "\n[tolerance]\nc = { rtol = 1e9 }\n")
    (root / "new").mkdir()
    (root / "new" / "problem.toml").write_text(problem.read_text())
    assert "start it again" in told(tools.evaluate("new"))["next"]
    seen: list[Path] = []

    def start(kind: str, words: list[Any], folder: Path, *, limit_s: float) -> AgentJob:
        seen.append(folder)
        raise UserError("not started", hint="by this test")

    tools._jobs.start = start  # type: ignore[method-assign]
    tools.evaluate("matmul")
    (choice,) = read_choices(next(seen[0].iterdir()))
    assert choice.files["reference.py"] == before
    assert b"rtol = 1e9" not in choice.files["problem.toml"]
    assert not list(root.rglob("*.choice.toml"))


def test_exports_go_into_a_new_folder_and_through_no_link(tools: Tools, root: Path, tmp_path: Path) -> None:
    workspace = tools._workspace
    first, second = workspace.export_folder("optimize-1"), workspace.export_folder("optimize-1")
    assert (first.name, second.name) == ("optimize-1", "optimize-1-2")
    for folder in (first, second):
        folder.rmdir()
    (root / "exports").rmdir()
    (root / "exports").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="is a link"):
        workspace.export_folder("optimize-1")


def test_a_workspace_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelwright.mcp_tools.workspace.MOST_FILES", 3)
    for number in range(4):
        (tmp_path / f"{number}.cl").write_text("x")
    with pytest.raises(UserError, match="holds more than 3 files"):
        Workspace(tmp_path)


# -- answers and jobs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "document",
    [
        {"text": "\u00e4" * 100_000, "next": "go on"},
        {"list": ["x" * 500] * 500, "next": "go on"},
        {"map": {f"{number}" * 50: "y" * 400 for number in range(300)}, "next": "go on"},
        {"deep": [[{"a": "z" * 4000}] * 40] * 40, "next": "go on"},
    ],
)
def test_every_answer_is_small(document: dict[str, Any]) -> None:
    answer = small(document)
    assert len(answer.encode()) <= tools_module.MOST_ANSWER
    assert json.loads(answer)["next"] == "go on"


@pytest.fixture
def sleeping(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Jobs:
    """Jobs whose command sleeps, with a child, and hears no request to end."""
    script = "import os, signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    script += "child = subprocess.Popen(['sleep', '600']); print(child.pid, flush=True); time.sleep(600)"
    monkeypatch.setattr(jobs_module, "_COMMAND", (jobs_module.sys.executable, "-c", script))
    monkeypatch.setattr(jobs_module, "STOP_S", 0.3)
    return Jobs(tmp_path, 1000.0)


PATIENCE_S = 120.0


def _child_of(job: AgentJob) -> int:
    end_s = time.monotonic() + PATIENCE_S
    while not job.text("stdout").strip() and time.monotonic() < end_s:
        time.sleep(0.02)
    return int(job.text("stdout"))


def _is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{process_id}/stat").read_text().split()[2] != "Z"


def _ends(process_id: int) -> bool:
    end_s = time.monotonic() + PATIENCE_S
    while _is_alive(process_id) and time.monotonic() < end_s:
        time.sleep(0.02)
    return not _is_alive(process_id)


def test_a_job_that_is_stopped_ends_with_all_that_it_started(sleeping: Jobs, tmp_path: Path) -> None:
    job = sleeping.start("optimize", [], tmp_path, limit_s=600)
    child = _child_of(job)
    with pytest.raises(UserError, match="is under way"):
        sleeping.start("optimize", [], tmp_path, limit_s=600)
    sleeping.stop(job)
    assert not job.is_running
    assert job.process.returncode == -signal.SIGKILL
    assert _ends(child)
    assert 0 < sleeping.spent_s < 600


def test_a_job_that_exceeds_its_limit_is_killed(sleeping: Jobs, tmp_path: Path) -> None:
    for limit_s in (1.5, 15, 120):  # until it was long enough for a child to be started
        job = sleeping.start("optimize", [], tmp_path, limit_s=limit_s)
        job.process.wait(limit_s + PATIENCE_S)
        if child := job.text("stdout").strip():
            break
    assert _ends(int(child))
    assert sleeping.running is None


def test_a_spent_budget_starts_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is spent"):
        Jobs(tmp_path, 0.0).start("optimize", [], tmp_path, limit_s=1)
