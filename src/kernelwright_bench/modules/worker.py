"""The worker that runs a module's answer beside PyTorch: what differs, what no check can tell, and times in turns.

It alone runs both files.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import importlib
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from kernelwright.errors import Location, ReferenceFailed
from kernelwright.export.torch.agreement import TOLERANCE, agree, results_of, tolerance_of
from kernelwright.imports import require
from kernelwright.problem.user_code import blamed_on_user
from kernelwright_bench.modules.parts import PartFailed, watched

FACTORY = f"{__name__}:make_timer"
SEED = 42
"""Seed of weights and of the first inputs, as KernelBench has it."""
SAMPLE_S = 0.002
"""A warm sample is at least about so long: several calls where one is shorter."""
FLUSHED_BYTES = 256 << 20
"""Written before each cold call, as the official evaluator does; more than any GPU's last cache."""
UNSEEN = 10_000
"""Added to the seed for inputs that the answer has not seen while it was timed."""
PLAIN = "plain program"
"""What was not tuned: the plain kernels, with the same library calls."""
LEAST_ROUNDS = 6
"""So many in any time: fewer give no interval with 95 % confidence."""
PARTS = ("check", "compile", "time")
"""Of a judgement; the last needs the others' results."""
BESIDE = 10
"""A compiler that others do not wait for yet is so much nicer than they are."""
MODES: Mapping[str, Mapping[str, str]] = {"compiled": {}, "max-autotune": {"mode": "max-autotune"}}


def make_timer(argument: object) -> Callable[[Any], object]:
    """The handler: a job to its record; with an argument that is true, PyTorch is loaded before the first job.

    A job has `module` and `answer` (files), `device`, `rounds`, `modes` (names of `MODES`), `trials` (how many inputs
    are compared), `is_cold` (each call on its own with a cold cache, by the GPU's clock) and `most_s` (for all rounds).
    `plain`, which may be None, is the file of the plain program, timed beside the answer where both are right.
    With `parts`, some of `PARTS`, it asks for these alone; what they found is kept for later jobs with that answer.
    """
    if argument:
        with contextlib.suppress(ImportError):  # which the first job tells
            importlib.import_module("torch")
    return _Timer()


_NAMES = ("module", "answer", "plain")
"""Of the files' modules."""


class _Timer:
    """One answer's judgement, part by part; then the next one's."""

    def __init__(self) -> None:
        self._answer: str | None = None
        self._calls: dict[str, Any] = {}
        self._module: Any = None
        self._inputs: list[Any] = []
        """What the check loaded and made, and no call has seen."""
        self._answered: Any = None
        self._first: dict[str, float] = {}
        self._refused: dict[str, str] = {}

    def __call__(self, job: Mapping[str, Any]) -> dict[str, Any]:
        sys.dont_write_bytecode = True
        os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"  # a first call compiles, whatever ran here before
        torch = require("torch", purpose="running a module beside its answer")
        if job["answer"] != self._answer:
            self._forget(torch, str(job["answer"]))
        record = {"torch": str(torch.__version__), "differs": "", "errors": {}, "notes": [], "refused": {}}
        record |= {"samples_s": {}, "parts_s": [], "compile_s": self._first}
        for part in job.get("parts", PARTS):
            if record["differs"]:
                break
            with torch.no_grad():
                record |= {"check": self._check, "compile": self._compile, "time": self._time}[part](torch, job)
            if job["device"] == "cuda":
                torch.cuda.empty_cache()  # others have answers on this GPU, too
        return record

    def _forget(self, torch: Any, answer: str) -> None:
        """Nothing of the answer before is left but what PyTorch has loaded."""
        self._calls, self._answered, self._first, self._refused = {}, None, {}, {}
        self._module, self._inputs = None, list[Any]()
        if self._answer is not None:
            for name in _NAMES:
                sys.modules.pop(name, None)  # with the weights that it has made
            torch.compiler.reset()
            gc.collect()
        self._answer = answer

    def _check(self, torch: Any, job: Mapping[str, Any]) -> dict[str, Any]:
        module, answer, device = Path(job["module"]), Path(job["answer"]), str(job["device"])
        with blamed_on_user(module, doing="running the module"):
            loaded = self._module = _loaded(module, "module")
            inputs = self._inputs = _inputs(torch, loaded, SEED, device)
            notes = _notes(torch, loaded, inputs, device)
            self._calls["eager"] = _made(torch, loaded, "Model", device)
        with blamed_on_user(answer, doing="running the answer"):
            begun = time.perf_counter()
            answered = self._answered = _loaded(answer, "answer")
            new = self._calls["answer"] = _made(torch, answered, "ModelNew", device)
            try:
                with watched(answered, partial(_wait, torch, device)):
                    new(*_own(inputs))
            except PartFailed as error:
                return {"differs": str(error), "notes": notes}
            self._first["answer"] = time.perf_counter() - begun
            differs = _difference(torch, loaded, answered, int(job["trials"]), device)
            errors, why = _errors(torch, loaded, answered, device) if not differs else ({}, "")
        notes += [f"not compared with the module in float64: {why}"] if why else []
        return {"differs": differs or _too_far(errors), "errors": errors, "notes": notes + self._plain(torch, job)}

    def _plain(self, torch: Any, job: Mapping[str, Any]) -> list[str]:
        """Make the plain program ready to be timed; why it cannot be is a note."""
        if job.get("plain") is None:
            return []
        file, device = Path(job["plain"]), str(job["device"])
        with blamed_on_user(file, doing="running the plain program"):
            loaded, plain = _loaded(Path(job["module"]), "module"), _loaded(file, "plain")
            try:
                differs = _difference(torch, loaded, plain, 1, device)
            except Exception as error:  # the answer is judged all the same
                differs = f"{type(error).__name__}: {error}"
            if not differs:
                self._calls[PLAIN] = _made(torch, plain, "ModelNew", device)
        return [f"the plain program was not timed: {differs}"] if differs else []

    def _compile(self, torch: Any, job: Mapping[str, Any]) -> dict[str, Any]:
        module, device = Path(job["module"]), str(job["device"])
        if list(job.get("parts", PARTS)) == ["compile"]:
            os.setpriority(os.PRIO_PROCESS, 0, max(BESIDE, os.getpriority(os.PRIO_PROCESS, 0)))
        with blamed_on_user(module, doing="compiling the module"):
            loaded = _loaded(module, "module")
            inputs = _inputs(torch, loaded, SEED, device)
            compiled, refused = _compiled(torch, loaded, inputs, job, self._first)
        self._calls |= compiled
        self._refused |= refused
        return {}

    def _time(self, torch: Any, job: Mapping[str, Any]) -> dict[str, Any]:
        module, device, new = Path(job["module"]), str(job["device"]), self._calls["answer"]
        with blamed_on_user(module, doing="timing the module"):
            loaded, inputs = self._module, self._inputs
            calls = {"answer": new, "eager": self._calls["eager"], **self._calls}
            watch = _cold(torch) if job["is_cold"] and device == "cuda" else _warm(torch, device)
            parts = partial(_parts, torch, self._answered, partial(new, *_own(inputs)), device)
            try:
                samples, parts_s = _samples(calls, inputs, watch, parts, int(job["rounds"]), float(job["most_s"]))
            except PartFailed as error:
                return {"differs": str(error)}
            unseen = _inputs(torch, loaded, SEED + UNSEEN, device)
            wanted = results_of(_made(torch, loaded, "Model", device)(*_own(unseen)))
            if not all(agree(torch, *pair) for pair in zip(wanted, results_of(new(*unseen)), strict=True)):
                return {"differs": "what was timed differs on inputs that it had not seen"}
        return {"refused": self._refused, "samples_s": samples, "parts_s": parts_s}


def _loaded(file: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ReferenceFailed(f"{file.name} is not a Python file", location=Location(file))
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def _made(torch: Any, loaded: Any, name: str, device: str) -> Any:
    """A module as its constructor leaves it under the seed, which runs once for all: weights can take it seconds.

    One that holds what cannot be copied, like an extension that it has compiled, is constructed each time.
    """
    known = vars(loaded).setdefault("_kernelwright_made", {})
    if name not in known:
        known[name] = _constructed(torch, loaded, name, device)
    with contextlib.suppress(Exception):  # copying runs code of all that it holds
        return copy.deepcopy(known[name])
    return _constructed(torch, loaded, name, device)


def _constructed(torch: Any, loaded: Any, name: str, device: str) -> Any:
    torch.manual_seed(SEED)
    return getattr(loaded, name)(*loaded.get_init_inputs()).to(device)


def _inputs(torch: Any, loaded: Any, seed: int, device: str) -> list[Any]:
    torch.manual_seed(seed)
    return [each.to(device) if hasattr(each, "to") else each for each in loaded.get_inputs()]


def _own(inputs: Sequence[Any]) -> list[Any]:
    """Copies of tensors: what one call writes into its inputs, no other sees."""
    return [each.clone() if hasattr(each, "clone") else each for each in inputs]


def _wait(torch: Any, device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _difference(torch: Any, loaded: Any, answered: Any, trials: int, device: str) -> str:
    """Where the answer differs from eager PyTorch, in words; empty: nowhere. Both keep their state between trials."""
    model, new = _made(torch, loaded, "Model", device), _made(torch, answered, "ModelNew", device)
    for trial in range(trials):
        inputs = _inputs(torch, loaded, SEED + trial, device)
        wanted, found = results_of(model(*_own(inputs))), results_of(new(*inputs))
        if len(wanted) != len(found):
            return f"the answer returns {len(found)} tensors, expected {len(wanted)}"
        named = [(f"result {place}", one, other) for place, (one, other) in enumerate(zip(wanted, found, strict=True))]
        known = dict(new.named_buffers())
        named += [(f"buffer {name}", one, known[name]) for name, one in model.named_buffers() if name in known]
        for name, one, other in named:
            if not agree(torch, one, other):
                return f"{name} differs on inputs {trial}: {_told(one, other)}"
    return ""


def _errors(torch: Any, loaded: Any, answered: Any, device: str) -> tuple[dict[str, float], str]:
    """The largest errors of the answer and of eager PyTorch beside the module in float64; or why there are none.

    An error counts in parts of the larger of 1 and the right number.
    """
    try:
        exact = _made(torch, loaded, "Model", device).double()
        wide = [_widened(torch, each) for each in _inputs(torch, loaded, SEED, device)]
        wanted = results_of(exact(*wide))
    except Exception as error:  # a module may insist on its own precision
        return {}, f"{type(error).__name__}: {error}".splitlines()[0][:200]
    found = {}
    for name, file, kind in (("answer", answered, "ModelNew"), ("eager", loaded, "Model")):
        results = results_of(_made(torch, file, kind, device)(*_inputs(torch, loaded, SEED, device)))
        found[name] = max((_error(torch, *pair) for pair in zip(results, wanted, strict=True)), default=0.0)
    return found, ""


def _widened(torch: Any, value: Any) -> Any:
    return value.double() if torch.is_tensor(value) and value.is_floating_point() else value


def _error(torch: Any, found: Any, wanted: Any) -> float:
    if not wanted.is_floating_point() or not wanted.numel():
        return 0.0
    apart = (found.double() - wanted).abs() / wanted.abs().clamp(min=1.0)
    apart = apart[torch.isfinite(wanted)]
    return float(apart.max().nan_to_num(nan=float("inf")).item()) if apart.numel() else 0.0


def _too_far(errors: Mapping[str, float]) -> str:
    """In words, where the answer is much further from the module in float64 than eager PyTorch is; empty: it is not."""
    allowed = max(TOLERANCE, 2 * errors.get("eager", 0.0))
    if errors.get("answer", 0.0) <= allowed:
        return ""
    return f"its error beside the module in float64 is {errors['answer']:.3g}, and {allowed:.3g} is allowed"


@contextlib.contextmanager
def _full_precision(torch: Any) -> Iterator[None]:
    """Without TF32, which PyTorch takes for convolutions unless told otherwise; timed is what it takes."""
    own = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = own


def _told(wanted: Any, found: Any) -> str:
    if wanted.shape != found.shape or wanted.dtype != found.dtype:
        return f"{tuple(found.shape)} of {found.dtype}, expected {tuple(wanted.shape)} of {wanted.dtype}"
    if not wanted.is_floating_point():
        return f"{int((wanted != found).sum())} of {wanted.numel()} are another number"
    most, allowed = (wanted.double() - found.double()).abs().max().item(), tolerance_of(wanted)
    return f"by up to {most:.3g}, where numbers are up to {wanted.abs().max().item():.3g} and {allowed:g} is allowed"


def _notes(torch: Any, loaded: Any, inputs: Sequence[Any], device: str) -> list[str]:
    """Why a verdict on the module says little, or the official evaluator cannot give one."""
    found = []
    results = results_of(_made(torch, loaded, "Model", device)(*_own(inputs)))
    floats = [each for each in results if each.is_floating_point()]
    if floats and all(agree(torch, each, torch.zeros_like(each)) for each in floats):
        found.append("degenerate: zeros pass as the result")
    others = results_of(_made(torch, loaded, "Model", device)(*_inputs(torch, loaded, SEED + 1, device)))
    if all(agree(torch, one, other) for one, other in zip(results, others, strict=True)):
        found.append("degenerate: the result of other inputs passes")
    with _full_precision(torch):
        exact = results_of(_made(torch, loaded, "Model", device)(*_own(inputs)))
    if not all(agree(torch, one, other) for one, other in zip(results, exact, strict=True)):
        found.append("PyTorch's own result is in TF32, so the official evaluator may call a right answer wrong")
    types = {str(each.dtype).removeprefix("torch.") for each in inputs if hasattr(each, "dtype")} - {"float32"}
    found += [f"the official evaluator casts inputs of {dtype} to float32" for dtype in sorted(types)]
    return found


def _compiled(
    torch: Any, loaded: Any, inputs: Sequence[Any], job: Mapping[str, Any], first: dict[str, float]
) -> tuple[dict[str, Any], dict[str, str]]:
    """The compiled modules that were asked for, and by name why one is missing; `first` gets their first calls in s."""
    found, refused = dict[str, Any](), dict[str, str]()
    for name in job["modes"]:
        _wait(torch, str(job["device"]))
        begun = time.perf_counter()
        try:
            compiled = torch.compile(_made(torch, loaded, "Model", str(job["device"])), **MODES[name])
            compiled(*_own(inputs))
            _wait(torch, str(job["device"]))
        except Exception as error:  # a compiler's failure is a result here
            refused[name] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            continue
        found[name], first[name] = compiled, time.perf_counter() - begun
    return found, refused


Watch = Callable[[Callable[[], Any]], Callable[[], float]]
"""What prepares the timing of a call: the result gives the seconds of one more sample."""


def _warm(torch: Any, device: str) -> Watch:
    """Whole calls, one after the other, with all that Python does around the kernels."""

    def seconds(call: Callable[[], Any], count: int) -> float:
        _wait(torch, device)
        begun = time.perf_counter()
        for _ in range(count):
            call()
        _wait(torch, device)
        return (time.perf_counter() - begun) / count

    def prepared(call: Callable[[], Any]) -> Callable[[], float]:
        count = max(1, round(SAMPLE_S / max(1e-7, seconds(call, 3))))
        return lambda: seconds(call, count)

    return prepared


def _cold(torch: Any) -> Watch:
    """One call by the GPU's own clock, behind a write that empties its cache.

    One that is not timed comes before, as in a loop of calls: after other modules a call's Python is slow for once, and
    the GPU waits for it longer than the write takes.
    """
    flushed = torch.empty(FLUSHED_BYTES, dtype=torch.uint8, device="cuda")

    def seconds(call: Callable[[], Any]) -> float:
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        call()
        torch.cuda.synchronize()
        flushed.zero_()
        begun.record()
        call()
        ended.record()
        torch.cuda.synchronize()
        return 1e-3 * float(begun.elapsed_time(ended))

    def prepared(call: Callable[[], Any]) -> Callable[[], float]:
        for _ in range(3):
            call()
        return lambda: seconds(call)

    return prepared


def _parts(torch: Any, answered: Any, call: Callable[[], Any], device: str) -> dict[str, float]:
    """The seconds of each launch and each library call in one call of the answer."""
    with watched(answered, partial(_wait, torch, device)) as seconds:
        call()
    return dict(seconds)


def _samples(
    calls: Mapping[str, Callable[..., Any]],
    inputs: Sequence[Any],
    watch: Watch,
    parts: Callable[[], dict[str, float]],
    rounds: int,
    most_s: float,
) -> tuple[dict[str, list[float]], list[dict[str, float]]]:
    """Seconds of a call by name, one from each round, in turns, and those of the answer's parts from the same rounds.

    Each call has inputs of its own. The order turns.
    """
    timers = {name: watch(partial(call, *_own(inputs))) for name, call in calls.items()}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    parts_s = list[dict[str, float]]()
    end_s = time.perf_counter() + most_s
    for names in _turns([*calls], rounds):
        if len(samples["answer"]) >= LEAST_ROUNDS and time.perf_counter() > end_s:
            break
        for name in names:
            samples[name].append(timers[name]())
        parts_s.append(parts())
    return samples, parts_s if any(parts_s) else []


def _turns(names: list[str], rounds: int) -> Iterator[list[str]]:
    for turn in range(rounds):
        first = turn % len(names)
        yield names[first:] + names[:first]
