"""Every command, end to end, as a person or a script uses it."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelwright.cli.main import main
from kernelwright.problem.load.problem import load_problem
from kernelwright.store.view import RunView
from kernelwright.template.load import load_template
from short_command import COMMAND

COMMANDS = ((), ("doctor",), ("init",), ("tune",), ("resume",), ("report",), ("export",), ("show",), ("show", "runs"),
            ("show", "run"), ("show", "candidate"))  # fmt: skip

AT_THE_END = (
    "kernelwright.report.page",
    "kernelwright.report.html.batch",
    "kernelwright.export.run",
    "kernelwright.llm.providers",
    "kernelwright.tuning.untimed.interpret",
)
"""What writes reports and exports, talks to models, and checks without a device."""

HEAVY = ("pyopencl", "torch", "cuda", "cupy", "numpy", "pandas", "sklearn", "scipy", "jinja2", "tree_sitter", "plotly")

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Runs a command in this process: exit status, standard output, standard error."""

    def invoke(*words: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit_:
            main([str(word) for word in words])
        captured = capsys.readouterr()
        assert isinstance(exit_.value.code, int | None)
        return exit_.value.code or 0, captured.out, captured.err

    return invoke


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, write_saxpy: Callable[..., Path]) -> tuple[Path, str, str]:
    """A finished run, made by the command line beside no terminal: its folder, standard output and error."""
    folder = tmp_path_factory.mktemp("recorded")
    problem = write_saxpy(folder / "saxpy", is_beatable=True)
    command = [*COMMAND, "tune", problem, "--budget", "6", "--run", "run", "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "run", done.stdout, done.stderr


@pytest.fixture
def run(recorded: tuple[Path, str, str], tmp_path: Path) -> Path:
    """A copy of the finished run, to do with as one likes."""
    return Path(shutil.copytree(recorded[0], tmp_path / "run"))


# -- what it costs to ask ----------------------------------------------------------------------------------------------


def test_import_and_help_load_nothing_heavy() -> None:
    """In one fresh interpreter: `import kernelwright`, then `--help` of every command."""
    program = f"""
import sys
import kernelwright
from kernelwright.cli.main import main
assert "typer" in sys.modules and "rich.console" not in sys.modules
for words in {COMMANDS!r}:
    try:
        main([*words, "--help"])
    except SystemExit as exit:
        assert exit.code == 0, (words, exit.code)
loaded = [name for name in {HEAVY!r} if name in sys.modules]
assert not loaded, loaded
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", ["optimize", "tune"])
def test_a_run_begins_without_what_it_needs_at_its_end(command: str) -> None:
    """In a fresh interpreter, up to the problem's file."""
    program = f"""
import sys
from kernelwright.cli.main import main
try:
    main([{command!r}, "nowhere"])
except SystemExit as exit:
    assert exit.code == 2, exit.code
assert "kernelwright.tuning.tune" in sys.modules
loaded = [name for name in {AT_THE_END!r} if name in sys.modules]
assert not loaded, loaded
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_teaches(command: tuple[str, ...], call: Call) -> None:
    status, out, err = call(*command, "--help")
    assert (status, err) == (0, "")
    assert "Usage:" in out
    assert len(out.splitlines()) > 5


def test_every_searcher_named_in_the_help_exists_and_every_example_parses(call: Call) -> None:
    from kernelwright.cli.words import parse_option
    from kernelwright.search.registry import SEARCHERS, check_options
    from kernelwright.tuning.settings import parse_budget

    out = " ".join(call("tune", "--help")[1].split())
    listed = re.search(r"--searcher (?:<str>|TEXT) (.*?)\.", out)
    assert listed is not None
    assert set(listed[1].split(", ")) == set(SEARCHERS)
    for words in re.findall(r"kernelwright tune .*?(?= kernelwright tune| Arguments:)", out):
        options = dict(re.findall(r"--(\w+) (\S+)", words))
        parse_budget(options["budget"])
        if "option" in options:
            check_options(SEARCHERS[options["searcher"]], dict([parse_option(options["option"])]))


def test_version(call: Call) -> None:
    status, out, _ = call("--version")
    assert status == 0
    assert re.fullmatch(r"kernelwright \d+\.\d+\.\d+\S*\n", out)


# -- doctor, init ------------------------------------------------------------------------------------------------------


@pytest.mark.opencl
def test_doctor_says_what_works_and_what_to_install(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "torch" else real(name, *rest))
    monkeypatch.setenv("COLUMNS", "200")
    status, out, _ = call("doctor")
    assert status == 0
    assert "device opencl" in out
    assert "pip install 'kernelwright[torch]'" in out

    status, out, _ = call("doctor", "--json")
    assert status == 0
    document = json.loads(out)
    assert document["devices"][0]["kind"] in ("cpu", "gpu")
    assert "python" in document["environment"]
    assert all({"what", "is_good", "detail", "fix", "is_needed"} == finding.keys() for finding in document["findings"])


OPENCL_SOURCE = """__kernel void scale(__global const float *x, __global float *y, float a, int n)
{
    int i = get_global_id(0);
    if (i < n) y[i] = a * x[i];
}
"""
CUDA_SOURCE = """extern "C" __global__ void scale(const float *x, float *y, float a, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i];
}
"""


@pytest.mark.parametrize(("name", "source"), [("scale.cl", OPENCL_SOURCE), ("scale.cu", CUDA_SOURCE)])
def test_init_writes_a_problem_that_loads(call: Call, in_tmp: Path, name: str, source: str) -> None:
    (in_tmp / name).write_text(source)
    status, out, err = call("init", name)
    assert (status, err) == (0, "")
    assert "next:" in out
    problem = load_problem(in_tmp / "scale")
    assert [argument.name for argument in problem.arguments] == ["x", "y", "a", "n"]
    assert load_template(problem).steps[0].entry == "scale"

    (in_tmp / "scale" / "problem.toml").write_text("mine")
    status, _, err = call("init", name)
    assert status == 2
    assert "already holds" in err
    assert (in_tmp / "scale" / "problem.toml").read_text() == "mine"
    assert call("init", name, "--force")[0] == 0
    assert (in_tmp / "scale" / "problem.toml").read_text() != "mine"


# -- a run and what is shown of it -------------------------------------------------------------------------------------


@pytest.mark.opencl
def test_tune_prints_one_document_for_scripts(recorded: tuple[Path, str, str]) -> None:
    folder, out, err = recorded
    document = json.loads(out)
    assert document.keys() == {
        "run", "problem", "device", "reason", "is_gain", "kind", "speedup", "best_config", "workloads", "counts",
        "failures", "spent_s", "prospect", "files", "verdict", "caveats", "partial",
    }  # fmt: skip
    assert document["reason"] == "budget"
    assert document["counts"]["tried"] == 6
    assert document["counts"]["feasible"] == 16
    assert document["speedup"].keys() == {"estimate", "low", "high", "confidence"}
    assert [row["workload"] for row in document["workloads"]] == ["small", "large"]
    assert all((folder.parent / name).is_file() for name in document["files"])
    assert err == ""


@pytest.mark.opencl
def test_show_runs(run: Path, call: Call) -> None:
    status, out, _ = call("show", "runs", run.parent)
    assert status == 0
    assert "saxpy" in out
    assert "finished" in out
    (row,) = json.loads(call("show", "runs", run.parent, "--json")[1])
    assert (row["name"], row["state"], row["evaluation_count"]) == ("run", "finished", 6)
    assert call("show", "runs", run.parent / "nowhere")[:2] == (2, "")


@pytest.mark.opencl
def test_show_run(run: Path, recorded: tuple[Path, str, str], call: Call) -> None:
    status, out, _ = call("show", "run", run)
    assert status == 0
    assert "configuration: BLOCK=" in out
    assert "6 tried (0 failed" in out
    assert "build" in out
    document = json.loads(call("show", "run", run, "--json")[1])
    assert document["best_config"] == json.loads(recorded[1])["best_config"]
    assert document["speedup"] == json.loads(recorded[1])["speedup"]


@pytest.mark.opencl
def test_show_candidate(run: Path, call: Call) -> None:
    event = RunView.read(run).evaluations[3]
    for wanted in ("3", event.candidate_id, event.candidate_id[:12]):
        status, out, _ = call("show", "candidate", run, wanted)
        assert status == 0
        assert event.candidate_id in out
        assert all(f"{name}={value}" in out for name, value in event.config.items())
    assert json.loads(call("show", "candidate", run, "3", "--json")[1])["config"] == dict(event.config)
    winner = RunView.read(run).fastest
    assert winner is not None
    assert winner.candidate_id in call("show", "candidate", run, "best")[1]
    assert "checked on finite inputs of usual size only" in call("show", "candidate", run, "best")[1]
    for nonsense in ("99", "xyz", "zzzzzzzzzzzz", ""):
        status, out, err = call("show", "candidate", run, nonsense)
        assert (status, out) == (2, "")
        assert "index from 0 to 5" in err


@pytest.mark.opencl
def test_report_and_export(run: Path, tmp_path: Path, call: Call) -> None:
    page = tmp_path / "page.html"
    assert call("report", run, "--out", page)[:2] == (0, f"{page}\n")
    assert "<html" in page.read_text()

    status, out, _ = call("export", run, "--out", tmp_path / "out")
    assert status == 0
    written = [Path(line) for line in out.splitlines()]
    assert {path.name for path in written} == {
        "saxpy.cl", "kernelwright_saxpy.h", "saxpy.json", "saxpy.t4.json", "saxpy.t1.json", "saxpy.choice.toml"
    }  # fmt: skip
    assert all(path.stat().st_size for path in written)
    assert call("export", run, "--format", "header", "--out", tmp_path / "one")[0] == 0
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["kernelwright_saxpy.h"]

    status, _, err = call("export", run, "--format", "haeder", "--out", tmp_path / "none")
    assert status == 2
    assert "did you mean 'header'" in err
    assert not (tmp_path / "none").exists()
    status, _, err = call("report", run, "--out", run / "events.jsonl" / "below")
    assert status == 2
    assert "kernelwright: " in err


@pytest.mark.opencl
def test_resume_of_a_finished_run_shows_it_and_measures_nothing(run: Path, call: Call) -> None:
    before = (run / "events.jsonl").read_bytes()
    status, out, _ = call("resume", run)
    assert status == 0
    assert "configuration: BLOCK=" in out
    assert (run / "events.jsonl").read_bytes() == before


@pytest.mark.opencl
def test_replay_and_priors_need_no_device(run: Path, tmp_path: Path, call: Call, in_tmp: Path) -> None:
    problem = run / "problem"
    words = ("--replay", run, "--budget", 16, "--searcher", "random", "--run", tmp_path / "again", "--json")
    status, out, _ = call("tune", problem, *words)
    assert status == 0
    document = json.loads(out)
    assert document["counts"]["tried"] == 16
    assert document["failures"] == {"time": {"not-recorded": 10}}

    # A prior is tried right after the default configuration.
    words = ("--replay", run, "--prior", run, "--budget", 2, "--searcher", "random", "--run", tmp_path / "primed")
    assert call("tune", problem, *words)[0] == 0
    fastest = min(RunView.read(run).passed, key=lambda event: (event.value is None, event.value))
    assert fastest.config in [event.config for event in RunView.read(tmp_path / "primed").evaluations]

    assert call("resume", tmp_path / "again")[0] == 0  # finished: shown


@pytest.mark.opencl
def test_quiet_shows_no_progress(run: Path, tmp_path: Path, call: Call) -> None:
    words = ("tune", run / "problem", "--replay", run, "--budget", 2, "--searcher", "random", "--no-report")
    status, _, err = call(*words, "--run", tmp_path / "loud")
    assert status == 0
    assert err
    quiet = call(*words, "--run", tmp_path / "quiet", "-q")
    assert quiet[::2] == (0, "")
    assert "configuration: BLOCK=" in quiet[1]


@pytest.mark.opencl
def test_a_run_of_a_newer_format_is_refused(run: Path, call: Call) -> None:
    log = run / "events.jsonl"
    lines = log.read_text().replace('"format": 1', '"format": 2').replace('"format":1', '"format":2')
    log.write_text(lines)
    for words in (("resume", run), ("show", "run", run), ("report", run), ("export", run)):
        status, out, err = call(*words)
        assert (status, out) == (2, "")
        assert err.count("kernelwright: ") == 1
        assert "events.jsonl:1: run folder of a newer format" in err
    assert log.read_text() == lines
    assert "unreadable" in call("show", "runs", run.parent)[1]


# -- progress ----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.opencl
def test_plain_progress_lines_where_there_is_no_terminal(beatable_saxpy: Path, in_tmp: Path, call: Call) -> None:
    status, out, err = call("tune", beatable_saxpy, "--budget", 2, "--searcher", "random", "--no-report")
    assert status == 0
    first, *lines = err.splitlines()
    assert first == "--budget 2: 2 evaluations, without a limit in time; 2 seconds are 2s"
    assert lines[0] == "reading the problem, looking for devices"
    assert any(line.startswith("baseline: small ") for line in lines)
    assert any(re.search(r"^\d+ configurations? tried, .*/s.* left$", line) for line in lines)
    assert lines[-1] == "done"
    assert "\x1b" not in err + out
    (folder,) = (in_tmp / "runs").iterdir()
    assert f"run folder: runs/{folder.name}" in out
    assert not (folder / "report.html").exists()


@pytest.mark.thorough
@pytest.mark.opencl
def test_live_progress_on_a_terminal_gives_the_cursor_back(beatable_saxpy: Path, in_tmp: Path) -> None:
    controller, terminal = pty.openpty()
    command = [*COMMAND, "tune", beatable_saxpy, "--budget", "2", "--searcher", "random"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment)
    os.close(terminal)
    shown = b""
    try:
        while chunk := os.read(controller, 65536):
            shown += chunk
    except OSError:  # Linux: the other side is gone
        pass
    assert process.wait(timeout=300) == 0
    text = shown.decode()
    assert "\x1b[?25l" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    assert "Traceback" not in text
    assert "configuration: BLOCK=" in text
