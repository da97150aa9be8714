"""The eight tools: each takes plain values and gives one small JSON document with what to do next.

Every number comes from a command of Kernelwright that measured it in a process of its own, so from the referee's
record; nothing that an agent says is one. Sources pass the fence that models' pass, and are never put into a problem's
folder, a run, a reference or a tolerance.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernelwright.agent.model.anchors import Malformed
from kernelwright.agent.model.drafting import check_text
from kernelwright.agent.model.hostile import MOST_SOURCE_CHARACTERS, check_header
from kernelwright.errors import KernelwrightError, StoreError, UserError
from kernelwright.export.choice import Choice, write_choice
from kernelwright.export.run import FORMATS
from kernelwright.export.subject import ExportedRun
from kernelwright.mcp_tools.jobs import AgentJob, Jobs, quick_command
from kernelwright.mcp_tools.workspace import Workspace
from kernelwright.optimization.nodes.problem import node_files, template_name
from kernelwright.problem.config import Config
from kernelwright.report.text import clean
from kernelwright.store.run_folder import default_run_path
from kernelwright.store.view import RunView
from kernelwright.template.header import header_toml
from kernelwright.template.load import problem_files, template_of_text
from kernelwright.tuning.settings import parse_budget
from kernelwright.tuning.tune import TuningProblem

MOST_ANSWER = 2_000
"""Bytes of an answer: an agent reads many."""
WAIT_S = 25.0
"""`evaluate` answers at once where it is done by then; clients give up after a minute."""
CHECK_S = 90.0
"""A check of one kernel ends itself after 60 s; a process that does not is killed."""
MOST_FACTOR, MOST_MORE_S = 1.3, 60.0
"""A run ends itself at 1.2 times its budget and some seconds."""

Words = list[str | Path]

_SIZE = re.compile(r"[A-Za-z_]\w{0,60}=[\w.+-]{1,60}")


class Tools:
    """What an agent may call. Errors are answers too: `error` says what was wrong, `next` what to do."""

    def __init__(self, workspace: Workspace, jobs: Jobs, *, runs: Path, device: str | None = None) -> None:
        """Runs are made in `runs`, on a device that a person chose."""
        self._workspace = workspace
        self._jobs = jobs
        self._runs = runs
        self._device = ["--device", device] if device else []
        self._evaluations = 0

    def analyse(self, kernel: str = "") -> str:
        """Say what is understood of a kernel: indices, loops, accesses, pattern. Without one: list what is there.

        Args:
            kernel: a source file, relative to the workspace.
        """
        return self._answered(lambda: self._analysed(kernel))

    def optimize(
        self, problem: str, sizes: list[str] | None = None, budget: str = "120s", stage: str = "optimize"
    ) -> str:
        """Start a job that makes a kernel faster and proves it. It goes on by itself: ask `status`, then `result`.

        Args:
            problem: a problem's folder, or a kernel source with `sizes`, relative to the workspace.
            sizes: of a plain kernel's by-value arguments, as in ["rows=2048", "eps=1e-5"].
            budget: such as "120s" or "5m"; must have a limit in time.
            stage: "optimize" rewrites and tunes; "tune" searches the parameters of the problem's template only.
        """
        return self._answered(lambda: self._optimized(problem, sizes or [], budget, stage))

    def evaluate(self, problem: str, source: str = "", config: dict[str, Any] | None = None) -> str:
        """Prove one source or one schedule, and measure it against the baseline, interleaved, in at most 60 s.

        Args:
            problem: a problem's folder, relative to the workspace; or a finished job, for its problem and winner.
            source: a whole kernel source with the template header of the problem's; empty: the problem's own template.
            config: values of its parameters; the default of one that is not in it.
        """
        return self._answered(lambda: self._evaluated(problem, source, config or {}))

    def status(self, job: str = "", stop: bool = False) -> str:
        """Say how far a job is; with `stop` end it: what was measured by then stays.

        Args:
            job: its name; empty: the last one.
            stop: whether to end it.
        """
        return self._answered(lambda: self._status(job, is_stopping=stop))

    def result(self, job: str = "") -> str:
        """Give what a finished job may claim: verdict, speedup with its interval, configuration, by workload.

        Args:
            job: its name; empty: the last one.
        """
        return self._answered(lambda: self._result(self._finished(job)))

    def explain(self, job: str = "", node: int = -1) -> str:
        """Explain a finished run in words: its tree and findings, or one structure of it.

        Args:
            job: its name; empty: the last one.
            node: a structure's number; below 0: the whole run.
        """
        return self._answered(lambda: self._explained(self._run_of(job), node))

    def export(self, job: str = "", formats: list[str] | None = None) -> str:
        """Write a finished run's winner into the workspace's `exports/`, into a new folder.

        Args:
            job: its name; empty: the last one.
            formats: source, header, torch, module, json, t4, t1, choice; empty: all that fit.
        """
        return self._answered(lambda: self._exported(self._run_of(job), formats or []))

    def budget(self) -> str:
        """Say how many seconds of measuring are left, and what is under way."""
        return self._answered(self._budget)

    # -- what they do ------------------------------------------------------------------------------------------------

    def _analysed(self, kernel: str) -> dict[str, Any]:
        if not kernel:
            return {
                "problems": self._workspace.problems()[:30],
                "kernels": self._workspace.kernels()[:30],
                "next": "optimize a problem, or a kernel with sizes; analyse a kernel to see what is understood of it",
            }
        status, text = quick_command(["analyse", self._workspace.frozen(kernel)], folder=self._workspace.private)
        if status:
            raise UserError(self._without_paths(text))
        return {"analysis": text, "next": "optimize it, or write a source and evaluate it"}

    def _optimized(self, problem: str, sizes: list[str], budget: str, stage: str) -> dict[str, Any]:
        if stage not in ("optimize", "tune"):
            raise UserError(f"the stage {stage[:60]!r} is unknown", hint='say "optimize" or "tune"')
        if wrong := [each for each in sizes if not _SIZE.fullmatch(each)]:
            raise UserError(f"{wrong[0][:60]!r} is no size", hint='say ["rows=2048", "eps=1e-5"]')
        seconds = parse_budget(budget).seconds
        if seconds is None:
            raise UserError(f"the budget {budget[:60]!r} has no limit in time", hint='say "120s"')
        if seconds > self._jobs.left_s:
            raise UserError(f"{seconds:g} s are asked, {self._jobs.left_s:.0f} s are left", hint="ask for less")
        path = self._workspace.frozen(problem)
        run = default_run_path(path.stem, folder=self._runs)
        words: Words = [stage, path, *sizes, "--budget", budget, "--run", run, "--json", "--quiet", *self._device]
        if path.is_file() and path.suffix != ".toml":
            words += ["--out", self._workspace.private / "problems" / run.name]
        job = self._jobs.start(stage, words, run, limit_s=MOST_FACTOR * seconds + MOST_MORE_S)
        return {"job": job.name, "state": "running", "next": f"ask status of {job.name} in about {seconds:.0f} s"}

    def _evaluated(self, problem: str, source: str, config: Mapping[str, Any]) -> dict[str, Any]:
        if len(source) > MOST_SOURCE_CHARACTERS:
            raise Malformed(f"the source has {len(source)} characters, at most {MOST_SOURCE_CHARACTERS} are taken")
        subject = self._subject(problem)
        text = source or subject.template.source
        if source:
            original = f"{subject.template.source}\n{subject.baseline.template.source}"
            check_text(source, original, subject.template.language)
            if header := header_toml(source):
                check_header(header, original)
        template = template_of_text(subject.problem, text, spec=subject.problem.kernel)
        chosen = {each.name: each.default for each in template.parameters}
        for name, value in config.items():
            known = next((each for each in template.parameters if each.name == name), None)
            if known is None:
                raise UserError(f"there is no parameter {name[:60]!r}", hint=f"there are {', '.join(chosen) or 'none'}")
            same = [
                each for each in known.values if each == value and isinstance(each, bool) == isinstance(value, bool)
            ]
            if not same:
                raise UserError(f"{name} cannot be {str(value)[:60]!r}", hint=f"it may be one of {list(known.values)}")
            chosen[name] = same[0]
        folder = self._choice(subject, text, Config(chosen))
        words: Words = ["check", folder, "--rounds", "20", "--json", "--quiet", *self._device]
        job = self._jobs.start("evaluate", words, folder, limit_s=CHECK_S)
        end_s = time.monotonic() + WAIT_S
        while job.is_running and time.monotonic() < end_s:
            time.sleep(0.05)
        if job.is_running:
            return {"job": job.name, "state": "running", "next": f"ask result of {job.name} in 30 s"}
        return self._result(job)

    def _subject(self, problem: str) -> TuningProblem:
        if re.fullmatch(r"(optimize|tune)-\d+", problem):
            job = self._run_of(problem)
            if job.is_running:
                raise UserError(f"{job.name} is still running", hint="wait, or stop it with status")
            return ExportedRun.read(job.folder).subject
        return TuningProblem.load(self._workspace.frozen(problem))

    def _choice(self, subject: TuningProblem, text: str, config: Config) -> Path:
        """A folder outside of the agent's with the source as a choice of the frozen problem."""
        own = subject.problem
        files = problem_files(own, subject.template, subject.baseline)
        changed = node_files(own, files, text=text, options=own.kernel.options, root=own.baseline or own.kernel)
        self._evaluations += 1
        folder = self._workspace.private / "evaluations" / str(self._evaluations)
        choice = Choice(
            kernel=own.name,
            device="proposed",
            configs=(config,),
            serves={workload.name: 0 for workload in own.workloads},
            speedups={},
            others=(),
            files=changed,
            problem=own.file.name,
            template=template_name(own, files),
            origin={"language": own.kernel.language},
        )
        write_choice(folder, choice)
        return folder

    def _status(self, name: str, *, is_stopping: bool) -> dict[str, Any]:
        job = self._jobs.get(name)
        if is_stopping:
            self._jobs.stop(job)
        state = "running" if job.is_running else "stopped" if job.is_stopped else "finished"
        told: dict[str, Any] = {"job": job.name, "state": state, "seconds": round(job.seconds, 1)}
        if job.kind != "evaluate":
            told |= _progress(job.folder)
        return {**told, "next": f"ask {'status' if job.is_running else 'result'} of {job.name}"}

    def _finished(self, name: str) -> AgentJob:
        job = self._jobs.get(name)
        if job.is_running:
            raise UserError(f"{job.name} is still running", hint=f"ask status of {job.name}")
        return job

    def _run_of(self, name: str) -> AgentJob:
        job = self._jobs.get(name)
        if job.kind == "evaluate":
            raise UserError(f"{job.name} is no run", hint="name a job of optimize; result tells all of an evaluation")
        return job

    def _result(self, job: AgentJob) -> dict[str, Any]:
        try:
            document = json.loads(job.text("stdout"))
        except ValueError:
            told = self._without_paths(job.text("stderr")).strip() or "it was ended before it could say anything"
            raise UserError(f"{job.name} gave no result: {told[-800:]}", hint="correct that, and try again") from None
        return _of_check(job, document) if job.kind == "evaluate" else _of_run(job, document)

    def _explained(self, job: AgentJob, node: int) -> dict[str, Any]:
        words: Words = ["show", "run", job.folder] if node < 0 else ["show", "node", job.folder, str(node)]
        status, text = quick_command(words, folder=self._workspace.private)
        if status:
            raise UserError(self._without_paths(text))
        lines = [line.rstrip() for line in text.splitlines() if line.strip(" ─")]
        return {
            "explanation": self._without_paths("\n".join(lines)),
            "next": "explain a node by its number, evaluate another source, or export",
        }

    def _exported(self, job: AgentJob, formats: list[str]) -> dict[str, Any]:
        if unknown := [each for each in formats if each not in FORMATS]:
            raise UserError(f"unknown format {unknown[0][:60]!r}", hint=f"formats are {', '.join(FORMATS)}")
        job = self._finished(job.name)
        folder = self._workspace.export_folder(job.name)
        words: Words = ["export", job.folder, "--out", folder, "--json"]
        words += [word for each in formats for word in ("--format", each)]
        status, text = quick_command(words, folder=self._workspace.private)
        if status:
            folder.rmdir()
            raise UserError(self._without_paths(text))
        written = [str(Path(each).relative_to(self._workspace.root)) for each in json.loads(text)["files"]]
        return {"files": written, "next": "use them; a person runs `kernelwright check` in CI to see that they hold"}

    def _budget(self) -> dict[str, Any]:
        job = self._jobs.running
        return {
            "spent_s": round(self._jobs.spent_s, 1),
            "left_s": round(self._jobs.left_s, 1),
            "running": job.name if job is not None else None,
            "next": "evaluate takes about 20 s, optimize what you give it",
        }

    # -- answers -----------------------------------------------------------------------------------------------------

    def _answered(self, make: Any) -> str:
        """The answer, or what was wrong; small in any case."""
        try:
            told = make()
        except Malformed as error:
            told = {"error": str(error), "next": "write the source without it"}
        except KernelwrightError as error:
            told = {"error": error.message, "next": error.hint or "correct that, and try again"}
            if error.location is not None:
                told["line"] = error.location.line
        except (OSError, ValueError, TypeError) as error:
            told = {"error": f"{type(error).__name__}: {error}", "next": "try other words"}
        return small({name: self._cleaned(value) for name, value in told.items()})

    def _cleaned(self, value: Any) -> Any:
        return self._without_paths(clean(value)) if isinstance(value, str) else value

    def _without_paths(self, text: str) -> str:
        """Without the names of folders that are none of an agent's business."""
        for path, name in (
            (self._workspace.private / "frozen", "."),
            (self._workspace.private, "."),
            (self._runs, "runs"),
        ):
            text = text.replace(f"{path}/", "").replace(str(path), name)
        return text


def small(told: Mapping[str, Any]) -> str:
    """A document of at most `MOST_ANSWER` bytes: lists lose their ends, and then texts their middles."""
    shown = dict(told)
    for most in (1500, 1000, 600, 300, 120, 40):
        text = json.dumps(shown, ensure_ascii=False)
        if len(text.encode()) <= MOST_ANSWER:
            return text
        shown = {name: _shortened(value, most) for name, value in shown.items()}
    return json.dumps({"error": "the answer is too long", "next": str(told.get("next", ""))[:200]})


def _shortened(value: Any, most: int) -> Any:
    if isinstance(value, str) and len(value.encode()) > most:
        half = most // 2
        data = value.encode()
        return f"{data[:half].decode(errors='ignore')} [...] {data[-half:].decode(errors='ignore')}"
    if isinstance(value, list | tuple):
        return list(value[: max(1, most // 100)])
    if isinstance(value, dict):
        kept = list(value.items())[: max(1, most // 60)]
        return {str(name)[:80]: _shortened(each, most // 4) for name, each in kept}
    return value


def _progress(run: Path) -> dict[str, Any]:
    """What the record of a run says by now."""
    try:
        view = RunView.read(run)
    except (StoreError, KernelwrightError):
        return {"phase": "prepare"}
    nodes = {event.index for event in view.tree_events if hasattr(event, "index")}
    told: dict[str, Any] = {"evaluated": view.evaluated_count, "spent_s": round(view.spent_s, 1)}
    if nodes:
        told["structures"] = len(nodes)
    return told


def _of_check(job: AgentJob, document: Mapping[str, Any]) -> dict[str, Any]:
    found = document["choices"][0]
    told = {name: each["speedup"] for name, each in found["workloads"].items()}
    kind = {"wrong": "wrong", "not checked": "not checked"}.get(found["kind"])
    if kind is None:
        sides = {"faster" if each["low"] > 1 else "slower" if each["high"] < 1 else "open" for each in told.values()}
        kind = sides.pop() if len(sides) == 1 else "mixed"
    speedups = {
        name: f"{each['estimate']:.4g}x [{each['low']:.4g}, {each['high']:.4g}] of the baseline's speed"
        for name, each in told.items()
    }
    advice = {
        "wrong": "repair it: it does not compute what the reference does, or does not build or run here",
        "not checked": "correct the problem, or ask a person",
        "faster": "try the next idea, or let optimize tune it as the problem's template",
    }
    return {
        "job": job.name,
        "verdict": kind,
        **({"why": found["words"]} if kind in ("wrong", "not checked") else {"speedups": speedups}),
        "next": advice.get(kind, "try another idea; explain a run to see what limits it"),
    }


def _of_run(job: AgentJob, document: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "job": job.name,
        "verdict": document.get("verdict"),
        "is_gain": document.get("is_gain"),
        "speedup": document.get("speedup"),
        "config": document.get("best_config"),
        "workloads": [
            {name: each.get(name) for name in ("workload", "baseline_ms", "best_ms", "finding")}
            for each in document.get("workloads", [])
        ],
        "caveats": document.get("caveats", []),
        "next": f"explain {job.name} to see why, evaluate other sources against it, or export it",
    }
